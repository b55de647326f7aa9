//! Three bands by priority, as the kernel's pfifo_fast.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::{Fifo, Limit, Qdisc, QdiscCounts};

/// Number of bands; the first band is served first.
const BANDS: usize = 3;
/// The band of each priority, 0 to 15.
///
/// Source: Linux net/sched/sch_generic.c, sch_default_prio2band.
const BAND_OF: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three bands: the second is served only while the first is empty, and the third only while both
/// are empty.
///
/// [`Skb::priority`](linerate_skb::Skb::priority) determines the band: priorities 6 and 7
/// (interactive, control) are in the first, 1, 2, 3 and 5 (filler, bulk) in the last, all others in
/// the second. Only the low four bits count.
///
/// All packets have priority 0 unless a stage sets it, because nothing reads it from the DSCP:
/// without such a stage they leave in order, as from a [`Fifo`].
#[derive(Debug)]
pub struct PfifoFast {
    bands: [Fifo; BANDS],
}

impl PfifoFast {
    /// Creates empty bands; each band has the limit `limit`, so that bulk traffic leaves room for
    /// the others.
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

    fn is_full_for(&self, skb: &Skb) -> bool {
        self.bands[band(skb.priority())].is_full_for(skb)
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
