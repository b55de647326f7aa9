//! Summary lines over groups of cells.

use linerate_seeds::stats::{geometric_mean, weighted_mean};

use crate::analysis::pct;
use crate::analysis::samples::is_valid;
use crate::experiment::{Experiment, Metric};
use crate::record::{CellRecord, Effect, OverallRecord, Verdict};

/// Returns the summary lines over groups of cells: one over all cells, and one over the cells of
/// each value of a factor that has several values.
///
/// Only metrics of which one direction is better have such lines. The change of the sum is the mean
/// of the cells' changes, each weighted by the cell's share of the first side's sum; the geometric
/// mean gives all changes the same weight. Both are of the cells' own changes, which are of pairs:
/// of one cell, each is the cell's change. The ratio of the sums of both sides' figures would not
/// be, because the ratio of two medians is not the median of the pairs' ratios. Cells that were too
/// noisy are counted as unclear, and are in neither. Cells in which neither side counted anything
/// are in neither, too, and are counted apart. With a cell whose change is a bound, because one
/// side counted nothing or its value is a lower bound, both are made of bounds: they have no
/// interval then.
#[must_use]
pub fn overall(experiment: &Experiment, cells: &[CellRecord]) -> Vec<OverallRecord> {
    let metrics = experiment.metrics.iter().filter(|metric| metric.goal.is_some());
    let lines = metrics.flat_map(|metric| {
        let all = std::iter::once(("all".to_owned(), cells.iter().collect()));
        let groups = all.chain(levels(experiment, cells));
        groups.filter_map(move |(group, cells)| line(metric, group, &cells))
    });
    lines.collect()
}

/// Groups the cells by factor and value.
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

/// Returns the line of a group; `None` if no cell of the group has the metric, or its figures have
/// no ratio.
fn line(metric: &Metric, group: String, cells: &[&CellRecord]) -> Option<OverallRecord> {
    let with: Vec<(&CellRecord, &Effect)> =
        cells.iter().filter_map(|cell| Some((*cell, cell.metrics.get(&metric.name)?))).collect();
    let is_quiet = |cell: &CellRecord| is_valid(metric.clock, cell);
    let (nothing, with): (Vec<_>, Vec<_>) =
        with.into_iter().partition(|(cell, effect)| is_quiet(cell) && effect.is_of_nothing());
    let quiet = with.iter().filter(|(cell, _)| is_quiet(cell));
    let quiet: Vec<&Effect> = quiet.map(|(_, effect)| *effect).collect();
    let ratios: Vec<f64> = quiet.iter().map(|effect| 1.0 + effect.change_pct / 100.0).collect();
    let count = |verdict| with.iter().filter(|(_, effect)| effect.verdict == verdict).count();
    let is_bound =
        |effect: &&&Effect| effect.censored_below.is_some() || effect.at_least.contains(&true);
    let censored = quiet.iter().filter(is_bound).count();
    let known = (censored == 0).then_some(&*quiet);
    let sum_ratio_pct = sum_pct(&quiet)?;
    let geomean_pct = 100.0 * (geometric_mean(&ratios)? - 1.0);
    Some(OverallRecord {
        metric: metric.name.clone(),
        group,
        sum_ratio_pct,
        geomean_pct,
        sum_ci95_pct: known.and_then(|quiet| sum_interval(sum_ratio_pct, quiet)),
        geomean_ci95_pct: known.and_then(|quiet| mean_interval(geomean_pct, quiet)),
        censored,
        nothing: nothing.len(),
        better: count(Verdict::Better),
        worse: count(Verdict::Worse),
        same: count(Verdict::Same),
        unclear: count(Verdict::Unclear),
    })
}

// Instead of standard errors, this method uses the distances from an estimate to both ends of its
// interval. For a sum of independent estimates, each distance is the root of the sum of squares,
// separately for each end, so that intervals may be asymmetric.
//
// Source: Zou and Donner, "Construction of confidence limits about effect measures: a general
// approach", Statistics in Medicine 27 (2008), the method of variance estimates recovery.

/// Returns the interval of `sum`, from its terms, each an estimate with its interval.
fn recovered(sum: f64, terms: impl Iterator<Item = (f64, f64, f64)>) -> Option<(f64, f64)> {
    let (below, above) = terms.fold((0.0_f64, 0.0_f64), |(below, above), (at, low, high)| {
        (below + (at - low).powi(2), above + (high - at).powi(2))
    });
    let ends = (sum - below.sqrt(), sum + above.sqrt());
    (ends.0.is_finite() && ends.1.is_finite()).then_some(ends)
}

/// Returns the change of a sum, in per cent: the mean of the cells' changes, each weighted by the
/// cell's share of the first side's sum. Returns `None` if that sum is 0.
fn sum_pct(effects: &[&Effect]) -> Option<f64> {
    weighted_mean(&effects.iter().map(|effect| (effect.change_pct, effect.a)).collect::<Vec<_>>())
}

