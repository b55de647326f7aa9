//! Where every packet went and where every frame is.
//!
//! Each [`Local`](crate::Local) and each thread cache counts into a [`Page`] of its own: one
//! writer, plain loads and stores. [`Books`] adds the pages up. Packets are counted on their way
//! (allocated, sent, dropped …); frames are found where they are (depot, hot lists, caches). The
//! two are independent, which is what makes their agreement a proof.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::reason::{DropReason, REASONS};
use crate::umem::Umem;

/// A counter with one writer; anyone may read.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the page's owner calls it, so it need not be one atomic step.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one writer has done.
pub(crate) struct Page {
    /// Frames handed out to skbs.
    pub alloc: Counter,
    /// Handles added by `share` and `clone`.
    pub cloned: Counter,
    /// Frames handed back without ever having been a packet.
    pub unused: Counter,
    /// Of the frames handed out, those that came in by a device.
    pub received: Counter,
    pub sent: Counter,
    pub consumed: Counter,
    pub dropped: [Counter; REASONS],
    /// Allocations that found nothing.
    pub starved: Counter,
    /// Free frames on this writer's list.
    pub level: Counter,
    /// Frames lent to a device's rings: neither free nor a packet.
    pub lent: Counter,
}

impl Page {
    fn new() -> Page {
        Page {
            alloc: Counter::default(),
            cloned: Counter::default(),
            unused: Counter::default(),
            received: Counter::default(),
            sent: Counter::default(),
            consumed: Counter::default(),
            dropped: [const { Counter(AtomicU64::new(0)) }; REASONS],
            starved: Counter::default(),
            level: Counter::default(),
            lent: Counter::default(),
        }
    }
}

/// What becomes of skbs that leave a program's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// The program is done with them.
    Consumed,
    /// A device or peer has them.
    Sent,
    /// They never were packets.
    Unused,
    /// Somebody would have wanted them.
    Dropped(DropReason),
}

impl Page {
    /// Counts `n` packets that met `fate`.
    pub fn count(&self, fate: Fate, n: u64) {
        match fate {
            Fate::Consumed => self.consumed.add(n),
            Fate::Sent => self.sent.add(n),
            Fate::Unused => self.unused.add(n),
            Fate::Dropped(reason) => self.dropped[reason.index()].add(n),
        }
    }
}

/// All pages of a umem.
pub(crate) struct Books {
    pages: Mutex<Pages>,
    /// Which of a program's own reasons have a name in `pages`.
    named: [AtomicBool; REASONS / 2],
}

struct Pages {
    open: Vec<(&'static str, Arc<Page>)>,
    /// Sum of the pages whose writers are gone.
    closed: Sums,
    /// Names of a program's own reasons.
    names: Vec<DropReason>,
}

#[derive(Clone, PartialEq)]
struct Sums {
    alloc: u64,
    cloned: u64,
    unused: u64,
    received: u64,
    sent: u64,
    consumed: u64,
    starved: u64,
    dropped: Vec<u64>,
    levels: [u64; 2],
    lent: u64,
}

impl Sums {
    const fn zero() -> Sums {
        Sums {
            alloc: 0,
            cloned: 0,
            unused: 0,
            received: 0,
            sent: 0,
            consumed: 0,
            starved: 0,
            dropped: Vec::new(),
            levels: [0; 2],
            lent: 0,
        }
    }

    fn add(&mut self, page: &Page) {
        self.alloc += page.alloc.value();
        self.cloned += page.cloned.value();
        self.unused += page.unused.value();
        self.received += page.received.value();
        self.sent += page.sent.value();
        self.consumed += page.consumed.value();
        self.starved += page.starved.value();
        self.lent += page.lent.value();
        self.dropped.resize(REASONS, 0);
        for (sum, c) in self.dropped.iter_mut().zip(&page.dropped) {
            *sum += c.value();
        }
    }
}

/// Name of a local's page.
pub(crate) const LOCAL: &str = "hot lists";
/// Name of a thread cache's page.
pub(crate) const THREAD: &str = "thread caches";

impl Books {
    pub const fn new() -> Books {
        let pages = Pages { open: Vec::new(), closed: Sums::zero(), names: Vec::new() };
        Books { pages: Mutex::new(pages), named: [const { AtomicBool::new(false) }; REASONS / 2] }
    }

