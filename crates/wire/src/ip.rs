//! The common part of IPv4 and IPv6: offset and protocol of the transport header.

use std::fmt;
use std::net::IpAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{IntoByteSliceMut, Ref, SplitByteSlice};

use crate::partial::Check;
use crate::{EtherType, Head, Ipv4Header, Ipv4Ref, Ipv6Header, Ipv6Ref, Malformed};
use crate::{checksum, eth, ipv4, ipv6};

/// Number of hops of an answer. Source: RFC 1700, "IP Time to Live".
pub(crate) const REPLY_HOPS: u8 = 64;

/// Returns a view of the IP packet in `frame`, of either version.
///
/// Errors: [`Malformed::NotIp`], or those of [`crate::ipv4`] and [`crate::ipv6`].
pub fn ip(frame: &[u8]) -> Result<IpRef<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<IpRef<'_>, Malformed> {
    let (eth, behind) = (eth::split(head.bytes)?, head.behind);
    match eth.ether_type {
        EtherType::IPV4 => Ok(IpRef::V4(ipv4::split(eth.payload, behind)?.into())),
        EtherType::IPV6 => Ok(IpRef::V6(ipv6::split(eth.payload, behind)?.into())),
        _ => Err(Malformed::NotIp),
    }
}

/// An IP packet of either version, read only.
#[derive(Debug, Clone, Copy)]
pub enum IpRef<'a> {
    /// IPv4.
    V4(Ipv4Ref<'a>),
    /// IPv6.
    V6(Ipv6Ref<'a>),
}

impl<'a> IpRef<'a> {
    /// Returns the sender's address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        match self {
            IpRef::V4(ip) => ip.src().into(),
            IpRef::V6(ip) => ip.src().into(),
        }
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        match self {
            IpRef::V4(ip) => ip.dst().into(),
            IpRef::V6(ip) => ip.dst().into(),
        }
    }

    /// Returns the protocol of the payload, which follows any IPv6 extension headers.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            IpRef::V4(ip) => ip.protocol(),
            IpRef::V6(ip) => ip.protocol(),
        }
    }

    /// Returns the payload, without padding and extension headers.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        match self {
            IpRef::V4(ip) => ip.payload(),
            IpRef::V6(ip) => ip.payload(),
        }
    }

    /// Returns the ports of the sender and of the receiver, of UDP or TCP; `None` for another
    /// protocol, for a fragment other than the first, and if the payload ends before. The transport
    /// header is not checked: this is for a packet that [`crate::IcmpRef::quoted`] returns.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        if self.is_later_fragment() || !matches!(self.protocol(), Protocol::UDP | Protocol::TCP) {
            return None;
        }
        let &[a, b, c, d] = self.payload().first_chunk()?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns the number of payload bytes that follow outside the slice: 0 unless the view is a
    /// [`crate::Head`]'s.
    #[must_use]
    pub fn behind(&self) -> usize {
        match self {
            IpRef::V4(ip) => ip.behind(),
            IpRef::V6(ip) => ip.behind(),
        }
    }

    /// Returns the explicit congestion notification, 0 to 3.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        match self {
            IpRef::V4(ip) => ip.ecn(),
            IpRef::V6(ip) => ip.ecn(),
        }
    }

    /// Returns the number of hops left: IPv4's time to live, IPv6's hop limit.
    #[must_use]
    pub fn hops(&self) -> u8 {
        match self {
            IpRef::V4(ip) => ip.ttl(),
            IpRef::V6(ip) => ip.hop_limit(),
        }
    }

    /// Returns true for a fragment of a datagram.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        match self {
            IpRef::V4(ip) => ip.is_fragment(),
            IpRef::V6(ip) => ip.is_fragment(),
        }
    }

    /// Returns true for a fragment other than the first, which does not begin with a transport
    /// header.
    pub(crate) fn is_later_fragment(&self) -> bool {
        match self {
            IpRef::V4(ip) => ip.fragment_offset_bytes() > 0,
            IpRef::V6(ip) => ip.fragment().is_some_and(|fragment| fragment.offset_bytes > 0),
        }
    }

    /// Returns the payload as a whole segment of `protocol`; the error `other` if the packet has
    /// another protocol.
    pub(crate) fn segment(
        &self,
        protocol: Protocol,
        other: Malformed,
    ) -> Result<&'a [u8], Malformed> {
        if self.protocol() != protocol {
            return Err(other);
        }
        self.whole()?;
        Ok(self.payload())
    }

    /// Returns an error for a fragment, and for a packet whose source route has hops left.
    pub(crate) fn whole(&self) -> Result<(), Malformed> {
        let routed = match self {
            IpRef::V4(ip) => ipv4::source_routed(ip.options())?,
            IpRef::V6(ip) => ip.is_routed(),
        };
        whole(self.is_fragment(), routed)
    }

    /// Returns the sum of the pseudo header for a segment of `len` bytes.
    pub(crate) fn pseudo(&self, protocol: Protocol, len: usize) -> u16 {
        match self {
            IpRef::V4(ip) => pseudo_v4(ip, protocol, len),
            IpRef::V6(ip) => pseudo_v6(ip, protocol, len),
        }
    }
}

