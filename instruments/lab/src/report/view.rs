//! A run prepared for every kind of report: its metrics in order, its cells by name.

use std::collections::{BTreeMap, BTreeSet};

use super::words::{short, shown};
use crate::analysis::admitted;
use crate::experiment::{Clock, Experiment, FixedPoint, Formula};
use crate::record::{CellRecord, Effect, Ledger, Ledgers, OverallRecord, PairRecord, Run};
use crate::window::Window;

/// A run, with its experiment if the file can be parsed.
pub(super) struct View<'a> {
    /// The run.
    pub run: &'a Run,
    /// The run's copy of the experiment; `None` if it is missing.
    pub experiment: Option<Experiment>,
    /// Metrics, the headline first.
    pub metrics: Vec<Shown>,
    /// The cells' names, in their order.
    pub cells: Vec<String>,
}

impl<'a> View<'a> {
    /// Prepares `run` for reports; parts that cannot be read are left out.
    pub fn new(run: &'a Run) -> View<'a> {
        let toml = run.run.config_toml.as_deref();
        let experiment = toml.and_then(|text| Experiment::parse(text, &run.experiment.id).ok());
        let metrics = metrics(run, experiment.as_ref());
        let cells = run.cells.iter().map(|cell| name_of(cell, experiment.as_ref())).collect();
        View { run, experiment, metrics, cells }
    }

    /// Returns the cells with their names.
    pub fn named(&self) -> impl Iterator<Item = (&str, &'a CellRecord)> {
        self.cells.iter().map(String::as_str).zip(&self.run.cells)
    }

    /// Returns the headline: the run's first metric.
    pub fn headline(&self) -> Option<&Shown> {
        self.metrics.first()
    }

    /// Returns the sides' names.
    pub fn sides(&self) -> [String; 2] {
        [shown(&self.run.experiment.a), shown(&self.run.experiment.b)]
    }

    /// Returns a cell's ledgers, each with its side's name; also the control's, if there is one.
    pub fn ledgers(&self, cell: &'a CellRecord) -> impl Iterator<Item = (String, &'a Ledger)> {
        let Ledgers { a, b, control } = &cell.ledger;
        let control = control.as_ref().map(|ledger| ("control".to_owned(), ledger));
        self.sides().into_iter().zip([a, b]).chain(control)
    }

    /// Returns the metrics that have a value in some cell.
    pub fn measured(&self) -> impl Iterator<Item = &Shown> {
        self.metrics.iter().filter(|metric| self.is_measured(metric))
    }

    /// Returns the metrics without a value in any cell although the run measured something. The
    /// second value is true if this machine cannot count the CPU events that the metric needs.
    pub fn unmeasured(&self) -> impl Iterator<Item = (&Shown, bool)> {
        let any = self.run.cells.iter().any(|cell| !cell.metrics.is_empty());
        let counts = self.run.env["pmu"]["available"].as_bool() != Some(false);
        let missing = self.metrics.iter().filter(move |metric| any && !self.is_measured(metric));
        missing.map(move |metric| (metric, !counts && metric.needs_events()))
    }

    /// Returns true if a metric is 0 on both sides of every cell that has it.
    pub fn is_nothing(&self, metric: &Shown) -> bool {
        let mut effects = self.run.cells.iter().filter_map(|cell| cell.metrics.get(&metric.name));
        effects.all(Effect::is_of_nothing)
    }

    fn is_measured(&self, metric: &Shown) -> bool {
        self.run.cells.iter().any(|cell| cell.metrics.contains_key(&metric.name))
    }

    /// Returns the cells that have figures, with their names.
    pub fn told(&self) -> impl Iterator<Item = (&str, &'a CellRecord)> {
        self.named().filter(|(_, cell)| !cell.metrics.is_empty())
    }

    /// Returns the summary lines over groups of cells, except the line over all cells.
    pub fn groups<'s>(&'s self, metric: &'s str) -> impl Iterator<Item = &'a OverallRecord> + 's {
        let all = self.overall(metric).find(|line| line.group == "all");
        self.overall(metric).filter(move |line| {
            let OverallRecord { better, worse, same, unclear, nothing, .. } = **line;
            let repeats = |all: &OverallRecord| {
                let group = line.group.clone();
                line.group != "all" && **line == OverallRecord { group, ..all.clone() }
            };
            [better, worse, same, unclear, nothing].into_iter().fold(0, usize::saturating_add) > 1
                && !all.is_some_and(repeats)
        })
    }

    /// Returns the summary lines over groups of cells: all cells, and the cells of each value of
    /// each factor with several.
    pub fn overall<'s>(&'s self, metric: &'s str) -> impl Iterator<Item = &'a OverallRecord> + 's {
        self.run.overall.iter().filter(move |line| line.metric == metric)
    }

    /// Returns the published values.
    pub fn fixed_points(&self) -> &[FixedPoint] {
        self.experiment.as_ref().map_or(&[], |experiment| &experiment.fixed_points)
    }

    /// Returns the numbers of pairs whose rates count, whose costs count, and of all pairs.
    pub fn pairs(&self) -> (usize, usize, usize) {
        let all = || self.run.cells.iter().flat_map(|cell| &cell.pairs);
        let costs = all().filter(|pair| pair.cost_accepted).count();
        (all().filter(|pair| pair.accepted).count(), costs, all().count())
    }

    /// Returns the largest noise floor of the headline in per cent: the largest difference between
    /// identical code.
    pub fn floor_pct(&self) -> Option<f64> {
        let name = &self.headline()?.name;
        let floors = self.run.cells.iter().filter_map(|cell| {
            cell.metrics.get(name)?.aa_half_width_pct.filter(|width| width.is_finite())
        });
        floors.reduce(f64::max)
    }
}

