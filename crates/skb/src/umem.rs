//! The memory behind a pool: one region cut into frames, and how a handle finds it.
//!
//! ```text
//!  data   │ frame 0 │ frame 1 │ … │ frame n-1 │ jumbo 0 ........ │ jumbo 1 ........ │
//!  hot    │ line 0  │ line 1  │ … │           │ line │ (unused)  │                     a place for
//!  cold   │ line 0  │ line 1  │ … │           │ line │ (unused)  │                     each 64 bytes
//! ```
//!
//! A jumbo frame stands in the place of several frames and has the handle of the first. A handle's
//! umem is found in the process-wide [`UMEMS`]; it is the one global of this crate, and it is there
//! because a plain `drop` has nothing else to find its pool by.
//!
//! Life: an id is taken by [`Umem::create`] and given back when the last `Pool`, the last `Local`
//! and the last frame are home, whichever comes last. Until then the memory stays mapped.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_sys::mem::Region;
use linerate_sys::{Code, Error, Result};

use crate::block::Block;
use crate::books::Books;
use crate::depot::{self, Depot, JUMBO, Locks, PLAIN};
use crate::handle::{self, CORES, IDS};
use crate::lanes::Cold;
use crate::meta::Meta;
use crate::page::Page;
use crate::policy::{Data, Init, Return, Trust};
use crate::shape::Shape;
use crate::start::{self, WriteLines};
use crate::thread;

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
    /// Calls of which one is timed; 0 = none are.
    pub sampling: AtomicU32,
    pub depot: Depot,
    /// Frames on their way back to the core that allocated them.
    homes: [Depot; CORES],
    pub books: Books,
    /// The mappings; `None` while the id is vacant.
    memory: Mutex<Option<Memory>>,
}

/// What is constant while an id is in use.
struct Fixed {
    data: *mut u8,
    meta: *mut Meta,
    cold: *mut Cold,
    /// Where each packet's data is, if it comes from the allocator.
    blocks: *mut Block,
    /// Frames below this one need no second look: private, ordinary, in the region.
    plain: u32,
    shift: u32,
    headroom: u32,
    /// True if something is to be done for a frame when it is freed or allocated.
    retires: bool,
    data_from: Data,
    init: Init,
    return_to: Return,
    trust: Trust,
    write_lines: WriteLines,
    id: u32,
    /// Which incarnation of the id this is: thread caches of a former one are recognised by it.
    serial: u64,
    /// Ordinary frames.
    frames: u32,
    jumbo_frames: u32,
    jumbo_bytes: u32,
}

// SAFETY: `fixed` is written under IDS_LOCK, while the id is vacant. It is read under that lock, or
// by the owner of a handle, Pool or Local of the umem: these keep the id from becoming vacant, and
// got to their owner by a synchronised hand-over from whoever wrote it. Its addresses are of
// mappings that live as long; who may touch which frame is the handles' business. Everything else
// is atomic or locked.
unsafe impl Sync for Umem {}

struct Memory {
    frames: Option<Arc<Region>>,
    apart: [Option<Region>; 3],
}

/// Where the bytes of a frame are.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub start: NonNull<u8>,
    pub bytes: u32,
    pub trust: Trust,
}

impl Fixed {
    const VACANT: Fixed = Fixed {
        data: std::ptr::null_mut(),
        meta: std::ptr::null_mut(),
        cold: std::ptr::null_mut(),
        blocks: std::ptr::null_mut(),
        plain: 0,
        shift: 0,
        headroom: 0,
        retires: false,
        data_from: Data::Frames,
        init: Init::AtAlloc,
        return_to: Return::Local,
        trust: Trust::Private,
        write_lines: no_lines,
        id: 0,
        serial: 0,
        frames: 0,
        jumbo_frames: 0,
        jumbo_bytes: 0,
    };

