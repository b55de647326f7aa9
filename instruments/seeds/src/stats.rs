//! Ratios, and summaries of many ratios.
//!
//! A grid of tests has no one change: the ratio of sums weighs each test by the size of its
//! figures, the geometric mean weighs all alike, the counts do not weigh at all. [`Overall`] gives
//! the three together, so that none of them is quoted alone.

use serde::{Deserialize, Serialize};

/// A figure before and after a change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// The value before the change.
    pub before: f64,
    /// The value with the change.
    pub after: f64,
}

/// The better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum Goal {
    /// A rate: more is better.
    #[serde(rename = "higher")]
    More,
    /// A cost: less is better.
    #[serde(rename = "lower")]
    Less,
}

/// The direction of a change: better, worse or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The change was for the better.
    Better,
    /// The change was for the worse.
    Worse,
    /// No change, or a difference within the noise.
    Same,
}

/// The number of tests for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Tests that changed for the better.
    pub better: usize,
    /// Tests that changed for the worse.
    pub worse: usize,
    /// Number of pairs that are neither better nor worse.
    pub same: usize,
}

/// The summary of a grid of tests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Overall {
    /// Number of tests.
    pub tests: usize,
    /// Sum of the figures before the change.
    pub before: f64,
    /// Sum of the figures after the change.
    pub after: f64,
    /// Change of the sum, in per cent, dominated by large figures.
    pub sums_pct: Option<f64>,
    /// Geometric mean of the ratios, as a change in per cent, with equal weight for all tests.
    pub geometric_pct: Option<f64>,
    /// The number of tests for each direction.
    pub counts: Counts,
}

impl Pair {
    /// Returns a pair of whole numbers, as exact as `f64` can represent them.
    #[must_use]
    pub fn of(before: u64, after: u64) -> Pair {
        Pair { before: before as f64, after: after as f64 }
    }

    /// Returns `after / before`; `None` if `before` is 0.
    #[must_use]
    pub fn ratio(self) -> Option<f64> {
        finite(self.after / self.before)
    }

    /// Returns the change in per cent of `before`; `None` if `before` is 0.
    #[must_use]
    pub fn change_pct(self) -> Option<f64> {
        self.ratio().map(|ratio| 100.0 * (ratio - 1.0))
    }

    /// Returns the direction of the change. A change of at most `noise_pct` is `Same`.
    #[must_use]
    pub fn direction(self, goal: Goal, noise_pct: f64) -> Direction {
        let change = self.after - self.before;
        if change.abs() <= self.before.abs() * noise_pct / 100.0 {
            return Direction::Same;
        }
        if (change > 0.0) == (goal == Goal::More) { Direction::Better } else { Direction::Worse }
    }
}

impl Direction {
    /// Returns the printed word for the direction.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Direction::Better => "better",
            Direction::Worse => "worse",
            Direction::Same => "same",
        }
    }
}

impl Counts {
    /// Counts the pairs by direction.
    #[must_use]
    pub fn of(pairs: &[Pair], goal: Goal, noise_pct: f64) -> Counts {
        let mut counts = Counts::default();
        for pair in pairs {
            match pair.direction(goal, noise_pct) {
                Direction::Better => counts.better += 1,
                Direction::Worse => counts.worse += 1,
                Direction::Same => counts.same += 1,
            }
        }
        counts
    }
}

impl Overall {
    /// Summarises `pairs` by the sums, by the geometric mean, and by direction.
    #[must_use]
    pub fn of(pairs: &[Pair], goal: Goal, noise_pct: f64) -> Overall {
        let before = pairs.iter().map(|pair| pair.before).sum();
        let after = pairs.iter().map(|pair| pair.after).sum();
        let ratios: Option<Vec<f64>> = pairs.iter().map(|pair| pair.ratio()).collect();
        let geometric = ratios.and_then(|ratios| geometric_mean(&ratios));
        Overall {
            tests: pairs.len(),
            before,
            after,
            sums_pct: Pair { before, after }.change_pct(),
            geometric_pct: geometric.map(|mean| 100.0 * (mean - 1.0)),
            counts: Counts::of(pairs, goal, noise_pct),
        }
    }
}

/// Returns the mean of `values` with equal weights; `None` if there are none.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    finite(values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the weighted mean of values; `None` if the sum of weights is 0.
///
/// A mean of means is only right if it is weighted by the calls that each of them is a mean of.
#[must_use]
pub fn weighted_mean(values: &[(f64, f64)]) -> Option<f64> {
    let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
    finite(values.iter().map(|(value, weight)| value * weight).sum::<f64>() / weight)
}

/// Returns the geometric mean of `ratios`; `None` if there are none, or if one is not above 0.
#[must_use]
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    if ratios.iter().any(|ratio| *ratio <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    mean(&logs).and_then(|mean| finite(mean.exp()))
}

/// Returns the smallest and the largest value; `None` if there are none, or if one of them is NaN.
#[must_use]
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    values.iter().all(|value| value.is_finite()).then_some((low, high))
}

/// Returns `value` if it is finite; `None` for a division by zero.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, expected: f64) {
        assert!(value.is_some_and(|v| (v - expected).abs() < 1e-9), "{value:?}, not {expected}");
    }

    #[test]
    fn the_sum_is_dominated_by_the_large_and_the_geometric_mean_is_not() {
        let pairs = [Pair::of(1, 4), Pair::of(1000, 1000)];
        let overall = Overall::of(&pairs, Goal::More, 0.0);
        near(overall.sums_pct, 100.0 * 3.0 / 1001.0);
        near(overall.geometric_pct, 100.0);
        assert_eq!(overall.counts, Counts { better: 1, worse: 0, same: 1 });
        assert_eq!((overall.tests, overall.before, overall.after), (2, 1001.0, 1004.0));
    }

    #[test]
    fn the_geometric_mean_undoes_what_is_undone() {
        near(geometric_mean(&[2.0, 0.5]), 1.0);
        near(mean(&[2.0, 0.5]), 1.25);
        assert_eq!(geometric_mean(&[2.0, 0.0]), None);
        assert_eq!(geometric_mean(&[-1.0]), None);
    }

    #[test]
    fn a_mean_of_means_is_weighted_by_their_calls() {
        near(mean(&[10.0, 20.0]), 15.0);
        near(weighted_mean(&[(10.0, 9.0), (20.0, 1.0)]), 11.0);
    }

    #[test]
    fn less_is_better_of_a_cost_and_a_change_within_the_noise_is_none() {
        let pair = Pair::of(100, 98);
        assert_eq!(pair.direction(Goal::Less, 0.0), Direction::Better);
        assert_eq!(pair.direction(Goal::More, 0.0), Direction::Worse);
        assert_eq!(pair.direction(Goal::More, 2.0), Direction::Same);
        assert_eq!(Pair::of(0, 1).direction(Goal::More, 2.0), Direction::Better);
    }

    #[test]
    fn of_nothing_there_is_no_figure() {
        assert_eq!(mean(&[]), None);
        assert_eq!(weighted_mean(&[(1.0, 0.0)]), None);
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[1.0, f64::NAN]), None);
        assert_eq!(Pair::of(0, 5).change_pct(), None);
        assert_eq!(Pair::of(0, 0).ratio(), None);
        let none = Overall::of(&[], Goal::More, 0.0);
        assert_eq!((none.sums_pct, none.geometric_pct), (None, None));
    }
}
