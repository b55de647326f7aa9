//! The figures of a timed region.

use std::fmt;

use linerate_show::grid::Grid;
use linerate_show::number;
use linerate_show::words::harmless;
use serde::{Deserialize, Serialize};

use super::cost::{other_clock, ticks_hz};
use super::{Cost, Region, TOP_TICKS};
use crate::text::figure;

/// The durations of a region. A figure that the times do not support is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Its name.
    pub name: String,
    /// Times that it was left. Every figure below is of these.
    pub count: u64,
    /// Sum of all times.
    pub sum_ticks: u64,
    /// Mean.
    pub mean_ticks: Option<f64>,
    /// Median, from at least 20 times; three digits, as all percentiles.
    pub p50_ticks: Option<u64>,
    /// 99th percentile, from at least 1,000 times.
    pub p99_ticks: Option<u64>,
    /// The longest, exactly.
    pub max_ticks: Option<u64>,
    /// Rate of the clock: ticks become nanoseconds by it.
    pub ticks_hz: f64,
    /// Cost of timing; `subtracted_ticks` were taken off every time.
    pub cost: Cost,
    /// Share of the time between the first entry and the last exit that timing took, in per cent,
    /// each thread by itself.
    pub cost_pct: Option<f64>,
    /// Times that were shorter than what was to be subtracted; they count as 0.
    pub floored: u64,
    /// Times longer than the histogram tells; they are whole in mean and max, not in percentiles.
    pub beyond: u64,
    /// Times that seemed to end before they began; they are in nothing else.
    pub backwards: u64,
    /// Clock source of the kernel, if it is not the clock that was read: then the time stamp
    /// counters of the CPUs need not be in step, nor tick at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels_clock: Option<String>,
}

impl Timing {
    pub(super) fn of(region: &Region) -> Timing {
        let count = region.count();
        let some = |value: u64| (count > 0).then_some(value);
        let (span, whole) = (region.span_ticks() as f64, region.cost.whole_ticks as f64);
        Timing {
            name: region.name.clone(),
            count,
            sum_ticks: region.sum_ticks,
            mean_ticks: (count > 0).then(|| region.sum_ticks as f64 / count as f64),
            p50_ticks: region.quantile(0.5),
            p99_ticks: region.quantile(0.99),
            max_ticks: some(region.max_ticks),
            ticks_hz: ticks_hz(),
            cost: region.cost,
            cost_pct: (span > 0.0).then(|| 100.0 * whole * count as f64 / span),
            floored: region.floored,
            beyond: region.beyond,
            backwards: region.backwards,
            kernels_clock: other_clock(),
        }
    }

    fn row(&self) -> [String; 10] {
        let na = || "n/a".to_owned();
        let ns = |ticks: f64| figure(ticks * 1e9 / self.ticks_hz);
        let whole = [self.p50_ticks, self.p99_ticks, self.max_ticks];
        let [p50_ns, p99_ns, max_ns] = whole.map(|n| n.map_or_else(na, |n| ns(n as f64)));
        let [p50, p99, max] = whole.map(|n| n.map_or_else(na, number::count));
        let mean_ns = self.mean_ticks.map_or_else(na, ns);
        let mean = self.mean_ticks.map_or_else(na, figure);
        let (name, count) = (self.name.clone(), number::count(self.count));
        [name, count, mean_ns, p50_ns, p99_ns, max_ns, mean, p50, p99, max]
    }

    /// Writes the remarks on the figures, in lines.
    fn remarks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.cost_pct.map_or("n/a".into(), figure);
        writeln!(
            f,
            "{}: cost subtracted: {} ticks a region; timing took {share} % of the time between \
             first and last ({} ticks each)",
            self.name,
            number::count(self.cost.subtracted_ticks),
            number::count(self.cost.whole_ticks),
        )?;
        let top = number::count(TOP_TICKS);
        for (times, what) in [
            (self.floored, "shorter than the cost subtracted, counted as 0".to_owned()),
            (self.beyond, format!("longer than {top} ticks: not whole in p50, p99")),
            (self.backwards, "ended before they began, not counted".to_owned()),
        ] {
            if times > 0 {
                writeln!(f, "{}: of the times, {} {what}", self.name, number::count(times))?;
            }
        }
        if let Some(clock) = self.kernels_clock.as_deref().map(harmless) {
            writeln!(
                f,
                "{}: the kernel keeps time by {clock}, not by the time stamp counter: where a \
                 thread changes its CPU, a time may be wrong",
                self.name
            )?;
        }
        if self.p99_ticks.is_none() {
            writeln!(f, "{}: n/a: p50 wants 20 times, p99 wants 1,000", self.name)?;
        }
        Ok(())
    }
}

/// Regions under each other.
#[derive(Debug, Clone, Copy)]
pub struct Timings<'a>(pub &'a [Timing]);

impl fmt::Display for Timings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["region", "times", "mean ns", "p50 ns", "p99 ns", "max ns"];
        let mut grid = Grid::new("lrrrrrrrrr");
        grid.cells(head.into_iter().chain(["mean ticks", "p50 ticks", "p99 ticks", "max ticks"]));
        self.0.iter().for_each(|timing| grid.cells(timing.row()));
        grid.fmt(f)?;
        self.0.iter().try_for_each(|timing| timing.remarks(f))
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timings(std::slice::from_ref(self)).fmt(f)
    }
}

impl Region {
    /// A quantile, if at least ten times lie above it.
    fn quantile(&self, q: f64) -> Option<u64> {
        // Rounded first: 1 - 0.99 is a little more than 0.01.
        let enough = (10.0 / (1.0 - q)).round() as u64;
        // The histogram gives the upper end of a bucket, which can lie above all that is in it.
        let value = || self.histogram.value_at_quantile(q).min(self.max_ticks);
        (self.count() >= enough).then(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_set_in_columns_with_their_units_and_remarks() {
        let timing = Timing {
            name: "poll".into(),
            count: 12_345,
            sum_ticks: 1_234_500,
            mean_ticks: Some(100.0),
            p50_ticks: Some(92),
            p99_ticks: Some(460),
            max_ticks: Some(46_000),
            ticks_hz: 2e9,
            cost: Cost { subtracted_ticks: 24, whole_ticks: 40 },
            cost_pct: Some(0.3),
            floored: 2,
            beyond: 0,
            backwards: 0,
            kernels_clock: None,
        };
        let said = "\
region   times  mean ns  p50 ns  p99 ns  max ns  mean ticks  p50 ticks  p99 ticks  max ticks
poll    12,345     50.0    46.0     230  23,000         100         92        460     46,000
poll: cost subtracted: 24 ticks a region; timing took 0.30 % of the time between first and last \
(40 ticks each)
poll: of the times, 2 shorter than the cost subtracted, counted as 0
";
        assert_eq!(timing.to_string(), said);
        let few = Timing { count: 19, p50_ticks: None, p99_ticks: None, ..timing.clone() };
        assert!(few.to_string().ends_with("poll: n/a: p50 wants 20 times, p99 wants 1,000\n"));
        let other = Timing { kernels_clock: Some("hpet".into()), ..timing.clone() };
        assert!(
            other.to_string().contains("poll: the kernel keeps time by hpet, not by"),
            "{other}"
        );
        let json = serde_json::to_string(&timing).unwrap();
        assert_eq!(serde_json::from_str::<Timing>(&json).unwrap(), timing);
    }
}
