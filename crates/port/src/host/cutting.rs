//! A superframe on its way out as segments, where the device takes no more of them for a while.

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::segment::Cutter;

/// Segments made at once.
const STRIDE: usize = 64;

/// A superframe that is being cut, and segments of it that were not sent yet.
#[derive(Default)]
pub(crate) struct Cutting {
    under: Option<(Skb, Cutter)>,
    segments: Option<Batch>,
    scratch: Vec<u8>,
}

impl Cutting {
    /// True while there are segments to send.
    pub fn is_busy(&self) -> bool {
        self.under.is_some()
    }

    /// Takes the superframe out that is the first of `batch`, and returns what it becomes; one that cannot be
    /// cut is dropped with the reason.
    #[cold]
    pub fn begin(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let first = batch.iter().next().map(Cutter::of);
        let cutter = match first.unwrap_or(Err(DropReason::UNSUPPORTED)) {
            Ok(cutter) => cutter,
            Err(why) => {
                batch.discard_first(1, why, mem);
                return Moved::default();
            }
        };
        let all = cutter.all();
        self.under = batch.pop().map(|skb| (skb, cutter));
        all
    }

    /// Has `send` send segments from the front of a batch; true once all are gone, false if it left some or
    /// the pool had no frame.
    #[cold]
    pub fn send(&mut self, mem: &mut Local, mut send: impl FnMut(&mut Local, &mut Batch)) -> bool {
        let segments = self.segments.get_or_insert_with(|| Batch::with_capacity(STRIDE));
        while let Some((skb, cutter)) = &mut self.under {
            let ended = cutter.cut(skb, mem, &mut self.scratch, segments);
            if segments.is_empty() && !ended {
                return false;
            }
            send(mem, segments);
            if !segments.is_empty() {
                return false;
            }
            if ended {
                self.under = None;
            }
        }
        true
    }

    /// Drops what was not sent.
    pub fn discard(&mut self, reason: DropReason) {
        if let Some((skb, _)) = self.under.take() {
            skb.discard(reason);
        }
        if let Some(segments) = &mut self.segments {
            segments.discard(reason);
        }
    }
}
