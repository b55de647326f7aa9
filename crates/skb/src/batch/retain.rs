//! Selection of a batch's packets: some are kept, and the others are dropped, each for a reason.
//!
//! ```text
//!  slots   [ kept ...... | gap | not yet seen .... ]     rejects beside them, freed a run at a time
//!           head          kept  next          tail
//! ```

use crate::batch::Batch;
use crate::page::Fate;
use crate::reason::DropReason;
use crate::skb::Skb;
use crate::thread;
use crate::verdict::Verdict;

impl<S> Batch<S> {
    /// Keeps the packets for which `keep` returns `Ok`; drops every other packet for the reason in
    /// the error.
    ///
    /// Cost: rejects are freed in bulk, a run of equal reasons at a time.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Skb<S>) -> Result<(), DropReason>) {
        self.sift(|skb, _verdict| keep(skb));
    }

    /// Sets the verdict of each packet to the one that `decide` returns; drops packets for which it
    /// returns an error, for the reason in the error. [`Verdict::NONE`] leaves a packet to later
    /// stages.
    ///
    /// Cost: as [`Batch::retain`].
    #[inline]
    pub fn decide(&mut self, mut decide: impl FnMut(&mut Skb<S>) -> Result<Verdict, DropReason>) {
        self.sift(|skb, verdict| {
            *verdict = decide(skb)?;
            Ok(())
        });
    }

    #[inline]
    fn sift(&mut self, mut keep: impl FnMut(&mut Skb<S>, &mut Verdict) -> Result<(), DropReason>) {
        let mut kept = self.head;
        let mut rejects = Rejects { handles: [0; 64], n: 0, reason: DropReason::NO_ROUTE };
        // While `keep` runs, the live slots are [head, kept) and [i, tail). If it panics, no slot
        // between these may be live, so `Gap` closes the gap before the panic goes on.
        let mut gap = Gap { batch: self, kept, next: kept };
        while gap.next < gap.batch.tail {
            let i = gap.next;
            // SAFETY: slot i is live; see `iter_mut`.
            let skb = unsafe { &mut *std::ptr::from_mut(&mut gap.batch.slots[i]).cast::<Skb<S>>() };
            let kept_it = keep(skb, &mut gap.batch.verdicts[i]);
            gap.next = i + 1;
            match kept_it {
                Ok(()) => {
                    gap.batch.slots[kept] = gap.batch.slots[i];
                    gap.batch.verdicts[kept] = gap.batch.verdicts[i];
                    kept += 1;
                    gap.kept = kept;
                }
                Err(reason) => rejects.add(gap.batch.slots[i], reason),
            }
        }
        drop(gap);
        rejects.free();
    }
}

/// A guard that closes the gap between kept and unvisited packets, also when `retain`'s closure
/// panics.
struct Gap<'a, S> {
    batch: &'a mut Batch<S>,
    kept: usize,
    next: usize,
}

impl<S> Drop for Gap<'_, S> {
    fn drop(&mut self) {
        let (next, tail) = (self.next, self.batch.tail);
        self.batch.slots.copy_within(next..tail, self.kept);
        self.batch.verdicts.copy_within(next..tail, self.kept);
        self.batch.tail = self.kept + (tail - next);
    }
}

/// Rejected packets, collected so that they are freed in runs.
struct Rejects {
    handles: [u32; 64],
    n: usize,
    reason: DropReason,
}

impl Rejects {
    fn add(&mut self, handle: u32, reason: DropReason) {
        if self.n == self.handles.len() || (self.n > 0 && self.reason.index() != reason.index()) {
            self.free();
        }
        self.reason = reason;
        self.handles[self.n] = handle;
        self.n += 1;
    }

    fn free(&mut self) {
        let n = std::mem::take(&mut self.n);
        if n > 0 {
            thread::free_slow(&self.handles[..n], Fate::Dropped(self.reason));
        }
    }
}

impl Drop for Rejects {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::{numbered, numbers};

    #[test]
    fn retain_keeps_order_and_frees_the_rest() {
        let (pool, _mem, mut batch) = numbered(200, 200);
        batch.retain(|skb| match skb.data()[0] % 3 {
            0 => Ok(()),
            1 => Err(DropReason::MALFORMED),
            _ => Err(DropReason::NO_ROUTE),
        });
        assert_eq!(numbers(&batch), (0..200).step_by(3).map(|i| i as u8).collect::<Vec<_>>());
        let ledger = pool.ledger();
        assert_eq!(ledger.dropped(DropReason::MALFORMED), 67);
        assert_eq!(ledger.dropped(DropReason::NO_ROUTE), 66);
        assert_eq!((ledger.in_flight, ledger.difference()), (67, 0));
    }

    #[test]
    fn a_panic_in_retain_loses_nothing() {
        let (pool, _mem, mut batch) = numbered(10, 10);
        (0..10).for_each(|i| batch.set_verdict(i, Verdict::to(i)));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            batch.retain(|skb| match skb.data()[0] {
                6 => panic!("stage"),
                i if i % 2 == 0 => Ok(()),
                _ => Err(DropReason::NO_ROUTE),
            });
        }));
        assert!(caught.is_err());
        assert_eq!(numbers(&batch), [0, 2, 4, 6, 7, 8, 9]);
        let verdicts = (0..7).map(|i| batch.verdict(i).output());
        assert!(verdicts.eq([0, 2, 4, 6, 7, 8, 9].map(Some)));
        let ledger = pool.ledger();
        assert_eq!((ledger.in_flight, ledger.difference()), (7, 0), "{ledger}");
    }

    #[test]
    fn decided_packets_go_where_the_closure_says() {
        let (pool, _mem, mut batch) = numbered(6, 6);
        batch.decide(|skb| match skb.data()[0] {
            4 => Ok(Verdict::NONE),
            5 => Err(DropReason::NO_ROUTE),
            i => Ok(Verdict::to(usize::from(i % 2))),
        });
        let verdicts: Vec<_> = (0..5).map(|i| batch.verdict(i).output()).collect();
        assert_eq!(verdicts, [Some(0), Some(1), Some(0), Some(1), None]);
        assert_eq!(
            (numbers(&batch), pool.ledger().dropped(DropReason::NO_ROUTE)),
            (vec![0, 1, 2, 3, 4], 1)
        );
    }
}
