//! Two runs or more beside each other, and what fails on a difference.
//!
//! What is compared is the changed side, `b`, of one run with that of the other. They ran at
//! different times, so that nothing is paired: each median has its own interval, and the interval of
//! their ratio follows from both (Donner and Zou, "Closed-form confidence intervals for functions of
//! the normal mean and standard deviation", Statistical Methods in Medical Research 21, 2012: the
//! recovery of variances, on logarithms). What the machine did between the two runs is in neither.
//! Hence a change must be beyond both noise floors added to be one; hence times of unlike machines
//! are not compared unless asked for; hence a gate is best on counts, which are of the program alone.

mod environment;
mod fail;
mod screen;
mod side;
mod trend;

use serde::Serialize;

use crate::analysis::{self, SAME_PCT, pct};
use crate::experiment::{Clock, Experiment, Metric};
use crate::record::{CellRecord, Effect, Run, Verdict};
use crate::{Code, Error, Result};

pub use environment::Difference;
pub use fail::{FailOn, Over};
pub use trend::{Trend, TrendPoint, trends};

use side::Side;

/// Two runs beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The experiment of both.
    pub experiment: String,
    /// What the first is called: its commit, or its name.
    pub a: String,
    /// What the second is called.
    pub b: String,
    /// Every metric of every cell that both have.
    pub rows: Vec<Row>,
    /// What is not compared, and why, in sentences.
    pub withheld: Vec<String>,
    /// In what their environments differ.
    pub environment: Vec<Difference>,
    /// The conditions that are met, and rows that meet them, in sentences: not empty is exit 3.
    pub failed: Vec<String>,
    /// What its reader must know.
    pub notes: Vec<String>,
}

/// A metric of a cell in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The cell, as `change=both rate=fixed`; empty without factors.
    pub cell: String,
    /// The metric.
    pub metric: String,
    /// Of `a` and `b`.
    pub unit: String,
    /// The changed side's median in the first run.
    pub a: f64,
    /// In the second.
    pub b: f64,
    /// `a` in cycles, of times where the clock rate of the first run's CPU is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_cycles: Option<f64>,
    /// `b` in cycles of the second run's CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_cycles: Option<f64>,
    /// From `a` to `b`, in per cent.
    pub change_pct: f64,
    /// Where that lies with 95 % confidence, each row by itself.
    pub ci95_pct: (f64, f64),
    /// Windows of both runs that it is from.
    pub n_windows: (usize, usize),
    /// Both runs' noise floors, added.
    pub floor_pct: f64,
    /// Whether `a` and `b` are bounds that their runs are below, as they counted nothing.
    pub below: (bool, bool),
    /// What may be said.
    pub verdict: Verdict,
    /// Whether a condition looks at it.
    pub gate: bool,
    /// Whether it meets one, which fails the comparison.
    pub failed: bool,
}

/// Compares the changed side of two runs of one experiment.
///
/// Counts are always compared. Times are compared between machines that are alike, or if
/// `allow_env`; else [`Comparison::withheld`] says so.
///
/// # Errors
/// `E-RUN` if they are not runs of one experiment, have nothing in common, or a condition looks at
/// what is withheld; `E-EXPERIMENT` if a condition names what there is not.
pub fn compare(one: &Run, other: &Run, fail_on: &[FailOn], allow_env: bool) -> Result<Comparison> {
    let both = (&experiment(one)?, &experiment(other)?);
    compared((one, other), both, fail_on, allow_env)
}

fn compared(
    (one, other): (&Run, &Run),
    (first, second): (&Experiment, &Experiment),
    fail_on: &[FailOn],
    allow_env: bool,
) -> Result<Comparison> {
    if first.id != second.id {
        let why = format!("one is of {:?}, the other of {:?}", first.id, second.id);
        return Err(refused(why));
    }
    let environment = environment::differences(one, other);
    let unlike = !allow_env && environment.iter().any(|difference| difference.decides);
    let (a, b) = labels(one, other);
    let mut comparison = Comparison {
        experiment: second.id.clone(),
        a,
        b,
        rows: Vec::new(),
        withheld: Vec::new(),
        environment,
        failed: Vec::new(),
        notes: Vec::new(),
    };
    for metric in &second.metrics {
        match withheld(metric, first, unlike) {
            Some(why) => comparison.withheld.push(why),
            None => comparison.rows.extend(rows(metric, second, (one, other))),
        }
    }
    let order = |row: &Row| second.cells.iter().position(|cell| cell.name() == row.cell);
    comparison.rows.sort_by_key(order);
    if comparison.rows.iter().any(|row| row.a_cycles.is_some() && row.b_cycles.is_some()) {
        let note = "cycles are times at the nominal clock rate of each machine, not counted";
        comparison.notes.push(note.into());
    }
    if comparison.rows.is_empty() && unlike {
        let why = format!("their machines differ: {}", comparison.differing());
        return Err(refused(why).fix("linerate lab compare … --allow-env"));
    }
    if comparison.rows.is_empty() {
        return Err(refused("no cell has the same metric in both".into()));
    }
    fail::judge(fail_on, second, &mut comparison)?;
    Ok(comparison)
}

