//! A metric of a cell in both runs, or the reason why it is not compared.

use std::fmt;

use linerate_show::words::harmless;
use serde::Serialize;

use super::settings::Differing;
use super::side::{LEVEL, Side};
use super::{FailOn, side};
use crate::analysis::{
    self, SAME_PCT, SET_UPS_MIN, admitted, class_of, has_figures, pairs_needed, pct,
};
use crate::experiment::{Clock, Experiment, Metric};
use crate::record::{CellRecord, Effect, Run, Status, Verdict, resumed_parts};

/// The reason why a row has no change, and some gates on it are not decided.
pub(super) const NOTHING: &str = "neither run counted anything";

/// A metric of a cell in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The cell, such as `change=both rate=fixed`; empty without factors.
    pub cell: String,
    /// The metric.
    pub metric: String,
    /// The unit of `a` and `b`.
    pub unit: String,
    /// The changed side's median in the first run.
    pub a: f64,
    /// The metric's value in the second run.
    pub b: f64,
    /// `a` in cycles, for times if the clock rate of the first run's CPU is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_cycles: Option<f64>,
    /// `b` in cycles of the second run's CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_cycles: Option<f64>,
    /// The change from `a` to `b`, in per cent. If both are upper bounds, it is not known: then it
    /// is 0 without a width, which has no meaning.
    pub change_pct: f64,
    /// The confidence interval of the change: 95 % for all rows of the family together
    /// (Bonferroni).
    pub ci95_pct: (f64, f64),
    /// Number of windows of each run.
    pub n_windows: (usize, usize),
    /// The distance between the CPUs in these windows of each run, `near` or `far`; `None` if
    /// unknown, for instance with a single CPU.
    pub placement: (Option<String>, Option<String>),
    /// The sum of both runs' noise floors.
    pub floor_pct: f64,
    /// The margin of *same*, in per cent: as the experiment declares it, else the default.
    pub same_pct: f64,
    /// True if a run has too few set-ups to distinguish any row of this family from chance.
    pub too_few: bool,
    /// True for each of `a` and `b` that is an upper bound, because its run counted nothing.
    pub below: (bool, bool),
    /// True if most pairs of a run were disturbed, so that the verdict is unclear.
    pub disturbed: bool,
    /// The verdict on the change.
    pub verdict: Verdict,
    /// True if a condition covers the row.
    pub gate: bool,
    /// True if the row meets a failure condition, so that the comparison fails.
    pub failed: bool,
    /// True if a condition covers the row but cannot be decided.
    pub undecided: bool,
}

/// A metric that is not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Withheld {
    /// The metric.
    pub metric: String,
    /// The cell; `None` for all cells.
    pub cell: Option<String>,
    /// The reason.
    pub why: String,
    /// True if the reason is that the distance between the CPUs differs between the runs.
    pub unlike_cpus: bool,
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.metric)?;
        if let Some(cell) = self.cell.as_deref().filter(|cell| !cell.is_empty()) {
            write!(f, " at {cell}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl Row {
    /// Judges a change: better or worse beyond both noise floors; the same if the whole interval is
    /// within the margin. If neither run counted anything, nothing is known of their ratio.
    fn judged(&self, better_when: Option<&str>) -> Verdict {
        if self.disturbed || self.too_few || self.below == (true, true) {
            return Verdict::Unclear;
        }
        let (low, high) = self.ci95_pct;
        if analysis::excludes_none(self.ci95_pct) && self.change_pct.abs() > self.floor_pct {
            return analysis::direction(self.change_pct, better_when);
        }
        let margin = self.same_pct;
        if low >= -margin && high <= margin { Verdict::Same } else { Verdict::Unclear }
    }
}

/// Returns the reason why a metric is compared in no cell; `None` if it can be compared.
pub(super) fn incomparable(metric: &Metric, first: &Experiment, unlike: bool) -> Option<Withheld> {
    let why = |why: &str| {
        let (metric, why) = (metric.name.clone(), why.to_owned());
        Some(Withheld { metric, cell: None, why, unlike_cpus: false })
    };
    let Some(before) = first.metrics.iter().find(|before| before.name == metric.name) else {
        return why("the first run was made without this metric (repeat it with this experiment)");
    };
    if before.formula != metric.formula || before.clock != metric.clock {
        return why(
            "the two runs compute it by different formulas (repeat the older one with this experiment)",
        );
    }
    let timed = metric.clock != Clock::Count;
    if unlike && timed {
        return why("it is a time, and the machines differ (repeat one run on the other machine)");
    }
    None
}

/// Returns the reason why a metric is compared in no cell if a run was resumed by another build, or
/// in another environment that matters to the metric.
pub(super) fn mixed(metric: &Metric, one: &Run, other: &Run) -> Option<Withheld> {
    let both = [("first", one), ("second", other)];
    let said = both.into_iter().find_map(|(which, run)| of_parts(which, run, metric.clock))?;
    let why = format!("{said} (repeat it, or use --allow-env)");
    Some(Withheld { metric: metric.name.clone(), cell: None, why, unlike_cpus: false })
}

/// Returns a sentence for each run that was resumed by another build or in another environment.
pub(super) fn resumed(one: &Run, other: &Run) -> Vec<String> {
    let both = [("first", one), ("second", other)];
    both.into_iter().filter_map(|(which, run)| of_parts(which, run, Clock::Cost)).collect()
}

fn of_parts(which: &str, run: &Run, clock: Clock) -> Option<String> {
    let parts = resumed_parts(run, clock)?;
    Some(format!("the {which} run was resumed, and its windows are of {parts}"))
}

/// The parts of a request that decide which rows are withheld.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) fail_on: &'a [FailOn],
    pub(super) allow_env: bool,
    /// The cells that ran with other settings in the first run.
    pub(super) differing: &'a [Differing],
}

