//! TCP over IPv4 or IPv6.
//!
//! Source: RFC 9293 section 3.1.

use std::fmt;
use std::net::SocketAddr;
use std::ops::BitOr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::ip::{self, HeaderMut};
use crate::partial::{self, Check};
use crate::{EthEnds, Head, HeadMut, IpRef, Malformed, Protocol, checksum, eth};

/// Returns a view of the TCP segment in `frame`.
///
/// Shape:  header, options and payload, without Ethernet padding.
/// Errors: [`Malformed::NotIp`], [`Malformed::NotTcp`], [`Malformed::Fragment`] for any piece of
///         a datagram, or a header length that contradicts the frame. The checksum is not
///         verified: see [`TcpRef::checksum_ok`].
/// Cost:   constant but for IPv6 extension headers, at most eight; nothing is copied.
pub fn tcp(frame: &[u8]) -> Result<TcpRef<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<TcpRef<'_>, Malformed> {
    let ip = ip::read(head)?;
    let segment = ip.segment(Protocol::TCP, Malformed::NotTcp)?;
    let at = partial::offset_in(head.bytes.as_ptr().addr(), segment);
    let check = Check::of(head.left, at, CHECK_AT);
    let (header, options, payload) = split(segment, ip.behind())?;
    let payload_at = at + size_of::<TcpHeader>() + options.len();
    Ok(TcpRef { ip, header: Ref::into_ref(header), options, payload, payload_at, check })
}

/// Returns a view for changing the TCP segment in `frame`.
///
/// Shape:  as [`tcp`].
/// Errors: as [`tcp`].
/// Cost:   as [`tcp`].
pub fn tcp_mut(frame: &mut [u8]) -> Result<TcpMut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<TcpMut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth::Parts { ends, ether_type, payload, .. } = eth::split(head.bytes)?;
    let (ip, segment, behind) =
        ip::segment_mut(ether_type, payload, head.behind, Protocol::TCP, Malformed::NotTcp)?;
    let check = Check::of(head.left, partial::offset_in(frame, segment), CHECK_AT);
    let (header, options, payload) = split(segment, behind)?;
    let (ends, header) = (Ref::into_mut(ends), Ref::into_mut(header));
    Ok(TcpMut { ends, ip, header, options, payload, behind, check })
}

/// Splits a segment into header, options and payload.
fn split<B: SplitByteSlice>(
    segment: B,
    behind: usize,
) -> Result<(Ref<B, TcpHeader>, B, B), Malformed> {
    let (header, rest) = Ref::<B, TcpHeader>::from_prefix(segment).map_err(|_| Malformed::Short)?;
    let options_len = usize::from(header.offset_flags.get() >> 12) * 4;
    let options_len = options_len.checked_sub(size_of::<TcpHeader>());
    let options_len = options_len.ok_or(Malformed::BadLength)?;
    if options_len > rest.len() {
        let here = options_len - rest.len() <= behind;
        return Err(if here { Malformed::Short } else { Malformed::BadLength });
    }
    let (options, payload) = rest.split_at(options_len).map_err(|_| Malformed::Short)?;
    Ok((header, options, payload))
}

/// A TCP segment, read only.
#[derive(Debug, Clone, Copy)]
pub struct TcpRef<'a> {
    ip: IpRef<'a>,
    header: &'a TcpHeader,
    options: &'a [u8],
    payload: &'a [u8],
    payload_at: usize,
    check: Check,
}

impl<'a> TcpRef<'a> {
    /// Returns the options, padding of the header included.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns the number of payload bytes that follow outside the slice: 0 unless the view is a
    /// [`crate::Head`]'s. Bytes after the payload do not count.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.ip.behind()
    }

    /// Returns true if the checksum is right, as [`crate::UdpRef::checksum_ok`] does; TCP always
    /// has a checksum.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let segment = self.ip.payload();
        let pseudo = self.ip.pseudo(Protocol::TCP, segment.len() + self.behind());
        if self.check == Check::Pseudo {
            return self.header.check.get() == pseudo;
        }
        let sum = self.check.sum(&[], segment, self.behind());
        sum.is_some_and(|sum| checksum::add(sum, pseudo) == 0xffff)
    }
}

