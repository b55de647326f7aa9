//! Tests of the analysis of a whole run.

use super::super::testing::{experiment, metric, pair, run_of};
use super::*;
use crate::experiment::Clock;
use crate::record::PlacementRecord;

fn codes(run: &Run) -> Vec<&str> {
    run.warnings.iter().map(|warning| warning.code.as_str()).collect()
}

fn effect_of(run: &Run, cell: usize) -> &Effect {
    &run.cells[cell].metrics["cost_ns_per_packet"]
}

#[test]
fn a_run_is_better_if_a_cell_is_and_none_is_worse() {
    let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15], vec![pair(50.0, 50.0, 50.0); 15]]);
    analyse(&experiment(), &mut run);
    assert_eq!(run.verdict, "better");
    assert_eq!(effect_of(&run, 0).verdict, Verdict::Better);
    assert_eq!(effect_of(&run, 1).verdict, Verdict::Same);
    let [all, max, fixed] = &run.overall[..] else { panic!("{:?}", run.overall) };
    assert_eq!((all.group.as_str(), all.better, all.same), ("all", 1, 1));
    assert!((all.sum_ratio_pct - -100.0 / 15.0).abs() < 1e-9, "{all:?}");
    assert!((all.geomean_pct - 100.0 * (0.9_f64.sqrt() - 1.0)).abs() < 1e-9, "{all:?}");
    assert_eq!((max.group.as_str(), fixed.group.as_str()), ("rate=max", "rate=fixed"));
    assert!((max.geomean_pct + 10.0).abs() < 1e-9 && fixed.geomean_pct.abs() < 1e-9);
    assert!(codes(&run).is_empty(), "{:?}", run.warnings);
    let noise = &run.env["noise"];
    assert_eq!(noise["pairs_attempted"], 30);
    assert_eq!(noise["aa_half_width_pct"], 0.0);
}

#[test]
fn the_chances_are_corrected_for_the_grid() {
    let cells = [vec![pair(100.0, 90.0, 100.0); 15], vec![pair(50.0, 51.0, 50.0); 15]];
    let mut run = run_of(&cells);
    analyse(&experiment(), &mut run);
    let least = 2_f64.powi(-14);
    assert_eq!(effect_of(&run, 0).p_holm, Some(2.0 * least));
    assert_eq!(run.verdict, "mixed");
}

#[test]
fn analysing_a_run_twice_changes_nothing() {
    let mut run = run_of(&[vec![pair(100.0, 90.0, 103.0); 5], vec![pair(50.0, 51.0, 50.0); 15]]);
    analyse(&experiment(), &mut run);
    let once = run.clone();
    analyse(&experiment(), &mut run);
    assert_eq!(run, once);
}

#[test]
fn a_cell_whose_pairs_were_mostly_disturbed_says_nothing() {
    let mut pairs = vec![pair(100.0, 50.0, 100.0); 30];
    pairs.iter_mut().skip(14).for_each(|pair| pair.cost_accepted = false);
    let mut run = run_of(&[pairs, vec![]]);
    analyse(&experiment(), &mut run);
    assert_eq!(run.cells[0].status, Status::Inconclusive);
    assert_eq!(
        (effect_of(&run, 0).verdict, run.verdict.as_str()),
        (Verdict::Unclear, "inconclusive")
    );
    assert_eq!(codes(&run), ["W-NOISY"]);
    assert_eq!(run.warnings[0].text, "rate=max: only 14 of 30 pairs were undisturbed");
}

#[test]
fn a_reader_is_warned_of_a_control_that_is_off_and_a_cell_that_lost_packets_has_no_effect() {
    let off = vec![pair(100.0, 50.0, 103.0); 15];
    let mut run = run_of(&[off.clone(), off]);
    run.cells[0].ledger.b.balanced = false;
    analyse(&experiment(), &mut run);
    assert_eq!(codes(&run), ["W-CONTROL"]);
    assert!(run.cells[0].metrics.is_empty(), "what was lost may have been what counts");
    assert_eq!(run.verdict, "better", "of the other: -50 % beside +3 %");
}

