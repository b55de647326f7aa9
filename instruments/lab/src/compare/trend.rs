//! Trend of a metric over many runs, for instance over a program's versions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::row::{apart, placement};
use super::side::{LEVEL, Side, differences};
use super::{experiment, refused, settings};
use crate::experiment::{Cell, Clock, Experiment, Metric};
use crate::record::{CellRecord, Run, resumed_parts};
use crate::{Result, analysis};

/// A metric of the changed side over several runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trend {
    /// The metric.
    pub metric: String,
    /// The metric's unit.
    pub unit: String,
    /// The cell, as `rate=max`; empty without factors.
    pub cell: String,
    /// A point for each run that has the metric and in which its value is not a bound, in the order
    /// in which the runs started.
    pub points: Vec<TrendPoint>,
}

/// The metric's figure in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrendPoint {
    /// The commit or version of the program, else the run's name.
    pub label: String,
    /// When the run was started, RFC 3339.
    pub started: String,
    /// The changed side's median.
    pub value: f64,
    /// The lower end of the 95 % confidence interval.
    pub lo: f64,
    /// The upper end of the interval.
    pub hi: f64,
    /// The reasons why the point cannot be compared with that of the newest run; `None` if there
    /// are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// Computes the trend of each metric of each cell of the newest run, over all of `runs`.
///
/// A run in which a metric was computed in another way is no point of it. Nor is one whose changed
/// side counted nothing, or has a lower bound for its value.
///
/// # Errors
/// `E-RUN` if they are not all of one experiment, or one has not kept its file.
pub fn trends(runs: &[Run]) -> Result<Vec<Trend>> {
    trends_of(&runs.iter().collect::<Vec<_>>())
}

/// Computes the trends over selected runs; see [`trends`].
pub(crate) fn trends_of(runs: &[&Run]) -> Result<Vec<Trend>> {
    over(runs.iter().map(|run| Ok((*run, experiment(run)?))).collect::<Result<Vec<_>>>()?)
}

fn over(mut runs: Vec<(&Run, Experiment)>) -> Result<Vec<Trend>> {
    runs.sort_by(|(one, _), (other, _)| one.run.started.cmp(&other.run.started));
    let Some((reference, newest)) = runs.last() else { return Ok(Vec::new()) };
    if let Some((run, other)) = runs.iter().find(|(_, one)| one.id != newest.id) {
        let why = format!("{} is of {:?}, others of {:?}", run.run.id, other.id, newest.id);
        return Err(refused(why));
    }
    let grid = newest.cells.iter().flat_map(|cell| newest.metrics.iter().map(move |m| (cell, m)));
    let trends = grid.map(|(cell, metric)| {
        let alike = runs.iter().filter(|(_, one)| {
            one.metrics
                .iter()
                .any(|other| other.name == metric.name && other.formula == metric.formula)
        });
        let reference = (*reference, Some(newest));
        let of_run =
            |(run, one): &(&Run, Experiment)| point((*run, Some(one)), reference, cell, metric);
        let points = alike.filter_map(of_run).collect();
        let (name, unit) = (metric.name.clone(), metric.unit.clone());
        Trend { metric: name, unit, cell: cell.name(), points }
    });
    Ok(trends.filter(|trend| !trend.points.is_empty()).collect())
}

/// A run with its experiment; `None` if its file is not available.
pub(crate) type Known<'a> = (&'a Run, Option<&'a Experiment>);

fn point(
    known: Known<'_>,
    reference: Known<'_>,
    cell: &Cell,
    metric: &Metric,
) -> Option<TrendPoint> {
    let run = known.0;
    let record = run.cells.iter().find(|record| {
        let has = |(factor, level): &(String, String)| record.at.get(factor) == Some(level);
        record.at.len() == cell.at.len() && cell.at.iter().all(has)
    })?;
    // If the run withheld the metric in this cell, the trend has no point for it.
    let effect = record.metrics.get(&metric.name)?;
    let side = Side::of(metric, &record.pairs, LEVEL)?;
    // A reader would take a bound for a measured value.
    if effect.at_least[1] || side.censored {
        return None;
    }
    let (lo, hi) = side.range();
    let started = run.run.started.clone();
    let finite = [side.value, lo, hi].iter().all(|x| x.is_finite());
    let remark = unlike(reference, known, &record.at, Some(metric.clock));
    finite.then(|| TrendPoint { label: label(run), started, value: side.value, lo, hi, remark })
}

