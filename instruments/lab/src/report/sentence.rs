//! Sentences about a run: its verdict, the result for each expectation, and facts about its
//! reliability.

use linerate_show::number::{change, count, interval, range};

use super::margins;
use super::remarks::reason;
use super::tables::ROWS_MAX;
use super::view::Shown;
use super::view::View;
use super::words::{cells, n, overall_changes, shown};
use crate::analysis::{distinct, is_valid};
use crate::experiment::OverallExpectation;
use crate::record::{CellRecord, Effect, QUICK_NOTE, Verdict};

/// The reason for a cell that has figures but no verdict.
const UNCLEAR: &str = "unclear";

/// Counts of cells by their verdict on the headline.
#[derive(Default)]
struct Tally {
    better: usize,
    worse: usize,
    same: usize,
    /// Cells that differ clearly, where neither direction is better.
    different: usize,
    /// Reasons for a missing verdict, each with its number of cells.
    untold: Vec<(&'static str, usize)>,
}

impl View<'_> {
    /// Returns the verdict of the run as a sentence.
    pub fn verdict(&self) -> String {
        let (mut tally, headline) = (Tally::default(), self.headline());
        for cell in &self.run.cells {
            tally.add(self, cell, headline);
        }
        let [a, b] = self.sides();
        let said = tally.said(&a, &b);
        let quick = if self.is_quick() { "Quick run: " } else { "" };
        let cut = if self.run.run.complete { "" } else { "Interrupted run: " };
        match headline.and_then(|headline| self.in_short(headline)) {
            Some(figures) => format!("{quick}{cut}{said}. {figures}"),
            None => format!("{quick}{cut}{said}."),
        }
    }

    /// Returns true if the run covered a declared subset, with few pairs.
    pub fn is_quick(&self) -> bool {
        let head = &self.run.run;
        // Documents without the mark of a quick run have it in their note, beside the user's own.
        let note = head.note.as_deref().unwrap_or_default();
        let said = note.split("; ").any(|part| part == QUICK_NOTE);
        said || self.run.experiment.quick || head.argv.iter().any(|arg| arg == "--quick")
    }

    /// Returns the marks of a run that is incomplete or quick.
    pub fn marks(&self) -> Vec<&'static str> {
        let is_within_a_cell = self.run.cells.iter().any(|cell| cell.is_unfinished);
        let interrupted = match is_within_a_cell {
            true => "INCOMPLETE: it was interrupted; only its finished cells have verdicts",
            false => "INCOMPLETE: it was interrupted; the cells so far are valid",
        };
        let marks = [
            (self.is_quick(), "QUICK: a declared subset, few pairs"),
            (!self.run.run.complete, interrupted),
        ];
        marks.into_iter().filter_map(|(is, mark)| is.then_some(mark)).collect()
    }

    /// Returns a metric's figures in a sentence.
    fn in_short(&self, metric: &Shown) -> Option<String> {
        let Shown { name, label, .. } = metric;
        let all = self.overall(name).find(|line| line.group == "all");
        match (self.summed(metric).as_slice(), all) {
            ([], _) | ([_, _, ..], None) => None,
            ([one], _) => Some(format!(
                "{label} {} % {} at {} pairs.",
                change(one.change_pct),
                interval(one.ci95_pct),
                count(one.n_pairs as u64),
            )),
            (many, Some(all)) => {
                let (sum, mean) = overall_changes(all);
                let cells = n(many.len());
                Some(format!("{label}, {cells} cells: sum {sum}, geometric mean {mean}."))
            }
        }
    }

    /// Returns a metric's effects in the cells that its overall line sums: without those of which
    /// most pairs were disturbed, or that counted nothing.
    fn summed(&self, metric: &Shown) -> Vec<&Effect> {
        let quiet = |cell: &&CellRecord| metric.clock.is_none_or(|clock| is_valid(clock, cell));
        let cells = self.run.cells.iter().filter(quiet);
        let effects = cells.filter_map(|cell| cell.metrics.get(&metric.name));
        effects.filter(|effect| !effect.is_of_nothing()).collect()
    }
}