/// Returns the metric's row for each cell that both runs have, or the reason why it is withheld;
/// also for a cell that one run did not reach before it was interrupted.
pub(super) fn rows<'a>(
    metric: &'a Metric,
    experiment: &'a Experiment,
    (one, other): (&'a Run, &'a Run),
    asked: Asked<'a>,
) -> impl Iterator<Item = std::result::Result<Row, Withheld>> {
    experiment.cells.iter().filter_map(move |cell| {
        let withheld = |why: String, unlike_cpus| {
            let (metric, cell) = (metric.name.clone(), Some(cell.name()));
            Err(Withheld { metric, cell, why, unlike_cpus })
        };
        let of = |run: &'a Run| run.cells.iter().find(|record| is_of(record, &cell.at));
        let (before, after) = match (of(one), of(other)) {
            (Some(before), Some(after)) => (before, after),
            (Some(_), None) if !other.run.complete => {
                return Some(withheld(interrupted("second"), false));
            }
            (None, Some(_)) if !one.run.complete => {
                return Some(withheld(interrupted("first"), false));
            }
            _ => return None,
        };
        let effects = match (before.metrics.get(&metric.name), after.metrics.get(&metric.name)) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => {
                let gone = (first.is_none().then_some(before), second.is_none().then_some(after));
                let name = cell.name();
                let covers = |one: &FailOn| one.looks_at(&metric.name, Some(&name));
                let gated = asked.fail_on.iter().any(covers);
                return untold(metric, gone, gated).map(|why| withheld(why, false));
            }
        };
        if effects.0.at_least[1] || effects.1.at_least[1] {
            let why = "a run's value is a lower bound: a quantile of requests without an answer";
            return Some(withheld(why.into(), false));
        }
        let differing = asked.differing.iter().find(|one| one.cell == cell.name());
        if let Some(differing) = differing.filter(|_| !asked.allow_env) {
            return Some(withheld(differing.why(), false));
        }
        let placement = (placement(metric.clock, before), placement(metric.clock, after));
        if placement.0 != placement.1 && !asked.allow_env {
            let [first, second] = [&placement.0, &placement.1].map(|class| apart(class.as_deref()));
            let why = format!(
                "the CPUs were {first} in the first run, {second} in the second (repeat one run with --cpu)"
            );
            return Some(withheld(why, true));
        }
        let family = experiment.family(other.experiment.quick);
        let row = row(metric, family, (one, before), (other, after), effects);
        let told = row.map(|row| Ok(Row { cell: cell.name(), placement, ..row }));
        let none = "a run has values of 0 or below, which have no ratio (see linerate lab report)";
        Some(told.unwrap_or_else(|| withheld(none.into(), false)))
    })
}

/// Most cells that a sentence names.
const NAMES_MAX: usize = 4;

/// Returns a sentence on the cells that only one of two complete runs has.
pub(super) fn alone(one: &Run, other: &Run) -> Vec<String> {
    let beyond = |run: &Run, other: &Run| -> Vec<String> {
        let is_in = |cell: &&CellRecord| other.cells.iter().any(|one| one.at == cell.at);
        run.cells.iter().filter(|cell| !is_in(cell)).map(name_of).collect()
    };
    let names = [(beyond(one, other), "first"), (beyond(other, one), "second")];
    let said = names.into_iter().filter(|(names, _)| !names.is_empty());
    said.map(|(names, which)| {
        let told = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = match names.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        let cells = if names.len() == 1 {
            "1 cell is".into()
        } else {
            format!("{} cells are", names.len())
        };
        format!("{cells} only in the {which} run: {told}{more}")
    })
    .collect()
}

