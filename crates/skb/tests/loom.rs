//! Every interleaving, within a bound, of threads on the depots of one umem, and of threads that
//! have handles on one packet.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p linerate-skb --release --test loom`
//!
//! The bound is three preemptions (`LOOM_MAX_PREEMPTIONS` overrides it). The depot and the count of
//! handles are the ones that ship, compiled here over loom's lock and atomics; [`Umem`] is the part
//! of umem.rs that finds free frames and decides when the memory is unmapped, and `sharing::Packet`
//! the part of `Skb` that reads, writes and frees. Hot lists, thread caches, their budgets and the
//! counters of the books are not modelled: each has one writer, or is a number that only limits a
//! list.
#![cfg(loom)]

#[allow(dead_code, reason = "what no model calls")]
#[path = "../src/depot.rs"]
mod depot;
#[path = "../src/refs.rs"]
mod refs;
#[path = "loom/sharing.rs"]
mod sharing;

use depot::{Depot, JUMBO, PLAIN};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{self, JoinHandle};

/// The name that refs.rs imports from its crate's page.rs.
mod page {
    pub(crate) use crate::sharing::Counter;
}

/// The names that depot.rs and refs.rs import from their crate.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use std::sync::{PoisonError, TryLockError};

    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, OnceLock, TryLockResult};

    /// Returns 0: no model measures waiting time.
    pub(crate) fn ticks() -> u64 {
        0
    }

    /// loom's lock around a value that it does not know, so that one can be made in a constant as
    /// std's can: it is registered with the model when it is first taken.
    pub(crate) struct Mutex<T> {
        lock: OnceLock<loom::sync::Mutex<()>>,
        value: UnsafeCell<T>,
    }

    // SAFETY: the value is reached through a guard only, and there is one guard at a time.
    unsafe impl<T: Send> Sync for Mutex<T> {}

    pub(crate) struct MutexGuard<'a, T> {
        value: *mut T,
        _held: loom::sync::MutexGuard<'a, ()>,
    }

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Mutex<T> {
            Mutex { lock: OnceLock::new(), value: UnsafeCell::new(value) }
        }

        fn inner(&self) -> &loom::sync::Mutex<()> {
            self.lock.get_or_init(|| loom::sync::Mutex::new(()))
        }

        // loom never poisons: a panic ends its model.
        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let held = self.inner().lock().unwrap_or_else(PoisonError::into_inner);
            Ok(MutexGuard { value: self.value.get(), _held: held })
        }

        pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            match self.inner().try_lock() {
                Ok(held) => Ok(MutexGuard { value: self.value.get(), _held: held }),
                Err(_) => Err(TryLockError::WouldBlock),
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: this is the one guard, and it keeps the lock borrowed and taken.
            unsafe { &*self.value }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as in `deref`, from the only guard's only borrow.
            unsafe { &mut *self.value }
        }
    }
}

/// A free frame: the core that allocated it last, times a hundred, plus a number.
type Frame = u32;

fn core(frame: Frame) -> usize {
    frame as usize / 100
}

fn take(depot: &Depot, class: usize, want: usize) -> Vec<Frame> {
    let mut out = vec![0; want];
    let n = depot.take(class, &mut out);
    out.truncate(n);
    out
}

/// A model of a umem's use of its depots.
struct Umem {
    /// `Pool`s and `Local`s.
    users: AtomicUsize,
    all: Depot,
    /// The depots of the cores 1, 2 …, if frames return to the core that allocated them.
    homes: Vec<Depot>,
    /// A bit for each of the cores whose depot has been opened.
    opened: AtomicUsize,
    /// At least the number of jumbo frames in `all`.
    jumbo_free: AtomicUsize,
    frames: [Vec<Frame>; 2],
    unmapped: AtomicUsize,
}

impl Umem {
    fn new(users: usize, homes: usize, frames: [&[Frame]; 2]) -> Arc<Umem> {
        let umem = Umem::without_homes(users, homes, frames);
        (1..=homes).for_each(|core| umem.open_home(core));
        umem
    }

    /// Returns a umem whose depots of single cores have not been opened yet.
    fn without_homes(users: usize, homes: usize, frames: [&[Frame]; 2]) -> Arc<Umem> {
        let umem = Umem {
            users: AtomicUsize::new(users),
            all: Depot::vacant(),
            homes: (0..homes).map(|_| Depot::vacant()).collect(),
            opened: AtomicUsize::new(0),
            jumbo_free: AtomicUsize::new(frames[JUMBO].len()),
            frames: frames.map(<[_]>::to_vec),
            unmapped: AtomicUsize::new(0),
        };
        umem.all.open(umem.frames.clone());
        Arc::new(umem)
    }