    /// Starts over, for a new umem.
    pub fn reset(&self) {
        *self.lock() = Pages { open: Vec::new(), closed: Sums::zero(), names: Vec::new() };
        self.named.iter().for_each(|named| named.store(false, Ordering::Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        // Counters cannot be half changed by a panic.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page for a new writer.
    pub fn open(&self, kind: &'static str) -> Arc<Page> {
        let page = Arc::new(Page::new());
        self.lock().open.push((kind, page.clone()));
        page
    }

    /// Adds a page to the closed ones; its writer has given its frames back.
    pub fn close(&self, page: &Arc<Page>) {
        let mut pages = self.lock();
        if let Some(i) = pages.open.iter().position(|(_, p)| Arc::ptr_eq(p, page)) {
            pages.open.swap_remove(i);
            pages.closed.add(page);
        }
    }

    /// Counts on behalf of a writer that has no page (a thread that is being torn down).
    pub fn count_closed(&self, count: impl FnOnce(&Page)) {
        let page = Page::new();
        count(&page);
        self.lock().closed.add(&page);
    }

    /// Remembers the name of a program's own reason, the first time it is used.
    pub fn name(&self, reason: DropReason) {
        let Some(i) = reason.app_index() else { return };
        if !self.named[i].swap(true, Ordering::Relaxed) {
            self.lock().names.push(reason);
        }
    }

    fn sums(&self) -> Sums {
        let pages = self.lock();
        let mut sums = pages.closed.clone();
        sums.dropped.resize(REASONS, 0);
        for (kind, page) in &pages.open {
            sums.add(page);
            sums.levels[usize::from(*kind == THREAD)] += page.level.value();
        }
        sums
    }

    /// Adds everything up. If frames move meanwhile it looks again, a few times.
    pub fn ledger(&self, umem: &Umem) -> Ledger {
        let mut settled = false;
        let look = || {
            let linked = umem.linked.load(Ordering::Relaxed);
            let extra = umem.extra.load(Ordering::Relaxed);
            (self.sums(), umem.depot.level(), linked, extra)
        };
        let mut snap = look();
        for _ in 0..4 {
            let again = look();
            settled = again == snap;
            snap = again;
            if settled {
                break;
            }
        }
        let (sums, depot, linked, extra) = snap;
        self.write(umem, &sums, (depot as u64, linked, extra), settled)
    }

    fn write(&self, umem: &Umem, s: &Sums, found: (u64, i64, i64), settled: bool) -> Ledger {
        let (depot, linked, extra) = found;
        let names = self.lock().names.clone();
        let mut dropped = Vec::new();
        for (i, &n) in s.dropped.iter().enumerate().filter(|(_, n)| **n > 0) {
            let named = || names.iter().copied().find(|r| r.index() == i);
            // Another thread may be about to say its name.
            let reason = DropReason::ours(i).or_else(named).unwrap_or(DropReason::unnamed(i));
            dropped.push((reason, n));
        }
        let frames = u64::from(umem.frames());
        let home = depot + s.levels[0] + s.levels[1];
        // Handles alive, found from where the frames are.
        let found = frames as i64 - home as i64 - s.lent as i64 - linked + extra;
        Ledger {
            received: s.received,
            created: (s.alloc + s.cloned).wrapping_sub(s.unused + s.received),
            sent: s.sent,
            consumed: s.consumed,
            dropped,
            in_flight: found.max(0) as u64,
            starved: s.starved,
            frames,
            holders: vec![
                ("depot", depot),
                (LOCAL, s.levels[0]),
                (THREAD, s.levels[1]),
                ("device rings", s.lent),
                ("fragments", linked.max(0) as u64),
            ],
            settled,
        }
    }
}

/// What a pool did with every packet, and where its frames are.
///
/// `received + created = sent + consumed + dropped + in flight`: the left side and the drops are
/// counted as packets pass, `in flight` is found by looking where the frames are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ledger {
    /// Came in by a device.
    pub received: u64,
    /// Made by the program, or by sharing a packet.
    pub created: u64,
    /// Taken by a device or a peer.
    pub sent: u64,
    /// Dropped by the program without a reason: it had done its work with them.
    pub consumed: u64,
    /// Dropped for a reason, each with its count, none of them zero.
    pub dropped: Vec<(DropReason, u64)>,
    /// Skbs alive.
    pub in_flight: u64,
    /// Times an allocation found no frame.
    pub starved: u64,
    /// Frames of the pool.
    pub frames: u64,
    holders: Vec<(&'static str, u64)>,
    settled: bool,
}

impl Ledger {
    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.iter().find(|(r, _)| r.index() == reason.index()).map_or(0, |(_, n)| *n)
    }

    /// Packets dropped, over all reasons.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().map(|(_, n)| n).sum()
    }

    /// Packets that came in less packets that are accounted for; 0 if all is well.
    #[must_use]
    pub fn difference(&self) -> i64 {
        let came = self.received.wrapping_add(self.created);
        let went = self.sent + self.consumed + self.dropped_total() + self.in_flight;
        came.wrapping_sub(went) as i64
    }

    /// True if every packet is accounted for. It can be told only at rest.
    ///
    /// While packets move, the two sides are read at slightly different moments; an unsettled
    /// reading is given the benefit of the doubt. A thread that is interrupted between two counts
    /// looks settled and is not: before you believe an imbalance, stop what moves.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.difference() == 0 || !self.settled
    }

