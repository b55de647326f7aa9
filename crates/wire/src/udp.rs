//! UDP over IPv4 or IPv6.
//!
//! Source: RFC 768, RFC 8200 section 8.1.

use std::net::{IpAddr, SocketAddr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::ip::{self, HeaderMut, REPLY_HOPS};
use crate::partial::{self, Check};
use crate::{EthEnds, Head, HeadMut, IpRef, Malformed, Protocol, checksum, eth, head};

/// Returns a view of the UDP datagram in `frame`.
///
/// Shape:  header and payload up to UDP's own length; what IP or Ethernet carry behind it is
///         left out.
/// Errors: [`Malformed::NotIp`], [`Malformed::NotUdp`], [`Malformed::Fragment`] for any piece of
///         a datagram, or lengths that contradict the frame. The checksum is not verified: see
///         [`UdpRef::checksum_ok`].
/// Cost:   constant but for IPv6 extension headers, at most eight; nothing is copied.
pub fn udp(frame: &[u8]) -> Result<UdpRef<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<UdpRef<'_>, Malformed> {
    let ip = ip::read(head)?;
    let segment = ip.segment(Protocol::UDP, Malformed::NotUdp)?;
    let at = partial::offset_in(head.bytes.as_ptr().addr(), segment);
    let check = Check::of(head.left, at, CHECK_AT);
    let (header, payload, behind) = split(segment, ip.behind())?;
    let payload_at = at + size_of::<UdpHeader>();
    Ok(UdpRef { ip, header: Ref::into_ref(header), payload, payload_at, behind, check })
}

/// Returns a view for changing the UDP datagram in `frame`.
///
/// Shape:  as [`udp`].
/// Errors: as [`udp`].
/// Cost:   as [`udp`].
pub fn udp_mut(frame: &mut [u8]) -> Result<UdpMut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<UdpMut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth::Parts { ends, ether_type, payload, .. } = eth::split(head.bytes)?;
    let (ip, segment, behind) =
        ip::segment_mut(ether_type, payload, head.behind, Protocol::UDP, Malformed::NotUdp)?;
    let check = Check::of(head.left, partial::offset_in(frame, segment), CHECK_AT);
    let (header, payload, behind) = split(segment, behind)?;
    let (ends, header) = (Ref::into_mut(ends), Ref::into_mut(header));
    Ok(UdpMut { ends, ip, header, payload, behind, check })
}

/// A UDP datagram, read only.
#[derive(Debug, Clone, Copy)]
pub struct UdpRef<'a> {
    ip: IpRef<'a>,
    header: &'a UdpHeader,
    payload: &'a [u8],
    payload_at: usize,
    behind: usize,
    check: Check,
}

impl UdpRef<'_> {
    pub(crate) fn check(&self) -> Check {
        self.check
    }

    /// Returns true if the checksum is right, or absent where IP allows that (IPv4). A checksum
    /// that is left to a device ([`crate::Head::with_partial`]) is right if the device will compute
    /// the right one from it; so is the outer one of a superframe in a tunnel
    /// ([`crate::Head::with_superframe`]). Returns false if some of the payload is
    /// [behind](UdpRef::behind) and the checksum covers it, because then it cannot be checked.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let pseudo = self.ip.pseudo(Protocol::UDP, self.header.len());
        match (self.check, self.header.check.get()) {
            (Check::Pseudo, held) => held == pseudo,
            (_, 0) => matches!(self.ip, IpRef::V4(_)),
            (Check::Segments, held) => held == pseudo,
            (check, _) => check
                .sum(self.header.as_bytes(), self.payload, self.behind)
                .is_some_and(|sum| checksum::add(sum, pseudo) == 0xffff),
        }
    }
}

/// A UDP datagram, to be changed in place.
#[derive(Debug)]
pub struct UdpMut<'a> {
    ends: &'a mut EthEnds,
    ip: HeaderMut<'a>,
    header: &'a mut UdpHeader,
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
}

