//! The first bytes of a packet whose remaining bytes are elsewhere: in the next frames of a chain.
//!
//! ```text
//! packet | MACs | IP | UDP | payload ........................................ |
//! chain  | bytes: the first frame           |  behind: a number of bytes      |
//! ```
//!
//! Lengths are checked against the whole packet, headers have to be in `bytes`, and what a view
//! calls payload is as much of it as is in `bytes`; its `behind()` says how much is not.

use zerocopy::SplitByteSlice;

use crate::partial::Left;
use crate::{ArpMut, ArpPacket, EthMut, EthRef, IcmpMut, IcmpRef, IpRef, Ipv4Mut, Ipv4Ref};
use crate::{
    Ipv6Mut, Ipv6Ref, Malformed, NdMut, Partial, TcpMut, TcpRef, TransportMut, TransportRef,
};
use crate::{UdpMut, UdpRef, arp, eth, icmp, ip, ipv4, ipv6, nd, tcp, transport, udp};

/// The first bytes of a packet, read only.
///
/// Each method is the crate's function of that name, for a packet that goes on outside the slice.
/// Errors are that function's, and [`Malformed::Short`] for a header that is not all in the slice.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) behind: usize,
    pub(crate) left: Left,
}

impl<'a> Head<'a> {
    /// Describes a packet that starts with `bytes`, followed by `behind` more bytes elsewhere.
    #[must_use]
    pub fn new(bytes: &'a [u8], behind: usize) -> Head<'a> {
        Head { bytes, behind, left: Left::default() }
    }

    /// Marks a checksum of the packet as left to a device; the views then check it as a partial
    /// one.
    #[must_use]
    pub fn with_partial(self, partial: impl Into<Option<Partial>>) -> Head<'a> {
        let left = Left { partial: partial.into(), ..self.left };
        Head { left, ..self }
    }

    /// Marks the packet as a superframe, which a device cuts into segments, if `is_superframe` is
    /// true. An outer UDP checksum, in front of the header whose checksum is left to the device, is
    /// then checked as the sum of its pseudo header: each segment gets a checksum of its own.
    #[must_use]
    pub fn with_superframe(self, is_superframe: bool) -> Head<'a> {
        let left = Left { is_superframe, ..self.left };
        Head { left, ..self }
    }

    /// Returns a view of the frame, as [`crate::eth()`] does.
    pub fn eth(self) -> Result<EthRef<'a>, Malformed> {
        eth::eth(self.bytes)
    }

    /// Returns a view of the ARP packet, as [`crate::arp()`] does.
    pub fn arp(self) -> Result<&'a ArpPacket, Malformed> {
        arp::arp(self.bytes)
    }

    /// Returns a view of the IP packet, as [`crate::ip()`] does.
    pub fn ip(self) -> Result<IpRef<'a>, Malformed> {
        ip::read(self)
    }

    /// Returns a view of the IPv4 packet, as [`crate::ipv4()`] does. In a TCP superframe above 64
    /// KiB, a total length of 0 means "all bytes present", as in Linux.
    pub fn ipv4(self) -> Result<Ipv4Ref<'a>, Malformed> {
        ipv4::read(self)
    }

    /// Returns a view of the IPv6 packet, as [`crate::ipv6()`] does.
    pub fn ipv6(self) -> Result<Ipv6Ref<'a>, Malformed> {
        ipv6::read(self)
    }

    /// Returns a view of the UDP datagram, as [`crate::udp()`] does.
    pub fn udp(self) -> Result<UdpRef<'a>, Malformed> {
        udp::read(self)
    }

    /// Returns a view of the TCP segment, as [`crate::tcp()`] does.
    pub fn tcp(self) -> Result<TcpRef<'a>, Malformed> {
        tcp::read(self)
    }

    /// Returns a view of the datagram or segment, as [`crate::transport()`] does.
    pub fn transport(self) -> Result<TransportRef<'a>, Malformed> {
        transport::read(self)
    }

    /// Returns a view of the ICMP message, as [`crate::icmp()`] does.
    pub fn icmp(self) -> Result<IcmpRef<'a>, Malformed> {
        icmp::read(self)
    }
}

/// The first bytes of a packet, to be changed in place; otherwise as [`Head`].
#[derive(Debug)]
pub struct HeadMut<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) behind: usize,
    pub(crate) left: Left,
}

