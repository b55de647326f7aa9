//! The page of counters in which one writer counts its work on a pool's frames.
//!
//! Each [`Local`](crate::Local) and each thread cache counts into a page of its own: one writer,
//! plain loads and stores, nothing shared with another writer. Anyone may read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linerate_sys::thread::current_cpu;

use crate::handle::{self, CORES, Common};
use crate::reason::{DropReason, REASONS};

/// A counter with one writer and any number of readers.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    const fn zero() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n` to the counter. Only the page's owner calls it, so it need not be one atomic step.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn subtract(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The kind of a page's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CoreKind {
    /// A [`Local`](crate::Local): a queue, worker or task.
    #[default]
    Local,
    /// A thread that dropped or copied packets.
    Thread,
}

/// The ways in which a program gives up a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// Packets that the program has finished with.
    Consumed,
    /// Packets that a device or peer took.
    Sent,
    /// Skbs that were never used as packets.
    Unused,
    /// Packets that the program dropped for a reason.
    Dropped(DropReason),
}

impl Fate {
    /// Returns true if the skbs were used as packets.
    pub fn lived(self) -> bool {
        !matches!(self, Fate::Unused)
    }
}

/// The counters of one writer, on cache lines of their own, because neighbouring pages are written
/// by other cores.
#[repr(align(128))]
pub(crate) struct Page {
    pub kind: CoreKind,
    pub name: String,
    /// The core number in the handles of the writer's packets.
    pub core: usize,
    /// The CPU on which the writer was last seen, plus one.
    cpu: Counter,
    /// Times that the writer was seen on another CPU than before.
    pub moves: Counter,
    /// Packets allocated by the writer.
    pub alloc: Counter,
    /// Packets of `alloc` that a device received.
    pub received: Counter,
    /// Number of packets given up, by the core that allocated them; drops on `list` after `counted`
    /// are not included yet.
    pub freed: [Counter; CORES],
    /// Handles added by `share` and `clone`, by the core that allocated the packet.
    pub cloned: [Counter; CORES],
    /// Number of `freed` that were never used, by the core that allocated them. The next two fields
    /// count those sent and those dropped; the others were consumed.
    pub unused: [Counter; CORES],
    pub sent: Counter,
    pub dropped: [Counter; REASONS],
    /// Number of allocations that found no free frame.
    pub starved: Counter,
    /// Free frames on this writer's lists, and the highest number of them so far.
    pub level: Counter,
    /// A thread's free frames: a ring, whose length is a power of two, from `head` (the cold end)
    /// to `tail`. A drop only stores its handle there; the drops behind `counted` are counted when
    /// frames are moved.
    pub list: Vec<AtomicU32>,
    pub head: Counter,
    pub counted: Counter,
    pub tail: Counter,
    pub hot_list_len: Counter,
    /// Frames lent to a device's rings: they are neither free nor packets.
    pub lent: Counter,
    /// Number of visits to the depot that fetch frames, and of the frames fetched.
    pub refills: Counter,
    pub refilled: Counter,
    /// Number of visits to the depot that return frames, and of the frames returned.
    pub spills: Counter,
    pub spilled: Counter,
    /// Number of frames linked behind another one, plus the handles on each frame beyond its first.
    /// One page may add what another page subtracts, so only the sum over all pages is meaningful.
    pub linked: Counter,
    pub extra: Counter,
    /// Panics of objects held by packets, caught when the objects were released.
    pub release_panics: Counter,
    /// Memory from the allocator that packets hold, in bytes.
    pub blocks_bytes: Counter,
    /// Timed calls: their ticks and their packets.
    pub timed_alloc: Timed,
    pub timed_free: Timed,
    /// Packets with a recorded time of birth, by the power of two of their lifetime in ticks: freed
    /// on the core that allocated them, and on another one.
    pub dwell: [[Counter; DWELLS]; 2],
}

/// Number of classes of dwell times: powers of two of ticks.
pub(crate) const DWELLS: usize = 48;

