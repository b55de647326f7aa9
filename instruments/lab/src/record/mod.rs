//! A run, as it is kept: raw pairs, the environment, the experiment's own file.
//!
//! The document is `linerate-lab-run/1`. Whatever is in it beside the pairs is computed from them.
//! A directory has `experiment.toml` and `pairs.ndjson` while it runs, `run.json` once it has ended.

mod csv;
mod find;
mod header;
mod heads;
mod lines;
mod parts;
mod run;
mod state;
mod store;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::scenario::Ledger;
pub use crate::window::Window;
pub use csv::{csv, effects_csv};
pub use find::{Listed, find, list, read};
pub(crate) use run::{title, unbalanced};
pub(crate) use state::{Asked, CellEnd, Resumed, RunState, Total};
pub(crate) use store::Store;

/// The schema that a run is written under.
pub const SCHEMA: &str = "linerate-lab-run/1";

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// What ran, when, how.
    pub run: Head,
    /// On what, before and after.
    pub env: serde_json::Value,
    /// What was compared.
    pub experiment: Compared,
    /// The grid.
    pub cells: Vec<CellRecord>,
    /// The grid as a whole, a line for each metric and group.
    pub overall: Vec<OverallRecord>,
    /// Per-function counts: one entry a side and event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileRecord>,
    /// Matrices, as `cell/side/free_matrix`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matrices: BTreeMap<String, Vec<Vec<u64>>>,
    /// Figures of whole sides, as `cell/side/memory_bytes`; in the document they are `heads`, with
    /// an object for each `cell/side`.
    #[serde(rename = "heads", with = "heads", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub totals: BTreeMap<String, f64>,
    /// What it came to: better, worse, same, mixed, inconclusive.
    pub verdict: String,
    /// What its reader must be told.
    pub warnings: Vec<Warning>,
}

/// What ran, when, how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// `2026-11-21T101500Z-pool`, with digits, `T`, `Z`, hyphens and lower-case letters only.
    pub id: String,
    /// RFC 3339.
    pub started: String,
    /// RFC 3339.
    pub finished: String,
    /// The program: version, commit, `build_id`, rustc, `target_cpu`; `unknown` where it is not.
    pub tool: BTreeMap<String, String>,
    /// The command.
    pub argv: Vec<String>,
    /// Of the order of sides, and of the traffic.
    pub seed: u64,
    /// False if it was interrupted: the cells so far are valid.
    pub complete: bool,
    /// What somebody said of it, and whether it was quick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The experiment's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_toml: Option<String>,
}

/// What was compared.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Compared {
    /// The experiment.
    pub id: String,
    /// Its post's number, or empty.
    pub seed_post: String,
    /// The first side.
    pub a: String,
    /// The second.
    pub b: String,
    /// Factors and their values.
    pub factors: BTreeMap<String, Vec<String>>,
    /// Whether it ran the declared subset, which has a plan of its own.
    #[serde(default)]
    pub quick: bool,
    /// What the metrics are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, String>,
}

/// One place of the grid.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CellRecord {
    /// The factors' values.
    pub at: BTreeMap<String, String>,
    /// How it ended.
    #[serde(default)]
    pub status: Status,
    /// Every pair, accepted or not.
    pub pairs: Vec<PairRecord>,
    /// What may be said, metric by metric.
    pub metrics: BTreeMap<String, Effect>,
    /// Where every packet went.
    pub ledger: Ledgers,
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// With figures.
    #[default]
    Ok,
    /// The load that it names was not reached: `-`.
    Unreachable,
    /// This machine or privilege cannot run it; a warning says why.
    Unsupported,
    /// Most of its pairs were disturbed.
    Inconclusive,
}

/// Both sides' ledgers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Ledgers {
    /// Of the first.
    pub a: Ledger,
    /// Of the second.
    pub b: Ledger,
    /// Of the first side's control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Ledger>,
}

impl Run {
    /// Whether every packet of every cell is accounted for; the results of a cell of which that is
    /// not true are withheld.
    #[must_use]
    pub fn conserved(&self) -> bool {
        self.cells.iter().all(|cell| cell.ledger.balanced())
    }
}

