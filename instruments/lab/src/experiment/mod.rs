//! An experiment: a claim as data, written down before the first run.
//!
//! It says which scenario is run, how its two sides differ, what is varied beside (a grid of cells),
//! what is measured, and what is expected with its source. Ours are files as a user's own is.

mod builtin;
mod document;
mod file;
mod formula;
mod grid;
mod here;
mod list;
mod show;

use linerate_seeds::stats::Goal;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::settings::Settings;

pub use builtin::{BUILTIN, builtin};
pub use formula::Formula;
pub use here::{Here, Obstacle, at_most, commands, lasting};
pub use list::List;
pub use show::Show;

/// A claim, and how it is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name: lower-case letters, digits, hyphens.
    pub id: String,
    /// One line.
    pub title: String,
    /// The question, and what an answer would mean, in sentences.
    pub question: String,
    /// The post whose experiment it is, by its number, as `000`.
    pub post: Option<String>,
    /// The scenario, by its name, unless a factor's value says another.
    pub scenario: String,
    /// The first side: the baseline.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// What is varied beside the sides; their product is the grid.
    pub factors: Vec<Factor>,
    /// The grid, in the order in which it is run.
    pub cells: Vec<Cell>,
    /// What is measured; the first is the headline.
    pub metrics: Vec<Metric>,
    /// Values that somebody else has published, to stand beside ours.
    pub fixed_points: Vec<FixedPoint>,
    /// How much of it is done.
    pub plan: Plan,
    /// Whether a profile of each side is taken in each cell, after its pairs.
    pub profiles: bool,
    /// The file, as it was read: a run keeps it.
    pub toml: String,
}

/// One of the two things that are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// What it is called in tables.
    pub name: String,
    /// What its scenario is told.
    pub settings: Settings,
}

/// Something that is varied.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor {
    /// Its name.
    pub name: String,
    /// What is to be known of it, in a sentence.
    pub about: String,
    /// Its values, in order.
    pub levels: Vec<Level>,
}

/// One value of a factor, and what it means for the sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// As printed.
    pub name: String,
    /// The scenario of its cells, if it is not the experiment's.
    pub scenario: Option<String>,
    /// Length of its cells' windows, if it is not the plan's.
    pub window_ns: Option<u64>,
    /// Whether the sides of its cells are set up anew for every pair, if not as the plan says.
    pub fresh: Option<bool>,
    /// For both sides.
    pub both: Settings,
    /// For the first only.
    pub a: Settings,
    /// For the second only.
    pub b: Settings,
    /// Whether it is part of the quick subset.
    pub quick: bool,
}

/// One place of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The factors' values, in the factors' order; empty without factors.
    pub at: Vec<(String, String)>,
    /// Its scenario.
    pub scenario: String,
    /// Length of a window, in nanoseconds.
    pub window_ns: u64,
    /// Length of a window of a quick run.
    pub quick_window_ns: u64,
    /// Whether its sides are set up anew for every pair: see [`Plan::fresh`].
    pub fresh: bool,
    /// What the scenario is told for the first side.
    pub a: Settings,
    /// For the second.
    pub b: Settings,
    /// Whether it is part of the quick subset.
    pub quick: bool,
}

/// Something that is measured, as a formula over the figures of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Its name, as `cost_ns_per_packet`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// What it is, in a sentence.
    pub about: String,
    /// How it is computed, as `cost_ns / packets`.
    pub formula: Formula,
    /// Which way is better; `None` if neither is.
    pub goal: Option<Goal>,
    /// By what clock, which decides the windows it is taken from.
    pub clock: Clock,
    /// What is expected, cell by cell or everywhere.
    pub expected: Vec<Expectation>,
}

/// By what clock a metric is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// CPU time, less what others took: any window will do in which counters were not shared.
    Cost,
    /// Wall time: only windows will do in which the CPUs were ours.
    Wall,
    /// None: it is counted.
    Count,
}