impl<'a> HeadMut<'a> {
    /// Describes a packet that starts with `bytes`, followed by `behind` more bytes elsewhere.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], behind: usize) -> HeadMut<'a> {
        HeadMut { bytes, behind, left: Left::default() }
    }

    /// Marks a checksum of the packet as left to a device; the views then fill and update it as the
    /// device expects.
    #[must_use]
    pub fn with_partial(self, partial: impl Into<Option<Partial>>) -> HeadMut<'a> {
        let left = Left { partial: partial.into(), ..self.left };
        HeadMut { left, ..self }
    }

    /// Marks the packet as a superframe, as [`Head::with_superframe`] does; the views then fill and
    /// update an outer UDP checksum as that sum.
    #[must_use]
    pub fn with_superframe(self, is_superframe: bool) -> HeadMut<'a> {
        let left = Left { is_superframe, ..self.left };
        HeadMut { left, ..self }
    }

    /// Borrows the packet for a shorter time: a view consumes the returned value, and this value
    /// remains usable.
    #[must_use]
    pub fn reborrow(&mut self) -> HeadMut<'_> {
        HeadMut { bytes: self.bytes, behind: self.behind, left: self.left }
    }

    /// Returns the same packet, read only.
    #[must_use]
    pub fn as_head(&self) -> Head<'_> {
        Head { bytes: self.bytes, behind: self.behind, left: self.left }
    }

    /// Returns a view for changing the frame, as [`crate::eth_mut()`] does.
    pub fn eth(self) -> Result<EthMut<'a>, Malformed> {
        eth::eth_mut(self.bytes)
    }

    /// Returns a view for changing the IPv4 packet, as [`crate::ipv4_mut()`] does. Also fails with
    /// [`Malformed::Short`] if a UDP or TCP checksum is outside the slice, because a change of
    /// address could not update it there.
    pub fn ipv4(self) -> Result<Ipv4Mut<'a>, Malformed> {
        ipv4::write(self)
    }

    /// Returns a view for changing the IPv6 packet, as [`crate::ipv6_mut()`] does; fails with
    /// [`Malformed::Short`] as [`HeadMut::ipv4`] does.
    pub fn ipv6(self) -> Result<Ipv6Mut<'a>, Malformed> {
        ipv6::write(self)
    }

    /// Returns a view for changing the UDP datagram, as [`crate::udp_mut()`] does.
    pub fn udp(self) -> Result<UdpMut<'a>, Malformed> {
        udp::write(self)
    }

    /// Returns a view for changing the TCP segment, as [`crate::tcp_mut()`] does.
    pub fn tcp(self) -> Result<TcpMut<'a>, Malformed> {
        tcp::write(self)
    }

    /// Returns a view for changing the datagram or segment, as [`crate::transport_mut()`] does.
    pub fn transport(self) -> Result<TransportMut<'a>, Malformed> {
        transport::write(self)
    }

    /// Returns a view for changing the ICMP message, as [`crate::icmp_mut()`] does.
    pub fn icmp(self) -> Result<IcmpMut<'a>, Malformed> {
        icmp::write(self)
    }

    /// Returns a view for answering the neighbour solicitation, as [`crate::nd_mut()`] does.
    pub fn nd(self) -> Result<NdMut<'a>, Malformed> {
        nd::write(self)
    }

    /// Returns a view for changing the ARP packet, as [`crate::arp_mut()`] does.
    pub fn arp(self) -> Result<ArpMut<'a>, Malformed> {
        arp::arp_mut(self.bytes)
    }
}

