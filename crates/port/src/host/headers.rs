//! Positions of a packet's headers, for checksums and segmentation.

use linerate_skb::{Skb, Trust};
use linerate_wire::{IPV6_BYTES, VLAN_BYTES, checksum};

use super::tunnel;

/// IP protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// IP protocol number of UDP.
pub(crate) const UDP: u8 = 17;
/// IP protocol number of GRE.
pub(crate) const GRE: u8 = 47;
/// IP protocol number of SCTP.
pub(crate) const SCTP: u8 = 132;
/// Offset of the checksum in TCP's header.
pub(crate) const TCP_CHECK: u16 = 16;
/// Offset of the checksum in UDP's header.
pub(crate) const UDP_CHECK: u16 = 6;
/// Offset of the CRC, of 32 bits, in SCTP's header.
pub(crate) const SCTP_CHECK: u16 = 8;
/// IP protocol number of an IPv4 packet in an IP packet.
const IPIP: u8 = 4;
/// IP protocol number of an IPv6 packet in an IP packet.
const IPV6_IN_IP: u8 = 41;
/// Most nested IP headers that are parsed.
pub(crate) const IP_HEADERS_MAX: usize = 3;
/// Most VLAN tags that are parsed: a service tag and a customer tag.
const TAGS_MAX: usize = 2;
/// Most extension headers of IPv6 that are stepped over, and their most bytes in one packet.
const EXTENSIONS_MAX: usize = 8;
const EXTENSIONS_BYTES_MAX: usize = 128;
/// Longest Ethernet header that is parsed, with its tags, in bytes.
const ETHERNET_MAX: usize = 14 + VLAN_BYTES * TAGS_MAX;
/// Number of bytes in which headers are found: room for Ethernet, all IP headers, extension headers
/// of one of them, one tunnel over UDP with all options and the Ethernet header in it, and a TCP
/// header with all options. Headers that are longer together, as of two tunnels with all options,
/// are not found.
pub(crate) const HEADERS_MAX: usize =
    ETHERNET_MAX * 2 + 60 * IP_HEADERS_MAX + EXTENSIONS_BYTES_MAX + tunnel::BYTES_MAX + 60;

const TYPE_AT: usize = 12;
/// Types of VLAN tags: 802.1Q, 802.1ad, and the one in use before 802.1ad.
const TYPE_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;

/// Options of IPv4: the end of the list, a filler, and the two kinds of source route.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_ROUTE: u8 = 131;
const STRICT_ROUTE: u8 = 137;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Types of routing headers that begin with the final destination: Mobile IPv6 and segment routing.
///
/// Source: RFC 6275, 6.4; RFC 8754, 2.
const FINAL_FIRST: [u8; 2] = [2, 4];

/// An IP header, with the extension headers of IPv6 up to the first that is not stepped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpHeader {
    /// Offset of the header's first byte.
    pub at: usize,
    /// Offset of the byte after the header and its extension headers.
    pub end: usize,
    pub v6: bool,
    /// Protocol of the header that follows.
    pub protocol: u8,
    /// Offset of the final destination's address: in a routing header or a source route if the
    /// packet is not there yet.
    to: usize,
}

/// The header after an IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transport {
    pub at: usize,
    pub protocol: u8,
    /// True if it is behind extension headers of IPv6.
    pub is_extended: bool,
}

impl IpHeader {
    /// Parses the IP header at byte `at` of `data`; returns `None` if there is none, or if it is of
    /// a fragment.
    pub fn at(data: &[u8], at: usize) -> Option<IpHeader> {
        let ip = data.get(at..)?;
        match ip.first()? >> 4 {
            4 => {
                let bytes = usize::from(ip[0] & 0x0f) * 4;
                let fragment = u16_at(ip, 6)? & 0x3fff != 0;
                let protocol = *ip.get(9)?;
                let whole = bytes >= 20 && !fragment;
                let to = match bytes > 20 {
                    true => ip.get(20..bytes).and_then(final_destination).unwrap_or(16),
                    false => 16,
                };
                let header = IpHeader { at, end: at + bytes, v6: false, protocol, to: at + to };
                whole.then_some(header)
            }
            6 => {
                let (end, protocol, to) = (at + IPV6_BYTES, *ip.get(6)?, at + 24);
                IpHeader { at, end, v6: true, protocol, to }.step_over_extensions(data)
            }
            _ => None,
        }
    }

