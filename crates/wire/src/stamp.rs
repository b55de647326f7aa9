//! The stamped test frame: a generator sends it, and a sink verifies every byte.
//!
//! ```text
//!  0       12     14      18     22    30       38      42
//!  | MACs  | 88b5 | magic | flow | seq | time_ns | check | pattern to the end of the frame |
//! ```
//!
//! All fields are big endian. `key` mixes flow, seq and the frame's length; `check` is key and
//! time folded together; the pattern is the sequence key + G, key + 2 G, … in words of 8 bytes. So
//! a frame is wrong as soon as one byte from the EtherType on differs, or one is missing or added.
//! The MAC addresses are not covered: a bridge may deliver them, a router must rewrite them.
//!
//! What stands behind the EtherType is as well the payload of a UDP datagram, whose headers routers
//! and translators may change: [`write_payload`].

use std::fmt;

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::EtherType;
use crate::outer::ETH_BYTES;

/// The shortest frame that can be stamped: Ethernet's minimum without FCS. The stamp itself would
/// fit in 42 bytes, but devices pad such frames, which changes their length.
pub const FRAME_LEN_MIN: usize = 60;

/// The shortest payload that can be stamped.
pub const PAYLOAD_LEN_MIN: usize = size_of::<Head>();

/// Identifies a stamped frame among others of the same EtherType: "LNRT".
const MAGIC: u32 = 0x4c4e_5254;

/// The golden ratio as a 64-bit odd number: its multiples do not repeat, and their bits differ
/// widely.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Offset of the EtherType in the Ethernet header.
const TYPE_AT: usize = 12;

/// Stamps `frame`: writes all bytes except the MAC addresses.
///
/// Shape:  the caller has written the two MAC addresses, once; nothing else needs a template.
/// Units:  time_ns is the time at which the frame was meant to leave, on the caller's clock.
/// Errors: [`StampError::Short`], and nothing written.
/// Cost:   two multiplications, then one addition and one store for each 8 bytes.
#[inline(always)]
pub fn write(frame: &mut [u8], flow: u32, seq: u64, time_ns: u64) -> Result<(), StampError> {
    if frame.len() < FRAME_LEN_MIN {
        return Err(StampError::Short);
    }
    let (ends, payload) = frame.split_at_mut(ETH_BYTES);
    ends[TYPE_AT..].copy_from_slice(&EtherType::EXPERIMENT.0.to_be_bytes());
    write_payload(payload, flow, seq, time_ns)
}

/// Stamps the `payload` of a datagram: writes all its bytes.
///
/// Units:  as [`write()`].
/// Errors: [`StampError::Short`] below [`PAYLOAD_LEN_MIN`], and nothing written.
/// Cost:   as [`write()`].
#[inline(always)]
pub fn write_payload(
    payload: &mut [u8],
    flow: u32,
    seq: u64,
    time_ns: u64,
) -> Result<(), StampError> {
    let key = key(flow, seq, payload.len());
    let (head, pattern) = Head::mut_from_prefix(payload).map_err(|_| StampError::Short)?;
    head.magic.set(MAGIC);
    head.flow.set(flow);
    head.seq.set(seq);
    head.time_ns.set(time_ns);
    head.check.set(check(key, time_ns));
    let mut word = key;
    let (words, rest) = pattern.as_chunks_mut::<8>();
    for bytes in words {
        word = word.wrapping_add(GOLDEN);
        *bytes = word.to_be_bytes();
    }
    let last = word.wrapping_add(GOLDEN).to_be_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    Ok(())
}

/// Reads the stamp of `frame`, and verifies every byte except the MAC addresses; in a stamped
/// datagram, verifies every byte of the payload.
///
/// Errors: [`StampError::Foreign`] for frames of anyone else; otherwise what is damaged.
/// Cost:   two multiplications, then one addition and one comparison for each 8 bytes; of a
///         datagram the reading of its headers before.
#[inline(always)]
pub fn read(frame: &[u8]) -> Result<Stamp, StampError> {
    if frame.len() < FRAME_LEN_MIN {
        return Err(StampError::Short);
    }
    let ether_type = u16::from_be_bytes([frame[TYPE_AT], frame[TYPE_AT + 1]]);
    let payload = match ether_type == EtherType::EXPERIMENT.0 {
        true => &frame[ETH_BYTES..],
        false => datagram(frame).ok_or(StampError::Foreign)?,
    };
    read_payload(payload)
}