/// A TCP segment, to be changed in place.
#[derive(Debug)]
pub struct TcpMut<'a> {
    ends: &'a mut EthEnds,
    ip: HeaderMut<'a>,
    header: &'a mut TcpHeader,
    options: &'a mut [u8],
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
}

impl TcpMut<'_> {
    /// Swaps the MAC addresses, the IP addresses and the ports, and updates the checksums as
    /// [`crate::UdpMut::swap_ends`] does.
    pub fn swap_ends(&mut self) {
        self.ends.swap();
        self.ip.swap();
        std::mem::swap(&mut self.header.src, &mut self.header.dst);
    }

    /// Sets the sequence number of the first byte, and keeps the checksum right.
    pub fn set_seq(&mut self, seq: u32) {
        let old = std::mem::replace(&mut self.header.seq, seq.into());
        self.check.renumber32(&mut self.header.check, old.get(), seq);
    }

    /// Sets the acknowledgement number, which is that of the next byte expected, and keeps the
    /// checksum right.
    pub fn set_ack(&mut self, ack: u32) {
        let old = std::mem::replace(&mut self.header.ack, ack.into());
        self.check.renumber32(&mut self.header.check, old.get(), ack);
    }

    /// Sets all control bits, [`TcpFlags::AE`] included, and keeps the checksum right. The three
    /// reserved bits stay.
    pub fn set_flags(&mut self, flags: TcpFlags) {
        let old = self.header.offset_flags.get();
        let new = old & !TcpFlags::ALL | flags.0 & TcpFlags::ALL;
        self.header.offset_flags.set(new);
        self.check.renumber(&mut self.header.check, false, old, new);
    }

    /// Recomputes the checksum, as [`crate::UdpMut::fill_checksum`] does.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use = "a payload that is not all here has no new checksum"]
    pub fn fill_checksum(&mut self) -> bool {
        let here = size_of::<TcpHeader>() + self.options.len() + self.payload.len();
        let pseudo = self.ip.pseudo(Protocol::TCP, here + self.behind);
        if self.check == Check::Pseudo {
            self.header.check.set(pseudo);
            return true;
        }
        if self.behind > 0 || self.check != Check::Whole {
            // TCP carries no tunnel that a device supports, so no inner checksum can be left to the
            // device here.
            return false;
        }
        self.header.check.set(0);
        let head = checksum::add(pseudo, checksum::sum(self.header.as_bytes()));
        let rest = checksum::add(checksum::sum(self.options), checksum::sum(self.payload));
        self.header.check.set(checksum::finish(checksum::add(head, rest)));
        true
    }
}

ports!(TcpRef, TcpMut, false);
setters! {TcpMut, false:
    /// Sets the source port, and keeps the checksum right.
    ///
    /// Cost: constant, whatever the payload.
    set_src_port src;
    /// Sets the destination port; otherwise as [`TcpMut::set_src_port`].
    set_dst_port dst;
    /// Sets the receive window, unscaled, and keeps the checksum right.
    set_window window;
}
derefs!(TcpMut, TcpRef => header TcpHeader);

/// The 20 bytes with which every TCP header starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    src: U16,
    dst: U16,
    seq: U32,
    ack: U32,
    /// Header length in words (4 bits), reserved bits (3), control bits (9).
    offset_flags: U16,
    window: U16,
    check: U16,
    urgent: U16,
}

/// Offset of the checksum in the header.
const CHECK_AT: usize = 16;

const _: () = assert!(size_of::<TcpHeader>() == 20);

impl TcpHeader {
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

    /// Returns the sequence number of the first byte.
    #[must_use]
    pub fn seq(&self) -> u32 {
        self.seq.get()
    }

    /// Returns the number of the next byte expected; valid only with [`TcpFlags::ACK`].
    #[must_use]
    pub fn ack(&self) -> u32 {
        self.ack.get()
    }

