//! TCP over IPv4 or IPv6, read only.
//!
//! Source: RFC 9293 section 3.1.

use std::fmt;
use std::ops::{BitOr, Deref};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IpRef, Malformed, Protocol, checksum, head, ip};

/// A view of the TCP segment in `frame`.
///
/// Shape:  header, options and payload, without Ethernet padding.
/// Errors: [`Malformed::NotIp`], [`Malformed::NotTcp`], [`Malformed::Fragment`] for any piece of
///         a datagram, or a header length that contradicts the frame. The checksum is not
///         verified: see [`TcpRef::checksum_ok`].
/// Cost:   constant but for IPv6 extension headers, at most eight; nothing is copied.
pub fn tcp(frame: &[u8]) -> Result<TcpRef<'_>, Malformed> {
    read(frame, 0)
}

pub(crate) fn read(frame: &[u8], behind: usize) -> Result<TcpRef<'_>, Malformed> {
    let ip = ip::read(frame, behind)?;
    let segment = ip.segment(Protocol::TCP, Malformed::NotTcp)?;
    let (header, rest) = TcpHeader::ref_from_prefix(segment).map_err(|_| Malformed::Short)?;
    let options_len = usize::from(header.offset_reserved >> 4) * 4;
    let options_len = options_len.checked_sub(size_of::<TcpHeader>());
    let options_len = options_len.ok_or(Malformed::BadLength)?;
    let (options, _behind) = head::front(rest, options_len, ip.behind())?;
    let payload = rest.get(options_len..).ok_or(Malformed::Short)?;
    Ok(TcpRef { ip, header, options, payload })
}

/// A TCP segment, read only.
#[derive(Debug, Clone, Copy)]
pub struct TcpRef<'a> {
    ip: IpRef<'a>,
    header: &'a TcpHeader,
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> TcpRef<'a> {
    /// The packet around it.
    #[must_use]
    pub fn ip(&self) -> IpRef<'a> {
        self.ip
    }

    /// The options, padding of the header included.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// The data.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes of the payload that are not here but behind it: none unless the view is a
    /// [`crate::Head`]'s.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.ip.behind()
    }

    /// Whether the checksum is right. False, as nobody knows, if some of the payload is
    /// [behind](TcpRef::behind).
    ///
    /// Cost: reads the whole payload.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let segment = self.ip.payload();
        let pseudo = self.ip.pseudo(Protocol::TCP, segment.len());
        self.behind() == 0 && checksum::add(pseudo, checksum::sum(segment)) == 0xffff
    }
}

impl Deref for TcpRef<'_> {
    type Target = TcpHeader;
    fn deref(&self) -> &TcpHeader {
        self.header
    }
}

/// The 20 bytes every TCP header starts with.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    src: U16,
    dst: U16,
    seq: U32,
    ack: U32,
    offset_reserved: u8,
    flags: u8,
    window: U16,
    check: U16,
    urgent: U16,
}

const _: () = assert!(size_of::<TcpHeader>() == 20);

impl TcpHeader {
    /// The port of the sender.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        self.src.get()
    }

    /// The port of the receiver.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        self.dst.get()
    }

    /// The sequence number of the first byte.
    #[must_use]
    pub fn seq(&self) -> u32 {
        self.seq.get()
    }

    /// The next byte expected; means something only with [`TcpFlags::ACK`].
    #[must_use]
    pub fn ack(&self) -> u32 {
        self.ack.get()
    }

    /// The receive window, unscaled.
    #[must_use]
    pub fn window(&self) -> u16 {
        self.window.get()
    }

    /// The control bits.
    #[must_use]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.flags)
    }
}

/// The control bits of a segment; print as `syn|ack`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgement number counts.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer counts.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo.
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced.
    pub const CWR: TcpFlags = TcpFlags(0x80);

    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

    /// Whether all of `flags` are set.
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
    use crate::{ipv4_mut, udp};

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
    fn a_new_address_keeps_the_checksum_right() {
        let mut frame = tcp4_frame(&[], b"odd");
        ipv4_mut(&mut frame).unwrap().set_src([192, 0, 2, 200].into());
        assert!(tcp(&frame).unwrap().checksum_ok());
        frame[56] ^= 1;
        assert!(!tcp(&frame).unwrap().checksum_ok());
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
}
