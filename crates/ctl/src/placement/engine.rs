//! Placement of a running engine's workers, on request also of its devices' interrupts, and the
//! figures that the search compares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use linerate_datapath::{Control, PoolStats, PortStats, Stats};
use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Result};
use linerate_sys::clock::{cpu_time, monotonic_ns};

use super::{Found, Gauge, Places, Reading, RoundTrip, Search, Topology, describe, round_trips};
use crate::affinity::{InterruptGuard, Pin, QueuePin, WorkerPin};

/// Length of a reading; before it, the search pauses for `SETTLES` after a move.
const WINDOW: Duration = Duration::from_millis(100);
/// Length of a reading that counts the busy time of all CPUs, in which other programs disturb more.
const WINDOW_OF_ALL: Duration = Duration::from_millis(300);
/// Nanoseconds in the unit of time of /proc/stat.
const TICK_NS: f64 = 1e7;
/// Interval at which a reading of /proc/stat looks for the next tick, and the longest time for
/// which it looks: where all CPUs are busy, none comes.
const EDGE_STEP: Duration = Duration::from_micros(250);
const EDGE_MAX: Duration = Duration::from_millis(20);
const SETTLES: Duration = Duration::from_millis(10);
/// Interval of checks whether the run has ended.
const STEP: Duration = Duration::from_millis(10);
/// Least number of packets for a reading to count.
const PACKETS_MIN: u64 = 200;
/// Most places that a search tries, each with one or two readings. Together with 6 readings of the
/// original places and 45 of the final comparison, with windows of 0.1 s, they take at most 14
/// seconds.
pub(super) const TRIES_MAX: usize = 40;

/// A counter of work done: cycles if the CPU counts them, else nanoseconds of CPU time; NaN if it
/// did not count all the time.
pub type Meter = Box<dyn FnMut() -> f64 + Send>;

/// A gauge for the workers of a running engine, for interrupts, and for threads of the program.
pub struct EngineGauge {
    pins: Vec<Box<dyn Pin + Send>>,
    /// The lane of each thing: the number of the worker that it is or serves, or of its queue if
    /// that is not known.
    lanes: Vec<usize>,
    /// The CPUs on which each thing could run before its first move; the next field is its present
    /// place.
    before: Vec<Option<Vec<usize>>>,
    now: Places,
    control: Control,
    stats: Stats,
    unit: &'static str,
    meter: Meter,
    window: Duration,
    over: Arc<AtomicBool>,
}

/// Counts at one time; a reading is the difference of two.
struct Counts {
    at: Instant,
    work: f64,
    packets: u64,
    remote_frees: u64,
    handed_over: u64,
}

impl EngineGauge {
    /// Creates a gauge for the engine. When `over` is set because the run ends, a search ends soon
    /// and restores everything.
    #[must_use]
    pub fn new(control: &Control, stats: &Stats, over: &Arc<AtomicBool>) -> EngineGauge {
        let workers = stats.workers().len();
        EngineGauge {
            pins: (0..workers)
                .map(|worker| Box::new(WorkerPin::new(control, worker).until(over)) as _)
                .collect(),
            lanes: (0..workers).collect(),
            before: vec![None; workers],
            now: vec![None; workers],
            control: control.clone(),
            stats: stats.clone(),
            unit: "ns",
            meter: Box::new(|| cpu_time().as_secs_f64() * 1e9),
            window: WINDOW,
            over: over.clone(),
        }
    }

    /// Also places the interrupts of an interface, separately for each queue, and compares by the
    /// busy time of all CPUs of the machine, because the kernel's work for packets is in no
    /// process's CPU time. The busy time includes other programs' work, which also increases the
    /// spread of the first readings. The guard must outlive the run, because it restores the
    /// interrupts.
    #[must_use]
    pub fn interrupts(mut self, guard: &InterruptGuard) -> Self {
        let ports = self.stats.ports();
        let queues = count_distinct(guard.queues().iter().map(QueuePin::queue));
        for pin in guard.queues() {
            // The numbers of the port's queues are the device's if it has all of them.
            let has_all = |port: &&PortStats| {
                port.obtained.device == pin.interface && port.queues.len() == queues
            };
            let port = ports.iter().find(has_all);
            let worker = port.and_then(|port| self.control.worker_of(&port.name, pin.queue()));
            self = self.beside(pin.clone(), worker.unwrap_or(pin.queue()));
        }
        self.window = WINDOW_OF_ALL;
        self.meter("ns of all CPUs", Box::new(busy_ns))
    }

