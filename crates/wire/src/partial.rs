//! A checksum that is left to a device: the contents of its field until then, and its effect on
//! other checksums.
//!
//! ```text
//! | MACs | IP | UDP  check | payload ...............................|   Whole
//! | MACs | IP | UDP  ~~~~~ | payload ...............................|   Pseudo: `start` is this header
//! | MACs | IP | UDP  check | .. | IP | TCP  ~~~~~ | payload ........|   Inner: `start` is one further in
//! | MACs | IP | UDP  ~~~~~ | .. | IP | TCP  ~~~~~ | payload ........|   Segments: so in a superframe
//! ```
//!
//! Source: Linux Documentation/networking/checksum-offloads.rst, "LCO: Local Checksum Offload"; for
//! superframes net/ipv4/udp.c `udp_set_csum`.

use zerocopy::byteorder::network_endian::U16;

use crate::checksum;

/// A checksum that is left to a device: its field has only the sum of the pseudo header.
///
/// The frame's metadata know of it; its bytes do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// Offset of the first summed byte from the start of the frame; the sum extends to the frame's
    /// end.
    pub start: usize,
    /// Offset from `start` at which the checksum is written.
    pub offset: usize,
}

/// The work that a packet leaves to a device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Left {
    pub partial: Option<Partial>,
    /// True for a superframe, which the device cuts into segments.
    pub is_superframe: bool,
}

/// The content of a transport header's checksum field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The complete checksum.
    Whole,
    /// The sum of the pseudo header, which the device completes to a checksum.
    Pseudo,
    /// A checksum of an outer header, while the inner packet's checksum is left to the device:
    /// offsets of the inner header and of its checksum field, from the first byte of the outer
    /// header.
    Inner { start: usize, field: usize },
    /// The sum of the pseudo header, or 0 for none, in an outer UDP header of a superframe: each
    /// segment gets a checksum of its own there.
    Segments,
}

impl Check {
    /// Returns the content of the checksum field at byte `field` of a transport header that begins
    /// at byte `at` of the frame.
    #[inline]
    pub fn of(left: Left, at: usize, field: usize) -> Check {
        match left.partial {
            None => Check::Whole,
            Some(p) if p.start == at && p.offset == field => Check::Pseudo,
            Some(p) if p.start > at + field && left.is_superframe => Check::Segments,
            Some(p) if p.start > at + field => {
                let start = p.start - at;
                Check::Inner { start, field: start.saturating_add(p.offset) }
            }
            Some(_) => Check::Whole,
        }
    }

    /// Returns true if the field has the sum of the pseudo header, which does not include words of
    /// the transport header.
    pub fn is_pseudo(self) -> bool {
        matches!(self, Check::Pseudo | Check::Segments)
    }

    /// Returns the sum of a segment as the device will send it; `None` if that requires bytes
    /// outside the slice, or if the device sends several segments.
    pub fn sum(self, header: &[u8], payload: &[u8], behind: usize) -> Option<u16> {
        let (summed, rest) = match self {
            Check::Inner { start, field } => {
                let start = start.checked_sub(header.len())?;
                let field = payload.get(field.checked_sub(header.len())?..)?.first_chunk()?;
                // Once the device has filled the inner checksum, the bytes from there on add up to
                // the complement of the pseudo header's sum.
                let rest = !u16::from_be_bytes(*field);
                let rest = if start % 2 == 0 { rest } else { rest.swap_bytes() };
                (payload.get(..start)?, rest)
            }
            Check::Segments => return None,
            Check::Whole | Check::Pseudo if behind > 0 => return None,
            Check::Whole | Check::Pseudo => (payload, 0),
        };
        let sum = checksum::add(checksum::sum(header), checksum::sum(summed));
        Some(checksum::add(sum, rest))
    }

    /// Updates `field` for a changed word of the pseudo header; a UDP checksum of 0, which means
    /// "no checksum", stays.
    #[inline]
    pub fn readdress(self, field: &mut U16, udp: bool, old: u32, new: u32) {
        let held = field.get();
        match self {
            _ if udp && held == 0 && self != Check::Pseudo => {}
            Check::Pseudo | Check::Segments => field.set(checksum::resum32(held, old, new)),
            _ => field.set(nonzero(udp, checksum::update32(held, old, new))),
        }
    }

