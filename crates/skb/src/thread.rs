//! The thread cache: the list onto which a plain `drop` puts a frame without a lock.
//!
//! One list a thread and umem, made on the thread's first drop of that umem. All caches of a umem
//! together hold at most an eighth of its frames, so that an idle thread cannot starve the others;
//! a small pool has none and drops go to its depot. A `Local` of the same thread takes from it
//! before it asks the depot. All its frames go to their depots at thread exit. Those of a umem
//! without a pool go when the thread makes a list for another umem or first drops a packet of
//! another one; no list is made for such a umem.
//!
//! In a pool that initialises at free, frames on a list have not been: they are all together when
//! they leave it, still on the thread that freed them.
//!
//! The table has 64 entries for 32 ids: a flagged handle (shared, or with fragments) indexes the
//! upper half, which is always full. So one comparison sends flagged handles, umems not met yet
//! and full lists to the slow path.

mod slot;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::chain;
use crate::handle::{self, Common, FLAG, TABLE};
use crate::page::{Fate, Page};
use crate::policy::Data;
use crate::umem::Umem;

use slot::{NOBODY, Slot};

/// Longest list of one umem's frames that a thread keeps.
const CACHE_MAX: i64 = 512;
/// Length of the shortest list that a thread opens.
const CACHE_MIN: u64 = 8;

thread_local! {
    static SLOTS: [Slot; TABLE] = const { [const { Slot::closed() }; TABLE] };
    /// The entries with the lists that the slots point into; dropping them at thread exit empties
    /// the slots first.
    static OWNED: RefCell<Owned> = const { RefCell::new(Owned(Vec::new())) };
}

struct Entry {
    id: usize,
    serial: u64,
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

/// Frees one skb, and counts it as consumed.
///
/// Cost: two stores, and the depot's lock in each half of a list.
#[inline]
pub(crate) fn free(handle: u32) {
    let done = SLOTS.try_with(|slots| {
        let slot = &slots[handle::table_index(handle)];
        let tail = &slot.page().tail;
        let at = tail.value();
        if at >= slot.limit.get() || slot.serial.get() != Umem::serial(handle) {
            return false;
        }
        // SAFETY: limit > 0 only between `open` and `close` of the slot's Entry, whose page's list
        // has mask + 1 elements.
        let place = unsafe { &*slot.list.get().add((at & slot.mask.get()) as usize) };
        place.store(handle, Ordering::Relaxed);
        tail.set(at + 1);
        true
    });
    if done != Ok(true) {
        free_slow(&[handle], Fate::Consumed);
    }
}

/// Frees skbs of any umem, counted as `fate`. A shared packet loses one handle; a chain is freed
/// with all its frames.
///
/// Cost: a list copy if the umem's cache has room, else its depot's lock: once, or twice where the
///       list's memory wraps.
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
    // Write the page before the last frame is returned, because that return may free the umem.
    let common = Common::of(run);
    if !common.flagged() {
        with_page(umem, |page| page.freed(fate, run, common));
        return keep(umem, run);
    }
    let (id, serial) = (umem.id() as usize, umem.own_serial());
    let own = page_of(umem);
    // A thread that is being torn down has no page; use a temporary one.
    let page = own.clone().unwrap_or_else(|| umem.books.open(Page::with_list("thread", 0)));
    page.freed(fate, run, common);
    for &h in run {
        if h & FLAG == 0 {
            keep(umem, &[h]);
            continue;
        }
        for frame in chain::put_down(umem, h, &page, fate.lived()).into_iter().flatten() {
            match umem.is_jumbo(frame) {
                true => keep_jumbo(umem, frame),
                false => keep(umem, &[frame]),
            }
        }
    }
    if own.is_none() {
        Umem::if_alive(id, serial, |umem| umem.books.close(&page));
    }
}

/// Returns a free jumbo frame to the depot.
pub(crate) fn keep_jumbo(umem: &'static Umem, frame: u32) {
    if umem.retires() {
        // SAFETY: the caller released the last handle on the frame.
        with_page(umem, |page| unsafe { umem.retire(&[frame], page) });
    }
    with_page(umem, |page| page.spilled(1));
    umem.put_jumbo_home(&[frame]);
}

