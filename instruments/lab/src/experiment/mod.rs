//! An experiment: a claim as data, declared before the first run.
//!
//! It says which scenario is run, how its two sides differ, what is varied beside (a grid of
//! cells), what is measured, and what is expected with its source. Ours are files as a user's own
//! is.

mod builtin;
mod document;
mod file;
mod formula;
mod here;
mod show;

use std::cmp::Reverse;

use linerate_seeds::stats::Goal;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::analysis::{SAME_PCT, pairs_needed};
use crate::scenario::{Scenario, named};
use crate::settings::Settings;

pub use builtin::List;
pub use builtin::{BUILTIN, builtin};
pub use formula::Formula;
pub use here::{Here, Obstacle, at_most, commands, lasting};
pub use show::Show;

/// A claim, and the method to test it.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The experiment's name: lower-case letters, digits, hyphens.
    pub id: String,
    /// The title, in one line.
    pub title: String,
    /// The question and the meaning of an answer, in sentences.
    pub question: String,
    /// The number of the post that the experiment reproduces, such as `000`.
    pub post: Option<String>,
    /// The name of the scenario, unless a factor's level sets another.
    pub scenario: String,
    /// The network devices that packets pass, with driver and NIC, if the file says so.
    pub device: Option<String>,
    /// The first side: the baseline.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// The factors that vary besides the sides; their product is the grid.
    pub factors: Vec<Factor>,
    /// The cells of the grid, in the order of the run.
    pub cells: Vec<Cell>,
    /// The metrics; the first is the headline.
    pub metrics: Vec<Metric>,
    /// Values published by others, for comparison with ours.
    pub fixed_points: Vec<FixedPoint>,
    /// The number of pairs, looks and windows to run.
    pub plan: Plan,
    /// True if each cell takes a profile of each side after its pairs.
    pub profiles: bool,
    /// The text of the file, of which a run stores a copy.
    pub toml: String,
}

/// One of the two sides of a comparison.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// The name of the side in tables.
    #[serde(deserialize_with = "document::sentence")]
    pub name: String,
    /// The settings of the side's scenario.
    #[serde(default, rename(deserialize = "set"))]
    pub settings: Settings,
}

/// A factor that varies.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// The factor's name.
    #[serde(deserialize_with = "document::name")]
    pub name: String,
    /// A description of the factor, in a sentence.
    #[serde(deserialize_with = "document::sentence")]
    pub about: String,
    /// The factor's levels, in order.
    #[serde(
        default,
        rename(deserialize = "level"),
        deserialize_with = "document::at_most::<_, _, 256>"
    )]
    pub levels: Vec<Level>,
}

/// A value of a factor, with its settings for the sides.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The level's name, as printed.
    #[serde(deserialize_with = "document::name")]
    pub name: String,
    /// The scenario of the level's cells, if it differs from the experiment's.
    #[serde(default, deserialize_with = "document::scenario")]
    pub scenario: Option<String>,
    /// Length of the windows in the level's cells, if it differs from the plan's.
    #[serde(
        default,
        rename = "window",
        deserialize_with = "document::window_ns",
        skip_serializing
    )]
    pub window_ns: Option<u64>,
    /// Overrides [`Plan::fresh`] in the level's cells: true sets up the sides again for every pair.
    pub fresh: Option<bool>,
    /// The settings for both sides.
    #[serde(default, rename = "set")]
    pub both: Settings,
    /// The settings for the first side only.
    #[serde(default)]
    pub a: Settings,
    /// The settings for the second side only.
    #[serde(default)]
    pub b: Settings,
    /// True if the level is part of the quick subset.
    #[serde(default)]
    pub quick: bool,
    /// Length of the windows in the level's cells in a quick run, if it differs from the level's
    /// and the plan's.
    #[serde(
        default,
        rename = "quick_window",
        deserialize_with = "document::window_ns",
        skip_serializing
    )]
    pub quick_window_ns: Option<u64>,
}

/// A cell of the grid: one combination of the factors' levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The factors' values, in the factors' order; empty without factors.
    pub at: Vec<(String, String)>,
    /// The cell's scenario.
    pub scenario: String,
    /// Length of a window, in nanoseconds.
    pub window_ns: u64,
    /// Length of a window of a quick run.
    pub quick_window_ns: u64,
    /// True if the cell's sides are set up again for every pair: see [`Plan::fresh`].
    pub fresh: bool,
    /// The scenario's settings for the first side.
    pub a: Settings,
    /// The scenario's settings for the second side.
    pub b: Settings,
    /// True if the cell is part of the quick subset.
    pub quick: bool,
}

