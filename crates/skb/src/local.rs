//! A queue's, worker's or task's own list of free frames: the hot list.
//!
//! `Send`, so that it moves with its task; not `Sync` and `&mut` throughout, so that nothing on its
//! path needs a lock. It trades with the depot half a list at a time, the cold half first.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use linerate_sys::tsc::ticks;

use crate::handle;
use crate::knob::HOT_LIST;
use crate::page::{CoreKind, Page};
use crate::policy::Return;
use crate::pool::Pool;
use crate::thread;
use crate::umem::Umem;

/// Most frames that are moved in one call when the hot list is off.
const UNLISTED: usize = 64;
/// Most jumbo frames on the list, which are also at most an eighth of the pool's jumbo frames, and
/// at most half of these on all lists together. A few are enough, because filling a jumbo frame
/// takes longer than the depot's lock.
pub(crate) const JUMBO_LISTED: usize = 32;
/// Number of frames of other cores that are gathered before they are returned.
pub(crate) const AWAY: usize = 64;
/// Indices of the two kinds of calls that are timed.
pub(crate) const ALLOC: usize = 0;
pub(crate) const FREE: usize = 1;
/// Number of calls after which a local checks again whether sampling has been turned on.
const UNSAMPLED: u32 = 1024;

/// Access to a pool for one owner.
///
/// Dropping it sends its frames home; skbs allocated from it live on.
#[derive(Debug)]
pub struct Local {
    pool: Pool,
    /// Free frames; the top is the one freed last.
    pub(crate) list: Vec<u32>,
    pub(crate) hot_list_len: usize,
    /// Frames that the list has reserved because its length is the default, or a shorter one.
    reserved: u32,
    pub(crate) jumbo: Vec<u32>,
    /// Most jumbo frames on the list: as many as it has reserved.
    jumbo_listed: u32,
    /// Free frames of other cores, to be returned to those cores.
    pub(crate) away: Vec<u32>,
    /// The upper bits of the handles of this local's packets.
    pub(crate) tag: u32,
    /// Calls until the next timed allocation and the next timed free.
    until_sample: [u32; 2],
    pub(crate) page: Arc<Page>,
    /// Marker that makes the local `!Sync`: it has one owner at a time. `Send`, not `Sync`.
    owner: PhantomData<Cell<()>>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page")
            .field("name", &self.name)
            .field("level", &self.held())
            .finish_non_exhaustive()
    }
}

impl Local {
    pub(crate) fn new(pool: Pool, name: &str, hot_list_len: usize) -> Local {
        let page = pool.umem().books.open(Page::new(CoreKind::Local, name, 0));
        pool.umem().open_home(page.core);
        let tag = handle::tag(pool.umem().id(), page.core as u32);
        let (list, jumbo, owner) = (Vec::new(), Vec::with_capacity(JUMBO_LISTED), PhantomData);
        let away = match pool.umem().return_to() {
            Return::Home => AWAY.min(pool.frames() / 8),
            Return::Local => 0,
        };
        let away = Vec::with_capacity(away);
        let until_sample = match pool.umem().sampling.load(Ordering::Relaxed) {
            0 => [UNSAMPLED; 2],
            every => [every; 2],
        };
        let mut local = Local {
            pool,
            list,
            hot_list_len: 0,
            reserved: 0,
            jumbo,
            jumbo_listed: 0,
            away,
            tag,
            until_sample,
            page,
            owner,
        };
        local.set_hot_list_len(hot_list_len);
        local
    }

    /// Creates a local with a list of the default length, `most`, or of half the frames that such
    /// lists may still reserve.
    pub(crate) fn with_default_list(pool: Pool, name: &str, most: usize) -> Local {
        let reserved = reserve(&pool.umem().list_budget, most as u32, 2);
        let mut local = Local::new(pool, name, reserved as usize);
        local.reserved = reserved;
        local
    }

