//! ICMP errors: a packet becomes the error about it.
//!
//! ```text
//! push_icmp_error   | 28 new bytes | MACs 0x800 | IPv4 | UDP .. |   ->   | MACs 0x800 | IPv4 | ICMP | IPv4 | UDP .. |
//! ```
//!
//! The caller makes the room in front, and takes away what follows the error.
//!
//! Source: RFC 792, RFC 1122 section 3.2.2, RFC 1191 section 4 (MTU), RFC 1812 section 4.3.2,
//! RFC 4443 sections 2.4 and 3.

use std::net::IpAddr;

use zerocopy::IntoBytes;

use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::outer::{IPV4_BYTES, IPV6_BYTES, put};
use crate::{Head, HeadMut, IpRef, Malformed, Protocol, checksum, eth, partial};

/// Bytes of the header of an ICMP message.
const ICMP_BYTES: usize = 8;
/// Most bytes of an IP packet with an error: over IPv4, where every host takes so many, and over
/// IPv6, where every link does.
const V4_MAX_BYTES: usize = 576;
const V6_MAX_BYTES: usize = 1280;
/// Type of service of an error over IPv4: the precedence "internetwork control".
/// Source: RFC 1812 section 4.3.2.5.
const CONTROL: u8 = 6 << 5;

/// An error of ICMP or ICMPv6 about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet had no hop left: type 11 over IPv4, type 3 over IPv6, with code 0.
    TimeExceeded,
    /// The packet cannot reach its destination: type 3 over IPv4, type 1 over IPv6, with this code.
    /// The codes differ: a closed port is code 3 over IPv4 and code 4 over IPv6.
    Unreachable(u8),
    /// The packet is longer than the MTU of its next link, in bytes from the IP header on: type 3
    /// with code 4 over IPv4, where 65535 is the largest MTU that the error can say, type 2 with
    /// code 0 over IPv6. Over IPv4 it is an error only if the packet forbids fragmentation:
    /// [`Ipv4Header::dont_fragment`].
    TooBig(u32),
}

impl IcmpError {
    /// Returns the number of bytes that an error from the address `from` adds before the packet
    /// that it quotes.
    #[must_use]
    pub fn header_bytes(from: IpAddr) -> usize {
        ICMP_BYTES + if from.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES }
    }

    /// Returns the header of the message, with a checksum of 0.
    fn header(self, v6: bool) -> [u8; ICMP_BYTES] {
        let (kind, word) = match (self, v6) {
            (IcmpError::TimeExceeded, false) => ([11, 0], 0),
            (IcmpError::TimeExceeded, true) => ([3, 0], 0),
            (IcmpError::Unreachable(code), false) => ([3, code], 0),
            (IcmpError::Unreachable(code), true) => ([1, code], 0),
            (IcmpError::TooBig(mtu), false) => ([3, 4], mtu.min(u16::MAX.into())),
            (IcmpError::TooBig(mtu), true) => ([2, 0], mtu),
        };
        let [a, b, c, d] = word.to_be_bytes();
        [kind[0], kind[1], 0, 0, a, b, c, d]
    }
}

/// The part of a packet that an error about it quotes.
struct Quote {
    /// Length of the Ethernet header, with VLAN tags.
    eth: usize,
    /// Length of the quoted part of the IP packet.
    len: usize,
    /// Sender of the packet, who gets the error.
    sender: IpAddr,
}

impl Head<'_> {
    /// Checks that the packet may be answered by `error` from the address `from`.
    ///
    /// Errors: as [`HeadMut::push_icmp_error`].
    /// Cost:   constant but for IPv6 extension headers, at most eight.
    pub fn check_icmp_error(self, from: IpAddr, error: IcmpError) -> Result<(), Malformed> {
        self.quote(from, error).map(|_| ())
    }

    fn quote(self, from: IpAddr, error: IcmpError) -> Result<Quote, Malformed> {
        let (eth, ip) = (self.eth()?, self.ip()?);
        let (len, most) = match (ip, from) {
            (IpRef::V4(ip), IpAddr::V4(_)) => (ip.total_len(), V4_MAX_BYTES),
            (IpRef::V6(ip), IpAddr::V6(_)) => (IPV6_BYTES + ip.payload_len(), V6_MAX_BYTES),
            (IpRef::V4(_), _) => return Err(Malformed::NotIpv6),
            (IpRef::V6(_), _) => return Err(Malformed::NotIpv4),
        };
        if ip.is_later_fragment() {
            return Err(Malformed::Fragment);
        }
        // A router has to report the MTU to those who send to a group, too: RFC 4443 section 2.4
        // (e.3).
        let is_to_groups = from.is_ipv6() && matches!(error, IcmpError::TooBig(_));
        let is_to_group = eth.dst().is_multicast() || is_group(ip.dst());
        let is_from_host = !eth.src().is_multicast() && is_one_host(ip.src());
        if is_icmp_error(&ip) || !is_from_host || is_to_group && !is_to_groups {
            return Err(Malformed::NotAnswered);
        }
        if len == 0 {
            return Err(Malformed::BadLength); // a superframe over 64 KiB
        }
        let eth = partial::offset_in(self.bytes.as_ptr().addr(), eth.payload());
        let len = len.min(most - IcmpError::header_bytes(from));
        if eth + len > self.bytes.len() {
            return Err(Malformed::Short);
        }
        Ok(Quote { eth, len, sender: ip.src() })
    }
}

