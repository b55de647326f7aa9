//! A run as it is stored: raw pairs, the environment, a copy of the experiment's file.
//!
//! The document is `linerate-lab-run/1`. Whatever is in it beside the pairs is computed from them.
//! A directory has `experiment.toml` and `pairs.ndjson` while it runs, `run.json` once it has
//! ended.

mod csv;
mod lines;
mod run;
mod state;

use std::collections::BTreeMap;

use linerate_prof::agree::Checked;
use linerate_prof::profile::{OwnCost, Stack};
use serde::{Deserialize, Serialize};

pub use crate::scenario::Ledger;
pub use crate::window::Window;
pub use csv::{csv, effects_csv};
pub(crate) use run::{resumed_parts, title, unbalanced};
pub(crate) use state::Store;
#[cfg(test)]
pub(crate) use state::runs;
pub(crate) use state::{CellEnd, RequestRecord, Resumed, RunState, Total};
pub use state::{find, read};

/// The part of a run's note that says that the run was quick.
pub(crate) const QUICK_NOTE: &str = "quick: the declared subset, few pairs";

/// The schema that a run is written under.
pub const SCHEMA: &str = "linerate-lab-run/1";

/// A run with its results, as stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Run {
    /// The schema version, [`SCHEMA`].
    pub schema: String,
    /// The program, time and conditions of the run.
    pub run: Head,
    /// The environment, before and after the run.
    pub env: serde_json::Value,
    /// The compared sides, factors and metrics.
    pub experiment: Compared,
    /// The cells of the grid.
    pub cells: Vec<CellRecord>,
    /// Summary lines over groups of cells: one for each metric and group.
    pub overall: Vec<OverallRecord>,
    /// Counts by function, with an entry for each side and event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileRecord>,
    /// Matrices, as `cell/side/free_matrix`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matrices: BTreeMap<String, Vec<Vec<u64>>>,
    /// Figures of whole sides, as `cell/side/memory_bytes`; in the document they are `heads`, with
    /// an object for each `cell/side`.
    #[serde(rename = "heads", with = "heads", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub totals: BTreeMap<String, f64>,
    /// The overall verdict: better, worse, same, mixed, inconclusive.
    pub verdict: String,
    /// The warnings for the reader.
    pub warnings: Vec<Warning>,
}

/// The program, time and conditions of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// Name of the run, of its start time and its experiment: `20261121T101500Z-pool`. It contains
    /// only digits, `T`, `Z`, hyphens and lower-case letters.
    pub id: String,
    /// Start time, as RFC 3339.
    pub started: String,
    /// End time, as RFC 3339.
    pub finished: String,
    /// The program: version, commit, `build_id`, rustc, `target_cpu`; each may be `unknown`.
    pub tool: BTreeMap<String, String>,
    /// The command line of the run.
    pub argv: Vec<String>,
    /// The seed of the order of sides, and of the traffic.
    pub seed: u64,
    /// False if the run was interrupted: the finished cells are valid.
    pub complete: bool,
    /// The user's note, and a mark if the run was quick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The text of the experiment's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_toml: Option<String>,
}

/// The experiment that was run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Compared {
    /// The experiment's name.
    pub id: String,
    /// The number of the experiment's post, or empty.
    pub seed_post: String,
    /// The first side's name.
    pub a: String,
    /// The second side's name.
    pub b: String,
    /// Factors and their values.
    pub factors: BTreeMap<String, Vec<String>>,
    /// True if the run covered the declared quick subset, which has a plan of its own.
    #[serde(default)]
    pub quick: bool,
    /// The descriptions of the metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, String>,
}

/// The results of one cell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CellRecord {
    /// The factors' values in the cell.
    pub at: BTreeMap<String, String>,
    /// The status at the end of the cell: finished, or the reason why not.
    #[serde(default)]
    pub status: Status,
    /// Every pair, whether accepted or not.
    pub pairs: Vec<PairRecord>,
    /// Most pairs that could be run, as a multiple of the pairs that must be undisturbed, if the
    /// run asked for another multiple than the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// True if the run ended before the cell did, whose number of pairs is then not one of the
    /// plan: it has no verdict.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unfinished: bool,
    /// The effect on each metric.
    pub metrics: BTreeMap<String, Effect>,
    /// The ledgers, which account for every packet.
    pub ledger: Ledgers,
}

/// The ways in which a cell can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The cell has figures.
    #[default]
    Ok,
    /// The path did not reach the cell's load; reports print `-`.
    Unreachable,
    /// This machine or its privileges cannot run the cell; a warning has the reason.
    Unsupported,
    /// Most of the cell's pairs were disturbed.
    Inconclusive,
}

impl Status {
    /// Returns the status as it is written in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Unreachable => "unreachable",
            Status::Unsupported => "unsupported",
            Status::Inconclusive => "inconclusive",
        }
    }
}

