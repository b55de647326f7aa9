//! IPv4: a header that is checked once, and changes that update its checksum.
//!
//! Source: RFC 791, RFC 2474 and RFC 3168 (DSCP and ECN), RFC 1624 (incremental update).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::partial::{self, Check};
use crate::{EtherType, Head, HeadMut, Malformed, Protocol, checksum, eth, head};

/// Returns a view of the IPv4 packet in `frame`.
///
/// Shape:  header, options and payload; Ethernet padding behind the total length is left out.
/// Errors: [`Malformed::NotIpv4`], or lengths and version that contradict the frame. The header
///         checksum is not verified: see [`Ipv4Ref::checksum_ok`].
/// Cost:   constant; nothing is copied.
pub fn ipv4(frame: &[u8]) -> Result<Ipv4Ref<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<Ipv4Ref<'_>, Malformed> {
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV4 {
        return Err(Malformed::NotIpv4);
    }
    Ok(split(eth.payload, head.behind)?.into())
}

/// Returns a view for changing the IPv4 packet in `frame`.
///
/// Shape:  as [`ipv4`].
/// Errors: as [`ipv4`].
/// Cost:   constant; nothing is copied.
pub fn ipv4_mut(frame: &mut [u8]) -> Result<Ipv4Mut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<Ipv4Mut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV4 {
        return Err(Malformed::NotIpv4);
    }
    let Parts { header, payload, behind, .. } = split(eth.payload, head.behind)?;
    // A change of address also changes the transport checksum, so that checksum must be in this
    // slice.
    let check_at = header.check_at();
    if behind > 0 && check_at.is_some_and(|at| payload.len() < at + 2) {
        return Err(Malformed::Short);
    }
    let check = check_at
        .map_or(Check::Whole, |at| Check::of(head.partial, partial::offset_in(frame, payload), at));
    Ok(Ipv4Mut { header: Ref::into_mut(header), payload, behind, check })
}

/// An IPv4 packet, read only.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4Ref<'a> {
    header: &'a Ipv4Header,
    options: &'a [u8],
    payload: &'a [u8],
    behind: usize,
}

impl<'a> Ipv4Ref<'a> {
    /// Returns the options, padding of the header included.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns all bytes after the header, up to the total length.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the number of payload bytes that follow outside the slice: 0 unless the view is a
    /// [`crate::Head`]'s.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.behind
    }

    /// Returns true if the header checksum is right.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let header = checksum::sum(self.header.as_bytes());
        checksum::add(header, checksum::sum(self.options)) == 0xffff
    }
}

/// An IPv4 packet, to be changed in place.
///
/// Every change updates the header checksum by the difference (RFC 1624): one that was right stays
/// right, one that was wrong stays wrong, so that the damage is still found further on.
#[derive(Debug)]
pub struct Ipv4Mut<'a> {
    header: &'a mut Ipv4Header,
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
}

impl Ipv4Mut<'_> {
    /// Sets the sender's address, and keeps the IP, UDP and TCP checksums right.
    ///
    /// Shape:  a UDP checksum of zero (none) stays zero; of a fragment, only the first has a
    ///         transport header to change; other protocols' checksums are left alone. A packet
    ///         still under way by source route is beyond help: its checksum covers another
    ///         destination than its header names.
    /// Cost:   constant, whatever the payload.
    /// Source: RFC 1624 equation 3; RFC 3022 section 4.1.
    pub fn set_src(&mut self, addr: Ipv4Addr) {
        let old = self.header.set_src(addr);
        self.readdress(old, addr.to_bits());
    }

    /// Sets the receiver's address; otherwise as [`Ipv4Mut::set_src`].
    pub fn set_dst(&mut self, addr: Ipv4Addr) {
        let old = self.header.set_dst(addr);
        self.readdress(old, addr.to_bits());
    }

    /// Sets the differentiated services code point to the low six bits of `dscp`; ECN stays.
    pub fn set_dscp(&mut self, dscp: u8) {
        self.header.set_tos(dscp << 2 | self.header.ecn());
    }

    /// Sets the explicit congestion notification to the low two bits of `ecn`; DSCP stays.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.header.set_tos(self.header.dscp() << 2 | ecn & 3);
    }

    /// Sets the time to live.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.header.set_ttl(ttl);
    }

    /// Decrements the time to live. Returns false, and changes nothing, if it is 0 or 1: a router
    /// then drops the packet.
    ///
    /// Source: RFC 1812 section 5.3.1.
    #[must_use = "a packet without hops left must not be forwarded"]
    pub fn dec_ttl(&mut self) -> bool {
        if self.header.ttl <= 1 {
            return false;
        }
        self.header.set_ttl(self.header.ttl - 1);
        true
    }

    /// Returns all bytes after the header, up to the total length.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// Returns the payload for writing. The caller updates the checksums in it.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.payload
    }

    /// Returns the number of payload bytes that follow outside the slice: 0 unless the view is a
    /// [`crate::Head`]'s.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.behind
    }

    /// Updates the transport checksum for a changed address.
    fn readdress(&mut self, old: u32, new: u32) {
        let udp = self.header.protocol() == Protocol::UDP;
        let Some(at) = self.header.check_at() else { return };
        // A first fragment may end before the checksum field; then there is nothing to update.
        let Some(Ok(field)) = self.payload.get_mut(at..at + 2).map(U16::mut_from_bytes) else {
            return;
        };
        self.check.readdress(field, udp, old, new);
    }
}

