//! The memory behind a pool: one region cut into frames, and how a handle finds it.
//!
//! A handle is a number: `[31] shared or fragments | [30:26] umem 1..=31 | [25:0] frame`. The
//! process-wide [`TABLE`] turns the umem's part into an address; it is the one global of this
//! crate, and it is there because a plain `drop` has nothing else to find its pool by.
//!
//! Life: an id is taken by [`Umem::create`] and given back when the last `Pool`, the last `Local`
//! and the last frame are home, whichever comes last. Until then the memory stays mapped.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use linerate_sys::mem::{Huge, Region};
use linerate_sys::{Code, Error, Result};

use crate::depot::{self, Depot};
use crate::ledger::Books;
use crate::meta::Meta;
use crate::thread;

/// Bit of a handle whose frame has more than one handle, or fragments behind it.
pub(crate) const FLAG: u32 = 1 << 31;
/// Where the umem's id starts in a handle.
pub(crate) const ID_SHIFT: u32 = 26;
/// Mask of the frame's index in a handle.
pub(crate) const INDEX: u32 = (1 << ID_SHIFT) - 1;
/// Ids 1 to 31; 0 is no umem, so that no handle is 0.
pub(crate) const IDS: usize = 32;
/// Smallest and largest frame, in bytes.
const FRAME_BYTES: std::ops::RangeInclusive<u32> = 256..=65536;

/// Who else can write the frames: fixed when the umem is made.
///
/// It decides whether a `&[u8]` of a frame may exist at all. See docs/adr/0001.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Only this process and the kernel, which keeps the protocol of its rings.
    #[default]
    Private,
    /// A peer has the frames mapped writable and may write any of them at any time: they are
    /// copied, never borrowed.
    Exported,
}

/// Where each umem is. Written under [`IDS_LOCK`]; read without it by whoever holds a handle,
/// because a handle keeps its umem alive and reached its owner by a synchronised hand-over.
static TABLE: [AtomicPtr<Umem>; IDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; IDS];
/// Which incarnation of an id is current: thread caches of a former one are recognised by it.
static SERIALS: [AtomicU32; IDS] = [const { AtomicU32::new(0) }; IDS];
static IDS_LOCK: Mutex<()> = Mutex::new(());

/// A region, its frames' metadata, and who has the frames.
pub(crate) struct Umem {
    data: NonNull<u8>,
    meta: NonNull<Meta>,
    shift: u32,
    headroom: u32,
    trust: Trust,
    id: u32,
    frames: u32,
    pub depot: Depot,
    pub books: Books,
    /// Frames linked behind another one.
    pub linked: AtomicI64,
    /// Handles beyond the first, over all frames.
    pub extra: AtomicI64,
    /// `Pool`s and `Local`s.
    users: AtomicUsize,
    /// Frames that thread caches may still reserve for themselves.
    pub cache_budget: AtomicI64,
    region: Region,
    _meta_region: Region,
}

// SAFETY: the raw addresses are of mappings that the Umem owns. Who may touch which frame or meta
// line is the handles' business (one exclusive owner a frame, or atomics and reads only while it
// is shared), which holds on every thread; everything else here is atomic or locked.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

/// What is asked of a new umem.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub name: String,
    pub frames: u32,
    pub frame_bytes: u32,
    pub headroom_bytes: u32,
    pub trust: Trust,
    pub huge: Huge,
}

impl Shape {
    fn check(&self) -> Result<()> {
        let what = || format!("cannot make pool {}", self.name);
        let bad = |why: String, fix: &str| Err(Error::new(Code::PoolSize, what(), why).fix(fix));
        if self.frames == 0 || self.frames > INDEX + 1 {
            return bad(format!("{} frames; 1 to {} can be had", self.frames, INDEX + 1), "");
        }
        if !FRAME_BYTES.contains(&self.frame_bytes) || !self.frame_bytes.is_power_of_two() {
            let (lo, hi) = (FRAME_BYTES.start(), FRAME_BYTES.end());
            let why = format!(
                "a frame of {} bytes; it must be a power of two, {lo} to {hi}",
                self.frame_bytes
            );
            return bad(why, "frame_size 2048 carries a full Ethernet frame");
        }
        if self.headroom_bytes >= self.frame_bytes {
            let why = format!(
                "headroom {} leaves no room in a frame of {}",
                self.headroom_bytes, self.frame_bytes
            );
            return bad(why, "make the headroom smaller or the frames larger");
        }
        Ok(())
    }
}

