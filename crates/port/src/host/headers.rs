//! Positions of a packet's headers, for checksums and segmentation.

use linerate_skb::{Skb, Trust};

/// IP protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// IP protocol number of UDP.
pub(crate) const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub(crate) const SCTP: u8 = 132;
/// IP protocol number of an IPv4 packet in an IP packet.
const IPIP: u8 = 4;
/// IP protocol number of an IPv6 packet in an IP packet.
const IPV6_IN_IP: u8 = 41;
/// Most nested IP headers that are parsed.
pub(crate) const IP_HEADERS_MAX: usize = 3;
/// Most VLAN tags that are parsed: a service tag and a customer tag.
const TAGS_MAX: usize = 2;
/// Longest headers that are parsed, in bytes: Ethernet, its tags, IPv4 headers, and a TCP header with
/// all options.
pub(crate) const HEADERS_MAX: usize = 14 + TAG_BYTES * TAGS_MAX + 60 * IP_HEADERS_MAX + 60;

const TYPE_AT: usize = 12;
const TAG_BYTES: usize = 4;
/// Types of VLAN tags: 802.1Q, 802.1ad, and the one in use before 802.1ad.
const TYPE_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;

/// An IP header, without extension headers of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpHeader {
    /// Offset of the header's first byte.
    pub at: usize,
    /// Offset of the byte after the header.
    pub end: usize,
    pub v6: bool,
    /// Protocol of the header that follows.
    pub protocol: u8,
}

/// The header after an IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transport {
    pub at: usize,
    pub protocol: u8,
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
                whole.then_some(IpHeader { at, end: at + bytes, v6: false, protocol })
            }
            6 => Some(IpHeader { at, end: at + 40, v6: true, protocol: *ip.get(6)? }),
            _ => None,
        }
    }

    /// Parses the first IP header of a frame.
    pub fn first(data: &[u8]) -> Option<IpHeader> {
        let at = network(data)?;
        let header = IpHeader::at(data, at)?;
        let kind = if header.v6 { TYPE_IPV6 } else { TYPE_IPV4 };
        (u16_at(data, at - 2)? == kind).then_some(header)
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
}

/// Returns the offset of the network header, after up to [`TAGS_MAX`] tags.
pub(crate) fn network(data: &[u8]) -> Option<usize> {
    let mut at = TYPE_AT;
    for _ in 0..TAGS_MAX {
        if !TYPE_VLAN.contains(&u16_at(data, at)?) {
            break;
        }
        at += TAG_BYTES;
    }
    Some(at + 2)
}

/// Returns the header after the first IP header.
pub(crate) fn transport(data: &[u8]) -> Option<Transport> {
    let ip = IpHeader::first(data)?;
    Some(Transport { at: ip.end, protocol: ip.protocol })
}

/// Returns the protocol of the header that begins at `start`, if that is behind one of the nested IP headers.
pub(crate) fn protocol_at(data: &[u8], start: usize) -> Option<u8> {
    let mut next = IpHeader::first(data);
    for _ in 0..IP_HEADERS_MAX {
        let ip = next?;
        if ip.end == start {
            return Some(ip.protocol);
        }
        next = ip.inner(data);
    }
    None
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
