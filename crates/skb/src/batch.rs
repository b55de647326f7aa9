//! The batch: packets in order, which all functions above the rings take and return together.
//!
//! ```text
//!  slots   [ taken | live .................. | free ]     verdicts beside them, one byte each
//!                   head                tail
//! ```
//!
//! A transmit that takes a prefix moves `head`; nothing is copied. The batch never grows: a packet
//! that does not fit stays with the caller.

mod free;
mod iter;
mod retain;

use std::marker::PhantomData;

pub use iter::{BatchIter, BatchIterMut};

use crate::chain;
use crate::handle::{Common, FLAG};
use crate::skb::{Skb, Unique};
use crate::umem::Umem;
use crate::verdict::Verdict;

/// A list of packets in order, with a fixed capacity.
///
/// Dropping a batch frees its packets as *consumed*, in bulk.
pub struct Batch<S = Unique> {
    slots: Box<[u32]>,
    verdicts: Box<[Verdict]>,
    head: usize,
    tail: usize,
    state: PhantomData<fn() -> S>,
}

impl<S> Batch<S> {
    /// Returns an empty batch with room for `packets`; 0 counts as 1.
    #[must_use]
    pub fn with_capacity(packets: usize) -> Batch<S> {
        let n = packets.max(1);
        Batch {
            slots: vec![0; n].into_boxed_slice(),
            verdicts: vec![Verdict::NONE; n].into_boxed_slice(),
            head: 0,
            tail: 0,
            state: PhantomData,
        }
    }

    /// Returns the number of packets in the batch.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Returns true if the batch has no packets.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns the number of packets that the batch can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of packets that still fit.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Returns the packets' handles, in order.
    fn live(&self) -> &[u32] {
        &self.slots[self.head..self.tail]
    }

    /// Moves the unused slots, so that they follow the used ones.
    ///
    /// Not inlined, because its callers rarely need it.
    #[cold]
    fn compact(&mut self) {
        if self.head > 0 {
            self.slots.copy_within(self.head..self.tail, 0);
            self.verdicts.copy_within(self.head..self.tail, 0);
            (self.head, self.tail) = (0, self.len());
        }
    }

    /// Appends handles, without a verdict.
    ///
    /// # Safety
    /// Each handle is owned by the caller, who gives it up, and in the state of this batch; there
    /// are at most [`Batch::spare`].
    pub(crate) unsafe fn extend_raw(&mut self, handles: &[u32]) {
        if self.tail + handles.len() > self.capacity() {
            self.compact();
        }
        let end = self.tail + handles.len();
        self.slots[self.tail..end].copy_from_slice(handles);
        self.verdicts[self.tail..end].fill(Verdict::NONE);
        self.tail = end;
    }

    /// Lets `fill` write the handles of `n` more packets, without a verdict; returns false, and
    /// adds nothing, if `fill` returns false.
    ///
    /// # Safety
    /// If `fill` returns true it has written a handle to each slot as [`Batch::extend_raw`] asks
    /// for; `n` is at most [`Batch::spare`].
    #[inline]
    pub(crate) unsafe fn fill(&mut self, n: usize, fill: impl FnOnce(&mut [u32]) -> bool) -> bool {
        if self.tail + n > self.capacity() {
            self.compact();
        }
        let end = self.tail + n;
        if !fill(&mut self.slots[self.tail..end]) {
            return false;
        }
        Verdict::forget(&mut self.verdicts[self.tail..end]);
        self.tail = end;
        true
    }

    /// Flags the handle at `index`, so that freeing the packet reads its meta line; returns the
    /// handle, if there is one.
    pub(crate) fn flag(&mut self, index: usize) -> Option<u32> {
        let handle = self.slots[self.head..self.tail].get_mut(index)?;
        *handle |= FLAG;
        Some(*handle)
    }

    /// Takes the first `n` handles out of the batch, for the caller to own.
    fn take_raw(&mut self, n: usize) -> &[u32] {
        let from = self.head;
        self.head += n.min(self.len());
        let end = self.head;
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        &self.slots[from..end]
    }

