//! The counts of a discipline, and its dropped packets until they are freed.

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::QdiscCounts;

/// Number of dropped packets that are gathered before they are freed together.
const DROPS: usize = 64;

/// The counts of a discipline, and the packets that it has dropped, gathered so that they are freed
/// in bulk.
#[derive(Debug)]
pub(super) struct Account {
    counts: QdiscCounts,
    drops: Batch,
    reason: DropReason,
}

impl Account {
    pub fn new() -> Account {
        let drops = Batch::with_capacity(DROPS);
        Account { counts: QdiscCounts::default(), drops, reason: DropReason::QUEUE_LIMIT }
    }

    /// Returns the counts.
    pub fn counts(&self) -> QdiscCounts {
        self.counts
    }

    /// Returns the number and bytes of the packets that the discipline holds.
    pub fn held(&self) -> Moved {
        self.counts.queued
    }

    /// Counts packets that were enqueued.
    pub fn take(&mut self, came: Moved) {
        self.counts.enqueued += came;
        self.counts.queued += came;
    }

    /// Counts packets that leave for the port.
    pub fn leave(&mut self, went: Moved) {
        self.counts.dequeued += went;
        self.release(went);
    }

    /// Counts a packet that was marked (ECN) instead of dropped.
    pub fn mark(&mut self) {
        self.counts.marked += 1;
    }

    /// Counts a flow that was evicted.
    pub fn evict(&mut self) {
        self.counts.evicted += 1;
    }

    /// Drops a packet of `bytes`: frees it now, or together with later ones.
    pub fn drop(&mut self, skb: Skb, bytes: u64, reason: DropReason, mem: &mut Local) {
        if self.reason != reason || self.drops.spare() == 0 {
            self.settle(mem);
            self.reason = reason;
        }
        self.count_drops(Moved { packets: 1, bytes });
        // There is room: a full batch was freed above.
        let _ = self.drops.push(skb);
    }

    /// Drops the first packets of `batch`; `first` gives their number and bytes.
    pub fn drop_first(
        &mut self,
        batch: &mut Batch,
        first: Moved,
        reason: DropReason,
        mem: &mut Local,
    ) {
        self.count_drops(first);
        batch.discard_first(first.packets, reason, mem);
    }

    /// Frees the dropped packets; each call of a discipline that may drop packets ends with this
    /// call.
    pub fn settle(&mut self, mem: &mut Local) {
        self.drops.discard_first(self.drops.len(), self.reason, mem);
    }

    fn count_drops(&mut self, dropped: Moved) {
        self.counts.dropped += dropped;
        self.release(dropped);
    }

    fn release(&mut self, gone: Moved) {
        self.counts.queued.packets -= gone.packets;
        self.counts.queued.bytes -= gone.bytes;
    }
}
