//! Figures of one run's changed side, and the differences between the environments of two runs.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::analysis::{
    Interval, Part, Sum, admitted, median, median_interval, one_event, parts_of_b, sum_of,
};
use crate::experiment::{Estimate, Metric};
use crate::record::{PairRecord, Run};

/// The confidence level of the intervals of all rows of a family together.
pub(super) const LEVEL: f64 = 0.95;

/// A metric over the windows of the changed side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Side {
    /// The median over the side's set-ups, or the ratio of their sums.
    pub(super) value: f64,
    /// The confidence interval of the logarithm of `value`.
    interval: Interval,
    /// Number of windows.
    pub(super) windows: usize,
    /// Number of set-ups of the side.
    pub(super) set_ups: usize,
    /// True if nothing was counted: the value is then an upper bound.
    pub(super) censored: bool,
    /// Factor that widens the interval if this side is compared with a side that counted nothing;
    /// `None` if this side counted nothing.
    unseen: Option<f64>,
}

impl Side {
    /// Returns a side's figure; `None` if no window has the metric, or it has no ratio.
    pub(super) fn of(metric: &Metric, pairs: &[PairRecord], level: f64) -> Option<Side> {
        let parts = parts_of_b(metric, &admitted(metric.clock, pairs));
        let (windows, set_ups) = (parts.iter().map(Vec::len).sum(), parts.len());
        if parts.iter().flatten().any(|part| part.is_negative()) {
            return None;
        }
        if metric.estimate() != Estimate::Ratios {
            let Sum { value, interval, unseen } = sum_of(&parts, one_event(metric), level)?;
            let censored = unseen.is_none() && interval.low == f64::NEG_INFINITY;
            return Some(Side { value, interval, windows, set_ups, censored, unseen });
        }
        if parts.iter().flatten().any(|part| part.is_nothing()) {
            return None;
        }
        let sorted = |mut logs: Vec<f64>| {
            logs.sort_by(f64::total_cmp);
            logs
        };
        let log = |part: &Part| part.value().map(f64::ln);
        let middle = |of: &Vec<Part>| median(&sorted(of.iter().filter_map(log).collect()));
        let logs = sorted(parts.iter().filter_map(middle).collect());
        let (value, interval) = (median(&logs)?.exp(), median_interval(&logs, level)?);
        Some(Side { value, interval, windows, set_ups, censored: false, unseen: None })
    }

    /// Returns the confidence interval of the value itself instead of its logarithm.
    pub(super) fn range(&self) -> (f64, f64) {
        (self.interval.low.exp(), self.interval.high.exp())
    }

    /// Returns the logarithm of the ratio to `other`, with its interval.
    ///
    /// As of an effect: from a side that counted nothing there is no end to it, and it ends at the
    /// bound.
    pub(super) fn to(&self, other: &Side) -> (f64, Interval) {
        if self.censored && other.censored {
            return (0.0, Interval { low: 0.0, high: 0.0 });
        }
        let (x, y) = (self.value.ln(), other.value.ln());
        // The upper bound for a side that counted nothing depends on the other side's count, so the
        // counting side computes it.
        if other.censored {
            let high = y - x + self.unseen.unwrap_or(f64::INFINITY).ln();
            return (y - x, Interval { low: f64::NEG_INFINITY, high });
        }
        if self.censored {
            let low = y - x - other.unseen.unwrap_or(f64::INFINITY).ln();
            return (y - x, Interval { low, high: y - x });
        }
        let far = |one: f64, other: f64| if one == other { 0.0 } else { one - other };
        let down = far(y, other.interval.low).hypot(far(self.interval.high, x));
        let up = far(other.interval.high, y).hypot(far(x, self.interval.low));
        (y - x, Interval { low: y - x - down, high: y - x + up })
    }
}

/// Properties of the environment that must be equal for times to be compared.
const DECIDES: [&str; 8] =
    ["kernel", "cmdline", "cpu", "microcode", "virt", "governor", "clocksource", "mitigations"];

/// Properties whose difference is only reported, because it may be the change under test.
const TOLD: [&str; 2] = ["mhz", "thp"];

/// The properties that identify the program.
const TOOL: [&str; 4] = ["version", "commit", "rustc", "target_cpu"];

/// A property that differs between two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the property, as `kernel`.
    pub name: String,
    /// The property's value in the first run.
    pub a: String,
    /// The property's value in the second run.
    pub b: String,
    /// True if the difference makes times incomparable.
    pub decides: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.name, self.a, self.b)
    }
}

/// Returns the properties in which two runs differ.
pub(super) fn differences(one: &Run, other: &Run) -> Vec<Difference> {
    let env = |names: &'static [&'static str], decides| {
        names.iter().map(move |name| {
            let of = |run: &Run| printed(run.env.get(name));
            (*name, of(one), of(other), decides)
        })
    };
    let tool = TOOL.iter().map(|name| {
        let of = |run: &Run| run.run.tool.get(*name).cloned().unwrap_or_else(|| "n/a".into());
        (*name, of(one), of(other), false)
    });
    let all = env(&DECIDES, true).chain(env(&TOLD, false)).chain(tool);
    all.filter(|(_, a, b, _)| a != b)
        .map(|(name, a, b, decides)| Difference { name: name.into(), a, b, decides })
        .collect()
}

