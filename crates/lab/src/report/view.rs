//! A run, as every telling of it needs it: its metrics in order, its cells by name, its head.

use std::collections::BTreeMap;

use linerate_prof::print::harmless;

use super::figure::{change, count, interval};
use crate::experiment::{Clock, Experiment, FixedPoint, Formula};
use crate::record::{
    CellRecord, Effect, Ledger, Ledgers, OverallRecord, PairRecord, Run, Status, Verdict,
};
use crate::window::Window;

/// Letters of a name that are shown.
const NAME_MAX: usize = 120;

/// A run, and its experiment as far as its file can be read.
pub(super) struct View<'a> {
    /// It.
    pub run: &'a Run,
    /// What the run's copy of the experiment's file says.
    pub experiment: Option<Experiment>,
    /// Metrics, the headline first.
    pub metrics: Vec<Shown>,
    /// The cells' names, in their order.
    pub cells: Vec<String>,
}

/// A metric of a run.
pub(super) struct Shown {
    /// Its key in the document.
    pub name: String,
    /// Its name, as shown.
    pub label: String,
    /// Its unit.
    pub unit: String,
    /// What it is, in a sentence; empty if nothing says.
    pub about: String,
    /// How a window's is computed; `None` if the experiment's file is not there to say.
    formula: Option<Formula>,
    clock: Option<Clock>,
}

/// A ratio of one pair, of those that a metric can be taken from.
pub(super) struct Ratio {
    /// The pair's number, from 0.
    pub pair: usize,
    /// The second side's change from the first, in per cent.
    pub change_pct: f64,
    /// Whether it was admitted.
    pub accepted: bool,
}

impl<'a> View<'a> {
    /// Reads what there is to read of `run`.
    pub fn new(run: &'a Run) -> View<'a> {
        let toml = run.run.config_toml.as_deref();
        let experiment = toml.and_then(|text| Experiment::parse(text, &run.experiment.id).ok());
        let metrics = metrics(run, experiment.as_ref());
        let cells = run.cells.iter().map(|cell| name_of(cell, experiment.as_ref())).collect();
        View { run, experiment, metrics, cells }
    }

    /// Cells with their names.
    pub fn named(&self) -> impl Iterator<Item = (&str, &'a CellRecord)> {
        self.cells.iter().map(String::as_str).zip(&self.run.cells)
    }

    /// What the run is about: the first metric.
    pub fn headline(&self) -> Option<&Shown> {
        self.metrics.first()
    }

    /// The sides' names.
    pub fn sides(&self) -> [String; 2] {
        [shown(&self.run.experiment.a), shown(&self.run.experiment.b)]
    }

    /// A cell's ledgers, each with its side's name; the control's, where it was kept.
    pub fn ledgers(&self, cell: &'a CellRecord) -> impl Iterator<Item = (String, &'a Ledger)> {
        let Ledgers { a, b, control } = &cell.ledger;
        let control = control.as_ref().map(|ledger| ("control".to_owned(), ledger));
        self.sides().into_iter().zip([a, b]).chain(control)
    }

    /// Lines over groups, of one metric.
    pub fn overall<'s>(&'s self, metric: &'s str) -> impl Iterator<Item = &'a OverallRecord> + 's {
        self.run.overall.iter().filter(move |line| line.metric == metric)
    }

    /// Values that somebody has published.
    pub fn fixed_points(&self) -> &[FixedPoint] {
        self.experiment.as_ref().map_or(&[], |experiment| &experiment.fixed_points)
    }

