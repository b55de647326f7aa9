//! The model: cache lines and their holders, and the transfers that each access causes.
//!
//! ```text
//!             a load of CPU c                         a store of CPU c
//! held by c   nothing                                 others hold it: a write transfer, they lose it
//! not by c    written by another: a read transfer     the same; and a fill
//!             else a fill only: from memory, or a copy that can be shared
//! ```
//!
//! The states are those of MESI: a line has holders, and at most one of them has written it. A
//! line's whole state is one word that threads exchange, so accesses of several threads need no
//! lock. The order in which two threads' accesses come to us is that of QEMU's callbacks, which may
//! be another than memory's where threads race; accesses that a program orders itself come in its
//! order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::cache::{Cache, Shape};

/// Most CPUs that are counted separately; a further CPU shares the entry of an earlier one.
pub const CPUS: usize = 56;
/// Bytes of a line.
pub const LINE: u64 = 64;

const LINES_A_PAGE: usize = 64;
const PAGES_AT_HAND: usize = 4096;
const SHARDS: usize = 64;
const WRITTEN: u64 = 1 << 63;
const HOLDERS: u64 = (1 << CPUS) - 1;

/// The counts of an instruction.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Site {
    /// Address of the instruction.
    pub pc: u64,
    /// Loads of a line that another CPU wrote last, and that no other CPU has loaded since.
    pub read: AtomicU64,
    /// Stores to a line that other CPUs held.
    pub write: AtomicU64,
    /// Lines that entered the CPU's cache, from anywhere.
    pub lines_in: AtomicU64,
    /// Lines that left the CPU's cache during this instruction: evicted, or written by another CPU.
    pub lines_out: AtomicU64,
}

/// The lines, CPUs and counts of a run.
#[derive(Debug)]
pub struct Model {
    shards: Vec<Mutex<HashMap<u64, &'static Page>>>,
    cpus: Vec<Cpu>,
    shape: Option<Shape>,
    /// Number of CPUs that share the entry of an earlier CPU.
    sharing: AtomicUsize,
    /// True while lines are followed.
    pub follows: AtomicBool,
    /// True while transfers are counted.
    pub counts: AtomicBool,
    /// Lines that a device wrote while a CPU held them, by CPU; they belong to no instruction.
    pub device: AtomicU64,
}

/// The states of the lines in 4 KiB of memory.
type Page = [AtomicU64; LINES_A_PAGE];

#[derive(Debug)]
#[repr(align(128))]
struct Cpu {
    /// The last instruction of this CPU, or of one that shares the entry, that accessed memory.
    site: AtomicPtr<Site>,
    cache: Option<Mutex<Cache>>,
    /// Number of memory accesses that were followed.
    accesses: AtomicU64,
}