#[test]
fn a_reader_is_warned_of_pairs_too_few_to_say_anything() {
    let mut run = run_of(&[vec![pair(100.0, 50.0, 100.0); 5], vec![pair(1.0, 2.0, 1.0); 9]]);
    analyse(&experiment(), &mut run);
    assert_eq!(codes(&run), ["W-FEW-PAIRS"]);
    let said = "5 set-ups over 2 cells cannot show any difference as significant: 7 could";
    assert_eq!(run.warnings[0].text, said);
    assert_eq!((pairs_needed(1), pairs_needed(4), pairs_needed(24)), (6, 8, 10));
}

#[test]
fn the_last_look_is_taken_at_95_per_cent_and_an_early_one_at_99() {
    let costs = |n: i32| (0..n).map(|i| pair(100.0, 90.0 + f64::from(i % 7), 100.0)).collect();
    let width = |n, quick| {
        let mut run = run_of(&[costs(n)]);
        run.experiment.quick = quick;
        analyse(&experiment(), &mut run);
        super::super::half_width_pct(effect_of(&run, 0))
    };
    assert!(width(15, false) > width(15, true), "a quick run has one look");
    assert!(width(59, false) >= width(60, false));
}

/// Checks that a difference that is negative in some windows is withheld: leaving those windows
/// out would keep only the larger values.
#[test]
fn a_metric_that_is_negative_in_a_window_is_withheld_with_a_warning() {
    let mut pairs = vec![pair(100.0, 90.0, 100.0); 15];
    pairs[3] = pair(100.0, -1.0, 100.0);
    let mut run = run_of(&[pairs.clone(), vec![pair(100.0, 90.0, 100.0); 15]]);
    analyse(&experiment(), &mut run);
    assert!(run.cells[0].metrics.is_empty() && !run.cells[1].metrics.is_empty());
    assert_eq!(codes(&run), ["W-SIGN"]);
    let said = "rate=max: cost_ns_per_packet was negative in 1 of 45 windows: a difference of \
                two measured figures has no ratio";
    assert_eq!(run.warnings[0].text, said);
    pairs[3].cost_accepted = false;
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    assert_eq!((effect_of(&run, 0).n_pairs, codes(&run).len()), (14, 0), "not admitted");
}

/// Checks that windows without a figure do not vanish: a quantile is missing where too few packets
/// arrived, which are the worst windows of a side.
#[test]
fn a_metric_that_a_side_lacks_in_some_windows_is_withheld_with_a_warning() {
    let mut pairs = vec![pair(100.0, 90.0, 100.0); 15];
    pairs[3].b.figures.clear();
    let mut run = run_of(&[pairs.clone(), vec![pair(100.0, 90.0, 100.0); 15]]);
    analyse(&experiment(), &mut run);
    assert!(run.cells[0].metrics.is_empty() && !run.cells[1].metrics.is_empty());
    assert_eq!(codes(&run), ["W-MISSING"]);
    let said = "rate=max: cost_ns_per_packet is missing in 1 of 45 windows, often the worst: the \
                others alone would mislead";
    assert_eq!(run.warnings[0].text, said);
    pairs[3].cost_accepted = false;
    let mut run = run_of(&[pairs.clone()]);
    analyse(&experiment(), &mut run);
    assert_eq!((effect_of(&run, 0).n_pairs, codes(&run).len()), (14, 0), "not admitted");
    // A metric that one side does not have at all is no fault of its windows.
    pairs.iter_mut().for_each(|pair| pair.b.figures.clear());
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    assert!(run.cells[0].metrics.is_empty() && codes(&run).is_empty(), "{:?}", run.warnings);
}

#[test]
fn a_run_is_the_same_only_if_every_cell_that_can_run_here_says_so() {
    let same = vec![pair(100.0, 100.0, 100.0); 15];
    let mut none = same.clone();
    none[3] = pair(100.0, 0.0, 100.0);
    let mut run = run_of(&[same.clone(), none]);
    analyse(&experiment(), &mut run);
    assert_eq!((run.verdict.as_str(), codes(&run)), ("inconclusive", vec!["W-ZERO"]));
    let mut run = run_of(&[same, vec![]]);
    run.cells[1].status = Status::Unsupported;
    analyse(&experiment(), &mut run);
    assert_eq!(run.verdict, "same");
}