impl Ledgers {
    /// Whether all of them are: the control's packets are packets too.
    #[must_use]
    pub fn balanced(&self) -> bool {
        let control = self.control.as_ref().is_none_or(|control| control.balanced);
        self.a.balanced && self.b.balanced && control
    }
}

/// A unit: both sides in adjacent windows, and the first side's control on its other side.
///
/// The windows ran in the order `b a control` or `control a b`, so that each pair is adjacent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairRecord {
    /// Which of the two ran first.
    pub order: Order,
    /// The first side.
    pub a: Window,
    /// The second.
    pub b: Window,
    /// The first side again, set up a second time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Window>,
    /// Whether rates may be taken from it: the CPUs were ours.
    pub accepted: bool,
    /// Whether costs and counts may be: the counters were ours, the placement stayed.
    #[serde(default = "yes")]
    pub cost_accepted: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_reason: Option<String>,
    /// How far the CPUs were from each other, as ticks of a cache line's round trip, and what class
    /// that is: `near`, `far`. Pairs are compared within a class only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRecord>,
}

/// How far two CPUs were from each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Ticks of a cache line's round trip, before the pair.
    pub before_ticks: f64,
    /// After it.
    pub after_ticks: f64,
    /// `near` or `far`.
    pub class: String,
}

fn yes() -> bool {
    true
}

/// Which side ran first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The first side: `a b`.
    AB,
    /// The second side: `b a`.
    BA,
}

/// What may be said of one metric in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Of `a` and `b`.
    pub unit: String,
    /// Which way is better, `higher` or `lower`; `None` if neither is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better_when: Option<String>,
    /// Median of the first side's windows.
    pub a: f64,
    /// Median of the second's.
    pub b: f64,
    /// Median of the pairs' changes, in per cent.
    pub change_pct: f64,
    /// Where that lies with 95 % confidence, the looks at it taken into account.
    pub ci95_pct: (f64, f64),
    /// Pairs that it is from.
    pub n_pairs: usize,
    /// One side counted nothing: its value is below this, not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub censored_below: Option<f64>,
    /// What the control said of identical code: the largest change within its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa_half_width_pct: Option<f64>,
    /// The control's median and interval, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa_pct: Option<(f64, f64, f64)>,
    /// Probability of such pairs if there were no difference, corrected for the grid by Holm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_holm: Option<f64>,
    /// What was expected, in per cent, by whom, and whether it was met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// What may be said.
    pub verdict: Verdict,
}

/// An expectation and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// From, to.
    pub change_pct: (f64, f64),
    /// By whom.
    pub source: String,
    /// True if the change lies within; a disagreement is a result.
    pub met: bool,
    /// Whether that is more than the median's word: the whole interval lies within, or all of it
    /// outside, and neither a disturbance nor the control speaks against it.
    #[serde(default)]
    pub certain: bool,
}

/// What may be said of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, beyond the noise.
    Better,
    /// Worse, beyond the noise.
    Worse,
    /// No difference beyond the noise.
    Same,
    /// It cannot be said.
    Unclear,
}

/// One metric over a group of cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverallRecord {
    /// Which.
    pub metric: String,
    /// `all`, or a factor's value as `rate=fixed`.
    pub group: String,
    /// Change of the sum: large cells dominate it.
    pub sum_ratio_pct: f64,
    /// Every cell weighs the same.
    pub geomean_pct: f64,
    /// Cells that are better.
    pub better: usize,
    /// Worse.
    pub worse: usize,
    /// The same.
    pub same: usize,
    /// Unclear.
    pub unclear: usize,
}

/// Per-function counts of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// `a` or `b`.
    pub side: String,
    /// The cell, as `rate=max`; empty without factors.
    #[serde(default)]
    pub cell: String,
    /// What was counted.
    pub event: String,
    /// Of what.
    pub unit: String,
    /// Packets that went through meanwhile.
    pub packets: u64,
    /// A function that is not listed was seen fewer times than this.
    pub cutoff: u64,
    /// Functions.
    pub rows: Vec<ProfileRow>,
}

/// One function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// Its name.
    pub symbol: String,
    /// How often.
    pub count: u64,
    /// Bytes of its code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_bytes: Option<u64>,
    /// Its stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

/// What a run's reader must be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable identifier, as `W-NO-PMU`.
    pub code: String,
    /// In a sentence.
    pub text: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}
