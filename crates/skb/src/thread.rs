//! The thread cache: where a plain `drop` puts a frame without a lock.
//!
//! One list a thread and umem, made on the thread's first drop of that umem. All caches of a umem
//! together hold at most an eighth of its frames, so that an idle thread cannot starve the others;
//! a small pool has none and drops go to its depot. A `Local` of the same thread takes from it
//! before it asks the depot. Everything goes home at thread exit, and what is of a umem without a
//! pool when the thread makes another one or first drops a packet of another one.
//!
//! The table has 64 entries for 32 ids: a flagged handle (shared, or with fragments) indexes the
//! upper half, which is always full. So one comparison sends flagged handles, umems not met yet
//! and full lists to the slow path.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::chain;
use crate::handle::{self, Common, FLAG, TABLE};
use crate::page::{CoreKind, Fate, Page};
use crate::umem::Umem;

/// Longest list a thread keeps of one umem, in frames.
const CACHE_MAX: i64 = 512;
/// Below this it is not worth having one.
const CACHE_MIN: i64 = 8;

/// One list. Plain numbers and pointers, so that reaching it costs no initialisation check.
struct Slot {
    len: Cell<u32>,
    /// Frames that fit.
    cap: Cell<u32>,
    /// Frames that a drop may add without a second look: none if the pool does something for each.
    drop_cap: Cell<u32>,
    serial: Cell<u64>,
    frames: Cell<*mut u32>,
    page: Cell<*const Page>,
}

impl Slot {
    const fn closed() -> Slot {
        Slot {
            len: Cell::new(0),
            cap: Cell::new(0),
            drop_cap: Cell::new(0),
            serial: Cell::new(0),
            frames: Cell::new(std::ptr::null_mut()),
            page: Cell::new(std::ptr::null()),
        }
    }
}

thread_local! {
    static SLOTS: [Slot; TABLE] = const { [const { Slot::closed() }; TABLE] };
    /// What the slots point into; dropped at thread exit, which empties the slots first.
    static OWNED: RefCell<Owned> = const { RefCell::new(Owned(Vec::new())) };
}

struct Entry {
    id: usize,
    serial: u64,
    /// From `Box::into_raw`, given back in `close`: the slot writes through the same pointer.
    frames: *mut [u32],
    reserved: i64,
    page: Arc<Page>,
}

struct Owned(Vec<Entry>);

impl Drop for Owned {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            close(entry);
        }
    }
}

/// Frees one skb that the program is done with.
pub(crate) fn free(handle: u32) {
    let done = SLOTS.try_with(|slots| {
        let slot = &slots[handle::table_index(handle)];
        let len = slot.len.get();
        if len >= slot.drop_cap.get() || slot.serial.get() != Umem::serial(handle) {
            return false;
        }
        // SAFETY: cap > 0 only between `open` and `close` of the slot's Entry, whose `frames` has
        // cap elements and is reached from this thread alone; len < cap.
        unsafe { slot.frames.get().add(len as usize).write(handle) };
        slot.len.set(len + 1);
        // SAFETY: as above, the Entry keeps its page alive.
        let page = unsafe { &*slot.page.get() };
        page.level.set(u64::from(len + 1));
        page.freed[handle::core(handle)].add(1);
        true
    });
    if done != Ok(true) {
        free_slow(&[handle], Fate::Consumed);
    }
}

/// Frees skbs of any umem, counted as `fate`. Shared ones lose a handle, chains go whole.
///
/// Cost: a list copy if the umem's cache has room, else its depot's lock once.
#[cold]
pub(crate) fn free_slow(handles: &[u32], fate: Fate) {
    for run in handles.chunk_by(|a, b| handle::same_umem(*a, *b)) {
        free_run(run, fate);
    }
}

/// Frees skbs of one umem.
fn free_run(run: &[u32], fate: Fate) {
    let umem = Umem::of(run[0]);
    if let Fate::Dropped(reason) = fate {
        umem.books.name(reason);
    }
    // The page is written before the last frame goes home, because that may be the end of the umem.
    let common = Common::of(run);
    let page = page_of(umem);
    match &page {
        Some(page) => page.freed(fate, run, common),
        None => umem.books.count_closed(|page| page.freed(fate, run, common)),
    }
    if !common.flagged() {
        return keep(umem, run);
    }
    for &h in run {
        if h & FLAG == 0 {
            keep(umem, &[h]);
        } else {
            // A page of its own, if the thread is being torn down: what it counts is lost with it.
            let spare = page.is_none().then(|| Page::new(CoreKind::Thread, "", 0));
            let Some(page) = page.as_deref().or(spare.as_ref()) else { return };
            chain::unlink(umem, h, page, |frame| match umem.is_jumbo(frame) {
                true => keep_jumbo(umem, frame),
                false => keep(umem, &[frame]),
            });
        }
    }
}