/// Puts plain free frames on this thread's list, or returns them to their depot.
pub(crate) fn keep(umem: &'static Umem, frames: &[u32]) {
    if umem.data_from() == Data::General {
        // SAFETY: the caller released the last handles on the frames.
        with_page(umem, |page| unsafe { umem.retire(frames, page) });
    }
    let kept = SLOTS.try_with(|slots| {
        let slot = &slots[umem.id() as usize];
        if slot.page().list.is_empty() || slot.serial.get() != Umem::serial(frames[0]) {
            return false;
        }
        if slot.push(frames) {
            return true;
        }
        spill(umem, slot, frames.len()) && slot.push(frames)
    });
    if kept != Ok(true) {
        with_page(umem, |page| page.spilled(frames.len()));
        put_home(umem, frames);
    }
}

/// Moves the colder half of a full list to the depot, or more if `frames` more frames need the
/// room; returns false, and moves none, if there are more of them than places.
fn spill(umem: &'static Umem, slot: &Slot, frames: usize) -> bool {
    let (len, places) = (slot.len(), slot.page().list.len());
    if frames > places {
        return false;
    }
    let n = len.min((len + frames - places).max(places / 2));
    // Take the frames off the list first, so that a reader does not find a frame in two places.
    // SAFETY: the depot takes them below, and nothing is pushed before that.
    let cold = unsafe { slot.shift(n) };
    for part in cold.into_iter().filter(|part| !part.is_empty()) {
        slot.page().spilled(part.len());
        put_home(umem, part);
    }
    true
}

/// Moves frames from a thread's list to their depot, after initialising them: frames on the list
/// are not initialised.
fn put_home(umem: &'static Umem, frames: &[u32]) {
    // SAFETY: the frames were on this thread's list, or did not fit on it; nobody else has them.
    unsafe { umem.initialise_freed(frames) };
    umem.put_home(frames);
}

/// Takes up to `out.len()` frames of `umem` from this thread's list.
pub(crate) fn take(umem: &'static Umem, out: &mut [u32]) -> usize {
    SLOTS
        .try_with(|slots| {
            let slot = &slots[umem.id() as usize];
            let ours = slot.is_open() && slot.serial.get() == umem.own_serial();
            let n = if ours { slot.pop(out) } else { 0 };
            // SAFETY: the frames were just taken off this thread's list.
            unsafe { umem.initialise_freed(&out[..n]) };
            n
        })
        .unwrap_or(0)
}

/// Returns this thread's page of `umem`, opened on first use; `None` while the thread ends.
fn page_of(umem: &'static Umem) -> Option<Arc<Page>> {
    let (id, serial) = (umem.id() as usize, umem.own_serial());
    let met =
        |owned: &RefCell<Owned>| owned.borrow().0.iter().any(|e| (e.id, e.serial) == (id, serial));
    if !OWNED.try_with(met).ok()? {
        // This is the first use of a umem: return the frames of former umems now. Otherwise a
        // thread that only drops packets would keep the memory of all former umems mapped.
        sweep();
    }
    OWNED
        .try_with(|owned| {
            let owned = &mut owned.borrow_mut().0;
            if let Some(i) = owned.iter().position(|e| e.id == id) {
                if owned[i].serial == serial {
                    return owned[i].page.clone();
                }
                // The slot is of a former umem with this id, whose frames have all been returned.
                close(owned.swap_remove(i));
            }
            let entry = open(umem, id, serial);
            owned.push(entry);
            owned[owned.len() - 1].page.clone()
        })
        .ok()
}

/// Moves all frames of one umem on this thread's lists to their depots.
pub(crate) fn give_back(id: usize) {
    close_if(|entry| entry.id == id);
}

/// Moves this thread's frames of every umem that no pool uses to the umem's depot, so that the
/// umem's memory can be unmapped.
pub(crate) fn sweep() {
    close_if(|entry| {
        let mut abandoned = true;
        Umem::if_alive(entry.id, entry.serial, |umem| abandoned = umem.abandoned());
        abandoned
    });
}

