//! Analysis of a whole run: every cell's effects, the correction for the grid, the verdict, the
//! noise, the warnings.

use serde_json::{Map, Value, json};

use super::effect::unsettle;
use super::samples::{
    admissions, admitted, look_reached, missing, negatives, noisy, set_ups, zeros,
};
use super::signs::median;
use super::verdict::{SAME_PCT, SET_UPS_MIN, control_is_off, distinct, judge};
use super::{Look, effect, overall, signs};
use crate::experiment::{Estimate, Experiment, Family, Metric};
use crate::record::{CellRecord, Effect, PairRecord, Run, Status, Verdict, Warning};
use crate::watch::tick_ns;
use crate::window::Window;

/// The codes of computed warnings, which are replaced when they are computed again.
const CODES: [&str; 9] = [
    "W-NOISY",
    "W-FEW-PAIRS",
    "W-SET-UPS",
    "W-PLACEMENT",
    "W-SIGN",
    "W-ZERO",
    "W-MISSING",
    "W-CONTROL",
    "W-NO-CONTROL",
];

/// Computes all derived parts of `run`: each cell's effects and status, the summary lines, the
/// verdict, the noise of its environment, and the warnings that follow from the pairs.
///
/// What it said before is replaced; pairs, ledgers and profiles are left alone. Cells that could not
/// be run have no effects.
pub fn analyse(experiment: &Experiment, run: &mut Run) {
    let looks = experiment.plan.looks(run.experiment.quick);
    let family = experiment.family(run.experiment.quick);
    let headline = experiment.headline();
    for cell in &mut run.cells {
        measure(experiment, cell, &looks, family);
        if let (Some(metric), true) = (headline, ran(cell)) {
            let most_disturbed = noisy(metric.clock, cell);
            cell.status = if most_disturbed { Status::Inconclusive } else { Status::Ok };
        }
    }
    match experiment.plan.family {
        Family::Metric => experiment.metrics.chunks(1).for_each(|metric| {
            correct(metric, &mut run.cells, family);
        }),
        Family::Experiment => correct(&experiment.metrics, &mut run.cells, family),
    }
    run.overall = overall(experiment, &run.cells);
    run.verdict = headline.map_or("inconclusive", |metric| verdict(metric, &run.cells)).to_owned();
    if let Some(metric) = headline {
        put_noise(&mut run.env, metric, &run.cells);
    }
    run.warnings.retain(|warning| !CODES.contains(&warning.code.as_str()));
    let told = run.cells.iter().flat_map(|cell| warnings(experiment, cell));
    let told: Vec<Warning> = told.chain(too_few(experiment, &run.cells, family)).collect();
    run.warnings.extend(told);
}

/// Returns true if a cell has pairs that may be analysed. With an unbalanced ledger a cell has
/// none, because it did not run as intended.
fn ran(cell: &CellRecord) -> bool {
    let has_pairs =
        matches!(cell.status, Status::Ok | Status::Inconclusive) && !cell.pairs.is_empty();
    has_pairs && cell.ledger.balanced()
}

/// Measures each metric's effect, not yet corrected for the grid.
fn measure(experiment: &Experiment, cell: &mut CellRecord, looks: &[u32], family: usize) {
    cell.metrics.clear();
    if !ran(cell) {
        return;
    }
    let at: Vec<(String, String)> = cell.at.clone().into_iter().collect();
    let of_headline = experiment.headline().map(|metric| admitted(metric.clock, &cell.pairs).len());
    let index = look_reached(looks, of_headline.unwrap_or(0));
    let look = Look { index, of: looks.len(), family };
    let effects = experiment.metrics.iter().filter_map(|metric| {
        let found = effect(metric, &at, &cell.pairs, look)?;
        Some((metric.name.clone(), found))
    });
    cell.metrics = effects.collect();
}

