//! A running engine as the subject of placement: its workers are moved, and its own statistics
//! judge the result.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Control, Stats};
use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Result};
use linerate_sys::clock::cpu_time;

use super::{Found, Gauge, Places, Reading, RoundTrip, Search, Topology, round_trips, told};
use crate::affinity::{Pin, WorkerPin};

/// Length of a reading, and of the pause between a move and a reading.
const WINDOW: Duration = Duration::from_millis(100);
const SETTLES: Duration = Duration::from_millis(10);
/// Interval of checks whether the run is over.
const STEP: Duration = Duration::from_millis(10);
/// Least number of packets for a reading to count.
const PACKETS_MIN: u64 = 200;
/// Most readings of a search: with windows of 0.1 s, a few seconds.
const READINGS_MAX: usize = 40;

/// A count that grows with the work done: cycles if the CPU counts them, else nanoseconds.
pub type Meter = Box<dyn FnMut() -> f64 + Send>;

/// A search for places of a running engine's workers.
pub struct EngineGauge {
    pins: Vec<WorkerPin>,
    /// For each moved worker the CPUs on which it could run before; and its present place.
    before: Vec<Option<Vec<usize>>>,
    now: Places,
    stats: Stats,
    unit: &'static str,
    meter: Meter,
    over: Arc<AtomicBool>,
}

/// The counts that a reading is the difference of.
struct Counts {
    at: Instant,
    work: f64,
    packets: u64,
    remote_frees: u64,
    handed_over: u64,
}

impl EngineGauge {
    /// Creates a gauge for the engine. Soon after `over` is set, a search ends and restores
    /// everything, because the run ends.
    #[must_use]
    pub fn new(control: &Control, stats: &Stats, over: &Arc<AtomicBool>) -> EngineGauge {
        let workers = stats.workers().len();
        EngineGauge {
            pins: (0..workers).map(|worker| WorkerPin::new(control, worker)).collect(),
            before: vec![None; workers],
            now: vec![None; workers],
            stats: stats.clone(),
            unit: "ns",
            meter: Box::new(|| cpu_time().as_secs_f64() * 1e9),
            over: over.clone(),
        }
    }

    /// Judges by another count than the CPU time of this process, with that unit.
    #[must_use]
    pub fn meter(mut self, unit: &'static str, meter: Meter) -> Self {
        (self.unit, self.meter) = (unit, meter);
        self
    }

    /// Searches on the calling thread, which must not be a worker's.
    ///
    /// # Errors
    /// `E-CPU` if the machine's CPUs are not known; `E-BUSY` if the run ended first; `E-UNSUPPORTED` if the meter
    /// stops to count, as a PMU that is withdrawn.
    pub fn search(mut self) -> Result<PlacementReport> {
        let topology = Topology::here()?;
        let names: Vec<String> = self.pins.iter().map(Pin::name).collect();
        let (unit, round_trips) = (self.unit, round_trips(&topology)?);
        let search = Search::new(&topology, names.len()).readings_max(READINGS_MAX);
        let found = search.run(&mut self)?;
        Ok(PlacementReport { names, unit, round_trips, found })
    }

    fn counts(&mut self) -> Counts {
        let mut counts =
            Counts { at: Instant::now(), work: 0.0, packets: 0, remote_frees: 0, handed_over: 0 };
        for port in self.stats.ports() {
            // What a ring gives was received before.
            if port.flags.paired {
                counts.handed_over += port.counts.rx_packets;
            } else {
                counts.packets += port.counts.rx_packets;
            }
        }
        counts.remote_frees = self.stats.pool().stats().matrix.remote();
        counts.work = (self.meter)();
        counts
    }

    fn wait(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            if self.over.load(Ordering::Relaxed) {
                let what = "the search for places came to no end";
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

impl Gauge for EngineGauge {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        let mut done = Ok(());
        for (i, place) in places.iter().enumerate() {
            if self.now[i] == *place {
                continue;
            }
            let cpus = match (place, &self.before[i]) {
                (Some(cpu), _) => vec![*cpu],
                (None, Some(before)) => before.clone(),
                (None, None) => continue,
            };
            match self.pins[i].pin(&cpus) {
                Ok(before) => {
                    self.before[i].get_or_insert(before);
                    self.now[i] = *place;
                }
                Err(e) => done = Err(e),
            }
        }
        done
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        self.wait(SETTLES)?;
        let before = self.counts();
        self.wait(WINDOW)?;
        let after = self.counts();
        let packets = after.packets.saturating_sub(before.packets);
        let work = after.work - before.work;
        // Of work that nobody counts any more every place would be the best.
        if packets >= PACKETS_MIN && (work.is_nan() || work <= 0.0) {
            let why =
                format!("{packets} packets passed and none of their {} was counted", self.unit);
            return Err(Error::new(Code::Unsupported, "the search for places came to no end", why)
                .fix("run again: where the CPU's events are not counted, CPU time is compared"));
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

impl fmt::Debug for EngineGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineGauge").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The result of a search, for a reader. Displays as a table of before and after.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PlacementReport {
    /// The placed things, in the order of their places.
    pub names: Vec<String>,
    /// Unit of the cost: `ns`, or `cycles`.
    pub unit: &'static str,
    /// Round trips between CPUs, one of each nearness.
    pub round_trips: Vec<RoundTrip>,
    /// The result; `None` if too few packets passed for one, and nothing was moved.
    pub found: Option<Found>,
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(found) = &self.found else {
            return writeln!(f, "placement: all as it was: too few packets passed to judge by");
        };
        let (before, after) = (&found.before, &found.after);
        let change = (after.cost / before.cost - 1.0) * 100.0;
        let is_kept = found.places.iter().any(Option::is_some);
        let kept = if is_kept { told(&self.names, &found.places) } else { "all as it was".into() };
        let (tried, floor) = (found.tried.len(), found.floor * 100.0);
        writeln!(
            f,
            "placement: {kept} ({tried} tried; the start differs from itself by {floor:.1} %)"
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
            writeln!(f, "  round trip of a line, CPU {a} and {b} ({}): {} ns", trip.near, trip.ns)?;
        }
        Ok(())
    }
}