impl Umem {
    /// Maps the memory and takes an id; the caller is its first user.
    pub fn create(shape: &Shape) -> Result<&'static Umem> {
        shape.check()?;
        thread::sweep();
        let n = shape.frames as usize;
        let region = Region::new(&shape.name, n * shape.frame_bytes as usize, shape.huge)?;
        let meta_region =
            Region::new(&format!("{}-meta", shape.name), n * size_of::<Meta>(), shape.huge)?;
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let id =
            (1..IDS).find(|&i| TABLE[i].load(Ordering::Relaxed).is_null()).ok_or_else(|| {
                Error::new(
                    Code::UmemIds,
                    format!("cannot make pool {}", shape.name),
                    "31 pools of this process are alive already",
                )
                .fix("drop pools that are no longer used, or share one between ports")
            })?;
        let tag = (id as u32) << ID_SHIFT;
        // Stacked so that frame 0 is taken first.
        let handles = (0..n).rev().map(|i| tag | i as u32);
        let umem = Box::new(Umem {
            data: region.base(),
            meta: meta_region.base().cast(),
            shift: shape.frame_bytes.trailing_zeros(),
            headroom: shape.headroom_bytes,
            trust: shape.trust,
            id: id as u32,
            frames: shape.frames,
            depot: Depot::new(handles),
            books: Books::new(),
            linked: AtomicI64::new(0),
            extra: AtomicI64::new(0),
            users: AtomicUsize::new(1),
            // An eighth of the pool at most is ever parked in thread caches.
            cache_budget: AtomicI64::new(i64::from(shape.frames / 8)),
            region,
            _meta_region: meta_region,
        });
        SERIALS[id].fetch_add(1, Ordering::Relaxed);
        let umem = Box::into_raw(umem);
        TABLE[id].store(umem, Ordering::Release);
        // SAFETY: just leaked from a Box; it is freed only by `destroy`, after the last user and
        // the last frame are gone, and every holder of this reference is one of the two.
        Ok(unsafe { &*umem })
    }

    /// The umem that `handle` is of. The caller owns the handle, or a `Pool` or `Local` of it.
    pub fn of(handle: u32) -> &'static Umem {
        let umem = TABLE[(handle >> ID_SHIFT) as usize % IDS].load(Ordering::Acquire);
        debug_assert!(!umem.is_null(), "a handle outlived its umem");
        // SAFETY: the caller's handle is outstanding, so not all frames are home and `destroy` has
        // not run; `create` stored a valid pointer before it gave out any handle of this id.
        unsafe { &*umem }
    }

    /// The current incarnation of the umem id in `handle`.
    pub fn serial(handle: u32) -> u32 {
        SERIALS[(handle >> ID_SHIFT) as usize % IDS].load(Ordering::Relaxed)
    }

    /// Runs `f` on the umem if this incarnation of its id still exists; it cannot go meanwhile.
    pub fn if_alive(id: usize, serial: u32, f: impl FnOnce(&Umem)) {
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let umem = TABLE[id].load(Ordering::Acquire);
        if !umem.is_null() && SERIALS[id].load(Ordering::Relaxed) == serial {
            // SAFETY: `destroy_if` clears TABLE and frees the Umem under the lock held here.
            f(unsafe { &*umem });
        }
    }

    /// Address of a frame's first byte.
    pub fn frame(&self, handle: u32) -> NonNull<u8> {
        let index = (handle & INDEX) as usize;
        debug_assert!(index < self.frames as usize);
        // SAFETY: handles are made by `create` only, so index < frames and the offset is inside
        // the region.
        unsafe { self.data.add(index << self.shift) }
    }

    /// Address of a frame's meta line.
    pub fn meta(&self, handle: u32) -> NonNull<Meta> {
        let index = (handle & INDEX) as usize;
        debug_assert!(index < self.frames as usize);
        // SAFETY: as for `frame`; the meta region has a line for each frame.
        unsafe { self.meta.add(index) }
    }

    /// Writes the hot line of a frame that the caller has just taken from a free list.
    pub fn init(&self, handle: u32) {
        // SAFETY: the caller owns the frame exclusively (it was on a free list and is in no Skb
        // yet), so nobody else reads or writes its line.
        unsafe { self.meta(handle).write(Meta::new(self.headroom)) }
    }

    pub fn frame_bytes(&self) -> u32 {
        1 << self.shift
    }

    pub fn headroom(&self) -> u32 {
        self.headroom
    }

    pub fn frames(&self) -> u32 {
        self.frames
    }

    pub fn trust(&self) -> Trust {
        self.trust
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// One more `Pool` or `Local`.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// True once no `Pool` or `Local` is left.
    pub fn abandoned(&self) -> bool {
        self.users.load(Ordering::Relaxed) == 0
    }

    /// One `Pool` or `Local` fewer; the caller does not use the umem afterwards.
    pub fn leave(&'static self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            thread::give_back(self.id as usize);
            let state = self.depot.close();
            self.destroy_if(state);
        }
    }

    /// Takes free frames back into the depot; the caller does not use the umem afterwards unless
    /// it has another claim on it.
    pub fn put_home(&'static self, handles: &[u32]) {
        let state = self.depot.put(handles);
        self.destroy_if(state);
    }

    fn destroy_if(&'static self, state: depot::Umem) {
        if state == depot::Umem::Orphaned {
            let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            let umem = TABLE[self.id as usize].swap(std::ptr::null_mut(), Ordering::AcqRel);
            // SAFETY: the depot says Orphaned once: under its lock, when the last user had left
            // and the last frame came home. No handle, Pool or Local remains, thread caches are
            // empty for this umem (their frames would be missing), so this is the last pointer.
            drop(unsafe { Box::from_raw(umem) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frames: u32, frame_bytes: u32, headroom_bytes: u32) -> Shape {
        let (trust, huge) = (Trust::Private, Huge::Never);
        Shape { name: "t".into(), frames, frame_bytes, headroom_bytes, trust, huge }
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_reason() {
        for (s, word) in [
            (shape(0, 2048, 256), "0 frames"),
            (shape(1 << 27, 2048, 256), "frames"),
            (shape(8, 2000, 256), "power of two"),
            (shape(8, 128, 0), "power of two"),
            (shape(8, 2048, 2048), "headroom"),
        ] {
            let e = Umem::create(&s).err().unwrap();
            assert_eq!(e.code, Code::PoolSize);
            assert!(e.why.contains(word), "{e}");
        }
    }

    #[test]
    fn a_umem_goes_when_its_last_frame_comes_home() {
        let umem = Umem::create(&shape(4, 2048, 256)).unwrap();
        let id = umem.id() as usize;
        let mut one = [0];
        assert_eq!(umem.depot.take(&mut one), 1);
        umem.leave();
        assert!(!TABLE[id].load(Ordering::Relaxed).is_null());
        assert_eq!(Umem::of(one[0]).frames(), 4);
        Umem::of(one[0]).put_home(&one);
    }

    #[test]
    fn frames_do_not_overlap() {
        let umem = Umem::create(&shape(4, 2048, 256)).unwrap();
        let tag = umem.id() << ID_SHIFT;
        let (a, b) = (umem.frame(tag).as_ptr() as usize, umem.frame(tag | 1).as_ptr() as usize);
        assert_eq!(b - a, 2048);
        let (m, k) = (umem.meta(tag).as_ptr() as usize, umem.meta(tag | 1).as_ptr() as usize);
        assert_eq!((m % 64, k - m), (0, 64));
        umem.leave();
    }
}
