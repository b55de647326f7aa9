//! Comparison of two or more runs, with conditions that fail on a difference.
//!
//! What is compared is the changed side, `b`, of one run with that of the other. They ran at
//! different times, so that nothing is paired: each median has its own interval, and the interval
//! of their ratio follows from both (Donner and Zou, "Closed-form confidence intervals for
//! functions of the normal mean and standard deviation", Statistical Methods in Medical Research
//! 21, 2012: the recovery of variances, on logarithms). What the machine did between the two runs
//! is in neither. Hence a change must be beyond both noise floors added to be one; hence times of
//! unlike machines are not compared unless asked for; hence a gate is best on counts, which are of
//! the program alone.

mod fail;
mod row;
mod screen;
mod settings;
mod side;
mod trend;

use serde::Serialize;

use crate::experiment::Experiment;
use crate::record::Run;
use crate::{Code, Error, Result};

use row::Asked;
use settings::Differing;

pub use fail::{FailOn, Over};
pub use row::{Row, Withheld};
pub use side::Difference;
pub(crate) use side::deciding;
pub(crate) use trend::{Known, trends_of, unlike};
pub use trend::{Trend, TrendPoint, trends};

/// A comparison of two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The experiment of both runs.
    pub experiment: String,
    /// The label of the first run: its commit or its name.
    pub a: String,
    /// The label of the second run.
    pub b: String,
    /// The metrics of all cells that both runs have.
    pub rows: Vec<Row>,
    /// The metrics that are not compared, with reasons.
    pub withheld: Vec<Withheld>,
    /// The differences between their environments.
    pub environment: Vec<Difference>,
    /// Sentences on conditions that are met, with the rows that meet them; if there are any, the
    /// exit status is 3, unless a run has lost packets.
    pub failed: Vec<String>,
    /// Sentences on conditions that the runs cannot decide, with place and reason; if there are
    /// any, the exit status is 4, unless a condition is met or a run has lost packets.
    pub undecided: Vec<String>,
    /// Remarks that readers must know.
    pub notes: Vec<String>,
}

/// Compares the changed side, B, of two runs of one experiment.
///
/// Counts are compared whatever the machines are, times between machines that are alike; and both
/// between CPUs that were as far from each other, in cells of the same settings. `allow_env`
/// compares all, and [`Comparison::notes`] has the settings that differ, and the runs that were
/// resumed by another build or in another environment; else [`Comparison::withheld`] says what is
/// not compared, and a condition on that is not decided.
///
/// # Errors
/// `E-RUN` if they are not runs of one experiment, or have nothing in common; `E-EXPERIMENT` if a
/// condition names what there is not.
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
    fail_on.iter().try_for_each(|condition| condition.is_of(second))?;
    let environment = side::differences(one, other);
    let unlike = !allow_env && environment.iter().any(|difference| difference.decides);
    let differing = Differing::of((one, other), (first, second));
    let asked = Asked { fail_on, allow_env, differing: &differing };
    let (a, b) = labels(one, other);
    let mut comparison = Comparison {
        experiment: second.id.clone(),
        a,
        b,
        rows: Vec::new(),
        withheld: Vec::new(),
        environment,
        failed: Vec::new(),
        undecided: Vec::new(),
        notes: Vec::new(),
    };
    for metric in &second.metrics {
        let mixed = if allow_env { None } else { row::mixed(metric, one, other) };
        match row::incomparable(metric, first, unlike).or(mixed) {
            Some(why) => comparison.withheld.push(why),
            None => comparison.take(row::rows(metric, second, (one, other), asked)),
        }
    }
    let order = |row: &Row| second.cells.iter().position(|cell| cell.name() == row.cell);
    comparison.rows.sort_by_key(order);
    comparison.notes.extend(row::alone(one, other));
    comparison.notes.extend(Differing::notes(&differing, &comparison.rows));
    if allow_env {
        comparison.notes.extend(row::resumed(one, other));
    }
    if comparison.rows.is_empty() {
        return Err(comparison.nothing(unlike));
    }
    fail::judge(fail_on, &mut comparison);
    Ok(comparison)
}

