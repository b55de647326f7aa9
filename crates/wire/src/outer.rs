//! Headers that are added around a packet: VLAN tags, IP in IP, VXLAN, Geneve, and the headers of a
//! UDP datagram. A tag is removed here, too; `decap.rs` takes packets out of tunnels.
//!
//! ```text
//! push_ipv4   | 20 new bytes | MACs type | payload |   ->   | MACs 0x800 | IPv4 | payload |
//! push_vxlan  | 50 new bytes | frame ............. |   ->   | MACs | IPv4 | UDP | VXLAN | frame |
//! ```
//!
//! The caller makes the room in front before a push, and takes it away after a pop. A checksum that
//! is left to a device stays left to it: its offset counts from the new start.
//!
//! Source: RFC 2003 and RFC 2473 (IP in IP), RFC 7348 (VXLAN), RFC 8926 (Geneve), RFC 6935 (zero
//! checksums).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::IntoBytes;

use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::{EtherType, Head, HeadMut, Mac, Malformed, Protocol, UdpHeader, VlanTag};
use crate::{checksum, partial, udp};

/// Bytes of a VLAN tag.
pub const VLAN_BYTES: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_BYTES: usize = 40;

/// Bytes of an Ethernet header without tags; the next constant is the bytes of its MAC addresses.
pub(crate) const ETH_BYTES: usize = 14;
const MACS_BYTES: usize = 12;
/// Bytes of a UDP header; the next constant is the bytes of a VXLAN header, or a Geneve header
/// without options.
const UDP_BYTES: usize = size_of::<UdpHeader>();
pub(crate) const TUNNEL_BYTES: usize = 8;
pub(crate) const VXLAN_PORT: u16 = 4789;
pub(crate) const GENEVE_PORT: u16 = 6081;
/// The first word of VXLAN's header: the flag for a network identifier.
const VXLAN_FIRST: u32 = 0x0800_0000;
/// The protocol of an Ethernet frame in Geneve; the next constant is the first word of Geneve's
/// header: version 0, no options, such a frame.
pub(crate) const GENEVE_ETHERNET: u16 = 0x6558;
const GENEVE_FIRST: u32 = GENEVE_ETHERNET as u32;

/// The ends and the network of a VXLAN or Geneve tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// MAC address of this end.
    pub src_mac: Mac,
    /// MAC address of the next hop towards the other end.
    pub dst_mac: Mac,
    /// IP address of this end.
    pub src: IpAddr,
    /// IP address of the other end, of the same version.
    pub dst: IpAddr,
    /// Number of the virtual network, in the low 24 bits.
    pub vni: u32,
    /// UDP port of the other end; `None` is the registered one: 4789 for VXLAN, 6081 for Geneve.
    /// Linux and what is built on it (flannel, Cilium) have VXLAN at 8472 unless told otherwise.
    pub port: Option<u16>,
}

impl Tunnel {
    /// Returns the number of bytes that the tunnel adds before a frame.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        let ip = if self.src.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        ETH_BYTES + ip + UDP_BYTES + TUNNEL_BYTES
    }
}

/// The two ends of a UDP datagram; both have the same IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpEnds {
    /// MAC address of this end.
    pub src_mac: Mac,
    /// MAC address of the next hop towards the other end.
    pub dst_mac: Mac,
    /// Address and port of this end.
    pub src: SocketAddr,
    /// Address and port of the other end.
    pub dst: SocketAddr,
}