/// A metric: a formula over the figures of a window.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// The metric's name, such as `cost_ns_per_packet`.
    #[serde(deserialize_with = "document::name")]
    pub name: String,
    /// The metric's unit.
    #[serde(deserialize_with = "document::sentence")]
    pub unit: String,
    /// A description of the metric, in a sentence.
    #[serde(deserialize_with = "document::sentence")]
    pub about: String,
    /// The formula of the metric, such as `cost_ns / packets`.
    #[serde(rename = "value")]
    pub formula: Formula,
    /// The better direction; `None` if neither is better.
    #[serde(rename = "better")]
    pub goal: Option<Goal>,
    /// The clock, which decides the windows that the metric may use.
    pub clock: Clock,
    /// The estimate of a change, independent of the data; `None` uses the clock's default:
    /// [`Metric::estimate`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The margin of *same*, in per cent, if the file declares one; `None` uses the default:
    /// [`Metric::same_pct`].
    #[serde(default, deserialize_with = "document::margin", serialize_with = "show::margin")]
    pub same_pct: Option<f64>,
    /// The expected values, for given cells or for all of them.
    #[serde(default, rename = "expect", deserialize_with = "document::at_most::<_, _, 64>")]
    pub expected: Vec<Expectation>,
    /// The expected changes over all cells.
    #[serde(rename = "overall", skip_serializing_if = "Option::is_none")]
    pub expected_overall: Option<OverallExpectation>,
}

/// The estimate of a metric's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// The median of ratios: for metrics that are measured and never 0.
    Ratios,
    /// The ratio of sums: for metrics that are 0 in some windows.
    Sums,
    /// The ratio of sums of events that are counted one by one: one event is the upper bound of a
    /// side without events.
    Events,
}

/// The hypotheses that chances are corrected for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// The cells of one metric: each metric is a separate question.
    #[default]
    Metric,
    /// All cells of all metrics: the verdict covers the whole experiment.
    Experiment,
}

/// Returns the origin of a margin or of a family, as printed after it.
pub(crate) fn origin(is_declared: bool) -> &'static str {
    if is_declared { "declared" } else { "the default" }
}

/// A clock that a metric is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// CPU time without that of other programs. All windows count in which no other program used
    /// the counters.
    Cost,
    /// Wall time. Only windows count in which no other program used the CPUs.
    Wall,
    /// No clock: the metric is counted.
    Count,
}

/// An expected value of a metric, and its source.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Factor values of the cells to which the expectation applies; all cells if empty. Of several
    /// expectations for a cell, the one with the most factor values counts.
    #[serde(default, deserialize_with = "document::at", serialize_with = "show::as_map")]
    pub at: Vec<(String, String)>,
    /// Lowest and highest change from the first side to the second, in per cent.
    #[serde(deserialize_with = "document::range")]
    pub change_pct: (f64, f64),
    /// The source of the value, or the reason for it.
    #[serde(deserialize_with = "document::sentence")]
    pub source: String,
}

/// The expected changes of a metric over all cells of the grid, and their source.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverallExpectation {
    /// Lowest and highest change of the sum over the cells, in per cent.
    #[serde(deserialize_with = "document::range")]
    pub sum_pct: (f64, f64),
    /// Lowest and highest geometric mean of the cells' changes, in per cent.
    #[serde(deserialize_with = "document::range")]
    pub geomean_pct: (f64, f64),
    /// The source of the values, or the reason for them.
    #[serde(deserialize_with = "document::sentence")]
    pub source: String,
}

/// A pair of values published by others.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FixedPoint {
    /// The name of the measured quantity.
    #[serde(deserialize_with = "document::sentence")]
    pub name: String,
    /// The values' unit.
    #[serde(deserialize_with = "document::sentence")]
    pub unit: String,
    /// The value of the first side.
    #[serde(deserialize_with = "document::number")]
    pub a: f64,
    /// The value of the second side.
    #[serde(deserialize_with = "document::number")]
    pub b: f64,
    /// The author of the values.
    #[serde(deserialize_with = "document::sentence")]
    pub source: String,
}

/// The amount of measurement: pairs, looks and windows.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Length of a window, in nanoseconds.
    pub window_ns: u64,
    /// Number of windows of each side that run first and are not counted.
    pub warmup: u32,
    /// True if the sides are set up again for every pair, unless a factor's level changes it; else
    /// every few pairs: [`Experiment::pairs_per_set_up`]. Each set-up gets other memory, so that a
    /// difference between two areas of memory is not taken for an effect.
    pub fresh: bool,
    /// Numbers of pairs at which the run checks whether they suffice; the run ends at the last one.
    pub looks: Vec<u32>,
    /// Half the width of the interval, in per cent, that suffices to end a cell.
    pub half_width_pct: f64,
    /// The hypotheses that chances are corrected for together, if the file declares them; `None`
    /// uses the default: [`Plan::family`].
    pub family: Option<Family>,
    /// Pairs of a quick run, which has a single look.
    pub quick_pairs: u32,
    /// Length of a window of a quick run.
    pub quick_window_ns: u64,
}