    /// Updates `field` for a changed IPv6 address, as `readdress` does for one word.
    pub fn readdress_v6(self, field: &mut U16, udp: bool, old: [u8; 16], new: [u8; 16]) {
        let (old, _) = old.as_chunks();
        let (new, _) = new.as_chunks();
        for (old, new) in old.iter().zip(new) {
            let (old, new) = (u32::from_be_bytes(*old), u32::from_be_bytes(*new));
            self.readdress(field, udp, old, new);
        }
    }

    /// Updates `field` for a changed word of the transport header; a UDP checksum of 0 stays, as in
    /// `readdress`.
    #[inline]
    pub fn renumber(self, field: &mut U16, udp: bool, old: u16, new: u16) {
        let held = field.get();
        if !(self.is_pseudo() || udp && held == 0) {
            field.set(nonzero(udp, checksum::update16(held, old, new)));
        }
    }

    /// Updates `field` for a changed 32-bit number in a TCP header.
    pub fn renumber32(self, field: &mut U16, old: u32, new: u32) {
        if !self.is_pseudo() {
            field.set(checksum::update32(field.get(), old, new));
        }
    }
}

/// Replaces a computed UDP checksum of 0, which would mean none, by all ones, which is equivalent.
/// Source: RFC 768.
pub(crate) fn nonzero(udp: bool, check: u16) -> u16 {
    if udp && check == 0 { 0xffff } else { check }
}

/// Returns the offset of `part` in the frame that begins at address `frame`.
#[inline]
pub(crate) fn offset_in(frame: usize, part: &[u8]) -> usize {
    part.as_ptr().addr().wrapping_sub(frame)
}

#[cfg(test)]
mod tests {
    use crate::testing::{tcp4_frame, udp4_frame, udp6_frame};
    use crate::{Head, HeadMut, IpRef, Malformed, Partial, Protocol, checksum, ip, udp};

    /// Returns the offset of the transport header of `frame`, and of its checksum in it.
    fn transport(frame: &[u8]) -> Partial {
        let ip = ip(frame).unwrap();
        let start = if matches!(ip, IpRef::V4(_)) { 34 } else { 54 };
        Partial { start, offset: if ip.protocol() == Protocol::TCP { 16 } else { 6 } }
    }

    /// Leaves the checksum of `frame` to a device.
    fn leave(frame: &mut [u8]) -> Partial {
        let partial = transport(frame);
        let ip = ip(frame).unwrap();
        let pseudo = ip.pseudo(ip.protocol(), ip.payload().len()).to_be_bytes();
        let at = partial.start + partial.offset;
        frame[at..at + 2].copy_from_slice(&pseudo);
        partial
    }

    /// Completes the checksum as a device does.
    fn complete(frame: &mut [u8], partial: Partial) {
        let check = checksum::finish(checksum::sum(&frame[partial.start..])).to_be_bytes();
        let at = partial.start + partial.offset;
        frame[at..at + 2].copy_from_slice(&check);
    }

    fn ok(frame: &[u8], partial: Option<Partial>) -> bool {
        let head = Head::new(frame, 0).with_partial(partial);
        head.udp().map_or_else(|_| head.tcp().unwrap().checksum_ok(), |udp| udp.checksum_ok())
    }