impl Tally {
    fn add(&mut self, view: &View<'_>, cell: &CellRecord, headline: Option<&Shown>) {
        let effect = headline.and_then(|metric| cell.metrics.get(&metric.name));
        let is_quiet = || headline.and_then(|one| one.clock).is_none_or(|one| is_valid(one, cell));
        let differs = |effect: &Effect| effect.better_when.is_none() && distinct(effect);
        let why = match effect.map(|effect| effect.verdict) {
            Some(Verdict::Unclear) if effect.is_some_and(differs) && is_quiet() => {
                return self.different += 1;
            }
            Some(Verdict::Better) => return self.better += 1,
            Some(Verdict::Worse) => return self.worse += 1,
            Some(Verdict::Same) => return self.same += 1,
            Some(Verdict::Unclear) => UNCLEAR,
            None => "not measured",
        };
        let why = reason(view, cell).map_or(why, |reason| reason.short);
        match self.untold.iter_mut().find(|(same, _)| *same == why) {
            Some((_, cells)) => *cells += 1,
            None => self.untold.push((why, 1)),
        }
    }

    /// Returns `frames is better than malloc in 2 of 4 cells; 2 inconclusive (disturbed)`
    fn said(&self, a: &str, b: &str) -> String {
        let told = self.better + self.worse + self.same + self.different;
        let untold: usize = self.untold.iter().map(|(_, cells)| cells).sum();
        let all = told + untold;
        let of = |cells: usize| match (cells, all) {
            (_, 1) => String::new(),
            (cells, all) if cells == all => format!(" in all {} cells", n(all)),
            (cells, all) => format!(" in {} of {} cells", n(cells), n(all)),
        };
        let kinds = [
            (self.better, format!("better than {a}")),
            (self.worse, format!("worse than {a}")),
            (self.same, format!("the same as {a}")),
            (self.different, format!("different from {a}")),
        ];
        let each: Vec<String> = kinds
            .into_iter()
            .filter_map(|(cells, what)| (cells > 0).then(|| format!("{what}{}", of(cells))))
            .collect();
        let why: Vec<String> = match self.untold.as_slice() {
            [(why, _)] => vec![(*why).to_owned()],
            many => many.iter().map(|(why, cells)| format!("{} {why}", n(*cells))).collect(),
        };
        match (each.as_slice(), why.join(", ")) {
            ([], why) if why.is_empty() => format!("{b} against {a}: nothing was measured"),
            ([], why) => format!("{b} against {a}: no result ({why})"),
            (each, why) if why.is_empty() => format!("{b} is {}", each.join(", ")),
            (each, why) => {
                format!("{b} is {}; {} inconclusive ({why})", each.join(", "), n(untold))
            }
        }
    }
}

/// The result if part of the interval lies within the range and part outside it.
const OPEN: &str = "open: the interval does not tell";

/// An expectation of one metric, in every cell that has it.
pub(super) struct Expectation {
    /// The metric and the expected value.
    pub what: String,
    /// The outcome, with the cells that disagree. A disagreement is a result.
    pub outcome: String,
    /// The source of the expectation.
    pub source: String,
    /// True if the expected value is met in every cell.
    pub met: bool,
}

/// Returns all expectations of the run.
pub(super) fn expectations(view: &View<'_>) -> Vec<Expectation> {
    let of = |metric| of_metric(view, metric).into_iter().chain(over_all_cells(view, metric));
    view.metrics.iter().flat_map(of).take(ROWS_MAX).collect()
}