/// Returns `change=both rate=fixed`, in the order of the experiment's factors if it is known.
fn name_of(cell: &CellRecord, experiment: Option<&Experiment>) -> String {
    let factors = experiment.map_or(&[][..], |experiment| &experiment.factors);
    let place = |name: &str| factors.iter().position(|f| f.name == name).unwrap_or(usize::MAX);
    let mut at: Vec<(&String, &String)> = cell.at.iter().collect();
    at.sort_by_key(|(factor, _)| place(factor));
    let each: Vec<String> =
        at.iter().map(|(factor, level)| format!("{}={}", short(factor), short(level))).collect();
    each.join(" ")
}

/// One side of a cell.
#[derive(Clone, Copy)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    fn of(self, pair: &PairRecord) -> &Window {
        match self {
            Side::A => &pair.a,
            Side::B => &pair.b,
        }
    }

    /// Returns the windows of the pairs whose rates count if the clock is the wall's, else whose
    /// costs count: those of the effects.
    pub fn windows(self, cell: &CellRecord, clock: Clock) -> impl Iterator<Item = &Window> {
        admitted(clock, &cell.pairs).into_iter().map(move |pair| self.of(pair))
    }

    /// Returns the sum of a figure; `None` if a window lacks it, or no window counts.
    pub fn sum(self, cell: &CellRecord, name: &str) -> Option<f64> {
        let figures = self.windows(cell, Clock::Cost).map(|window| window.figure(name));
        let sum = figures.reduce(|sum, figure| Some(sum? + figure?)).flatten()?;
        sum.is_finite().then_some(sum)
    }
}

/// Returns the numbers of the workers with separate figures in a cell: 0 and 1 for `allocs_w0` and
/// `allocs_w1`.
pub(super) fn workers(cell: &CellRecord) -> Vec<usize> {
    let windows = cell.pairs.iter().flat_map(|pair| [&pair.a, &pair.b]);
    let names = windows.flat_map(|window| window.figures.keys());
    let numbers = names.filter_map(|name| name.strip_prefix("allocs_w")?.parse().ok());
    numbers.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// A metric of a run.
pub(super) struct Shown {
    /// The metric's key in the document.
    pub name: String,
    /// The metric's name as shown.
    pub label: String,
    /// The metric's unit.
    pub unit: String,
    /// A description of the metric, in a sentence; empty if there is none.
    pub about: String,
    /// The formula for a window; `None` if the experiment's file is not available.
    formula: Option<Formula>,
    /// The clock of the metric; `None` if the experiment's file is not available.
    pub clock: Option<Clock>,
}

/// A pair's ratio, with whether the pair is admitted for the metric.
pub(super) struct Ratio {
    /// The pair's number, from 0.
    pub pair: usize,
    /// The second side's change from the first, in per cent.
    pub change_pct: f64,
    /// True if the pair is in the metric's figures.
    pub accepted: bool,
    /// True if the pair was admitted and is in no figure, because its CPUs were at another distance
    /// from each other than those of most pairs.
    pub elsewhere: bool,
}

impl Ratio {
    /// Returns the CSS class of the pair's mark.
    pub fn class(&self) -> &'static str {
        match (self.accepted, self.elsewhere) {
            (true, _) => "pair",
            (false, true) => "elsewhere",
            (false, false) => "rejected",
        }
    }
}

impl Shown {
    /// Returns the changes of the pairs, in order; pairs without a ratio are left out.
    pub fn ratios(&self, pairs: &[PairRecord]) -> Vec<Ratio> {
        self.each(pairs, |pair| Some(&pair.b))
    }

    /// Returns the changes of the control against the first side.
    pub fn control_ratios(&self, pairs: &[PairRecord]) -> Vec<Ratio> {
        self.each(pairs, |pair| pair.control.as_ref())
    }

    /// Returns true if the metric uses events of the CPU.
    pub fn needs_events(&self) -> bool {
        let mut figures = self.formula.iter().flat_map(Formula::figures);
        figures.any(|figure| figure.starts_with("pmu."))
    }

    /// Returns the formula of [`Shown::ratios`], for a caption.
    pub fn basis(&self) -> &str {
        if self.formula.is_some() { &self.label } else { "cost_ns / packets" }
    }

    /// Returns the control's median and interval, if the ratios are of this metric.
    pub fn aa_pct(&self, cell: &CellRecord) -> Option<(f64, f64, f64)> {
        self.formula.as_ref()?;
        cell.metrics.get(&self.name)?.aa_pct
    }

    /// Returns the effect's interval in per cent.
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
        let clock = self.clock.unwrap_or(Clock::Cost);
        // The admitted pairs are in the same order as all pairs.
        let mut ours = admitted(clock, pairs).into_iter().peekable();
        let ratio = |(i, pair): (usize, &'p PairRecord)| {
            let accepted = ours.next_if(|one| std::ptr::eq(*one, pair)).is_some();
            let is_admitted = match clock {
                Clock::Wall => pair.accepted,
                Clock::Cost | Clock::Count => pair.cost_accepted,
            };
            let elsewhere = is_admitted && !accepted;
            let change_pct = 100.0 * (value(other(pair)?)? / value(&pair.a)? - 1.0);
            change_pct.is_finite().then_some(Ratio { pair: i, change_pct, accepted, elsewhere })
        };
        pairs.iter().enumerate().filter_map(ratio).collect()
    }
}

/// Returns the metrics: the experiment's in its order, then those that only the document has.
pub(super) fn metrics(run: &Run, experiment: Option<&Experiment>) -> Vec<Shown> {
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
