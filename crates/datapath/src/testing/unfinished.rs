//! Packets as a host's own interfaces deliver them: with partial checksums, and superframes that a
//! device must cut.

use linerate_port::ViewsMut;
use linerate_skb::{DropReason, Offload, Skb};
use linerate_wire::{HeadMut, IpRef, Partial, Protocol, checksum, ip, tcp};

/// The work that a run leaves to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// No work: complete packets.
    Nothing,
    /// The checksums of UDP and TCP.
    Checksums,
    /// The checksums, and cutting: TCP segments are superframes of one segment.
    Superframes,
}

impl Left {
    /// Removes from `frame` the work that can be left to a device, and returns the offload that
    /// describes this work.
    ///
    /// Shape: what the device makes of it is `frame` as it was, byte for byte; where it would not
    ///        be, because the checksum is wrong or none, nothing is left to it.
    pub fn of(self, frame: &mut [u8]) -> Offload {
        if self == Left::Nothing {
            return Offload::NONE;
        }
        checksum_left(frame).map_or(Offload::NONE, |partial| {
            let offload = Offload {
                flags: Offload::NEEDS_CHECKSUM,
                csum_start: partial.start as u16,
                csum_offset: partial.offset as u16,
                ..Offload::NONE
            };
            match self {
                Left::Superframes => superframe(frame, offload),
                _ => offload,
            }
        })
    }

    /// Describes the kind of packet, for a reader.
    pub fn as_str(self) -> &'static str {
        match self {
            Left::Nothing => "a packet",
            Left::Checksums => "a partial checksum",
            Left::Superframes => "a superframe",
        }
    }
}

/// Does the work that was left to a device.
pub(super) fn finish(skb: &mut Skb) -> Result<(), DropReason> {
    if !skb.offload().is_pending() {
        return Ok(());
    }
    // A superframe of one segment is that segment.
    skb.set_offload(Offload { gso_type: 0, gso_size: 0, ..skb.offload() });
    skb.complete_checksum()
}

/// Replaces a correct checksum by the sum of the pseudo header; returns the position of the
/// checksum, or `None` if it is not correct.
fn checksum_left(frame: &mut [u8]) -> Option<Partial> {
    let view = ip(frame).ok()?;
    let start = view.payload().as_ptr().addr() - frame.as_ptr().addr();
    let (protocol, offset) = match view.protocol() {
        Protocol::TCP => (Protocol::TCP, 16),
        Protocol::UDP => (Protocol::UDP, 6),
        _ => return None,
    };
    let partial = Partial { start, offset };
    let field = start + offset..start + offset + 2;
    let before: [u8; 2] = frame.get(field.clone())?.try_into().ok()?;
    let head = HeadMut::new(frame, 0).with_partial(partial);
    let filled = match protocol {
        Protocol::UDP => head.udp().is_ok_and(|mut udp| udp.fill_checksum()),
        _ => head.tcp().is_ok_and(|mut tcp| tcp.fill_checksum()),
    };
    let check = match checksum::finish(checksum::sum(&frame[start..])) {
        0 if protocol == Protocol::UDP => u16::MAX,
        check => check,
    };
    if filled && check.to_be_bytes() == before {
        return Some(partial);
    }
    frame[field].copy_from_slice(&before);
    None
}

