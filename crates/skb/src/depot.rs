//! The depot: the free frames of a umem that are on no hot list, in stacks behind a lock.
//!
//! Owner: the umem. Any thread. Locked once for half a hot list, not once a frame. A umem has one
//! depot for all, and one more for each core if frames return to the core that allocated them.

use crate::sync::{Mutex, MutexGuard, PoisonError, TryLockError, ticks};

/// Number of size classes of a umem: ordinary frames and jumbo frames.
pub(crate) const CLASSES: usize = 2;
/// Index of the class of ordinary frames.
pub(crate) const PLAIN: usize = 0;
/// Index of the class of jumbo frames.
pub(crate) const JUMBO: usize = 1;

/// Free frames of one umem, last in, first out: the frame freed last is the likeliest to be in the
/// cache.
#[repr(align(128))]
pub(crate) struct Depot {
    stacks: Mutex<Stacks>,
}

struct Stacks {
    /// Stacks with room for every frame of the class, so that a push never allocates.
    frames: [Vec<u32>; CLASSES],
    /// Frames of the umem, over all classes; 0 in the depot of one core.
    total: usize,
    /// False after the last `Pool` and `Local` were dropped.
    open: bool,
    locks: Locks,
}

/// Counts of how a depot's lock was taken, and the time spent waiting for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Locks {
    /// Times that the lock was taken.
    pub taken: u64,
    /// Times that the lock was taken while another thread held it; a part of `taken`.
    pub contended: u64,
    /// TSC ticks that threads waited for the lock.
    pub wait_ticks: u64,
}

impl Locks {
    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, other: Locks) -> Locks {
        Locks {
            taken: self.taken + other.taken,
            contended: self.contended + other.contended,
            wait_ticks: self.wait_ticks + other.wait_ticks,
        }
    }
}

/// The state of the umem after a frame was returned to its depot.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A pool or a local exists, or a frame is outside its depot.
    InUse,
    /// No pool and no local exist, and every frame is in its depot: the caller unmaps the memory.
    Orphaned,
}

impl Depot {
    const NO_LOCKS: Locks = Locks { taken: 0, contended: 0, wait_ticks: 0 };

    const fn no_stacks() -> Stacks {
        let frames = [Vec::new(), Vec::new()];
        Stacks { frames, total: 0, open: false, locks: Depot::NO_LOCKS }
    }

    /// Returns a depot that no umem uses yet.
    pub const fn vacant() -> Depot {
        Depot { stacks: Mutex::new(Depot::no_stacks()) }
    }

    /// Fills the depot with the frames of a new umem, a stack for each class.
    pub fn open(&self, frames: [Vec<u32>; CLASSES]) {
        let mut stacks = self.look();
        stacks.total = frames.iter().map(Vec::len).sum();
        stacks.frames = frames;
        stacks.open = true;
        stacks.locks = Depot::NO_LOCKS;
    }

    /// Opens the depot as that of one core, with room for `room` ordinary frames.
    pub fn open_empty(&self, room: usize) {
        let mut stacks = self.look();
        if !stacks.open {
            stacks.frames[PLAIN].reserve_exact(room);
            stacks.open = true;
            stacks.locks = Depot::NO_LOCKS;
        }
    }

    /// Removes the frames of a umem that no longer exists.
    pub fn vacate(&self) {
        *self.look() = Depot::no_stacks();
    }

    /// Locks the depot without counting the lock.
    fn look(&self) -> MutexGuard<'_, Stacks> {
        // A panic cannot leave the stacks half changed: they are vectors of numbers. A poisoned
        // lock is therefore ignored.
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the depot, and counts the lock and the wait for it.
    fn lock(&self) -> MutexGuard<'_, Stacks> {
        let mut stacks = match self.stacks.try_lock() {
            Ok(stacks) => stacks,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let since = ticks();
                let mut stacks = self.look();
                stacks.locks.contended += 1;
                stacks.locks.wait_ticks += ticks().wrapping_sub(since);
                stacks
            }
        };
        stacks.locks.taken += 1;
        stacks
    }

    /// Moves up to `out.len()` frames of a class out of the depot; returns how many.
    pub fn take(&self, class: usize, out: &mut [u32]) -> usize {
        let mut stacks = self.lock();
        let frames = &mut stacks.frames[class];
        let n = out.len().min(frames.len());
        let keep = frames.len() - n;
        out[..n].copy_from_slice(&frames[keep..]);
        frames.truncate(keep);
        n
    }

    /// Puts frames of a class into the depot.
    pub fn put(&self, class: usize, handles: &[u32]) -> Use {
        let mut stacks = self.lock();
        debug_assert!(stacks.home() + handles.len() <= stacks.total, "a frame freed twice");
        stacks.frames[class].extend_from_slice(handles);
        stacks.state()
    }

    /// Puts ordinary frames into the depot; returns false, and takes none, if the depot is closed.
    pub fn offer(&self, handles: &[u32]) -> bool {
        let mut stacks = self.lock();
        if stacks.open {
            stacks.frames[PLAIN].extend_from_slice(handles);
        }
        stacks.open
    }

    /// Closes the depot to further offers, and moves its frames to `heir`.
    pub fn close_into(&self, heir: &Depot) {
        let mut stacks = self.look();
        stacks.open = false;
        let frames = std::mem::take(&mut stacks.frames[PLAIN]);
        drop(stacks);
        if !frames.is_empty() {
            // The heir is still open, so `put` does not return `Orphaned`.
            let _ = heir.put(PLAIN, &frames);
        }
    }

    /// Closes the depot, because no `Pool` or `Local` is left; returns the umem's state.
    pub fn close(&self) -> Use {
        let mut stacks = self.look();
        stacks.open = false;
        stacks.state()
    }

    /// Returns the number of free frames in the depot, over all classes.
    pub fn level(&self) -> usize {
        self.look().home()
    }

    /// Returns the number of frames that the depot has room for.
    pub fn room(&self) -> usize {
        self.look().frames.iter().map(Vec::capacity).sum()
    }

    /// Returns the counts of the depot's lock so far.
    pub fn locks(&self) -> Locks {
        self.look().locks
    }
}