/// Corrects the probabilities of a family's metrics for the `family` planned hypotheses,
/// independent of how many ran, and judges them again. Cells whose pairs were mostly disturbed for
/// a metric's clock keep their figures, and are unclear.
fn correct(metrics: &[Metric], cells: &mut [CellRecord], family: usize) {
    let all = |cell: &CellRecord| -> Vec<f64> {
        let found = metrics.iter().filter_map(|metric| cell.metrics.get(&metric.name)?.p_holm);
        found.collect()
    };
    let chances: Vec<f64> = cells.iter().flat_map(all).collect();
    let mut corrected = signs::holm(&chances, family).into_iter();
    for cell in cells {
        for metric in metrics {
            let disturbed = noisy(metric.clock, cell);
            let Some(found) = cell.metrics.get_mut(&metric.name) else { continue };
            if found.p_holm.is_some() {
                found.p_holm = corrected.next();
            }
            found.verdict = judge(found);
            if disturbed {
                found.verdict = Verdict::Unclear;
                unsettle(found);
            }
        }
    }
}

/// Returns a run's verdict by its headline metric: better or worse if some cells are and none is
/// the opposite; mixed if both occur; the same if some cells are the same and none is unclear or
/// without the metric's effect, except cells that this machine cannot run; else inconclusive. If
/// neither direction of the headline is better, cells that differ make the verdict mixed.
fn verdict(headline: &Metric, cells: &[CellRecord]) -> &'static str {
    let found: Vec<(&CellRecord, &Effect)> =
        cells.iter().filter_map(|cell| Some((cell, cell.metrics.get(&headline.name)?))).collect();
    let any = |verdict| found.iter().any(|(_, effect)| effect.verdict == verdict);
    let quiet = |cell: &CellRecord| !noisy(headline.clock, cell);
    let is_untold = |cell: &CellRecord| {
        !matches!(cell.status, Status::Unreachable | Status::Unsupported)
            && !cell.metrics.contains_key(&headline.name)
    };
    let differs = || found.iter().any(|(cell, effect)| quiet(cell) && distinct(effect));
    match (any(Verdict::Better), any(Verdict::Worse)) {
        (true, true) => "mixed",
        (true, false) => "better",
        (false, true) => "worse",
        _ if headline.goal.is_none() && differs() => "mixed",
        _ if any(Verdict::Unclear) || cells.iter().any(is_untold) => "inconclusive",
        _ if any(Verdict::Same) => "same",
        _ => "inconclusive",
    }
}

/// Adds `noise` to the environment, and keeps its other entries.
fn put_noise(env: &mut Value, headline: &Metric, cells: &[CellRecord]) {
    if !env.is_object() {
        *env = Value::Object(Map::new());
    }
    let Some(env) = env.as_object_mut() else { return };
    let ran: Vec<&CellRecord> = cells.iter().filter(|cell| ran(cell)).collect();
    let control = |cell: &&CellRecord| cell.metrics.get(&headline.name)?.aa_half_width_pct;
    let mut floors: Vec<f64> = ran.iter().filter_map(control).collect();
    floors.sort_by(f64::total_cmp);
    let pairs = || ran.iter().flat_map(|cell| &cell.pairs);
    let accepted: usize = ran.iter().map(|cell| admissions(headline.clock, &cell.pairs)).sum();
    let noise = env.entry("noise").or_insert_with(|| Value::Object(Map::new()));
    if !noise.is_object() {
        *noise = Value::Object(Map::new());
    }
    let Some(noise) = noise.as_object_mut() else { return };
    // Without a control, `SAME_PCT` takes the place of the noise floor, as in the verdicts.
    noise.insert("aa_half_width_pct".into(), json!(median(&floors).unwrap_or(SAME_PCT)));
    noise.insert("pairs_accepted".into(), json!(accepted));
    noise.insert("pairs_attempted".into(), json!(pairs().count()));
    for (name, share) in [("foreign_cpu_pct", foreign(pairs())), ("steal_pct", steal(pairs()))] {
        if let Some(share) = share {
            noise.insert(name.into(), json!(share));
        }
    }
}

/// Returns the share of the sides' CPU time that other programs took, in per cent; `None` if no
/// window recorded it.
fn foreign<'a>(pairs: impl Iterator<Item = &'a PairRecord>) -> Option<f64> {
    share_pct(pairs, |window| Some(window.foreign_cpu_ns? as f64))
}

