//! The metrics of a run, and the ratios of single pairs that they are from.

use std::collections::BTreeMap;

use super::words::{short, shown};
use crate::experiment::{Clock, Experiment, Formula};
use crate::record::{CellRecord, Effect, PairRecord, Run};
use crate::window::Window;

/// A metric of a run.
pub(super) struct Shown {
    /// Its key in the document.
    pub name: String,
    /// Its name, as shown.
    pub label: String,
    /// Its unit.
    pub unit: String,
    /// A description of the metric, in a sentence; empty if there is none.
    pub about: String,
    /// The formula for a window; `None` if the experiment's file is not available.
    formula: Option<Formula>,
    /// The clock of the metric; `None` if the experiment's file is not available.
    pub clock: Option<Clock>,
}

/// A ratio of one pair, of those that a metric can be taken from.
pub(super) struct Ratio {
    /// The pair's number, from 0.
    pub pair: usize,
    /// The second side's change from the first, in per cent.
    pub change_pct: f64,
    /// True if the pair was admitted.
    pub accepted: bool,
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

    /// Returns true if the metric is computed from events of the CPU.
    pub fn needs_events(&self) -> bool {
        let mut figures = self.formula.iter().flat_map(Formula::figures);
        figures.any(|figure| figure.starts_with("pmu."))
    }

    /// Returns the formula of [`Shown::ratios`], for a caption.
    pub fn basis(&self) -> &str {
        if self.formula.is_some() { &self.label } else { "cost_ns / packets" }
    }

    /// The control's median and interval, if the ratios are of this metric.
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
