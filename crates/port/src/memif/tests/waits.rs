//! A counter of the times that a worker gave up its CPU in a turn, in order to wait, and the time
//! of its longest turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::doctor::kernel;

/// The first kernel in which a page fault on a mapped file takes the lock of its mapping only.
/// Before, it takes the lock of the address space, and waits while another thread of the process
/// maps or unmaps.
const FAULTS_ARE_FREE: (u32, u32) = (6, 7);

/// Returns the number of times that this thread has waited so far, for a lock, a peer, a device or
/// a time, and the number of its page faults. A thread that loses its CPU to another one does not
/// wait.
fn waits_and_faults() -> (u64, u64) {
    // SAFETY: the structure has integers only, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure, to a variable that is alive.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(result, 0);
    (usage.ru_nvcsw as u64, (usage.ru_minflt + usage.ru_majflt) as u64)
}

/// The turns of a worker, and the number of its waits in them.
pub struct Turns {
    taken: AtomicU64,
    waits: AtomicU64,
    /// Time of the longest turn. It is reported and not checked, because other programs may have
    /// had the CPU.
    longest_ns: AtomicU64,
    /// True if each page fault may be a wait, which does not count then.
    faults_wait: bool,
}

impl Default for Turns {
    fn default() -> Turns {
        let faults_wait = kernel::version().is_none_or(|version| version < FAULTS_ARE_FREE);
        Turns {
            taken: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
            faults_wait,
        }
    }
}

impl Turns {
    /// Takes a turn: calls all that a worker does between two sleeps.
    pub fn take<R>(&self, turn: impl FnOnce() -> R) -> R {
        let (waits_before, faults_before) = waits_and_faults();
        let start = Instant::now();
        let result = turn();
        let longest_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (waits, faults) = waits_and_faults();
        self.longest_ns.fetch_max(longest_ns, Ordering::Relaxed);
        let excused = if self.faults_wait { faults - faults_before } else { 0 };
        self.waits.fetch_add((waits - waits_before).saturating_sub(excused), Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Returns the number of turns that have ended.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the time of the longest turn.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed))
    }

    /// Asserts that the worker has taken turns, and did not wait in any of them.
    pub fn assert_free(&self) {
        let (taken, waits) = (self.taken(), self.waits.load(Ordering::Relaxed));
        let longest_ms = self.longest().as_secs_f64() * 1e3;
        eprintln!("{waits} waits in {taken} turns; the longest took {longest_ms:.1} ms");
        assert!(taken > 0 && waits == 0, "a worker waited {waits} times in {taken} turns");
    }
}

#[test]
fn wait_in_a_turn_is_counted_and_work_is_not() {
    let turns = Turns::default();
    turns.take(|| (0..1000).for_each(|_| std::hint::spin_loop()));
    turns.assert_free();
    let block = || std::thread::sleep(Duration::from_millis(1));
    // Without the page faults of a first call.
    block();
    turns.take(block);
    assert_eq!((turns.waits.load(Ordering::Relaxed), turns.taken()), (1, 2));
    assert!(turns.longest_ns.load(Ordering::Relaxed) >= 1_000_000);
}
