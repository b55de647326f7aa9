//! IPv6: the fixed header, and its extension headers, parsed up to a limit.
//!
//! Source: RFC 8200 (header, extension headers), RFC 7045 (which numbers are extension headers),
//! RFC 4302 section 2.2 (the authentication header counts in other units).

mod chain;
mod header;

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Ref};

use crate::partial::{self, Check};
use crate::{EtherType, Head, HeadMut, Malformed, Protocol, eth};

use chain::Chain;
pub use chain::Fragment;
pub use header::Ipv6Header;
use header::Parts;
pub(crate) use header::split;

/// Returns a view of the IPv6 packet in `frame`.
///
/// Shape:  the fixed header, then the payload behind the extension headers; Ethernet padding
///         behind the payload length is left out.
/// Errors: [`Malformed::NotIpv6`], or lengths and version that contradict the frame, or a chain
///         of extension headers without end.
/// Cost:   at most eight steps along the chain; nothing is copied.
pub fn ipv6(frame: &[u8]) -> Result<Ipv6Ref<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<Ipv6Ref<'_>, Malformed> {
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV6 {
        return Err(Malformed::NotIpv6);
    }
    Ok(split(eth.payload, head.behind)?.into())
}

/// Returns a view for changing the IPv6 packet in `frame`.
///
/// Shape, Errors, Cost: as [`ipv6`].
pub fn ipv6_mut(frame: &mut [u8]) -> Result<Ipv6Mut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<Ipv6Mut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV6 {
        return Err(Malformed::NotIpv6);
    }
    let Parts { header, chain, payload, behind } = split(eth.payload, head.behind)?;
    // A change of address also changes the transport checksum, so that checksum must be in this
    // slice.
    let check_at = chain.check_at();
    if behind > 0 && check_at.is_some_and(|at| payload.len() < at + 2) {
        return Err(Malformed::Short);
    }
    let check = check_at
        .map_or(Check::Whole, |at| Check::of(head.left, partial::offset_in(frame, payload), at));
    Ok(Ipv6Mut { header: Ref::into_mut(header), chain, payload, behind, check })
}

/// An IPv6 packet, read only.
#[derive(Debug, Clone, Copy)]
pub struct Ipv6Ref<'a> {
    header: &'a Ipv6Header,
    chain: Chain,
    payload: &'a [u8],
    behind: usize,
}

impl<'a> Ipv6Ref<'a> {
    /// Returns the protocol of the payload: the last "next header" number.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.chain.protocol
    }

    /// Returns true for a fragment. Unless it is the first fragment, the payload has no transport
    /// header.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.chain.is_fragment()
    }

    /// Returns the fragment header, if there is one. An [atomic](Fragment::is_atomic) fragment has
    /// one, too, although it is a whole packet. If a packet has several such headers, this is the
    /// last one that is not atomic.
    #[must_use]
    pub fn fragment(&self) -> Option<Fragment> {
        self.chain.fragment
    }

    /// Returns all bytes after the extension headers, up to the payload length.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    pub(crate) fn is_routed(&self) -> bool {
        self.chain.routed
    }
}

/// An IPv6 packet, to be changed in place. A change of address also updates the transport checksum.
#[derive(Debug)]
pub struct Ipv6Mut<'a> {
    header: &'a mut Ipv6Header,
    chain: Chain,
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
}