/// Counts of timed calls.
#[derive(Default)]
pub(crate) struct Timed {
    pub ticks: Counter,
    pub packets: Counter,
    pub calls: Counter,
}

impl Timed {
    pub fn add(&self, ticks: u64, packets: u64) {
        self.ticks.add(ticks);
        self.packets.add(packets);
        self.calls.add(1);
    }

    fn fold(&self, other: &Timed) {
        self.ticks.add(other.ticks.value());
        self.packets.add(other.packets.value());
        self.calls.add(other.calls.value());
    }
}

impl Page {
    pub fn new(kind: CoreKind, name: &str, core: usize) -> Page {
        Page { kind, name: name.into(), core, ..Page::blank() }
    }

    /// Returns the page of a thread whose list holds `frames` frames.
    pub fn with_list(name: &str, frames: usize) -> Page {
        let list = (0..frames).map(|_| AtomicU32::new(0)).collect();
        Page { list, ..Page::new(CoreKind::Thread, name, 0) }
    }

    /// Returns a page without a writer.
    pub const fn blank() -> Page {
        const fn zero() -> Counter {
            Counter::zero()
        }
        const fn none() -> Timed {
            Timed { ticks: zero(), packets: zero(), calls: zero() }
        }
        Page {
            kind: CoreKind::Thread,
            name: String::new(),
            core: 0,
            cpu: zero(),
            moves: zero(),
            alloc: zero(),
            received: zero(),
            freed: [const { Counter::zero() }; CORES],
            cloned: [const { Counter::zero() }; CORES],
            unused: [const { Counter::zero() }; CORES],
            sent: zero(),
            dropped: [const { Counter::zero() }; REASONS],
            starved: zero(),
            level: zero(),
            list: Vec::new(),
            head: zero(),
            counted: zero(),
            tail: zero(),
            hot_list_len: zero(),
            lent: zero(),
            refills: zero(),
            refilled: zero(),
            spills: zero(),
            spilled: zero(),
            linked: zero(),
            extra: zero(),
            release_panics: zero(),
            blocks_bytes: zero(),
            timed_alloc: none(),
            timed_free: none(),
            dwell: [const { [const { Counter::zero() }; DWELLS] }; 2],
        }
    }

    /// Stores the CPU that the writer is on. Called when frames move, not for each packet.
    pub fn see_cpu(&self) {
        let now = current_cpu() as u64 + 1;
        let before = self.cpu.value();
        if before != now {
            self.cpu.set(now);
            self.moves.add(u64::from(before != 0));
        }
    }

    /// Returns the CPU on which the writer was last seen.
    pub fn cpu(&self) -> Option<usize> {
        (self.cpu.value() as usize).checked_sub(1)
    }

    /// Counts packets of this umem as given up in the way of `fate`.
    #[inline]
    pub fn freed(&self, fate: Fate, handles: &[u32], common: Common) {
        // Count frees first: a concurrent report calculates consumed packets as the freed ones less
        // all others.
        add_by_core(&self.freed, handles, common);
        self.count(fate, handles.len() as u64, || self.count_unused(handles, common));
    }

    #[cold]
    fn count_unused(&self, handles: &[u32], common: Common) {
        add_by_core(&self.unused, handles, common);
    }

    /// Counts one packet as given up in the way of `fate`.
    pub fn freed_one(&self, fate: Fate, handle: u32) {
        let core = handle::core(handle);
        self.freed[core].add(1);
        self.count(fate, 1, || self.unused[core].add(1));
    }

    #[inline]
    fn count(&self, fate: Fate, n: u64, unused: impl FnOnce()) {
        match fate {
            Fate::Consumed => {}
            Fate::Sent => self.sent.add(n),
            Fate::Unused => unused(),
            Fate::Dropped(reason) => self.dropped[reason.index()].add(n),
        }
    }

    /// Counts a visit to the depot that fetches frames.
    pub fn refilled(&self, frames: usize) {
        self.refills.add(1);
        self.refilled.add(frames as u64);
        self.see_cpu();
    }

