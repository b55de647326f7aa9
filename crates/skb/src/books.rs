//! The counters of a umem: a page of counts for each writer, from which the ledger is read.
//!
//! Packets are counted on their way (allocated, sent, dropped …) in a [`Page`] for each writer;
//! frames are found where they are (depot, hot lists, caches, rings). The two are independent,
//! which is what makes their agreement a proof. Everything here is behind a lock and is called when
//! a writer comes or goes, or when a report is made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handle::CORES;
use crate::page::{CoreKind, Counter, Page};
use crate::reason::{DropReason, REASONS};

/// Most closed pages that are kept separately; further ones are added to one page.
const CLOSED_MAX: usize = 128;
const OTHERS: &str = "others";

/// All pages of a umem.
pub(crate) struct Books {
    pages: Mutex<Pages>,
    /// For each reason of the program's own: true if `names` has its name.
    named: [AtomicBool; REASONS / 2],
}

struct Pages {
    open: Vec<Arc<Page>>,
    /// Closed pages: one for each kind, name and number, in the order of the last closing. Written
    /// under the lock.
    closed: Vec<Arc<Page>>,
    /// Pages on which holders report how many packets they hold.
    tallies: Vec<Arc<TallyPage>>,
    /// Names of a program's own reasons.
    names: Vec<DropReason>,
}

/// The number of packets that one holder reports, on cache lines that no other holder writes.
#[repr(align(128))]
pub(crate) struct TallyPage {
    pub name: String,
    pub packets: Counter,
}

/// Sums over all pages and tallies.
#[derive(Clone, PartialEq)]
pub(crate) struct Sums {
    pub alloc: u64,
    pub cloned: u64,
    pub freed: u64,
    pub unused: u64,
    pub received: u64,
    pub sent: u64,
    pub starved: u64,
    pub dropped: Vec<u64>,
    /// Free frames on hot lists, and in thread caches.
    pub levels: [u64; 2],
    pub lent: u64,
    /// Number of frames that are linked behind another one, plus the handles on each frame beyond
    /// its first.
    pub linked: i64,
    pub extra: i64,
    /// Packets of each core that are allocated and not freed yet.
    pub outstanding: [i64; CORES],
    pub tallies: Vec<(String, u64)>,
}

impl Sums {
    fn zero() -> Sums {
        Sums {
            alloc: 0,
            cloned: 0,
            freed: 0,
            unused: 0,
            received: 0,
            sent: 0,
            starved: 0,
            dropped: vec![0; REASONS],
            levels: [0; 2],
            lent: 0,
            linked: 0,
            extra: 0,
            outstanding: [0; CORES],
            tallies: Vec::new(),
        }
    }

    fn add(&mut self, page: &Page) {
        // Read the frees before the fates (sent, unused, dropped): a packet that is given up
        // between the two reads is then not taken for a consumed one.
        self.outstanding[page.core] += page.alloc.value() as i64;
        for ((core, sum), freed) in
            self.outstanding.iter_mut().enumerate().zip(page.freed_by_core())
        {
            let cloned = page.cloned[core].value();
            self.cloned += cloned;
            self.freed += freed;
            *sum += cloned as i64 - freed as i64;
        }
        self.alloc = self.alloc.wrapping_add(page.alloc.value());
        self.unused = self.unused.wrapping_add(page.unused_total());
        self.received = self.received.wrapping_add(page.received.value());
        self.sent = self.sent.wrapping_add(page.sent.value());
        self.starved = self.starved.wrapping_add(page.starved.value());
        self.lent = self.lent.wrapping_add(page.lent.value());
        self.linked = self.linked.wrapping_add(page.linked.value() as i64);
        self.extra = self.extra.wrapping_add(page.extra.value() as i64);
        let level = &mut self.levels[usize::from(page.kind == CoreKind::Thread)];
        *level = level.wrapping_add(page.held());
        for (sum, c) in self.dropped.iter_mut().zip(&page.dropped) {
            *sum += c.value();
        }
    }
}

