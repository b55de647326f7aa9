//! The memory behind a pool: one region divided into frames, and the table in which a handle finds
//! it.
//!
//! ```text
//!  data   │ frame 0 │ frame 1 │ … │ frame n-1 │ jumbo 0 ........ │ jumbo 1 ........ │
//!  hot    │ line 0  │ line 1  │ … │           │ line │ (unused)  │                     a place for
//!  cold   │ line 0  │ line 1  │ … │           │ line │ (unused)  │                     each 64 bytes
//! ```
//!
//! A jumbo frame stands in the place of several frames and has the handle of the first. A handle's
//! umem is found in the process-wide [`UMEMS`]; it is global because a plain `drop` has nothing
//! else to find its pool by.
//!
//! Life: an id is taken by [`Umem::create`] and given back when the last `Pool`, the last `Local`
//! and the last frame are home, whichever comes last. Until then the memory stays mapped.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use linerate_sys::mem::Region;
use linerate_sys::{Code, Error, Result};

use crate::books::Books;
use crate::depot::{self, Depot, JUMBO, Locks, PLAIN};
use crate::frames::Frames;
use crate::handle::{self, CORES, IDS};
use crate::memory::Memory;
use crate::policy::{Init, Return};
use crate::shape::Shape;
use crate::thread;

/// The slots of all umems. Only a slot's memory is freed, never the slot: the thread that returned
/// the last frame but one may still be releasing the depot's lock while another thread unmaps the
/// memory.
static UMEMS: [Umem; IDS] = [const { Umem::vacant() }; IDS];
/// The lock for assigning and releasing an id.
static IDS_LOCK: Mutex<()> = Mutex::new(());

/// A region, its frames' metadata, and the holders of the frames.
#[repr(align(128))]
pub(crate) struct Umem {
    fixed: UnsafeCell<Frames>,
    /// Number of `Pool`s and `Local`s that use the umem.
    users: AtomicUsize,
    /// Frames that thread caches may still reserve for themselves.
    pub cache_budget: AtomicI64,
    /// Frames that hot lists of the default length may still reserve, and jumbo frames that hot
    /// lists may.
    pub list_budget: AtomicU32,
    pub jumbo_budget: AtomicU32,
    /// Interval, in calls, between two timed calls; 0 turns timing off.
    pub sampling: AtomicU32,
    pub depot: Depot,
    /// Jumbo frames in `depot`, or more while some are on their way; never fewer, so that no lock
    /// is needed to find that there is none.
    jumbo_free: AtomicU64,
    /// Free frames for the core that allocated them, returned by other cores.
    homes: [Depot; CORES],
    /// A bit for each of `homes` that has been opened; the others have no frames.
    opened: AtomicU64,
    pub books: Books,
    /// The mappings; `None` while the id is vacant.
    memory: Mutex<Option<Memory>>,
    /// Values that drivers attached to the umem.
    attached: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

// SAFETY: `fixed` is written under IDS_LOCK, while the id is vacant. It is read under that lock, or
// by the owner of a handle, Pool or Local of the umem. These keep the id from becoming vacant, and
// their owner got them by a synchronised hand-over from the last writer. The addresses in `fixed`
// are of mappings that exist as long; the handles decide who may access which frame. All other
// fields are atomic or locked.
unsafe impl Sync for Umem {}

/// Access to the methods of the umem's frames.
impl Deref for Umem {
    type Target = Frames;

    /// Returns the frames. The caller's handle, Pool, Local or IDS_LOCK keeps the id in use.
    #[inline]
    fn deref(&self) -> &Frames {
        // SAFETY: no thread writes `fixed` meanwhile; see `impl Sync`.
        unsafe { &*self.fixed.get() }
    }
}

impl Umem {
    const fn vacant() -> Umem {
        Umem {
            fixed: UnsafeCell::new(Frames::VACANT),
            users: AtomicUsize::new(0),
            cache_budget: AtomicI64::new(0),
            list_budget: AtomicU32::new(0),
            jumbo_budget: AtomicU32::new(0),
            sampling: AtomicU32::new(0),
            depot: Depot::vacant(),
            jumbo_free: AtomicU64::new(0),
            homes: [const { Depot::vacant() }; CORES],
            opened: AtomicU64::new(0),
            books: Books::new(),
            memory: Mutex::new(None),
            attached: Mutex::new(Vec::new()),
        }
    }