/// Checks that a side that delivered too little is not compared: it costs less because it did less.
#[test]
fn cell_whose_load_a_side_did_not_reach_keeps_only_the_share_that_arrived() {
    let mut loads = experiment();
    let mut achieved = metric("achieved_pct");
    achieved.name = "achieved_pct".into();
    (achieved.clock, achieved.goal) = (Clock::Count, None);
    achieved.formula.under.clear();
    achieved.expected.clear();
    loads.metrics.push(achieved);
    let pairs = |cost: f64, b_pct: f64| {
        let mut one = pair(100.0, cost, 100.0);
        let control = one.control.as_mut().unwrap();
        for (window, pct) in [(&mut one.a, 100.0), (&mut one.b, b_pct), (control, 100.0)] {
            window.figures.insert("achieved_pct".into(), pct);
        }
        vec![one; 15]
    };
    let run = |b_pct: f64, factor: &str| {
        let mut run = run_of(&[pairs(50.0, b_pct), pairs(100.0, 100.0)]);
        for (cell, level) in run.cells.iter_mut().zip(["100", "25"]) {
            cell.at = [(factor.to_owned(), level.to_owned())].into();
        }
        analyse(&loads, &mut run);
        run
    };
    let missed = run(97.9, "load");
    let [cell, other] = &missed.cells[..] else { panic!("{} cells", missed.cells.len()) };
    assert_eq!((cell.status, other.status), (Status::Unreachable, Status::Ok));
    assert_eq!(cell.metrics.keys().collect::<Vec<_>>(), ["achieved_pct"]);
    assert_eq!(missed.verdict, "same", "of the other cell");
    assert_eq!((missed.overall[0].better, missed.overall[0].same), (0, 1));
    let mut again = missed.clone();
    analyse(&loads, &mut again);
    assert_eq!(again, missed);
    let reached = run(98.0, "load");
    assert_eq!((reached.cells[0].status, reached.verdict.as_str()), (Status::Ok, "better"));
    let other = run(60.0, "rate");
    assert_eq!(other.cells[0].status, Status::Ok, "the share is no condition of this cell");
}

#[test]
fn whether_a_load_was_reached_is_told_by_the_windows_that_were_not_disturbed() {
    let mut loads = experiment();
    let mut achieved = Metric { name: "achieved_pct".into(), ..metric("achieved_pct") };
    (achieved.clock, achieved.goal) = (Clock::Count, None);
    achieved.formula.under.clear();
    achieved.expected.clear();
    loads.metrics.push(achieved);
    let arrived = |cost_accepted: bool, b_pct: f64| {
        let mut one = PairRecord { cost_accepted, ..pair(100.0, 50.0, 100.0) };
        let control = one.control.as_mut().unwrap();
        for (window, pct) in [(&mut one.a, 100.0), (&mut one.b, b_pct), (control, 100.0)] {
            window.figures.insert("achieved_pct".into(), pct);
        }
        one
    };
    let mut pairs = vec![arrived(true, 100.0); 7];
    pairs.extend(vec![arrived(false, 60.0); 10]);
    let mut run = run_of(&[pairs]);
    run.cells[0].attempts = Some(4);
    run.cells[0].at = [("load".to_owned(), "25".to_owned())].into();
    analyse(&loads, &mut run);
    assert_eq!((run.cells[0].status, run.cells[0].metrics.len()), (Status::Ok, 2));
}

#[test]
fn noise_floor_without_a_control_is_null() {
    let mut pairs = vec![pair(100.0, 90.0, 100.0); 15];
    pairs.iter_mut().for_each(|pair| pair.control = None);
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    assert!(run.env["noise"]["aa_half_width_pct"].is_null(), "{}", run.env);
    assert!(run.env["noise"].as_object().unwrap().contains_key("aa_half_width_pct"));
}