/// The ledgers of both sides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Ledgers {
    /// The ledger of the first side.
    pub a: Ledger,
    /// The ledger of the second side.
    pub b: Ledger,
    /// The ledger of the control, which repeats the first side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Ledger>,
}

impl Run {
    /// Returns true if every packet of every cell is accounted for; results of cells with an error
    /// are withheld.
    #[must_use]
    pub fn conserved(&self) -> bool {
        self.cells.iter().all(|cell| cell.ledger.balanced())
    }
}

impl Ledgers {
    /// Returns true if all ledgers balance, including the control's.
    #[must_use]
    pub fn balanced(&self) -> bool {
        let control = self.control.as_ref().is_none_or(|control| control.balanced);
        self.a.balanced && self.b.balanced && control
    }
}

/// A unit: both sides in adjacent windows, and the control next to the first side.
///
/// The windows ran in the order `b a control` or `control a b`, so that each pair is adjacent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PairRecord {
    /// The order in which the two sides ran.
    pub order: Order,
    /// Number of the set-up that the pair's sides share, from 0; `None` if the pair has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_up: Option<u32>,
    /// The first side's window.
    pub a: Window,
    /// The second side's window.
    pub b: Window,
    /// The first side again, set up a second time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Window>,
    /// True if rates of the pair count: no other program used the CPUs.
    pub accepted: bool,
    /// True if costs and counts of the pair count: no other program used the counters, and the
    /// placement did not change.
    #[serde(default = "yes")]
    pub cost_accepted: bool,
    /// The reason why the pair's rates or costs do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_reason: Option<String>,
    /// The distance between the CPUs, in ticks of a cache line's round trip, and its class: `near`,
    /// `far`. Pairs are compared within a class only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRecord>,
}

/// The distance between two CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Ticks of a cache line's round trip, before the pair.
    pub before_ticks: f64,
    /// Ticks of a cache line's round trip, after the pair.
    pub after_ticks: f64,
    /// `near` or `far`.
    pub class: String,
}

fn yes() -> bool {
    true
}

/// Returns true if neither side's value is a lower bound, which documents leave out.
fn is_exact(at_least: &[bool; 2]) -> bool {
    *at_least == [false; 2]
}

/// Returns true if a count is 0, which documents leave out.
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The side that ran first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// The first side ran first: `a b`.
    #[default]
    AB,
    /// The second side ran first: `b a`.
    BA,
}

/// The effect on one metric in one cell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Effect {
    /// The unit of `a` and `b`.
    pub unit: String,
    /// The better direction, `higher` or `lower`; `None` if neither is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better_when: Option<String>,
    /// Median of the first side's windows.
    pub a: f64,
    /// Median of the second side's windows.
    pub b: f64,
    /// Median of the set-ups' changes, or the change of their sums, in per cent.
    pub change_pct: f64,
    /// The 95 % confidence interval of the change; 99 % at an early look.
    pub ci95_pct: (f64, f64),
    /// Number of pairs.
    pub n_pairs: usize,
    /// Number of set-ups of the sides in these pairs, the unit of the interval and of the
    /// probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_set_ups: Option<usize>,
    /// The margin of *same*, in per cent: as the experiment declares it, else the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_pct: Option<f64>,
    /// Upper bound of a side that counted nothing, in place of its value 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub censored_below: Option<f64>,
    /// True for each of `a` and `b` if the change rests on windows in which it is a lower bound, as
    /// a quantile of requests without an answer is.
    #[serde(default, skip_serializing_if = "is_exact")]
    pub at_least: [bool; 2],
    /// The noise floor from the control of identical code: the largest change within its interval.
    /// `None` without a control, or if neither it nor the first side counted anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa_half_width_pct: Option<f64>,
    /// The control's median and interval, in per cent; `None` if the noise floor is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa_pct: Option<(f64, f64, f64)>,
    /// Probability of a difference at least this large, if the sides were equal; corrected for the
    /// grid by Holm's method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_holm: Option<f64>,
    /// The expected change in per cent, its source, and the comparison with the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// The effect in the pairs of the less frequent placement class, which are not included
    /// elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Elsewhere>,
    /// The verdict on the effect.
    pub verdict: Verdict,
}

/// The effect in the pairs of the other class of placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// `near` or `far`.
    pub class: String,
    /// Number of pairs.
    pub n_pairs: usize,
    /// The change in per cent.
    pub change_pct: f64,
    /// The interval, at the same level as the effect's.
    pub ci95_pct: (f64, f64),
}

/// An expectation, with the comparison to the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The ends of the expected range.
    pub change_pct: (f64, f64),
    /// The source of the expectation.
    pub source: String,
    /// True if the change is within the expected range; a disagreement is also a result.
    pub met: bool,
    /// True if the whole interval lies within the expected range or entirely outside it, and
    /// neither a disturbance nor the control contradicts.
    #[serde(default)]
    pub certain: bool,
}