    /// Counts a visit to the depot that returns frames.
    pub fn spilled(&self, frames: usize) {
        self.spills.add(1);
        self.spilled.add(frames as u64);
        self.see_cpu();
    }

    /// Counts the lifetime of a packet that carried the time of its allocation.
    pub fn dwelled(&self, handle: u32, ticks: u64) {
        let elsewhere = usize::from(handle::core(handle) != self.core);
        let power = (u64::BITS - ticks.leading_zeros()) as usize;
        self.dwell[elsewhere][power.min(DWELLS - 1)].add(1);
    }

    /// Returns the number of free frames that the writer holds.
    pub fn held(&self) -> u64 {
        // Another thread may see the owner's new head with its old tail.
        self.level.value() + self.tail.value().saturating_sub(self.head.value())
    }

    /// Counts the drops on the list that are not counted yet.
    ///
    /// # Safety
    /// As for [`Page::own`].
    pub unsafe fn settle(&self) {
        let (from, to) = (self.counted.value(), self.tail.value());
        // SAFETY: the caller guarantees that it is the page's owner.
        for handles in unsafe { self.own(from, to.saturating_sub(from) as usize) } {
            add_by_core(&self.freed, handles, Common::of(handles));
        }
        self.counted.set(to);
    }

    /// Returns `n` handles of the list, starting at position `from`, as two slices, because the
    /// list is a ring.
    ///
    /// # Safety
    /// The caller is the page's owner, who alone writes the list, and does not while it has these.
    pub unsafe fn own(&self, from: u64, n: usize) -> [&[u32]; 2] {
        let places = self.list.len();
        let start = if places == 0 { 0 } else { from as usize & (places - 1) };
        let first = n.min(places - start);
        // SAFETY: an AtomicU32 is a u32 in memory. Other threads only read the list, atomically,
        // while the caller reads it, so there is no race.
        let list = unsafe { std::slice::from_raw_parts(self.list.as_ptr().cast::<u32>(), places) };
        [&list[start..start + first], &list[..(n - first).min(start)]]
    }

    /// Returns the handles on the list that are not counted yet.
    fn pending(&self) -> impl Iterator<Item = u32> {
        // Another thread may read while the owner moves frames, and see old and new counters mixed:
        // limit the number to the list's length.
        let (from, to) = (self.counted.value(), self.tail.value());
        let n = to.saturating_sub(from).min(self.list.len() as u64);
        let mask = self.list.len().wrapping_sub(1);
        (from..from + n)
            .filter_map(move |at| self.list.get(at as usize & mask))
            .map(|handle| handle.load(Ordering::Relaxed))
    }

    /// Returns the number of packets given up, by the core that allocated them.
    pub fn freed_by_core(&self) -> [u64; CORES] {
        let mut freed = std::array::from_fn(|core| self.freed[core].value());
        self.pending().for_each(|handle| freed[handle::core(handle)] += 1);
        freed
    }

    /// Returns the number of `freed` that were never used, over all cores.
    pub fn unused_total(&self) -> u64 {
        self.unused.iter().fold(0, |sum, unused| sum.wrapping_add(unused.value()))
    }

    /// Returns the number of used packets given up, by the core that allocated them.
    pub fn used_by_core(&self) -> [u64; CORES] {
        // A free is counted before it is counted as unused, and may be read after: stop at zero.
        let mut used = self.freed_by_core();
        for (used, unused) in used.iter_mut().zip(&self.unused) {
            *used = used.saturating_sub(unused.value());
        }
        used
    }