/// Returns the share of the sides' CPU time that the host took, in per cent; `None` if no window
/// recorded it.
fn steal<'a>(pairs: impl Iterator<Item = &'a PairRecord>) -> Option<f64> {
    share_pct(pairs, |window| Some(window.steal_ticks? as f64 * tick_ns() as f64))
}

/// Returns the share of CPU time that was taken in the windows that recorded it, in per cent;
/// windows of the control are included.
fn share_pct<'a>(
    pairs: impl Iterator<Item = &'a PairRecord>,
    taken_ns: impl Fn(&Window) -> Option<f64>,
) -> Option<f64> {
    let windows = pairs.flat_map(|pair| [Some(&pair.a), Some(&pair.b), pair.control.as_ref()]);
    let parts = windows.flatten().filter_map(|window| {
        let cpus_ns = window.wall_ns as f64 * window.cpus? as f64;
        Some((taken_ns(window)?, cpus_ns))
    });
    let (part, whole) = parts.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (whole > 0.0).then(|| 100.0 * part / whole)
}

/// Returns the warnings that the results of one cell need.
fn warnings(experiment: &Experiment, cell: &CellRecord) -> Vec<Warning> {
    let name = name(experiment, cell);
    let mut told = Vec::new();
    let mut tell = |code: &str, text: String, fix: Option<&str>| {
        told.push(Warning { code: code.into(), text, fix: fix.map(str::to_owned) });
    };
    let Some(headline) = experiment.headline().filter(|_| ran(cell)) else { return told };
    let (accepted, attempted) = (admissions(headline.clock, &cell.pairs), cell.pairs.len());
    if noisy(headline.clock, cell) {
        let text = format!("{name}: only {accepted} of {attempted} pairs were undisturbed");
        tell("W-NOISY", text, Some("stop other programs on these CPUs, or run it later"));
    }
    let left_out = accepted - admitted(headline.clock, &cell.pairs).len();
    if left_out > 0 {
        let text = format!(
            "{name}: {left_out} of {accepted} pairs are left out, as their CPUs were not as far \
             apart as those of the others"
        );
        tell("W-PLACEMENT", text, None);
    }
    let ours = |metric: &Metric| admitted(metric.clock, &cell.pairs);
    for metric in &experiment.metrics {
        let (below, windows) = negatives(metric, &ours(metric));
        if below > 0 {
            let text = format!(
                "{name}: {} was negative in {below} of {windows} windows: a difference of two \
                 measured figures has no ratio",
                metric.name
            );
            tell("W-SIGN", text, None);
        }
        let (lack, windows) = missing(metric, &ours(metric));
        if lack > 0 {
            let text = format!(
                "{name}: {} is missing in {lack} of {windows} windows, often the worst: the others \
                 alone would mislead",
                metric.name
            );
            tell("W-MISSING", text, Some("longer windows, or a higher rate, so that all have it"));
        }
    }
    let of_ratios = experiment.metrics.iter().filter(|one| one.estimate() == Estimate::Ratios);
    for (metric, none) in of_ratios.map(|metric| (metric, zeros(metric, &ours(metric)))) {
        if none > 0 {
            let text = format!("{name}: {} was 0 in {none} windows: it has no ratio", metric.name);
            tell("W-ZERO", text, Some("estimate = \"sums\", or \"events\" of what is counted"));
        }
    }
    let few = set_ups(&ours(headline));
    if few < SET_UPS_MIN && few < ours(headline).len() {
        let text = format!(
            "{name}: both sides were set up {few} times only, and intervals are of these alone"
        );
        tell("W-SET-UPS", text, Some("a verdict needs 6, and more of a larger grid"));
    }
    let off: Vec<&str> = names(experiment, cell, control_is_off);
    if !off.is_empty() {
        let text = format!("{name}: two sides of identical code differ in {}", off.join(", "));
        tell("W-CONTROL", text, Some("for these, only larger changes are reported"));
    }
    let without = names(experiment, cell, |effect| effect.aa_half_width_pct.is_none());
    if !without.is_empty() {
        let of = without.join(", ");
        tell(
            "W-NO-CONTROL",
            format!("{name}: without a control, the noise of {of} is unknown"),
            None,
        );
    }
    told
}