    /// Also places a thread of the program, through its pin: one that works with worker `lane`, as a
    /// thread that reads that worker's ring. It is restored as the workers are.
    #[must_use]
    pub fn beside(mut self, pin: impl Pin + Send + 'static, lane: usize) -> Self {
        self.lanes.push(lane);
        self.before.push(None);
        self.now.push(None);
        self.pins.push(Box::new(pin));
        self
    }

    /// Compares by `meter`, in `unit`, instead of by the CPU time of this process.
    #[must_use]
    pub fn meter(mut self, unit: &'static str, meter: Meter) -> Self {
        (self.unit, self.meter) = (unit, meter);
        self
    }

    /// Searches on the calling thread, which must not be a worker's.
    ///
    /// # Errors
    /// `E-CPU` if the machine's CPUs are not known; `E-BUSY` if the run ended first;
    /// `E-UNSUPPORTED` if the meter stops counting, for instance because the PMU was withdrawn.
    pub fn search(mut self) -> Result<PlacementReport> {
        let topology = Topology::here()?;
        let names: Vec<String> = self.pins.iter().map(|pin| pin.name()).collect();
        let (unit, round_trips) = (self.unit, round_trips(&topology)?);
        let search = Search::new(&topology, names.len()).lanes(&self.lanes);
        let search = search.tries_max(TRIES_MAX);
        let found = search.run(&mut self)?;
        Ok(PlacementReport { names, unit, round_trips, found })
    }

    fn counts(&mut self) -> Counts {
        // First, because the meter may wait for a tick.
        let work = (self.meter)();
        let mut counts =
            Counts { at: Instant::now(), work, packets: 0, remote_frees: 0, handed_over: 0 };
        for port in self.stats.ports() {
            // Packets from a ring were already counted when a device received them.
            if port.flags.paired {
                counts.handed_over += port.counts.rx_packets;
            } else {
                counts.packets += port.counts.rx_packets;
            }
        }
        counts.remote_frees = remote_frees(self.stats.pools().iter().map(|pool| pool.stats()));
        counts
    }