    /// Maps the memory and assigns an id; the caller is the first user.
    pub fn create(shape: &Shape) -> Result<&'static Umem> {
        shape.check()?;
        thread::sweep();
        let memory = Memory::map(shape)?;
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let vacant = |id: &usize| UMEMS[*id].frames() == 0;
        let id = (1..IDS).find(vacant).ok_or_else(|| {
            Error::new(
                Code::UmemIds,
                format!("cannot make pool {}", shape.name),
                "this process has 31 pools already",
            )
            .fix(
                "drop pools that are no longer used, with their packets, and end threads that \
                 dropped such packets and idle now; or share one pool between ports",
            )
        })?;
        let umem = &UMEMS[id];
        let fixed = Frames::new(shape, &memory, id as u32, umem.serial.wrapping_add(1));
        // SAFETY: the id is vacant and IDS_LOCK is held, so no other thread reads or writes it.
        unsafe { *umem.fixed.get() = fixed };
        umem.users.store(1, Ordering::Relaxed);
        umem.sampling.store(0, Ordering::Relaxed);
        umem.opened.store(0, Ordering::Relaxed);
        umem.jumbo_free.store(u64::from(shape.jumbo_frames), Ordering::Relaxed);
        // Thread caches hold at most an eighth of the pool.
        umem.cache_budget.store(i64::from(shape.frames / 8), Ordering::Relaxed);
        // Hot lists of the default length hold at most half of the pool. Three eighths stay free
        // for an owner whose list is empty, because no list gives back its frames for another.
        umem.list_budget.store(shape.frames / 2, Ordering::Relaxed);
        umem.jumbo_budget.store(shape.jumbo_frames / 2, Ordering::Relaxed);
        umem.books.reset();
        umem.fill(shape);
        *umem.memory() = Some(memory);
        Ok(umem)
    }

    /// Puts all frames into the depot, stacked so that frame 0 is taken first.
    fn fill(&self, shape: &Shape) {
        let tag = handle::tag(self.id(), 0);
        let plain: Vec<u32> = (0..shape.frames).rev().map(|i| tag | i).collect();
        let place = |i| shape.frames + i * shape.places_per_jumbo();
        let jumbo: Vec<u32> = (0..shape.jumbo_frames).rev().map(|i| tag | place(i)).collect();
        if shape.init == Init::AtFree {
            // Initialise the frames as if each had just been freed.
            for frames in [&plain, &jumbo] {
                // SAFETY: no skb has these frames yet.
                unsafe { self.write_lines(frames) };
            }
        }
        self.depot.open([plain, jumbo]);
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the umem that `handle` belongs to.
    #[inline]
    pub fn of(handle: u32) -> &'static Umem {
        &UMEMS[handle::umem(handle)]
    }