/// Returns the reasons why metrics of `clock` in the cell `at` of `run` cannot be compared with
/// those of `reference`, by the rules of a comparison; `None` if there are none. A metric whose
/// clock is not known may be a time. Settings are compared if both experiments are known.
pub(crate) fn unlike(
    (reference, newest): Known<'_>,
    (run, own): Known<'_>,
    at: &BTreeMap<String, String>,
    clock: Option<Clock>,
) -> Option<String> {
    let clock = clock.unwrap_or(Clock::Cost);
    let mut why = Vec::new();
    let deciding = differences(reference, run).into_iter().filter(|one| one.decides);
    let another = |name: String| match name.as_str() {
        "mitigations" => "other mitigations".to_owned(),
        name => format!("another {name}"),
    };
    if clock != Clock::Count {
        why.extend(deciding.map(|one| another(one.name)));
    }
    let both = newest.zip(own);
    if both.is_some_and(|(newest, own)| settings::differ(at, (reference, newest), (run, own))) {
        why.push("other settings".into());
    }
    let [here, there] = [run, reference].map(|run| run.cells.iter().find(|cell| cell.at == *at));
    // A cell without admitted pairs has no placement that could differ.
    let is_placed = |cell: &CellRecord| !analysis::admitted(clock, &cell.pairs).is_empty();
    let both = here.zip(there).filter(|(here, there)| is_placed(here) && is_placed(there));
    if let Some((here, there)) = both {
        let class = placement(clock, here);
        if class != placement(clock, there) {
            let apart = match class.as_deref() {
                Some("near") => "near each other".to_owned(),
                Some("far") => "far from each other".to_owned(),
                other => apart(other),
            };
            why.push(format!("the CPUs were {apart}"));
        }
    }
    if here.is_some_and(|cell| analysis::noisy(clock, cell)) {
        why.push("most pairs were disturbed".into());
    }
    if here.is_some_and(|cell| cell.is_unfinished) {
        why.push("the run ended before the cell did".into());
    }
    if let Some(parts) = resumed_parts(run, clock) {
        why.push(format!("windows are of {parts}"));
    }
    (!why.is_empty()).then(|| why.join("; "))
}