/// Returns the cells with too few set-ups to distinguish any difference from chance.
fn too_few(experiment: &Experiment, cells: &[CellRecord], family: usize) -> Option<Warning> {
    let headline = experiment.headline()?;
    let pairs = |cell: &CellRecord| {
        let effect = cell.metrics.get(&headline.name)?;
        Some(effect.n_set_ups.unwrap_or(effect.n_pairs))
    };
    let pairs: Vec<usize> = cells.iter().filter_map(pairs).collect();
    let least = *pairs.iter().min()?;
    let needed = pairs_needed(family);
    let of = match experiment.plan.family {
        Family::Metric => "cells",
        Family::Experiment => "hypotheses",
    };
    let text = format!(
        "{least} set-ups over {family} {of} cannot show any difference as significant: {needed} could"
    );
    let fix = Some("run it without --quick, or with more pairs".to_owned());
    (least < needed).then(|| Warning { code: "W-FEW-PAIRS".into(), text, fix })
}

/// Returns the number of set-ups from which a difference can be distinguished from chance in each
/// of `family` hypotheses: 6 for one.
pub(crate) fn pairs_needed(family: usize) -> usize {
    // The smallest probability with n units is 2¹⁻ⁿ; Holm's correction multiplies it by the family.
    (1..64).find(|n| family as f64 * 2_f64.powi(1 - n) < 0.05).unwrap_or(64) as usize
}

/// Returns a cell's metrics whose effects fulfil a condition, in the experiment's order.
fn names<'a>(
    experiment: &'a Experiment,
    cell: &CellRecord,
    is: impl Fn(&Effect) -> bool,
) -> Vec<&'a str> {
    let names = experiment.metrics.iter().map(|metric| metric.name.as_str());
    names.filter(|name| cell.metrics.get(*name).is_some_and(&is)).collect()
}

/// Returns a cell's name as printed: `change=both rate=fixed`, in the order of the experiment's
/// factors.
fn name(experiment: &Experiment, cell: &CellRecord) -> String {
    let one = |(factor, level): (&String, &String)| format!("{factor}={level}");
    let factors = experiment.factors.iter().map(|factor| &factor.name);
    let each: Vec<String> =
        factors.filter_map(|factor| cell.at.get_key_value(factor)).map(one).collect();
    if each.is_empty() { experiment.id.clone() } else { each.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{experiment, pair, run_of};
    use super::*;

    fn codes(run: &Run) -> Vec<&str> {
        run.warnings.iter().map(|warning| warning.code.as_str()).collect()
    }

    fn effect_of(run: &Run, cell: usize) -> &Effect {
        &run.cells[cell].metrics["cost_ns_per_packet"]
    }

    #[test]
    fn a_run_is_better_if_a_cell_is_and_none_is_worse() {
        let mut run =
            run_of(&[vec![pair(100.0, 90.0, 100.0); 15], vec![pair(50.0, 50.0, 50.0); 15]]);
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
        let mut run =
            run_of(&[vec![pair(100.0, 90.0, 103.0); 5], vec![pair(50.0, 51.0, 50.0); 15]]);
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
        assert!(
            (found.change_pct - 100.0 * (14.0 * 90.0 / 1500.0 - 1.0)).abs() < 1e-9,
            "{found:?}"
        );
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
        losses.metrics[0].clock = crate::experiment::Clock::Wall;
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
        all.plan.family = Family::Experiment;
        all.metrics.push(Metric { name: "other".into(), ..all.metrics[0].clone() });
        let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15]]);
        analyse(&all, &mut run);
        assert_eq!(
            effect_of(&run, 0).p_holm,
            Some(4.0 * 2_f64.powi(-14)),
            "two cells, two metrics"
        );
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
}