impl UdpMut<'_> {
    /// Swaps the MAC addresses, the IP addresses and the ports.
    ///
    /// Every checksum stays as right as it was without being touched, partial ones too: each is a
    /// sum, the swapped words are all under it or all outside it, and sums commute.
    ///
    /// Shape: what was sent to a group ([`crate::Mac::is_multicast`]) would come from it; whether
    ///        to answer such a datagram is for the caller to decide before. The number of hops
    ///        stays as it came: [`UdpMut::reply`] renews it.
    /// Cost:  constant.
    pub fn swap_ends(&mut self) {
        self.ends.swap();
        self.ip.swap();
        std::mem::swap(&mut self.header.src, &mut self.header.dst);
    }

    /// Makes the datagram an answer to its sender: swaps the ends, as [`UdpMut::swap_ends`] does,
    /// and gives it the 64 hops of a new packet. What is left of the question's hops may be too few
    /// for the way back.
    ///
    /// Shape: as of [`UdpMut::swap_ends`]. Checksums stay right.
    /// Cost:  constant.
    pub fn reply(&mut self) {
        self.swap_ends();
        self.ip.set_hops(REPLY_HOPS);
    }

    /// Returns the IP address of the sender.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        self.ip.src()
    }

    /// Returns the IP address of the receiver.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.ip.dst()
    }

    /// Returns the MAC addresses of the frame around the datagram.
    #[must_use]
    pub fn ends(&self) -> &EthEnds {
        self.ends
    }

    /// Sets the length of header and payload, after bytes with the sum `removed` were cut off at
    /// the end.
    pub(crate) fn set_len(&mut self, len: u16, removed: u16) {
        let old = std::mem::replace(&mut self.header.len, len.into()).get();
        let field = &mut self.header.check;
        // The checksum covers the length twice: in the header and in the pseudo header.
        self.check.readdress(field, true, old.into(), len.into());
        self.check.renumber(field, true, old, len);
        self.check.renumber(field, true, removed, 0);
    }

    /// Recomputes the checksum, even if it was absent. A checksum that is left to a device
    /// ([`crate::HeadMut::with_partial`], [`crate::HeadMut::with_superframe`]) stays so. Returns
    /// false, and changes nothing, if some of the payload is [behind](UdpMut::behind) and the
    /// checksum covers it.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use = "a payload that is not all here has no new checksum"]
    pub fn fill_checksum(&mut self) -> bool {
        let pseudo = self.ip.pseudo(Protocol::UDP, self.header.len());
        if matches!(self.check, Check::Pseudo | Check::Segments) {
            self.header.check.set(pseudo);
            return true;
        }
        let held = std::mem::take(&mut self.header.check);
        let sum = self.check.sum(self.header.as_bytes(), self.payload, self.behind);
        let check = |sum| partial::nonzero(true, checksum::finish(checksum::add(sum, pseudo)));
        let check = sum.map(check);
        self.header.check = check.map_or(held, U16::from);
        check.is_some()
    }
}

ports!(UdpRef, UdpMut, true);
setters! {UdpMut, true:
    /// Sets the source port, and keeps the checksum right; a checksum of zero (none) stays zero.
    ///
    /// Cost: constant, whatever the payload.
    set_src_port src;
    /// Sets the destination port; otherwise as [`UdpMut::set_src_port`].
    set_dst_port dst;
}
behinds!(UdpRef, UdpMut);
derefs!(UdpRef, UdpMut => header UdpHeader);

/// The eight bytes of a UDP header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    src: U16,
    dst: U16,
    len: U16,
    check: U16,
}

/// Offset of the checksum in the header.
pub(crate) const CHECK_AT: usize = 6;

const _: () = assert!(size_of::<UdpHeader>() == 8);

impl UdpHeader {
    /// Returns a header without a checksum.
    pub(crate) fn new(src: u16, dst: u16, len: u16) -> UdpHeader {
        UdpHeader { src: src.into(), dst: dst.into(), len: len.into(), check: 0.into() }
    }

    /// Returns the port of the sender.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        self.src.get()
    }

    /// Returns the port of the receiver.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        self.dst.get()
    }

    fn len(&self) -> usize {
        self.len.get().into()
    }
}