/// Checks that each metric has one estimate: a window of 0 does not turn a median of ratios
/// into a ratio of sums.
#[test]
fn a_window_without_any_withholds_a_ratio_and_is_part_of_a_sum() {
    let mut pairs = vec![pair(100.0, 90.0, 105.0); 15];
    pairs[0] = pair(100.0, 0.0, 5.0);
    let mut run = run_of(&[pairs.clone()]);
    analyse(&experiment(), &mut run);
    assert!(run.cells[0].metrics.is_empty() && codes(&run) == ["W-ZERO"], "{run:?}");
    let mut sums = experiment();
    sums.metrics[0].estimate = Some(Estimate::Sums);
    let mut run = run_of(&[pairs]);
    analyse(&sums, &mut run);
    let found = effect_of(&run, 0);
    assert!((found.change_pct - 100.0 * (14.0 * 90.0 / 1500.0 - 1.0)).abs() < 1e-9, "{found:?}");
    let (median, _, _) = found.aa_pct.unwrap();
    assert!((median - 100.0 * (1475.0 / 1500.0 - 1.0)).abs() < 1e-9, "{found:?}");
    let mut run = run_of(&[vec![pair(100.0, 0.0, 100.0); 15]]);
    analyse(&sums, &mut run);
    assert!(run.cells[0].metrics.is_empty(), "a cost of nothing has no bound");
}

/// Checks that losses in windows of wall time are treated as events: a change that ends them is
/// an effect and meets its expectation.
#[test]
fn losses_by_the_walls_clock_that_end_are_an_effect_and_meet_their_expectation() {
    let mut losses = experiment();
    losses.metrics[0].clock = Clock::Wall;
    losses.metrics[0].estimate = Some(Estimate::Events);
    losses.metrics[0].expected[0].change_pct = (-100.0, -99.0);
    let mut run = run_of(&[vec![pair(100.0, 0.0, 100.0); 15]]);
    analyse(&losses, &mut run);
    let found = effect_of(&run, 0);
    assert_eq!(found.censored_below, Some(1.0 / 15_000.0));
    assert_eq!((found.verdict, found.ci95_pct.0), (Verdict::Better, -100.0));
    let expected = found.expected.as_ref().unwrap();
    assert_eq!((expected.met, expected.certain), (true, true), "{found:?}");
}

/// Checks a change from nothing, which has no upper end: it meets no expectation that has one, and
/// ends no cell early.
#[test]
fn losses_that_begin_meet_no_expectation_with_an_upper_end() {
    let mut losses = experiment();
    losses.metrics[0].estimate = Some(Estimate::Events);
    losses.metrics[0].expected[0].change_pct = (0.0, 1e9);
    let mut run = run_of(&[vec![pair(0.0, 100.0, 0.0); 15]]);
    analyse(&losses, &mut run);
    let found = effect_of(&run, 0);
    assert_eq!((found.bounds(), found.verdict), ([true, false], Verdict::Worse));
    assert!(super::super::half_width_pct(found).is_infinite());
    let expected = found.expected.as_ref().unwrap();
    assert_eq!((expected.met, expected.certain), (true, false), "{found:?}");
}

#[test]
fn pairs_of_one_set_up_say_nothing_however_many_they_are() {
    let mut pairs: Vec<PairRecord> =
        (0..240).map(|i| pair(100.0, 95.0 + f64::from(i % 3), 100.0)).collect();
    pairs.iter_mut().for_each(|pair| pair.set_up = Some(0));
    for estimate in [None, Some(Estimate::Sums)] {
        let mut experiment = experiment();
        experiment.metrics[0].estimate = estimate;
        let mut run = run_of(&[pairs.clone()]);
        analyse(&experiment, &mut run);
        let found = effect_of(&run, 0);
        assert_eq!(
            (found.verdict, found.n_set_ups, found.p_holm),
            (Verdict::Unclear, Some(1), Some(1.0))
        );
        let (low, high) = found.ci95_pct;
        assert!(low <= found.change_pct && found.change_pct <= high, "{found:?}");
        assert_eq!(codes(&run), ["W-SET-UPS", "W-FEW-PAIRS"]);
        assert!(!found.expected.as_ref().unwrap().certain);
    }
    pairs.iter_mut().zip(0..).for_each(|(pair, i)| pair.set_up = Some(i / 30));
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    assert_eq!(
        (effect_of(&run, 0).verdict, effect_of(&run, 0).n_set_ups),
        (Verdict::Better, Some(8))
    );
}