impl UdpEnds {
    /// Returns the number of bytes of headers before the payload.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        let ip = if self.src.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        ETH_BYTES + ip + UDP_BYTES
    }

    /// Writes all headers into `frame`, whose payload begins at [`UdpEnds::header_bytes`], so that
    /// it becomes a datagram.
    ///
    /// Shape:  64 hops, not to be fragmented, checksums right; a checksum within the payload must
    ///         be complete before.
    /// Errors: [`Malformed::NotIpv4`] or [`Malformed::NotIpv6`] for ends of two versions,
    ///         [`Malformed::Short`], [`Malformed::BadLength`] over 64 KiB; nothing written.
    /// Cost:   reads the whole payload, for the checksum.
    pub fn write(&self, frame: &mut [u8]) -> Result<(), Malformed> {
        let payload = frame.len().checked_sub(self.header_bytes()).ok_or(Malformed::Short)?;
        let udp_len = short(payload + UDP_BYTES, IPV4_BYTES)?;
        self.write_headers(frame, 0, udp_len)?;
        let pseudo = match (self.src, self.dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
                checksum::pseudo_v4(*src.ip(), *dst.ip(), Protocol::UDP, udp_len)
            }
            (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
                checksum::pseudo_v6(*src.ip(), *dst.ip(), Protocol::UDP, udp_len.into())
            }
            _ => 0, // `write_headers` above has refused mixed versions
        };
        let udp_at = self.header_bytes() - UDP_BYTES;
        let sum = checksum::add(pseudo, checksum::sum(&frame[udp_at..]));
        let check = partial::nonzero(true, checksum::finish(sum));
        put(frame, udp_at + udp::CHECK_AT, &check.to_be_bytes());
        Ok(())
    }

    /// Writes the headers before a payload, without a UDP checksum; `udp_len` includes the UDP
    /// header.
    fn write_headers(&self, bytes: &mut [u8], ecn: u8, udp_len: u16) -> Result<(), Malformed> {
        let ether_type = match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = Ipv4Header::new(src, dst, Protocol::UDP, ecn, udp_len);
                put(bytes, ETH_BYTES, header.as_bytes());
                EtherType::IPV4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header::new(src, dst, Protocol::UDP, ecn, udp_len);
                put(bytes, ETH_BYTES, header.as_bytes());
                EtherType::IPV6
            }
            (IpAddr::V4(_), _) => return Err(Malformed::NotIpv4),
            (IpAddr::V6(_), _) => return Err(Malformed::NotIpv6),
        };
        put(bytes, 0, &self.dst_mac.0);
        put(bytes, size_of::<Mac>(), &self.src_mac.0);
        put(bytes, MACS_BYTES, &ether_type.0.to_be_bytes());
        let header = UdpHeader::new(self.src.port(), self.dst.port(), udp_len);
        put(bytes, self.header_bytes() - UDP_BYTES, header.as_bytes());
        Ok(())
    }
}

impl HeadMut<'_> {
    /// Adds `tag` as the outermost tag; its header takes the first [`VLAN_BYTES`] bytes of the
    /// frame, which are unused before.
    ///
    /// Errors: [`Malformed::Short`].
    pub fn push_vlan(self, tag: VlanTag) -> Result<(), Malformed> {
        if self.bytes.len() < VLAN_BYTES + ETH_BYTES {
            return Err(Malformed::Short);
        }
        self.bytes.copy_within(VLAN_BYTES..VLAN_BYTES + MACS_BYTES, 0);
        self.bytes[MACS_BYTES..MACS_BYTES + VLAN_BYTES].copy_from_slice(tag.as_bytes());
        Ok(())
    }

    /// Removes the outermost VLAN tag, and returns it; the first [`VLAN_BYTES`] bytes are unused
    /// afterwards.
    ///
    /// Errors: [`Malformed::NotTagged`], and nothing changed.
    pub fn pop_vlan(mut self) -> Result<VlanTag, Malformed> {
        let tag = *self.reborrow().eth()?.tags().first().ok_or(Malformed::NotTagged)?;
        self.bytes.copy_within(..MACS_BYTES, VLAN_BYTES);
        Ok(tag)
    }

    /// Inserts an IPv4 header between the frame's Ethernet header and its payload; the first
    /// [`IPV4_BYTES`] bytes of the frame are unused before, and give it room.
    ///
    /// Shape:  64 hops, not to be fragmented, the congestion mark of the packet inside, no options,
    ///         checksum right. With [`Protocol::IPIP`] and [`Protocol::IPV6`], what is inside ends
    ///         where its own length says, and padding stays padding. With another protocol, all
    ///         bytes are the payload, padding included: trim the padding before.
    /// Errors: [`Malformed::NotIpv4`] or [`Malformed::NotIpv6`] if [`Protocol::IPIP`] or
    ///         [`Protocol::IPV6`] is said of another packet, [`Malformed::BadLength`] for a packet
    ///         over 64 KiB, those of [`crate::ip()`]; nothing changed.
    /// Cost:   constant.
    pub fn push_ipv4(
        self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
    ) -> Result<(), Malformed> {
        let inside = Inside::behind(IPV4_BYTES, self.bytes, self.behind, protocol)?;
        let payload = short(inside.payload, IPV4_BYTES)?;
        let header = Ipv4Header::new(src, dst, protocol, inside.ecn, payload);
        insert(self.bytes, inside.eth, EtherType::IPV4, header.as_bytes());
        Ok(())
    }

    /// Inserts an IPv6 header as [`HeadMut::push_ipv4`] inserts an IPv4 header; the first
    /// [`IPV6_BYTES`] bytes of the frame give it room.
    ///
    /// Shape:  as [`HeadMut::push_ipv4`]: with another protocol than [`Protocol::IPIP`] and
    ///         [`Protocol::IPV6`], trim padding before, because it counts to the payload.
    pub fn push_ipv6(
        self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
    ) -> Result<(), Malformed> {
        let inside = Inside::behind(IPV6_BYTES, self.bytes, self.behind, protocol)?;
        let payload = short(inside.payload, 0)?;
        let header = Ipv6Header::new(src, dst, protocol, inside.ecn, payload);
        insert(self.bytes, inside.eth, EtherType::IPV6, header.as_bytes());
        Ok(())
    }

    /// Wraps the frame in a VXLAN tunnel; the first [`Tunnel::header_bytes`] bytes are unused
    /// before, and give the headers room.
    ///
    /// Shape:  64 hops, not to be fragmented, the congestion mark of the packet inside. The source
    ///         port is of the flow inside, so that links in parallel keep it in order. UDP's
    ///         checksum is left at zero (none), as RFC 7348 says; over IPv6, where not every end
    ///         takes none, fill it: [`crate::UdpMut::fill_checksum`].
    /// Errors: [`Malformed::NotIpv4`] or [`Malformed::NotIpv6`] for ends of two versions,
    ///         [`Malformed::Short`], [`Malformed::BadLength`] over 64 KiB; nothing changed.
    /// Cost:   constant.
    pub fn push_vxlan(self, tunnel: &Tunnel) -> Result<(), Malformed> {
        self.push_tunnel(tunnel, VXLAN_PORT, VXLAN_FIRST)
    }

    /// Wraps the frame in a Geneve tunnel without options, as [`HeadMut::push_vxlan`] does for
    /// VXLAN.
    pub fn push_geneve(self, tunnel: &Tunnel) -> Result<(), Malformed> {
        self.push_tunnel(tunnel, GENEVE_PORT, GENEVE_FIRST)
    }

    fn push_tunnel(self, tunnel: &Tunnel, port: u16, first: u32) -> Result<(), Malformed> {
        let header_bytes = tunnel.header_bytes();
        let frame = self.bytes.get(header_bytes..).ok_or(Malformed::Short)?;
        let frame = Head::new(frame, self.behind);
        frame.eth()?;
        let ecn = frame.ip().map_or(0, |ip| ip.ecn());
        // The source port is from 49152 to 65535, as RFC 7348 section 5 recommends.
        let src_port = 0xc000 | frame.flow_hash() as u16 >> 2;
        let headers = UDP_BYTES + TUNNEL_BYTES + frame.bytes.len();
        let udp_len = headers.checked_add(frame.behind).ok_or(Malformed::BadLength)?;
        // The length must fit the payload length of IPv6, and the total length of IPv4, which
        // includes the IPv4 header.
        let udp_len = short(udp_len, IPV4_BYTES)?;

        let ends = UdpEnds {
            src_mac: tunnel.src_mac,
            dst_mac: tunnel.dst_mac,
            src: SocketAddr::new(tunnel.src, src_port),
            dst: SocketAddr::new(tunnel.dst, tunnel.port.unwrap_or(port)),
        };
        ends.write_headers(self.bytes, ecn, udp_len)?;
        let at = ends.header_bytes();
        put(self.bytes, at, &first.to_be_bytes());
        put(self.bytes, at + 4, &(tunnel.vni << 8).to_be_bytes());
        Ok(())
    }
}

