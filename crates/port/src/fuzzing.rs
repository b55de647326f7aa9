//! A packet whose headers and offload are fuzzed, on its way to a device that does all offloads,
//! some, or none.
//!
//! For the fuzz target and the tests. No device and no kernel: the preparation of packets runs as
//! it is, in front of a device that keeps what it gets.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Batch, Local, Moved, Offload, Pool, Skb, Trust};
use linerate_sys::vnet::VnetHdr;
use linerate_sys::wait::EventFd;
use linerate_wire::{checksum, ipv4, tcp, udp};

use crate::caps::{Caps, TxOffload};
use crate::host::{crc32c, offload, partial};
use crate::queue::QueueOps;
use crate::segment;
use crate::txprep::TxPrep;
use crate::want::Want;

/// Bytes in front of the frame: the kind of the run, the MTU, and the kernel's offload header.
const HEAD_BYTES: usize = 13;
/// Number of frames in the pool of a run: enough for the longest packet, and for a batch of
/// segments.
const FRAMES: u32 = 256;
/// Length in bytes of the longest frame that is sent.
const LONGEST_BYTES: usize = 1 << 16;
/// Offset of SCTP's checksum in its header.
const SCTP_CHECK: u16 = 8;

/// The place from which a packet comes, and what its offload is therefore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A kernel that says with a header what is left.
    Header,
    /// A kernel that does not say it: the offload is recognised.
    Plain,
    /// A program, which may set anything.
    Program,
}

/// A device that keeps the bytes of all packets, and the offload of the last.
struct Device {
    bell: EventFd,
    left: Offload,
    sent: Vec<Vec<u8>>,
}