#[test]
fn a_family_of_all_metrics_is_corrected_over_all_of_them() {
    let mut all = experiment();
    all.plan.family = Some(Family::Experiment);
    all.metrics.push(Metric { name: "other".into(), ..all.metrics[0].clone() });
    let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15]]);
    analyse(&all, &mut run);
    assert_eq!(effect_of(&run, 0).p_holm, Some(4.0 * 2_f64.powi(-14)), "two cells, two metrics");
}

#[test]
fn whether_an_expectation_was_met_is_certain_only_of_a_whole_interval() {
    // The test's experiment expects −30 to −10 %.
    let costs = |low: f64, step: f64, control: f64| -> Vec<PairRecord> {
        (0..15).map(|i| pair(100.0, low + step * f64::from(i), control)).collect()
    };
    let said = |pairs: Vec<PairRecord>| {
        let mut run = run_of(&[pairs]);
        analyse(&experiment(), &mut run);
        let expected = effect_of(&run, 0).expected.clone().unwrap();
        (expected.met, expected.certain)
    };
    assert_eq!(said(costs(80.0, 0.1, 100.0)), (true, true));
    assert_eq!(said(costs(95.0, 0.1, 100.0)), (false, true));
    assert_eq!(said(costs(84.0, 1.0, 100.0)), (false, false), "its interval is about the edge");
    assert_eq!(said(costs(75.0, 2.0, 100.0)), (true, false));
    assert_eq!(said(costs(80.0, 0.1, 110.0)), (true, true), "-27 % from the control");
    assert_eq!(said(costs(80.0, 0.1, 120.0)), (true, false), "-33 % from the control");
    let mut disturbed = costs(80.0, 0.1, 100.0);
    disturbed.iter_mut().skip(7).for_each(|pair| pair.cost_accepted = false);
    assert_eq!(said(disturbed), (true, false));
}

#[test]
fn width_of_an_interval_does_not_depend_on_the_change() {
    let width = |pairs: Vec<PairRecord>| {
        let mut run = run_of(&[pairs]);
        analyse(&experiment(), &mut run);
        super::super::half_width_pct(effect_of(&run, 0))
    };
    let noise = |i: i32| 1.0 + f64::from(i) / 1000.0;
    let of = |ratio: f64| -> Vec<PairRecord> {
        (0..15).map(|i| pair(100.0, 100.0 * ratio * noise(i), 100.0)).collect()
    };
    let turned = (0..15).map(|i| pair(100.0 * noise(i), 100.0, 100.0)).collect();
    let one = width(of(1.0));
    for other in [width(of(0.01)), width(of(20.0)), width(turned)] {
        assert!((one - other).abs() < 1e-9, "{one} and {other}");
    }
}

#[test]
fn foreign_and_stolen_time_are_shares_of_all_cpus() {
    let taken = |window: &mut Window| {
        (window.wall_ns, window.cpus) = (1_000_000_000, Some(2));
        (window.foreign_cpu_ns, window.steal_ticks) = (Some(40_000_000), Some(2));
    };
    let mut pair = pair(100.0, 90.0, 100.0);
    taken(&mut pair.a);
    taken(&mut pair.b);
    let control = pair.control.as_mut().unwrap();
    taken(control);
    control.foreign_cpu_ns = Some(100_000_000);
    let mut run = run_of(&[vec![pair; 15]]);
    run.env = json!({"cpus": [{"id": 0, "role": "dut"}]});
    analyse(&experiment(), &mut run);
    let noise = &run.env["noise"];
    let near = |name: &str, pct: f64| (noise[name].as_f64().unwrap() - pct).abs() < 1e-9;
    assert!(near("foreign_cpu_pct", 3.0), "{noise}");
    assert!(near("steal_pct", 100.0 * 2.0 * tick_ns() as f64 / 2e9), "{noise}");
}

