//! Timing of a code region with the CPU's own clock.
//!
//! A region is entered and left on the data path, thousands of times a millisecond, also where
//! nothing may wake the thread or send it to sleep: in a poll section, between masking an event and
//! unmasking it. So entering and leaving make no system call, take no lock and allocate nothing:
//! the histogram is of fixed size and made with the region. (On other machines than x86-64 the
//! clock is the kernel's monotonic one, which is read without entering it.) Each thread has its own
//! region.
//!
//! A duration is wall time: if the kernel takes the CPU away inside a region, that time is in the
//! region, and shows as `max`. The clock may be read on one CPU on entering and on another on
//! leaving: where the time stamp counters of a machine are not in step, a region can seem to end
//! before it began; it is then counted, not recorded. The reading does not wait for instructions
//! before it to finish: some tens of cycles can fall to the wrong side.
//!
//! ```
//! use linerate_prof::region::Region;
//!
//! let mut poll = Region::new("poll");
//! for _ in 0..1000 {
//!     let entered = poll.enter();
//!     std::hint::black_box(0..64).for_each(drop);
//!     poll.leave(entered);
//! }
//! println!("{}", poll.timing());
//! ```

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use hdrhistogram::Histogram;
use linerate_show::grid::Grid;
use linerate_show::number;
use linerate_sys::tsc::{rate_hz, ticks};

use crate::text::figure;

/// Longest duration that the histogram distinguishes: about 25 s.
const TOP_TICKS: u64 = (1 << 36) - 1;

/// Significant digits of the percentiles.
const DIGITS: u8 = 3;

/// A code region with the histogram of its durations, which takes 220 KiB of memory and touches
/// little of it.
#[derive(Debug, Clone)]
pub struct Region {
    name: String,
    /// Ticks of each run, less the cost of timing.
    histogram: Histogram<u64>,
    cost_ticks: u64,
    sum_ticks: u64,
    max_ticks: u64,
    backwards: u64,
}

/// The time of entering a region.
#[derive(Debug)]
#[must_use = "a region that is not left is not counted"]
pub struct Entered(u64);

/// The durations of a region. A figure is `None` if there are too few runs for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// The region's name.
    pub name: String,
    /// Number of runs, from which all figures below are computed.
    pub count: u64,
    /// Mean duration of a run.
    pub mean_ticks: Option<f64>,
    /// Median, if there are at least 20 runs; with three digits, as all percentiles.
    pub p50_ticks: Option<u64>,
    /// 99th percentile, if there are at least 1,000 runs.
    pub p99_ticks: Option<u64>,
    /// The exact longest duration.
    pub max_ticks: Option<u64>,
    /// Rate of the clock, which converts ticks to nanoseconds.
    pub ticks_hz: f64,
    /// Apparent duration of an empty region, which was subtracted from every run.
    pub cost_ticks: u64,
    /// Runs that seemed to end before they began; other figures do not include them.
    pub backwards: u64,
}

impl Region {
    /// Returns a region without runs. The first call in a process calibrates the cost of timing,
    /// which takes some microseconds.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Region {
        static COST_TICKS: OnceLock<u64> = OnceLock::new();
        Region::with_cost(name.into(), *COST_TICKS.get_or_init(empty_ticks))
    }

    fn with_cost(name: String, cost_ticks: u64) -> Region {
        // This cannot fail: the bounds and digits are constants that the histogram accepts.
        let histogram = Histogram::new_with_bounds(1, TOP_TICKS, DIGITS)
            .expect("1 ≤ 2^36 / 2 and 3 digits make a histogram");
        Region { name, histogram, cost_ticks, sum_ticks: 0, max_ticks: 0, backwards: 0 }
    }

    /// Enters the region. May be called again before leaving, because the caller holds the time of
    /// each entry.
    #[inline]
    pub fn enter(&self) -> Entered {
        Entered(ticks())
    }

    /// Leaves the region, and records the duration.
    ///
    /// Cost:   one reading of the clock and a few lines of memory; no system call, no lock, no
    ///         allocation.
    #[inline]
    pub fn leave(&mut self, entered: Entered) {
        self.record(entered.0, ticks());
    }

    fn record(&mut self, entered: u64, left: u64) {
        let Some(gross) = left.checked_sub(entered) else {
            self.backwards += 1;
            return;
        };
        let net = gross.saturating_sub(self.cost_ticks);
        self.histogram.saturating_record(net);
        self.sum_ticks = self.sum_ticks.saturating_add(net);
        self.max_ticks = self.max_ticks.max(net);
    }

    /// Returns the recorded figures. The first call in a process measures the rate of the clock,
    /// which takes 15 ms.
    #[must_use]
    pub fn timing(&self) -> Timing {
        let count = self.histogram.len();
        Timing {
            name: self.name.clone(),
            count,
            mean_ticks: (count > 0).then(|| self.sum_ticks as f64 / count as f64),
            p50_ticks: self.quantile(0.5),
            p99_ticks: self.quantile(0.99),
            max_ticks: (count > 0).then_some(self.max_ticks),
            ticks_hz: ticks_hz(),
            cost_ticks: self.cost_ticks,
            backwards: self.backwards,
        }
    }

    /// Returns a quantile; `None` if fewer than ten values are above it.
    fn quantile(&self, q: f64) -> Option<u64> {
        // Round the number, because 1 - 0.99 is a little more than 0.01.
        let enough = (10.0 / (1.0 - q)).round() as u64;
        // The histogram returns the upper end of a bucket, which can be above the longest run.
        let value = || self.histogram.value_at_quantile(q).min(self.max_ticks);
        (self.histogram.len() >= enough).then(value)
    }
}