/// The protocol of an IP packet's payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// An IPv4 packet in an IP packet.
    pub const IPIP: Protocol = Protocol(4);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// An IPv6 packet in an IP packet.
    pub const IPV6: Protocol = Protocol(41);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Protocol::ICMP => f.write_str("icmp"),
            Protocol::IPIP => f.write_str("ipip"),
            Protocol::IPV6 => f.write_str("ipv6"),
            Protocol::TCP => f.write_str("tcp"),
            Protocol::UDP => f.write_str("udp"),
            Protocol::ICMPV6 => f.write_str("icmpv6"),
            Protocol(other) => write!(f, "{other}"),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol({self})")
    }
}

/// An IP header of either version, to be changed in place.
#[derive(Debug)]
pub(crate) enum HeaderMut<'a> {
    V4(&'a mut Ipv4Header),
    V6(&'a mut Ipv6Header),
}

impl HeaderMut<'_> {
    pub fn swap(&mut self) {
        match self {
            HeaderMut::V4(header) => header.swap(),
            HeaderMut::V6(header) => header.swap(),
        }
    }

    pub fn src(&self) -> IpAddr {
        match self {
            HeaderMut::V4(header) => header.src().into(),
            HeaderMut::V6(header) => header.src().into(),
        }
    }

    pub fn dst(&self) -> IpAddr {
        match self {
            HeaderMut::V4(header) => header.dst().into(),
            HeaderMut::V6(header) => header.dst().into(),
        }
    }

    pub fn set_hops(&mut self, hops: u8) {
        match self {
            HeaderMut::V4(header) => header.set_ttl(hops),
            HeaderMut::V6(header) => header.set_hop_limit(hops),
        }
    }

    /// Sets the explicit congestion notification to the low two bits of `ecn`.
    pub fn set_ecn(&mut self, ecn: u8) {
        match self {
            HeaderMut::V4(header) => header.set_tos(header.dscp() << 2 | ecn & 3),
            HeaderMut::V6(header) => header.set_ecn(ecn),
        }
    }

    /// Sets the packet's length, counted from this header's first byte.
    pub fn set_len(&mut self, len: usize) -> Result<(), Malformed> {
        let short = |len| u16::try_from(len).map_err(|_| Malformed::BadLength);
        match self {
            HeaderMut::V4(header) => header.set_total_len(short(len)?),
            HeaderMut::V6(header) => {
                header.set_payload_len(short(len - size_of::<Ipv6Header>())?);
            }
        }
        Ok(())
    }

    /// Changes the sender's address, and updates `field`, the transport checksum, as `check`
    /// describes its content; fails for an address of the other version.
    pub fn set_src(
        &mut self,
        addr: IpAddr,
        check: Check,
        field: &mut U16,
        udp: bool,
    ) -> Result<(), Malformed> {
        match (self, addr) {
            (HeaderMut::V4(header), IpAddr::V4(addr)) => {
                check.readdress(field, udp, header.set_src(addr), addr.to_bits());
            }
            (HeaderMut::V6(header), IpAddr::V6(addr)) => {
                check.readdress_v6(field, udp, header.set_src(addr), addr.octets());
            }
            (_, addr) => return Err(other_version(addr)),
        }
        Ok(())
    }

    /// Changes the receiver's address, as `set_src` changes the sender's.
    pub fn set_dst(
        &mut self,
        addr: IpAddr,
        check: Check,
        field: &mut U16,
        udp: bool,
    ) -> Result<(), Malformed> {
        match (self, addr) {
            (HeaderMut::V4(header), IpAddr::V4(addr)) => {
                check.readdress(field, udp, header.set_dst(addr), addr.to_bits());
            }
            (HeaderMut::V6(header), IpAddr::V6(addr)) => {
                check.readdress_v6(field, udp, header.set_dst(addr), addr.octets());
            }
            (_, addr) => return Err(other_version(addr)),
        }
        Ok(())
    }

    pub fn pseudo(&self, protocol: Protocol, len: usize) -> u16 {
        match self {
            HeaderMut::V4(header) => pseudo_v4(header, protocol, len),
            HeaderMut::V6(header) => pseudo_v6(header, protocol, len),
        }
    }
}