    /// Returns the table entry of an id.
    #[inline]
    pub fn numbered(id: usize) -> &'static Umem {
        &UMEMS[id % IDS]
    }

    /// Returns the current generation of the umem id in `handle`, which the caller owns.
    #[inline]
    pub fn serial(handle: u32) -> u64 {
        Umem::of(handle).serial
    }

    /// Returns the generation of this umem's id.
    pub fn own_serial(&self) -> u64 {
        self.serial
    }

    /// Runs `f` on the umem if that generation of its id still exists; the umem cannot end
    /// meanwhile.
    pub fn if_alive(id: usize, serial: u64, f: impl FnOnce(&Umem)) {
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let umem = &UMEMS[id];
        if umem.frames() > 0 && umem.serial == serial {
            f(umem);
        }
    }

    /// Returns the mapping of the frames, for a device or peer to share.
    pub fn region(&self) -> Option<Arc<Region>> {
        self.memory().as_ref().and_then(|m| m.frames.clone())
    }

    /// Implements [`Pool::attached`](crate::Pool::attached).
    pub fn attached<T: Send + Sync + 'static>(
        &self,
        find: impl FnOnce(Vec<Arc<T>>) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|one| one.strong_count() > 0);
        let alive = attached.iter().filter_map(Weak::upgrade);
        let found = find(alive.filter_map(|one| one.downcast::<T>().ok()).collect())?;
        let one: Weak<dyn Any + Send + Sync> = Arc::downgrade(&found) as _;
        if !attached.iter().any(|other| other.ptr_eq(&one)) {
            attached.push(one);
        }
        Ok(found)
    }

    /// Returns the bytes mapped: frames, lines, tables, the depot's stacks.
    pub fn mapped_bytes(&self) -> usize {
        let mapped = self.memory().as_ref().map_or(0, Memory::bytes);
        let places: usize = self.homes().iter().map(Depot::room).sum();
        mapped + ((self.frames() + self.jumbo().0) as usize + places) * size_of::<u32>()
    }

    /// Adds one `Pool` or `Local` to the users.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true once no `Pool` or `Local` is left.
    pub fn abandoned(&self) -> bool {
        self.users.load(Ordering::Relaxed) == 0
    }

    /// Removes one `Pool` or `Local` from the users; the caller must not use the umem afterwards.
    pub fn leave(&'static self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            thread::give_back(self.id() as usize);
            self.homes().iter().for_each(|home| home.close_into(&self.depot));
            let state = self.depot.close();
            self.vacate_if(state);
        }
    }

    /// Opens the depot of a core, to which its frames return.
    pub fn open_home(&self, core: usize) {
        if self.return_to() == Return::Home {
            // Set the bit first: the depot has frames only after it was opened.
            self.opened.fetch_or(1 << core, Ordering::Relaxed);
            self.homes[core].open_empty(self.frames() as usize);
        }
    }

    /// Returns ordinary frames to their depots; the caller must not use the umem afterwards, unless
    /// it has another handle, `Pool` or `Local` of the umem.
    pub fn put_home(&'static self, handles: &[u32]) {
        if self.return_to() == Return::Home {
            return self.put_each_home(handles);
        }
        let state = self.depot.put(PLAIN, handles);
        self.vacate_if(state);
    }

    #[cold]
    fn put_each_home(&'static self, handles: &[u32]) {
        for run in handles.chunk_by(|a, b| handle::same_core(*a, *b)) {
            if !self.homes[handle::core(run[0])].offer(run) {
                // The frame belongs to no core, or the pool is being dropped.
                let state = self.depot.put(PLAIN, run);
                self.vacate_if(state);
            }
        }
    }

    /// Returns jumbo frames to their depot; the conditions are those of [`Umem::put_home`].
    #[cold]
    pub fn put_jumbo_home(&'static self, handles: &[u32]) {
        // Count them first, because the umem may end with the last of them.
        self.jumbo_free.fetch_add(handles.len() as u64, Ordering::Relaxed);
        let state = self.depot.put(JUMBO, handles);
        self.vacate_if(state);
    }

    /// Takes up to `out.len()` ordinary frames for a core: from its own depot, then from the common
    /// one, and if both are empty from the depots of other cores.
    pub fn take(&self, core: usize, out: &mut [u32]) -> usize {
        // No bit is set in a pool without depots for single cores.
        let opened = self.opened.load(Ordering::Relaxed);
        let is_open = |core: usize| opened >> core & 1 == 1;
        let mut n = if is_open(core) { self.homes[core].take(PLAIN, out) } else { 0 };
        if n < out.len() {
            n += self.depot.take(PLAIN, &mut out[n..]);
        }
        if n == 0 {
            let mut others = (0..CORES).filter(|other| *other != core && is_open(*other));
            let take = |other: usize| Some(self.homes[other].take(PLAIN, out)).filter(|n| *n > 0);
            n = others.find_map(take).unwrap_or(0);
        }
        n
    }

    /// Takes up to `out.len()` jumbo frames.
    ///
    /// Cost: the depot's lock, but none while the depot has no jumbo frame.
    pub fn take_jumbo(&self, out: &mut [u32]) -> usize {
        if self.jumbo_free.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let n = self.depot.take(JUMBO, out);
        self.jumbo_free.fetch_sub(n as u64, Ordering::Relaxed);
        n
    }

    /// Returns the number of free frames in all depots.
    pub fn home_level(&self) -> u64 {
        let homes: usize = self.homes().iter().map(Depot::level).sum();
        (self.depot.level() + homes) as u64
    }

    /// Returns the counts of the locks of the umem's depots.
    pub fn locks(&self) -> Locks {
        self.homes().iter().fold(self.depot.locks(), |sum, home| sum.plus(home.locks()))
    }

    /// Returns the depots of single cores, if there are any.
    fn homes(&self) -> &[Depot] {
        if self.return_to() == Return::Home { &self.homes } else { &[] }
    }

    /// Unmaps the memory and releases the id, if the umem has no user left.
    fn vacate_if(&self, state: depot::Use) {
        if state == depot::Use::Orphaned {
            // The depot returns `Orphaned` once: when the last user has left and the last frame is
            // returned. No handle, Pool or Local remains, and the caches of other threads hold no
            // frame.
            let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            self.depot.vacate();
            self.homes().iter().for_each(Depot::vacate);
            *self.memory() = None;
            self.attached.lock().unwrap_or_else(PoisonError::into_inner).clear();
            // SAFETY: every thread that could still read `fixed` needs IDS_LOCK for it, which is
            // held here.
            unsafe { (*self.fixed.get()).frames = 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, Pool};

    #[test]
    fn umem_is_unmapped_with_its_last_frame() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let umem = pool.umem();
        let (id, serial) = (umem.id() as usize, umem.own_serial());
        let mut one = [0];
        assert_eq!(umem.take(0, &mut one), 1);
        drop(pool);
        assert!(umem.memory().is_some() && umem.frames() == 4);
        umem.put_home(&one);
        // Another test may have taken the id since; this incarnation of it is over.
        Umem::if_alive(id, serial, |_| panic!("still alive"));
    }

    #[test]
    fn a_search_that_finds_no_frame_locks_only_the_depots_in_use() {
        let pool = Pool::builder().frames(4).return_to(Return::Home).build().unwrap();
        let (first, second) = (pool.local_with(0), pool.local_with(0));
        let (umem, mut four) = (pool.umem(), [0; 4]);
        assert_eq!(umem.take(first.core(), &mut four), 4);
        for (core, depots) in [(first.core(), 3), (second.core(), 3), (0, 3)] {
            let before = umem.locks().taken;
            assert_eq!(umem.take(core, &mut [0]), 0);
            assert_eq!(umem.locks().taken - before, depots, "core {core}");
        }
        // A frame in the depot of another core is found.
        umem.put_home(&four.map(|frame| handle::retag(frame, first.tag)));
        assert_eq!((first.core() != 0, umem.take(second.core(), &mut four)), (true, 4));
        umem.put_home(&four);
    }

    #[test]
    fn frames_and_lines_do_not_overlap_and_lines_are_cache_lines() {
        let pool = Pool::builder().frames(4).jumbo(2, 16384).build().unwrap();
        let (umem, tag) = (pool.umem(), handle::tag(pool.umem().id(), 9));
        let at = |i: u32| umem.place(tag | i).start.as_ptr() as usize;
        assert_eq!((at(1) - at(0), at(4) - at(3), at(12) - at(4)), (2048, 2048, 16384));
        assert_eq!((umem.place(tag | 3).bytes, umem.place(tag | 4).bytes), (2048, 16384));
        let (m, k) = (umem.meta(tag).as_ptr() as usize, umem.meta(tag | 1).as_ptr() as usize);
        assert_eq!((m % 64, k - m), (0, 64));
        let (m, k) = (umem.cold(tag).as_ptr() as usize, umem.cold(tag | 1).as_ptr() as usize);
        assert_eq!((m % 64, k - m), (0, 64));
    }

    /// Returns what `look` returns for a pool that has the id of a former one, with which `leave`
    /// was called. Another test may take the id in between; then tries again.
    fn in_a_used_id<T, R>(leave: impl Fn(&Pool) -> T, look: impl Fn(&Pool) -> R) -> R {
        let build = || Pool::builder().frames(4).return_to(Return::Home).build().unwrap();
        let once = |_| {
            let former = build();
            let (id, _left) = (former.umem().id(), leave(&former));
            drop(former);
            let pool = build();
            (pool.umem().id() == id).then(|| look(&pool))
        };
        (0..1000).find_map(once).expect("an id is used again")
    }

    #[test]
    fn a_value_that_outlives_its_pool_is_not_attached_to_the_next_one() {
        let found = |pool: &Pool| {
            let mut found = 0;
            let new = |all: Vec<Arc<u32>>| {
                found = all.len();
                Ok(Arc::new(7))
            };
            pool.attached(new).map(|value| (value, found)).unwrap()
        };
        let (_, others) = in_a_used_id(found, found);
        assert_eq!(others, 0);
    }

    #[test]
    fn a_value_that_is_chosen_again_is_attached_once() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let value = Arc::new(7u32);
        for attached in [0, 1, 1] {
            let again = |all: Vec<Arc<u32>>| {
                assert_eq!(all.len(), attached);
                Ok(value.clone())
            };
            assert!(pool.attached(again).is_ok());
        }
    }

    #[test]
    fn a_pool_knows_neither_the_depots_nor_the_names_of_the_former_one() {
        const LATE: DropReason = DropReason::app(9, "late");
        let leave = |pool: &Pool| {
            let mut locals = [(); 4].map(|()| pool.local_with(0));
            locals[0].alloc_one().unwrap().discard(LATE);
        };
        let look = |pool: &Pool| {
            let (umem, mut four) = (pool.umem(), [0; 4]);
            assert_eq!((umem.take(0, &mut four), umem.take(0, &mut [0])), (4, 0));
            let locks = umem.locks().taken;
            umem.put_home(&four);
            pool.local_with(0).alloc_one().unwrap().discard(LATE);
            (umem.opened.load(Ordering::Relaxed).count_ones(), locks, pool.ledger().dropped)
        };
        assert_eq!(in_a_used_id(leave, look), (1, 2, vec![(LATE, 1)]));
    }
}
