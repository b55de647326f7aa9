//! Three bands by priority: the kernel's pfifo_fast.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved};

use super::{Fifo, Limit, Qdisc, QdiscCounts};

/// Bands, the first of which is served first.
const BANDS: usize = 3;
/// The band of each priority.
///
/// Source: Linux net/sched/sch_generic.c, sch_default_prio2band.
const BAND_OF: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three queues: the second is served only while the first is empty, and the third only while both
/// are.
///
/// [`Skb::priority`](linerate_skb::Skb::priority) says which: 6 and 7 (interactive, control) go first, 1, 2, 3
/// and 5 (filler, bulk) last, all others between. Only the low four bits count.
#[derive(Debug)]
pub struct PfifoFast {
    bands: [Fifo; BANDS],
}

impl PfifoFast {
    /// Creates empty queues; `limit` is that of each band, so that bulk traffic leaves room for the
    /// others.
    #[must_use]
    pub fn new(limit: Limit) -> PfifoFast {
        PfifoFast { bands: [(); BANDS].map(|()| Fifo::new(limit)) }
    }
}

/// Returns the band of a priority.
fn band(priority: u32) -> usize {
    usize::from(BAND_OF[priority as usize % BAND_OF.len()])
}

impl Qdisc for PfifoFast {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        let mut left = n.min(batch.len());
        while left > 0 {
            let mut bands = batch.iter().take(left).map(|skb| band(skb.priority()));
            let Some(first) = bands.next() else { return };
            let run = 1 + bands.take_while(|band| *band == first).count();
            self.bands[first].enqueue(batch, run, now, mem);
            left -= run;
        }
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, mem: &mut Local) -> Moved {
        let mut moved = Moved::default();
        for band in &mut self.bands {
            let packets = most.packets - moved.packets;
            let bytes = most.bytes.saturating_sub(moved.bytes);
            if packets == 0 || bytes == 0 {
                break;
            }
            moved += band.dequeue(out, Moved { packets, bytes }, now, mem);
            if band.len() > 0 {
                break;
            }
        }
        moved
    }

    fn deadline(&self) -> Option<Instant> {
        self.bands.iter().find_map(Fifo::deadline)
    }

    fn counts(&self) -> QdiscCounts {
        let mut sum = QdiscCounts::default();
        self.bands.iter().for_each(|band| sum += band.counts());
        sum
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        self.bands.iter_mut().for_each(|band| band.purge(reason, mem));
    }
}
