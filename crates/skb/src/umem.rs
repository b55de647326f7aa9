//! The memory behind a pool: one region cut into frames, and how a handle finds it.
//!
//! A handle is a number: `[31] shared or fragments | [30:26] umem 1..=31 | [25:0] frame`. The
//! process-wide [`UMEMS`] turns the umem's part into an address; it is the one global of this
//! crate, and it is there because a plain `drop` has nothing else to find its pool by.
//!
//! Life: an id is taken by [`Umem::create`] and given back when the last `Pool`, the last `Local`
//! and the last frame are home, whichever comes last. Until then the memory stays mapped.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Every umem there can be. A slot is never freed, only its memory is: so a thread that has just put
/// the last but one frame home may still be leaving the depot's lock while another one unmaps.
static UMEMS: [Umem; IDS] = [const { Umem::vacant() }; IDS];
/// Held while an id changes hands.
static IDS_LOCK: Mutex<()> = Mutex::new(());

/// A region, its frames' metadata, and who has the frames.
#[repr(align(128))]
pub(crate) struct Umem {
    fixed: UnsafeCell<Fixed>,
    /// `Pool`s and `Local`s.
    users: AtomicUsize,
    /// Frames linked behind another one.
    pub linked: AtomicI64,
    /// Handles beyond the first, over all frames.
    pub extra: AtomicI64,
    /// Frames that thread caches may still reserve for themselves.
    pub cache_budget: AtomicI64,
    pub depot: Depot,
    pub books: Books,
    /// The mappings; `None` while the id is vacant.
    memory: Mutex<Option<Memory>>,
}

/// What is constant while an id is in use.
struct Fixed {
    data: *mut u8,
    meta: *mut Meta,
    shift: u32,
    headroom: u32,
    /// 0 while the id is vacant.
    frames: u32,
    id: u32,
    /// Which incarnation of the id this is: thread caches of a former one are recognised by it.
    serial: u64,
    trust: Trust,
}

// SAFETY: `fixed` is written under IDS_LOCK, while the id is vacant. It is read under that lock, or
// by the owner of a handle, Pool or Local of the umem: these keep the id from becoming vacant, and
// got to their owner by a synchronised hand-over from whoever wrote it. Its addresses are of
// mappings that live as long; who may touch which frame is the handles' business. Everything else
// is atomic or locked.
unsafe impl Sync for Umem {}

