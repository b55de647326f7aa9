//! Counters of the faults that a plan has caused.

use std::sync::atomic::{AtomicU64, Ordering};

/// Live counters of the faults of one queue, in both directions; any thread can read them.
#[derive(Debug, Default)]
pub struct FaultStats {
    pub(super) dropped: Tick,
    pub(super) duplicated: Tick,
    pub(super) reordered: Tick,
    pub(super) delayed: Tick,
    pub(super) corrupted: Tick,
    pub(super) shortened: Tick,
    pub(super) stalled: Tick,
    pub(super) refused: Tick,
}

/// A reading of [`FaultStats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets lost; the ledger counts them as `injected`.
    pub dropped: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets set aside, to arrive after later ones.
    pub reordered: u64,
    /// Packets delayed by a fault, not those that had to wait behind them.
    pub delayed: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets cut short.
    pub shortened: u64,
    /// Times that the device stalled.
    pub stalled: u64,
    /// Times that the queue began to refuse calls.
    pub refused: u64,
}

impl FaultStats {
    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        FaultCounts {
            dropped: self.dropped.value(),
            duplicated: self.duplicated.value(),
            reordered: self.reordered.value(),
            delayed: self.delayed.value(),
            corrupted: self.corrupted.value(),
            shortened: self.shortened.value(),
            stalled: self.stalled.value(),
            refused: self.refused.value(),
        }
    }
}

/// A counter that only the queue's owner writes.
#[derive(Debug, Default)]
pub(super) struct Tick(AtomicU64);

impl Tick {
    pub fn count(&self) {
        self.0.store(self.value() + 1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