impl Experiment {
    /// Parses an experiment's file; errors call it `name`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with file and line: syntax, an unknown key, a scenario, figure or factor that
    /// there is not, an expectation without a source.
    pub fn parse(text: &str, name: &str) -> Result<Experiment> {
        file::parse(text, name)
    }

    /// Returns the cells of a run: all, or the quick subset.
    pub fn cells(&self, quick: bool) -> impl Iterator<Item = (usize, &Cell)> {
        self.cells.iter().enumerate().filter(move |(_, cell)| cell.quick || !quick)
    }

    /// Returns the number of hypotheses in a family: the number of planned cells, for one metric or
    /// for all metrics.
    #[must_use]
    pub fn family(&self, quick: bool) -> usize {
        let metrics = match self.plan.family() {
            Family::Metric => 1,
            Family::Experiment => self.metrics.len(),
        };
        self.cells(quick).count().saturating_mul(metrics)
    }

    /// Returns the number of pairs of `cell` after which the sides are set up again. It is so small
    /// that the first look has the set-ups that the family needs. `None` if each window is a set-up
    /// already.
    #[must_use]
    pub fn pairs_per_set_up(&self, cell: &Cell, quick: bool) -> Option<u32> {
        if named(&cell.scenario).is_some_and(Scenario::sets_up_each_window) {
            return None;
        }
        let first = self.plan.looks(quick).first().copied().unwrap_or(1);
        let needed = u32::try_from(pairs_needed(self.family(quick))).unwrap_or(u32::MAX);
        Some(if cell.fresh { 1 } else { (first / needed).max(1) })
    }

    /// Returns the windows of each bench of `cell` when `pairs` are run, including warm-ups.
    #[must_use]
    pub fn windows(&self, cell: &Cell, quick: bool, pairs: u32) -> u64 {
        let set_ups =
            self.pairs_per_set_up(cell, quick).map_or(1, |per| pairs.div_ceil(per).max(1));
        u64::from(pairs) + u64::from(set_ups) * u64::from(self.plan.warmup.max(1))
    }

    /// Returns the headline: the first metric.
    #[must_use]
    pub fn headline(&self) -> Option<&Metric> {
        self.metrics.first()
    }
}

impl Metric {
    /// Returns the metric's estimate: the declared one, else events for counts and ratios for the
    /// rest.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let by_clock = if self.clock == Clock::Count { Estimate::Events } else { Estimate::Ratios };
        self.estimate.unwrap_or(by_clock)
    }

    /// Returns the margin of *same*: changes within it, in per cent, do not count. It is the
    /// declared one, else 1 %.
    #[must_use]
    pub fn same_pct(&self) -> f64 {
        self.same_pct.unwrap_or(SAME_PCT)
    }

    /// Returns the expected value in a cell: of the expectations for it, the one that names the
    /// most factors; of those that name equally many, the first in the file.
    #[must_use]
    pub fn expected_at(&self, at: &[(String, String)]) -> Option<&Expectation> {
        let applies = |expected: &&Expectation| expected.at.iter().all(|one| at.contains(one));
        self.expected.iter().filter(applies).min_by_key(|expected| Reverse(expected.at.len()))
    }
}

impl Cell {
    /// Formats the cell's levels: `change=both rate=fixed`.
    #[must_use]
    pub fn name(&self) -> String {
        let each: Vec<String> =
            self.at.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
        each.join(" ")
    }

    /// Returns the length of a window.
    #[must_use]
    pub fn window_ns(&self, quick: bool) -> u64 {
        if quick { self.quick_window_ns } else { self.window_ns }
    }
}

impl Plan {
    /// Most pairs of a cell, as a multiple of the pairs that must be undisturbed, if a run does not
    /// ask for more.
    pub const ATTEMPTS: u32 = 2;

    /// Returns the hypotheses that chances are corrected for together: the declared family, else
    /// the cells of each metric.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family.unwrap_or_default()
    }

    /// Returns the numbers of pairs at which the run checks whether they suffice.
    #[must_use]
    pub fn looks(&self, quick: bool) -> Vec<u32> {
        if quick { vec![self.quick_pairs] } else { self.looks.clone() }
    }
}