/// Returns the offload of a TCP segment as a superframe with only one segment.
fn superframe(frame: &[u8], offload: Offload) -> Offload {
    let Ok(view) = tcp(frame) else { return offload };
    let payload = view.payload();
    let start = payload.as_ptr().addr() - frame.as_ptr().addr();
    // A device would cut off padding behind the payload, and the frame would differ.
    if payload.is_empty() || start + payload.len() != frame.len() {
        return offload;
    }
    let Ok(gso_size) = u16::try_from(payload.len()) else { return offload };
    let gso_type = match view.ip() {
        IpRef::V4(_) => Offload::GSO_TCPV4,
        IpRef::V6(_) => Offload::GSO_TCPV6,
    };
    Offload { gso_type, gso_size, hdr_len: start as u16, ..offload }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_frames;
    use crate::{Stage, Turn};
    use linerate_port::Views;
    use linerate_port::pcap::Frame;
    use linerate_skb::Batch;

    /// Returns a frame of UDP or TCP over IPv4 with correct checksums.
    fn frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header = if protocol == 6 { 20 } else { 8 };
        let len = (header + payload.len()) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 3, 232, 7, 208]);
        frame.resize(34 + header, 0);
        match protocol {
            6 => frame[46] = 0x50,
            _ => frame[38..40].copy_from_slice(&len.to_be_bytes()),
        }
        frame.extend(payload);
        let check = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        let filled = HeadMut::new(&mut frame, 0).udp().map(|mut udp| udp.fill_checksum());
        assert!(filled.unwrap_or_else(|_| tcp_filled(&mut frame)));
        frame
    }

    fn tcp_filled(frame: &mut [u8]) -> bool {
        linerate_wire::tcp_mut(frame).unwrap().fill_checksum()
    }

    fn frames() -> Vec<Frame> {
        let all = [frame(17, b"question"), frame(6, b""), frame(6, &[7; 3000]), vec![9; 60]];
        all.into_iter().map(|bytes| Frame { stamp_ns: 0, bytes }).collect()
    }

    #[test]
    fn what_is_left_comes_out_as_it_was() {
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        for Frame { bytes, .. } in frames() {
            let mut asked = [0; 3];
            for (i, left) in [Left::Nothing, Left::Checksums, Left::Superframes].iter().enumerate()
            {
                let mut unfinished = bytes.clone();
                let offload = left.of(&mut unfinished);
                asked[i] = u8::from(offload.needs_checksum()) + 2 * u8::from(offload.is_gso());
                let mut skb = pool.local().alloc_copy(&unfinished).unwrap();
                skb.set_offload(offload);
                finish(&mut skb).unwrap();
                let mut out = vec![0; skb.len()];
                skb.copy_to(0, &mut out);
                assert!(out == bytes, "{left:?}");
            }
            let expected = match bytes.len() {
                60 => [0, 0, 0],
                3054 => [0, 1, 3],
                _ => [0, 1, 1],
            };
            assert_eq!(asked, expected);
        }
        let mut wrong = frame(17, b"question");
        wrong[44] ^= 1;
        assert_eq!(Left::Checksums.of(&mut wrong), Offload::NONE);
    }

    struct Answer;

    impl Stage for Answer {
        fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
            batch.retain(|skb| {
                if let Ok(mut udp) = skb.udp_mut() {
                    udp.swap_ends();
                    udp.payload_mut()[..4].copy_from_slice(b"answ");
                    assert!(udp.fill_checksum());
                }
                if let Ok(mut ip) = skb.ipv4_mut() {
                    ip.set_src([192, 0, 2, 1].into());
                }
                Ok(())
            });
        }
    }

    #[test]
    fn a_stage_that_uses_views_does_the_same_to_packets_that_are_not_finished() {
        let run = run_frames(|_| Answer, &frames());
        assert_eq!(run.ledger().sent, 4);
        assert!(linerate_wire::udp(&run.out("east")[0].bytes).unwrap().checksum_ok());
    }

    struct Encapsulate;

    impl Stage for Encapsulate {
        fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
            batch.retain(|skb| {
                let mut outer = frame(17, b"")[..34].to_vec();
                outer[16..18].copy_from_slice(&(skb.len() as u16 + 6).to_be_bytes());
                outer[23] = 4;
                assert!(skb.pull(14));
                skb.push(34).ok_or(DropReason::NO_FRAME)?.copy_from_slice(&outer);
                Ok(())
            });
        }
    }

    #[test]
    fn a_stage_that_pushes_headers_leaves_the_inner_checksum_right() {
        let run = run_frames(|_| Encapsulate, &frames());
        let bytes = &run.out("east")[0].bytes;
        let inner = [&bytes[..14], &bytes[34..]].concat();
        assert!(linerate_wire::udp(&inner).unwrap().checksum_ok());
    }

    /// Computes a checksum without a view, as a stage does that ignores the offload.
    struct ByHand;

    impl Stage for ByHand {
        fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
            batch.iter_mut().filter(|skb| skb.udp().is_ok()).for_each(|skb| {
                let _ = linerate_wire::udp_mut(skb.data_mut()).map(|mut udp| udp.fill_checksum());
            });
        }
    }

    #[test]
    #[should_panic(expected = "the stage leaves a partial checksum wrong: port east: frame 0")]
    fn a_stage_that_spoils_a_partial_checksum_fails() {
        let _ = run_frames(|_| ByHand, &frames());
    }
}