/// Returns what is expected of the sum and of the geometric mean over all cells, with the outcome
/// by their intervals. It is open if they are not of all cells of the experiment's grid, and not
/// judged if the run has neither.
fn over_all_cells(view: &View<'_>, metric: &Shown) -> Vec<Expectation> {
    let Some(experiment) = &view.experiment else { return Vec::new() };
    let declared = experiment.metrics.iter().find(|declared| declared.name == metric.name);
    let expected = declared.and_then(|declared| declared.expected_overall.as_ref());
    let Some(expected) = expected else { return Vec::new() };
    let Some(all) = view.overall(&metric.name).find(|line| line.group == "all") else {
        return vec![not_judged(view, metric, expected)];
    };
    let (summed, planned) = (view.summed(metric).len(), experiment.cells.len());
    let told = |(of, (from, to), ends): (&str, (f64, f64), Option<(f64, f64)>)| {
        let outcome = match ends {
            _ if summed < planned => format!("open: only {} of {} cells", n(summed), n(planned)),
            Some((low, high)) if from <= low && high <= to => "met".into(),
            Some((low, high)) if high < from || to < low => "NOT met, which is a result".into(),
            Some(_) => OPEN.into(),
            None => "open: there is no interval".into(),
        };
        let wanted = range((from, to));
        Expectation {
            what: format!("{}, {of} over all cells: expected {wanted} %", metric.label),
            met: outcome == "met",
            outcome,
            source: shown(&expected.source),
        }
    };
    let sum = ("sum", expected.sum_pct, all.sum_ci95_pct);
    let mean = ("geometric mean", expected.geomean_pct, all.geomean_ci95_pct);
    [sum, mean].map(told).into()
}

/// Returns what is expected over all cells of a run without a line over all cells, with the reason
/// why there is none.
fn not_judged(view: &View<'_>, metric: &Shown, expected: &OverallExpectation) -> Expectation {
    let has_value = |cell: &CellRecord| cell.metrics.contains_key(&metric.name);
    let why = match view.summed(metric).as_slice() {
        _ if !view.run.cells.iter().any(has_value) => "no cell has a value of it",
        [] => "each cell was disturbed in most pairs, counted nothing, or is not finished",
        _ => "the run has no line over all cells",
    };
    Expectation {
        what: format!("{}, expected overall", metric.label),
        outcome: format!("not judged, because {why}"),
        source: shown(&expected.source),
        met: false,
    }
}

fn of_metric(view: &View<'_>, metric: &Shown) -> Vec<Expectation> {
    struct Cells<'a> {
        expected: (String, String),
        met: Vec<&'a str>,
        not_met: Vec<&'a str>,
        open: usize,
    }
    let mut all: Vec<Cells<'_>> = Vec::new();
    for (name, cell) in view.named().take(ROWS_MAX) {
        let effect = cell.metrics.get(&metric.name);
        let Some(expected) = effect.and_then(|effect| effect.expected.as_ref()) else { continue };
        let of = (range(expected.change_pct), shown(&expected.source));
        let at = all.iter().position(|cells| cells.expected == of).unwrap_or_else(|| {
            all.push(Cells { expected: of, met: Vec::new(), not_met: Vec::new(), open: 0 });
            all.len() - 1
        });
        let Some(cells) = all.get_mut(at) else { continue };
        match (expected.certain, expected.met) {
            (false, _) => cells.open += 1,
            (true, true) => cells.met.push(name),
            (true, false) => cells.not_met.push(name),
        }
    }
    let told = |of: Cells<'_>| {
        let every = of.met.len() + of.not_met.len();
        let (range, source) = of.expected;
        let open = if of.open > 0 { format!("; open in {}", n(of.open)) } else { String::new() };
        Expectation {
            what: format!("{}: expected {range} %", metric.label),
            outcome: match (of.met.len(), cells(&of.not_met, view.cells.len())) {
                (0, _) if every == 0 => OPEN.into(),
                (met, _) if of.not_met.is_empty() && of.open > 0 => {
                    format!("met in {}, open in {}", n(met), n(of.open))
                }
                (_, _) if of.not_met.is_empty() && every > 1 => format!("met in all {}", n(every)),
                (_, _) if of.not_met.is_empty() => "met".into(),
                (0, at) if every == 1 && at.is_empty() => "NOT met, which is a result".into(),
                (0, at) => format!("NOT met, which is a result, at {at}{open}"),
                (met, at) => format!(
                    "NOT met, which is a result, at {at}; met in {} of {}{open}",
                    n(met),
                    n(every)
                ),
            },
            source,
            met: of.not_met.is_empty() && of.open == 0,
        }
    };
    all.into_iter().map(told).collect()
}