/// Returns the properties that must be equal for times to be compared and differ between two
/// environments, each with both values. A property that only one of them has differs. Of a property
/// with members, as `mitigations`, only those that differ are in the values.
pub(crate) fn deciding(
    one: &Value,
    other: &Value,
) -> impl Iterator<Item = (&'static str, String, String)> {
    let both = DECIDES.iter().map(move |name| {
        let (was, is) = unequal(one.get(name), other.get(name));
        (*name, was, is)
    });
    both.filter(|(_, was, is)| was != is)
}

fn unequal(one: Option<&Value>, other: Option<&Value>) -> (String, String) {
    let (Some(Value::Object(a)), Some(Value::Object(b))) = (one, other) else {
        return (printed(one), printed(other));
    };
    let only = |these: &Map<String, Value>, those: &Map<String, Value>| {
        let all = these.iter().filter(|(name, value)| those.get(*name) != Some(*value));
        let all = all.map(|(name, value)| (name.clone(), value.clone()));
        Value::Object(all.collect()).to_string()
    };
    (only(a, b), only(b, a))
}

/// Returns a time in nanoseconds as cycles of the run's CPU at its nominal rate.
pub(super) fn cycles(run: &Run, ns: f64) -> Option<f64> {
    let mhz = run.env.get("mhz")?.as_f64().filter(|mhz| *mhz > 0.0)?;
    Some(ns * mhz / 1e3)
}

fn printed(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "n/a".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn side(logs: &[f64]) -> Side {
        let mut logs = logs.to_vec();
        logs.sort_by(f64::total_cmp);
        let interval = median_interval(&logs, LEVEL).unwrap();
        let value = median(&logs).unwrap().exp();
        let n = logs.len();
        Side { value, interval, windows: n, set_ups: n, censored: false, unseen: None }
    }

    /// Checks the interval's coverage, which exceeds its level: the distances of both ends are
    /// added although both are rarely large.
    #[test]
    fn the_interval_of_unpaired_medians_covers() {
        let mut random = Random::new(11);
        let mut noise = |scale: f64| {
            let sum: f64 = (0..12).map(|_| random.next() as f64 / u64::MAX as f64).sum();
            scale * (sum - 6.0)
        };
        let tries = 800;
        let covered = (0..tries).filter(|_| {
            let a: Vec<f64> = (0..15).map(|_| noise(0.02)).collect();
            let b: Vec<f64> = (0..30).map(|_| 0.1 + noise(0.05)).collect();
            let (_, interval) = side(&a).to(&side(&b));
            (interval.low..=interval.high).contains(&0.1)
        });
        let share = covered.count() as f64 / f64::from(tries);
        assert!((0.93..=0.985).contains(&share), "{share}");
    }

    #[test]
    fn from_one_to_the_other_and_back_is_the_same_way() {
        let (a, b) = (side(&[0.1, 0.2, 0.4, 0.7]), side(&[0.5, 0.9, 0.8, 1.3, 0.2]));
        let ((there, to), (back, fro)) = (a.to(&b), b.to(&a));
        assert!((there + back).abs() < 1e-12 && (to.low + fro.high).abs() < 1e-12);
    }

    #[test]
    fn from_a_side_that_counted_nothing_the_interval_ends_at_the_bound() {
        let seen = Side { unseen: Some(3.0), ..side(&[1.0; 8]) };
        let interval = Interval { low: f64::NEG_INFINITY, high: 0.0 };
        let none = Side { value: 1.0, interval, censored: true, unseen: None, ..seen };
        let (up, come) = none.to(&seen);
        assert!(
            (up - 1.0).abs() < 1e-12 && (come.low - (1.0 - 3_f64.ln())).abs() < 1e-12,
            "{come:?}"
        );
        assert_eq!(come.high, up);
        let (down, gone) = seen.to(&none);
        assert!((up + down).abs() < 1e-12 && (come.low + gone.high).abs() < 1e-12, "{gone:?}");
        assert_eq!(gone.low, f64::NEG_INFINITY);
    }

    #[test]
    fn a_sum_in_which_a_window_is_negative_is_no_figure() {
        use crate::analysis::testing::{metric, pair};
        let mut sums = metric("cost");
        sums.estimate = Some(Estimate::Sums);
        let mut pairs = vec![pair(100.0, 90.0, 100.0); 15];
        assert!(Side::of(&sums, &pairs, LEVEL).is_some());
        pairs[3] = pair(100.0, -1.0, 100.0);
        assert_eq!(Side::of(&sums, &pairs, LEVEL), None);
    }
}
