//! A check of the engine's packet order: a port numbers packets that it receives, and another
//! checks the numbers of those that it sends.
//!
//! The number of a packet stands in a table, at its frame: a packet keeps its frame from one port
//! to the other, and nobody else writes there meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linerate_port::QueueOps;
use linerate_port::wrap::{Layer, Wrapped};
use linerate_skb::{Batch, Local, Moved};

/// Most frames of a pool: the lower bits of a packet's handle are its frame's number.
const FRAMES: usize = 1 << 20;

/// The numbers of packets in flight, with the observed order; clones share both.
#[derive(Debug, Clone)]
pub(super) struct Sequence(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// For each frame, the number of its packet, from 1.
    numbers: Box<[AtomicU32]>,
    late: AtomicU64,
}

/// A queue's part in the check: the packets that it has received, and the newest packet that it was
/// given to send.
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

    /// Returns the number of packets so far that were sent after one that had been received later.
    pub fn late(&self) -> u64 {
        self.0.late.load(Ordering::Relaxed)
    }

    /// Wraps the check around a queue that exchanges packets with one other queue.
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
        // Read the numbers before the packets are sent: afterwards another packet may use the
        // frame.
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