/// What is expected of a metric, and who said so.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The cells it is said of: those that have all of these values; all if empty.
    pub at: Vec<(String, String)>,
    /// Change from the first side to the second, in per cent, lowest and highest.
    pub change_pct: (f64, f64),
    /// Whose figure that is, or why.
    pub source: String,
}

/// A pair of values that somebody has published.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FixedPoint {
    /// What was measured.
    #[serde(deserialize_with = "document::sentence")]
    pub name: String,
    /// Its unit.
    #[serde(deserialize_with = "document::sentence")]
    pub unit: String,
    /// The first side.
    #[serde(deserialize_with = "document::number")]
    pub a: f64,
    /// The second.
    #[serde(deserialize_with = "document::number")]
    pub b: f64,
    /// By whom.
    #[serde(deserialize_with = "document::sentence")]
    pub source: String,
}

/// In how many cells something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fresh {
    Nowhere,
    Somewhere,
    Everywhere,
}

/// How much is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Length of a window, in nanoseconds.
    pub window_ns: u64,
    /// Windows of each side that are run first, and not counted.
    pub warmup: u32,
    /// Whether the sides are set up anew for every pair, unless a factor's level says otherwise: each
    /// then has other memory every time, and what one lot of memory is slower than another does not
    /// stand beside an effect.
    pub fresh: bool,
    /// Pairs at which it is looked whether they are enough; the last is the end.
    pub looks: Vec<u32>,
    /// Half of the interval's width, in per cent, that is enough.
    pub half_width_pct: f64,
    /// Pairs of a quick run, which looks once.
    pub quick_pairs: u32,
    /// Length of a window of a quick run.
    pub quick_window_ns: u64,
}

impl Experiment {
    /// Reads an experiment's file; `name` is what its errors call it.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with file and line: syntax, an unknown key, a scenario, figure or factor that
    /// there is not, an expectation without a source.
    pub fn parse(text: &str, name: &str) -> Result<Experiment> {
        file::parse(text, name)
    }

    /// The cells of a run: all, or the quick subset.
    pub fn cells(&self, quick: bool) -> impl Iterator<Item = (usize, &Cell)> {
        self.cells.iter().enumerate().filter(move |(_, cell)| cell.quick || !quick)
    }

    /// In how many of a run's cells the sides are set up anew for every pair.
    #[must_use]
    pub(crate) fn fresh(&self, quick: bool) -> Fresh {
        let fresh = self.cells(quick).filter(|(_, cell)| cell.fresh).count();
        match fresh {
            0 => Fresh::Nowhere,
            all if all == self.cells(quick).count() => Fresh::Everywhere,
            _ => Fresh::Somewhere,
        }
    }

    /// The first metric: what a run is about.
    #[must_use]
    pub fn headline(&self) -> Option<&Metric> {
        self.metrics.first()
    }
}

impl Metric {
    /// What is expected of it in a cell.
    #[must_use]
    pub fn expected_at(&self, at: &[(String, String)]) -> Option<&Expectation> {
        self.expected.iter().find(|expected| expected.at.iter().all(|one| at.contains(one)))
    }
}

impl Cell {
    /// As printed: `change=both rate=fixed`.
    #[must_use]
    pub fn name(&self) -> String {
        let each: Vec<String> =
            self.at.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
        each.join(" ")
    }

    /// Length of a window.
    #[must_use]
    pub fn window_ns(&self, quick: bool) -> u64 {
        if quick { self.quick_window_ns } else { self.window_ns }
    }
}

impl Plan {
    /// Pairs at which it is looked.
    #[must_use]
    pub fn looks(&self, quick: bool) -> Vec<u32> {
        if quick { vec![self.quick_pairs] } else { self.looks.clone() }
    }

    /// Windows of each bench of `cell` in which `pairs` are run.
    #[must_use]
    pub fn windows(&self, cell: &Cell, pairs: u32) -> u64 {
        let (pairs, warmup) = (u64::from(pairs), u64::from(self.warmup.max(1)));
        if cell.fresh { pairs.saturating_mul(1 + warmup) } else { pairs + warmup }
    }
}