    /// Opens the depot of a core, as `Umem::open_home` does.
    fn open_home(&self, core: usize) {
        self.opened.fetch_or(1 << core, Ordering::Relaxed);
        self.homes[core - 1].open_empty(self.frames[PLAIN].len());
    }

    /// Takes frames, as `Umem::take` of umem.rs does: from the core's own depot, else from the
    /// common one, else from those of other cores.
    fn take(&self, core: usize, want: usize) -> Vec<Frame> {
        let mut out = vec![0; want];
        let opened = self.opened.load(Ordering::Relaxed);
        let is_open = |core: &usize| opened >> core & 1 == 1;
        let own = self.home(core).filter(|_| is_open(&core));
        let mut n = own.map_or(0, |home| home.take(PLAIN, &mut out));
        if n < want {
            n += self.all.take(PLAIN, &mut out[n..]);
        }
        if n == 0 {
            let others = (1..=self.homes.len()).filter(|other| *other != core && is_open(other));
            let mut taken = others.map(|other| self.homes[other - 1].take(PLAIN, &mut out));
            n = taken.find(|n| *n > 0).unwrap_or(0);
        }
        out.truncate(n);
        out
    }

    /// Returns frames, as `Umem::put_home` does: the caller has no other claim on the umem
    /// afterwards.
    fn put(&self, frames: &[Frame]) {
        for run in frames.chunk_by(|a, b| core(*a) == core(*b)) {
            if !self.home(core(run[0])).is_some_and(|home| home.offer(run)) {
                self.unmap_if(self.all.put(PLAIN, run));
            }
        }
    }

    /// Returns jumbo frames, as `Umem::put_jumbo_home` does.
    fn put_jumbo(&self, frames: &[Frame]) {
        self.jumbo_free.fetch_add(frames.len(), Ordering::Relaxed);
        self.unmap_if(self.all.put(JUMBO, frames));
    }

    /// Takes jumbo frames, as `Umem::take_jumbo` does.
    fn take_jumbo(&self, want: usize) -> Vec<Frame> {
        if self.jumbo_free.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let taken = take(&self.all, JUMBO, want);
        let counted = self.jumbo_free.fetch_sub(taken.len(), Ordering::Relaxed);
        assert!(counted >= taken.len(), "fewer counted than there were");
        taken
    }

    /// Leaves the umem, as `Umem::leave` does.
    fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.homes.iter().for_each(|home| home.close_into(&self.all));
            self.unmap_if(self.all.close());
        }
    }

    fn home(&self, core: usize) -> Option<&Depot> {
        self.homes.get(core.checked_sub(1)?)
    }

    fn unmap_if(&self, state: depot::Use) {
        if state == depot::Use::Orphaned {
            let all = self.frames.iter().map(Vec::len).sum();
            assert_eq!(self.all.level(), all, "unmapped while a frame was out");
            self.unmapped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asserts, once all users have left and nothing moves, that the memory was unmapped once and
    /// every frame came back once.
    fn assert_gone(&self) {
        assert_eq!(self.unmapped.load(Ordering::Relaxed), 1, "times the memory was unmapped");
        assert!(self.homes.iter().all(|home| home.level() == 0), "a frame is left in a home");
        for class in [PLAIN, JUMBO] {
            let mut found = take(&self.all, class, self.frames[class].len() + 1);
            found.sort_unstable();
            assert_eq!(found, self.frames[class], "lost, or home twice");
        }
    }
}

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(test);
}

fn spawn<R: 'static>(
    umem: &Arc<Umem>,
    act: impl FnOnce(&Umem) -> R + Send + 'static,
) -> JoinHandle<R> {
    let umem = Arc::clone(umem);
    thread::spawn(move || act(&umem))
}

#[test]
fn two_takers_never_get_one_frame() {
    const FRAMES: &[Frame] = &[1, 2, 3];
    explore(|| {
        let umem = Umem::new(1, 0, [FRAMES, &[]]);
        let other = spawn(&umem, |umem| umem.take(0, 2));
        let mut taken = umem.take(0, 2);
        taken.extend(other.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, FRAMES);
        assert_eq!(umem.all.locks().taken, 2);
    });
}