struct Memory {
    frames: Arc<Region>,
    _meta: Region,
}

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
    const fn vacant() -> Umem {
        Umem {
            fixed: UnsafeCell::new(Fixed {
                data: std::ptr::null_mut(),
                meta: std::ptr::null_mut(),
                shift: 0,
                headroom: 0,
                frames: 0,
                id: 0,
                serial: 0,
                trust: Trust::Private,
            }),
            users: AtomicUsize::new(0),
            linked: AtomicI64::new(0),
            extra: AtomicI64::new(0),
            cache_budget: AtomicI64::new(0),
            depot: Depot::vacant(),
            books: Books::new(),
            memory: Mutex::new(None),
        }
    }

    /// What is constant while the id is in use, which the caller's handle, Pool, Local or IDS_LOCK
    /// sees to.
    #[inline]
    fn fixed(&self) -> &Fixed {
        // SAFETY: nobody writes meanwhile; see `impl Sync`.
        unsafe { &*self.fixed.get() }
    }

    /// Maps the memory and takes an id; the caller is its first user.
    pub fn create(shape: &Shape) -> Result<&'static Umem> {
        shape.check()?;
        thread::sweep();
        let n = shape.frames as usize;
        let region = Region::new(&shape.name, n * shape.frame_bytes as usize, shape.huge)?;
        let meta_name = format!("{}-meta", shape.name);
        let meta_region = Region::new(&meta_name, n * size_of::<Meta>(), shape.huge)?;
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let vacant = |id: &usize| UMEMS[*id].fixed().frames == 0;
        let id = (1..IDS).find(vacant).ok_or_else(|| {
            Error::new(
                Code::UmemIds,
                format!("cannot make pool {}", shape.name),
                "31 pools of this process are alive already",
            )
            .fix("drop pools that are no longer used, or share one between ports")
        })?;
        let umem = &UMEMS[id];
        let fixed = Fixed {
            data: region.base().as_ptr(),
            meta: meta_region.base().as_ptr().cast(),
            shift: shape.frame_bytes.trailing_zeros(),
            headroom: shape.headroom_bytes,
            frames: shape.frames,
            id: id as u32,
            serial: umem.fixed().serial.wrapping_add(1),
            trust: shape.trust,
        };
        // SAFETY: the id is vacant and IDS_LOCK is held, so nobody reads or writes it.
        unsafe { *umem.fixed.get() = fixed };
        umem.users.store(1, Ordering::Relaxed);
        umem.linked.store(0, Ordering::Relaxed);
        umem.extra.store(0, Ordering::Relaxed);
        // An eighth of the pool at most is ever parked in thread caches.
        umem.cache_budget.store(i64::from(shape.frames / 8), Ordering::Relaxed);
        umem.books.reset();
        let tag = (id as u32) << ID_SHIFT;
        // Stacked so that frame 0 is taken first.
        umem.depot.open((0..n).rev().map(|i| tag | i as u32));
        *umem.memory() = Some(Memory { frames: Arc::new(region), _meta: meta_region });
        Ok(umem)
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The umem that `handle` is of.
    #[inline]
    pub fn of(handle: u32) -> &'static Umem {
        &UMEMS[(handle >> ID_SHIFT) as usize % IDS]
    }

    /// The current incarnation of the umem id in `handle`, which the caller owns.
    #[inline]
    pub fn serial(handle: u32) -> u64 {
        Umem::of(handle).fixed().serial
    }

    /// Runs `f` on the umem if this incarnation of its id still exists; it cannot go meanwhile.
    pub fn if_alive(id: usize, serial: u64, f: impl FnOnce(&Umem)) {
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let umem = &UMEMS[id];
        if umem.fixed().frames > 0 && umem.fixed().serial == serial {
            f(umem);
        }
    }

    /// Address of a frame's first byte: in the region, if `handle` is one of this umem.
    #[inline]
    pub fn frame(&self, handle: u32) -> NonNull<u8> {
        let (fixed, index) = (self.fixed(), (handle & INDEX) as usize);
        debug_assert!(index < fixed.frames as usize);
        // SAFETY: a mapping is never at 0, and no frame lies where its end would wrap.
        unsafe { NonNull::new_unchecked(fixed.data.wrapping_add(index << fixed.shift)) }
    }

    /// Address of a frame's meta line: in its region, if `handle` is one of this umem.
    #[inline]
    pub fn meta(&self, handle: u32) -> NonNull<Meta> {
        let (fixed, index) = (self.fixed(), (handle & INDEX) as usize);
        debug_assert!(index < fixed.frames as usize);
        // SAFETY: as for `frame`.
        unsafe { NonNull::new_unchecked(fixed.meta.wrapping_add(index)) }
    }

    /// Writes the hot line of a frame.
    ///
    /// # Safety
    /// The caller has just taken the frame from a free list: it is in no skb, so nobody else reads
    /// or writes its line.
    #[inline]
    pub unsafe fn init(&self, handle: u32) {
        // SAFETY: the handle is of this umem, so the line is in its region; the rest is the
        // caller's promise.
        unsafe { self.meta(handle).write(Meta::new(self.headroom())) }
    }

    #[inline]
    pub fn frame_bytes(&self) -> u32 {
        1 << self.fixed().shift
    }

    #[inline]
    pub fn headroom(&self) -> u32 {
        self.fixed().headroom
    }

    pub fn frames(&self) -> u32 {
        self.fixed().frames
    }

    #[inline]
    pub fn trust(&self) -> Trust {
        self.fixed().trust
    }

    #[inline]
    pub fn id(&self) -> u32 {
        self.fixed().id
    }

    /// The mapping of the frames, for a device or peer to share.
    pub fn region(&self) -> Option<Arc<Region>> {
        self.memory().as_ref().map(|m| m.frames.clone())
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
            thread::give_back(self.id() as usize);
            let state = self.depot.close();
            self.vacate_if(state);
        }
    }

    /// Takes free frames back into the depot; the caller does not use the umem afterwards unless
    /// it has another claim on it.
    pub fn put_home(&'static self, handles: &[u32]) {
        let state = self.depot.put(handles);
        self.vacate_if(state);
    }

    /// Unmaps and gives the id back, if there is nobody left who could reach it.
    fn vacate_if(&self, state: depot::Umem) {
        if state == depot::Umem::Orphaned {
            // The depot says so once: when the last user had left and the last frame came home. No
            // handle, Pool or Local remains, and the caches of other threads hold no frame.
            let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            self.depot.vacate();
            *self.memory() = None;
            // SAFETY: nobody is left who could read it without IDS_LOCK.
            unsafe { (*self.fixed.get()).frames = 0 };
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
        let (id, serial) = (umem.id() as usize, Umem::serial(umem.id() << ID_SHIFT));
        let mut one = [0];
        assert_eq!(umem.depot.take(&mut one), 1);
        umem.leave();
        assert!(umem.memory().is_some() && umem.frames() == 4);
        umem.put_home(&one);
        // Another test may have taken the id since; this incarnation of it is over.
        Umem::if_alive(id, serial, |_| panic!("still alive"));
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