/// Properties of a packet around which an IP header is put.
struct Inside {
    /// Length of the frame's Ethernet header, including tags.
    eth: usize,
    /// Length of the payload after the Ethernet header, without Ethernet padding.
    payload: usize,
    ecn: u8,
}

impl Inside {
    /// Parses the frame that begins `new` bytes after the start of `bytes`.
    fn behind(
        new: usize,
        bytes: &[u8],
        behind: usize,
        protocol: Protocol,
    ) -> Result<Inside, Malformed> {
        let frame = Head::new(bytes.get(new..).ok_or(Malformed::Short)?, behind);
        let eth = frame.bytes.len() - frame.eth()?.payload().len();
        let (payload, ecn) = match protocol {
            Protocol::IPIP => {
                let ip = frame.ipv4()?;
                let len = IPV4_BYTES + ip.options().len() + ip.payload().len() + ip.behind();
                (len, ip.ecn())
            }
            Protocol::IPV6 => {
                let ip = frame.ipv6()?;
                (IPV6_BYTES + ip.payload_len(), ip.ecn())
            }
            _ => {
                let here = frame.bytes.len() - eth;
                let len = here.checked_add(behind).ok_or(Malformed::BadLength)?;
                (len, frame.ip().map_or(0, |ip| ip.ecn()))
            }
        };
        Ok(Inside { eth, payload, ecn })
    }
}

/// Moves the Ethernet header of `eth` bytes to the start of `bytes`, and writes `header` into the
/// room behind it.
fn insert(bytes: &mut [u8], eth: usize, ether_type: EtherType, header: &[u8]) {
    bytes.copy_within(header.len()..header.len() + eth, 0);
    put(bytes, eth - 2, &ether_type.0.to_be_bytes());
    put(bytes, eth, header);
}

pub(crate) fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// Returns `len` if `len` plus `more` fits a length field.
fn short(len: usize, more: usize) -> Result<u16, Malformed> {
    let fits = len.checked_add(more).is_some_and(|all| all <= usize::from(u16::MAX));
    if fits { Ok(len as u16) } else { Err(Malformed::BadLength) }
}
