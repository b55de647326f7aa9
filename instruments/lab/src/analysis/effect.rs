//! The effect of one metric over a cell's pairs.

use linerate_seeds::stats::Goal;

use super::samples::{Part, admitted, negatives, parts};
use super::signs::{Interval, median, median_interval};
use super::verdict::{control_is_off, from_control};
use super::{pct, samples, signs, verdict};
use crate::experiment::{Clock, Metric};
use crate::record::{Effect, Expected, PairRecord, Verdict};

/// One pair has no spread: what it says stands in the record, and is no effect.
const PAIRS_MIN: usize = 2;

/// A change, in logarithms, and what may be held against it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    /// The first side.
    pub(super) a: f64,
    /// The second.
    pub(super) b: f64,
    /// Logarithm of the ratio.
    pub(super) log: f64,
    /// Confidence interval of that logarithm.
    pub(super) interval: Interval,
    /// Probability of such pairs if there is no difference.
    pub(super) chance: f64,
    /// A side that was never seen to count is below this.
    pub(super) censored_below: Option<f64>,
}

/// Returns the effect on one metric over a cell's pairs, before the grid's correction. Returns
/// `None` if no pair can be used or there is no ratio: the metric was negative in a window, a side
/// counted nothing, or the control has no ratio to compare with.
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
    if of_b.len() < PAIRS_MIN || negatives(metric, &ours).0 > 0 {
        return None;
    }
    // Both in one way, so that the floor is that of what is held against it.
    let pooled = [&of_b, &of_control].into_iter().flatten().any(|(a, b)| nothing(a, b));
    let change = |pairs: &[(Part, Part)]| {
        if pooled { samples::change(pairs, one_event(metric), level) } else { paired(pairs, level) }
    };
    let found = change(&of_b)?;
    let aa = change(&of_control)
        .map(|aa| (pct(aa.log), pct(aa.interval.low), pct(aa.interval.high)))
        .filter(|(median, low, high)| [median, low, high].iter().all(|x| x.is_finite()));
    if aa.is_none() && !of_control.is_empty() {
        return None;
    }
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
            certain: settles(expected.change_pct, ci95_pct),
        }),
        verdict: Verdict::Unclear,
    };
    effect.verdict = verdict::judge(&effect);
    if control_is_off(&effect) {
        settle_by_control(&mut effect);
    }
    Some(effect)
}

/// Returns half the width of an effect's interval, in hundredths of a natural logarithm: the value
/// that a plan wants to be narrow enough. It is equal for `b` by `a` and for `a` by `b`, and the
/// same noise gives the same width around any change, so that the result cannot decide when a run
/// stops. It is infinite if the interval has no end.
#[must_use]
pub fn half_width_pct(effect: &Effect) -> f64 {
    let log = |pct: f64| 100.0 * (pct / 100.0).ln_1p();
    (log(effect.ci95_pct.1) - log(effect.ci95_pct.0)) / 2.0
}

/// Returns the value of one event in `metric`; `None` for a metric that is measured and not
/// counted, where a value of 0 is no count.
pub(crate) fn one_event(metric: &Metric) -> Option<f64> {
    (metric.clock == Clock::Count).then(|| metric.formula.scale.abs())
}

/// Marks an expectation as open, unless the change measured from the control gives the same result.
fn settle_by_control(effect: &mut Effect) {
    let (low, high) = effect.ci95_pct;
    let interval = (from_control(effect, low), from_control(effect, high));
    if let Some(expected) = &mut effect.expected {
        let range = expected.change_pct;
        let within = |(low, high): (f64, f64)| range.0 <= low && high <= range.1;
        let same = within((low, high)) == within(interval);
        expected.certain &= same && settles(range, interval);
    }
}

/// Says that it is open whether an expectation was met: nothing is said by pairs that were disturbed.
pub(super) fn unsettle(effect: &mut Effect) {
    if let Some(expected) = &mut effect.expected {
        expected.certain = false;
    }
}

/// Returns true if an interval lies entirely within a range or entirely outside it.
fn settles(range: (f64, f64), (low, high): (f64, f64)) -> bool {
    (range.0 <= low && high <= range.1) || high < range.0 || low > range.1
}

/// Returns the confidence level of a look's interval: 99 % at early looks, 95 % at the last.
#[must_use]
pub fn level(look: usize, looks: usize) -> f64 {
    if look + 1 < looks { 0.99 } else { 0.95 }
}

/// Returns true if a pair has no ratio of its own.
fn nothing(a: &Part, b: &Part) -> bool {
    a.is_nothing() || b.is_nothing()
}

/// Computes the change from the first to the second of `pairs`, each of which has a ratio.
fn paired(pairs: &[(Part, Part)], level: f64) -> Option<Change> {
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
