//! The number of a worker's turns, with which another thread reads the counters of several workers
//! as of one moment.
//!
//! ```text
//!   worker: number odd ─ fence ─► counters of the turn ─► number even
//!   reader: numbers ─► counters ─ fence ─► numbers again: the same?
//! ```
//!
//! The worker writes and never waits. The fences make a counter of a turn visible only together
//! with the number of that turn, on every CPU; on x86 they are no instructions. tests/loom.rs
//! compiles this file over loom's types.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// The turns of one worker.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Twice the completed turns, plus one during a turn.
    number: AtomicU64,
    /// True if the last turn moved no packet and left none waiting.
    quiet: AtomicBool,
    /// The mailbox's word that the last turn began with.
    seen: AtomicU32,
}

impl Turns {
    /// Returns the turns of a worker that has not turned yet.
    pub fn new() -> Turns {
        let (number, quiet) = (AtomicU64::new(0), AtomicBool::new(false));
        Turns { number, quiet, seen: AtomicU32::new(0) }
    }

    /// Marks the beginning of a turn that executes what the mailbox's word `seen` says. Only the
    /// worker calls it.
    #[inline]
    pub fn begin(&self, seen: u32) {
        self.number.store(self.number.load(Ordering::Relaxed) + 1, Ordering::Release);
        // The store above orders only what came before it. A reader that sees a counter of this
        // turn, or its word, must see its number, too.
        fence(Ordering::Release);
        self.seen.store(seen, Ordering::Relaxed);
    }

    /// Returns the mailbox's word that the last turn began with.
    pub fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Marks the end of a turn; `quiet` is true if the turn moved no packet and left none waiting.
    /// Only the worker calls it.
    #[inline]
    pub fn end(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
        self.number.store(self.number.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Returns true if a turn has begun.
    pub fn have_begun(&self) -> bool {
        self.number.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the last turn moved no packet and left none waiting.
    pub fn was_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Returns a number that changes with every turn; `None` if the worker is in a turn or has
    /// work.
    pub fn at_rest(&self) -> Option<u64> {
        let number = self.number.load(Ordering::Acquire);
        (number.is_multiple_of(2) && self.was_quiet()).then_some(number)
    }
}

/// Returns true if no worker has work and `is_empty` returns true of the rings between them, at one
/// moment.
///
/// `numbers` reads the number of each worker's turns; it is called before and after `is_empty`. A
/// worker that turned meanwhile has another number; if a packet waits for a sleeping worker, its
/// ring is not empty.
pub(crate) fn all_at_rest<N: Iterator<Item = Option<u64>>>(
    numbers: impl Fn() -> N,
    is_empty: impl FnOnce() -> bool,
) -> bool {
    let before: Vec<_> = numbers().collect();
    if before.iter().any(Option::is_none) || !is_empty() {
        return false;
    }
    // The numbers are read again after the counters, not before them.
    fence(Ordering::Acquire);
    numbers().eq(before)
}