/// Returns the name of a document's cell, escaped.
fn name_of(cell: &CellRecord) -> String {
    let each: Vec<String> = cell.at.iter().map(|(name, level)| format!("{name}={level}")).collect();
    harmless(&each.join(" ")).into_owned()
}

fn row(
    metric: &Metric,
    family: usize,
    (one, before): (&Run, &CellRecord),
    (other, after): (&Run, &CellRecord),
    effects: (&Effect, &Effect),
) -> Option<Row> {
    let level = 1.0 - (1.0 - LEVEL) / family.max(1) as f64;
    let a = Side::of(metric, &before.pairs, level)?;
    let b = Side::of(metric, &after.pairs, level)?;
    let (log, interval) = a.to(&b);
    let floor = |effect: &Effect| effect.aa_half_width_pct.unwrap_or(SAME_PCT);
    let cycles =
        |run: &Run, value| side::cycles(run, value).filter(|_| metric.unit.starts_with("ns"));
    let mut row = Row {
        cell: String::new(),
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        a: a.value,
        b: b.value,
        a_cycles: cycles(one, a.value),
        b_cycles: cycles(other, b.value),
        change_pct: pct(log),
        ci95_pct: (pct(interval.low), pct(interval.high)),
        n_windows: (a.windows, b.windows),
        placement: (None, None),
        floor_pct: floor(effects.0) + floor(effects.1),
        same_pct: metric.same_pct(),
        too_few: a.set_ups.min(b.set_ups) < SET_UPS_MIN.max(pairs_needed(family)),
        below: (a.censored, b.censored),
        disturbed: [before, after].iter().any(|cell| !analysis::is_valid(metric.clock, cell)),
        verdict: Verdict::Unclear,
        gate: false,
        failed: false,
        undecided: false,
    };
    row.verdict = row.judged(effects.1.better_when.as_deref());
    let figures = [row.a, row.b, row.change_pct, row.ci95_pct.0, row.ci95_pct.1];
    figures.iter().all(|figure| figure.is_finite()).then_some(row)
}

/// Returns the reason why a run lacks a cell that the other one has.
fn interrupted(which: &str) -> String {
    format!("the {which} run ended before this cell (finish it: linerate lab run --resume)")
}

/// Returns the reason why cells lack a metric that they should have; `None` if they need not have
/// it. `gated` is true if a condition covers the metric in this cell.
fn untold(
    metric: &Metric,
    (before, after): (Option<&CellRecord>, Option<&CellRecord>),
    gated: bool,
) -> Option<String> {
    let why = |cell: &CellRecord| match cell.status {
        _ if !cell.ledger.balanced() => {
            "has a ledger that does not balance, so its figures are withheld (repeat it)"
        }
        Status::Inconclusive => {
            "was disturbed in most pairs of this cell (repeat it on a quiet machine)"
        }
        Status::Unreachable => "did not reach the load of this cell (see linerate lab report)",
        Status::Unsupported => "could not measure this cell (see linerate lab report)",
        Status::Ok => "measured no value of it (see linerate lab report)",
    };
    // Do not report a metric that is missing in both runs without a fault of the runs, for instance
    // where no events can be counted, unless a condition would pass for lack of it. A cell that
    // neither run could measure is like one that was not requested. A cell does not have a metric
    // whose figures are in none of its windows, so no condition can need it there.
    let is_missed = |cell: &CellRecord| {
        !cell.ledger.balanced() || matches!(cell.status, Status::Inconclusive | Status::Unreachable)
    };
    let is_due = |cell: &CellRecord| {
        let is_known = cell.pairs.is_empty() || has_figures(metric, &cell.pairs);
        cell.status != Status::Unsupported && is_known
    };
    match (before, after) {
        (Some(one), Some(other)) => {
            let missed =
                [("first", one), ("second", other)].into_iter().find(|(_, c)| is_missed(c));
            let told = missed.map(|(which, cell)| format!("the {which} run {}", why(cell)));
            let is_due = is_due(one) || is_due(other);
            let neither = "neither run has a value of it (see linerate lab report)";
            told.or_else(|| (gated && is_due).then(|| neither.into()))
        }
        (Some(one), None) => Some(format!("the first run {}", why(one))),
        (None, Some(other)) => Some(format!("the second run {}", why(other))),
        (None, None) => None,
    }
}