#[test]
fn planned_cells_that_did_not_run_still_count_in_the_correction() {
    let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15]]);
    analyse(&experiment(), &mut run);
    assert_eq!(effect_of(&run, 0).p_holm, Some(2.0 * 2_f64.powi(-14)));
    let mut grid = experiment();
    grid.cells[1].quick = false;
    run.experiment.quick = true;
    analyse(&grid, &mut run);
    assert_eq!(effect_of(&run, 0).p_holm, Some(2_f64.powi(-14)), "one cell was planned");
}

#[test]
fn every_built_in_quick_plan_has_pairs_enough_to_say_something() {
    for (id, _) in crate::experiment::BUILTIN.iter() {
        let experiment = crate::experiment::builtin(id).unwrap();
        let needed = pairs_needed(experiment.family(true));
        let pairs = experiment.plan.quick_pairs as usize;
        assert!(pairs >= needed, "{id}: {pairs} pairs, of {needed}");
    }
}

#[test]
fn two_pairs_have_an_effect_and_one_has_none() {
    let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 2], vec![pair(100.0, 90.0, 100.0)]]);
    analyse(&experiment(), &mut run);
    assert_eq!(effect_of(&run, 0).n_pairs, 2);
    assert!(run.cells[1].metrics.is_empty(), "one pair has no spread");
}

#[test]
fn the_noise_floor_is_the_end_of_the_controls_interval_that_is_farther_from_zero() {
    let control = |i: i32| pair(100.0, 50.0, 103.0 + 0.1 * f64::from(i));
    let mut run = run_of(&[(0..15).map(control).collect()]);
    analyse(&experiment(), &mut run);
    let found = effect_of(&run, 0);
    let (_, low, high) = found.aa_pct.unwrap();
    assert!(low > 3.0 && found.aa_half_width_pct == Some(high), "{found:?}");
}

#[test]
fn an_effect_whose_control_has_no_ratio_is_withheld() {
    let mut pairs = vec![pair(100.0, 90.0, 100.0); 15];
    pairs[3] = pair(100.0, 90.0, 0.0);
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    assert!(run.cells[0].metrics.is_empty() && codes(&run) == ["W-ZERO"], "{run:?}");
}

/// Checks that an expectation is judged by an interval that holds for the whole family, and only
/// with as many set-ups as the family needs. The test's metric expects −30 to −10 %.
#[test]
fn an_expectation_is_certain_by_the_interval_of_the_whole_family() {
    let certain = |pairs: &[PairRecord], family: usize| {
        let look = Look { index: 0, of: 1, family };
        let at = [("rate".to_owned(), "max".to_owned())];
        effect(&metric("cost"), &at, pairs, look).unwrap().expected.unwrap().certain
    };
    let few = vec![pair(100.0, 80.0, 100.0); 8];
    assert_eq!((certain(&few, 4), certain(&few, 24)), (true, false), "8 and 10 are needed");
    let wide: Vec<PairRecord> =
        (0..15).map(|i| pair(100.0, 80.0 + 2.0 * f64::from(i - 7), 100.0)).collect();
    assert_eq!((certain(&wide, 1), certain(&wide, 100)), (true, false));
}

#[test]
fn pairs_of_the_other_class_that_lack_the_figure_have_no_effect_of_their_own() {
    let placed = |class: &str| {
        let class = class.to_owned();
        let placement = PlacementRecord { before_ticks: 50.0, after_ticks: 50.0, class };
        PairRecord { placement: Some(placement), ..pair(100.0, 90.0, 100.0) }
    };
    let mut pairs = vec![placed("near"); 15];
    pairs.extend(vec![placed("far"); 4]);
    let elsewhere = |pairs: &[PairRecord]| {
        let mut run = run_of(&[pairs.to_vec()]);
        analyse(&experiment(), &mut run);
        effect_of(&run, 0).elsewhere.clone()
    };
    assert_eq!(elsewhere(&pairs).unwrap().n_pairs, 4);
    pairs[17].b.figures.clear();
    assert_eq!(elsewhere(&pairs), None, "the three others would mislead");
}