    fn new(shape: &Shape, memory: &Memory, id: u32, serial: u64) -> Fixed {
        let base =
            |region: Option<&Region>| region.map_or(std::ptr::null_mut(), |r| r.base().as_ptr());
        let [meta, cold, blocks] = memory.apart.each_ref().map(|region| base(region.as_ref()));
        let simple = shape.trust == Trust::Private && shape.data == Data::Frames;
        Fixed {
            data: base(memory.frames.as_deref()),
            meta: meta.cast(),
            cold: cold.cast(),
            blocks: blocks.cast(),
            plain: if simple { shape.frames } else { 0 },
            shift: shape.frame_bytes.trailing_zeros(),
            headroom: shape.headroom_bytes,
            retires: shape.data == Data::General || shape.init == Init::AtFree,
            data_from: shape.data,
            init: shape.init,
            return_to: shape.return_to,
            trust: shape.trust,
            write_lines: start::best(),
            id,
            serial,
            frames: shape.frames,
            jumbo_frames: shape.jumbo_frames,
            jumbo_bytes: shape.jumbo_bytes,
        }
    }
}

/// The lines of no umem.
///
/// # Safety
/// There are none to write.
unsafe fn no_lines(_: *mut Meta, _: &[u32], _: u32) {}

impl Memory {
    fn map(shape: &Shape) -> Result<Memory> {
        let places = shape.places() as usize;
        let region = |what: &str, bytes: usize| {
            Region::new(&format!("{}{what}", shape.name), bytes, shape.huge)
        };
        let general = shape.data == Data::General;
        let frames = match general {
            true => None,
            false => Some(Arc::new(region("", places * shape.frame_bytes as usize)?)),
        };
        let meta = region("-meta", places * size_of::<Meta>())?;
        let cold = region("-lanes", places * size_of::<Cold>())?;
        let blocks = match general {
            true => Some(region("-blocks", places * size_of::<Block>())?),
            false => None,
        };
        Ok(Memory { frames, apart: [Some(meta), Some(cold), blocks] })
    }
}

impl Umem {
    const fn vacant() -> Umem {
        Umem {
            fixed: UnsafeCell::new(Fixed::VACANT),
            users: AtomicUsize::new(0),
            linked: AtomicI64::new(0),
            extra: AtomicI64::new(0),
            cache_budget: AtomicI64::new(0),
            sampling: AtomicU32::new(0),
            depot: Depot::vacant(),
            homes: [const { Depot::vacant() }; CORES],
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
        let memory = Memory::map(shape)?;
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
        let fixed = Fixed::new(shape, &memory, id as u32, umem.fixed().serial.wrapping_add(1));
        // SAFETY: the id is vacant and IDS_LOCK is held, so nobody reads or writes it.
        unsafe { *umem.fixed.get() = fixed };
        umem.users.store(1, Ordering::Relaxed);
        umem.linked.store(0, Ordering::Relaxed);
        umem.extra.store(0, Ordering::Relaxed);
        umem.sampling.store(0, Ordering::Relaxed);
        // An eighth of the pool at most is ever parked in thread caches.
        umem.cache_budget.store(i64::from(shape.frames / 8), Ordering::Relaxed);
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
            // The constructor: as if each had just been freed.
            for frames in [&plain, &jumbo] {
                // SAFETY: the frames are in no skb yet.
                unsafe { self.write_lines(frames) };
            }
        }
        self.depot.open([plain, jumbo]);
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The umem that `handle` is of.
    #[inline]
    pub fn of(handle: u32) -> &'static Umem {
        &UMEMS[handle::umem(handle)]
    }