thread_local! {
    /// Pages that this thread used recently, indexed by the last bits of their number; most
    /// look-ups need no lock because of it.
    static AT_HAND: RefCell<Vec<Option<(u64, &'static Page)>>> =
        RefCell::new(vec![None; PAGES_AT_HAND]);
}

impl Model {
    /// Creates a model without lines; without a `shape`, each CPU's cache is unlimited.
    #[must_use]
    pub fn new(shape: Option<Shape>, follows: bool) -> Model {
        let cpu = || Cpu {
            site: AtomicPtr::default(),
            cache: shape.map(|shape| Mutex::new(Cache::new(shape))),
            accesses: AtomicU64::new(0),
        };
        Model {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cpus: (0..CPUS).map(|_| cpu()).collect(),
            shape,
            sharing: AtomicUsize::new(0),
            follows: AtomicBool::new(follows),
            counts: AtomicBool::new(follows),
            device: AtomicU64::new(0),
        }
    }

    /// Returns the size of each CPU's cache.
    #[must_use]
    pub const fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// Returns the number of accesses followed, and of CPUs that made them.
    #[must_use]
    pub fn accesses(&self) -> (u64, usize) {
        let each = self.cpus.iter().map(|cpu| cpu.accesses.load(Ordering::Relaxed));
        each.filter(|n| *n > 0).fold((0, 0), |(sum, cpus), n| (sum + n, cpus + 1))
    }

    /// Returns the number of CPUs that share the entry of an earlier CPU. Transfers between CPUs
    /// with one entry are not counted.
    #[must_use]
    pub fn sharing(&self) -> usize {
        self.sharing.load(Ordering::Relaxed)
    }

    /// Follows an access of `bytes` at `address` by `cpu`.
    pub fn access(&self, cpu: usize, address: u64, bytes: u64, store: bool, site: &'static Site) {
        if cpu >= CPUS {
            self.sharing.fetch_max(cpu - CPUS + 1, Ordering::Relaxed);
        }
        let cpu = cpu % CPUS;
        let here = &self.cpus[cpu];
        // No ordering is needed: other CPUs read the word only to count a line that this CPU lost.
        here.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        here.accesses.fetch_add(1, Ordering::Relaxed);
        let (first, last) = (address / LINE, (address + bytes.max(1) - 1) / LINE);
        for line in first..=last {
            self.line(cpu, line, store, site);
        }
    }

    /// Removes the lines of a range from every CPU's cache, because a device writes them.
    pub fn written_by_device(&self, address: u64, bytes: u64) {
        for line in address / LINE..=(address + bytes.max(1) - 1) / LINE {
            let held = with_state(self, line, |state| state.swap(0, Ordering::AcqRel)) & HOLDERS;
            if self.counts.load(Ordering::Relaxed) {
                self.device.fetch_add(u64::from(held.count_ones()), Ordering::Relaxed);
            }
        }
    }

    fn line(&self, cpu: usize, line: u64, store: bool, site: &'static Site) {
        let bit = 1 << cpu;
        let (before, others) = with_state(self, line, |state| {
            let mut old = state.load(Ordering::Acquire);
            loop {
                let others = old & HOLDERS & !bit;
                let new = match (store, old & bit != 0) {
                    (true, _) => bit | WRITTEN,
                    (false, true) => return (old, others),
                    (false, false) => (old & HOLDERS) | bit,
                };
                if new == old {
                    return (old, others);
                }
                match state.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return (old, others),
                    Err(now) => old = now,
                }
            }
        });
        if let Some(cache) = &self.cpus[cpu].cache {
            self.make_room(cpu, line, cache, site);
        }
        if !self.counts.load(Ordering::Relaxed) {
            return;
        }
        if before & bit == 0 {
            site.lines_in.fetch_add(1, Ordering::Relaxed);
        }
        if store && others != 0 {
            site.write.fetch_add(1, Ordering::Relaxed);
            self.lost(others);
        } else if !store && before & bit == 0 && before & WRITTEN != 0 {
            site.read.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a lost line for each CPU in `losers`, at the instruction that the CPU runs.
    fn lost(&self, losers: u64) {
        for (cpu, here) in self.cpus.iter().enumerate() {
            if losers & 1 << cpu != 0
                && let Some(site) = here.site()
            {
                site.lines_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn make_room(&self, cpu: usize, line: u64, cache: &Mutex<Cache>, site: &'static Site) {
        let bit = 1 << cpu;
        let held = |line| with_state(self, line, |state| state.load(Ordering::Relaxed)) & bit != 0;
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(evicted) = cache.use_line(line, held) else { return };
        drop(cache);
        // A changed line is written back on eviction: memory is then up to date, so the line no
        // longer counts as written by a CPU.
        with_state(self, evicted, |state| state.fetch_and(HOLDERS & !bit, Ordering::AcqRel));
        if self.counts.load(Ordering::Relaxed) {
            site.lines_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the page with number `page`, which is never freed.
    fn page(&self, page: u64) -> &'static Page {
        let shard = &self.shards[page as usize % SHARDS];
        let mut pages = shard.lock().unwrap_or_else(PoisonError::into_inner);
        pages.entry(page).or_insert_with(|| Box::leak(Box::new([const { AtomicU64::new(0) }; 64])))
    }
}

impl Cpu {
    /// Returns the CPU's last instruction that accessed memory.
    fn site(&self) -> Option<&'static Site> {
        let site = self.site.load(Ordering::Relaxed);
        // SAFETY: the pointer is null, or made from a `&'static Site` by `Model::access`, the only
        // place that stores it; a site is only ever shared, and never freed.
        unsafe { site.as_ref() }
    }
}

/// Calls `with` with the state of `line`.
fn with_state<T>(model: &Model, line: u64, with: impl FnOnce(&AtomicU64) -> T) -> T {
    let (number, place) = (line / LINES_A_PAGE as u64, line as usize % LINES_A_PAGE);
    let page = AT_HAND.try_with(|at_hand| {
        let mut at_hand = at_hand.borrow_mut();
        match &mut at_hand[number as usize % PAGES_AT_HAND] {
            Some((kept, page)) if *kept == number => *page,
            slot => slot.insert((number, model.page(number))).1,
        }
    });
    // A thread that is ending has no table of recent pages any more.
    with(&page.unwrap_or_else(|_| model.page(number))[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> &'static Site {
        Box::leak(Box::default())
    }

    fn counts(site: &Site) -> [u64; 4] {
        [&site.read, &site.write, &site.lines_in, &site.lines_out]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns an address range for one test, because the threads' cache of pages is shared by all
    /// models.
    fn apart(test: u64) -> u64 {
        test << 30
    }

    #[test]
    fn a_line_that_two_cpus_write_in_turn_travels_once_a_turn() {
        let (model, at, a, b) = (Model::new(None, true), apart(1), site(), site());
        for _ in 0..10 {
            for (cpu, site) in [(0, a), (1, b)] {
                model.access(cpu, at, 8, false, site);
                model.access(cpu, at, 8, true, site);
            }
        }
        // The first of all finds a line that no cache has.
        assert_eq!(counts(a), [9, 9, 10, 10]);
        assert_eq!(counts(b), [10, 10, 10, 9]);
    }

    #[test]
    fn readers_share_and_a_private_line_stays() {
        let (model, at, reads, writes) = (Model::new(None, true), apart(2), site(), site());
        for cpu in 0..4 {
            model.access(cpu, at, 8, false, reads);
            model.access(cpu, at + 4096 * (1 + cpu as u64), 8, true, writes);
            model.access(cpu, at + 4096 * (1 + cpu as u64), 8, true, writes);
        }
        assert_eq!((counts(reads), counts(writes)), ([0, 0, 4, 0], [0, 0, 4, 0]));
        model.access(3, at, 8, true, writes);
        assert_eq!(counts(writes), [0, 1, 4, 3], "three others lost it where they ran last");
        model.access(3, at + 60, 8, true, writes);
        assert_eq!(counts(writes)[2], 5, "across two lines");
    }

    #[test]
    fn cpus_beyond_the_last_entry_share_one_and_are_reported() {
        let (model, at, cpu) = (Model::new(None, true), apart(6), site());
        model.access(0, at, 8, true, cpu);
        model.access(CPUS - 1, at + 64, 8, true, cpu);
        assert_eq!((model.sharing(), model.accesses()), (0, (2, 2)));
        model.access(CPUS, at, 8, false, cpu);
        model.access(CPUS + 1, at + 128, 8, false, cpu);
        assert_eq!((model.sharing(), model.accesses()), (2, (4, 3)));
        assert_eq!(counts(cpu), [0, 0, 3, 0], "the first shares the entry of CPU 0");
    }

    #[test]
    fn what_a_device_wrote_is_in_no_cache() {
        let (model, at, cpu) = (Model::new(None, true), apart(3), site());
        model.access(0, at, 8, true, cpu);
        model.access(1, at + 64, 8, false, cpu);
        model.written_by_device(at, 1536);
        assert_eq!(model.device.load(Ordering::Relaxed), 2);
        model.access(1, at, 8, false, cpu);
        assert_eq!(counts(cpu), [0, 0, 3, 0]);
    }

    #[test]
    fn a_full_cache_evicts_and_what_was_written_back_is_no_transfer() {
        let shape = Shape { sets: 1, ways: 2 };
        let (model, at, cpu) = (Model::new(Some(shape), true), apart(4), site());
        for line in 1..4 {
            model.access(0, at + 64 * line, 8, true, cpu);
        }
        assert_eq!(counts(cpu), [0, 0, 3, 1]);
        model.access(1, at + 64, 8, false, cpu);
        assert_eq!(counts(cpu), [0, 0, 4, 1], "evicted by the third");
        model.access(1, at + 128, 8, false, cpu);
        assert_eq!(counts(cpu), [1, 0, 5, 1], "still in the other's cache");
    }

    #[test]
    fn what_is_followed_without_being_counted_is_warm_later() {
        let (model, at, cpu) = (Model::new(None, false), apart(5), site());
        model.access(0, at, 8, true, cpu);
        assert_eq!(counts(cpu), [0; 4]);
        model.counts.store(true, Ordering::Relaxed);
        model.access(1, at, 8, false, cpu);
        assert_eq!(counts(cpu), [1, 0, 1, 0]);
    }
}