impl QueueOps for Device {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.send_prefix(mem, |skb| {
            self.left = skb.offload();
            self.sent.push(bytes_of(skb));
            true
        })
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn caps(&self) -> Caps {
        Caps::default()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Sends a packet of fuzzed bytes; returns how many packets left.
///
/// The first byte of `script` selects what the device does, whether a peer can write the packet,
/// and the place that it comes from. Two bytes are the MTU, ten the offload header, and the rest is
/// the frame.
///
/// # Panics
/// If a packet is neither sent nor dropped, if another byte than a checksum changes, if a completed
/// checksum is wrong, or if segments are not the parts of their superframe; and without memory or
/// descriptors for the run.
pub fn offloads(script: &[u8]) -> usize {
    let Some((&[kind, mtu_low, mtu_high, header @ ..], frame)) =
        script.split_first_chunk::<HEAD_BYTES>()
    else {
        return 0;
    };
    let frame = &frame[..frame.len().min(LONGEST_BYTES)];
    let trust = if kind & 1 == 0 { Trust::Private } else { Trust::Exported };
    let pool = Pool::builder().frames(FRAMES).trust(trust).build().expect("memory");
    let mut mem = pool.local();
    let source = [Source::Header, Source::Plain, Source::Program, Source::Header]
        [usize::from(kind >> 1 & 3)];
    let mtu_bytes = usize::from(u16::from_le_bytes([mtu_low, mtu_high]));
    let sent = packet(&mut mem, frame, source, mtu_bytes, &header).map_or(0, |skb| {
        let run =
            Run { source, offload: skb.offload(), checksum: does(kind >> 3), gso: does(kind >> 5) };
        run.send(&mut mem, skb, frame)
    });
    drop(mem);
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
    sent
}

/// Returns the work that a device does, selected by two bits.
fn does(bits: u8) -> TxOffload {
    [TxOffload::None, TxOffload::Untunnelled, TxOffload::UntunnelledTcp, TxOffload::All]
        [usize::from(bits & 3)]
}

/// Returns the packet with its offload; `None` if its offload is refused, or there is no packet.
fn packet(
    mem: &mut Local,
    frame: &[u8],
    source: Source,
    mtu_bytes: usize,
    header: &[u8; HEAD_BYTES - 3],
) -> Option<Skb> {
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let header = VnetHdr {
        flags: header[0],
        gso_type: header[1],
        hdr_len: word(2),
        gso_size: word(4),
        csum_start: word(6),
        csum_offset: word(8),
    };
    let mut skb = mem.alloc_copy(frame).filter(|skb| !skb.is_empty())?;
    match source {
        Source::Header => {
            skb.set_offload(offload::received(&header, frame, frame.len())?);
        }
        Source::Plain => partial::mark(&mut skb, mtu_bytes),
        Source::Program => {
            let VnetHdr { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = header;
            let left = Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset };
            skb.set_offload(left);
        }
    }
    Some(skb)
}

/// One packet's way to a device.
struct Run {
    source: Source,
    offload: Offload,
    checksum: TxOffload,
    gso: TxOffload,
}

impl Run {
    /// Sends `skb`, whose bytes are `frame`, and checks what left; returns the number of packets.
    fn send(&self, mem: &mut Local, skb: Skb, frame: &[u8]) -> usize {
        let caps = Caps { checksum: self.checksum, gso: self.gso, ..Caps::default() };
        let mut prep = TxPrep::new(&caps);
        let bell = EventFd::new().expect("a descriptor");
        let mut device = Device { bell, left: Offload::NONE, sent: Vec::new() };
        let (wire_bytes, mut batch) = (segment::wire_bytes(&skb), Batch::with_capacity(1));
        assert!(batch.push(skb).is_ok());
        let mut moved = prep.xmit(&mut device, mem, &mut batch);
        moved += prep.xmit(&mut device, mem, &mut batch);
        assert!(batch.is_empty() && !prep.is_busy(), "the pool has frames for a batch");
        let bytes = device.sent.iter().map(|sent| sent.len() as u64).sum();
        assert_eq!(moved, Moved { packets: device.sent.len(), bytes });
        match &device.sent[..] {
            [] => assert!(self.offload.is_pending() && self.by() != TxOffload::All),
            [only] if device.left == self.offload => {
                assert_eq!(only, frame, "no byte changes");
                self.check_left(frame);
            }
            [only] if !self.offload.is_gso() => self.check_completed(frame, only),
            all => {
                assert!(!device.left.is_pending() && bytes == wire_bytes);
                self.check_cut(frame, all);
            }
        }
        device.sent.len()
    }

    /// Returns the packets whose offload the device does, of those with the kind of work that this
    /// packet has.
    fn by(&self) -> TxOffload {
        if self.offload.is_gso() { self.gso } else { self.checksum }
    }

    /// Checks that the device does such work, and that a kernel's packet leaves it no work outside
    /// of its bytes.
    fn check_left(&self, frame: &[u8]) {
        assert!(!self.offload.is_pending() || self.by() != TxOffload::None);
        let Offload { csum_start, csum_offset, .. } = self.offload;
        let end = usize::from(csum_start) + usize::from(csum_offset) + 2;
        let is_within = !self.offload.needs_checksum() || end <= frame.len();
        assert!(is_within || self.source == Source::Program);
    }

    /// Checks that only the checksum changed, and that it is right.
    fn check_completed(&self, before: &[u8], after: &[u8]) {
        let Offload { csum_start, csum_offset, .. } = self.offload;
        let (start, field) = (usize::from(csum_start), usize::from(csum_start + csum_offset));
        let is_crc = csum_offset == SCTP_CHECK;
        let end = field + if is_crc { 4 } else { 2 };
        assert_eq!((before.len(), &before[..field]), (after.len(), &after[..field]));
        assert_eq!(before.get(end..), after.get(end..));
        if !is_crc && csum_offset % 2 == 0 {
            let pseudo = u16::from_be_bytes([before[field], before[field + 1]]);
            let sum = checksum::add(checksum::sum(&after[start..]), pseudo);
            assert_eq!(sum, u16::MAX, "the sum over the packet and its pseudo header");
        }
        // An Internet checksum at that place changes two bytes only.
        if is_crc && before.get(field + 2..end) != after.get(field + 2..end) {
            let mut zeroed = after[start..].to_vec();
            zeroed[field - start..end - start].fill(0);
            let crc = crc32c::finish(crc32c::add(crc32c::START, &zeroed));
            assert_eq!(after[field..end], crc.to_le_bytes());
        }
    }

    /// Checks that the segments have the payload in order, each with headers of the same length,
    /// and right lengths, numbers and checksums.
    fn check_cut(&self, frame: &[u8], segments: &[Vec<u8>]) {
        let (first, gso_size) = (segments[0].len(), usize::from(self.offload.gso_size));
        let headers = match segments.len() {
            // No header of TCP or UDP is longer; without its place nothing tells where the payload
            // begins.
            1 if self.offload.needs_checksum() => {
                first.min(usize::from(self.offload.csum_start) + 60)
            }
            1 => first,
            _ => first - gso_size,
        };
        let payload = segments.iter().flat_map(|segment| &segment[headers..]);
        assert!(payload.eq(&frame[headers..]));
        for (i, segment) in segments.iter().enumerate() {
            assert!(segment.len() <= first);
            if ipv4(frame).is_ok() {
                assert!(ipv4(segment).expect("its header is copied").checksum_ok());
            }
            if frame[12..15] == [8, 0, 0x45] {
                assert_eq!(usize::from(word(segment, 16)), segment.len() - 14);
            }
            let is_plain = self.offload.csum_start == offload::IPV4_TRANSPORT;
            if self.offload.needs_checksum() && is_plain && frame[12..15] == [8, 0, 0x45] {
                check_transport(frame, segment, i * gso_size);
            }
        }
    }
}

/// Checks the header of TCP or UDP after Ethernet and IPv4 in a segment whose payload begins at
/// `done` in its superframe.
fn check_transport(frame: &[u8], segment: &[u8], done: usize) {
    if let Ok(tcp) = tcp(segment) {
        assert!(tcp.checksum_ok());
        let number = |bytes: &[u8]| u32::from(word(bytes, 38)) << 16 | u32::from(word(bytes, 40));
        assert_eq!(number(segment), number(frame).wrapping_add(done as u32));
    }
    if let Ok(udp) = udp(segment) {
        assert!(udp.checksum_ok());
        assert_eq!(usize::from(word(segment, 38)), segment.len() - 34);
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn bytes_of(skb: &Skb) -> Vec<u8> {
    let mut bytes = vec![0; skb.len()];
    assert_eq!(skb.copy_to(0, &mut bytes), bytes.len());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::testing::{SUPERFRAME, ipv4};

    /// Returns the script of `frame` with `left`, as `kind` says.
    fn script(kind: u8, mtu_bytes: u16, left: Offload, frame: &[u8]) -> Vec<u8> {
        let mut script = vec![kind];
        script.extend(mtu_bytes.to_le_bytes());
        script.extend([left.flags, left.gso_type]);
        let words = [left.hdr_len, left.gso_size, left.csum_start, left.csum_offset];
        script.extend(words.into_iter().flat_map(u16::to_le_bytes));
        script.extend(frame);
        script
    }

    #[test]
    fn superframe_is_cut_for_a_device_without_offloads_and_given_whole_to_one_with_all() {
        let left = Offload { gso_size: 1000, ..SUPERFRAME };
        let sent = |kind| offloads(&script(kind, 1500, left, &ipv4(6, 2500)));
        assert_eq!([sent(0), sent(1), sent(0x78), sent(0x79)], [3, 3, 1, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]

        #[test]
        fn damaged_packet_is_sent_right_or_dropped(
            kind: u8,
            mtu: u16,
            protocol in prop::sample::select(vec![6, 17, 47, 132]),
            payload in 0..300_usize,
            gso_size in 1..300_u16,
            writes in prop::collection::vec((0..80_usize, any::<u8>()), 0..6),
        ) {
            let left = Offload { gso_size, ..SUPERFRAME };
            let mut script = script(kind, mtu, left, &ipv4(protocol, payload));
            for (at, value) in writes {
                if let Some(byte) = script.get_mut(at) {
                    *byte = value;
                }
            }
            offloads(&script);
        }
    }
}