impl Pages {
    const fn none() -> Pages {
        Pages { open: Vec::new(), closed: Vec::new(), tallies: Vec::new(), names: Vec::new() }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Page>> {
        self.open.iter().chain(&self.closed)
    }

    /// Returns a core number for a new local: a number that is not in use and has no packet
    /// outstanding, else 0.
    fn free_core(&self) -> usize {
        let mut taken = [false; CORES];
        self.open.iter().for_each(|page| taken[page.core] = true);
        let mut sums = Sums::zero();
        self.all().for_each(|page| sums.add(page));
        (1..CORES).find(|&core| !taken[core] && sums.outstanding[core] == 0).unwrap_or(0)
    }

    /// Returns the page that sums up the closed pages of a kind, name and core, which becomes the
    /// last one.
    fn closed(&mut self, kind: CoreKind, name: &str, core: usize) -> &Arc<Page> {
        let find = |pages: &[Arc<Page>], name: &str| {
            pages.iter().position(|p| (p.kind, p.core) == (kind, core) && p.name == name)
        };
        let full = self.closed.len() >= CLOSED_MAX;
        let known = find(&self.closed, name);
        let known = known.or_else(|| find(&self.closed, OTHERS).filter(|_| full));
        let page = match known {
            Some(i) => self.closed.remove(i),
            None => Arc::new(Page::new(kind, if full { OTHERS } else { name }, core)),
        };
        self.closed.push(page);
        &self.closed[self.closed.len() - 1]
    }
}

impl Books {
    pub const fn new() -> Books {
        let named = [const { AtomicBool::new(false) }; REASONS / 2];
        Books { pages: Mutex::new(Pages::none()), named }
    }

    /// Resets all counters, tallies and names for a new umem.
    pub fn reset(&self) {
        // Reserve room for all names, so that a worker that drops packets allocates nothing.
        let names = Vec::with_capacity(REASONS / 2);
        *self.lock() = Pages { names, ..Pages::none() };
        self.named.iter().for_each(|named| named.store(false, Ordering::Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A panic cannot leave a counter half changed, so a poisoned lock is ignored.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a page for a new writer.
    pub fn open(&self, mut page: Page) -> Arc<Page> {
        let mut pages = self.lock();
        page.core = if page.kind == CoreKind::Local { pages.free_core() } else { 0 };
        page.see_cpu();
        let page = Arc::new(page);
        pages.open.push(page.clone());
        page
    }

    /// Adds a page to the closed ones, after its writer has returned its frames.
    pub fn close(&self, page: &Arc<Page>) {
        let mut pages = self.lock();
        if let Some(i) = pages.open.iter().position(|p| Arc::ptr_eq(p, page)) {
            pages.open.swap_remove(i);
            pages.closed(page.kind, &page.name, page.core).fold(page);
        }
    }

    /// Counts on behalf of a writer that has no page (a thread that is being torn down).
    pub fn count_closed<R>(&self, count: impl FnOnce(&Page) -> R) -> R {
        let mut pages = self.lock();
        count(pages.closed(CoreKind::Thread, "thread", 0))
    }

    /// Opens a page on which a holder of packets reports how many it has.
    pub fn tally(&self, name: &str) -> Arc<TallyPage> {
        let tally = Arc::new(TallyPage { name: name.into(), packets: Counter::default() });
        self.lock().tallies.push(tally.clone());
        tally
    }

    /// Removes a holder's tally.
    pub fn untally(&self, tally: &Arc<TallyPage>) {
        self.lock().tallies.retain(|t| !Arc::ptr_eq(t, tally));
    }

    /// Remembers the name of a program's own reason.
    ///
    /// Cost: a load; the books' lock at the first use of the reason in this pool.
    pub fn name(&self, reason: DropReason) {
        let Some(i) = reason.app_index() else { return };
        // Load before the swap: a swap takes the cache line from all other threads that drop
        // packets.
        if !self.named[i].load(Ordering::Relaxed) && !self.named[i].swap(true, Ordering::Relaxed) {
            self.lock().names.push(reason);
        }
    }

    /// Returns the names of a program's own reasons.
    pub fn names(&self) -> Vec<DropReason> {
        self.lock().names.clone()
    }

    /// Returns the sums over all pages.
    pub fn sums(&self) -> Sums {
        let pages = self.lock();
        let mut sums = Sums::zero();
        pages.all().for_each(|page| sums.add(page));
        sums.tallies = pages.tallies.iter().map(|t| (t.name.clone(), t.packets.value())).collect();
        sums
    }

    /// Calls `look` for each page, with `true` if its writer is alive; the pages of closed writers
    /// come last, in the order of closing.
    pub fn each(&self, mut look: impl FnMut(&Page, bool)) {
        let pages = self.lock();
        pages.open.iter().for_each(|page| look(page, true));
        pages.closed.iter().for_each(|page| look(page, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn cores_that_come_and_go_under_ever_new_names_are_added_up_in_one() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let ended = 2 * CLOSED_MAX;
        for i in 0..ended {
            drop(pool.local_named(&format!("core {i}"), 0).alloc_one());
        }
        let cores = pool.stats().cores;
        assert!(cores.len() <= CLOSED_MAX + 2, "{}", cores.len());
        let mut ended_ones = cores.iter().filter(|c| c.kind == CoreKind::Local);
        assert_eq!(ended_ones.clone().map(|c| c.allocs).sum::<u64>(), ended as u64);
        assert_eq!(ended_ones.next_back().unwrap().name, OTHERS);
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
    }
}
