//! The effect of one metric over a cell's pairs.

use super::interval::{Interval, median, median_interval};
use super::samples::{Part, admitted, parts};
use super::{pct, pooled, signs, verdict};
use crate::experiment::Metric;
use crate::record::{Effect, Expected, PairRecord, Verdict};
use crate::stats::Goal;

/// One pair has no spread: what it says stands in the record, and is no effect.
const PAIRS_MIN: usize = 2;

/// A change, in logarithms, and what may be held against it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    /// The first side.
    pub(super) a: f64,
    /// The second.
    pub(super) b: f64,
    /// Of the ratio.
    pub(super) log: f64,
    /// Where it lies.
    pub(super) interval: Interval,
    /// Of such pairs without a difference.
    pub(super) chance: f64,
    /// A side that was never seen to count is below this.
    pub(super) censored_below: Option<f64>,
}

/// The effect of one metric over a cell's pairs, before the grid's correction; `None` if no pair
/// can be used.
///
/// `looks` is how many looks there will have been in all, `look` which one this is, from 0: early
/// looks take a wider interval.
///
/// Where [`Effect::censored_below`] is said, the side whose value it is counted nothing, and the
/// change is a bound too: of a second side the interval begins at −100 %, of a first side there is
/// no end to it and it ends at that bound.
#[must_use]
pub fn effect(
    metric: &Metric,
    at: &[(String, String)],
    pairs: &[PairRecord],
    look: usize,
    looks: usize,
) -> Option<Effect> {
    let ours = admitted(metric.clock, pairs);
    let level = level(look, looks);
    let of_b = parts(metric, &ours, |pair| Some(&pair.b));
    let of_control = parts(metric, &ours, |pair| pair.control.as_ref());
    let one = metric.formula.scale.abs();
    if of_b.len() < PAIRS_MIN {
        return None;
    }
    let found = change(&of_b, one, level)?;
    let aa = change(&of_control, one, level)
        .map(|aa| (pct(aa.log), pct(aa.interval.low), pct(aa.interval.high)))
        .filter(|(median, low, high)| [median, low, high].iter().all(|x| x.is_finite()));
    let change_pct = pct(found.log);
    let ci95_pct = (pct(found.interval.low), pct(found.interval.high));
    // Beyond what a number holds, nothing is said.
    if ![change_pct, ci95_pct.0, ci95_pct.1, found.a, found.b].iter().all(|x| x.is_finite()) {
        return None;
    }
    let mut effect = Effect {
        unit: metric.unit.clone(),
        better_when: metric.goal.map(|goal| better_when(goal).to_owned()),
        a: found.a,
        b: found.b,
        change_pct,
        ci95_pct,
        n_pairs: of_b.len(),
        censored_below: found.censored_below,
        aa_half_width_pct: aa.map(|(_, low, high)| low.abs().max(high.abs())),
        aa_pct: aa,
        p_holm: Some(found.chance),
        expected: metric.expected_at(at).map(|expected| Expected {
            change_pct: expected.change_pct,
            source: expected.source.clone(),
            met: (expected.change_pct.0..=expected.change_pct.1).contains(&change_pct),
        }),
        verdict: Verdict::Unclear,
    };
    effect.verdict = verdict::judge(&effect);
    Some(effect)
}

/// Half of the width of its interval, in per cent: what a plan asks to be narrow enough.
#[must_use]
pub fn half_width_pct(effect: &Effect) -> f64 {
    (effect.ci95_pct.1 - effect.ci95_pct.0) / 2.0
}

/// How often the interval of a look holds the true change: 99 % of the time at early looks, 95 % at
/// the last.
#[must_use]
pub fn level(look: usize, looks: usize) -> f64 {
    if look + 1 < looks { 0.99 } else { 0.95 }
}

/// The change from the first to the second of `pairs`; `one` is what one event counts.
fn change(pairs: &[(Part, Part)], one: f64, level: f64) -> Option<Change> {
    if pairs.iter().any(|(a, b)| a.over == 0.0 || b.over == 0.0) {
        return pooled::change(pairs, one, level);
    }
    let values = pairs.iter().filter_map(|(a, b)| a.value().zip(b.value()));
    let (mut a, mut b): (Vec<f64>, Vec<f64>) = values.unzip();
    let mut logs: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b.ln() - a.ln()).collect();
    let chance = signs::chance(&logs);
    for values in [&mut a, &mut b, &mut logs] {
        values.sort_by(f64::total_cmp);
    }
    Some(Change {
        log: median(&logs)?,
        interval: median_interval(&logs, level)?,
        chance,
        ..Change::none(median(&a)?, median(&b)?)
    })
}

impl Change {
    /// No change from `a` to `b`.
    pub(super) fn none(a: f64, b: f64) -> Change {
        let interval = Interval { low: 0.0, high: 0.0 };
        Change { a, b, log: 0.0, interval, chance: 1.0, censored_below: None }
    }
}

fn better_when(goal: Goal) -> &'static str {
    match goal {
        Goal::More => "higher",
        Goal::Less => "lower",
    }
}