    /// Appends a packet to the batch; returns it if the batch is full.
    ///
    /// # Errors
    /// Hands it back if the batch is full.
    #[inline]
    pub fn push(&mut self, skb: Skb<S>) -> Result<(), Skb<S>> {
        if self.tail == self.capacity() {
            if self.head == 0 {
                return Err(skb);
            }
            self.compact();
        }
        self.slots[self.tail] = skb.into_raw();
        self.verdicts[self.tail] = Verdict::NONE;
        self.tail += 1;
        Ok(())
    }

    /// Removes and returns the first packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Skb<S>> {
        let handle = *self.take_raw(1).first()?;
        // SAFETY: the slot is no longer live, so the handle is owned once.
        Some(unsafe { Skb::from_raw(handle) })
    }

    /// Returns an iterator that removes packets from the front; packets that it did not return stay
    /// in the batch.
    pub fn drain(&mut self) -> Drain<'_, S> {
        Drain { batch: self }
    }

    /// Returns an iterator over the packets; `for skb in &batch` uses it.
    pub fn iter(&self) -> BatchIter<'_, S> {
        BatchIter::of(self.live())
    }

    /// Returns an iterator over the packets that may change them; `for skb in &mut batch` uses it.
    pub fn iter_mut(&mut self) -> BatchIterMut<'_, S> {
        BatchIterMut::of(&mut self.slots[self.head..self.tail])
    }

    /// Moves the first `n` packets, with their verdicts, to the end of `to`; returns how many fit.
    pub fn move_to(&mut self, to: &mut Batch<S>, n: usize) -> usize {
        let n = n.min(self.len()).min(to.spare());
        if to.tail + n > to.capacity() {
            to.compact();
        }
        to.slots[to.tail..to.tail + n].copy_from_slice(&self.slots[self.head..self.head + n]);
        to.verdicts[to.tail..to.tail + n].copy_from_slice(&self.verdicts[self.head..self.head + n]);
        to.tail += n;
        self.take_raw(n);
        n
    }

    /// Sets the verdict of every packet to `verdict`.
    pub fn set_verdicts(&mut self, verdict: Verdict) {
        self.verdicts[self.head..self.tail].fill(verdict);
    }

    /// Sets the verdict of the packet at `index`; does nothing if the batch has no such packet.
    pub fn set_verdict(&mut self, index: usize, verdict: Verdict) {
        if index < self.len() {
            self.verdicts[self.head + index] = verdict;
        }
    }

    /// Returns the verdict of the packet at `index`.
    #[must_use]
    pub fn verdict(&self, index: usize) -> Verdict {
        if index < self.len() { self.verdicts[self.head + index] } else { Verdict::NONE }
    }

    /// Returns the first packet's verdict, and how many packets in a row have it; `None` if empty.
    #[must_use]
    pub fn run(&self) -> Option<(Verdict, usize)> {
        let verdicts = &self.verdicts[self.head..self.tail];
        let first = *verdicts.first()?;
        // Compare 16 verdicts at a time without a branch for each: usually all packets have one
        // verdict.
        let (groups, _) = verdicts.as_chunks::<16>();
        let same = |group: &&[Verdict; 16]| group.iter().fold(true, |all, v| all & (*v == first));
        let n = 16 * groups.iter().take_while(same).count();
        Some((first, n + verdicts[n..].iter().take_while(|v| **v == first).count()))
    }

    /// Returns the packets' handles, for a ring between two owners in this process.
    #[must_use]
    pub fn handles(&self) -> &[u32] {
        self.live()
    }

    /// Drops the first `n` handles from the batch, because a ring holds them now.
    ///
    /// # Safety
    /// Each of the first `n` of [`Batch::handles`] was put where it is freed, or where
    /// [`Batch::adopt`] takes it from, at most once. One that is never taken is leaked, with its
    /// frame.
    pub unsafe fn took(&mut self, n: usize) {
        self.take_raw(n);
    }

    /// Appends packets whose handles come from a ring.
    ///
    /// # Safety
    /// Each handle was given up by [`Batch::took`] of a batch in the same state, has no other
    /// owner, and there are at most [`Batch::spare`].
    pub unsafe fn adopt(&mut self, handles: &[u32]) {
        // SAFETY: this function's caller guarantees what `extend_raw` requires.
        unsafe { self.extend_raw(handles) }
    }
}