#[test]
fn last_user_unmaps_only_when_every_frame_is_returned() {
    explore(|| {
        let umem = Umem::new(2, 0, [&[1, 2], &[]]);
        let act = |umem: &Umem| {
            let frames = umem.take(0, 1);
            umem.leave();
            umem.put(&frames);
        };
        let other = spawn(&umem, act);
        act(&umem);
        other.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn a_packet_handed_to_a_third_thread_keeps_the_memory() {
    explore(|| {
        let umem = Umem::new(2, 0, [&[1, 2], &[]]);
        let frames = umem.take(0, 1);
        let third = spawn(&umem, move |umem| umem.put(&frames));
        let other = spawn(&umem, |umem| {
            let frames = umem.take(0, 2);
            umem.leave();
            umem.put(&frames);
        });
        umem.leave();
        third.join().unwrap();
        other.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn both_size_classes_are_waited_for() {
    explore(|| {
        let umem = Umem::new(1, 0, [&[1], &[2]]);
        let (frames, jumbo) = (umem.take(0, 1), umem.take_jumbo(1));
        assert_eq!((frames.len(), jumbo.len()), (1, 1));
        let first = spawn(&umem, move |umem| umem.put(&frames));
        let second = spawn(&umem, move |umem| umem.put_jumbo(&jumbo));
        umem.leave();
        first.join().unwrap();
        second.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn a_frame_on_its_way_home_while_the_pool_is_given_up_arrives() {
    explore(|| {
        let umem = Umem::new(1, 2, [&[1, 101, 201], &[]]);
        let frames = umem.take(0, 3);
        let (one, rest) = (frames[..1].to_vec(), frames[1..].to_vec());
        let first = spawn(&umem, move |umem| umem.put(&one));
        let second = spawn(&umem, move |umem| umem.put(&rest));
        umem.leave();
        first.join().unwrap();
        second.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn owner_takes_returned_frames_once() {
    explore(|| {
        let umem = Umem::new(2, 1, [&[101, 102, 103], &[]]);
        let returned = umem.take(1, 2);
        let other = spawn(&umem, move |umem| {
            umem.put(&returned);
            umem.leave();
        });
        let mine = umem.take(1, 2);
        assert!((1..=2).contains(&mine.len()));
        umem.leave();
        umem.put(&mine);
        other.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn frames_returned_while_their_home_is_being_opened_are_found() {
    explore(|| {
        let umem = Umem::without_homes(2, 1, [&[101, 102], &[]]);
        let returned = umem.take(0, 2);
        let owner = spawn(&umem, |umem| {
            umem.open_home(1);
            let mine = umem.take(1, 1);
            umem.leave();
            umem.put(&mine);
        });
        umem.put(&returned);
        // The owner has one of the two at most. The other one is found, wherever it is.
        let found = umem.take(0, 1);
        assert_eq!(found.len(), 1);
        umem.leave();
        umem.put(&found);
        owner.join().unwrap();
        umem.assert_gone();
    });
}

#[test]
fn count_of_free_jumbo_frames_is_never_too_low() {
    explore(|| {
        let umem = Umem::new(2, 0, [&[], &[1, 2]]);
        let act = |umem: &Umem| {
            let frames = umem.take_jumbo(1);
            umem.put_jumbo(&frames);
            umem.leave();
        };
        let other = spawn(&umem, act);
        act(&umem);
        other.join().unwrap();
        assert_eq!(umem.jumbo_free.load(Ordering::Relaxed), 2);
        umem.assert_gone();
    });
}

#[test]
fn a_thief_takes_from_a_home_that_is_being_filled() {
    explore(|| {
        let umem = Umem::new(2, 2, [&[101, 102], &[]]);
        let frames = umem.take(1, 2);
        let other = spawn(&umem, move |umem| {
            umem.put(&frames[..1]);
            umem.put(&frames[1..]);
            umem.leave();
        });
        // As core 2, whose packets they then are.
        let mine: Vec<Frame> = umem.take(2, 1).iter().map(|frame| frame + 100).collect();
        umem.leave();
        umem.put(&mine);
        other.join().unwrap();
        assert_eq!(umem.unmapped.load(Ordering::Relaxed), 1);
        let found = take(&umem.all, PLAIN, 3);
        assert_eq!((found.len(), found.iter().filter(|f| core(**f) == 2).count()), (2, mine.len()));
    });
}