impl Stacks {
    fn home(&self) -> usize {
        self.frames.iter().map(Vec::len).sum()
    }

    fn state(&self) -> Use {
        let all_home = self.total > 0 && self.home() == self.total;
        if !self.open && all_home { Use::Orphaned } else { Use::InUse }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn depot(handles: &[u32]) -> Depot {
        let depot = Depot::vacant();
        depot.open([handles.to_vec(), vec![100, 101]]);
        depot
    }

    #[test]
    fn depot_is_last_in_first_out() {
        let depot = depot(&[1, 2, 3, 4]);
        let mut two = [0; 2];
        assert_eq!(depot.take(PLAIN, &mut two), 2);
        assert_eq!(two, [3, 4]);
        assert_eq!(depot.put(PLAIN, &[9]), Use::InUse);
        assert_eq!(depot.take(PLAIN, &mut two), 2);
        assert_eq!(two, [2, 9]);
    }

    #[test]
    fn an_empty_depot_gives_what_it_has_of_the_class() {
        let depot = depot(&[1, 2, 3]);
        assert_eq!(depot.take(PLAIN, &mut [0; 8]), 3);
        assert_eq!(depot.take(PLAIN, &mut [0; 8]), 0);
        assert_eq!(depot.take(JUMBO, &mut [0; 8]), 2);
        assert_eq!(depot.level(), 0);
    }

    #[test]
    fn only_a_closed_and_complete_depot_is_orphaned() {
        let depot = depot(&[1, 2]);
        let (mut one, mut large) = ([0; 1], [0; 1]);
        assert_eq!((depot.take(PLAIN, &mut one), depot.take(JUMBO, &mut large)), (1, 1));
        assert_eq!(depot.close(), Use::InUse);
        assert_eq!(depot.put(PLAIN, &one), Use::InUse);
        assert_eq!(depot.put(JUMBO, &large), Use::Orphaned);
    }

    #[test]
    fn a_cores_depot_hands_over_what_it_has_and_takes_no_more() {
        let (all, own) = (depot(&[1, 2]), Depot::vacant());
        assert!(!own.offer(&[7]));
        let mut two = [0; 2];
        assert_eq!(all.take(PLAIN, &mut two), 2);
        own.open_empty(2);
        assert!(own.offer(&two));
        own.close_into(&all);
        assert_eq!((own.level(), all.level()), (0, 4));
        assert!(!own.offer(&two));
    }

    #[test]
    fn the_lock_is_counted_when_it_is_taken_and_when_it_is_waited_for() {
        let depot = depot(&[1]);
        let mut one = [0];
        assert_eq!(depot.take(PLAIN, &mut one), 1);
        assert_eq!(depot.locks().taken, 1);
        // On a busy machine the other thread may arrive late, or only after the lock was released;
        // then try again.
        let mut tries = 0;
        let waited = (0..200).any(|_| {
            let (before, mut least) = (depot.locks(), 0);
            tries += 1;
            std::thread::scope(|s| {
                let held = depot.stacks.lock().unwrap();
                let (depot, (begins, begun)) = (&depot, std::sync::mpsc::channel());
                s.spawn(move || {
                    begins.send(()).unwrap();
                    assert_eq!(depot.take(PLAIN, &mut [0]), 0);
                });
                begun.recv().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
                let since = ticks();
                std::thread::sleep(std::time::Duration::from_millis(5));
                least = ticks() - since;
                drop(held);
            });
            let after = depot.locks();
            after.contended == before.contended + 1 && after.wait_ticks - before.wait_ticks >= least
        });
        assert!(waited, "no wait was as long as the lock was held: {:?}", depot.locks());
        assert_eq!(depot.locks().taken, 1 + tries);
    }
}