impl Comparison {
    /// The differences that keep times from being compared, on a line.
    #[must_use]
    pub fn differing(&self) -> String {
        let deciding = self.environment.iter().filter(|difference| difference.decides);
        deciding.map(Difference::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// The experiment that a run was of, from its own record.
fn experiment(run: &Run) -> Result<Experiment> {
    let id = &run.run.id;
    let toml = run.run.config_toml.as_deref();
    let toml = toml.ok_or_else(|| refused(format!("{id} has not kept its experiment's file")))?;
    Experiment::parse(toml, id)
}

fn refused(why: String) -> Error {
    Error::new(Code::Run, "cannot compare the runs", why)
}

/// What the runs are called: their commits if those differ, else their own names.
fn labels(one: &Run, other: &Run) -> (String, String) {
    let both = (trend::label(one), trend::label(other));
    if both.0 == both.1 { (one.run.id.clone(), other.run.id.clone()) } else { both }
}

/// Why a metric is not compared; `None` if it is.
fn withheld(metric: &Metric, first: &Experiment, unlike: bool) -> Option<String> {
    let name = &metric.name;
    let Some(before) = first.metrics.iter().find(|metric| &metric.name == name) else {
        return Some(format!("{name}: the first run does not have it"));
    };
    if before.formula != metric.formula || before.clock != metric.clock {
        return Some(format!("{name}: the two runs do not compute it alike"));
    }
    let timed = metric.clock != Clock::Count;
    (unlike && timed).then(|| format!("{name}: it is a time, and the machines differ"))
}

/// A metric's rows, one for each cell that has it in both runs.
fn rows(metric: &Metric, experiment: &Experiment, (one, other): (&Run, &Run)) -> Vec<Row> {
    let cells = other.cells.iter().filter_map(|cell| {
        let same = one.cells.iter().find(|before| before.at == cell.at)?;
        row(metric, experiment, (one, same), (other, cell))
    });
    cells.collect()
}

fn row(
    metric: &Metric,
    experiment: &Experiment,
    (one, before): (&Run, &CellRecord),
    (other, after): (&Run, &CellRecord),
) -> Option<Row> {
    let effects = (before.metrics.get(&metric.name)?, after.metrics.get(&metric.name)?);
    let a = Side::of(metric, &before.pairs)?;
    let b = Side::of(metric, &after.pairs)?;
    let (log, interval) = a.to(&b);
    let floor = |effect: &Effect| effect.aa_half_width_pct.unwrap_or(SAME_PCT);
    let noisy = [before, after].iter().any(|cell| analysis::noisy(metric.clock, &cell.pairs));
    let cycles = |run: &Run, value| {
        environment::cycles(run, value).filter(|_| metric.unit.starts_with("ns"))
    };
    let mut row = Row {
        cell: name(experiment, after)?,
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        a: a.value,
        b: b.value,
        a_cycles: cycles(one, a.value),
        b_cycles: cycles(other, b.value),
        change_pct: pct(log),
        ci95_pct: (pct(interval.low), pct(interval.high)),
        n_windows: (a.windows, b.windows),
        floor_pct: floor(effects.0) + floor(effects.1),
        below: (a.censored, b.censored),
        verdict: Verdict::Unclear,
        gate: false,
        failed: false,
    };
    let figures = [row.a, row.b, row.change_pct, row.ci95_pct.0, row.ci95_pct.1];
    if !noisy {
        row.verdict = verdict(&row, effects.1.better_when.as_deref());
    }
    figures.iter().all(|figure| figure.is_finite()).then_some(row)
}

/// A cell's name, as its experiment has it.
fn name(experiment: &Experiment, record: &CellRecord) -> Option<String> {
    let has = |(factor, level): &(String, String)| record.at.get(factor) == Some(level);
    let cell = experiment.cells.iter().find(|cell| cell.at.iter().all(has))?;
    Some(cell.name())
}

/// Better or worse beyond both noise floors; the same if all of the interval is within them.
fn verdict(row: &Row, better_when: Option<&str>) -> Verdict {
    let (low, high) = row.ci95_pct;
    if analysis::excludes_none(row.ci95_pct) && row.change_pct.abs() > row.floor_pct {
        return analysis::direction(row.change_pct, better_when);
    }
    let margin = row.floor_pct.max(SAME_PCT);
    if low >= -margin && high <= margin { Verdict::Same } else { Verdict::Unclear }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, pair, run_of};
    use serde_json::json;

    fn run(name: &str, cost: f64, kernel: &str) -> Run {
        let costs = (0..15).map(|i| pair(200.0, cost * (1.0 + f64::from(i) / 1e4), 200.0));
        let mut run = run_of(&[costs.collect()]);
        run.run.id = name.into();
        run.env = json!({"kernel": kernel, "mhz": 2000.0});
        analyse(&experiment(), &mut run);
        run
    }

    fn counted() -> Experiment {
        let mut counted = experiment();
        counted.metrics[0].clock = Clock::Count;
        counted
    }

    fn compared_as(
        experiment: &Experiment,
        (one, other): (&Run, &Run),
        fail_on: &str,
        allow_env: bool,
    ) -> Result<Comparison> {
        let fail_on = [FailOn::parse(fail_on).unwrap()];
        compared((one, other), (experiment, experiment), &fail_on, allow_env)
    }

    #[test]
    fn a_change_beyond_a_gates_bound_fails() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.18"));
        let gate = "rate=max:cost_ns_per_packet>+1%";
        let comparison = compared_as(&experiment(), (&one, &other), gate, false).unwrap();
        let row = &comparison.rows[0];
        assert_eq!((row.verdict, row.gate, row.failed), (Verdict::Worse, true, true));
        assert!((row.change_pct - 3.0).abs() < 1e-9, "{row:?}");
        assert!(row.b_cycles.is_some_and(|cycles| (cycles - 2.0 * row.b).abs() < 1e-9));
        assert_eq!(comparison.failed, ["rate=max:cost_ns_per_packet>+1%: +3.00% at rate=max"]);
        let mild = compared_as(&experiment(), (&one, &other), "cost_ns_per_packet>+4%", false);
        assert!(mild.unwrap().failed.is_empty());
    }

    #[test]
    fn times_of_unlike_machines_are_not_compared_unless_asked_for() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.19"));
        let gate = "cost_ns_per_packet>+1%";
        let refused = compared_as(&experiment(), (&one, &other), gate, false).unwrap_err();
        assert_eq!(
            (refused.code, refused.why.as_str()),
            (Code::Run, "their machines differ: kernel 6.18 -> 6.19")
        );
        assert!(compared_as(&experiment(), (&one, &other), gate, true).is_ok());
        let counts = compared_as(&counted(), (&one, &other), gate, false).unwrap();
        assert_eq!((counts.rows.len(), counts.failed.len()), (1, 1));
    }

    #[test]
    fn a_gate_that_looks_at_nothing_is_an_error() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 100.0, "6.18"));
        let of = |text| compared_as(&experiment(), (&one, &other), text, false).unwrap_err().code;
        assert_eq!(of("instr>+1%"), Code::Experiment);
        assert_eq!(of("rate=fixed:cost_ns_per_packet>+1%"), Code::Run);
    }

    #[test]
    fn it_is_printed_with_units_and_counts() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.19"));
        let gate = "cost_ns_per_packet>+1%";
        let printed = compared_as(&experiment(), (&one, &other), gate, true).unwrap().to_string();
        let expected = "\
metric                   unit    main      pr  cycles  cycles      Δ       95% CI  windows  verdict
rate=max
cost_ns_per_packet  ns/packet  0.1001  0.1031  0.2001  0.2061  +3.0%  [+2.9,+3.1]   15, 15  worse  <- gate, failed
env differs: kernel 6.18 -> 6.19 (use --allow-env to compare times)
cycles are times at the nominal clock rate of each machine, not counted
failed: cost_ns_per_packet>+1%: +3.00% at rate=max
";
        assert_eq!(printed, expected);
    }
}
