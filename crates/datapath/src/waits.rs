//! Waits of workers: sleeping until there is work, ready without a CPU, or in a device's transmit
//! call.
//!
//! Owner: the worker; only it writes. Any thread may read. The clock is read before and after each
//! sleep, where it costs little compared with the system call. One flush in [`TIMED`] is timed:
//! less than one clock reading for several thousand packets in full batches. Waits for locks are
//! not counted here: the pool counts them ([`PoolStats::locks`](linerate_skb::PoolStats)).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_port::{Code, Error, thread};

use crate::sizes::{BatchSizes, SizesPage};

/// Number of flushes of which one is timed.
const TIMED: u64 = 256;
/// Number of timed flushes that suffices for an estimate. Each represents 256 flushes and may have
/// been preempted, which would dominate an estimate from few flushes.
const ENOUGH: u64 = 30;
/// Value of a time that has not been reported yet.
const UNKNOWN: u64 = u64::MAX;

/// Statistics of one worker's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Number of times that the worker slept in [`Worker::park`](crate::Worker::park).
    pub sleeps: u64,
    /// Number of sleeps that were only holds, in which packets gathered
    /// ([`EngineBuilder::moderation`](crate::EngineBuilder::moderation)).
    pub hold_offs: u64,
    /// Time asleep, until the worker ran on a CPU again.
    pub asleep_ns: u64,
    /// Part of `asleep_ns` in sleeps that were only holds.
    pub hold_off_ns: u64,
    /// Time from the worker's start to its end, asleep or awake; `None` until the worker has ended,
    /// and on a program's own thread.
    pub ran_ns: Option<u64>,
    /// Part of `ran_ns` in which the worker was ready and had no CPU, by the kernel's count; `None`
    /// if `ran_ns` is, or if the kernel does not count it. The part after a wake-up is also in
    /// `asleep_ns`.
    pub run_delay_ns: Option<u64>,
    /// The CPU of the worker's thread at its last report; `None` before the first.
    pub cpu: Option<usize>,
    /// The CPU to which the worker is pinned; `None` if it is not.
    pub pinned: Option<usize>,
}

impl WorkerStats {
    /// Returns all figures that are known, each with its name, which is that of the field, its
    /// words and its value: for an exporter, which so has each new figure.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
        // Without `..`: a field that is missing here does not compile.
        let WorkerStats {
            sleeps,
            hold_offs,
            asleep_ns,
            hold_off_ns,
            ran_ns,
            run_delay_ns,
            cpu,
            pinned,
        } = *self;
        let number = |cpu: Option<usize>| cpu.map(|cpu| cpu as u64);
        let all = [
            ("sleeps", "sleeps", Some(sleeps)),
            ("hold_offs", "sleeps that were only holds", Some(hold_offs)),
            ("asleep_ns", "ns asleep", Some(asleep_ns)),
            ("hold_off_ns", "ns asleep in holds", Some(hold_off_ns)),
            ("ran_ns", "ns from start to end", ran_ns),
            ("run_delay_ns", "ns ready without a CPU", run_delay_ns),
            ("cpu", "the CPU of the last report", number(cpu)),
            ("pinned", "the CPU to which the worker is pinned", number(pinned)),
        ];
        let known = |(name, words, value): (_, _, Option<u64>)| Some((name, words, value?));
        all.into_iter().filter_map(known).collect()
    }

    /// Returns an error if the worker runs on another CPU than the one it was pinned to: that CPU
    /// went offline, was removed from the cpuset, or another process moved the thread.
    #[must_use]
    pub fn strayed(&self) -> Option<Error> {
        let (cpu, pinned) = self.cpu.zip(self.pinned).filter(|(cpu, pinned)| cpu != pinned)?;
        let what = format!("a worker pinned to CPU {pinned} runs on CPU {cpu}");
        let why = thread::why_not(pinned).unwrap_or_else(|| {
            "its cpuset lost that CPU, or another process moved its thread".into()
        });
        Some(
            Error::new(Code::Cpu, what, why)
                .fix("allow that CPU again, or choose another CPU: set_cpus"),
        )
    }
}

/// Figures of one worker's time, which the worker updates while it runs.
#[derive(Debug)]
pub(crate) struct Waits {
    sleeps: AtomicU64,
    hold_offs: AtomicU64,
    asleep_ns: AtomicU64,
    hold_off_ns: AtomicU64,
    ran_ns: AtomicU64,
    run_delay_ns: AtomicU64,
    cpu: AtomicU64,
    pinned: AtomicU64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            sleeps: AtomicU64::new(0),
            hold_offs: AtomicU64::new(0),
            asleep_ns: AtomicU64::new(0),
            hold_off_ns: AtomicU64::new(0),
            ran_ns: AtomicU64::new(UNKNOWN),
            run_delay_ns: AtomicU64::new(UNKNOWN),
            cpu: AtomicU64::new(UNKNOWN),
            pinned: AtomicU64::new(UNKNOWN),
        }
    }
}