    #[inline]
    pub(crate) fn umem(&self) -> &'static Umem {
        self.pool.umem()
    }

    /// Returns the pool that the hot list belongs to.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the local's core number in the pool, which its packets' handles carry; 0 if all
    /// numbers were in use.
    #[must_use]
    pub fn core(&self) -> usize {
        self.page.core
    }

    /// Returns the most frames that the local keeps on its hot list, including those that it
    /// gathers for other cores ([`Return::Home`]).
    #[must_use]
    pub fn hot_list_len(&self) -> usize {
        self.hot_list_len
    }

    /// Changes the length of the hot list; 0 turns it off. Frames that no longer fit go to the
    /// depot, the coldest first. Returns the length that was applied: at most 65,536, and at most
    /// the frames of the pool.
    ///
    /// A default list ([`Pool::local`]) that becomes shorter leaves the difference to later default
    /// lists. If it becomes longer again, it does not take the difference from them: the program
    /// adds the new length up, as that of [`Pool::local_with`].
    pub fn set_hot_list_len(&mut self, frames: usize) -> usize {
        let frames = frames.min(self.umem().frames() as usize).min(HOT_LIST.max as usize);
        if self.hot_list_len == 0 && frames > 0 {
            self.jumbo_listed = reserve(&self.umem().jumbo_budget, JUMBO_LISTED as u32, 4);
        }
        self.hot_list_len = frames;
        self.page.hot_list_len.set(frames as u64);
        if self.list.len() + self.away.len() > frames {
            self.send_away();
        }
        self.send_cold(self.list.len().saturating_sub(frames));
        let still_reserved = self.reserved.min(frames as u32);
        let given_back = self.reserved - still_reserved;
        self.reserved = still_reserved;
        self.umem().list_budget.fetch_add(given_back, Ordering::Relaxed);
        if frames == 0 {
            let jumbo = self.jumbo.len();
            if jumbo > 0 {
                self.page.level.subtract(jumbo as u64);
                self.page.spilled(jumbo);
                self.umem().put_jumbo_home(&self.jumbo);
                self.jumbo.clear();
            }
            let reserved = std::mem::take(&mut self.jumbo_listed);
            self.umem().jumbo_budget.fetch_add(reserved, Ordering::Relaxed);
        }
        // Reserve room for frames in transit even if the hot list's length is 0, so that nothing is
        // allocated later.
        self.list.reserve_exact(frames.max(UNLISTED) - self.list.len());
        self.publish();
        frames
    }

    #[inline]
    pub(crate) fn publish(&self) {
        self.page.level.set((self.list.len() + self.jumbo.len() + self.away.len()) as u64);
    }

    /// Returns the most jumbo frames that the local keeps.
    pub(crate) fn jumbo_listed(&self) -> usize {
        self.jumbo_listed as usize
    }

    /// Moves frames from the depot onto an empty list; returns false if the depot has no frames.
    #[cold]
    pub(crate) fn refill(&mut self, want: usize) -> bool {
        let most = self.hot_list_len.max(UNLISTED);
        let n = if self.hot_list_len == 0 {
            want.min(most)
        } else {
            want.max(self.hot_list_len.div_ceil(2)).min(most)
        };
        if !self.away.is_empty() {
            // Use the gathered frames of other cores first: once returned, they could be allocated
            // here only when those cores do not need them.
            self.list.append(&mut self.away);
            return true;
        }
        // `set_hot_list_len` reserved this capacity, so nothing is allocated here.
        self.list.resize(n, 0);
        let mut got = thread::take(self.umem(), &mut self.list);
        if got < n {
            let found = self.umem().take(self.page.core, &mut self.list[got..]);
            self.page.refilled(found);
            got += found;
        }
        self.list.truncate(got);
        got > 0
    }

    /// Stores the CPU that the calling thread is on, as the one that this local's packets are
    /// allocated and freed on, and as the one of the thread's own drops and copies.
    ///
    /// Visits to the depot store it too. A thread that was given a local, or was moved to another
    /// CPU, calls this, since it may need no frame of the depot for a long time.
    pub fn see_cpu(&self) {
        self.page.see_cpu();
        thread::see_cpu(self.umem());
    }

    /// Returns the number of this local's allocations so far that found too few frames.
    #[must_use]
    pub fn starved(&self) -> u64 {
        self.page.starved.value()
    }

    /// Counts `n` of the local's packets as received by a device.
    pub fn count_received(&mut self, n: usize) {
        self.page.received.add(n as u64);
    }

    /// Returns the start time of a call, if the call is to be timed.
    ///
    /// Cost: a count, for a call that is not.
    #[inline]
    pub(crate) fn sample_begins(&mut self, kind: usize) -> Option<u64> {
        self.until_sample[kind] -= 1;
        if self.until_sample[kind] == 0 { self.sample_next(kind) } else { None }
    }

    #[cold]
    fn sample_next(&mut self, kind: usize) -> Option<u64> {
        let every = self.umem().sampling.load(Ordering::Relaxed);
        self.until_sample[kind] = if every == 0 { UNSAMPLED } else { every };
        (every > 0).then(ticks)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let umem = self.umem();
        // Keep this order: the page must be closed while the Pool in this Local keeps the umem
        // alive.
        let mut frames = std::mem::take(&mut self.list);
        frames.append(&mut self.away);
        let jumbo = std::mem::take(&mut self.jumbo);
        self.page.level.set(0);
        umem.books.close(&self.page);
        if !frames.is_empty() {
            umem.put_home(&frames);
        }
        if !jumbo.is_empty() {
            umem.put_jumbo_home(&jumbo);
        }
        umem.list_budget.fetch_add(self.reserved, Ordering::Relaxed);
        umem.jumbo_budget.fetch_add(self.jumbo_listed, Ordering::Relaxed);
    }
}

/// Reserves `most` frames of `budget`, or `1/part` of the rest if that is less; returns how many.
///
/// A part of the rest, so that many lists get a few each.
fn reserve(budget: &AtomicU32, most: u32, part: u32) -> u32 {
    let mut left = budget.load(Ordering::Relaxed);
    loop {
        let reserved = most.min(left / part);
        let rest = left - reserved;
        match budget.compare_exchange_weak(left, rest, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return reserved,
            Err(now) => left = now,
        }
    }
}

#[cfg(test)]
mod tests;