/// Returns the interval of the change of a sum, from the intervals of the cells' changes. The
/// shares are those that were measured; the interval does not contain their own uncertainty.
fn sum_interval(sum_pct: f64, effects: &[&Effect]) -> Option<(f64, f64)> {
    let all: f64 = effects.iter().map(|effect| effect.a).sum();
    let terms = effects.iter().map(|effect| {
        let share = effect.a / all;
        let (low, high) = effect.ci95_pct;
        (share * effect.change_pct, share * low, share * high)
    });
    recovered(sum_pct, terms)
}

/// Returns the interval of the geometric mean of the cells' changes, which is the mean of
/// logarithms.
fn mean_interval(mean_pct: f64, effects: &[&Effect]) -> Option<(f64, f64)> {
    let log = |pct: f64| (pct / 100.0).ln_1p();
    let each = 1.0 / effects.len() as f64;
    let terms = effects.iter().map(|effect| {
        let (low, high) = effect.ci95_pct;
        (each * log(effect.change_pct), each * log(low), each * log(high))
    });
    let (low, high) = recovered(log(mean_pct), terms)?;
    Some((pct(low), pct(high)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::median;
    use crate::analysis::signs::median_interval;
    use crate::random::Random;

    fn effect(a: f64, change_pct: f64, ci95_pct: (f64, f64)) -> Effect {
        Effect { a, b: a * (1.0 + change_pct / 100.0), change_pct, ci95_pct, ..Effect::default() }
    }

    #[test]
    fn the_interval_of_equal_cells_narrows_by_the_root_of_their_number() {
        let one = effect(100.0, -10.0, (-12.0, -9.0));
        let (low, high) = sum_interval(-10.0, &[&one; 4]).unwrap();
        assert!((low + 11.0).abs() < 1e-9 && (high + 9.5).abs() < 1e-9, "{low} {high}");
        let (low, high) = mean_interval(-10.0, &[&one]).unwrap();
        assert!((low + 12.0).abs() < 1e-9 && (high + 9.0).abs() < 1e-9, "{low} {high}");
        let dear = effect(1e6, -10.0, (-10.0, -10.0));
        let (low, high) = sum_interval(-10.0, &[&one, &dear]).unwrap();
        assert!(high - low < 0.001, "a dear cell decides the sum");
    }

    #[test]
    fn a_cell_without_an_end_leaves_the_line_without_an_interval() {
        let one = effect(100.0, -10.0, (-12.0, -9.0));
        let ended = effect(100.0, -100.0, (-100.0, -90.0));
        assert_eq!(mean_interval(-50.0, &[&one, &ended]), None);
        let endless = effect(100.0, 10.0, (5.0, f64::INFINITY));
        assert_eq!(sum_interval(0.0, &[&one, &endless]), None);
    }

    #[test]
    fn line_with_a_bound_has_no_interval_and_counts_it() {
        let metric = crate::analysis::testing::metric("losses");
        let cell = |effect: Effect| CellRecord {
            metrics: [(metric.name.clone(), effect)].into(),
            ..CellRecord::default()
        };
        // The first side of the second cell counted nothing: its interval ends at the change.
        let known = cell(effect(100.0, -10.0, (-12.0, -9.0)));
        let bound = effect(1.0, 300.0, (50.0, 300.0));
        let bound = cell(Effect { censored_below: Some(1.0), ..bound });
        let of = |cells: &[&CellRecord]| line(&metric, "all".into(), cells).unwrap();
        let both = of(&[&known, &bound]);
        assert_eq!((both.sum_ci95_pct, both.geomean_ci95_pct, both.censored), (None, None, 1));
        let alone = of(&[&known]);
        assert!(alone.sum_ci95_pct.is_some() && alone.geomean_ci95_pct.is_some());
        assert_eq!(alone.censored, 0);
        let text = serde_json::to_string(&alone).unwrap();
        assert!(!text.contains("censored"), "older readers know no such member: {text}");
    }

    /// Checks the interval of the mean by simulation: in runs of ten cells with 15 set-ups each,
    /// the 95 % interval contains the mean in 95 % of runs, within the error of 500 runs.
    #[test]
    fn the_interval_of_the_mean_holds_it_as_often_as_it_says() {
        let mut random = Random::new(7);
        let mut uniform = move || (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut held = 0;
        let runs = 500;
        for _ in 0..runs {
            let cells: Vec<(f64, Effect)> = (0..10)
                .map(|cell| {
                    let (truth, noise) =
                        (0.02 * f64::from(cell) - 0.1, 0.01 + 0.002 * f64::from(cell));
                    let mut logs: Vec<f64> = (0..15)
                        .map(|_| truth + noise * (uniform() + uniform() + uniform() - 1.5))
                        .collect();
                    logs.sort_by(f64::total_cmp);
                    let interval = median_interval(&logs, 0.95).unwrap();
                    let ends = (pct(interval.low), pct(interval.high));
                    (truth, effect(100.0, pct(median(&logs).unwrap()), ends))
                })
                .collect();
            let effects: Vec<&Effect> = cells.iter().map(|(_, effect)| effect).collect();
            let ratios: Vec<f64> = effects.iter().map(|one| 1.0 + one.change_pct / 100.0).collect();
            let mean = 100.0 * (geometric_mean(&ratios).unwrap() - 1.0);
            let truth = pct(cells.iter().map(|(truth, _)| truth).sum::<f64>() / 10.0);
            let (low, high) = mean_interval(mean, &effects).unwrap();
            held += usize::from(low <= truth && truth <= high);
        }
        assert!((92 * runs / 100..=99 * runs / 100).contains(&held), "{held} of {runs}");
    }

    #[test]
    fn cells_that_were_disturbed_or_cut_off_are_counted_as_unclear_and_are_in_no_sum() {
        let metric = crate::analysis::testing::metric("losses");
        let cell = |effect: Effect| CellRecord {
            metrics: [(metric.name.clone(), effect)].into(),
            ..CellRecord::default()
        };
        let quiet = cell(effect(100.0, -10.0, (-12.0, -9.0)));
        let cut = CellRecord { is_unfinished: true, ..cell(effect(100.0, 50.0, (40.0, 60.0))) };
        let found = line(&metric, "all".into(), &[&quiet, &cut]).unwrap();
        assert!((found.sum_ratio_pct + 10.0).abs() < 1e-9, "{found:?}");
        assert!((found.geomean_pct + 10.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.unclear, 2);
    }

    /// Checks a cell whose second figure is 21 % above the first, while its pairs say +8.3 %.
    #[test]
    fn a_group_of_one_cell_says_what_the_cell_says() {
        let metric = crate::analysis::testing::metric("cost");
        let paired = effect(1201.2, 8.3, (-1.0, 18.9));
        let metrics = [(metric.name.clone(), Effect { b: 1453.9, ..paired })].into();
        let cell = CellRecord { metrics, ..CellRecord::default() };
        let found = line(&metric, "all".into(), &[&cell]).unwrap();
        let near = |ours: f64, cells: f64| assert!((ours - cells).abs() < 1e-9, "{found:?}");
        near(found.sum_ratio_pct, 8.3);
        near(found.geomean_pct, 8.3);
        for (low, high) in [found.sum_ci95_pct.unwrap(), found.geomean_ci95_pct.unwrap()] {
            near(low, -1.0);
            near(high, 18.9);
        }
    }

    /// Checks a document of a version whose sums were of both sides' figures: the group of one cell
    /// stores +21.0 %, where the cell has +8.3 %.
    #[test]
    fn lines_of_a_kept_document_are_computed_from_its_cells() {
        let kept = "../../results/amd-family25-model1/bounce.json.gz";
        let run = crate::record::read(kept.as_ref()).unwrap();
        let (name, group) = ("reader_ns_per_packet", "placement=both");
        let is_ours = |line: &&OverallRecord| line.metric == name && line.group == group;
        let line = run.overall.iter().find(is_ours).unwrap();
        let cell = run.cells.iter().find(|cell| cell.at["placement"] == "both").unwrap();
        let paired = &cell.metrics[name];
        assert!((line.sum_ratio_pct - paired.change_pct).abs() < 1e-9, "{line:?}, not {paired:?}");
    }

    #[test]
    fn cells_that_counted_nothing_are_in_no_sum_and_are_counted_beside_it() {
        let metric = crate::analysis::testing::metric("losses");
        let cell = |effect: Effect| CellRecord {
            metrics: [(metric.name.clone(), effect)].into(),
            ..CellRecord::default()
        };
        let (more, nothing) = (cell(effect(10.0, 90.0, (50.0, 140.0))), cell(Effect::default()));
        let of = |cells: &[&CellRecord]| line(&metric, "all".into(), cells);
        let (alone, both) = (of(&[&more]).unwrap(), of(&[&more, &nothing, &nothing]).unwrap());
        assert_eq!((alone.nothing, both.nothing, both.unclear), (0, 2, 1));
        assert_eq!(OverallRecord { nothing: 0, ..both }, alone);
        assert_eq!(of(&[&nothing, &nothing]), None);
        assert!(!serde_json::to_string(&alone).unwrap().contains("nothing"));
    }

    #[test]
    fn a_sum_that_begins_at_nothing_has_no_change() {
        let begins = Effect { b: 1.0, ..Effect::default() };
        assert_eq!((sum_pct(&[&begins]), sum_pct(&[])), (None, None));
    }

    #[test]
    fn a_factor_with_one_level_has_no_line_of_its_own() {
        let mut experiment = crate::analysis::testing::experiment();
        experiment.factors[0].levels.truncate(1);
        let cell = CellRecord {
            at: [("rate".to_owned(), "max".to_owned())].into(),
            metrics: [("cost_ns_per_packet".to_owned(), effect(100.0, -10.0, (-12.0, -9.0)))]
                .into(),
            ..CellRecord::default()
        };
        let lines = overall(&experiment, &[cell]);
        assert_eq!(lines.iter().map(|line| line.group.as_str()).collect::<Vec<_>>(), ["all"]);
    }
}