impl Ipv6Mut<'_> {
    /// Sets the sender's address, and keeps the checksum of UDP, TCP or ICMPv6 right.
    ///
    /// Shape:  a UDP checksum of zero (none) stays zero; of a fragment, only the first has a
    ///         transport header to change; other protocols' checksums are left alone.
    /// Cost:   constant, whatever the payload.
    /// Source: RFC 1624 equation 3; RFC 8200 section 8.1.
    pub fn set_src(&mut self, addr: Ipv6Addr) {
        let old = self.header.set_src(addr);
        self.readdress(old, addr.octets());
    }

    /// Sets the receiver's address, as [`Ipv6Mut::set_src`] sets the sender's. In a packet with a
    /// source route, this address is the next hop, which no checksum covers.
    pub fn set_dst(&mut self, addr: Ipv6Addr) {
        let old = self.header.set_dst(addr);
        if !self.chain.routed {
            self.readdress(old, addr.octets());
        }
    }

    /// Updates the transport checksum for a changed address.
    fn readdress(&mut self, old: [u8; 16], new: [u8; 16]) {
        let udp = self.chain.protocol == Protocol::UDP;
        let Some(at) = self.chain.check_at() else { return };
        // A first fragment may end before the checksum field; then there is nothing to update.
        let Some(Ok(field)) = self.payload.get_mut(at..at + 2).map(U16::mut_from_bytes) else {
            return;
        };
        self.check.readdress_v6(field, udp, old, new);
    }

    /// Sets the differentiated services code point to the low six bits of `dscp`; ECN stays.
    pub fn set_dscp(&mut self, dscp: u8) {
        let word = self.header.version_class_flow.get() & !(0x3f << 22);
        self.header.version_class_flow.set(word | u32::from(dscp & 0x3f) << 22);
    }

    /// Sets the explicit congestion notification to the low two bits of `ecn`; DSCP stays.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.header.set_ecn(ecn);
    }

    /// Sets the hop limit.
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.header.set_hop_limit(hops);
    }

    /// Decrements the hop limit. Returns false, and changes nothing, if it is 0 or 1.
    #[must_use = "a packet without hops left must not be forwarded"]
    pub fn dec_hop_limit(&mut self) -> bool {
        let spare = self.header.hop_limit > 1;
        self.header.hop_limit -= u8::from(spare);
        spare
    }

    /// Returns the protocol of the payload: the last "next header" number.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.chain.protocol
    }

    /// Returns true for a fragment of a datagram.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.chain.is_fragment()
    }

    /// Returns all bytes after the extension headers, up to the payload length.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// Returns the payload for writing. The caller updates the checksums in it.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.payload
    }
}

behinds!(Ipv6Ref, Ipv6Mut);
derefs!(Ipv6Ref, Ipv6Mut => header Ipv6Header);