impl Batch<Unique> {
    /// Adds `bytes` of the tailroom to the data of each packet from number `start` on, as
    /// [`Skb::commit`] does for one packet.
    ///
    /// Cost: the umem is looked up once, if it is one.
    pub fn commit_from(&mut self, start: usize, bytes: usize) {
        let handles = self.live().get(start..).unwrap_or(&[]);
        let common = Common::of(handles);
        match common.umem() {
            Some(id) if !common.flagged() => chain::commit(Umem::numbered(id), handles, bytes),
            _ => self.iter_mut().skip(start).for_each(|skb| skb.commit(bytes)),
        }
    }
}

impl<S> Drop for Batch<S> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<S> std::fmt::Debug for Batch<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// An iterator that removes packets from the front of a batch.
#[derive(Debug)]
#[must_use = "packets that it does not return stay in the batch"]
pub struct Drain<'a, S = Unique> {
    batch: &'a mut Batch<S>,
}

impl<S> Iterator for Drain<'_, S> {
    type Item = Skb<S>;

    #[inline]
    fn next(&mut self) -> Option<Skb<S>> {
        let batch = &mut *self.batch;
        if batch.head == batch.tail {
            (batch.head, batch.tail) = (0, 0);
            return None;
        }
        let handle = *batch.slots.get(batch.head)?;
        batch.head += 1;
        // SAFETY: the slot is no longer live, so the handle is owned once.
        Some(unsafe { Skb::from_raw(handle) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.batch.len(), Some(self.batch.len()))
    }
}