impl Waits {
    /// Counts a sleep that has just ended.
    pub fn slept(&self, time: Duration) {
        add(&self.sleeps, 1);
        add(&self.asleep_ns, nanos(time));
    }

    /// Counts a sleep that was only a hold.
    pub fn held_off(&self, time: Duration) {
        self.slept(time);
        add(&self.hold_offs, 1);
        add(&self.hold_off_ns, nanos(time));
    }

    /// Records the CPU on which the calling thread runs; only the worker's thread calls it.
    pub fn runs(&self) {
        self.cpu.store(thread::current_cpu() as u64, Ordering::Relaxed);
    }

    /// Records the CPUs that the worker was ordered to run on.
    pub fn pinned(&self, cpus: &[usize]) {
        let one = if let [cpu] = cpus { *cpu as u64 } else { UNKNOWN };
        self.pinned.store(one, Ordering::Relaxed);
    }

    /// Records how long the worker's thread ran.
    pub fn ran(&self, term: &Term) {
        self.ran_ns.store(nanos(term.start.elapsed()), Ordering::Relaxed);
        let delay = term.run_delay_ns.zip(thread::run_delay_ns().ok());
        let delay = delay.map_or(UNKNOWN, |(before, now)| now.saturating_sub(before));
        self.run_delay_ns.store(delay, Ordering::Relaxed);
    }

    pub fn read(&self) -> WorkerStats {
        let value = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let known = |n: &AtomicU64| Some(value(n)).filter(|n| *n != UNKNOWN);
        WorkerStats {
            sleeps: value(&self.sleeps),
            hold_offs: value(&self.hold_offs),
            asleep_ns: value(&self.asleep_ns),
            hold_off_ns: value(&self.hold_off_ns),
            ran_ns: known(&self.ran_ns),
            run_delay_ns: known(&self.run_delay_ns),
            cpu: known(&self.cpu).map(|cpu| cpu as usize),
            pinned: known(&self.pinned).map(|cpu| cpu as usize),
        }
    }
}

/// A measurement of a worker's time on a thread, since the worker's start.
#[derive(Debug)]
pub(crate) struct Term {
    start: Instant,
    run_delay_ns: Option<u64>,
}

impl Term {
    pub fn start() -> Term {
        Term { run_delay_ns: thread::run_delay_ns().ok(), start: Instant::now() }
    }
}

/// Statistics of a port's transmit calls: each call flushes waiting packets, with one doorbell, or
/// several if superframes are cut in front of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Flushes {
    /// Number of all calls. Not counted are those in which a receiving queue sends further segments
    /// of a superframe that was cut in front of the device.
    pub calls: u64,
    /// Number of timed calls: one in 256.
    pub timed: u64,
    /// Total time of the timed calls, including the doorbell and the device's copying.
    pub timed_ns: u64,
    /// Distribution of the calls by the number of packets that the device accepted.
    pub sizes: BatchSizes,
}

impl Flushes {
    /// Returns the start time if this flush is to be timed.
    ///
    /// The first flush is never timed: it runs with cold caches, and would represent 256 others.
    #[inline]
    pub(crate) fn begin(&mut self) -> Option<Instant> {
        self.calls += 1;
        self.calls.is_multiple_of(TIMED).then(Instant::now)
    }

    /// Counts a flush in which the device accepted `packets`.
    #[inline]
    pub(crate) fn end(&mut self, begun: Option<Instant>, packets: usize) {
        self.sizes.count(packets);
        if let Some(begun) = begun {
            self.timed += 1;
            self.timed_ns += nanos(begun.elapsed());
        }
    }

    /// Counts a flush that was not timed, in which the device accepted `packets`.
    pub(crate) fn count(&mut self, packets: usize) {
        self.calls += 1;
        self.sizes.count(packets);
    }

    /// Returns the estimated time of all calls, from the timed ones; `None` if fewer than 30 were
    /// timed.
    ///
    /// The estimate is the mean of the timed calls times the number of calls. It includes calls
    /// that were preempted or waited. Its precision grows with [`Flushes::timed`].
    #[must_use]
    pub fn estimate_ns(&self) -> Option<u64> {
        let mean = self.timed_ns as f64 / self.timed as f64;
        (self.timed >= ENOUGH).then_some((mean * self.calls as f64) as u64)
    }
}

impl std::ops::AddAssign for Flushes {
    fn add_assign(&mut self, more: Flushes) {
        self.calls += more.calls;
        self.timed += more.timed;
        self.timed_ns += more.timed_ns;
        self.sizes += more.sizes;
    }
}

/// The page from which other threads read a queue's flushes.
#[derive(Debug, Default)]
pub(crate) struct FlushPage {
    calls: AtomicU64,
    timed: AtomicU64,
    timed_ns: AtomicU64,
    sizes: SizesPage,
}