impl HeadMut<'_> {
    /// Turns the packet into `error` about it, from the address `from` to its sender; returns the
    /// length of the frame with the error. The first [`IcmpError::header_bytes`] bytes of the frame
    /// are unused before, and give the headers room.
    ///
    /// Shape:  the MAC addresses swapped, the VLAN tags as they were, an IP header with 64 hops,
    ///         the ICMP header, and as many bytes of the packet as 576 bytes of IPv4 or 1280 of
    ///         IPv6 have room for; checksums right. A checksum of the packet that is left to a
    ///         device must be complete before. What was sent to a group comes from the group's MAC
    ///         address; set another one. How often errors are sent is for the caller to limit.
    /// Errors: [`Malformed::NotAnswered`] about an ICMP error or a redirect, about a packet that
    ///         was sent to a group (a broadcast or multicast address of the link or of IP), except
    ///         for [`IcmpError::TooBig`] over IPv6, and about one whose sender is no single host;
    ///         [`Malformed::Fragment`] about a fragment other than the first;
    ///         [`Malformed::NotIpv4`] or [`Malformed::NotIpv6`] if `from` is of the version that
    ///         the packet is not; [`Malformed::Short`] if the slice ends before the quoted part;
    ///         those of [`crate::ip()`]. Nothing changed. The broadcast address of a subnet, and an
    ///         anycast address, are not known as such.
    /// Cost:   reads the quoted part, for the checksum.
    pub fn push_icmp_error(self, from: IpAddr, error: IcmpError) -> Result<usize, Malformed> {
        let new = IcmpError::header_bytes(from);
        let packet = self.bytes.get(new..).ok_or(Malformed::Short)?;
        let Quote { eth, len, sender } = Head::new(packet, self.behind).quote(from, error)?;
        let (at, end) = (eth + new - ICMP_BYTES, eth + new + len);
        let message_len = (end - at) as u16; // at most 1240
        self.bytes.copy_within(new..new + eth, 0);
        eth::eth_mut(&mut self.bytes[..eth])?.swap_ends();
        let pseudo = match (from, sender) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = Ipv4Header::new(from, to, Protocol::ICMP, 0, message_len);
                ip.set_tos(CONTROL);
                put(self.bytes, eth, ip.as_bytes());
                0
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ip = Ipv6Header::new(from, to, Protocol::ICMPV6, 0, message_len);
                put(self.bytes, eth, ip.as_bytes());
                checksum::pseudo_v6(from, to, Protocol::ICMPV6, message_len.into())
            }
            _ => return Err(Malformed::NotIp), // `quote` has refused two versions
        };
        put(self.bytes, at, &error.header(from.is_ipv6()));
        let sum = checksum::add(pseudo, checksum::sum(&self.bytes[at..end]));
        put(self.bytes, at + 2, &checksum::finish(sum).to_be_bytes());
        Ok(end)
    }
}

/// Returns true for a message about which no error is sent: an error, a redirect, one of an unknown
/// type of ICMP over IPv4, and one whose type is not here.
fn is_icmp_error(ip: &IpRef<'_>) -> bool {
    let icmp_type = ip.payload().first();
    match ip {
        IpRef::V4(_) if ip.protocol() == Protocol::ICMP => {
            icmp_type.is_none_or(|&icmp_type| matches!(icmp_type, 3 | 4 | 5 | 11 | 12 | 19..))
        }
        IpRef::V6(_) if ip.protocol() == Protocol::ICMPV6 => {
            icmp_type.is_none_or(|&icmp_type| matches!(icmp_type, ..128 | 137))
        }
        _ => false,
    }
}

/// Returns true for the broadcast address of all networks, and for a multicast address.
fn is_group(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_broadcast() || addr.is_multicast(),
        IpAddr::V6(addr) => addr.is_multicast(),
    }
}

/// Returns true for an address that a single host can have on a network.
fn is_one_host(addr: IpAddr) -> bool {
    match addr {
        // 0.0.0.0/8 is no host; from 224.0.0.0 on there are groups, reserved addresses, broadcast.
        IpAddr::V4(addr) => matches!(addr.octets()[0], 1..=126 | 128..=223),
        IpAddr::V6(addr) => !addr.is_unspecified() && !addr.is_loopback() && !addr.is_multicast(),
    }
}

#[cfg(test)]
mod tests;