impl<'a> From<Parts<&'a [u8]>> for Ipv6Ref<'a> {
    fn from(parts: Parts<&'a [u8]>) -> Self {
        let header = Ref::into_ref(parts.header);
        let Parts { chain, payload, behind, .. } = parts;
        Ipv6Ref { header, chain, payload, behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::udp6_frame;
    use crate::udp;

    /// Returns a UDP frame with `headers` between the fixed header and UDP, the first of kind
    /// `first`.
    fn with_chain(first: u8, headers: &[u8]) -> Vec<u8> {
        let mut frame = udp6_frame(b"payload");
        frame.splice(54..54, headers.iter().copied());
        frame[20] = first;
        let len = (15 + headers.len() as u16).to_be_bytes();
        frame[18..20].copy_from_slice(&len);
        frame
    }

    #[test]
    fn fields_read_as_written_and_padding_is_left_out() {
        let mut frame = udp6_frame(b"payload");
        frame.resize(100, 0xee);
        let ip = ipv6(&frame).unwrap();
        assert_eq!((ip.dscp(), ip.ecn(), ip.flow_label(), ip.hop_limit()), (46, 1, 0xabcde, 64));
        assert_eq!(ip.protocol(), Protocol::UDP);
        assert_eq!(ip.payload().len(), 15);
        assert_eq!(ip.src().to_string(), "2001:db8::1");
    }

    #[test]
    fn class_and_hop_limit_change_alone() {
        let mut frame = udp6_frame(b"");
        let mut ip = ipv6_mut(&mut frame).unwrap();
        ip.set_dscp(0xff);
        assert!(ip.dec_hop_limit());
        assert_eq!((ip.dscp(), ip.ecn(), ip.flow_label(), ip.hop_limit()), (63, 1, 0xabcde, 63));
        frame[21] = 1;
        assert!(!ipv6_mut(&mut frame).unwrap().dec_hop_limit());
        assert!(udp(&frame).unwrap().checksum_ok());
    }

    #[test]
    fn extension_headers_are_stepped_over() {
        let hop_then_auth = [51, 0, 1, 4, 0, 0, 0, 0, 17, 1, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        let frame = with_chain(0, &hop_then_auth);
        assert_eq!(udp(&frame).unwrap().payload(), b"payload");
        // Destination options, mobility, host identity, shim6.
        for kind in [60, 135, 139, 140] {
            let frame = with_chain(kind, &[17, 0, 1, 4, 0, 0, 0, 0]);
            assert_eq!(udp(&frame).unwrap().payload(), b"payload", "{kind}");
        }
    }

    #[test]
    fn reserved_bits_of_an_atomic_fragment_do_not_count() {
        for reserved in [0, 2, 4, 6] {
            let atomic = with_chain(44, &[17, 0, 0, reserved, 9, 9, 9, 9]);
            assert_eq!(udp(&atomic).unwrap().payload(), b"payload", "{reserved}");
        }
    }

    #[test]
    fn a_fragment_header_is_read_and_one_that_is_cut_off_is_an_error() {
        let read = |headers: &[u8]| {
            let frame = with_chain(44, headers);
            let ip = ipv6(&frame).unwrap();
            (ip.fragment(), ip.is_fragment(), ip.protocol(), crate::ip(&frame).unwrap().hops())
        };
        let fragment =
            |offset_bytes, more| Some(Fragment { offset_bytes, more, ident: 0x0102_0304 });
        let header = |high: u8, low: u8| [17, 9, high, low, 1, 2, 3, 4];
        for (high, low, expected, is_fragment) in [
            (0, 0, fragment(0, false), false),
            (0, 6, fragment(0, false), false), // reserved bits
            (0, 1, fragment(0, true), true),
            (0, 8, fragment(8, false), true),
            (0xff, 0xff, fragment(65_528, true), true),
        ] {
            let got = read(&header(high, low));
            assert_eq!(got, (expected, is_fragment, Protocol::UDP, 64), "{high} {low}");
        }
        // A second header that is atomic does not hide that of a fragment.
        let mut twice = [header(0, 1), header(0, 0)].concat();
        twice[0] = 44;
        assert_eq!(read(&twice), (fragment(0, true), true, Protocol::UDP, 64));
        assert_eq!(ipv6(&udp6_frame(b"")).unwrap().fragment(), None);
        for len in 0..8 {
            let mut cut = with_chain(44, &header(0, 8));
            cut.truncate(54 + len);
            cut[19] = len as u8;
            assert_eq!(ipv6(&cut).unwrap_err(), Malformed::BadLength, "{len}");
        }
    }

    #[test]
    fn a_source_route_stays_one_behind_a_second_routing_header() {
        for (first, second, error) in [(1, 0, true), (0, 1, true), (0, 0, false)] {
            let headers = [43, 0, 4, first, 0, 0, 0, 0, 17, 0, 4, second, 0, 0, 0, 0];
            let got = udp(&with_chain(43, &headers)).map(|_| ());
            let expected = if error { Err(Malformed::SourceRoute) } else { Ok(()) };
            assert_eq!(got, expected, "{first} {second}");
        }
    }

    #[test]
    fn the_next_hop_of_a_source_route_is_not_in_the_checksum() {
        for (left, carried) in [(1, false), (0, true)] {
            let mut frame = with_chain(43, &[17, 0, 4, left, 0, 0, 0, 0]);
            let before = frame[62..].to_vec();
            ipv6_mut(&mut frame).unwrap().set_dst([7; 16].into());
            assert_eq!(frame[62..] != before, carried, "{left}");
            ipv6_mut(&mut frame).unwrap().set_src([8; 16].into());
            assert_ne!(frame[62..], before);
        }
    }

    #[test]
    fn fragments_and_source_routes_have_no_udp_view() {
        let first = with_chain(44, &[17, 0, 0, 1, 9, 9, 9, 9]);
        assert_eq!(udp(&first).unwrap_err(), Malformed::Fragment);
        // A later fragment whose data would read as one more extension header.
        let later = with_chain(44, &[0, 0, 0, 8, 9, 9, 9, 9]);
        assert!(ipv6(&later).unwrap().is_fragment());
        assert_eq!(ipv6(&later).unwrap().payload().len(), 15);
        let routed = with_chain(43, &[17, 0, 4, 1, 0, 0, 0, 0]);
        assert_eq!(udp(&routed).unwrap_err(), Malformed::SourceRoute);
        let arrived = with_chain(43, &[17, 0, 4, 0, 0, 0, 0, 0]);
        assert!(udp(&arrived).is_ok());
    }

    #[test]
    fn a_chain_has_an_end() {
        let link = [60, 0, 1, 4, 0, 0, 0, 0];
        let chain = |links: usize| {
            let mut headers = link.repeat(links);
            headers[links * 8 - 8] = 17;
            with_chain(60, &headers)
        };
        assert!(ipv6(&chain(8)).is_ok());
        assert_eq!(ipv6(&chain(9)).unwrap_err(), Malformed::TooManyHeaders);
        let over = with_chain(60, &[17, 200, 1, 4, 0, 0, 0, 0]);
        assert_eq!(ipv6(&over).unwrap_err(), Malformed::BadLength);
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let mut frame = udp6_frame(b"payload");
        assert_eq!(ipv6(&frame[..53]).unwrap_err(), Malformed::Short);
        assert_eq!(ipv6(&frame[..60]).unwrap_err(), Malformed::BadLength);
        frame[14] = 0x45;
        assert_eq!(ipv6(&frame).unwrap_err(), Malformed::BadVersion);
    }
}