/// Returns the payload of a datagram. This is a separate function, so that the code for frames
/// without further headers stays small.
#[cold]
#[inline(never)]
fn datagram(frame: &[u8]) -> Option<&[u8]> {
    crate::udp(frame).ok().map(|datagram| datagram.payload())
}

/// Reads the stamp of `payload`, as received from a socket, and verifies every byte.
///
/// Errors: as [`read`].
/// Cost:   as [`read`].
#[inline(always)]
pub fn read_payload(payload: &[u8]) -> Result<Stamp, StampError> {
    let (head, pattern) = Head::ref_from_prefix(payload).map_err(|_| StampError::Foreign)?;
    if head.magic.get() != MAGIC {
        return Err(StampError::Foreign);
    }
    let (flow, seq, time_ns) = (head.flow.get(), head.seq.get(), head.time_ns.get());
    let key = key(flow, seq, payload.len());
    if head.check.get() != check(key, time_ns) {
        return Err(StampError::Header);
    }
    let mut word = key;
    let mut differ = 0; // all differences, collected so that the loop never ends early
    let (words, rest) = pattern.as_chunks::<8>();
    for bytes in words {
        word = word.wrapping_add(GOLDEN);
        differ |= word ^ u64::from_be_bytes(*bytes);
    }
    let last = word.wrapping_add(GOLDEN).to_be_bytes();
    // Compare byte by byte: a call of memcmp for fewer than 8 bytes costs more.
    let rest = last.iter().zip(rest).fold(0, |differ, (a, b)| differ | (a ^ b));
    if differ != 0 || rest != 0 {
        return Err(StampError::Payload);
    }
    Ok(Stamp { flow, seq, time_ns })
}

/// The content of the stamp that a generator writes into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The stream that the frame belongs to.
    pub flow: u32,
    /// The packet's number within the stream.
    pub seq: u64,
    /// The intended time of sending, on the generator's clock.
    pub time_ns: u64,
}

/// The reason why a frame has no valid stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StampError {
    /// The frame is shorter than [`FRAME_LEN_MIN`], or the payload to write is shorter than
    /// [`PAYLOAD_LEN_MIN`].
    Short,
    /// The frame has another EtherType or magic: it is not stamped, or too damaged to be
    /// recognised.
    Foreign,
    /// The flow, sequence number, time or length differs from the one that was sent.
    Header,
    /// The header is right, but the pattern after it is not.
    Payload,
}

impl fmt::Display for StampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StampError::Short => "too short for a stamp",
            StampError::Foreign => "not a stamped frame",
            StampError::Header => "a stamped frame with a damaged header or length",
            StampError::Payload => "a stamped frame with a damaged payload",
        })
    }
}

impl std::error::Error for StampError {}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U32,
    flow: U32,
    seq: U64,
    time_ns: U64,
    check: U32,
}

const _: () = assert!(size_of::<Head>() == 28);

