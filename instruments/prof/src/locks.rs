//! What a lock costs: how often it was taken, how often it was not free, and how long that took.

use std::fmt;
use std::ops::{Add, Deref, DerefMut, Sub};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use linerate_sys::tsc::ticks;
use serde::{Deserialize, Serialize};

use crate::proc::text::{aligned, figure, thousands};
use crate::region::ticks_hz;

/// What a lock cost, or several together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LockStats {
    /// Times that it was taken.
    pub acquisitions: u64,
    /// Times of these that somebody else held it.
    pub contended: u64,
    /// Time spent waiting for it then, in ticks of the CPU's clock.
    pub wait_ticks: u64,
}

/// What a lock cost for each packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PerPacket {
    /// Times that it was taken.
    pub acquisitions: f64,
    /// Times of these that somebody else held it.
    pub contended: f64,
    /// Time spent waiting for it.
    pub wait_ns: f64,
}

impl LockStats {
    /// Time spent waiting, in nanoseconds. The first call of a process measures the rate of the
    /// clock, which takes 15 ms.
    #[must_use]
    pub fn wait_ns(&self) -> f64 {
        self.wait_ticks as f64 * 1e9 / ticks_hz()
    }

    /// Share of the acquisitions that were contended, in per cent; `None` of none.
    #[must_use]
    pub fn contended_pct(&self) -> Option<f64> {
        let of = (self.acquisitions > 0).then_some(self.acquisitions as f64)?;
        Some(100.0 * self.contended as f64 / of)
    }

    /// The same for each of so many packets; `None` of none.
    #[must_use]
    pub fn per_packet(&self, packets: u64) -> Option<PerPacket> {
        let packets = (packets > 0).then_some(packets as f64)?;
        Some(PerPacket {
            acquisitions: self.acquisitions as f64 / packets,
            contended: self.contended as f64 / packets,
            wait_ns: self.wait_ns() / packets,
        })
    }
}

impl Add for LockStats {
    type Output = LockStats;

    fn add(self, more: LockStats) -> LockStats {
        LockStats {
            acquisitions: self.acquisitions.saturating_add(more.acquisitions),
            contended: self.contended.saturating_add(more.contended),
            wait_ticks: self.wait_ticks.saturating_add(more.wait_ticks),
        }
    }
}

/// What came since an earlier reading of the same lock. Of a later one: 0.
impl Sub for LockStats {
    type Output = LockStats;

    fn sub(self, before: LockStats) -> LockStats {
        LockStats {
            acquisitions: self.acquisitions.saturating_sub(before.acquisitions),
            contended: self.contended.saturating_sub(before.contended),
            wait_ticks: self.wait_ticks.saturating_sub(before.wait_ticks),
        }
    }
}

impl std::iter::Sum for LockStats {
    fn sum<I: Iterator<Item = LockStats>>(locks: I) -> LockStats {
        locks.fold(LockStats::default(), Add::add)
    }
}

impl fmt::Display for LockStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} acquisitions, {} contended, {} ns waited",
            thousands(self.acquisitions),
            thousands(self.contended),
            figure(self.wait_ns())
        )
    }
}

/// Locks by name, under each other; for each of so many packets, if somebody counted them.
#[derive(Debug, Clone, Copy)]
pub struct Locks<'a> {
    /// Name and cost of each.
    pub locks: &'a [(String, LockStats)],
    /// Packets that went through meanwhile.
    pub packets: Option<u64>,
}

impl fmt::Display for Locks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["lock", "acquisitions", "contended", "contended %", "waited ns"];
        let head = head.into_iter().chain(["acquisitions/packet", "waited ns/packet"]);
        let mut rows = vec![[const { String::new() }; 7]];
        rows[0].iter_mut().zip(head).for_each(|(cell, name)| *cell = name.into());
        for (name, lock) in self.locks {
            let each = self.packets.and_then(|packets| lock.per_packet(packets));
            let or_not = |value: Option<f64>| value.map_or("n/a".into(), figure);
            rows.push([
                name.clone(),
                thousands(lock.acquisitions),
                thousands(lock.contended),
                or_not(lock.contended_pct()),
                figure(lock.wait_ns()),
                or_not(each.map(|each| each.acquisitions)),
                or_not(each.map(|each| each.wait_ns)),
            ]);
        }
        aligned(f, &rows)?;
        match self.packets {
            None => writeln!(f, "n/a for each packet: nobody counted the packets"),
            Some(packets) => writeln!(f, "over {} packets", thousands(packets)),
        }
    }
}

/// A mutex that counts what it costs.
///
/// Cost:   a lock that is free pays an addition, under the lock; a contended one two readings of
///         the clock as well.
///
/// A thread that panics while it holds the lock does not take it from the others: what it guards is
/// as that thread left it. One that takes it again while it holds it waits for itself, for ever.
#[derive(Debug, Default)]
pub struct Counted<T> {
    value: Mutex<T>,
    counts: Counts,
}

/// What a lock cost. Only who holds it writes, so that nothing is lost without an atomic addition;
/// who asks need not take the lock, and is never what somebody else waits for.
#[derive(Debug, Default)]
struct Counts {
    acquisitions: AtomicU64,
    contended: AtomicU64,
    wait_ticks: AtomicU64,
}

