//! Analysis of a whole run: every cell's effects, the correction for the grid, the verdict, the
//! noise, the warnings.

use serde_json::{Map, Value, json};

use super::effect::unsettle;
use super::reached::{ACHIEVED, reached};
use super::samples::{
    admissions, admitted, is_valid, look_reached, missing, negatives, noisy, set_ups, zeros,
};
use super::signs::median;
use super::verdict::{SET_UPS_MIN, control_is_off, distinct, judge};
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
/// What it said before is replaced; pairs, ledgers and profiles are left alone. Cells that could
/// not be run have no effects. A cell whose load a side did not reach has none but the share that
/// arrived: with less to do, a side also costs less.
pub fn analyse(experiment: &Experiment, run: &mut Run) {
    let looks = experiment.plan.looks(run.experiment.quick);
    let family = experiment.family(run.experiment.quick);
    let headline = experiment.headline();
    for cell in &mut run.cells {
        measure(experiment, cell, &looks, family);
        if let (Some(metric), true) = (headline, ran(cell)) {
            let is_reached = reached(experiment, cell);
            if !is_reached {
                cell.metrics.retain(|name, _| name == ACHIEVED);
            }
            cell.status = match (noisy(metric.clock, cell), is_reached) {
                (true, _) => Status::Inconclusive,
                (false, false) => Status::Unreachable,
                (false, true) => Status::Ok,
            };
        }
    }
    match experiment.plan.family() {
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
    let has_pairs = cell.status != Status::Unsupported && !cell.pairs.is_empty();
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
/// a metric's clock, and unfinished cells, keep their figures, and are unclear: their p-values
/// count as 1.
fn correct(metrics: &[Metric], cells: &mut [CellRecord], family: usize) {
    let all = |cell: &CellRecord| -> Vec<f64> {
        let valid = metrics.iter().filter(|metric| is_valid(metric.clock, cell));
        valid.filter_map(|metric| cell.metrics.get(&metric.name)?.p_holm).collect()
    };
    let chances: Vec<f64> = cells.iter().flat_map(all).collect();
    let mut corrected = signs::holm(&chances, family).into_iter();
    for cell in cells {
        for metric in metrics {
            let is_valid = is_valid(metric.clock, cell);
            let Some(found) = cell.metrics.get_mut(&metric.name) else { continue };
            if found.p_holm.is_some() {
                found.p_holm = if is_valid { corrected.next() } else { Some(1.0) };
            }
            found.verdict = judge(found);
            if !is_valid {
                found.verdict = Verdict::Unclear;
                unsettle(found);
            }
        }
    }
}

/// Returns a run's verdict by its headline metric: better or worse if some cells are and none is
/// the opposite; mixed if both occur; the same if some cells are the same and none is unclear or
/// without the metric's effect, except cells that this machine cannot run or whose load was not
/// reached; else inconclusive. If neither direction of the headline is better, cells that differ
/// make the verdict mixed.
fn verdict(headline: &Metric, cells: &[CellRecord]) -> &'static str {
    let found: Vec<(&CellRecord, &Effect)> =
        cells.iter().filter_map(|cell| Some((cell, cell.metrics.get(&headline.name)?))).collect();
    let any = |verdict| found.iter().any(|(_, effect)| effect.verdict == verdict);
    let quiet = |cell: &CellRecord| is_valid(headline.clock, cell);
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
    // Without a control, or if it counted as little as the first side, the noise floor is not
    // known: it is null, and not the assumption that verdicts use in its place.
    noise.insert("aa_half_width_pct".into(), json!(median(&floors)));
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
        tell("W-CONTROL", text, Some("only a change larger than this difference gets a verdict"));
    }
    let without = names(experiment, cell, is_without_floor);
    if !without.is_empty() {
        let text = format!(
            "{name}: the noise of {} is unknown: there is no control, or neither it nor the first \
             side counted anything",
            without.join(", ")
        );
        tell("W-NO-CONTROL", text, None);
    }
    told
}

/// Returns true if the noise floor of an effect is unknown, although a side counted something.
fn is_without_floor(effect: &Effect) -> bool {
    effect.aa_half_width_pct.is_none() && !effect.is_of_nothing()
}

/// Returns the cells with too few set-ups to distinguish any difference from chance.
fn too_few(experiment: &Experiment, cells: &[CellRecord], family: usize) -> Option<Warning> {
    let headline = experiment.headline()?;
    let pairs = |cell: &CellRecord| {
        let effect = cell.metrics.get(&headline.name)?;
        Some(effect.n_set_ups.unwrap_or(effect.n_pairs))
    };
    let finished = cells.iter().filter(|cell| !cell.is_unfinished);
    let pairs: Vec<usize> = finished.filter_map(pairs).collect();
    let least = *pairs.iter().min()?;
    let needed = pairs_needed(family);
    let of = match experiment.plan.family() {
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
mod tests;
