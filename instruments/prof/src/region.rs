//! The duration of a stretch of code, by the CPU's own clock.
//!
//! A region is entered and left on the data path, thousands of times a millisecond, also where
//! nothing may wake the thread or send it to sleep: in a poll section, between masking an event and
//! unmasking it. So entering and leaving make no system call, take no lock and allocate nothing:
//! the histogram is of fixed size and made with the region. (On other machines than x86-64 the clock
//! is the kernel's monotonic one, which is read without entering it.) A thread has its own;
//! [`Region::merge`] puts them together afterwards.
//!
//! What it says is wall time: if the kernel takes the CPU away inside a region, that is in it, and
//! shows as `max`. The clock may be read on one CPU on entering and on another on leaving: the time
//! stamp counters of a machine whose kernel keeps time by them are in step. Where they are not, a
//! region can seem to end before it began; it is then counted, not recorded. The reading does not
//! wait for instructions before it to finish: some tens of cycles can fall to the wrong side.
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

mod cost;
mod timing;

use hdrhistogram::Histogram;
use linerate_sys::tsc::ticks;

pub use cost::Cost;
pub use timing::{Timing, Timings};

/// Longest region that the histogram tells from longer ones: about 25 s.
pub const TOP_TICKS: u64 = (1 << 36) - 1;

/// Significant digits of the percentiles.
const DIGITS: u8 = 3;

/// A stretch of code, and how long it took each time. 220 KiB, of which one touches little.
#[derive(Debug, Clone)]
pub struct Region {
    name: String,
    /// Ticks of each time, less the cost of having timed it.
    histogram: Histogram<u64>,
    cost: Cost,
    sum_ticks: u64,
    max_ticks: u64,
    floored: u64,
    beyond: u64,
    backwards: u64,
    /// First entry and last exit, and the time between those of the regions that were merged in.
    first: Option<u64>,
    last: u64,
    merged_ticks: u64,
}

/// The time of entering a region.
#[derive(Debug)]
#[must_use = "a region that is not left is not counted"]
pub struct Entered(u64);

impl Region {
    /// A region that was not entered yet. The first of a process calibrates what timing costs,
    /// which takes about a millisecond.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Region {
        Region::with_cost(name.into(), Cost::calibrated())
    }

    fn with_cost(name: String, cost: Cost) -> Region {
        // The bounds and digits are constants that the histogram is known to take.
        let histogram = Histogram::new_with_bounds(1, TOP_TICKS, DIGITS)
            .expect("1 ≤ 2^36 / 2 and 3 digits make a histogram");
        Region {
            name,
            histogram,
            cost,
            sum_ticks: 0,
            max_ticks: 0,
            floored: 0,
            beyond: 0,
            backwards: 0,
            first: None,
            last: 0,
            merged_ticks: 0,
        }
    }

    /// Enters. May be called again before leaving: what was entered is the caller's to hold.
    #[inline]
    pub fn enter(&self) -> Entered {
        Entered(ticks())
    }

    /// Leaves, and records how long it took.
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
        let net = gross.saturating_sub(self.cost.subtracted_ticks);
        self.floored += u64::from(gross < self.cost.subtracted_ticks);
        self.beyond += u64::from(net > TOP_TICKS);
        self.histogram.saturating_record(net);
        self.sum_ticks = self.sum_ticks.saturating_add(net);
        self.max_ticks = self.max_ticks.max(net);
        self.first.get_or_insert(entered);
        self.last = left;
    }

    /// Adds what another thread recorded in the same region.
    pub fn merge(&mut self, other: &Region) {
        // Every region has the same bounds, so nothing can fall outside them.
        let added = self.histogram.add(&other.histogram);
        debug_assert!(added.is_ok(), "{added:?}");
        self.sum_ticks = self.sum_ticks.saturating_add(other.sum_ticks);
        self.max_ticks = self.max_ticks.max(other.max_ticks);
        self.floored += other.floored;
        self.beyond += other.beyond;
        self.backwards += other.backwards;
        self.merged_ticks = self.merged_ticks.saturating_add(other.span_ticks());
    }

    /// Times that it was left.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// From the first entry to the last exit, summed over the threads.
    fn span_ticks(&self) -> u64 {
        let own = self.first.map_or(0, |first| self.last.saturating_sub(first));
        own.saturating_add(self.merged_ticks)
    }

    /// Returns the figures recorded. The first call of a process measures the rate of the clock,
    /// which takes 15 ms.
    #[must_use]
    pub fn timing(&self) -> Timing {
        Timing::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region in which timing costs 24 ticks inside and 40 in all.
    fn region() -> Region {
        Region::with_cost("poll".into(), Cost { subtracted_ticks: 24, whole_ticks: 40 })
    }

    #[test]
    fn the_cost_is_subtracted_and_never_below_0() {
        let mut poll = region();
        poll.record(1000, 1124);
        poll.record(2000, 2024);
        poll.record(3000, 3010);
        let timing = poll.timing();
        assert_eq!((timing.count, timing.floored), (3, 1));
        assert_eq!((timing.sum_ticks, timing.max_ticks), (100, Some(100)));
        // 3 times 40 ticks of 2010 between the first entry and the last exit.
        assert!((timing.cost_pct.unwrap() - 100.0 * 120.0 / 2010.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_beyond_the_top_or_went_backwards_is_counted() {
        let mut poll = region();
        poll.record(100, 99);
        assert_eq!((poll.timing().count, poll.timing().mean_ticks), (0, None));
        poll.record(0, u64::MAX);
        let timing = poll.timing();
        assert_eq!((timing.count, timing.beyond, timing.backwards), (1, 1, 1));
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
    fn regions_of_two_threads_add_up() {
        let (mut ours, mut theirs) = (region(), region());
        ours.record(0, 124);
        theirs.record(1_000_000, 1_000_324);
        theirs.record(1_001_000, 1_000_000);
        ours.merge(&theirs);
        let timing = ours.timing();
        assert_eq!((timing.count, timing.backwards, timing.sum_ticks), (2, 1, 400));
        assert_eq!(timing.max_ticks, Some(300));
        // 124 ticks of our thread, 324 of theirs; not the million in between.
        assert!((timing.cost_pct.unwrap() - 100.0 * 80.0 / 448.0).abs() < 1e-9);
    }
}