    /// What makes it less than a whole run.
    pub fn marks(&self) -> Vec<&'static str> {
        let head = &self.run.run;
        let said = head.note.as_deref().is_some_and(|note| note.starts_with("quick"));
        let quick = said || head.argv.iter().any(|arg| arg == "--quick");
        let marks = [
            (quick, "QUICK: a declared subset, few pairs"),
            (!head.complete, "INCOMPLETE: it was interrupted; the cells so far are valid"),
        ];
        marks.into_iter().filter_map(|(is, mark)| is.then_some(mark)).collect()
    }

    /// What it came to, in a sentence.
    pub fn verdict(&self) -> String {
        let [a, b] = self.sides();
        let said = match self.run.verdict.as_str() {
            "better" => format!("{b} is better than {a}"),
            "worse" => format!("{b} is worse than {a}"),
            "same" => format!("{b} and {a} do not differ beyond the noise"),
            "mixed" => format!("{b} is better than {a} in some cells, worse in others"),
            "inconclusive" => format!("{b} against {a}: nothing can be said"),
            other => format!("{b} against {a}: {}", shown(other)),
        };
        match self.headline().and_then(|headline| self.in_short(headline)) {
            Some(figures) => format!("{said}. {figures}"),
            None => format!("{said}."),
        }
    }

    /// A metric's figures in a sentence.
    fn in_short(&self, metric: &Shown) -> Option<String> {
        let Shown { name, label, .. } = metric;
        let all = self.overall(name).find(|line| line.group == "all");
        let effects: Vec<&Effect> =
            self.run.cells.iter().filter_map(|cell| cell.metrics.get(name)).collect();
        match (effects.as_slice(), all) {
            ([], _) => None,
            ([one], _) => Some(format!(
                "{label} {} % {} at {} pairs.",
                change(one.change_pct),
                interval(one.ci95_pct),
                count(one.n_pairs as u64),
            )),
            (many, Some(all)) => Some(format!(
                "{label}, {} cells: sum {} %, geometric mean {} %; {}.",
                many.len(),
                change(all.sum_ratio_pct),
                change(all.geomean_pct),
                counts(all),
            )),
            (many, None) => Some(format!("{label}: {} cells.", many.len())),
        }
    }

    /// Pairs whose rates may be used, and all.
    pub fn pairs(&self) -> (usize, usize, usize) {
        let all = || self.run.cells.iter().flat_map(|cell| &cell.pairs);
        let costs = all().filter(|pair| pair.cost_accepted).count();
        (all().filter(|pair| pair.accepted).count(), costs, all().count())
    }

    /// The widest floor of the headline, in per cent: what identical code was seen to differ by.
    pub fn floor_pct(&self) -> Option<f64> {
        let name = &self.headline()?.name;
        let floors = self.run.cells.iter().filter_map(|cell| {
            cell.metrics.get(name)?.aa_half_width_pct.filter(|width| width.is_finite())
        });
        floors.reduce(f64::max)
    }

    /// What one must know to believe it: about what, what it is.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let (head, env) = (&self.run.run, &self.run.env);
        let said = |key: &str| match &env[key] {
            serde_json::Value::String(text) => Some(shown(text)),
            _ => None,
        };
        let tool = |key: &str| head.tool.get(key).map_or("unknown".into(), |text| shown(text));
        let machine = ["cpu", "kernel", "virt", "clocksource"].into_iter().filter_map(said);
        let (rates, costs, all) = self.pairs();
        let [a, b] = self.sides();
        let title = self.experiment.as_ref().map_or(String::new(), |e| format!(": {}", e.title));
        let floor = self.floor_pct().map_or("n/a: no control was measured".into(), |width| {
            format!("±{width:.2} % at most, of the headline: identical code differed by that",)
        });
        let mut facts = vec![
            ("experiment", format!("{}{}", shown(&self.run.experiment.id), shown(&title))),
            ("sides", format!("A = {a}, B = {b}")),
            ("machine", known(machine.collect::<Vec<_>>().join("; "))),
            ("CPUs", known(cpus(env))),
            ("counters", counters(env)),
            ("program", format!("{}, commit {}", tool("version"), tool("commit"))),
            ("built by", format!("{}, for {}", tool("rustc"), tool("target_cpu"))),
            (
                "pairs",
                format!("{} attempted; costs from {}, rates from {}", n(all), n(costs), n(rates)),
            ),
            ("A/A floor", floor),
            (
                "run",
                format!(
                    "{}, {} to {}",
                    shown(&head.id),
                    shown(&head.started),
                    shown(&head.finished)
                ),
            ),
            ("seed", head.seed.to_string()),
            ("command", self.command()),
        ];
        facts.extend(head.note.iter().map(|note| ("note", shown(note))));
        facts
    }

    /// The command, as a shell takes it again.
    pub fn command(&self) -> String {
        let quoted = |arg: &String| {
            let arg = shown(arg);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            match !arg.is_empty() && arg.chars().all(plain) {
                true => arg,
                false => format!("'{}'", arg.replace('\'', "'\\''")),
            }
        };
        let words: Vec<String> = self.run.run.argv.iter().map(quoted).collect();
        known(words.join(" "))
    }

    /// Why a cell has no figures; `None` if it has.
    pub fn reason(&self, name: &str, cell: &CellRecord) -> Option<String> {
        if !cell.ledger.balanced() {
            return Some("its packets are not conserved: what was measured is withheld".into());
        }
        let warnings = || self.run.warnings.iter();
        let told = warnings().find(|w| !name.is_empty() && w.text.contains(name));
        let why = told.map(|warning| {
            let text =
                warning.text.strip_prefix(name).map(|rest| rest.trim_start_matches([':', ' ']));
            shown(text.unwrap_or(&warning.text))
        });
        match cell.status {
            Status::Ok => None,
            Status::Unreachable => {
                Some(why.unwrap_or("the load that it names was not reached".into()))
            }
            Status::Unsupported => Some(why.unwrap_or("it cannot be run here".into())),
            Status::Inconclusive => Some(rejected(&cell.pairs)),
        }
    }
}

impl Shown {
    /// The changes of every pair, in order; those of which there is none are left out.
    pub fn ratios(&self, pairs: &[PairRecord]) -> Vec<Ratio> {
        self.each(pairs, |pair| Some(&pair.b))
    }

    /// The same of the control against the first side.
    pub fn control_ratios(&self, pairs: &[PairRecord]) -> Vec<Ratio> {
        self.each(pairs, |pair| pair.control.as_ref())
    }

    /// How [`Shown::ratios`] are computed, for a caption.
    pub fn basis(&self) -> &str {
        if self.formula.is_some() { &self.label } else { "cost_ns / packets" }
    }

