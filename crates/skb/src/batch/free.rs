//! The end of a batch's packets: frees them in bulk as consumed, sent, dropped or unused, and
//! counts their bytes.

use crate::batch::Batch;
use crate::chain;
use crate::local::Local;
use crate::page::Fate;
use crate::reason::DropReason;
use crate::skb::Skb;
use crate::thread;
use crate::verdict::Moved;

impl<S> Batch<S> {
    fn end(&mut self, n: usize, fate: Fate) {
        let handles = self.take_raw(n);
        if !handles.is_empty() {
            thread::free_slow(handles, fate);
        }
    }

    /// Frees the packets as consumed.
    pub fn clear(&mut self) {
        self.end(self.len(), Fate::Consumed);
    }

    /// Frees the packets as consumed, and puts their frames on `mem`'s hot list.
    pub fn consume(&mut self, mem: &mut Local) {
        let n = self.len();
        mem.free_raw(self.take_raw(n), Fate::Consumed);
    }

    /// Frees the packets as dropped for `reason`.
    pub fn discard(&mut self, reason: DropReason) {
        self.end(self.len(), Fate::Dropped(reason));
    }

    /// Frees the first `n` packets as dropped for `reason`, and puts their frames on `mem`'s hot
    /// list.
    pub fn discard_first(&mut self, n: usize, reason: DropReason, mem: &mut Local) {
        mem.free_raw(self.take_raw(n), Fate::Dropped(reason));
    }

    /// Frees the first `n` packets as sent by a device that copied them, and puts their frames on
    /// `mem`'s hot list.
    pub fn sent(&mut self, n: usize, mem: &mut Local) -> Moved {
        let moved = self.count_first(n);
        mem.free_raw(self.take_raw(n), Fate::Sent);
        moved
    }

    /// Frees the first `n` packets as [`Batch::sent`] does; the caller has counted their bytes.
    pub fn free_sent(&mut self, n: usize, mem: &mut Local) {
        mem.free_raw(self.take_raw(n), Fate::Sent);
    }

    /// Returns the number of packets and bytes in the first `n` packets, or in all packets if the
    /// batch has fewer.
    #[must_use]
    pub fn count_first(&self, n: usize) -> Moved {
        let packets = n.min(self.len());
        Moved { packets, bytes: chain::bytes(&self.live()[..packets]) }
    }

    /// Returns the number of packets and bytes from packet number `start` on.
    #[must_use]
    pub fn count_from(&self, start: usize) -> Moved {
        let packets = self.live().get(start..).unwrap_or(&[]);
        Moved { packets: packets.len(), bytes: chain::bytes(packets) }
    }

    /// Calls `send` for each packet from the front until it returns false; frees the packets for
    /// which it returned true as sent, and returns their count and bytes.
    ///
    /// Shape:  batch[0..n) are freed as sent; the rest stays, in order.
    pub fn send_prefix(&mut self, mem: &mut Local, mut send: impl FnMut(&Skb<S>) -> bool) -> Moved {
        let n = self.iter().take_while(|skb| send(skb)).count();
        self.sent(n, mem)
    }

    /// Frees all packets behind the first `len` as unused: no packet counter includes them.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            let from = self.head + len;
            let unused = &self.slots[from..self.tail];
            self.tail = from;
            thread::free_slow(unused, Fate::Unused);
        }
    }

    /// Truncates the batch as [`Batch::truncate`] does, and puts the frames on `mem`'s hot list.
    pub fn truncate_to(&mut self, len: usize, mem: &mut Local) {
        if len < self.len() {
            let from = self.head + len;
            let unused = &self.slots[from..self.tail];
            self.tail = from;
            mem.free_raw(unused, Fate::Unused);
        }
    }
}