fn close_if(pick: impl Fn(&Entry) -> bool) {
    // Close one entry at a time, outside the borrow: closing may free a umem.
    while let Ok(Some(entry)) = OWNED.try_with(|owned| {
        let owned = &mut owned.borrow_mut().0;
        let i = owned.iter().position(&pick)?;
        Some(owned.swap_remove(i))
    }) {
        close(entry);
    }
}

/// Runs `count` on this thread's page of `umem`.
///
/// `count` counts, and may allocate and free the blocks of packets' data; it does not use a slot of
/// this thread, so none is closed meanwhile.
pub(crate) fn with_page<R>(umem: &'static Umem, count: impl FnOnce(&Page) -> R) -> R {
    let known = SLOTS.try_with(|slots| {
        let slot = &slots[umem.id() as usize];
        let known = slot.serial.get() == umem.own_serial() && slot.is_open();
        known.then(|| slot.page.get())
    });
    if let Ok(Some(page)) = known {
        // SAFETY: the Entry of an open slot keeps the page alive until this thread closes the slot.
        // Only functions of this file close slots, and `count` calls none of them.
        return count(unsafe { &*page });
    }
    match page_of(umem) {
        Some(page) => count(&page),
        None => umem.books.count_closed(count),
    }
}

/// Stores the CPU that the calling thread is on in its page of `umem`, if it has one.
pub(crate) fn see_cpu(umem: &'static Umem) {
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[umem.id() as usize];
        if slot.is_open() && slot.serial.get() == umem.own_serial() {
            slot.page().see_cpu();
        }
    });
}

fn open(umem: &'static Umem, id: usize, serial: u64) -> Entry {
    // Take half of the remaining frames, so that many threads get a few each. Take none for a umem
    // that no pool uses: a frame on a list would keep its memory mapped, and no pool takes it back.
    let budget = umem.cache_budget.load(Ordering::Relaxed);
    let left = if umem.abandoned() { 0 } else { budget };
    let want = (left / 2).clamp(0, CACHE_MAX) as u64;
    // The list is a ring, so its length is the next power of two, if that many frames remain.
    let want = match want.next_power_of_two() as i64 {
        _ if want < CACHE_MIN => 0,
        next if next <= left => next,
        next => next / 2,
    };
    let reserved = match umem.cache_budget.fetch_sub(want, Ordering::Relaxed) {
        had if had >= want => want,
        _ => {
            umem.cache_budget.fetch_add(want, Ordering::Relaxed);
            0
        }
    };
    let page = umem.books.open(Page::with_list(&name(), reserved as usize));
    page.hot_list_len.set(reserved as u64);
    let entry = Entry { id, serial, reserved, page };
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[id];
        slot.list.set(entry.page.list.as_ptr());
        slot.page.set(Arc::as_ptr(&entry.page));
        slot.serial.set(serial);
        slot.mask.set((reserved - 1).max(0) as u64);
        let drops_plainly = umem.data_from() == Data::Frames;
        slot.limit.set(if drops_plainly { reserved as u64 } else { 0 });
    });
    entry
}

/// Returns the calling thread's name in reports.
fn name() -> String {
    let name = std::thread::current().name().map(str::to_owned);
    name.map_or_else(|| "thread".into(), |name| format!("thread {name}"))
}

/// Returns a list's frames to their depot and completes the counts of its page.
fn close(entry: Entry) {
    let mut frames = vec![0; entry.page.list.len()];
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[entry.id];
        let len = slot.pop(&mut frames);
        frames.truncate(len);
        slot.limit.set(0);
        slot.list.set(std::ptr::null());
        slot.page.set(&raw const NOBODY);
    });
    let settle = |umem: &Umem| {
        umem.cache_budget.fetch_add(entry.reserved, Ordering::Relaxed);
        umem.books.close(&entry.page);
    };
    match frames.first() {
        // The list has frames, which keep its umem alive.
        Some(&first) => {
            let umem = Umem::of(first);
            settle(umem);
            put_home(umem, &frames);
        }
        // An empty list does not keep its umem alive. If the umem has ended, its books have ended
        // too, and there is nothing to add to them.
        None => Umem::if_alive(entry.id, entry.serial, settle),
    }
}

#[cfg(test)]
mod tests;
