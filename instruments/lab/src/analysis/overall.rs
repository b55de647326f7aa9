//! Lines over groups of cells.

use linerate_seeds::stats::{Goal, Overall, Pair, geometric_mean};

use crate::analysis::samples::noisy;
use crate::experiment::{Experiment, Metric};
use crate::record::{CellRecord, Effect, OverallRecord, Verdict};

/// Lines over groups of cells: all, and each value of each factor that has several.
///
/// Only metrics of which one direction is better have such lines. The sum is of the cells' figures,
/// as printed; the geometric mean is of their changes, which are of pairs. Cells that were too noisy
/// are counted as unclear, and are in neither.
#[must_use]
pub fn overall(experiment: &Experiment, cells: &[CellRecord]) -> Vec<OverallRecord> {
    let goals = experiment.metrics.iter().filter_map(|metric| Some((metric, metric.goal?)));
    let lines = goals.flat_map(|(metric, goal)| {
        let all = std::iter::once(("all".to_owned(), cells.iter().collect()));
        let groups = all.chain(levels(experiment, cells));
        groups.filter_map(move |(group, cells)| line(metric, goal, group, &cells))
    });
    lines.collect()
}

/// Cells by factor and value.
fn levels<'a>(
    experiment: &'a Experiment,
    cells: &'a [CellRecord],
) -> impl Iterator<Item = (String, Vec<&'a CellRecord>)> {
    let several = experiment.factors.iter().filter(|factor| factor.levels.len() > 1);
    several.flat_map(move |factor| {
        factor.levels.iter().map(move |level| {
            let has = |cell: &&CellRecord| cell.at.get(&factor.name) == Some(&level.name);
            (format!("{}={}", factor.name, level.name), cells.iter().filter(has).collect())
        })
    })
}

/// `None` if no cell of the group has the metric, or its figures have no ratio.
fn line(
    metric: &Metric,
    goal: Goal,
    group: String,
    cells: &[&CellRecord],
) -> Option<OverallRecord> {
    let with: Vec<(&CellRecord, &Effect)> =
        cells.iter().filter_map(|cell| Some((*cell, cell.metrics.get(&metric.name)?))).collect();
    let quiet = with.iter().filter(|(cell, _)| !noisy(metric.clock, &cell.pairs));
    let quiet: Vec<&Effect> = quiet.map(|(_, effect)| *effect).collect();
    let figures: Vec<Pair> =
        quiet.iter().map(|effect| Pair { before: effect.a, after: effect.b }).collect();
    let ratios: Vec<f64> = quiet.iter().map(|effect| 1.0 + effect.change_pct / 100.0).collect();
    let sums = Overall::of(&figures, goal, 0.0);
    // Nothing before and nothing after is no change.
    let nothing = !figures.is_empty() && sums.before == 0.0 && sums.after == 0.0;
    let count = |verdict| with.iter().filter(|(_, effect)| effect.verdict == verdict).count();
    Some(OverallRecord {
        metric: metric.name.clone(),
        group,
        sum_ratio_pct: sums.sums_pct.or(nothing.then_some(0.0))?,
        geomean_pct: 100.0 * (geometric_mean(&ratios)? - 1.0),
        better: count(Verdict::Better),
        worse: count(Verdict::Worse),
        same: count(Verdict::Same),
        unclear: count(Verdict::Unclear),
    })
}
