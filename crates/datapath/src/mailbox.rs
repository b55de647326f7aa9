//! The mailbox for orders to a running worker: a word that the worker reads in every turn, and a
//! bounded list.
//!
//! ```text
//!   anyone: list ◄─ order   word += generation   bell
//!   worker: word changed? ─► take the list (if no other thread holds it: next turn)
//! ```
//!
//! The worker never waits: while another thread adds to the list, the worker goes on and tries
//! again in the next turn. It neither sleeps nor holds its queues before it has taken the list. A
//! caller stores its order first and rings last, so a worker that has drained its bell and finds
//! the word unchanged may sleep. tests/loom.rs compiles this file over loom's types.

use crate::sync::{AtomicU32, Mutex, Ordering, PoisonError, TryLockError};

/// Most orders that wait for one worker.
pub(crate) const ORDERS_MAX: usize = 16;
/// Mask of the phase in the word.
const PHASE: u32 = 3;
/// Step of the generation of orders in the word.
const GENERATION: u32 = PHASE + 1;

/// The state of a mailbox at the time it was read: the phase and the generation of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Word(u32);

impl Word {
    /// Returns the number of the phase.
    pub fn phase(self) -> u32 {
        self.0 & PHASE
    }

    /// Returns the word's bits, to be stored in an atomic.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns the word that has these bits.
    pub fn from_bits(bits: u32) -> Word {
        Word(bits)
    }

    /// Returns true if orders were added since `other`.
    pub fn has_orders_since(self, other: Word) -> bool {
        (self.0 ^ other.0) & !PHASE != 0
    }
}

/// The word and the list of orders.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    word: AtomicU32,
    list: Mutex<Vec<T>>,
}

impl<T> Mailbox<T> {
    /// Returns an empty mailbox in phase 0.
    pub fn new() -> Mailbox<T> {
        Mailbox { word: AtomicU32::new(0), list: Mutex::new(Vec::new()) }
    }

    /// Reads the word.
    ///
    /// Cost: one load.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Changes the phase; the caller rings the bell.
    pub fn set_phase(&self, phase: u32) {
        let with = |word| Some(word & !PHASE | phase & PHASE);
        // Never refused: the closure always returns a word.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
    }

    /// Adds an order; the caller rings the bell.
    ///
    /// # Errors
    /// Returns the order if [`ORDERS_MAX`] orders wait already.
    pub fn post(&self, order: T) -> Result<(), T> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() >= ORDERS_MAX {
            return Err(order);
        }
        list.push(order);
        drop(list);
        self.word.fetch_add(GENERATION, Ordering::AcqRel);
        Ok(())
    }

    /// Removes the waiting orders for which `is_wanted` returns false.
    pub fn retain(&self, is_wanted: impl FnMut(&T) -> bool) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).retain(is_wanted);
    }

    /// Takes all orders. Returns `None` if another thread adds or removes orders; the caller then
    /// asks again in the next turn.
    pub fn take(&self) -> Option<Vec<T>> {
        match self.list.try_lock() {
            Ok(mut list) => Some(std::mem::take(&mut *list)),
            Err(TryLockError::Poisoned(e)) => Some(std::mem::take(&mut *e.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn orders_and_phases_share_a_word_and_do_not_meet() {
        let mailbox = Mailbox::new();
        let before = mailbox.word();
        mailbox.set_phase(2);
        assert!(mailbox.word() != before && !mailbox.word().has_orders_since(before));
        mailbox.post(7).unwrap();
        let with = mailbox.word();
        assert_eq!(with.phase(), 2);
        assert!(with.has_orders_since(before));
        mailbox.set_phase(1);
        assert!(!mailbox.word().has_orders_since(with));
        assert_eq!((mailbox.take(), mailbox.take()), (Some(vec![7]), Some(vec![])));
    }

    #[test]
    fn a_full_mailbox_gives_the_order_back() {
        let mailbox = Mailbox::new();
        assert!((0..ORDERS_MAX).all(|i| mailbox.post(i).is_ok()));
        assert_eq!(mailbox.post(99), Err(99));
        assert_eq!(mailbox.take().unwrap().len(), ORDERS_MAX);
        assert_eq!(mailbox.post(99), Ok(()));
    }
}