    /// Steps over extension headers, up to [`EXTENSIONS_MAX`] and [`EXTENSIONS_BYTES_MAX`]; returns
    /// `None` for a fragment, or if `data` ends in one of them.
    ///
    /// An atomic fragment is a whole packet. A routing header of an unknown type is not stepped
    /// over while it has segments left, because the final destination, which the checksum covers,
    /// is unknown then.
    ///
    /// Source: RFC 8200, 4 and 8.1; RFC 6946.
    fn step_over_extensions(mut self, data: &[u8]) -> Option<IpHeader> {
        for _ in 0..EXTENSIONS_MAX {
            let kind = self.protocol;
            if !matches!(kind, HOP_BY_HOP | DESTINATION | ROUTING | FRAGMENT) {
                break;
            }
            // The shortest extension header has 8 bytes.
            let &[next, units, high, low, ..] = data.get(self.end..)?.first_chunk::<8>()?;
            // A fragment header has no length.
            let bytes = if kind == FRAGMENT { 8 } else { (usize::from(units) + 1) * 8 };
            if self.end + bytes - self.at - IPV6_BYTES > EXTENSIONS_BYTES_MAX {
                break;
            }
            // The offset of a fragment is in the upper 13 bits, the flag "more" in the lowest.
            if kind == FRAGMENT && (high, low & 0xf9) != (0, 0) {
                return None;
            }
            let (routing_type, segments_left) = (high, low);
            if kind == ROUTING && segments_left > 0 {
                if !FINAL_FIRST.contains(&routing_type) || bytes < 24 {
                    break;
                }
                self.to = self.end + 8;
            }
            (self.protocol, self.end) = (next, self.end + bytes);
        }
        Some(self)
    }

    /// Returns the sum of the pseudo header of the `len` bytes after this header; `None` if an
    /// address is not in `data`.
    pub fn pseudo(&self, data: &[u8], len: u16) -> Option<u16> {
        let (from, bytes) = if self.v6 { (self.at + 8, 16) } else { (self.at + 12, 4) };
        let [high, low] = len.to_be_bytes();
        let addresses = [from, self.to].map(|at| data.get(at..at + bytes).map(checksum::sum));
        let addresses = checksum::add(addresses[0]?, addresses[1]?);
        // The length counts as 32 bits in IPv6, of which the upper ones are 0 here.
        Some(checksum::add(addresses, checksum::sum(&[0, self.protocol, high, low])))
    }

    /// Parses the first IP header of a frame.
    pub fn first(data: &[u8]) -> Option<IpHeader> {
        IpHeader::of_frame(data, 0)
    }

    /// Parses the first IP header of the frame at byte `at` of `data`.
    fn of_frame(data: &[u8], at: usize) -> Option<IpHeader> {
        let at = network_of(data, at)?;
        IpHeader::of_type(data, at, u16_at(data, at - 2)?)
    }

    /// Parses the IP header at byte `at` of `data`, if it is of the Ethernet type `kind`.
    fn of_type(data: &[u8], at: usize, kind: u16) -> Option<IpHeader> {
        let is_of_type = |ip: &IpHeader| kind == if ip.v6 { TYPE_IPV6 } else { TYPE_IPV4 };
        IpHeader::at(data, at).filter(is_of_type)
    }

    /// Parses the IP header of the inner packet, if this one carries an IP packet.
    pub fn inner(self, data: &[u8]) -> Option<IpHeader> {
        let v6 = match self.protocol {
            IPIP => false,
            IPV6_IN_IP => true,
            _ => return None,
        };
        IpHeader::at(data, self.end).filter(|inner| inner.v6 == v6)
    }