impl<S> ExactSizeIterator for Drain<'_, S> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, Local, Pool};

    pub(super) fn numbered(n: usize, capacity: usize) -> (Pool, Local, Batch) {
        let pool = Pool::builder().frames(256).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(capacity);
        assert_eq!(mem.alloc(&mut batch, n), n);
        for (i, skb) in batch.iter_mut().enumerate() {
            assert!(skb.put_slice(&[i as u8]));
        }
        (pool, mem, batch)
    }

    pub(super) fn numbers(batch: &Batch) -> Vec<u8> {
        batch.iter().map(|skb| skb.data()[0]).collect()
    }

    #[test]
    fn a_full_batch_hands_the_packet_back() {
        let (_pool, mut mem, mut batch) = numbered(4, 4);
        let skb = mem.alloc_copy(b"x").unwrap();
        assert_eq!(batch.push(skb).unwrap_err().data(), b"x");
        assert_eq!(mem.alloc(&mut batch, 9), 0);
    }

    #[test]
    fn taking_a_prefix_keeps_order_and_frees_room() {
        let (_pool, mut mem, mut batch) = numbered(8, 8);
        let mut taken = 0;
        let n = batch.send_prefix(&mut mem, |_| {
            taken += 1;
            taken <= 5
        });
        assert_eq!((n.packets, n.bytes, numbers(&batch)), (5, 5, vec![5, 6, 7]));
        assert_eq!(mem.alloc(&mut batch, 9), 5);
        assert_eq!(batch.iter().take(3).map(|s| s.data()[0]).collect::<Vec<_>>(), [5, 6, 7]);
    }

    #[test]
    fn verdicts_travel_with_their_packets() {
        let (_pool, mut mem, mut batch) = numbered(6, 6);
        assert_eq!(batch.run(), Some((Verdict::NONE, 6)));
        batch.set_verdicts(Verdict::to(1));
        batch.set_verdict(4, Verdict::to(2));
        batch.retain(|skb| if skb.data()[0] == 2 { Err(DropReason::NO_ROUTE) } else { Ok(()) });
        assert_eq!(batch.run(), Some((Verdict::to(1), 3)));
        let mut out = Batch::with_capacity(3);
        assert_eq!(batch.move_to(&mut out, 3), 3);
        assert_eq!(batch.run(), Some((Verdict::to(2), 1)));
        assert_eq!(batch.move_to(&mut out, 1), 0);
        out.sent(3, &mut mem);
        assert_eq!(numbers(&batch), [4, 5]);
        assert_eq!(Verdict::to(128), Verdict::NONE);
    }

    #[test]
    fn truncated_packets_are_not_counted_as_created() {
        let (pool, mut mem, mut batch) = numbered(10, 10);
        batch.truncate(7);
        batch.truncate_to(5, &mut mem);
        batch.truncate(9);
        assert_eq!(numbers(&batch), [0, 1, 2, 3, 4]);
        let ledger = pool.ledger();
        assert_eq!((ledger.created, ledger.in_flight, ledger.consumed), (5, 5, 0));
    }

    #[test]
    fn committing_in_bulk_is_committing_one_by_one() {
        let (pool, mut mem, mut batch) = numbered(6, 16);
        let other = Pool::builder().frames(8).build().unwrap();
        let shared = batch.iter_mut().nth(3).unwrap().share();
        mem.alloc(&mut batch, 2);
        other.local().alloc(&mut batch, 1);
        for skip in [5, 7, 0] {
            let mut expected: Vec<usize> = batch.iter().map(|skb| skb.len()).collect();
            expected
                .iter_mut()
                .skip(skip)
                .for_each(|len| *len = (*len + 900).min(pool.data_room()));
            batch.commit_from(skip, 900);
            assert_eq!(batch.iter().map(|skb| skb.len()).collect::<Vec<_>>(), expected);
            assert_eq!(batch.count_from(2).bytes, expected[2..].iter().sum::<usize>() as u64);
        }
        assert_eq!(shared.len(), 1);
    }

    #[test]
    fn undrained_packets_stay_in_the_batch() {
        let (_pool, _mem, mut batch) = numbered(4, 4);
        assert_eq!(batch.drain().take(2).map(|s| s.data()[0]).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(numbers(&batch), [2, 3]);
    }

    #[test]
    fn a_packet_that_comes_into_a_used_slot_has_no_verdict() {
        let (_pool, mut mem, mut batch) = numbered(3, 3);
        batch.set_verdicts(Verdict::to(1));
        batch.consume(&mut mem);
        assert!(batch.push(mem.alloc_copy(b"pushed").unwrap()).is_ok());
        let mut ring = Batch::with_capacity(2);
        assert_eq!(mem.alloc(&mut ring, 2), 2);
        let handles = ring.handles().to_vec();
        // SAFETY: the handles are adopted next, once.
        unsafe {
            ring.took(2);
            batch.adopt(&handles);
        }
        assert_eq!(batch.run(), Some((Verdict::NONE, 3)));
    }

    #[test]
    fn verdicts_move_with_packets_that_make_room() {
        let (_pool, mut mem, mut batch) = numbered(4, 4);
        (0..4).for_each(|i| batch.set_verdict(i, Verdict::to(i)));
        batch.sent(2, &mut mem);
        assert!(batch.push(mem.alloc_copy(b"new").unwrap()).is_ok());
        let verdicts = [0, 1, 2].map(|i| batch.verdict(i).output());
        assert_eq!(verdicts, [Some(2), Some(3), None]);
    }

    #[test]
    fn a_run_ends_with_the_first_other_verdict_though_more_of_its_own_follow() {
        let (_pool, mut mem, mut batch) = numbered(64, 64);
        batch.set_verdicts(Verdict::to(1));
        (20..40).for_each(|i| batch.set_verdict(i, Verdict::to(2)));
        for (skip, verdict, n) in [(0, 1, 20), (20, 2, 20), (20, 1, 24)] {
            batch.sent(skip, &mut mem);
            assert_eq!(batch.run(), Some((Verdict::to(verdict), n)));
        }
    }
}