derefs!(Ipv4Ref, Ipv4Mut => header Ipv4Header);

/// The 20 bytes with which every IPv4 header starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    ident: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    check: U16,
    src: U32,
    dst: U32,
}

/// Flag that forbids routers to fragment the packet.
const DONT_FRAGMENT: u16 = 0x4000;

const _: () = assert!(size_of::<Ipv4Header>() == 20);

impl Ipv4Header {
    /// Returns the sender's address.
    #[must_use]
    pub fn src(&self) -> Ipv4Addr {
        self.src.get().into()
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn dst(&self) -> Ipv4Addr {
        self.dst.get().into()
    }

    /// Returns the differentiated services code point, 0 to 63.
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// Returns the explicit congestion notification, 0 to 3.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        self.tos & 3
    }

    /// Returns the number of hops left.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Returns the protocol of the payload.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.protocol)
    }

    /// Returns the identification that fragments of one datagram share.
    #[must_use]
    pub fn ident(&self) -> u16 {
        self.ident.get()
    }

    /// Returns true for a fragment of a datagram: the first, a middle one or the last.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset.get() & 0x3fff != 0
    }

    /// Returns the payload's offset in the datagram. Only a packet with offset 0 has a transport
    /// header.
    #[must_use]
    pub fn fragment_offset_bytes(&self) -> usize {
        usize::from(self.flags_offset.get() & 0x1fff) * 8
    }

    /// Returns true if a total length of 0 means "all bytes present", as in a TCP superframe that
    /// is too long for the field.
    ///
    /// Source: Linux include/linux/ip.h, iph_set_totlen and iph_totlen (since 6.3).
    fn is_big_tcp(&self, rest_len: usize, behind: usize) -> bool {
        let len = behind.checked_add(rest_len + size_of::<Ipv4Header>());
        behind > 0
            && self.protocol() == Protocol::TCP
            && len.is_some_and(|len| len > usize::from(u16::MAX))
    }

    pub(crate) fn swap(&mut self) {
        std::mem::swap(&mut self.src, &mut self.dst);
    }

    /// Changes the sender's address and the header checksum; returns the old address.
    pub(crate) fn set_src(&mut self, addr: Ipv4Addr) -> u32 {
        let old = std::mem::replace(&mut self.src, addr.to_bits().into()).get();
        self.check.set(checksum::update32(self.check.get(), old, addr.to_bits()));
        old
    }

    /// Changes the receiver's address and the header checksum; returns the old address.
    pub(crate) fn set_dst(&mut self, addr: Ipv4Addr) -> u32 {
        let old = std::mem::replace(&mut self.dst, addr.to_bits().into()).get();
        self.check.set(checksum::update32(self.check.get(), old, addr.to_bits()));
        old
    }

    pub(crate) fn set_tos(&mut self, tos: u8) {
        let old = self.tos_word();
        self.tos = tos;
        self.update_check(old, self.tos_word());
    }

    pub(crate) fn set_ttl(&mut self, ttl: u8) {
        let old = self.ttl_word();
        self.ttl = ttl;
        self.update_check(old, self.ttl_word());
    }

    /// Changes the total length and the header checksum.
    pub(crate) fn set_total_len(&mut self, len: u16) {
        let old = std::mem::replace(&mut self.total_len, len.into());
        self.update_check(old.get(), len);
    }

    /// Returns the header of a packet of `payload` bytes without options, with "don't fragment", 64
    /// hops and a right checksum.
    pub(crate) fn new(
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
        ecn: u8,
        payload: u16,
    ) -> Ipv4Header {
        let mut header = Ipv4Header {
            version_ihl: 0x45,
            tos: ecn & 3,
            total_len: (payload + 20).into(),
            ident: 0.into(),
            flags_offset: DONT_FRAGMENT.into(),
            ttl: 64,
            protocol: protocol.0,
            check: 0.into(),
            src: src.to_bits().into(),
            dst: dst.to_bits().into(),
        };
        header.check.set(checksum::finish(checksum::sum(header.as_bytes())));
        header
    }

    /// Returns the offset of the transport checksum in the payload, if there is one that covers the
    /// addresses.
    fn check_at(&self) -> Option<usize> {
        match (self.fragment_offset_bytes(), self.protocol()) {
            (0, Protocol::UDP) => Some(6),
            (0, Protocol::TCP) => Some(16),
            _ => None, // another protocol, or no transport header in this fragment
        }
    }

    fn tos_word(&self) -> u16 {
        u16::from_be_bytes([self.version_ihl, self.tos])
    }

    fn ttl_word(&self) -> u16 {
        u16::from_be_bytes([self.ttl, self.protocol])
    }

    fn update_check(&mut self, old: u16, new: u16) {
        self.check.set(checksum::update16(self.check.get(), old, new));
    }
}