    /// The control's median and interval, if the ratios are of this metric.
    pub fn aa_pct(&self, cell: &CellRecord) -> Option<(f64, f64, f64)> {
        self.formula.as_ref()?;
        cell.metrics.get(&self.name)?.aa_pct
    }

    /// The effect's interval, likewise.
    pub fn interval_pct(&self, cell: &CellRecord) -> Option<(f64, f64)> {
        self.formula.as_ref()?;
        Some(cell.metrics.get(&self.name)?.ci95_pct)
    }

    fn each<'p>(
        &self,
        pairs: &'p [PairRecord],
        other: impl Fn(&'p PairRecord) -> Option<&'p Window>,
    ) -> Vec<Ratio> {
        let value = |window: &Window| match &self.formula {
            Some(formula) => formula.of(window),
            None => Some(window.cost_ns() as f64 / window.packets as f64),
        };
        let ratio = |(i, pair): (usize, &'p PairRecord)| {
            let change_pct = 100.0 * (value(other(pair)?)? / value(&pair.a)? - 1.0);
            let accepted = match self.clock {
                Some(Clock::Wall) => pair.accepted,
                _ => pair.cost_accepted,
            };
            change_pct.is_finite().then_some(Ratio { pair: i, change_pct, accepted })
        };
        pairs.iter().enumerate().filter_map(ratio).collect()
    }
}

/// A text of a document, made harmless and short.
pub(super) fn shown(text: &str) -> String {
    if text.chars().nth(4 * NAME_MAX).is_none() {
        return harmless(text).into_owned();
    }
    let start: String = text.chars().take(4 * NAME_MAX).collect();
    format!("{}…", harmless(&start))
}

/// A name of a document, made harmless and shorter.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(NAME_MAX) {
        Some((at, _)) => format!("{}…", harmless(text.get(..at).unwrap_or_default())),
        None => harmless(text).into_owned(),
    }
}

/// `text` in at most `letters`, without its middle: a path begins with its crate and ends with its
/// function.
pub(super) fn elided(text: &str, letters: usize) -> String {
    let length = text.chars().count();
    if length <= letters {
        return text.to_owned();
    }
    let head = letters.saturating_sub(1) / 2;
    let tail = letters.saturating_sub(1) - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// Cells by their verdicts.
pub(super) fn counts(line: &OverallRecord) -> String {
    let OverallRecord { better, worse, same, unclear, .. } = line;
    format!("{better} better, {worse} worse, {same} same, {unclear} unclear")
}

/// As printed.
pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Same => "same",
        Verdict::Unclear => "unclear",
    }
}

fn metrics(run: &Run, experiment: Option<&Experiment>) -> Vec<Shown> {
    let mut seen: BTreeMap<&str, &Effect> = BTreeMap::new();
    for (name, effect) in run.cells.iter().flat_map(|cell| &cell.metrics) {
        seen.entry(name).or_insert(effect);
    }
    let declared = experiment.map_or(&[][..], |experiment| &experiment.metrics);
    let mut metrics: Vec<Shown> = Vec::new();
    for metric in declared {
        seen.remove(metric.name.as_str());
        metrics.push(Shown {
            name: metric.name.clone(),
            label: short(&metric.name),
            unit: short(&metric.unit),
            about: shown(&metric.about),
            formula: Some(metric.formula.clone()),
            clock: Some(metric.clock),
        });
    }
    metrics.extend(seen.into_iter().map(|(name, effect)| Shown {
        name: name.to_owned(),
        label: short(name),
        unit: short(&effect.unit),
        about: run.experiment.definitions.get(name).map_or(String::new(), |text| shown(text)),
        formula: None,
        clock: None,
    }));
    metrics
}

/// `change=both rate=fixed`, in the order of the experiment's factors if it is known.
fn name_of(cell: &CellRecord, experiment: Option<&Experiment>) -> String {
    let factors = experiment.map_or(&[][..], |experiment| &experiment.factors);
    let place = |name: &str| factors.iter().position(|f| f.name == name).unwrap_or(usize::MAX);
    let mut at: Vec<(&String, &String)> = cell.at.iter().collect();
    at.sort_by_key(|(factor, _)| place(factor));
    let each: Vec<String> =
        at.iter().map(|(factor, level)| format!("{}={}", short(factor), short(level))).collect();
    each.join(" ")
}

/// What most of a cell's pairs were rejected for.
fn rejected(pairs: &[PairRecord]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in pairs.iter().filter_map(|pair| pair.reject_reason.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let most = reasons.into_iter().max_by_key(|(_, n)| *n);
    let why = most.map_or(String::new(), |(why, n)| format!(": {} ({n} of them)", shown(why)));
    format!("too many of its {} pairs were disturbed{why}", n(pairs.len()))
}

/// `0 dut, 1 gen`
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
        Some(false) => "none: this machine does not let the CPU's events be counted".into(),
        None => "not said".into(),
    }
}

fn known(text: String) -> String {
    if text.is_empty() { "not recorded".into() } else { text }
}

fn n(count_of: usize) -> String {
    count(count_of as u64)
}