#[test]
fn the_chance_of_a_disturbed_cell_is_one_whatever_its_pairs_say() {
    let mut pairs = vec![pair(100.0, 50.0, 100.0); 30];
    pairs.iter_mut().skip(14).for_each(|pair| pair.cost_accepted = false);
    let mut run = run_of(&[pairs, vec![pair(100.0, 90.0, 100.0); 15]]);
    analyse(&experiment(), &mut run);
    let chances = [0, 1].map(|cell| effect_of(&run, cell).p_holm);
    assert_eq!(chances, [Some(1.0), Some(2.0 * 2_f64.powi(-14))]);
}

#[test]
fn a_cell_that_is_not_finished_is_not_one_with_too_few_pairs() {
    let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15], vec![pair(1.0, 2.0, 1.0); 3]]);
    run.cells[1].is_unfinished = true;
    analyse(&experiment(), &mut run);
    assert!(codes(&run).is_empty(), "{:?}", run.warnings);
}

#[test]
fn disturbed_pairs_are_none_of_those_that_a_look_counts() {
    let mut pairs: Vec<PairRecord> =
        (0..60).map(|i| pair(100.0, 90.0 + 0.1 * f64::from(i), 100.0)).collect();
    let width = |pairs: &[PairRecord]| {
        let mut run = run_of(&[pairs.to_vec()]);
        analyse(&experiment(), &mut run);
        super::super::half_width_pct(effect_of(&run, 0))
    };
    pairs[59].cost_accepted = false;
    assert_eq!(width(&pairs), width(&pairs[..59]));
}

#[test]
fn of_two_placement_classes_with_as_many_pairs_the_far_one_is_taken() {
    let placed = |class: &str, b: f64| {
        let class = class.to_owned();
        let placement = PlacementRecord { before_ticks: 50.0, after_ticks: 50.0, class };
        PairRecord { placement: Some(placement), ..pair(100.0, b, 100.0) }
    };
    let mut pairs = vec![placed("near", 90.0); 8];
    pairs.extend(vec![placed("far", 80.0); 8]);
    let mut run = run_of(&[pairs]);
    analyse(&experiment(), &mut run);
    let found = effect_of(&run, 0);
    assert!((found.change_pct + 20.0).abs() < 1e-9, "{found:?}");
    assert_eq!(found.elsewhere.as_ref().unwrap().class, "near");
}

#[test]
fn a_look_is_reached_with_its_number_of_pairs() {
    let reached = [0, 14, 15, 29, 30, 90].map(|admitted| look_reached(&[15, 30, 60], admitted));
    assert_eq!(reached, [0, 0, 0, 0, 1, 2]);
}

#[test]
fn an_event_that_was_not_seen_is_bounded_in_the_metrics_scale() {
    let mut losses = experiment();
    losses.metrics[0].estimate = Some(Estimate::Events);
    losses.metrics[0].formula.scale = 1e6;
    let mut run = run_of(&[vec![pair(100.0, 0.0, 100.0); 15]]);
    analyse(&losses, &mut run);
    let bound = effect_of(&run, 0).censored_below.unwrap();
    assert!((bound - 1e6 / 15_000.0).abs() < 1e-9, "one of 15,000 packets, a million: {bound}");
}

#[test]
fn the_noise_is_unknown_if_neither_the_first_side_nor_its_control_counted_anything() {
    let mut losses = experiment();
    losses.metrics[0].clock = Clock::Count;
    let begun = vec![pair(0.0, 5.0, 0.0); 10];
    let look = Look { index: 0, of: 1, family: 1 };
    let found = effect(&losses.metrics[0], &[], &begun, look).unwrap();
    assert_eq!((found.aa_pct, found.aa_half_width_pct), (None, None));
    assert_eq!((found.bounds(), found.verdict), ([true, false], Verdict::Worse));
    let mut run = run_of(&[begun, vec![pair(0.0, 0.0, 0.0); 10]]);
    analyse(&losses, &mut run);
    assert!(run.env["noise"]["aa_half_width_pct"].is_null(), "{}", run.env);
    // In the second cell there is nothing of which the noise could be known.
    assert_eq!(codes(&run), ["W-NO-CONTROL"]);
    let said = "rate=max: the noise of cost_ns_per_packet is unknown: there is no control, or \
                neither it nor the first side counted anything";
    assert_eq!(run.warnings[0].text, said);
}