/// Returns the label of a run: the commit of the program, its version, or the run's own name.
pub(super) fn label(run: &Run) -> String {
    let known = |name: &str| run.run.tool.get(name).filter(|text| *text != "unknown");
    let commit = known("commit").map(|commit| commit.chars().take(12).collect());
    commit.or_else(|| known("version").cloned()).unwrap_or_else(|| run.run.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, pair, run_of};
    use crate::record::{PlacementRecord, Warning};
    use serde_json::json;

    fn run(started: &str, commit: &str, cost: f64) -> Run {
        let mut run = run_of(&[vec![pair(100.0, cost, 100.0); 15]]);
        run.run.started = started.into();
        run.run.tool.insert("commit".into(), commit.into());
        analyse(&experiment(), &mut run);
        run
    }

    #[test]
    fn trend_points_are_ordered_by_run_and_labelled_by_commit() {
        let runs = [run("2026-02-01", "b0b", 90.0), run("2026-01-01", "a0a", 95.0)];
        let trends = over(runs.iter().map(|run| (run, experiment())).collect()).unwrap();
        let [trend] = &trends[..] else { panic!("{trends:?}") };
        assert_eq!((trend.cell.as_str(), trend.unit.as_str()), ("rate=max", "ns/packet"));
        let points = trend.points.iter().map(|point| (point.label.as_str(), point.value));
        let points: Vec<(&str, f64)> =
            points.map(|(label, value)| (label, (value * 1e6).round())).collect();
        assert_eq!(points, [("a0a", 95_000.0), ("b0b", 90_000.0)]);
    }

    #[test]
    fn points_of_another_machine_placement_setting_or_of_disturbed_cells_have_a_remark() {
        let mut runs = ["1", "2", "3", "4", "5"].map(|started| run(started, "a", 90.0));
        runs[0].env = json!({"kernel": "6.1"});
        let disturbed = runs[1].cells[0].pairs.iter_mut().skip(7);
        disturbed.for_each(|pair| pair.cost_accepted = false);
        for pair in &mut runs[2].cells[0].pairs {
            let (before_ticks, after_ticks) = (100.0, 100.0);
            pair.placement =
                Some(PlacementRecord { before_ticks, after_ticks, class: "far".into() });
        }
        let mut known: Vec<_> = runs.iter().map(|run| (run, experiment())).collect();
        for cell in &mut known[3].1.cells {
            cell.b = cell.b.clone().with("message", 1448);
        }
        let trends = over(known).unwrap();
        let remarks = trends[0].points.iter().map(|point| point.remark.as_deref());
        let expected = [
            Some("another kernel"),
            Some("most pairs were disturbed"),
            Some("the CPUs were far from each other"),
            Some("other settings"),
            None,
        ];
        assert_eq!(remarks.collect::<Vec<_>>(), expected);
        // Counts do not depend on the machine.
        let at = &runs[0].cells[0].at;
        let both = ((&runs[4], None), (&runs[0], None));
        assert_eq!(unlike(both.0, both.1, at, Some(Clock::Count)), None);
    }

    #[test]
    fn point_of_a_run_of_two_builds_has_a_remark_and_one_without_pairs_has_no_distance() {
        let mut runs = ["1", "2", "3"].map(|started| run(started, "a", 90.0));
        let text = "resumed at 2 by another build: build_id ab, now cd".to_owned();
        runs[0].warnings = vec![Warning { code: "W-MACHINE".into(), text, fix: None }];
        runs[1].cells[0].pairs.clear();
        for pair in &mut runs[2].cells[0].pairs {
            let class = "near".into();
            pair.placement = Some(PlacementRecord { before_ticks: 50.0, after_ticks: 50.0, class });
        }
        let of = |i: usize| {
            let at = &runs[i].cells[0].at;
            unlike((&runs[2], None), (&runs[i], None), at, Some(Clock::Cost))
        };
        let unmeasured = "the CPUs were at a distance that was not measured";
        assert_eq!(of(0), Some(format!("{unmeasured}; windows are of two builds")));
        assert_eq!(of(1), None);
        assert_eq!(of(2), None);
    }

    #[test]
    fn runs_of_different_experiments_have_no_trend() {
        let runs = [run("1", "a", 1.0), run("2", "b", 2.0)];
        let other = Experiment { id: "skbinit".into(), ..experiment() };
        let mixed = over(vec![(&runs[0], experiment()), (&runs[1], other)]);
        assert!(mixed.unwrap_err().why.contains("skbinit"));
        assert_eq!(over(Vec::new()), Ok(Vec::new()));
    }

    #[test]
    fn a_point_has_its_median_between_the_ends_of_its_interval() {
        let mut one = run("1", "a", 90.0);
        let costs = (0..15).map(|i| pair(100.0, 90.0 + f64::from(i), 100.0));
        one.cells[0].pairs = costs.collect();
        let trends = over(vec![(&one, experiment())]).unwrap();
        let TrendPoint { value, lo, hi, .. } = &trends[0].points[0];
        assert!(lo < value && value < hi, "{lo} {value} {hi}");
        assert!((value - 0.097).abs() < 1e-9, "{value}");
    }

    #[test]
    fn a_run_that_withheld_the_metric_or_computed_it_in_another_way_is_no_point() {
        let mut runs = ["1", "2", "3"].map(|started| run(started, started, 90.0));
        runs[0].cells[0].metrics.clear();
        let mut known: Vec<_> = runs.iter().map(|run| (run, experiment())).collect();
        known[1].1.metrics[0].formula.scale = 1e3;
        let trends = over(known).unwrap();
        let labels: Vec<&str> = trends[0].points.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["3"]);
    }

    #[test]
    fn a_run_whose_value_is_a_bound_is_no_point() {
        let mut losses = experiment();
        losses.metrics[0].clock = Clock::Count;
        let mut runs = ["1", "2", "3"].map(|started| run(started, started, 90.0));
        runs[0].cells[0].pairs = vec![pair(100.0, 0.0, 100.0); 15];
        analyse(&losses, &mut runs[0]);
        let [ended, at_least, _] = &mut runs;
        let metric = "cost_ns_per_packet";
        assert_eq!(ended.cells[0].metrics[metric].bounds(), [false, true]);
        at_least.cells[0].metrics.get_mut(metric).unwrap().at_least[1] = true;
        let trends = over(runs.iter().map(|run| (run, losses.clone())).collect()).unwrap();
        let labels: Vec<&str> = trends[0].points.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["3"]);
    }
}