    fn wait(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            if self.over.load(Ordering::Relaxed) {
                let what = "the search for CPUs did not finish";
                return Err(Error::new(Code::Busy, what, "the run ended first").fix("a longer run"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let _ = poll_readable(&[], Some(left.min(STEP)));
        }
    }
}

/// Returns how many queues there are: one that has irqs and a NAPI thread is named twice.
fn count_distinct(queues: impl Iterator<Item = usize>) -> usize {
    queues.collect::<BTreeSet<usize>>().len()
}

/// Returns the number of packets of all pools that were freed on another CPU than the allocating
/// one.
fn remote_frees(pools: impl Iterator<Item = PoolStats>) -> u64 {
    pools.map(|stats| stats.matrix.remote()).sum()
}

impl Gauge for EngineGauge {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        let mut done = Ok(());
        for (i, place) in places.iter().enumerate() {
            if self.now[i] == *place {
                continue;
            }
            let moved = match (place, &self.before[i]) {
                (Some(cpu), _) => self.pins[i].pin(&[*cpu]).map(Some),
                (None, Some(before)) => self.pins[i].put_back(before).map(|()| None),
                (None, None) => continue,
            };
            match moved {
                Ok(before) => {
                    self.before[i] = self.before[i].take().or(before);
                    self.now[i] = *place;
                }
                Err(e) => {
                    // A worker that does not obey, or has ended, takes its time for each order.
                    let is_over = e.code == Code::Busy && place.is_some();
                    done = Err(e);
                    if is_over {
                        break;
                    }
                }
            }
        }
        done
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        self.wait(SETTLES)?;
        let before = self.counts();
        self.wait(self.window)?;
        let after = self.counts();
        let packets = after.packets.saturating_sub(before.packets);
        let work = after.work - before.work;
        // If the meter no longer counts, every place would look best.
        if packets >= PACKETS_MIN && (work.is_nan() || work <= 0.0) {
            let (fault, fix) = match work.is_nan() {
                true => (
                    "did not count all the time",
                    "end the other users of the CPU's counters (perf), and run it again",
                ),
                false => (
                    "counted nothing",
                    "run it again: without counters of CPU events, it compares CPU time",
                ),
            };
            let why = format!("{packets} packets passed, and the counter of {} {fault}", self.unit);
            let what = "the search for CPUs did not finish";
            return Err(Error::new(Code::Unsupported, what, why).fix(fix));
        }
        let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / packets as f64;
        Ok((packets >= PACKETS_MIN).then(|| {
            let cost = work / packets as f64;
            let remote_frees = each(after.remote_frees, before.remote_frees);
            let rate = packets as f64 / (after.at - before.at).as_secs_f64();
            Reading::new(cost, rate, remote_frees, each(after.handed_over, before.handed_over))
        }))
    }
}

/// Returns the time for which the machine's CPUs were busy since boot.
///
/// The kernel reports the time for which they were not in whole ticks. So this waits, for up to
/// `EDGE_MAX`, for the moment at which one more is complete: the result is then exact to
/// `EDGE_STEP` for each idle CPU. Where no tick is completed, or so many CPUs are idle that one is
/// in each step, it is exact to a tick.
pub(super) fn busy_ns() -> f64 {
    let ([_, before], until) = (cpus_and_idle_ticks(), Instant::now() + EDGE_MAX);
    loop {
        let [cpus, ticks] = cpus_and_idle_ticks();
        if ticks != before || Instant::now() >= until {
            return monotonic_ns() as f64 * cpus - ticks * TICK_NS;
        }
        let _ = poll_readable(&[], Some(EDGE_STEP));
    }
}

/// Returns the number of CPUs, and the ticks for which they were not busy; NaN if the kernel does
/// not report them.
///
/// Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal. Idle time is exact
/// also where other times are sampled.
fn cpus_and_idle_ticks() -> [f64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = text.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
    let first = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = first.map_while(|word| word.parse().ok()).collect();
    let idle = [3, 4, 7].map(|at| ticks.get(at).copied().unwrap_or(f64::NAN));
    [cpus as f64, idle.iter().sum()]
}

impl fmt::Debug for EngineGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineGauge").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The result of a search. Displays as a table of the figures before and after.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PlacementReport {
    /// The names of the placed things, in the order of their places.
    pub names: Vec<String>,
    /// Unit of the cost: `ns`, `cycles`, or `ns of all CPUs` if interrupts were placed.
    pub unit: &'static str,
    /// Round trips between CPUs, one of each nearness.
    pub round_trips: Vec<RoundTrip>,
    /// The places found; `None` if too few packets passed, and then nothing was moved.
    pub found: Option<Found>,
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(found) = &self.found else {
            return writeln!(f, "placement: unchanged: too few packets passed for a comparison");
        };
        let (before, after) = (&found.before, &found.after);
        let change = (after.cost / before.cost - 1.0) * 100.0;
        let is_kept = found.places.iter().any(Option::is_some);
        let kept =
            if is_kept { describe(&self.names, &found.places) } else { "all as it was".into() };
        let (tried, floor) = (found.tried.len(), found.floor * 100.0);
        writeln!(
            f,
            "placement: {kept} ({tried} tried; the middle half of repeated measurements of the first one is {floor:.1} % wide)"
        )?;
        writeln!(f, "  {:<22} {:>9} {:>9}", "a packet", "before", "after")?;
        let cost = format!("CPU, {}", self.unit);
        writeln!(f, "  {cost:<22} {:>9.1} {:>9.1} {change:>+7.1} %", before.cost, after.cost)?;
        writeln!(
            f,
            "  {:<22} {:>9.0} {:>9.0} {:>+7.1} %",
            "packets a second",
            before.rate,
            after.rate,
            (after.rate / before.rate - 1.0) * 100.0
        )?;
        for (what, before, after) in [
            ("freed on another CPU", before.remote_frees, after.remote_frees),
            ("handed to a worker", before.handed_over, after.handed_over),
        ] {
            writeln!(f, "  {what:<22} {before:>9.3} {after:>9.3}")?;
        }
        for trip in &self.round_trips {
            let (a, b) = trip.cpus;
            writeln!(
                f,
                "  round trip of a cache line, CPU {a} and {b} ({}): {} ns",
                trip.near, trip.ns
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::{Batch, Pool};
    use linerate_sys::thread::{allowed_cpus, pin_to_cpu};

    use super::*;
    use linerate_testing::may_pin;
    use std::sync::Mutex;

    #[test]
    fn frees_on_another_cpu_are_those_of_all_pools() {
        let cpus = allowed_cpus().unwrap();
        let [near, .., far] = cpus[..] else { return println!("skipped: one CPU") };
        if !may_pin() {
            return;
        }
        let pools = [0, 8, 3].map(|n| (n, Pool::builder().frames(64).build().unwrap()));
        for (n, pool) in pools.iter().filter(|(n, _)| *n > 0) {
            let on = |cpu: usize, work: &mut (dyn FnMut() + Send)| {
                std::thread::scope(|scope| {
                    let thread = scope.spawn(|| {
                        pin_to_cpu(cpu).unwrap();
                        work();
                    });
                    thread.join().unwrap();
                });
            };
            let mut batch = Batch::with_capacity(*n);
            on(near, &mut || _ = pool.local().alloc(&mut batch, *n));
            assert_eq!(batch.len(), *n);
            on(far, &mut || batch.consume(&mut pool.local()));
        }
        assert_eq!(remote_frees(pools.iter().map(|(_, pool)| pool.stats())), 11);
    }

    #[test]
    fn queue_with_irqs_and_a_napi_thread_is_counted_once() {
        assert_eq!(count_distinct([0, 1, 2, 0, 1].into_iter()), 3);
        assert_eq!(count_distinct([].into_iter()), 0);
    }

    /// A thing that can be moved, and that may not obey when it is put back.
    struct Moved {
        cpus: Vec<usize>,
        restored: Arc<Mutex<Vec<Vec<usize>>>>,
        obeys: bool,
    }

    impl Pin for Moved {
        fn name(&self) -> String {
            "thing".into()
        }

        fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
            Ok(std::mem::replace(&mut self.cpus, cpus.to_vec()))
        }

        fn put_back(&mut self, before: &[usize]) -> Result<()> {
            self.restored.lock().unwrap().push(before.to_vec());
            if self.obeys { Ok(()) } else { Err(Error::new(Code::Busy, "cannot move", "busy")) }
        }
    }

    #[test]
    fn each_thing_is_put_back_to_its_first_cpus_also_after_one_that_does_not_obey() {
        let engine = linerate_datapath::Engine::builder().port("gen", "gen:").port("sink", "sink:");
        let engine = engine.wire("gen", "sink").build().unwrap();
        let stats = engine.stats();
        let running = engine.start().unwrap();
        let mut gauge = EngineGauge::new(&running.control(), &stats, &Arc::default());
        let restored = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        let moved = |(i, restored): (usize, &Arc<Mutex<Vec<Vec<usize>>>>)| {
            let thing = Moved { cpus: vec![7, 8], restored: restored.clone(), obeys: i > 0 };
            Box::new(thing) as Box<dyn Pin + Send>
        };
        gauge.pins = restored.iter().enumerate().map(moved).collect();
        (gauge.before, gauge.now) = (vec![None; 2], vec![None; 2]);
        for place in [Some(0), Some(1)] {
            gauge.place(&[place; 2]).unwrap();
        }
        assert_eq!(gauge.place(&[None, None]).unwrap_err().code, Code::Busy);
        assert_eq!(restored.map(|all| all.lock().unwrap().clone()), [[[7, 8]], [[7, 8]]]);
        drop(running.stop(Duration::from_secs(5)));
    }
}
