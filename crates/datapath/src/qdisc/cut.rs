//! Superframes in front of a rate: cut into their segments where one would take long.
//!
//! ```text
//!   superframe ─┬─ takes a short time ──────────────────► whole
//!               ├─ takes longer ─► cut ─────────────────► segments, which are ordered and timed as packets
//!               └─ cannot be cut, or no frames for all ─► whole
//! ```
//!
//! At 10 Mbit/s a superframe of 64 KiB takes 52 ms, and a packet of another flow would wait for all
//! of it. It is cut before the inner discipline takes it: cut later, it would have got the turns of
//! 46 packets at once.
//!
//! Source: Linux net/sched/sch_tbf.c `tbf_segment`, net/sched/sch_cake.c `cake_enqueue`.

use linerate_port::segment::{self, SEGMENTS_MAX};
use linerate_skb::{Batch, Local, Skb};

/// Length in bytes of the longest segment that is made: a longer one is nearly as long as the
/// longest superframe.
const SEGMENT_BYTES_MAX: usize = 1 << 16;

/// The cutting of a discipline's superframes, with its memory.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Bytes of all its segments up to which a superframe stays whole.
    whole_bytes: u64,
    /// Length in bytes of the longest segment.
    segment_bytes: usize,
    scratch: Vec<u8>,
    segments: Batch,
    /// The superframe that was cut, until it is freed.
    done: Batch,
}

impl Cuts {
    /// Creates the memory for cutting superframes of more than `whole_bytes` into segments of at
    /// most `burst_bytes`.
    pub fn new(whole_bytes: u64, burst_bytes: u64) -> Cuts {
        let segment_bytes = burst_bytes.min(SEGMENT_BYTES_MAX as u64) as usize;
        Cuts {
            whole_bytes,
            segment_bytes,
            scratch: Vec::with_capacity(segment_bytes),
            segments: Batch::with_capacity(SEGMENTS_MAX),
            done: Batch::with_capacity(1),
        }
    }

    /// Changes both limits, for superframes that are cut from now on.
    pub fn set_limits(&mut self, whole_bytes: u64, burst_bytes: u64) {
        self.whole_bytes = whole_bytes;
        self.segment_bytes = burst_bytes.min(SEGMENT_BYTES_MAX as u64) as usize;
        self.scratch.clear();
        self.scratch.reserve(self.segment_bytes);
    }

    /// Takes the first packet of `batch` if it is a superframe that is cut, and returns its
    /// segments, for the caller to take. Returns `None`, and takes nothing, if the packet is no
    /// superframe or stays whole.
    ///
    /// A superframe whose segments are longer than a burst stays whole, because such segments would
    /// be dropped.
    ///
    /// Cost: that of [`segment::cut`], also for segments that the discipline then drops.
    pub fn cut_first(&mut self, batch: &mut Batch, mem: &mut Local) -> Option<&mut Batch> {
        let is_long =
            |skb: &&Skb| skb.offload().is_gso() && segment::wire_bytes(skb) > self.whole_bytes;
        let skb = batch.iter().next().filter(is_long)?;
        if !segment::cut(skb, self.segment_bytes, mem, &mut self.scratch, &mut self.segments) {
            return None;
        }
        batch.move_to(&mut self.done, 1);
        self.done.consume(mem);
        Some(&mut self.segments)
    }
}