fn split<B: SplitByteSlice>(
    segment: B,
    behind: usize,
) -> Result<(Ref<B, UdpHeader>, B, usize), Malformed> {
    let (header, rest) = Ref::<B, UdpHeader>::from_prefix(segment).map_err(|_| Malformed::Short)?;
    let len = header.len().checked_sub(size_of::<UdpHeader>()).ok_or(Malformed::BadLength)?;
    let (payload, behind) = head::front(rest, len, behind)?;
    Ok((header, payload, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{udp4_frame, udp6_frame};
    use crate::{Mac, ipv4, ipv4_mut};

    #[test]
    fn a_datagram_turns_round_with_its_checksums_right() {
        let mut v4 = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"ping");
        v4.resize(60, 0);
        for mut frame in [v4, udp6_frame(b"ping")] {
            let before = udp(&frame).unwrap();
            let (src, dst) = (before.ip().src(), before.ip().dst());
            let mut view = udp_mut(&mut frame).unwrap();
            view.swap_ends();
            assert_eq!((view.src_port(), view.dst_port()), (2000, 1000));
            assert_eq!((view.src(), view.dst()), (dst, src));
            assert_eq!(view.ends().dst(), Mac([2, 0, 0, 0, 0, 2]));
            assert_eq!(view.payload(), b"ping");
            assert!(udp(&frame).unwrap().checksum_ok());
            assert!(ipv4(&frame).map_or(true, |ip| ip.checksum_ok()));
        }
    }

    #[test]
    fn an_answer_has_the_hops_of_a_new_packet_and_checksums_that_are_right() {
        for mut frame in
            [udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"ping"), udp6_frame(b"ping")]
        {
            udp_mut(&mut frame).unwrap().ip.set_hops(3);
            udp_mut(&mut frame).unwrap().reply();
            let view = udp(&frame).unwrap();
            assert_eq!((view.src_port(), view.dst_port()), (2000, 1000));
            assert_eq!(view.ip().hops(), 64);
            assert!(view.checksum_ok());
            assert!(ipv4(&frame).map_or(true, |ip| ip.checksum_ok()));
        }
    }

    #[test]
    fn a_changed_payload_needs_a_new_checksum() {
        for mut frame in
            [udp4_frame([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), b"abc"), udp6_frame(b"abc")]
        {
            udp_mut(&mut frame).unwrap().payload_mut()[1] = b'x';
            assert!(!udp(&frame).unwrap().checksum_ok());
            assert!(udp_mut(&mut frame).unwrap().fill_checksum());
            assert!(udp(&frame).unwrap().checksum_ok());
        }
    }

    #[test]
    fn absent_udp_checksum_is_valid_in_ipv4_only() {
        let mut v4 = udp4_frame([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), b"abc");
        let mut v6 = udp6_frame(b"abc");
        v4[40..42].fill(0);
        v6[60..62].fill(0);
        assert!(udp(&v4).unwrap().checksum_ok());
        assert!(!udp(&v6).unwrap().checksum_ok());
    }

    #[test]
    fn a_checksum_that_comes_out_as_zero_is_written_as_ones() {
        let mut frame = udp4_frame([10, 0, 0, 0].into(), [10, 0, 0, 2].into(), &[0, 0]);
        let check = [frame[40], frame[41]];
        // The check is what the sum lacks of all ones: added to the address, it leaves nothing.
        let mut readdressed = frame.clone();
        ipv4_mut(&mut readdressed).unwrap().set_src([10, 0, check[0], check[1]].into());
        let mut renumbered = frame.clone();
        let port = checksum::add(u16::from_be_bytes(check), 1000);
        udp_mut(&mut renumbered).unwrap().set_src_port(port);
        frame[42..44].copy_from_slice(&check);
        assert!(udp_mut(&mut frame).unwrap().fill_checksum());
        for frame in [frame, readdressed, renumbered] {
            assert_eq!(frame[40..42], [0xff, 0xff]);
            assert!(udp(&frame).unwrap().checksum_ok());
        }
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let good = udp4_frame([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), b"abc");
        for (len, payload) in [(7, None), (0, None), (12, None), (8, Some(0)), (11, Some(3))] {
            let mut frame = good.clone();
            frame[39] = len;
            let got = udp(&frame).map(|u| u.payload().len());
            assert_eq!(got, payload.ok_or(Malformed::BadLength), "{len}");
        }
        let mut tcp = good;
        tcp[23] = 6;
        assert_eq!(udp(&tcp).unwrap_err(), Malformed::NotUdp);
        assert_eq!(udp_mut(&mut tcp).unwrap_err(), Malformed::NotUdp);
        tcp[12] = 9;
        assert_eq!(udp_mut(&mut tcp).unwrap_err(), Malformed::NotIp);
    }
}