impl View<'_> {
    /// Returns the facts that a reader needs in order to trust the run, as pairs of subject and
    /// value.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let (head, env) = (&self.run.run, &self.run.env);
        let said = |key: &str| match &env[key] {
            serde_json::Value::String(text) => Some(shown(text)),
            _ => None,
        };
        let tool = |key: &str| head.tool.get(key).map_or("unknown".into(), |text| shown(text));
        let clock = env["mhz"].as_f64().map(|mhz| format!("{mhz:.0} MHz"));
        let machine = said("cpu").into_iter().chain(clock);
        let machine = machine.chain(["kernel", "virt", "clocksource"].into_iter().filter_map(said));
        let device = self.experiment.as_ref().and_then(|e| e.device.as_deref().map(shown));
        let (rates, costs, all) = self.pairs();
        let [a, b] = self.sides();
        let title = self.experiment.as_ref().map_or(String::new(), |e| format!(": {}", e.title));
        let none = "n/a: no control was measured, or it counted nothing";
        let floor = self.floor_pct().map_or(none.into(), |width| {
            format!("±{width:.2} % at most, for the headline: the difference measured between identical code",)
        });
        let program = format!(
            "{}, commit {}, built by {} for {}",
            tool("version"),
            tool("commit"),
            tool("rustc"),
            tool("target_cpu")
        );
        let mut facts = vec![
            ("experiment", format!("{}{}", shown(&self.run.experiment.id), shown(&title))),
            ("sides", format!("A = {a}, B = {b}")),
            ("machine", known(machine.collect::<Vec<_>>().join("; "))),
            ("CPUs", known(cpus(env))),
            ("device", device.unwrap_or_else(|| "the experiment does not say".into())),
            ("counters", counters(env)),
            ("program", program),
            (
                "pairs",
                format!("{} attempted; costs from {}, rates from {}", n(all), n(costs), n(rates)),
            ),
            ("A/A floor", floor),
            (
                "run",
                format!(
                    "{}, {} to {}, seed {}",
                    shown(&head.id),
                    shown(&head.started),
                    shown(&head.finished),
                    head.seed
                ),
            ),
            ("command", self.command()),
        ];
        facts.extend(margins::facts(self));
        facts.extend(head.note.iter().map(|note| ("note", shown(note))));
        facts
    }

    /// Returns the command, quoted for a shell, with the program's name instead of its path.
    pub fn command(&self) -> String {
        let quoted = |arg: &String| {
            let arg = shown(arg);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            match !arg.is_empty() && arg.chars().all(plain) {
                true => arg,
                false => format!("'{}'", arg.replace('\'', "'\\''")),
            }
        };
        let argv = &self.run.run.argv;
        let program = argv.first().map(|path| path.rsplit('/').next().unwrap_or(path).to_owned());
        let words = program.iter().chain(argv.iter().skip(1)).map(quoted);
        known(words.collect::<Vec<_>>().join(" "))
    }
}

/// Formats the CPUs with their purposes: `0 dut, 1 gen`
fn cpus(env: &serde_json::Value) -> String {
    let each = env["cpus"].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(|cpu| {
        let role = cpu["role"].as_str().unwrap_or("role not said");
        Some(format!("{} {}", cpu["id"].as_u64()?, shown(role)))
    });
    each.take(64).collect::<Vec<_>>().join(", ")
}

fn counters(env: &serde_json::Value) -> String {
    match env["pmu"]["available"].as_bool() {
        Some(true) => "of the CPU's events".into(),
        Some(false) => "none: this machine cannot count CPU events".into(),
        None => "not said".into(),
    }
}

fn known(text: String) -> String {
    if text.is_empty() { "not recorded".into() } else { text }
}