/// A packet divided into its parts, which borrow shared or exclusive bytes.
pub(crate) struct Parts<B> {
    pub header: Ref<B, Ipv4Header>,
    pub options: B,
    pub payload: B,
    pub behind: usize,
}

impl<'a> From<Parts<&'a [u8]>> for Ipv4Ref<'a> {
    fn from(parts: Parts<&'a [u8]>) -> Self {
        let header = Ref::into_ref(parts.header);
        let Parts { options, payload, behind, .. } = parts;
        Ipv4Ref { header, options, payload, behind }
    }
}

pub(crate) fn split<B: SplitByteSlice>(packet: B, behind: usize) -> Result<Parts<B>, Malformed> {
    let (header, rest) = Ref::<B, Ipv4Header>::from_prefix(packet).map_err(|_| Malformed::Short)?;
    if header.version_ihl >> 4 != 4 {
        return Err(Malformed::BadVersion);
    }
    let bad = Malformed::BadLength;
    let options_len = usize::from(header.version_ihl & 15) * 4;
    let options_len = options_len.checked_sub(size_of::<Ipv4Header>()).ok_or(bad)?;
    let rest_len = match usize::from(header.total_len.get()) {
        0 if header.is_big_tcp(rest.len(), behind) => rest.len() + behind,
        total_len => total_len.checked_sub(size_of::<Ipv4Header>()).ok_or(bad)?,
    };
    if options_len > rest_len {
        return Err(bad);
    }
    let (rest, behind) = head::front(rest, rest_len, behind)?;
    let (options, payload) = rest.split_at(options_len).map_err(|_| Malformed::Short)?;
    Ok(Parts { header, options, payload, behind })
}