    /// Returns the receive window, unscaled.
    #[must_use]
    pub fn window(&self) -> u16 {
        self.window.get()
    }

    /// Returns the control bits.
    #[must_use]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.offset_flags.get() & TcpFlags::ALL)
    }
}

/// The control bits of a segment, in the low 9 bits; print as `syn|ack`.
///
/// Source: RFC 9293 section 3.1, RFC 9768 section 3 ([`TcpFlags::AE`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Deliver the data to the application without delay ("push").
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is valid.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo: the receiver has seen a congestion mark.
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced, in reply to an ECN echo.
    pub const CWR: TcpFlags = TcpFlags(0x80);
    /// Accurate ECN: a SYN with this bit, CWR and ECE asks for it; in later segments the three bits
    /// are a counter of congestion marks.
    pub const AE: TcpFlags = TcpFlags(0x100);

    /// The bits of all flags.
    const ALL: u16 = 0x1ff;
    const NAMES: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ae"];

    /// Returns true if all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bar = "";
        for (bit, name) in Self::NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                write!(f, "{bar}{name}")?;
                bar = "|";
            }
        }
        if bar.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpFlags({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tcp4_frame;
    use crate::udp;

    #[test]
    fn a_segment_reads_as_written() {
        let mut frame = tcp4_frame(&[1, 1, 1, 0], b"data");
        frame.resize(72, 0xee);
        let view = tcp(&frame).unwrap();
        assert_eq!((view.src_port(), view.dst_port(), view.window()), (1000, 2000, 512));
        assert_eq!((view.seq(), view.ack()), (7, 9));
        assert_eq!((view.options(), view.payload()), (&[1, 1, 1, 0][..], &b"data"[..]));
        assert!(view.flags().contains(TcpFlags::SYN | TcpFlags::ACK));
        assert!(!view.flags().contains(TcpFlags::FIN));
        assert_eq!(view.flags().to_string(), "syn|ack");
        assert_eq!(TcpFlags(0).to_string(), "none");
        assert!(view.checksum_ok());
        assert_eq!(udp(&frame).unwrap_err(), Malformed::NotUdp);
    }

    #[test]
    fn new_flags_replace_that_of_accurate_ecn_and_leave_length_and_reserved_bits() {
        let mut frame = tcp4_frame(&[], b"data");
        // A SYN that asks for Accurate ECN, with all reserved bits set.
        frame[46..48].copy_from_slice(&[0x5f, 0xc2]);
        let mut view = tcp_mut(&mut frame).unwrap();
        assert!(view.fill_checksum());
        assert_eq!(view.flags(), TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR | TcpFlags::AE);
        assert_eq!(view.flags().to_string(), "syn|ece|cwr|ae");
        view.swap_ends();
        view.set_ack(8);
        view.set_flags(TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(view.flags().to_string(), "syn|ack");
        assert!(tcp(&frame).unwrap().checksum_ok() && frame[46..48] == [0x5e, 0x12]);
        tcp_mut(&mut frame).unwrap().set_flags(TcpFlags(u16::MAX));
        assert!(tcp(&frame).unwrap().checksum_ok() && frame[46..48] == [0x5f, 0xff]);
    }

    #[test]
    fn a_header_length_that_lies_is_an_error() {
        let mut frame = tcp4_frame(&[], b"x");
        for words in [0, 4, 6, 15] {
            frame[46] = words << 4;
            assert_eq!(tcp(&frame).unwrap_err(), Malformed::BadLength, "{words}");
        }
        frame[17] = 39;
        assert_eq!(tcp(&frame).unwrap_err(), Malformed::Short);
    }

    #[test]
    fn options_behind_the_slice_are_short_and_options_behind_the_packet_are_bad() {
        let mut frame = tcp4_frame(&[1, 1, 1, 0], b"");
        assert_eq!(Head::new(&frame[..56], 2).tcp().unwrap_err(), Malformed::Short);
        frame[46] = 7 << 4;
        assert_eq!(Head::new(&frame[..56], 2).tcp().unwrap_err(), Malformed::BadLength);
    }
}