impl Effect {
    /// Returns true if neither side counted anything. That leaves any ratio of them open: the
    /// change of 0 and its interval have no meaning.
    #[must_use]
    pub fn is_of_nothing(&self) -> bool {
        self.a == 0.0 && self.b == 0.0
    }

    /// Returns for each side whether it counted nothing, so that its value is a bound.
    pub(crate) fn bounds(&self) -> [bool; 2] {
        // The values do not tell: one event of the other side may be equal to the bound. If the
        // first side counted nothing, the change has no end, and its interval ends at the change
        // itself.
        let is_censored = self.censored_below.is_some();
        let is_first = self.ci95_pct.1.to_bits() == self.change_pct.to_bits();
        [is_censored && is_first, is_censored && !is_first]
    }
}

/// A verdict on an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, beyond the noise.
    Better,
    /// Worse, beyond the noise.
    Worse,
    /// No difference beyond the declared margin.
    Same,
    /// The data do not distinguish the sides.
    #[default]
    Unclear,
}

impl Verdict {
    /// Returns the verdict as it is written in documents and on screens.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Same => "same",
            Verdict::Unclear => "unclear",
        }
    }
}

/// The summary of one metric over a group of cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverallRecord {
    /// The name of the metric.
    pub metric: String,
    /// `all`, or a factor's value as `rate=fixed`.
    pub group: String,
    /// Change of the sum over the cells, in which large cells dominate: the mean of the cells'
    /// changes, each weighted by the cell's share of the first side's sum.
    pub sum_ratio_pct: f64,
    /// Mean change in which every cell has the same weight.
    pub geomean_pct: f64,
    /// Interval of the change of the sum, of at least 95 %, from the cells' intervals under the
    /// assumption of independent noise. `None` if a cell's interval has no end, or its change is a
    /// bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_ci95_pct: Option<(f64, f64)>,
    /// Interval of the geometric mean, under the same assumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geomean_ci95_pct: Option<(f64, f64)>,
    /// Number of cells in the sum and in the mean whose change is a bound, because a side counted
    /// nothing or its value is a lower bound.
    #[serde(default, skip_serializing_if = "is_none")]
    pub censored: usize,
    /// Number of cells in which neither side counted anything: their change is not known, and they
    /// are in neither the sum nor the mean, and have no verdict.
    #[serde(default, skip_serializing_if = "is_none")]
    pub nothing: usize,
    /// Number of cells that are better.
    pub better: usize,
    /// Number of cells that are worse.
    pub worse: usize,
    /// Number of cells that are the same.
    pub same: usize,
    /// Number of cells without a clear verdict.
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
    /// The counted event.
    pub event: String,
    /// The unit of the counts.
    pub unit: String,
    /// Packets that passed during the profile.
    pub packets: u64,
    /// Bound of the counts: a function that is not listed was counted less often than this.
    pub cutoff: u64,
    /// Remarks for readers: the cost of sampling, lost samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Cost of the instrument itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_cost: Option<OwnCost>,
    /// CPU time by the profile and by a second instrument.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Checked>,
    /// Counts by function.
    pub rows: Vec<ProfileRow>,
    /// Counts by call chain; empty if no chains were recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
}

/// The count of one function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// The function's name.
    pub symbol: String,
    /// The number of events.
    pub count: u64,
    /// Length of the function's code in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_bytes: Option<u64>,
    /// The stage to which the function belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

/// A warning for the reader of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable identifier, as `W-NO-PMU`.
    pub code: String,
    /// The warning, in a sentence.
    pub text: String,
    /// A remedy, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Serialization of the figures of whole sides: in the document, an object of figures for each
/// side.
mod heads {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Heads = BTreeMap<String, BTreeMap<String, f64>>;

    /// Serializes `cell/side/name` as `{"cell/side": {"name": …}}`.
    pub(super) fn serialize<S: Serializer>(
        totals: &BTreeMap<String, f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut heads = Heads::new();
        for (path, total) in totals {
            let (side, name) = path.rsplit_once('/').unwrap_or(("", path));
            heads.entry(side.into()).or_default().insert(name.into(), *total);
        }
        heads.serialize(serializer)
    }

    /// Deserializes the form that [`serialize`] writes.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, f64>, D::Error> {
        let heads = Heads::deserialize(deserializer)?;
        let sides = heads.into_iter().flat_map(|(side, figures)| {
            figures.into_iter().map(move |(name, total)| {
                (if side.is_empty() { name } else { format!("{side}/{name}") }, total)
            })
        });
        Ok(sides.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document(#[serde(with = "heads")] BTreeMap<String, f64>);

    #[test]
    fn figures_stand_under_their_side_and_come_back() {
        let totals =
            [("size=64/a/memory_bytes", 1.0), ("size=64/a/outstanding", 2.0), ("alone", 3.0)];
        let document = Document(totals.map(|(path, total)| (path.to_owned(), total)).into());
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["size=64/a"]["outstanding"], 2.0);
        assert_eq!(serde_json::from_value::<Document>(json).unwrap(), document);
    }
}