    /// The umem with an id.
    #[inline]
    pub fn numbered(id: usize) -> &'static Umem {
        &UMEMS[id % IDS]
    }

    /// The current incarnation of the umem id in `handle`, which the caller owns.
    #[inline]
    pub fn serial(handle: u32) -> u64 {
        Umem::of(handle).fixed().serial
    }

    /// Which incarnation of its id this is.
    pub fn own_serial(&self) -> u64 {
        self.fixed().serial
    }

    /// Runs `f` on the umem if this incarnation of its id still exists; it cannot go meanwhile.
    pub fn if_alive(id: usize, serial: u64, f: impl FnOnce(&Umem)) {
        let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let umem = &UMEMS[id];
        if umem.fixed().frames > 0 && umem.fixed().serial == serial {
            f(umem);
        }
    }

    /// Where a frame is: in the region (or in its block), if `handle` is one of this umem.
    #[inline]
    pub fn place(&self, handle: u32) -> Place {
        let (fixed, index) = (self.fixed(), handle::frame(handle));
        if index >= fixed.plain {
            return self.place_apart(index);
        }
        let start = fixed.data.wrapping_add((index as usize) << fixed.shift);
        // SAFETY: a mapping is never at 0, and no frame lies where its end would wrap.
        let start = unsafe { NonNull::new_unchecked(start) };
        Place { start, bytes: 1 << fixed.shift, trust: Trust::Private }
    }

    /// The same where it takes a second look.
    #[cold]
    fn place_apart(&self, index: u32) -> Place {
        let fixed = self.fixed();
        if fixed.data_from == Data::General {
            // SAFETY: the table has an entry for each frame; the owner of this one's handle wrote
            // it last, and nobody else does.
            let block = unsafe { fixed.blocks.wrapping_add(index as usize).read() };
            return Place { start: block.start(), bytes: block.bytes, trust: fixed.trust };
        }
        let start = fixed.data.wrapping_add((index as usize) << fixed.shift);
        let bytes = if index < fixed.frames { 1 << fixed.shift } else { fixed.jumbo_bytes };
        // SAFETY: as in `place`.
        let start = unsafe { NonNull::new_unchecked(start) };
        Place { start, bytes, trust: fixed.trust }
    }

    /// Address of a frame's hot line: in its region, if `handle` is one of this umem.
    #[inline]
    pub fn meta(&self, handle: u32) -> NonNull<Meta> {
        let line = self.fixed().meta.wrapping_add(handle::frame(handle) as usize);
        // SAFETY: a mapping is never at 0, and none lies where its end would wrap.
        unsafe { NonNull::new_unchecked(line) }
    }

    /// Address of a frame's cold line: in its region, if `handle` is one of this umem.
    #[inline]
    pub fn cold(&self, handle: u32) -> NonNull<Cold> {
        let line = self.fixed().cold.wrapping_add(handle::frame(handle) as usize);
        // SAFETY: as for `meta`.
        unsafe { NonNull::new_unchecked(line) }
    }

    /// # Safety
    /// The frames are in no skb, and the caller alone has them.
    #[inline]
    unsafe fn write_lines(&self, handles: &[u32]) {
        let fixed = self.fixed();
        // SAFETY: handles of this umem have their lines in the table; `write_lines` was chosen on
        // this machine; the rest is the caller's promise.
        unsafe { (fixed.write_lines)(fixed.meta, handles, fixed.headroom) }
    }

    /// Makes empty packets of free frames; false, and nothing done, if there is no memory.
    ///
    /// # Safety
    /// The caller has just taken the frames from a free list: they are in no skb, so nobody else
    /// reads or writes their lines.
    #[inline]
    pub unsafe fn begin(&self, handles: &[u32], page: &Page) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.fixed().retires {
                return self.begin_apart(handles, self.frame_bytes(), page);
            }
            self.write_lines(handles);
        }
        true
    }

    /// The same with data of `bytes`, headroom included, where the allocator gives it.
    ///
    /// # Safety
    /// As for [`Umem::begin`].
    #[cold]
    pub unsafe fn begin_apart(&self, handles: &[u32], bytes: u32, page: &Page) -> bool {
        let fixed = self.fixed();
        if fixed.data_from == Data::General {
            for (i, &h) in handles.iter().enumerate() {
                let Some(block) = Block::new(bytes) else {
                    self.free_blocks(&handles[..i], page);
                    return false;
                };
                page.blocks_bytes.add(u64::from(block.truesize));
                // SAFETY: the table has an entry for each frame, and this one's is the caller's.
                unsafe { fixed.blocks.wrapping_add(handle::frame(h) as usize).write(block) };
            }
        }
        if fixed.init == Init::AtAlloc {
            // SAFETY: the caller's promise.
            unsafe { self.write_lines(handles) };
            return true;
        }
        for &h in handles {
            // SAFETY: the line was written when the frame was last freed, and is the caller's now.
            unsafe { self.meta(h).as_mut().begin(fixed.headroom) };
        }
        true
    }

    /// True if [`Umem::retire`] has something to do.
    #[inline]
    pub fn retires(&self) -> bool {
        self.fixed().retires
    }

    /// Does what the pool's policies ask for when frames are freed.
    ///
    /// # Safety
    /// The caller owned the last handle on each frame, and puts them on a free list next.
    #[cold]
    pub unsafe fn retire(&self, handles: &[u32], page: &Page) {
        if self.fixed().data_from == Data::General {
            self.free_blocks(handles, page);
        }
        if self.fixed().init == Init::AtFree {
            // SAFETY: the caller's promise.
            unsafe { self.write_lines(handles) };
        }
    }

    fn free_blocks(&self, handles: &[u32], page: &Page) {
        for &h in handles {
            let entry = self.fixed().blocks.wrapping_add(handle::frame(h) as usize);
            // SAFETY: the entry is of a frame that the caller owns, and was written by
            // `begin_apart`; what replaces it has no block to free.
            unsafe {
                let block = entry.replace(Block::NONE);
                page.blocks_bytes.subtract(u64::from(block.truesize));
                block.free();
            }
        }
    }

    /// Bytes of memory that a frame takes, with all that is kept for it.
    pub fn truesize(&self, handle: u32) -> usize {
        let (fixed, index) = (self.fixed(), handle::frame(handle));
        let mut places = 1;
        let data = match fixed.data_from {
            Data::General => {
                // SAFETY: as in `place_apart`.
                let block = unsafe { fixed.blocks.wrapping_add(index as usize).read() };
                block.truesize as usize + size_of::<Block>()
            }
            Data::Frames if index < fixed.frames => 1 << fixed.shift,
            Data::Frames => {
                places = (fixed.jumbo_bytes >> fixed.shift) as usize;
                fixed.jumbo_bytes as usize
            }
        };
        // Its place in the depot is a number.
        data + places * Shape::overhead_bytes() as usize + size_of::<u32>()
    }

    /// True if the frame is of the jumbo class.
    #[inline]
    pub fn is_jumbo(&self, handle: u32) -> bool {
        handle::frame(handle) >= self.fixed().frames
    }

    /// Bytes of an ordinary frame.
    #[inline]
    pub fn frame_bytes(&self) -> u32 {
        1 << self.fixed().shift
    }

    #[inline]
    pub fn headroom(&self) -> u32 {
        self.fixed().headroom
    }

    /// Bytes of the frame of every unflagged handle, if they are the same: jumbo frames are flagged.
    #[inline]
    pub fn unflagged_bytes(&self) -> Option<u32> {
        (self.fixed().data_from == Data::Frames).then(|| self.frame_bytes())
    }

    /// Ordinary frames.
    pub fn frames(&self) -> u32 {
        self.fixed().frames
    }

    /// Jumbo frames, and their size in bytes.
    pub fn jumbo(&self) -> (u32, u32) {
        (self.fixed().jumbo_frames, self.fixed().jumbo_bytes)
    }

    #[inline]
    pub fn trust(&self) -> Trust {
        self.fixed().trust
    }

    pub fn data_from(&self) -> Data {
        self.fixed().data_from
    }

    pub fn init(&self) -> Init {
        self.fixed().init
    }

    #[inline]
    pub fn return_to(&self) -> Return {
        self.fixed().return_to
    }

    #[inline]
    pub fn id(&self) -> u32 {
        self.fixed().id
    }

    /// The mapping of the frames, for a device or peer to share.
    pub fn region(&self) -> Option<Arc<Region>> {
        self.memory().as_ref().and_then(|m| m.frames.clone())
    }

    /// Bytes mapped: frames, lines, tables, the depot's stacks.
    pub fn mapped_bytes(&self) -> usize {
        let memory = self.memory();
        let Some(memory) = memory.as_ref() else { return 0 };
        let apart = memory.apart.iter().flatten().map(Region::len).sum::<usize>();
        let (jumbo, _) = self.jumbo();
        memory.frames.as_ref().map_or(0, |r| r.len())
            + apart
            + (self.frames() + jumbo) as usize * size_of::<u32>()
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
            self.homes().iter().for_each(|home| home.close_into(&self.depot));
            let state = self.depot.close();
            self.vacate_if(state);
        }
    }

    /// Gives a core's frames a place to return to.
    pub fn open_home(&self, core: usize) {
        if self.return_to() == Return::Home {
            self.homes[core].open_empty(self.frames() as usize);
        }
    }

    /// Takes free ordinary frames back; the caller does not use the umem afterwards unless it has
    /// another claim on it.
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
                // Nobody's, or the pool is being given up.
                let state = self.depot.put(PLAIN, run);
                self.vacate_if(state);
            }
        }
    }

    /// As [`Umem::put_home`], for jumbo frames.
    #[cold]
    pub fn put_jumbo_home(&'static self, handles: &[u32]) {
        let state = self.depot.put(JUMBO, handles);
        self.vacate_if(state);
    }

    /// Takes up to `out.len()` ordinary frames for a core: its own, else anybody's, and if there
    /// are none those that are on their way to another core.
    pub fn take(&self, core: usize, out: &mut [u32]) -> usize {
        let mut n = 0;
        if self.return_to() == Return::Home {
            n = self.homes[core].take(PLAIN, out);
        }
        if n < out.len() {
            n += self.depot.take(PLAIN, &mut out[n..]);
        }
        if n == 0 {
            n = self.homes().iter().map(|home| home.take(PLAIN, out)).find(|n| *n > 0).unwrap_or(0);
        }
        n
    }

    /// Takes up to `out.len()` jumbo frames.
    pub fn take_jumbo(&self, out: &mut [u32]) -> usize {
        self.depot.take(JUMBO, out)
    }

    /// Frames at home, over all depots.
    pub fn home_level(&self) -> u64 {
        let homes: usize = self.homes().iter().map(Depot::level).sum();
        (self.depot.level() + homes) as u64
    }

    /// What the locks of its depots have cost.
    pub fn locks(&self) -> Locks {
        self.homes().iter().fold(self.depot.locks(), |sum, home| sum.plus(home.locks()))
    }

    /// The depots of single cores, if there are any.
    fn homes(&self) -> &[Depot] {
        if self.return_to() == Return::Home { &self.homes } else { &[] }
    }

    /// Unmaps and gives the id back, if there is nobody left who could reach it.
    fn vacate_if(&self, state: depot::Umem) {
        if state == depot::Umem::Orphaned {
            // The depot says so once: when the last user had left and the last frame came home. No
            // handle, Pool or Local remains, and the caches of other threads hold no frame.
            let _guard = IDS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            self.depot.vacate();
            self.homes().iter().for_each(Depot::vacate);
            *self.memory() = None;
            // SAFETY: nobody is left who could read it without IDS_LOCK.
            unsafe { (*self.fixed.get()).frames = 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn a_umem_goes_when_its_last_frame_comes_home() {
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
}