/// Returns the part of the first `len` bytes that is in `bytes`, and the length of the rest, which
/// must be within the `behind` bytes elsewhere.
pub(crate) fn front<B: SplitByteSlice>(
    bytes: B,
    len: usize,
    behind: usize,
) -> Result<(B, usize), Malformed> {
    let here = len.min(bytes.len());
    if len - here > behind {
        return Err(Malformed::BadLength);
    }
    let (front, _rest) = bytes.split_at(here).map_err(|_| Malformed::BadLength)?;
    Ok((front, len - here))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fix_ipv4, tcp4_frame, udp4_frame, udp6_frame};
    use crate::{checksum, ipv4_mut, udp_mut};
    use proptest::prelude::*;

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    fn udp4(payload: &[u8]) -> Vec<u8> {
        udp4_frame(A.into(), B.into(), payload)
    }

    #[test]
    fn payload_ends_with_the_slice_and_behind_counts_the_rest() {
        let frame = udp4(&[7; 100]);
        let head = Head::new(&frame[..52], frame.len() - 52);
        let (ip, view) = (head.ipv4().unwrap(), head.udp().unwrap());
        assert_eq!((ip.payload().len(), ip.behind()), (18, 90));
        assert_eq!((view.payload(), view.behind()), (&[7; 10][..], 90));
        assert!(ip.checksum_ok() && !view.checksum_ok());
        assert_eq!(Head::new(&frame[..52], 89).udp().unwrap_err(), Malformed::BadLength);
        assert_eq!(udp(&frame[..52]).unwrap_err(), Malformed::BadLength);
    }

    #[test]
    fn padding_behind_is_left_out() {
        let frame = udp4(b"hi");
        let view = Head::new(&frame, 16).udp().unwrap();
        assert_eq!((view.payload(), view.behind()), (&b"hi"[..], 0));
        assert!(view.checksum_ok());
    }

    #[test]
    fn a_checksum_that_needs_what_is_behind_is_not_filled() {
        let mut frame = udp4(&[7; 100]);
        let before = frame.clone();
        let mut view = HeadMut::new(&mut frame[..60], 82).udp().unwrap();
        assert!(!view.fill_checksum());
        assert_eq!(frame, before);
    }

    #[test]
    fn a_new_address_needs_the_checksum_it_changes() {
        for (mut frame, end) in [(udp4(&[7; 100]), 42), (tcp4_frame(&[], &[7; 100]), 52)] {
            for here in 34..end {
                let behind = frame.len() - here;
                let got = HeadMut::new(&mut frame[..here], behind).ipv4().map(|_| ());
                assert_eq!(got, Err(Malformed::Short), "{here}");
            }
            let behind = frame.len() - end;
            HeadMut::new(&mut frame[..end], behind).ipv4().unwrap().set_src([1, 2, 3, 4].into());
            assert!(
                udp(&frame)
                    .map_or_else(|_| tcp(&frame).unwrap().checksum_ok(), |u| u.checksum_ok())
            );
        }
    }

    #[test]
    fn zero_total_length_means_all_bytes_in_tcp_superframes_only() {
        let mut frame = tcp4_frame(&[], b"data");
        frame[16..18].fill(0);
        fix_ipv4(&mut frame);
        // Together with the headers that are here, 65,536 bytes from the IP header on.
        let behind = 65_536 - 44;
        let view = Head::new(&frame, behind).tcp().unwrap();
        assert_eq!((view.payload(), view.behind()), (&b"data"[..], behind));
        assert!(!view.checksum_ok());
        for behind in [0, behind - 1, usize::MAX] {
            assert_eq!(Head::new(&frame, behind).tcp().unwrap_err(), Malformed::BadLength);
        }
        // The kernel adds the 32-bit length of the segment to the sum of such a packet's pseudo
        // header.
        for behind in [behind, behind + 100] {
            let segment = (24 + behind) as u32;
            let mut sum = checksum::sum(&frame[26..34]);
            sum =
                checksum::add(sum, checksum::sum(&[&[0, 6], &segment.to_be_bytes()[..]].concat()));
            frame[50..52].copy_from_slice(&sum.to_be_bytes());
            let head = Head::new(&frame, behind);
            let partial = Partial { start: 34, offset: 16 };
            assert!(head.with_partial(partial).tcp().unwrap().checksum_ok(), "{behind}");
        }
        frame[23] = 17;
        assert_eq!(Head::new(&frame, behind).ipv4().unwrap_err(), Malformed::BadLength);
    }

    proptest! {
        #[test]
        fn a_cut_packet_shows_the_headers_of_the_whole_one(
            which in 0usize..3, at: prop::sample::Index,
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut frame = match which {
                0 => udp4(&payload),
                1 => udp6_frame(&payload),
                _ => tcp4_frame(&[1, 1, 1, 0], &payload),
            };
            let here = at.index(frame.len() + 1);
            let (whole, head) = (frame.clone(), Head::new(&frame[..here], frame.len() - here));
            let fields = |ip: IpRef<'_>| (ip.src(), ip.dst(), ip.protocol(), ip.payload().len() + ip.behind());
            match head.ip() {
                Ok(view) => prop_assert_eq!(fields(view), fields(ip(&whole).unwrap())),
                Err(e) => prop_assert_eq!(e, Malformed::Short),
            }
            match (head.udp(), udp(&whole)) {
                (Ok(cut), Ok(whole)) => {
                    prop_assert_eq!((cut.src_port(), cut.dst_port()), (whole.src_port(), whole.dst_port()));
                    prop_assert_eq!(cut.payload().len() + cut.behind(), whole.payload().len());
                    prop_assert!(whole.payload().starts_with(cut.payload()));
                }
                (cut, whole) => {
                    let error = cut.map(|_| ()).unwrap_err();
                    prop_assert!(error == Malformed::Short || Err(error) == whole.map(|_| ()));
                }
            }
            match (head.tcp(), tcp(&whole)) {
                (Ok(cut), Ok(whole)) => {
                    prop_assert_eq!((cut.seq(), cut.options()), (whole.seq(), whole.options()));
                    prop_assert_eq!(cut.payload().len() + cut.behind(), whole.payload().len());
                }
                (cut, whole) => {
                    let error = cut.map(|_| ()).unwrap_err();
                    prop_assert!(error == Malformed::Short || Err(error) == whole.map(|_| ()));
                }
            }
            // What is written through a cut view is what is written through a whole one.
            let (mut linear, behind) = (whole, frame.len() - here);
            if let Ok(mut view) = HeadMut::new(&mut frame[..here], behind).ipv4() {
                let mut whole = ipv4_mut(&mut linear).unwrap();
                for ip in [&mut view, &mut whole] {
                    ip.set_dscp(46);
                    ip.set_dst(A.into());
                }
            }
            if let Ok(mut view) = HeadMut::new(&mut frame[..here], behind).udp() {
                view.swap_ends();
                udp_mut(&mut linear).unwrap().swap_ends();
            }
            prop_assert_eq!(frame, linear);
        }
    }
}
