//! Views of a frame's bytes: typed, checked and safe.
//!
//! Every function here takes a whole Ethernet frame (destination MAC first, no FCS) and returns a
//! *view*: typed references into the same bytes, checked once and never copied. There are two
//! kinds of view:
//!
//! ```text
//! frame  | MACs | VLAN tags | type | IP header, options | UDP header | payload | padding |
//!          EthEnds  VlanTag*          Ipv4Header, &[u8]    UdpHeader    &[u8]     left out
//! ```
//!
//! - `…Ref` reads and is `Copy`; `…Mut` also writes. Both dereference to the header, which has
//!   the methods that read fields: `udp_mut(frame)?.src_port()`.
//! - Whatever a `…Mut` changes, it leaves the checksums right, except where the method says so.
//! - A `…Mut` answers in place ([`ArpMut::reply`], [`IcmpMut::reply`], [`NdMut::reply`]); a
//!   [`HeadMut`] resizes payloads, puts headers around a packet or takes them off, and turns a
//!   packet into the ICMP error about it.
//!
//! A wrong length, an endless chain of headers or a missing header is a [`Malformed`], never a
//! panic. No view allocates. A checksum is verified only by a call that asks for it.
//!
//! A packet longer than one buffer has its headers in the first: [`Head`] and [`HeadMut`] give the
//! same views of them.
//!
//! [`stamp`] is the test frame that generators send and sinks verify.
#![forbid(unsafe_code)]

#[macro_use]
mod views;

mod arp;
pub mod checksum;
mod decap;
mod ecn;
mod eth;
mod flow;
mod head;
mod icmp;
mod icmp_error;
mod ip;
mod ipv4;
mod ipv6;
mod malformed;
mod nd;
mod outer;
mod partial;
mod resize;
pub mod stamp;
mod tcp;
mod toeplitz;
mod transport;
mod udp;

pub use arp::{ArpMut, ArpOp, ArpPacket, arp, arp_mut, arp_request};
pub use decap::Inner;
pub use ecn::mark_ce;
pub use eth::{BadMac, EthEnds, EthMut, EthRef, EtherType, Mac, VlanTag, eth, eth_mut};
pub use head::{Head, HeadMut};
pub use icmp::{IcmpHeader, IcmpMut, IcmpRef, icmp, icmp_mut};
pub use icmp_error::IcmpError;
pub use ip::{IpRef, Protocol, ip};
pub use ipv4::{Ipv4Header, Ipv4Mut, Ipv4Ref, ipv4, ipv4_mut};
pub use ipv6::{Fragment, Ipv6Header, Ipv6Mut, Ipv6Ref, ipv6, ipv6_mut};
pub use malformed::Malformed;
pub use nd::{NdMut, nd_mut};
pub use outer::{IPV4_BYTES, IPV6_BYTES, Tunnel, UdpEnds, VLAN_BYTES};
pub use partial::Partial;
pub use tcp::{TcpFlags, TcpHeader, TcpMut, TcpRef, tcp, tcp_mut};
pub use toeplitz::Toeplitz;
pub use transport::{TransportMut, TransportRef, transport, transport_mut};
pub use udp::{UdpHeader, UdpMut, UdpRef, udp, udp_mut};

#[cfg(test)]
mod testing;