impl FlushPage {
    pub fn set(&self, flushes: &Flushes) {
        self.calls.store(flushes.calls, Ordering::Relaxed);
        self.timed.store(flushes.timed, Ordering::Relaxed);
        self.timed_ns.store(flushes.timed_ns, Ordering::Relaxed);
        self.sizes.set(&flushes.sizes);
    }

    pub fn read(&self) -> Flushes {
        let value = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let [calls, timed, timed_ns] = [&self.calls, &self.timed, &self.timed_ns].map(value);
        Flushes { calls, timed, timed_ns, sizes: self.sizes.read() }
    }
}

/// Adds `n` to a counter that has a single writer.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Returns a duration in nanoseconds; `u64::MAX` for more than 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNKNOWN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn unreported_times_are_unknown_and_not_zero() {
        let waits = Waits::default();
        waits.slept(Duration::from_nanos(40));
        waits.held_off(Duration::from_nanos(2));
        let before = waits.read();
        assert_eq!((before.sleeps, before.asleep_ns), (2, 42));
        assert_eq!((before.hold_offs, before.hold_off_ns), (1, 2), "a hold is a sleep, too");
        assert_eq!((before.ran_ns, before.run_delay_ns), (None, None));
        let term = Term::start();
        waits.ran(&term);
        assert!(waits.read().ran_ns.is_some());
        waits.ran(&Term { run_delay_ns: None, ..term });
        assert_eq!(waits.read().run_delay_ns, None, "a kernel that does not say");
    }

    #[test]
    fn each_known_figure_of_a_worker_is_named_with_its_own_value() {
        let mut stats = WorkerStats { sleeps: 1, hold_offs: 2, ..WorkerStats::default() };
        (stats.asleep_ns, stats.hold_off_ns) = (3, 4);
        let figures = |stats: WorkerStats| -> Vec<(&str, u64)> {
            stats.named().into_iter().map(|(name, _, value)| (name, value)).collect()
        };
        let known = [("sleeps", 1), ("hold_offs", 2), ("asleep_ns", 3), ("hold_off_ns", 4)];
        assert_eq!(figures(stats), known, "what is unknown is no 0");
        (stats.ran_ns, stats.run_delay_ns) = (Some(5), Some(6));
        (stats.cpu, stats.pinned) = (Some(7), Some(8));
        let later = [("ran_ns", 5), ("run_delay_ns", 6), ("cpu", 7), ("pinned", 8)];
        assert_eq!(figures(stats)[4..], later);
    }

    #[test]
    fn a_worker_that_parks_is_asleep_and_one_that_turns_is_not() {
        let engine =
            Engine::builder().port("gen", "gen:").port("r0", "ring:r").port("r1", "ring:r");
        let engine = engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink");
        let engine = engine.build().unwrap();
        let stats = engine.stats();
        let mut workers = engine.into_workers();
        let timeout = Duration::from_millis(5);
        // The ring is empty, so its reader sleeps for its whole timeout: a wait never ends earlier.
        let turned = workers[1].turn(Instant::now());
        workers[1].park(turned, Some(timeout)).unwrap();
        let turned = workers[0].turn(Instant::now());
        workers[0].park(turned, Some(timeout)).unwrap();
        let [busy, idle] = [0, 1].map(|i| stats.workers()[i]);
        assert_eq!((busy.sleeps, busy.asleep_ns, busy.ran_ns), (0, 0, None));
        assert!(idle.sleeps == 1 && idle.asleep_ns >= nanos(timeout), "{idle:?}");
        drop(workers);
        // The generator's worker reported at its end that it had sent once, into the ring.
        let calls: Vec<u64> = stats.ports().iter().map(|port| port.flushes.calls).collect();
        assert_eq!(calls, [0, 1, 0, 0]);
    }

    #[test]
    fn one_flush_in_256_is_timed_and_stands_for_the_others() {
        let mut flushes = Flushes::default();
        for _ in 0..10_000 {
            let begun = flushes.begin();
            flushes.end(begun, 1);
        }
        assert_eq!((flushes.calls, flushes.timed), (10_000, 39));
        flushes.timed_ns = 390;
        assert_eq!(flushes.estimate_ns(), Some(100_000));
        let page = FlushPage::default();
        page.set(&flushes);
        let mut both = page.read();
        both += flushes;
        assert_eq!((both.calls, both.estimate_ns()), (20_000, Some(200_000)));
    }

    #[test]
    fn fewer_than_30_timed_flushes_stand_for_nothing() {
        let flushes = |timed| Flushes {
            calls: timed * TIMED,
            timed,
            timed_ns: 10 * timed,
            ..Flushes::default()
        };
        assert_eq!([0, 1, 29].map(|timed| flushes(timed).estimate_ns()), [None; 3]);
        assert_eq!(flushes(30).estimate_ns(), Some(30 * TIMED * 10));
    }
}