/// Returns the median duration of an empty region, because the minimum is a lucky value and the
/// mean includes interrupts.
fn empty_ticks() -> u64 {
    let region = Region::with_cost(String::new(), 0);
    let mut empty = [(); 1001].map(|()| {
        let entered = region.enter();
        ticks().saturating_sub(entered.0)
    });
    empty.sort_unstable();
    empty[empty.len() / 2]
}

/// Returns the ticks per second, measured once in a process: the median of three measurements, so
/// that a single preemption does not matter.
fn ticks_hz() -> f64 {
    static HZ: OnceLock<f64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let mut rates = [(); 3].map(|()| rate_hz(Duration::from_millis(5)));
        rates.sort_by(f64::total_cmp);
        rates[1]
    })
}

/// Displays the figures below their headings, followed by the subtracted cost and the excluded
/// runs.
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let na = || "n/a".to_owned();
        let whole = [self.p50_ticks, self.p99_ticks, self.max_ticks].map(|n| n.map(|n| n as f64));
        let [p50, p99, max] = whole;
        let all = [self.mean_ticks, p50, p99, max];
        let ns = all.map(|n| n.map_or_else(na, |n| figure(n * 1e9 / self.ticks_hz)));
        let mut grid = Grid::new("lrrrrr");
        grid.cells(["region", "times", "mean ns", "p50 ns", "p99 ns", "max ns"]);
        let head = [self.name.clone(), number::count(self.count)];
        grid.cells(head.into_iter().chain(ns));
        grid.fmt(f)?;
        let (cost, backwards) = (number::count(self.cost_ticks), number::count(self.backwards));
        writeln!(f, "{}: {cost} ticks subtracted a time; {backwards} went backwards", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a region whose timing costs 24 ticks.
    fn region() -> Region {
        Region::with_cost("poll".into(), 24)
    }

    #[test]
    fn the_cost_is_subtracted_and_never_below_0() {
        let mut poll = region();
        poll.record(1000, 1124);
        poll.record(2000, 2024);
        poll.record(3000, 3010);
        let timing = poll.timing();
        assert_eq!((timing.count, timing.max_ticks), (3, Some(100)));
        assert!((timing.mean_ticks.unwrap() - 100.0 / 3.0).abs() < 1e-9, "{timing:?}");
    }

    #[test]
    fn times_that_went_backwards_are_counted_and_not_recorded() {
        let mut poll = region();
        poll.record(100, 99);
        assert_eq!((poll.timing().count, poll.timing().mean_ticks), (0, None));
        poll.record(0, u64::MAX);
        let timing = poll.timing();
        assert_eq!((timing.count, timing.backwards), (1, 1));
        assert_eq!(timing.max_ticks, Some(u64::MAX - 24));
    }

    #[test]
    fn percentiles_are_printed_only_from_enough_times() {
        let mut poll = region();
        (0..19).for_each(|_| poll.record(0, 124));
        assert_eq!((poll.timing().p50_ticks, poll.timing().p99_ticks), (None, None));
        (0..981).for_each(|n| poll.record(0, 124 + n));
        let timing = poll.timing();
        let (p50, p99) = (timing.p50_ticks.unwrap(), timing.p99_ticks.unwrap());
        assert!(p50.abs_diff(580) <= 2 && p99.abs_diff(1070) <= 2, "{p50} {p99}");
        // None is above the longest.
        let mut poll = region();
        (0..2000).for_each(|_| poll.record(0, 100_001 + 24));
        let timing = poll.timing();
        assert_eq!(timing.max_ticks, Some(100_001));
        assert_eq!((timing.p50_ticks, timing.p99_ticks), (timing.max_ticks, timing.max_ticks));
    }

    #[test]
    fn an_empty_region_takes_about_nothing() {
        let mut empty = Region::new("empty");
        for _ in 0..10_000 {
            let entered = empty.enter();
            empty.leave(entered);
        }
        let timing = empty.timing();
        // Half of the times are below the median that is subtracted, or at it.
        assert!(timing.p50_ticks <= Some(timing.cost_ticks), "{timing:?}");
        assert!(timing.ticks_hz > 1e8 && timing.ticks_hz < 1e11, "{timing:?}");
        assert_eq!(timing.ticks_hz.to_bits(), ticks_hz().to_bits());
    }

    #[test]
    fn figures_are_set_in_columns_with_their_units() {
        let timing = Timing {
            name: "poll".into(),
            count: 12_345,
            mean_ticks: Some(100.0),
            p50_ticks: Some(92),
            p99_ticks: None,
            max_ticks: Some(46_000),
            ticks_hz: 2e9,
            cost_ticks: 24,
            backwards: 2,
        };
        let said = "\
region   times  mean ns  p50 ns  p99 ns  max ns
poll    12,345     50.0    46.0     n/a  23,000
poll: 24 ticks subtracted a time; 2 went backwards
";
        assert_eq!(timing.to_string(), said);
    }
}