    fn frames(payload: &[u8]) -> [Vec<u8>; 3] {
        let udp4 = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), payload);
        [udp4, udp6_frame(payload), tcp4_frame(&[1, 1, 1, 0], payload)]
    }

    #[test]
    fn partial_checksum_is_valid_only_if_declared_and_unchanged() {
        for mut frame in frames(b"payload") {
            let partial = leave(&mut frame);
            assert!(ok(&frame, Some(partial)) && !ok(&frame, None));
            frame[partial.start + partial.offset] ^= 1;
            assert!(!ok(&frame, Some(partial)));
        }
    }

    #[test]
    fn a_partial_checksum_is_filled_and_checked_without_the_payload() {
        let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &[7; 100]);
        let partial = leave(&mut frame);
        let whole = frame.clone();
        frame[40..42].fill(0xee);
        let mut view = HeadMut::new(&mut frame[..50], 92).with_partial(partial).udp().unwrap();
        assert!(view.fill_checksum());
        assert_eq!(frame, whole);
        assert!(Head::new(&frame[..50], 92).with_partial(partial).udp().unwrap().checksum_ok());
    }

    /// Returns a UDP datagram whose payload is `shim` bytes and `inner`'s packet.
    fn tunnel(shim: usize, inner: &[u8]) -> Vec<u8> {
        let payload = [vec![9; shim], inner[14..].to_vec()].concat();
        udp4_frame([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), &payload)
    }

    #[test]
    fn an_outer_checksum_is_that_of_the_completed_inner_packet() {
        for shim in [0, 8, 9] {
            for mut inner in frames(b"odd length payload!") {
                let Partial { start, offset } = leave(&mut inner);
                let partial = Partial { start: start + 28 + shim, offset };
                let mut frame = tunnel(shim, &inner);
                frame[40..42].fill(0);
                let head = HeadMut::new(&mut frame, 0).with_partial(partial);
                assert!(head.udp().unwrap().fill_checksum());
                assert!(ok(&frame, Some(partial)));
                let mut ip = HeadMut::new(&mut frame, 0).with_partial(partial).ipv4().unwrap();
                ip.set_src([198, 51, 100, 77].into());
                complete(&mut frame, partial);
                assert!(udp(&frame).unwrap().checksum_ok(), "{shim}");
            }
        }
    }

    #[test]
    fn outer_checksum_needs_the_inner_field_in_the_slice() {
        let mut inner = frames(b"payload")[2].clone();
        let Partial { start, offset } = leave(&mut inner);
        let partial = Partial { start: start + 28, offset };
        let mut frame = tunnel(0, &inner);
        let before = frame.clone();
        let (here, behind) = (partial.start + 17, frame.len() - partial.start - 17);
        let mut view = HeadMut::new(&mut frame[..here], behind).with_partial(partial);
        assert!(!view.reborrow().udp().unwrap().fill_checksum());
        assert_eq!(frame, before);
        for wild in [Partial { start: 41, offset: 0 }, Partial { start: 43, offset: usize::MAX }] {
            let mut view = HeadMut::new(&mut frame, 0).with_partial(wild).udp().unwrap();
            let _ = view.fill_checksum();
        }
    }

    fn superframe(frame: &mut [u8], partial: Partial) -> HeadMut<'_> {
        HeadMut::new(frame, 0).with_partial(partial).with_superframe(true)
    }

    #[test]
    fn outer_checksum_of_a_superframe_is_the_sum_of_its_pseudo_header_or_none() {
        for v6 in [false, true] {
            let mut inner = frames(&[7; 300])[2].clone();
            let Partial { start, offset } = leave(&mut inner);
            let new = if v6 { 48 } else { 28 };
            let mut frame = if v6 { udp6_frame(&inner[14..]) } else { tunnel(0, &inner) };
            let (partial, field) = (Partial { start: start + new, offset }, 12 + new..14 + new);
            // No byte behind the outer UDP header is read.
            let is_ok = |frame: &[u8]| {
                let head = Head::new(&frame[..14 + new], frame.len() - 14 - new);
                head.with_partial(partial).with_superframe(true).udp().unwrap().checksum_ok()
            };
            assert!(superframe(&mut frame, partial).udp().unwrap().fill_checksum());
            let filled = frame.clone();
            leave(&mut frame);
            assert!(frame == filled && is_ok(&frame), "{v6}");

            let to = if v6 { "[fd00::9]:9" } else { "198.51.100.77:9" }.parse().unwrap();
            let mut outer = superframe(&mut frame, partial).udp().unwrap();
            outer.set_dst(to).unwrap();
            outer.set_src_port(7);
            assert!(is_ok(&frame) && frame[field.clone()] != filled[field.clone()]);
            for is_absent in [false, true] {
                if is_absent {
                    frame[field.clone()].fill(0);
                }
                let mut head = superframe(&mut frame, partial);
                if v6 {
                    head.reborrow().ipv6().unwrap().set_src([7; 16].into());
                } else {
                    head.reborrow().ipv4().unwrap().set_src([192, 0, 2, 9].into());
                }
                assert_eq!(head.set_udp_payload_len(100), Err(Malformed::BadLength));
                assert_eq!(is_ok(&frame), !(is_absent && v6));
                assert!(!is_absent || frame[field.clone()] == [0, 0]);
            }
            frame[field.start] ^= 1;
            assert!(!is_ok(&frame));
        }
    }

    #[test]
    fn a_later_fragment_of_ipv6_has_no_checksum_to_carry_an_address_into() {
        for (more, offset, carried) in [(1, 0, true), (0, 1, false)] {
            let mut frame = udp6_frame(b"payload");
            frame.splice(54..54, [17, 0, offset, more, 9, 9, 9, 9]);
            (frame[19], frame[20]) = (23, 44);
            let before = frame[54..].to_vec();
            HeadMut::new(&mut frame, 0).ipv6().unwrap().set_src([7; 16].into());
            assert_eq!(frame[54..] != before, carried);
        }
    }
}