/// Sends a free jumbo frame home.
pub(crate) fn keep_jumbo(umem: &'static Umem, frame: u32) {
    if umem.retires() {
        // SAFETY: the caller gave up the last handle on it.
        with_page(umem, |page| unsafe { umem.retire(&[frame], page) });
    }
    umem.put_jumbo_home(&[frame]);
}

/// Puts plain free frames on this thread's list, or home.
pub(crate) fn keep(umem: &'static Umem, frames: &[u32]) {
    if umem.retires() {
        // SAFETY: the caller gave up the last handles on them.
        with_page(umem, |page| unsafe { umem.retire(frames, page) });
    }
    let kept = SLOTS.try_with(|slots| {
        let slot = &slots[umem.id() as usize];
        if slot.cap.get() == 0 || slot.serial.get() != Umem::serial(frames[0]) {
            return false;
        }
        if (slot.cap.get() - slot.len.get()) < frames.len() as u32 {
            spill(umem, slot);
        }
        let len = slot.len.get();
        if (slot.cap.get() - len) < frames.len() as u32 {
            return false;
        }
        // SAFETY: see `free`; len + frames.len() <= cap, and the source is the caller's slice,
        // which cannot overlap a list that only this module reaches.
        unsafe {
            let to = slot.frames.get().add(len as usize);
            std::ptr::copy_nonoverlapping(frames.as_ptr(), to, frames.len());
        }
        level(slot, len + frames.len() as u32);
        true
    });
    if kept != Ok(true) {
        umem.put_home(frames);
    }
}

/// Moves the colder half of a list to the depot.
fn spill(umem: &'static Umem, slot: &Slot) {
    let (len, cap) = (slot.len.get() as usize, slot.cap.get() as usize);
    let n = len.min(cap.div_ceil(2));
    // First, so that no frame is found in two places.
    level(slot, (len - n) as u32);
    // SAFETY: an open slot's Entry keeps the page alive.
    unsafe { &*slot.page.get() }.spilled(n);
    // SAFETY: the first len elements are initialised and this thread's alone; no reference to them
    // outlives the block, and `put_home` does not come back here.
    unsafe {
        let list = slot.frames.get();
        umem.put_home(std::slice::from_raw_parts(list, n));
        std::ptr::copy(list.add(n), list, len - n);
    }
}

fn level(slot: &Slot, len: u32) {
    slot.len.set(len);
    // SAFETY: called for open slots only, whose Entry keeps the page alive.
    unsafe { &*slot.page.get() }.level.set(u64::from(len));
}

/// Takes up to `out.len()` frames of `umem` from this thread's list.
pub(crate) fn take(umem: &'static Umem, out: &mut [u32]) -> usize {
    SLOTS
        .try_with(|slots| {
            let slot = &slots[umem.id() as usize];
            if slot.cap.get() == 0 || slot.serial.get() != umem.own_serial() {
                return 0;
            }
            let len = slot.len.get() as usize;
            let n = len.min(out.len());
            // SAFETY: the last n of len initialised elements, on this thread alone.
            let from = unsafe { std::slice::from_raw_parts(slot.frames.get().add(len - n), n) };
            out[..n].copy_from_slice(from);
            level(slot, (len - n) as u32);
            n
        })
        .unwrap_or(0)
}

/// This thread's page of `umem`, opened on first use; none while the thread is torn down.
fn page_of(umem: &'static Umem) -> Option<Arc<Page>> {
    let (id, serial) = (umem.id() as usize, umem.own_serial());
    let met =
        |owned: &RefCell<Owned>| owned.borrow().0.iter().any(|e| (e.id, e.serial) == (id, serial));
    if !OWNED.try_with(met).ok()? {
        // A umem not met before: what is left of those that are gone goes home first, so that a
        // thread that only drops cannot keep more than the last ones mapped.
        sweep();
    }
    OWNED
        .try_with(|owned| {
            let owned = &mut owned.borrow_mut().0;
            if let Some(i) = owned.iter().position(|e| e.id == id) {
                if owned[i].serial == serial {
                    return owned[i].page.clone();
                }
                // Of a former umem with this id, whose frames are all home.
                close(owned.swap_remove(i));
            }
            let entry = open(umem, id, serial);
            owned.push(entry);
            owned[owned.len() - 1].page.clone()
        })
        .ok()
}

/// Sends what this thread has of one umem home.
pub(crate) fn give_back(id: usize) {
    close_if(|entry| entry.id == id);
}

/// Sends what this thread still has of umems without a pool home, so that their memory can go.
pub(crate) fn sweep() {
    close_if(|entry| {
        let mut abandoned = true;
        Umem::if_alive(entry.id, entry.serial, |umem| abandoned = umem.abandoned());
        abandoned
    });
}