    /// True if nothing moved while it was read, so that the figures belong together.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.settled
    }

    /// Frames by holder; what no holder has is in flight.
    #[must_use]
    pub fn holders(&self) -> &[(&'static str, u64)] {
        &self.holders
    }

    /// The sum of two ledgers, of different pools.
    #[must_use]
    pub fn plus(mut self, other: &Ledger) -> Ledger {
        self.received += other.received;
        self.created = self.created.wrapping_add(other.created);
        self.sent += other.sent;
        self.consumed += other.consumed;
        self.in_flight += other.in_flight;
        self.starved += other.starved;
        self.frames += other.frames;
        for (reason, n) in &other.dropped {
            match self.dropped.iter_mut().find(|(r, _)| r.index() == reason.index()) {
                Some((_, sum)) => *sum += n,
                None => self.dropped.push((*reason, *n)),
            }
        }
        for (sum, (_, n)) in self.holders.iter_mut().zip(&other.holders) {
            sum.1 += n;
        }
        self.settled &= other.settled;
        self
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "received {}", self.received)?;
        if self.created != 0 {
            write!(f, " + created {}", self.created)?;
        }
        write!(f, " = sent {} + consumed {}", self.sent, self.consumed)?;
        write!(f, " + dropped {}", self.dropped_total())?;
        for (i, (reason, n)) in self.dropped.iter().enumerate() {
            write!(f, "{}{reason} {n}", if i == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.dropped.is_empty() { "" } else { ")" })?;
        write!(f, " + in flight {}   ", self.in_flight)?;
        match (self.difference(), self.settled) {
            (0, _) => f.write_str("OK"),
            (_, false) => f.write_str("moving"),
            (d, true) => {
                write!(f, "NOT BALANCED: {d} packets; frames {}:", self.frames)?;
                self.holders.iter().try_for_each(|(name, n)| write!(f, " {name} {n}"))
            }
        }
    }
}