/// Returns the error for a packet whose IP version differs from that of `addr`.
fn other_version(addr: IpAddr) -> Malformed {
    if addr.is_ipv4() { Malformed::NotIpv4 } else { Malformed::NotIpv6 }
}

/// Splits the `payload` of an Ethernet frame into its IP header and a whole segment of `protocol`,
/// and returns how many of its bytes are elsewhere.
pub(crate) fn segment_mut<'a, B>(
    ether_type: EtherType,
    payload: B,
    behind: usize,
    protocol: Protocol,
    other: Malformed,
) -> Result<(HeaderMut<'a>, B, usize), Malformed>
where
    B: SplitByteSlice + IntoByteSliceMut<'a> + 'a,
{
    let (found, fragment, routed, header, segment, behind) = match ether_type {
        EtherType::IPV4 => {
            let ip = ipv4::split(payload, behind)?;
            let routed = ipv4::source_routed(&ip.options);
            let (found, fragment) = (ip.header.protocol(), ip.header.is_fragment());
            let header = HeaderMut::V4(Ref::into_mut(ip.header));
            (found, fragment, routed, header, ip.payload, ip.behind)
        }
        EtherType::IPV6 => {
            let ip = ipv6::split(payload, behind)?;
            let header = HeaderMut::V6(Ref::into_mut(ip.header));
            let (found, fragment) = (ip.chain.protocol, ip.chain.is_fragment());
            (found, fragment, Ok(ip.chain.routed), header, ip.payload, ip.behind)
        }
        _ => return Err(Malformed::NotIp),
    };
    if found != protocol {
        return Err(other);
    }
    whole(fragment, routed?)?;
    Ok((header, segment, behind))
}

/// Returns an error if the segment is only a fragment, or its addresses are not final: a transport
/// view requires both.
fn whole(fragment: bool, routed: bool) -> Result<(), Malformed> {
    match (fragment, routed) {
        (true, _) => Err(Malformed::Fragment),
        (_, true) => Err(Malformed::SourceRoute),
        _ => Ok(()),
    }
}

fn pseudo_v4(ip: &Ipv4Header, protocol: Protocol, len: usize) -> u16 {
    // The segment of a superframe over 64 KiB, whose total length is 0, has a longer length; its
    // halves are added.
    let len = checksum::add((len >> 16) as u16, len as u16);
    checksum::pseudo_v4(ip.src(), ip.dst(), protocol, len)
}

fn pseudo_v6(ip: &Ipv6Header, protocol: Protocol, len: usize) -> u16 {
    checksum::pseudo_v6(ip.src(), ip.dst(), protocol, len as u32)
}