/// The lock, held until it goes out of scope.
#[derive(Debug)]
#[must_use = "a lock that is not kept is free again at once"]
pub struct Held<'a, T> {
    value: MutexGuard<'a, T>,
    counts: &'a Counts,
}

impl Counts {
    /// Adds to one of them, under the lock.
    fn add(count: &AtomicU64, more: u64) {
        count.store(count.load(Relaxed).saturating_add(more), Relaxed);
    }

    fn read(&self) -> LockStats {
        LockStats {
            acquisitions: self.acquisitions.load(Relaxed),
            contended: self.contended.load(Relaxed),
            wait_ticks: self.wait_ticks.load(Relaxed),
        }
    }
}

impl<T> Counted<T> {
    /// A free lock around `value`.
    #[must_use]
    pub const fn new(value: T) -> Counted<T> {
        let counts = Counts {
            acquisitions: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            wait_ticks: AtomicU64::new(0),
        };
        Counted { value: Mutex::new(value), counts }
    }

    /// Takes the lock, and waits for it if it is not free: for ever if the caller holds it.
    pub fn lock(&self) -> Held<'_, T> {
        if let Some(held) = self.try_lock() {
            return held;
        }
        let start = ticks();
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ticks().saturating_sub(start);
        Counts::add(&self.counts.acquisitions, 1);
        Counts::add(&self.counts.contended, 1);
        Counts::add(&self.counts.wait_ticks, waited);
        Held { value, counts: &self.counts }
    }

    /// Takes the lock if it is free. An attempt in vain is not counted: nobody waited.
    #[must_use = "a lock that is not kept is free again at once"]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Counts::add(&self.counts.acquisitions, 1);
        Some(Held { value, counts: &self.counts })
    }

    /// What it cost so far, without taking the lock. While somebody takes it, the figures may be of
    /// a moment apart.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        self.counts.read()
    }

    /// What it guarded.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Held<'_, T> {
    /// What the lock cost so far, this time included.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        self.counts.read()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_free_lock_counts_and_reads_no_clock() {
        let lock = Counted::new(0);
        (0..100).for_each(|_| *lock.lock() += 1);
        assert!(lock.try_lock().is_some_and(|held| lock.try_lock().is_none() && *held == 100));
        let expected = LockStats { acquisitions: 101, contended: 0, wait_ticks: 0 };
        assert_eq!(lock.stats(), expected);
        assert_eq!(lock.into_inner(), 100);
    }

    #[test]
    fn who_asks_what_a_lock_cost_does_not_take_it() {
        let lock = Counted::new(());
        let held = lock.lock();
        // That would wait for ever.
        assert_eq!((lock.stats(), lock.stats().acquisitions), (held.stats(), 1));
        assert_eq!(
            std::thread::scope(|scope| scope.spawn(|| lock.stats()).join().unwrap()),
            held.stats()
        );
    }

    /// Whether a thread of ours sleeps in the kernel, as a waiter for a mutex does.
    fn sleeps(tid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S')
    }

    #[test]
    fn who_waits_is_counted_with_the_time_and_who_does_not_is_not() {
        let lock = Counted::new(());
        let (tell, hear) = std::sync::mpsc::channel();
        let held = lock.lock();
        let waited = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                lock.lock().stats()
            });
            let tid = hear.recv().unwrap();
            // It has nothing to sleep for but the lock; it takes as long as it takes.
            while !sleeps(tid) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let start = ticks();
            std::thread::sleep(Duration::from_millis(5));
            let least = ticks() - start;
            drop(held);
            let stats = waiter.join().unwrap();
            assert!(stats.wait_ticks >= least, "{stats:?} for at least {least}");
            stats
        });
        assert_eq!((waited.acquisitions, waited.contended), (2, 1));
        assert_eq!(lock.stats(), waited);
    }

    #[test]
    fn a_panic_under_the_lock_leaves_it_usable() {
        let lock = Counted::new(7);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(caught.is_err());
        assert_eq!(*lock.lock(), 7);
        assert_eq!(lock.stats().acquisitions, 2);
    }

    #[test]
    fn costs_add_subtract_and_divide_and_none_is_not_0() {
        let a = LockStats { acquisitions: 10, contended: 1, wait_ticks: 100 };
        let b = LockStats { acquisitions: 4, contended: 1, wait_ticks: 40 };
        assert_eq!([a, b].into_iter().sum::<LockStats>() - b, a);
        assert_eq!((b - a).acquisitions, 0);
        assert_eq!(a.per_packet(0), None);
        assert_eq!(a.per_packet(5).unwrap().acquisitions, 2.0);
        assert_eq!((a.contended_pct(), LockStats::default().contended_pct()), (Some(10.0), None));
    }

    #[test]
    fn locks_are_set_under_each_other_and_say_when_packets_are_not_known() {
        let locks =
            [("depot".to_owned(), LockStats { acquisitions: 2048, ..LockStats::default() })];
        let table = Locks { locks: &locks, packets: Some(4096) }.to_string();
        let said = "\
lock   acquisitions  contended  contended %  waited ns  acquisitions/packet  waited ns/packet
depot         2,048          0            0          0                 0.50                 0
over 4,096 packets
";
        assert_eq!(table, said);
        let unknown = Locks { locks: &locks, packets: None }.to_string();
        assert!(unknown.contains("n/a") && unknown.ends_with("nobody counted the packets\n"));
    }
}
