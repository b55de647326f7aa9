//! Boxed disciplines, so that one test runs all of them.

use super::*;

impl Qdisc for Box<dyn Qdisc> {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        (**self).enqueue(batch, n, now, mem);
    }
    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, mem: &mut Local) -> Moved {
        (**self).dequeue(out, most, now, mem)
    }
    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }
    fn latest(&self) -> Option<Instant> {
        (**self).latest()
    }
    fn is_full_for(&self, skb: &Skb) -> bool {
        (**self).is_full_for(skb)
    }
    fn counts(&self) -> QdiscCounts {
        (**self).counts()
    }
    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        (**self).purge(reason, mem);
    }
    fn rate(&self) -> Option<BitRate> {
        (**self).rate()
    }
    fn change_rate(&mut self, rate: BitRate, now: Instant) -> bool {
        (**self).change_rate(rate, now)
    }
}