impl Comparison {
    /// Returns a line with the differences that keep times from being compared.
    #[must_use]
    pub fn differing(&self) -> String {
        let deciding = self.environment.iter().filter(|difference| difference.decides);
        deciding.map(Difference::to_string).collect::<Vec<_>>().join(", ")
    }

    fn take(&mut self, rows: impl Iterator<Item = std::result::Result<Row, Withheld>>) {
        for row in rows {
            match row {
                Ok(row) => self.rows.push(row),
                Err(why) => self.withheld.push(why),
            }
        }
    }

    /// Returns the error for two runs without a metric that can be compared.
    fn nothing(&self, unlike: bool) -> Error {
        let fix = "linerate lab compare … --allow-env";
        if unlike {
            return refused(format!("their machines differ: {}", self.differing())).fix(fix);
        }
        match self.withheld.first() {
            Some(first) if self.withheld.iter().any(|one| one.unlike_cpus) => {
                refused(first.to_string()).fix(fix)
            }
            Some(first) => refused(first.to_string()),
            None => refused("no cell has the same metric in both".into()),
        }
    }
}

/// Returns the experiment of a run, from the run's own record.
fn experiment(run: &Run) -> Result<Experiment> {
    let id = &run.run.id;
    let toml = run.run.config_toml.as_deref();
    let toml = toml.ok_or_else(|| refused(format!("{id} has no copy of its experiment's file")))?;
    Experiment::parse(toml, id)
}

fn refused(why: String) -> Error {
    Error::new(Code::Run, "cannot compare the runs", why)
}