/// Returns true if a source route in `options` has hops left.
///
/// Source: RFC 791 section 3.1 (types 131 and 137: length, then a pointer that is past the length
/// once the route is used up).
pub(crate) fn source_routed(mut options: &[u8]) -> Result<bool, Malformed> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    loop {
        options = match *options {
            [] | [END, ..] => return Ok(false),
            [NOP, ref rest @ ..] => rest,
            [LOOSE_ROUTE | STRICT_ROUTE, len, pointer, ..] if pointer <= len => return Ok(true),
            [_, len, ..] if len >= 2 => options.get(len.into()..).ok_or(Malformed::BadLength)?,
            _ => return Err(Malformed::BadLength),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fix_ipv4, udp4_frame};
    use crate::{Partial, udp, udp_mut};
    use proptest::prelude::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn fields_read_as_written_and_padding_is_left_out() {
        let mut frame = udp4_frame(A, B, b"hi");
        frame.resize(60, 0xee);
        let ip = ipv4(&frame).unwrap();
        assert_eq!((ip.src(), ip.dst(), ip.ttl()), (A, B, 64));
        assert_eq!((ip.protocol(), ip.payload().len()), (Protocol::UDP, 10));
        assert!(ip.checksum_ok() && !ip.is_fragment());
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let good = udp4_frame(A, B, b"hi");
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            ipv4(&frame).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(14, 0x44), Malformed::BadLength); // header length below 20
        assert_eq!(with(14, 0x4f), Malformed::BadLength); // header longer than the packet
        assert_eq!(with(14, 0x65), Malformed::BadVersion);
        assert_eq!(with(16, 1), Malformed::BadLength); // total length over the frame
        assert_eq!(with(17, 19), Malformed::BadLength); // total length below the header
        assert_eq!(with(12, 0x86), Malformed::NotIpv4);
        assert_eq!(ipv4(&good[..33]).unwrap_err(), Malformed::Short);
    }

    #[test]
    fn the_last_hop_is_not_spent() {
        let mut frame = udp4_frame(A, B, b"");
        frame[22] = 2;
        fix_ipv4(&mut frame);
        let mut ip = ipv4_mut(&mut frame).unwrap();
        assert!(ip.dec_ttl());
        assert!(!ip.dec_ttl());
        assert_eq!(ip.ttl(), 1);
        assert!(ipv4(&frame).unwrap().checksum_ok());
    }

    #[test]
    fn a_udp_checksum_of_none_stays_none() {
        let mut frame = udp4_frame(A, B, b"x");
        frame[40..42].fill(0);
        ipv4_mut(&mut frame).unwrap().set_dst(A);
        assert_eq!(frame[40..42], [0, 0]);
    }

    #[test]
    fn a_later_fragment_is_not_mistaken_for_a_header() {
        let mut frame = udp4_frame(A, B, b"0123456789");
        frame[21] = 1; // offset 8 bytes
        fix_ipv4(&mut frame);
        let before = frame[34..].to_vec();
        let mut ip = ipv4_mut(&mut frame).unwrap();
        assert!(ip.is_fragment());
        assert_eq!(ip.fragment_offset_bytes(), 8);
        ip.set_src(B);
        assert_eq!(frame[34..], before);
        assert!(ipv4(&frame).unwrap().checksum_ok());
        assert_eq!(udp(&frame).unwrap_err(), Malformed::Fragment);
    }

    #[test]
    fn a_source_route_under_way_has_no_udp_view() {
        let lsrr = [131, 7, 4, 10, 0, 0, 9, 0];
        assert_eq!(source_routed(&lsrr), Ok(true));
        assert_eq!(source_routed(&[131, 7, 8, 10, 0, 0, 9, 0]), Ok(false));
        assert_eq!(source_routed(&[1, 1, 7, 3, 4, 137, 3, 3]), Ok(true));
        assert_eq!(source_routed(&[7, 1]), Err(Malformed::BadLength));
        assert_eq!(source_routed(&[7, 9, 0]), Err(Malformed::BadLength));
        assert_eq!(source_routed(&[7]), Err(Malformed::BadLength));

        let mut frame = udp4_frame(A, B, b"x");
        frame.splice(34..34, lsrr);
        frame[14] = 0x47;
        frame[17] += 8;
        fix_ipv4(&mut frame);
        assert!(ipv4(&frame).unwrap().checksum_ok());
        assert_eq!(udp(&frame).unwrap_err(), Malformed::SourceRoute);
    }

    #[test]
    fn a_partial_checksum_follows_as_a_plain_sum() {
        let mut frame = udp4_frame(A, B, b"abc");
        let pseudo = |src| checksum::pseudo_v4(src, B, Protocol::UDP, 11);
        frame[40..42].copy_from_slice(&pseudo(A).to_be_bytes());
        let new = Ipv4Addr::new(192, 168, 255, 254);
        let partial = Partial { start: 34, offset: 6 };
        let head = HeadMut::new(&mut frame, 0).with_partial(partial);
        head.ipv4().unwrap().set_src(new);
        assert_eq!(frame[40..42], pseudo(new).to_be_bytes());
    }

    proptest! {
        #[test]
        fn changes_keep_both_checksums_right(
            src: u32, dst: u32, new_src: u32, new_dst: u32, dscp: u8,
            payload in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut frame = udp4_frame(src.into(), dst.into(), &payload);
            let mut ip = ipv4_mut(&mut frame).unwrap();
            ip.set_dscp(dscp);
            ip.set_src(new_src.into());
            ip.set_dst(new_dst.into());
            prop_assert!(ip.dec_ttl());
            prop_assert_eq!((ip.dscp(), ip.ecn()), (dscp & 63, 0));
            prop_assert!(ipv4(&frame).unwrap().checksum_ok());
            prop_assert!(udp(&frame).unwrap().checksum_ok());
            // Not only equivalent: bit for bit what a full computation gives.
            let incremental = frame.clone();
            prop_assert!(udp_mut(&mut frame).unwrap().fill_checksum());
            prop_assert_eq!(incremental, frame);
        }
    }
}