/// Returns the key of a stamp. Every bit of it depends on every bit of the three values, and a
/// change of one value always changes it.
///
/// Source: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, OOPSLA 2014, variant 13 of Stafford).
#[inline]
fn key(flow: u32, seq: u64, payload_len: usize) -> u64 {
    let frame_len = payload_len + ETH_BYTES;
    let z = (seq ^ u64::from(flow) << 32).wrapping_add(GOLDEN.wrapping_mul(frame_len as u64));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns the check of a stamp. The exclusive or of both halves detects any damage to the time
/// within 32 neighbouring bits.
#[inline]
fn check(key: u64, time_ns: u64) -> u32 {
    let folded = key ^ time_ns;
    (folded >> 32) as u32 ^ folded as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mac, UdpEnds};
    use proptest::prelude::*;

    fn stamped(len: usize, flow: u32, seq: u64, time_ns: u64) -> Vec<u8> {
        let mut frame = vec![0; len];
        write(&mut frame, flow, seq, time_ns).unwrap();
        frame
    }

    #[test]
    fn a_stamp_reads_as_written_at_every_length() {
        for len in 60..200 {
            let frame = stamped(len, 7, 1 << 40, 99);
            assert_eq!(read(&frame), Ok(Stamp { flow: 7, seq: 1 << 40, time_ns: 99 }));
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let frame = stamped(60, 0x0102_0304, 0x0506_0708_090a_0b0c, 0x1112_1314_1516_1718);
        let head = [
            0x88, 0xb5, b'L', b'N', b'R', b'T', 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x11, 0x12,
            0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(frame[12..38], head);
    }

    #[test]
    fn a_short_frame_is_refused_untouched() {
        let mut frame = [0xaa; 59];
        assert_eq!(write(&mut frame, 1, 2, 3), Err(StampError::Short));
        assert_eq!(frame, [0xaa; 59]);
        assert_eq!(read(&frame), Err(StampError::Short));
    }

    #[test]
    fn frames_of_others_are_foreign() {
        assert_eq!(read(&[0; 60]), Err(StampError::Foreign));
        let mut frame = stamped(60, 1, 2, 3);
        frame[14] = 0;
        assert_eq!(read(&frame), Err(StampError::Foreign));
    }

    #[test]
    fn a_stamped_datagram_verifies_as_payload_and_as_frame() {
        let ends = |src: &str, dst: &str| UdpEnds {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
        };
        for ends in [ends("10.0.0.1:9", "10.0.0.2:7777"), ends("[fd00::1]:9", "[fd00::2]:7777")] {
            let at = ends.header_bytes();
            for len in PAYLOAD_LEN_MIN..100 {
                let mut frame = vec![0; at + len];
                write_payload(&mut frame[at..], 3, 4, 5).unwrap();
                ends.write(&mut frame).unwrap();
                let stamp = Ok(Stamp { flow: 3, seq: 4, time_ns: 5 });
                assert_eq!((read(&frame), read_payload(&frame[at..])), (stamp, stamp));
                frame[at + len - 1] ^= 1;
                assert!(read(&frame).is_err() && read_payload(&frame[at..]).is_err());
                frame[at] ^= 1;
                assert_eq!(read(&frame), Err(StampError::Foreign));
            }
        }
        let mut short = [0xaa; PAYLOAD_LEN_MIN - 1];
        assert_eq!(write_payload(&mut short, 1, 2, 3), Err(StampError::Short));
        assert_eq!(read_payload(&short), Err(StampError::Foreign));
        assert_eq!(short, [0xaa; PAYLOAD_LEN_MIN - 1]);
    }

    #[test]
    fn new_addresses_leave_the_stamp_valid() {
        let mut frame = stamped(60, 1, 2, 3);
        frame[..12].fill(0x5a);
        assert!(read(&frame).is_ok());
    }

    #[test]
    fn a_frame_cut_or_padded_is_damaged() {
        let mut frame = stamped(100, 1, 2, 3);
        assert_eq!(read(&frame[..96]), Err(StampError::Header));
        frame.push(0);
        assert_eq!(read(&frame), Err(StampError::Header));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut frame = stamped(90, 3, 4, 5);
        for bit in 12 * 8..90 * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&frame).is_err(), "bit {bit}");
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(read(&frame).is_ok());
    }

    proptest! {
        #[test]
        fn every_changed_byte_is_found(
            len in 60usize..1514, flow: u32, seq: u64, time_ns: u64, at: prop::sample::Index,
            change in 1u8..,
        ) {
            let mut frame = stamped(len, flow, seq, time_ns);
            prop_assert_eq!(read(&frame), Ok(Stamp { flow, seq, time_ns }));
            frame[12 + at.index(len - 12)] ^= change;
            prop_assert!(read(&frame).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = read(&bytes);
        }
    }
}
