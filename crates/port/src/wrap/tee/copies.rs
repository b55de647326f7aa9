//! The bounded queue of copies between a path and the writer: a ring of bytes with a record for
//! each packet.
//!
//! ```text
//!  capture │ time_ns, high │ low │ orig_len │ len, and which way │ bytes …      words of 32 bits
//! ```
//!
//! Records of a call are put together first and pushed at once, so the reader finds whole records
//! only. One for which there is no place ends the copying of its call: the rest is left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate_ring::{Consumer, Heap, Producer, RingError, heap};
use linerate_skb::{Skb, Vlan};
use linerate_wire::VLAN_BYTES;

use crate::host::offload::TAG_AT;

/// Bytes of a record that precede the packet.
pub(super) const HEADER_BYTES: usize = 20;
/// Initial size of the buffer in which the copies of a call are collected.
const STAGE_BYTES: usize = 64 << 10;
/// The bit of a record's length that marks a sent packet.
const TX: u32 = 1 << 31;

/// Creates both ends of the queue of copies of `name`; `bytes` is a power of two.
pub(super) fn queue(
    name: &str,
    bytes: usize,
    snaplen_bytes: usize,
) -> Result<(Copies, Inbox), RingError> {
    let (ring, records) = heap(u32::try_from(bytes).unwrap_or(u32::MAX))?;
    let gone = Arc::new(AtomicBool::new(false));
    let staged = Vec::with_capacity(STAGE_BYTES.min(bytes));
    let copies = Copies { ring, staged, ends: Vec::new(), snaplen_bytes, gone: gone.clone() };
    let name = name.chars().take(63).collect();
    Ok((copies, Inbox { records, name, gone, interface: None }))
}

/// The path's end of the queue, which adds copies.
pub(super) struct Copies {
    ring: Producer<Heap<u8>>,
    /// Records of the current call, not published yet.
    staged: Vec<u8>,
    /// The end of each staged record.
    ends: Vec<usize>,
    snaplen_bytes: usize,
    gone: Arc<AtomicBool>,
}

/// Counts of the packets that a call copied, and of those that found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyCounts {
    pub copied: u64,
    pub dropped: u64,
}

impl Copies {
    /// Copies packets, as many as have room, without publishing the copies.
    ///
    /// What a device has stamped it received at its own time; others have that of the call.
    pub fn stage<'a>(
        &mut self,
        capture: u32,
        way: Way,
        now_ns: u64,
        packets: impl Iterator<Item = &'a Skb>,
    ) {
        self.staged.clear();
        self.ends.clear();
        let room = self.ring.free() as usize;
        for skb in packets {
            let tag = skb.vlan().filter(|_| skb.len() >= TAG_AT);
            let (start, len) = (self.staged.len(), skb.len() + tag.map_or(0, |_| VLAN_BYTES));
            let body = len.min(self.snaplen_bytes);
            if start + HEADER_BYTES + body > room {
                break;
            }
            let (stamp, bit) = match way {
                Way::Rx => (skb.stamp_ns(), 0),
                Way::Tx => (None, TX),
            };
            let orig_len = u32::try_from(len).unwrap_or(u32::MAX);
            let orig_len = orig_len.saturating_add(skb.snapped_bytes());
            let time_ns = stamp.unwrap_or(now_ns);
            let len_and_way = body as u32 | bit; // at most 256 KiB
            let words = [capture, (time_ns >> 32) as u32, time_ns as u32, orig_len, len_and_way];
            words.iter().for_each(|word| self.staged.extend(word.to_ne_bytes()));
            self.staged.resize(start + HEADER_BYTES + body, 0);
            let to = &mut self.staged[start + HEADER_BYTES..];
            match tag {
                None => _ = skb.copy_to(0, to),
                Some(tag) => copy_tagged(skb, tag, to),
            }
            self.ends.push(self.staged.len());
        }
    }

    /// Publishes the copies of the first `packets` staged packets, and discards the others, which
    /// were not sent.
    pub fn publish(&mut self, packets: usize) -> CopyCounts {
        let copied = packets.min(self.ends.len());
        let end = self.ends[..copied].last().copied().unwrap_or(0);
        let pushed = self.ring.push_slice(&self.staged[..end]);
        debug_assert_eq!(pushed, end, "the room was there, and no other thread fills it");
        CopyCounts { copied: copied as u64, dropped: (packets - copied) as u64 }
    }
}

/// Copies a packet whose VLAN tag is in the metadata, with the tag in its place, as tcpdump shows
/// it.
#[cold]
fn copy_tagged(skb: &Skb, tag: Vlan, to: &mut [u8]) {
    let (macs, rest) = to.split_at_mut(to.len().min(TAG_AT));
    skb.copy_to(0, macs);
    let (place, rest) = rest.split_at_mut(rest.len().min(VLAN_BYTES));
    place.copy_from_slice(&tag.bytes()[..place.len()]);
    skb.copy_to(TAG_AT, rest);
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

/// A packet's direction, from the program's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Received from the device.
    Rx,
    /// Sent to the device.
    Tx,
}

/// A copy of a packet, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    pub capture: u32,
    pub time_ns: u64,
    pub orig_len: u32,
    pub way: Way,
}

/// The writer's end of the queue, which takes copies out.
pub(super) struct Inbox {
    records: Consumer<Heap<u8>>,
    pub name: String,
    gone: Arc<AtomicBool>,
    /// The queue's interface in the capture file: the number of the capture, and the number of the
    /// interface in it.
    pub interface: Option<(u32, u32)>,
}

impl Inbox {
    /// Returns the number of bytes of the waiting records.
    pub fn waiting_bytes(&mut self) -> usize {
        self.records.available() as usize
    }

    /// Returns true if the other end was dropped.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns true if the other end was dropped and no copy is left.
    pub fn is_over(&mut self) -> bool {
        // Check `is_gone` first: copies that the path published before it ended are then visible.
        self.is_gone() && self.waiting_bytes() == 0
    }

    /// Removes the copies that wait at the start of the call, by way of `scratch`; returns their
    /// number.
    pub fn discard(&mut self, scratch: &mut Vec<u8>) -> u64 {
        let (mut left, mut copies) = (self.waiting_bytes(), 0);
        while left > 0
            && let Some((_, bytes)) = self.next(scratch)
        {
            left = left.saturating_sub(bytes);
            copies += 1;
        }
        copies
    }

    /// Returns the next copy, with its bytes in `to`, and the length of its record.
    pub fn next(&mut self, to: &mut Vec<u8>) -> Option<(Copied, usize)> {
        let mut header = [0; HEADER_BYTES];
        if self.records.pop_slice(&mut header) < HEADER_BYTES {
            return None;
        }
        let (words, _) = header.as_chunks::<4>();
        let word = |i: usize| u32::from_ne_bytes(words[i]);
        let time_ns = u64::from(word(1)) << 32 | u64::from(word(2));
        let len = (word(4) & !TX) as usize;
        to.resize(len, 0);
        let got = self.records.pop_slice(to);
        debug_assert_eq!(got, len, "records are pushed whole");
        let way = if word(4) & TX == 0 { Way::Rx } else { Way::Tx };
        let copy = Copied { capture: word(0), time_ns, orig_len: word(3), way };
        Some((copy, HEADER_BYTES + len))
    }
}