fn close_if(pick: impl Fn(&Entry) -> bool) {
    // One at a time and outside the borrow: closing may free a umem.
    while let Ok(Some(entry)) = OWNED.try_with(|owned| {
        let owned = &mut owned.borrow_mut().0;
        let i = owned.iter().position(&pick)?;
        Some(owned.swap_remove(i))
    }) {
        close(entry);
    }
}

/// Counts into this thread's page of `umem`.
pub(crate) fn with_page<R>(umem: &'static Umem, f: impl FnOnce(&Page) -> R) -> R {
    match page_of(umem) {
        Some(page) => f(&page),
        None => umem.books.count_closed(f),
    }
}

fn open(umem: &'static Umem, id: usize, serial: u64) -> Entry {
    // Half of what is left, so that many threads get a little each.
    let left = umem.cache_budget.load(Ordering::Relaxed);
    let want = (left / 2).min(CACHE_MAX);
    let want = if want < CACHE_MIN { 0 } else { want };
    let reserved = match umem.cache_budget.fetch_sub(want, Ordering::Relaxed) {
        had if had >= want => want,
        _ => {
            umem.cache_budget.fetch_add(want, Ordering::Relaxed);
            0
        }
    };
    let frames = Box::into_raw(vec![0u32; reserved as usize].into_boxed_slice());
    let entry =
        Entry { id, serial, frames, reserved, page: umem.books.open(CoreKind::Thread, &name()) };
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[id];
        slot.frames.set(entry.frames.cast());
        slot.page.set(Arc::as_ptr(&entry.page));
        slot.serial.set(serial);
        slot.len.set(0);
        slot.cap.set(reserved as u32);
        slot.drop_cap.set(if umem.retires() { 0 } else { reserved as u32 });
        entry.page.hot_list_len.set(reserved as u64);
    });
    entry
}

/// What the calling thread is called in reports.
fn name() -> String {
    let name = std::thread::current().name().map(str::to_owned);
    name.map_or_else(|| "thread".into(), |name| format!("thread {name}"))
}

/// Sends an entry's frames home and settles its page.
fn close(entry: Entry) {
    let mut len = 0;
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[entry.id];
        len = slot.len.get() as usize;
        slot.cap.set(0);
        slot.drop_cap.set(0);
        slot.len.set(0);
        slot.page.set(std::ptr::null());
        slot.frames.set(std::ptr::null_mut());
    });
    // SAFETY: made by `Box::into_raw` in `open`; the slot that aliased it was cleared above, and an
    // Entry is closed once.
    let frames = unsafe { Box::from_raw(entry.frames) };
    entry.page.level.set(0);
    let settle = |umem: &Umem| {
        umem.cache_budget.fetch_add(entry.reserved, Ordering::Relaxed);
        umem.books.close(&entry.page);
    };
    match frames.get(..len) {
        // A list with frames keeps its umem alive.
        Some(list @ [first, ..]) => {
            let umem = Umem::of(*first);
            settle(umem);
            umem.put_home(list);
        }
        // Without any, the umem may be gone, and the books that the page belongs to with it.
        _ => Umem::if_alive(entry.id, entry.serial, settle),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batch, Pool};

    #[test]
    fn drops_stay_on_the_thread_until_it_exits() {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(100);
        assert_eq!(mem.alloc(&mut batch, 100), 100);
        std::thread::spawn(move || {
            for skb in batch.drain() {
                drop(skb);
            }
        })
        .join()
        .unwrap();
        let ledger = pool.ledger();
        assert_eq!((ledger.consumed, ledger.in_flight, ledger.difference()), (100, 0, 0));
        assert!(ledger.holders().iter().any(|(name, n)| *name == "thread caches" && *n == 0));
    }

    #[test]
    fn an_idle_thread_cannot_starve_the_others() {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut mem = pool.local();
        mem.set_hot_list_len(0);
        let (tx, rx) = std::sync::mpsc::channel::<Batch>();
        let (done, idle) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|s| {
            let (done, idle) = (&done, &idle);
            s.spawn(move || {
                for mut batch in rx {
                    batch.drain().for_each(drop);
                }
                done.wait();
                idle.wait();
            });
            let mut batch = Batch::with_capacity(1024);
            assert_eq!(mem.alloc(&mut batch, 1024), 1024);
            tx.send(batch).unwrap();
            drop(tx);
            done.wait();
            let mut batch = Batch::with_capacity(1024);
            assert!(mem.alloc(&mut batch, 1024) >= 1024 - 1024 / 8);
            idle.wait();
        });
    }

    #[test]
    fn a_former_pools_cache_is_not_mistaken_for_the_next_ones() {
        for _ in 0..100 {
            let pool = Pool::builder().frames(256).build().unwrap();
            let mut mem = pool.local();
            let mut batch = Batch::with_capacity(64);
            mem.alloc(&mut batch, 64);
            batch.drain().for_each(drop);
            let ledger = pool.ledger();
            assert_eq!((ledger.consumed, ledger.difference()), (64, 0), "{ledger}");
        }
    }
}
