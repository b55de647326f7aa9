//! Where free frames wait that are on no hot list: a stack behind a lock.
//!
//! Owner: the umem. Any thread. Locked once for half a hot list, not once a frame.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Free frames of one umem, last in first out: the last one freed is the likeliest to be cached.
pub(crate) struct Depot {
    stack: Mutex<Stack>,
}

struct Stack {
    /// Room for every frame of the umem, so that a push never allocates.
    frames: Vec<u32>,
    /// Frames of the umem.
    total: usize,
    /// False once the last `Pool` and `Local` are gone.
    open: bool,
}

/// What the last frame home means for the umem.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Umem {
    /// Someone can still reach it.
    InUse,
    /// No pool, no local, every frame at home: the caller unmaps it.
    Orphaned,
}

impl Depot {
    /// A depot of no umem yet.
    pub const fn vacant() -> Depot {
        Depot { stack: Mutex::new(Stack { frames: Vec::new(), total: 0, open: false }) }
    }

    /// Fills it with the frames of a new umem.
    pub fn open(&self, handles: impl ExactSizeIterator<Item = u32>) {
        let mut stack = self.lock();
        stack.total = handles.len();
        stack.frames = Vec::with_capacity(handles.len());
        stack.frames.extend(handles);
        stack.open = true;
    }

    /// Forgets the frames of a umem that is gone.
    pub fn vacate(&self) {
        let mut stack = self.lock();
        stack.frames = Vec::new();
        stack.total = 0;
    }

    fn lock(&self) -> MutexGuard<'_, Stack> {
        // A panic cannot leave the stack half changed: it is a vector of numbers.
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves up to `out.len()` frames out; returns how many.
    pub fn take(&self, out: &mut [u32]) -> usize {
        let mut stack = self.lock();
        let n = out.len().min(stack.frames.len());
        let keep = stack.frames.len() - n;
        out[..n].copy_from_slice(&stack.frames[keep..]);
        stack.frames.truncate(keep);
        n
    }

    /// Takes frames back.
    pub fn put(&self, handles: &[u32]) -> Umem {
        let mut stack = self.lock();
        debug_assert!(stack.frames.len() + handles.len() <= stack.total, "a frame freed twice");
        stack.frames.extend_from_slice(handles);
        stack.state()
    }

    /// Notes that no `Pool` or `Local` is left.
    pub fn close(&self) -> Umem {
        let mut stack = self.lock();
        stack.open = false;
        stack.state()
    }

    /// Frames at home.
    pub fn level(&self) -> usize {
        self.lock().frames.len()
    }
}

impl Stack {
    fn state(&self) -> Umem {
        let all_home = self.total > 0 && self.frames.len() == self.total;
        if !self.open && all_home { Umem::Orphaned } else { Umem::InUse }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depot(handles: &[u32]) -> Depot {
        let depot = Depot::vacant();
        depot.open(handles.iter().copied());
        depot
    }

    #[test]
    fn what_was_put_last_is_taken_first() {
        let depot = depot(&[1, 2, 3, 4]);
        let mut two = [0; 2];
        assert_eq!(depot.take(&mut two), 2);
        assert_eq!(two, [3, 4]);
        assert!(depot.put(&[9]) == Umem::InUse);
        assert_eq!(depot.take(&mut two), 2);
        assert_eq!(two, [2, 9]);
    }

    #[test]
    fn an_empty_depot_gives_what_it_has() {
        let depot = depot(&[1, 2, 3]);
        assert_eq!(depot.take(&mut [0; 8]), 3);
        assert_eq!(depot.take(&mut [0; 8]), 0);
    }

    #[test]
    fn only_a_closed_and_complete_depot_is_orphaned() {
        let depot = depot(&[1, 2]);
        let mut one = [0; 1];
        assert_eq!(depot.take(&mut one), 1);
        assert!(depot.close() == Umem::InUse);
        assert!(depot.put(&one) == Umem::Orphaned);
    }
}