    /// Adds the counts of another page, whose writer has ended.
    pub fn fold(&self, other: &Page) {
        let pairs = [
            (&self.moves, &other.moves),
            (&self.alloc, &other.alloc),
            (&self.received, &other.received),
            (&self.sent, &other.sent),
            (&self.starved, &other.starved),
            (&self.level, &other.level),
            (&self.lent, &other.lent),
            (&self.refills, &other.refills),
            (&self.refilled, &other.refilled),
            (&self.spills, &other.spills),
            (&self.spilled, &other.spilled),
            (&self.linked, &other.linked),
            (&self.extra, &other.extra),
            (&self.release_panics, &other.release_panics),
            (&self.blocks_bytes, &other.blocks_bytes),
        ];
        let arrays = [
            (&self.freed[..], &other.freed[..]),
            (&self.unused[..], &other.unused[..]),
            (&self.cloned[..], &other.cloned[..]),
            (&self.dropped[..], &other.dropped[..]),
            (&self.dwell[0][..], &other.dwell[0][..]),
            (&self.dwell[1][..], &other.dwell[1][..]),
        ];
        let all = arrays.into_iter().flat_map(|(to, from)| to.iter().zip(from));
        for (to, from) in all.chain(pairs) {
            // Most counters are zero: skip them, so that their cache lines are not written.
            if from.value() != 0 {
                to.add(from.value());
            }
        }
        self.timed_alloc.fold(&other.timed_alloc);
        self.timed_free.fold(&other.timed_free);
        // Keep the CPU on which the ended writer was seen last.
        self.cpu.set(other.cpu.value());
    }
}

/// Adds the number of `handles` to the counters of the cores that allocated them.
#[inline]
fn add_by_core(counters: &[Counter; CORES], handles: &[u32], common: Common) {
    match common.core() {
        Some(core) => counters[core].add(handles.len() as u64),
        None => handles
            .chunk_by(|a, b| handle::same_core(*a, *b))
            .for_each(|run| counters[handle::core(run[0])].add(run.len() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_are_counted_by_the_core_that_allocated() {
        let page = Page::new(CoreKind::Local, "p", 1);
        let handles = [1, 1, 2, 1, 5].map(|core| handle::tag(1, core));
        page.freed(Fate::Sent, &handles, Common::of(&handles));
        page.freed(Fate::Consumed, &handles[..2], Common::of(&handles[..2]));
        page.freed_one(Fate::Dropped(DropReason::TX_FULL), handles[4]);
        assert_eq!([1, 2, 5].map(|core| page.freed[core].value()), [5, 1, 2]);
        assert_eq!((page.freed_by_core().iter().sum::<u64>(), page.sent.value()), (8, 5));
        page.freed(Fate::Unused, &handles, Common::of(&handles));
        let (freed, used) = (page.freed_by_core(), page.used_by_core());
        assert_eq!((freed[1], freed.iter().sum::<u64>(), page.unused_total()), (8, 13, 5));
        assert_eq!([1, 2, 5].map(|core| used[core]), [5, 1, 2]);
    }

    #[test]
    fn a_list_whose_counters_are_read_in_no_order_is_never_shorter_than_empty() {
        let page = Page::with_list("thread", 512);
        page.head.set(256);
        page.tail.set(10);
        assert_eq!(page.held(), 0);
    }

    #[test]
    fn a_folded_page_adds_everything_up() {
        let (sum, page) =
            (Page::new(CoreKind::Thread, "t", 0), Page::new(CoreKind::Thread, "t", 0));
        page.freed_one(Fate::Unused, handle::tag(1, 7));
        page.spilled(9);
        page.dwelled(handle::tag(1, 7), 1000);
        page.dwelled(handle::tag(1, 0), 100);
        page.timed_free.add(100, 4);
        page.moves.add(5);
        page.release_panics.add(3);
        // What a writer keeps ends with it.
        page.hot_list_len.set(64);
        for _ in 0..2 {
            sum.fold(&page);
        }
        assert_eq!((sum.freed[7].value(), sum.unused[7].value(), sum.spilled.value()), (2, 2, 18));
        assert_eq!((sum.dwell[1][10].value(), sum.timed_free.packets.value()), (2, 8));
        assert_eq!((sum.dwell[0][7].value(), sum.moves.value()), (2, 10));
        assert_eq!((sum.release_panics.value(), sum.hot_list_len.value()), (6, 0));
        assert_eq!(sum.cpu(), page.cpu());
    }
}