    /// Parses the IP header of the packet in the tunnel that follows this one: IP in IP, VXLAN,
    /// Geneve, or GRE.
    fn tunnelled(self, data: &[u8]) -> Option<IpHeader> {
        if !matches!(self.protocol, UDP | GRE) {
            return self.inner(data);
        }
        match tunnel::payload(data, &self)? {
            (at, tunnel::TYPE_ETHERNET) => IpHeader::of_frame(data, at),
            (at, kind) => IpHeader::of_type(data, at, kind),
        }
    }
}

/// Returns the nested IP headers of a frame, the outermost first, also those in tunnels over UDP
/// and GRE.
pub(crate) fn nested(data: &[u8]) -> [Option<IpHeader>; IP_HEADERS_MAX] {
    let (mut ips, mut next) = ([None; IP_HEADERS_MAX], IpHeader::first(data));
    for ip in &mut ips {
        *ip = next;
        next = next.and_then(|ip| ip.tunnelled(data));
    }
    ips
}

/// Returns the offset in an IPv4 header of the final destination's address, if `options` have a
/// source route with hops left: the last address of the route. The checksum of the transport header
/// covers that address.
///
/// Source: RFC 791, 3.1.
#[cold]
fn final_destination(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at..)? {
            [LOOSE_ROUTE | STRICT_ROUTE, len, pointer, ..] if pointer <= len => {
                let end = at + usize::from(len);
                let has_address = len >= 7 && end <= options.len();
                return if has_address { Some(20 + end - 4) } else { None };
            }
            [NO_OPERATION, ..] => at += 1,
            [kind, len, ..] if kind != END && len >= 2 => at += usize::from(len),
            _ => return None,
        }
    }
}

/// Returns true if the headers of `data` are still found behind one more VLAN tag.
pub(crate) fn takes_tag(data: &[u8]) -> bool {
    let longest = TYPE_AT + VLAN_BYTES * TAGS_MAX + 2;
    network(data).is_some_and(|at| at < longest)
}

/// Returns true if the headers of `data` are still found behind one more IP header.
pub(crate) fn takes_ip(data: &[u8]) -> bool {
    let ips = nested(data);
    ips[0].is_some() && ips[IP_HEADERS_MAX - 1].is_none()
}

/// Returns the offset of the network header, after up to [`TAGS_MAX`] tags.
pub(crate) fn network(data: &[u8]) -> Option<usize> {
    network_of(data, 0)
}

/// Returns the offset of the network header of the frame at byte `at` of `data`, as [`network`]
/// does.
fn network_of(data: &[u8], at: usize) -> Option<usize> {
    let mut at = at + TYPE_AT;
    for _ in 0..TAGS_MAX {
        if !TYPE_VLAN.contains(&u16_at(data, at)?) {
            break;
        }
        at += VLAN_BYTES;
    }
    Some(at + 2)
}

/// Returns true if the type of the network header is IPv4 or IPv6.
pub(crate) fn is_ip(data: &[u8]) -> bool {
    let kind = network(data).and_then(|at| u16_at(data, at - 2));
    matches!(kind, Some(TYPE_IPV4 | TYPE_IPV6))
}

/// Returns the header after the first IP header.
pub(crate) fn transport(data: &[u8]) -> Option<Transport> {
    let ip = IpHeader::first(data)?;
    let is_extended = ip.v6 && ip.end > ip.at + IPV6_BYTES;
    Some(Transport { at: ip.end, protocol: ip.protocol, is_extended })
}

/// Returns the protocol of the header that begins at `start`, if that is behind one of the nested
/// IP headers.
pub(crate) fn protocol_at(data: &[u8], start: usize) -> Option<u8> {
    let mut ips = nested(data).into_iter().flatten();
    ips.find(|ip| ip.end == start).map(|ip| ip.protocol)
}

/// Passes the first bytes of a packet to `look`, in a copy if they cannot be read in place.
pub(crate) fn of<T>(skb: &Skb, look: impl FnOnce(&[u8]) -> T) -> T {
    let data = skb.data();
    if skb.trust() == Trust::Private && (skb.is_linear() || data.len() >= HEADERS_MAX) {
        return look(data);
    }
    let mut copy = [0; HEADERS_MAX];
    let n = skb.copy_to(0, &mut copy);
    look(&copy[..n])
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    two.try_into().ok().map(u16::from_be_bytes)
}
