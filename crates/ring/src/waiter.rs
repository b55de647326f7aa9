//! Sleeping on a ring without losing a wake-up, and without a syscall while both sides are awake.
//!
//! One word belongs to each side that sleeps. It says what that side waits for; the other side
//! looks at it after it moved something, and rings the doorbell (an eventfd, which the caller owns)
//! only if that is wanted:
//!
//! ```text
//!   sleeper                                  waker
//!   word = FRAMES            (prepare)       prod = p + n          (submit)
//!   fence(SeqCst)                            fence(SeqCst)         (should_wake)
//!   prod unchanged? sleep    (peek)          word & FRAMES? clear it, ring the doorbell
//!   word = 0                 (cancel)
//! ```
//!
//! Invariant: of the two fences one is first. If the sleeper's is, the waker sees the word; if the
//! waker's is, the sleeper sees the entries. A wake-up may be spurious, never lost.
//!
//! All writes to the word are read-modify-writes, so they form one chain: loom does not order a
//! plain store after the `fetch_and` of another thread that it follows, and would report wake-ups
//! lost that are not.
//!
//! Source: Linux v6.12 Documentation/memory-barriers.txt, "SLEEP AND WAKE-UP FUNCTIONS", and the
//! memif ring flag `MEMIF_RING_FLAG_MASK_INT`, the same word with the sense inverted.

use std::ops::BitOr;

use crate::sync::{Arc, AtomicU32, Line, Ordering, fence};

/// The events that one side waits for, or that the other side signals: frames, room, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events(u32);

impl Events {
    /// The event that the ring has entries which the sleeper can take.
    pub const FRAMES: Self = Self(1);
    /// The event that the ring has free slots into which the sleeper can write.
    pub const ROOM: Self = Self(2);
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Creates the word that the two sides share: `Waiter` for the side that sleeps, `Waker` for the
/// other.
pub fn waiter() -> (Waiter, Waker) {
    let word = Arc::new(Line(AtomicU32::new(AWAKE)));
    (Waiter { word: Arc::clone(&word) }, Waker { word })
}

/// The sleeping side's handle on the shared word.
pub struct Waiter {
    word: Arc<Line<AtomicU32>>,
}

impl Waiter {
    /// Announces the events for which this side is about to sleep. The caller then checks its rings
    /// once more, and sleeps only if there is still no such event.
    ///
    /// Shape:  nothing moves; every later arrival of a wanted event rings the doorbell.
    /// Cost:   one atomic exchange and one full fence; once per sleep, not per batch.
    #[inline]
    pub fn prepare(&mut self, want: Events) {
        self.word.0.swap(want.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that this side is awake: after it slept, or after its second check found an event.
    ///
    /// Shape:  nothing moves; a doorbell that is already on its way still rings (spuriously).
    /// Cost:   one atomic exchange; once per sleep, not per batch.
    #[inline]
    pub fn cancel(&mut self) {
        self.word.0.swap(AWAKE, Ordering::Relaxed);
    }
}

/// The other side's handle on the shared word; any number of threads may have one.
#[derive(Clone)]
pub struct Waker {
    word: Arc<Line<AtomicU32>>,
}

impl Waker {
    /// Returns true if the caller must ring the doorbell after it submitted (`FRAMES`) or released
    /// (`ROOM`) entries. One call for both, `FRAMES | ROOM`, costs one fence.
    ///
    /// Shape:  nothing moves; a true answer is given once for each `prepare` and event.
    /// Cost:   one full fence and one load; an atomic read-modify-write only when true is near.
    #[inline]
    #[must_use = "true means that the peer sleeps until the doorbell rings"]
    pub fn should_wake(&self, have: Events) -> bool {
        fence(Ordering::SeqCst);
        if self.word.0.load(Ordering::Relaxed) & have.0 == 0 {
            return false;
        }
        // Clear only the bits of this wake-up: the sleeper may meanwhile wait for another event,
        // and that event's bit must stay set. AcqRel is not needed, because the ring's index orders
        // the entries.
        self.word.0.fetch_and(!have.0, Ordering::Relaxed) & have.0 != 0
    }
}

const AWAKE: u32 = 0;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_is_awake_is_not_woken() {
        let (mut waiter, waker) = waiter();
        assert!(!waker.should_wake(Events::FRAMES | Events::ROOM));
        waiter.prepare(Events::FRAMES);
        waiter.cancel();
        assert!(!waker.should_wake(Events::FRAMES));
    }

    #[test]
    fn a_sleeper_is_woken_once_and_only_for_what_it_wants() {
        let (mut waiter, waker) = waiter();
        waiter.prepare(Events::FRAMES);
        assert!(!waker.should_wake(Events::ROOM));
        assert!(waker.should_wake(Events::FRAMES));
        assert!(!waker.should_wake(Events::FRAMES));
    }

    #[test]
    fn a_new_want_replaces_the_one_before() {
        let (mut waiter, waker) = waiter();
        waiter.prepare(Events::FRAMES);
        waiter.prepare(Events::ROOM);
        assert!(!waker.should_wake(Events::FRAMES));
        assert!(waker.should_wake(Events::ROOM));
    }

    #[test]
    fn one_event_leaves_the_other_want_standing() {
        let (mut waiter, waker) = waiter();
        waiter.prepare(Events::FRAMES | Events::ROOM);
        assert!(waker.should_wake(Events::ROOM));
        assert!(waker.clone().should_wake(Events::FRAMES));
    }
}