/// Returns the distance class of the CPUs in the windows of metrics of `clock`.
pub(super) fn placement(clock: Clock, cell: &CellRecord) -> Option<String> {
    let pairs = admitted(clock, &cell.pairs);
    pairs.first().and_then(|pair| class_of(pair)).map(str::to_owned)
}

/// Returns the class of a placement, escaped and shortened to a word, because it comes from a
/// document.
pub(super) fn apart(class: Option<&str>) -> String {
    let word = class.map(|class| harmless(class).chars().take(20).collect());
    word.unwrap_or_else(|| "at a distance that was not measured".into())
}

fn is_of(record: &CellRecord, at: &[(String, String)]) -> bool {
    let has = |(factor, level): &(String, String)| record.at.get(factor) == Some(level);
    record.at.len() == at.len() && at.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, metric, pair, run_of};

    fn run(pairs: usize) -> Run {
        let costs = (0..pairs).map(|i| pair(200.0, 100.0 + i as f64 / 1e4, 200.0));
        let mut run = run_of(&[costs.collect()]);
        analyse(&experiment(), &mut run);
        run
    }

    fn row_of(one: &Run, other: &Run, family: usize) -> Row {
        let effect = |run: &Run| run.cells[0].metrics["cost_ns_per_packet"].clone();
        let effects = (&effect(one), &effect(other));
        let cells = ((one, &one.cells[0]), (other, &other.cells[0]));
        row(&metric("cost"), family, cells.0, cells.1, effects).unwrap()
    }

    #[test]
    fn the_noise_floors_of_both_runs_are_added() {
        let (mut one, mut other) = (run(15), run(15));
        for (run, floor) in [(&mut one, 4.0), (&mut other, 3.0)] {
            let effect = run.cells[0].metrics.get_mut("cost_ns_per_packet").unwrap();
            effect.aa_half_width_pct = Some(floor);
        }
        assert_eq!(row_of(&one, &other, 1).floor_pct, 7.0);
    }

    #[test]
    fn set_ups_are_too_few_if_either_run_has_fewer_than_the_family_needs() {
        let few = |one, other, family| row_of(&run(one), &run(other), family).too_few;
        assert!(few(5, 15, 1) && few(15, 5, 1) && !few(6, 6, 1));
        assert!(few(9, 15, 24) && few(15, 9, 24) && !few(10, 10, 24));
    }

    #[test]
    fn a_row_is_disturbed_if_the_cell_of_either_run_is() {
        let quiet = run(15);
        let mut noisy = run(15);
        noisy.cells[0].pairs.iter_mut().skip(7).for_each(|pair| pair.cost_accepted = false);
        let mut cut = run(15);
        cut.cells[0].is_unfinished = true;
        for other in [&noisy, &cut] {
            let both = [row_of(&quiet, other, 1), row_of(other, &quiet, 1)];
            let verdict = both.map(|row| (row.disturbed, row.verdict));
            assert_eq!(verdict, [(true, Verdict::Unclear); 2]);
        }
        assert!(!row_of(&quiet, &quiet, 1).disturbed);
    }

    #[test]
    fn a_metric_by_another_clock_or_formula_is_not_compared() {
        let mut first = experiment();
        let why = |first: &Experiment| Some(incomparable(&metric("cost"), first, false)?.why);
        assert_eq!(why(&first), None);
        first.metrics[0].clock = Clock::Wall;
        assert!(why(&first).unwrap().contains("by different formulas"));
        first.metrics = vec![metric("losses")];
        assert!(why(&first).unwrap().contains("by different formulas"));
    }

    #[test]
    fn a_cell_that_an_interrupted_first_run_lacks_is_withheld() {
        let (mut half, mut whole) = (run(15), run(15));
        let mut fixed = whole.cells[0].clone();
        fixed.at.insert("rate".into(), "fixed".into());
        whole.cells.push(fixed);
        whole.run.complete = true;
        let why = |half: &Run| -> Vec<String> {
            let asked = Asked { fail_on: &[], allow_env: false, differing: &[] };
            let (metric, experiment) = (metric("cost"), experiment());
            let rows = rows(&metric, &experiment, (half, &whole), asked);
            rows.filter_map(|row| Some(row.err()?.why)).collect()
        };
        assert_eq!(why(&half), [interrupted("first")]);
        half.run.complete = true;
        assert!(why(&half).is_empty(), "it was not asked for");
    }
}
