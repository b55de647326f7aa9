//! A queue in order of arrival, with a limit.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::account::Account;
use super::time::Clock;
use super::{Limit, Qdisc, QdiscCounts, first_with, least_bytes};

/// A queue that drops arriving packets when it is full: the kernel's pfifo and bfifo.
///
/// A port without a discipline also has such a queue, but does not drop: packets without room stay
/// in the ring of the input port.
#[derive(Debug)]
pub struct Fifo {
    packets: Batch,
    limit: Limit,
    account: Account,
    clock: Clock,
}

impl Fifo {
    /// Creates an empty queue, for at least one packet.
    #[must_use]
    pub fn new(limit: Limit) -> Fifo {
        let limit = limit.bounded();
        // Twice the space: a batch moves its packets to the start of its array when it reaches the
        // end. With twice the space that is rare for any queue length.
        let packets = Batch::with_capacity(2 * limit.packets);
        Fifo { packets, limit, account: Account::new(), clock: Clock::default() }
    }

    /// Returns the number of packets in the queue.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Moves the first packets of `batch`, at most `n`, that fit in the queue together; returns
    /// their number.
    fn take(&mut self, batch: &mut Batch, n: usize) -> usize {
        let n = n.min(self.room().packets);
        let bytes = self.room().bytes;
        let mut first = match bytes {
            // Packets without bytes still fit.
            0 => batch.count_first(batch.iter().take(n).take_while(|skb| skb.is_empty()).count()),
            _ => first_with(batch, n, bytes),
        };
        if first.bytes > bytes {
            // The last packet reaches the byte limit; if it exceeds the limit, it does not fit.
            first = batch.count_first(first.packets - 1);
        }
        batch.move_to(&mut self.packets, first.packets);
        self.account.take(first);
        first.packets
    }

    /// Drops the first packets of `batch`, at most `n`, that do not fit in the queue; returns their
    /// number.
    #[cold]
    fn refuse(&mut self, batch: &mut Batch, n: usize, mem: &mut Local) -> usize {
        let room = self.room();
        // A shorter packet may fit after one that exceeds the byte limit.
        let exceeds = |skb: &&Skb| room.packets == 0 || skb.len() as u64 > room.bytes;
        let over = batch.iter().take(n).take_while(exceeds).count();
        let over = batch.count_first(over);
        self.account.take(over);
        self.account.drop_first(batch, over, DropReason::QUEUE_LIMIT, mem);
        over.packets
    }

    /// Returns the packets and bytes that still fit.
    fn room(&self) -> Moved {
        let held = self.account.held();
        let packets = self.limit.packets - held.packets;
        Moved { packets, bytes: self.limit.bytes.saturating_sub(held.bytes) }
    }
}

impl Qdisc for Fifo {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        self.clock.read(now);
        let mut left = n.min(batch.len());
        left -= self.take(batch, left);
        while left > 0 {
            left -= self.refuse(batch, left, mem);
            left -= self.take(batch, left);
        }
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, _mem: &mut Local) -> Moved {
        self.clock.read(now);
        let n = most.packets.min(out.spare()).min(self.packets.len());
        let moved = first_with(&self.packets, n, most.bytes);
        self.packets.move_to(out, moved.packets);
        self.account.leave(moved);
        moved
    }

    fn deadline(&self) -> Option<Instant> {
        if self.packets.is_empty() { None } else { self.clock.last() }
    }

    fn is_full_for(&self, skb: &Skb) -> bool {
        let room = self.room();
        room.packets == 0 || room.bytes < least_bytes(skb)
    }

    fn counts(&self) -> QdiscCounts {
        self.account.counts()
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        let held = self.account.held();
        self.account.drop_first(&mut self.packets, held, reason, mem);
    }
}