/// Returns the labels of the runs: their commits if those differ, else their own names.
fn labels(one: &Run, other: &Run) -> (String, String) {
    let both = (trend::label(one), trend::label(other));
    if both.0 == both.1 { (one.run.id.clone(), other.run.id.clone()) } else { both }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, pair, run_of};
    use crate::experiment::Clock;
    use crate::record::{PlacementRecord, Status, Verdict, Warning};
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
    fn times_of_cpus_of_one_name_and_two_families_are_not_compared() {
        let on = |name: &str, cpu: &str| {
            let mut run = run(name, 100.0, "6.18");
            run.env["cpu"] = cpu.into();
            run
        };
        let newer = on("pr", "AMD EPYC, family 25 model 17");
        for cpu in ["AMD EPYC", "AMD EPYC, family 25 model 1"] {
            let gate = "cost_ns_per_packet>+1%";
            let both = (&on("main", cpu), &newer);
            let refused = compared_as(&experiment(), both, gate, false).unwrap_err();
            let why = format!("their machines differ: cpu {cpu} -> AMD EPYC, family 25 model 17");
            assert_eq!(refused.why, why);
            assert!(compared_as(&experiment(), both, gate, true).is_ok());
        }
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

    /// Checks a condition on sleeps, which are counted and nevertheless vary.
    #[test]
    fn a_gate_on_a_count_that_varies_is_decided_by_its_interval() {
        let run = |name: &str, most: usize| {
            let costs = (0..15).map(|i| pair(200.0, if i < most { 130.0 } else { 80.0 }, 200.0));
            let mut run = run_of(&[costs.collect()]);
            (run.run.id, run.env) = (name.into(), json!({"kernel": "6.18"}));
            analyse(&counted(), &mut run);
            run
        };
        let (one, other) = (run("main", 7), run("pr", 8));
        let gate = "cost_ns_per_packet>+1%";
        let told = compared_as(&counted(), (&one, &other), gate, false).unwrap();
        assert!(told.rows[0].change_pct > 1.0 && told.failed.is_empty(), "{told:?}");
        assert!(told.undecided[0].contains("the bound is within ["), "{told:?}");
    }

    #[test]
    fn rows_are_corrected_for_how_many_they_are_and_few_set_ups_decide_nothing() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.18"));
        let width = |metrics: usize| {
            let mut all = experiment();
            all.plan.family = Some(crate::experiment::Family::Experiment);
            all.metrics = vec![all.metrics[0].clone(); metrics];
            let told = compared_as(&all, (&one, &other), "cost_ns_per_packet>+1%", false);
            let (low, high) = told.unwrap().rows[0].ci95_pct;
            high - low
        };
        assert!(width(40) > 1.2 * width(1), "{} and {}", width(40), width(1));
        let mut old = other.clone();
        old.cells[0].pairs.iter_mut().for_each(|pair| pair.set_up = Some(0));
        let told = compared_as(&experiment(), (&one, &old), "cost_ns_per_packet>+1%", false);
        let told = told.unwrap();
        assert_eq!((told.rows[0].verdict, told.failed.len()), (Verdict::Unclear, 0));
        assert!(told.undecided[0].contains("too few set-ups"), "{told:?}");
    }

    #[test]
    fn a_gate_on_what_the_experiment_does_not_have_is_a_usage_error_that_names_what_it_has() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 100.0, "6.18"));
        let of = |text| {
            let e = compared_as(&experiment(), (&one, &other), text, false).unwrap_err();
            assert_eq!(e.code, Code::Experiment);
            (e.why, e.fix)
        };
        assert_eq!(of("instr>+1%").1, "it has: cost_ns_per_packet");
        let (why, fix) = of("rate=slow:cost_ns_per_packet>+1%");
        assert_eq!(why, "factor \"rate\" has no level \"slow\"");
        assert_eq!(fix, "its levels are: max, fixed");
        assert_eq!(of("size=64:cost_ns_per_packet>+1%").1, "its factors are: rate");
        let (why, fix) = of("rate=max,rate=fixed:cost_ns_per_packet>+1%");
        assert_eq!(why, "no cell of pool is rate=max rate=fixed");
        assert_eq!(fix, "--fail-on 'cost_ns_per_packet>+1%'");
    }

    fn undecided(one: &Run, other: &Run, gate: &str) -> Vec<String> {
        let told = compared_as(&experiment(), (one, other), gate, false).unwrap();
        assert!(told.failed.is_empty(), "{told:?}");
        told.undecided
    }

    #[test]
    fn a_gate_that_the_runs_cannot_tell_of_is_not_decided_and_never_held() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.18"));
        let gate = "cost_ns_per_packet>+3%";
        let told = undecided(&one, &other, gate);
        assert!(told[0].starts_with(&format!("{gate}: the bound is within [+2.9")), "{told:?}");
        assert!(told[0].ends_with(" at rate=max"), "{told:?}");
        // Neither run has this cell.
        let told = undecided(&one, &other, "rate=fixed:cost_ns_per_packet>+9%");
        assert_eq!(told, ["rate=fixed:cost_ns_per_packet>+9%: no cell of both runs has it"]);
        // The change exceeds the bound, but not the difference between identical code.
        let mut noisy = run("pr", 103.0, "6.18");
        let effect = noisy.cells[0].metrics.get_mut("cost_ns_per_packet").unwrap();
        effect.aa_half_width_pct = Some(4.0);
        let told = undecided(&one, &noisy, "cost_ns_per_packet>+1%");
        assert!(
            told[0].contains("within the difference measured between identical code, ±4."),
            "{told:?}"
        );
        // Most pairs were disturbed.
        let mut noisy = run("pr", 103.0, "6.18");
        noisy.cells[0].pairs.iter_mut().skip(7).for_each(|pair| pair.cost_accepted = false);
        let told = undecided(&one, &noisy, "cost_ns_per_packet>+1%");
        assert!(told[0].contains("most pairs of a run were disturbed"), "{told:?}");
    }

    #[test]
    fn a_gate_on_a_cell_that_only_one_run_has_come_to_is_not_decided() {
        let mut whole = run("main", 100.0, "6.18");
        let mut fixed = whole.cells[0].clone();
        fixed.at.insert("rate".into(), "fixed".into());
        whole.cells.push(fixed);
        let mut half = run("pr", 100.0, "6.18");
        (whole.run.complete, half.run.complete) = (true, false);
        let gate = "cost_ns_per_packet>+1%";
        let why = "the second run ended before this cell (finish it: linerate lab run --resume)";
        assert_eq!(undecided(&whole, &half, gate), [format!("{gate}: {why} at rate=fixed")]);
        // A cell that was not requested is not missing; a note lists it.
        half.run.complete = true;
        assert!(undecided(&whole, &half, gate).is_empty());
        let told = compared_as(&experiment(), (&whole, &half), gate, false).unwrap();
        assert_eq!(told.notes[0], "1 cell is only in the first run: rate=fixed");
        // The cell ran, and most of its pairs were disturbed.
        let mut noisy = whole.clone();
        noisy.cells[1].metrics.clear();
        noisy.cells[1].status = Status::Inconclusive;
        let why = "the second run was disturbed in most pairs of this cell (repeat it on a quiet machine)";
        assert_eq!(undecided(&whole, &noisy, gate), [format!("{gate}: {why} at rate=fixed")]);
    }

    #[test]
    fn a_gate_on_a_cell_in_which_neither_run_has_a_value_is_not_decided() {
        let both = |name: &str| {
            let mut run = run(name, 100.0, "6.18");
            let mut fixed = run.cells[0].clone();
            fixed.at.insert("rate".into(), "fixed".into());
            fixed.metrics.clear();
            run.cells.push(fixed);
            run
        };
        let (mut one, mut other) = (both("main"), both("pr"));
        let gate = "cost_ns_per_packet>+9%";
        let why = "neither run has a value of it (see linerate lab report)";
        assert_eq!(undecided(&one, &other, gate), [format!("{gate}: {why} at rate=fixed")]);
        // No condition covers the cell, so the missing metric is no fault.
        let told = compared_as(&experiment(), (&one, &other), &format!("rate=max:{gate}"), false);
        let told = told.unwrap();
        assert!(told.withheld.is_empty() && told.undecided.is_empty(), "{told:?}");
        // Its load was not reached: the runs have nothing of a cell that was requested.
        (one.cells[1].status, other.cells[1].status) = (Status::Unreachable, Status::Unreachable);
        let told = compared_as(&experiment(), (&one, &other), &format!("rate=max:{gate}"), false);
        let why = "the first run did not reach the load of this cell (see linerate lab report)";
        assert_eq!(told.unwrap().withheld[0].why, why);
        // Neither machine can run the cell.
        (one.cells[1].status, other.cells[1].status) = (Status::Unsupported, Status::Unsupported);
        assert!(undecided(&one, &other, gate).is_empty());
        // No window has the figures, so the metric is none of this cell.
        (one.cells[1].status, other.cells[1].status) = (Status::Ok, Status::Ok);
        let clear = |run: &mut Run| {
            let pairs = run.cells[1].pairs.iter_mut();
            pairs.flat_map(|pair| [&mut pair.a, &mut pair.b]).for_each(|one| one.figures.clear());
        };
        clear(&mut one);
        assert_eq!(undecided(&one, &other, gate).len(), 1);
        clear(&mut other);
        assert!(undecided(&one, &other, gate).is_empty());
    }

    #[test]
    fn a_run_of_two_builds_or_environments_is_not_compared_unless_asked_for() {
        let (one, mut other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.18"));
        let warning =
            |text: &str| Warning { code: "W-MACHINE".into(), text: text.into(), fix: None };
        let gate = "cost_ns_per_packet>+1%";
        let both = [
            ("resumed at 10 on a machine that differs: kernel 6.18, now 6.19", "two environments"),
            ("resumed at 10 by another build: build_id ab, now cd", "two builds"),
        ];
        for (text, of) in both {
            other.warnings = vec![warning(text)];
            let refused = compared_as(&experiment(), (&one, &other), gate, false).unwrap_err();
            let why = format!(
                "cost_ns_per_packet: the second run was resumed, and its windows are of {of} \
                 (repeat it, or use --allow-env)"
            );
            assert_eq!(refused.why, why);
            let told = compared_as(&experiment(), (&one, &other), gate, true).unwrap();
            assert_eq!(told.rows.len(), 1);
            let note = format!("the second run was resumed, and its windows are of {of}");
            assert_eq!(told.notes, [note]);
        }
        // Counts are of the program alone, so only another build matters to them.
        assert!(compared_as(&counted(), (&one, &other), gate, false).is_err());
        other.warnings = vec![warning(both[0].0)];
        assert!(compared_as(&counted(), (&one, &other), gate, false).is_ok());
    }

    #[test]
    fn cells_with_different_settings_are_not_compared_unless_asked_for() {
        let (one, mut other) = (run("main", 100.0, "6.18"), run("pr", 50.0, "6.18"));
        let message = |message: i64, line: usize| {
            let mut set = experiment();
            for cell in &mut set.cells {
                for side in [&mut cell.a, &mut cell.b] {
                    *side = side.clone().with("message", message).in_lines(|_| line);
                }
            }
            set
        };
        let fail_on = [FailOn::parse("cost_ns_per_packet>+1%").unwrap()];
        let both = (&message(64, 1), &message(1448, 1));
        let e = compared((&one, &other), both, &fail_on, false).unwrap_err();
        assert!(e.why.contains("its settings differ: message 64 -> 1448 (repeat"), "{}", e.why);
        let told = compared((&one, &other), both, &fail_on, true).unwrap();
        assert_eq!(told.notes, ["the settings of the runs differ at rate=max: message 64 -> 1448"]);
        let both = (&experiment(), &message(1448, 1));
        let e = compared((&one, &other), both, &fail_on, false).unwrap_err();
        assert!(e.why.contains("its settings differ: message unset -> 1448 ("), "{}", e.why);
        // A setting may stand in another line of the file.
        let moved = (&message(64, 1), &message(64, 9));
        assert!(compared((&one, &other), moved, &fail_on, false).unwrap().notes.is_empty());
        // A quick run has shorter windows.
        other.experiment.quick = true;
        let mut plan = experiment();
        for cell in &mut plan.cells {
            (cell.window_ns, cell.quick_window_ns) = (50_000_000, 20_000_000);
        }
        let e = compared((&one, &other), (&plan, &plan), &fail_on, false).unwrap_err();
        let fix = "repeat the first run with --quick, or the second without it, or use --allow-env";
        assert!(e.why.contains(&format!("window 50 ms -> 20 ms ({fix})")), "{}", e.why);
    }

    fn placed(run: &Run, class: &str) -> Run {
        let mut run = run.clone();
        for pair in run.cells.iter_mut().flat_map(|cell| &mut cell.pairs) {
            let (before_ticks, after_ticks) = (100.0, 100.0);
            pair.placement =
                Some(PlacementRecord { before_ticks, after_ticks, class: class.into() });
        }
        run
    }

    #[test]
    fn a_row_of_unlike_placement_is_withheld_and_its_gate_is_not_decided() {
        let one = placed(&run("main", 100.0, "6.18"), "near");
        let mut other = placed(&run("pr", 103.0, "6.18"), "near");
        let mut fixed = other.cells[0].clone();
        fixed.at.insert("rate".into(), "fixed".into());
        let mut both = one.clone();
        both.cells.push(fixed.clone());
        other.cells.push(placed(&Run { cells: vec![fixed], ..one }, "far").cells.remove(0));
        let gate = "cost_ns_per_packet>+9%";
        for experiment in [experiment(), counted()] {
            let told = compared_as(&experiment, (&both, &other), gate, false).unwrap();
            let [row] = &told.rows[..] else { panic!("{told:?}") };
            assert_eq!(row.placement, (Some("near".into()), Some("near".into())));
            let why = "the CPUs were near in the first run, far in the second (repeat one run with \
                       --cpu)";
            assert_eq!(
                told.withheld[0].to_string(),
                format!("cost_ns_per_packet at rate=fixed: {why}")
            );
            assert_eq!(told.undecided, [format!("{gate}: {why} at rate=fixed")]);
        }
        let all = compared_as(&experiment(), (&both, &other), gate, true).unwrap();
        assert_eq!((all.rows.len(), all.undecided.len()), (2, 0));
    }

    #[test]
    fn a_value_that_is_a_lower_bound_is_not_compared() {
        let (one, mut other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.18"));
        let effects = other.cells.iter_mut().flat_map(|cell| cell.metrics.values_mut());
        effects.for_each(|effect| effect.at_least[1] = true);
        let gate = "cost_ns_per_packet>+9%";
        for both in [(&one, &other), (&other, &one)] {
            let e = compared_as(&experiment(), both, gate, true).unwrap_err();
            assert!(e.to_string().contains("value is a lower bound"), "{e}");
        }
    }

    #[test]
    fn comparison_prints_units_and_counts() {
        let (one, other) = (run("main", 100.0, "6.18"), run("pr", 103.0, "6.19"));
        let gate = "cost_ns_per_packet>+1%";
        let printed = compared_as(&experiment(), (&one, &other), gate, true).unwrap().to_string();
        let expected = "\
pool: first main, second pr; of both the changed side
  metric              unit        first  second  change  95 % CI         windows  verdict
                                                      %  %
  rate=max
  cost_ns_per_packet  ns/packet  0.1001  0.1031   +3.00  [+2.94, +3.06]  15, 15   worse  <- gate
env differs: kernel 6.18 -> 6.19 (use --allow-env to compare times)
failed: cost_ns_per_packet>+1%: +3.00% at rate=max
";
        assert_eq!(printed, expected);
    }

    #[test]
    fn times_on_unlike_machines_are_told_in_cycles_of_each_as_well() {
        let (one, mut other) = (run("main", 100.0, "6.18"), run("pr", 100.0, "6.18"));
        other.env = json!({"kernel": "6.18", "mhz": 2500.0});
        let told = compared_as(&experiment(), (&one, &other), "cost_ns_per_packet>+1%", true);
        let told = told.unwrap();
        let row = &told.rows[0];
        assert!((row.a - row.b).abs() < 1e-9, "{row:?}");
        let cycles = row.a_cycles.zip(row.b_cycles).unwrap();
        assert!((cycles.0 - 2.0 * row.a).abs() < 1e-9 && (cycles.1 - 2.5 * row.b).abs() < 1e-9);
        let printed = told.to_string();
        assert!(printed.lines().any(|line| line.contains(" cycles ")), "{printed}");
    }

    #[test]
    fn no_line_is_longer_than_a_screen_whatever_is_to_be_said() {
        let (one, mut other) = (run("main", 1e9, "6.18"), run(&"pr ".repeat(99), 3e-7, "6.18"));
        other.env = json!({"kernel": "6.19 ".repeat(99), "mhz": 2500.0});
        let mut long = experiment();
        let name = "a_cost_of_which_there_is_much_to_be_said_for_each_packet";
        for run in [&one, &other] {
            assert!(run.cells[0].metrics.contains_key("cost_ns_per_packet"));
        }
        let rename = |mut run: Run| {
            let effect = run.cells[0].metrics.remove("cost_ns_per_packet").unwrap();
            run.cells[0].metrics.insert(name.into(), effect);
            placed(&run, "a very far \u{1b}[2J distance")
        };
        long.metrics[0].name = name.into();
        let gate = format!("{name}>-100%");
        let told = compared_as(&long, (&rename(one), &rename(other)), &gate, true).unwrap();
        let printed = told.to_string();
        let widest = printed.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|wide| wide <= 100), "{widest:?}\n{printed}");
        assert!(!printed.contains('\u{1b}') && printed.contains("cycles"), "{printed}");
    }

    #[test]
    fn runs_of_one_commit_are_labelled_by_their_names() {
        let (mut one, mut other) = (run("main", 100.0, "6.18"), run("pr", 100.0, "6.18"));
        for run in [&mut one, &mut other] {
            run.run.tool.insert("commit".into(), "abc".into());
        }
        assert_eq!(labels(&one, &other), ("main".into(), "pr".into()));
        other.run.tool.insert("commit".into(), "def".into());
        assert_eq!(labels(&one, &other), ("abc".into(), "def".into()));
    }
}
