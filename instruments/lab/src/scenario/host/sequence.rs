//! A check of the engine's order: packets are numbered where a port receives them, and looked at where another
//! one sends them.
//!
//! The number of a packet stands in a table, at its frame: a packet keeps its frame from one port to the other,
//! and nobody else writes there meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linerate_port::QueueOps;
use linerate_port::wrap::{Layer, Wrapped};
use linerate_skb::{Batch, Local, Moved};

/// Frames of a pool, at most: the lower bits of a packet's handle are its frame's number.
const FRAMES: usize = 1 << 20;

/// The numbers of packets under way, and what was seen of their order; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Sequence(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// By frame: the number of its packet, from 1.
    numbers: Box<[AtomicU32]>,
    late: AtomicU64,
}

/// One queue's part in it: what it has received, and the newest packet that it was given to send.
struct Checked {
    sequence: Sequence,
    received: u32,
    newest: u32,
}

impl Sequence {
    /// Creates a table for packets of one pool.
    pub fn new() -> Sequence {
        let numbers = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
        Sequence(Arc::new(Shared { numbers, late: AtomicU64::new(0) }))
    }

    /// Returns the packets so far that were sent after one that had come later.
    pub fn late(&self) -> u64 {
        self.0.late.load(Ordering::Relaxed)
    }

    /// Puts the check around a queue that exchanges packets with one other.
    pub fn around(&self, ops: Box<dyn QueueOps>) -> Box<dyn QueueOps> {
        Box::new(Wrapped::around(ops, Checked { sequence: self.clone(), received: 0, newest: 0 }))
    }

    fn at(&self, handle: u32) -> &AtomicU32 {
        &self.0.numbers[handle as usize % FRAMES]
    }
}

impl Layer for Checked {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let before = out.len();
        let moved = below.rx(mem, out, budget);
        for handle in out.handles().get(before..).unwrap_or_default() {
            self.received = self.received.wrapping_add(1);
            self.sequence.at(*handle).store(self.received, Ordering::Relaxed);
        }
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        // Before it is sent: a frame that comes back is another packet's.
        let numbers = batch.handles().iter().map(|handle| self.sequence.at(*handle));
        let numbers: Vec<u32> = numbers.map(|number| number.load(Ordering::Relaxed)).collect();
        let moved = below.xmit(mem, batch);
        for number in numbers.into_iter().take(moved.packets) {
            if number.wrapping_sub(self.newest).cast_signed() < 0 {
                self.sequence.0.late.fetch_add(1, Ordering::Relaxed);
            } else {
                self.newest = number;
            }
        }
        moved
    }
}
