//! The effect of one metric over a cell's pairs.

use linerate_seeds::stats::Goal;

use super::samples::{
    Part, admitted, class_of, missing, negatives, of_other_class, parts, parts_raised,
};
use super::signs::{Interval, median, median_interval};
use super::verdict::{SET_UPS_MIN, control_is_off, from_control};
use super::{pairs_needed, pct, signs, sums, verdict};
use crate::experiment::{Estimate, Metric};
use crate::record::{Effect, Elsewhere, Expected, PairRecord, Verdict};

/// Smallest number of pairs for an effect: one pair has no spread, so only its figures are
/// recorded.
const PAIRS_MIN: usize = 2;

/// A look at a cell during its run: early looks use a wider interval.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The look's number, from 0.
    pub index: usize,
    /// Planned number of looks.
    pub of: usize,
    /// Number of hypotheses in the metric's family; expectations are judged by intervals that hold
    /// for all of them together.
    pub family: usize,
}

/// A change, as a logarithm, with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    /// The first side's value.
    pub(super) a: f64,
    /// The second side's value.
    pub(super) b: f64,
    /// Logarithm of the ratio.
    pub(super) log: f64,
    /// Confidence interval of `log`.
    pub(super) interval: Interval,
    /// Probability of a difference at least this large, if the sides were equal.
    pub(super) chance: f64,
    /// Upper bound of a side that counted nothing; `None` otherwise.
    pub(super) censored_below: Option<f64>,
}

/// Returns the effect on one metric over a cell's pairs, before the family's correction. Returns
/// `None` if no pair can be used or there is no ratio: the metric was negative in a window, a side
/// counted nothing, or the control has no ratio to compare with. Also if a side lacks the metric in
/// some windows: those are often its worst, as a quantile of too few packets.
///
/// With [`Effect::censored_below`] the side that has this value counted nothing, and the change is
/// a bound, too. If that is the second side, the interval begins at −100 %. If it is the first
/// side, the real interval has no upper end; the one here ends at the bound.
#[must_use]
pub fn effect(
    metric: &Metric,
    at: &[(String, String)],
    pairs: &[PairRecord],
    look: Look,
) -> Option<Effect> {
    let ours = admitted(metric.clock, pairs);
    let level = level(look);
    let of_b = parts(metric, &ours, |pair| Some(&pair.b));
    let of_control = parts(metric, &ours, |pair| pair.control.as_ref());
    let n_pairs = of_b.iter().map(Vec::len).sum();
    if n_pairs < PAIRS_MIN || negatives(metric, &ours).0 > 0 || missing(metric, &ours).0 > 0 {
        return None;
    }
    let found = change(metric, &of_b, level)?;
    let control = change(metric, &of_control, level);
    let aa = control
        .map(|aa| (pct(aa.log), pct(aa.interval.low), pct(aa.interval.high)))
        .filter(|(median, low, high)| [median, low, high].iter().all(|x| x.is_finite()));
    if aa.is_none() && !of_control.is_empty() {
        return None;
    }
    // If neither the first side nor its control counted anything, their difference is not known.
    let aa = aa.filter(|_| control.is_none_or(|of| !of.is_of_nothing()));
    let change_pct = pct(found.log);
    let ci95_pct = (pct(found.interval.low), pct(found.interval.high));
    // An overflow makes a value infinite: then there is no effect.
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
        n_pairs,
        n_set_ups: Some(of_b.len()),
        same_pct: Some(metric.same_pct()),
        censored_below: found.censored_below,
        at_least: at_least(metric, &ours, found, level),
        aa_half_width_pct: aa.map(|(_, low, high)| low.abs().max(high.abs())),
        aa_pct: aa,
        p_holm: Some(found.chance),
        expected: None,
        elsewhere: elsewhere(metric, &of_other_class(metric.clock, pairs), level),
        verdict: Verdict::Unclear,
    };
    effect.verdict = verdict::judge(&effect);
    if let Some(expected) = metric.expected_at(at) {
        let enough = of_b.len() >= SET_UPS_MIN.max(pairs_needed(look.family));
        let of_family = 1.0 - (1.0 - level) / look.family.max(1) as f64;
        let wide = change(metric, &of_b, of_family)?.interval;
        let range = expected.change_pct;
        let certain = enough && settled(&effect, range, open_ends(&effect, wide));
        let met = (range.0..=range.1).contains(&change_pct);
        let source = expected.source.clone();
        effect.expected = Some(Expected { change_pct: range, source, met, certain });
    }
    Some(effect)
}

/// Returns for each side whether the change rests on its lower bounds: if they were any higher, the
/// change or its interval would be another one. If a side has few bounds beyond its median, it does
/// not.
fn at_least(metric: &Metric, pairs: &[&PairRecord], found: Change, level: f64) -> [bool; 2] {
    [[true, false], [false, true]].map(|side| {
        let raised = parts_raised(metric, pairs, side);
        raised.is_some_and(|raised| change(metric, &raised, level) != Some(found))
    })
}

/// Returns the ends of an interval in per cent, without those that are not known, because a side
/// counted nothing or its value is a lower bound.
fn open_ends(effect: &Effect, interval: Interval) -> (f64, f64) {
    let [is_a_least, is_b_least] = effect.at_least;
    let has_no_high = effect.bounds()[0] || is_b_least;
    let low = if is_a_least { -100.0 } else { pct(interval.low) };
    (low, if has_no_high { f64::INFINITY } else { pct(interval.high) })
}

/// Returns the effect in the pairs of the less frequent placement class; `None` if they are too
/// few.
fn elsewhere(metric: &Metric, pairs: &[&PairRecord], level: f64) -> Option<Elsewhere> {
    let class = class_of(pairs.first()?)?.to_owned();
    let of_b = parts(metric, pairs, |pair| Some(&pair.b));
    let n_pairs = of_b.iter().map(Vec::len).sum();
    if n_pairs < PAIRS_MIN || negatives(metric, pairs).0 > 0 || missing(metric, pairs).0 > 0 {
        return None;
    }
    let found = change(metric, &of_b, level)?;
    let (change_pct, ci95_pct) =
        (pct(found.log), (pct(found.interval.low), pct(found.interval.high)));
    let is_finite = [change_pct, ci95_pct.0, ci95_pct.1].iter().all(|x| x.is_finite());
    is_finite.then_some(Elsewhere { class, n_pairs, change_pct, ci95_pct })
}

/// Computes the change over the pairs of all set-ups, by the metric's estimate.
///
/// The set-up is the unit. With fewer than 6 set-ups the interval is computed from pairs, so that
/// it has a width; it says nothing of other set-ups. The chance is always of set-ups.
fn change(metric: &Metric, set_ups: &[Vec<(Part, Part)>], level: f64) -> Option<Change> {
    let of = |set_ups: &[Vec<(Part, Part)>]| match metric.estimate() {
        Estimate::Ratios => ratios(set_ups, level),
        Estimate::Sums | Estimate::Events => sums::change(set_ups, one_event(metric), level),
    };
    let found = of(set_ups);
    if set_ups.len() >= SET_UPS_MIN {
        return found;
    }
    let pairs: Vec<Vec<(Part, Part)>> = set_ups.iter().flatten().map(|pair| vec![*pair]).collect();
    // One set-up has no spread, so its sums have no interval; a single difference is always chance.
    let chance = found.map_or(1.0, |found| found.chance);
    Some(Change { chance, ..of(&pairs)? })
}

/// Returns half the width of an effect's interval, in hundredths of a natural logarithm, for
/// comparison with the plan's limit. The value is equal for `b` by `a` and for `a` by `b`, and for
/// the same noise around any change, so that the result cannot decide when a run stops. It is
/// infinite if the interval has no end, neither side counted anything, or a side's value is a lower
/// bound.
#[must_use]
pub fn half_width_pct(effect: &Effect) -> f64 {
    if effect.bounds()[0] || effect.is_of_nothing() || effect.at_least.contains(&true) {
        return f64::INFINITY;
    }
    let log = |pct: f64| 100.0 * (pct / 100.0).ln_1p();
    (log(effect.ci95_pct.1) - log(effect.ci95_pct.0)) / 2.0
}

/// Returns the value of one event in `metric`; `None` for a metric that is measured instead of
/// counted.
pub(crate) fn one_event(metric: &Metric) -> Option<f64> {
    (metric.estimate() == Estimate::Events).then(|| metric.formula.scale.abs())
}

/// Returns true if the interval lies entirely within the range or entirely outside it, and a side
/// counted something. If the control shows a difference, the interval relative to the control must
/// give the same result.
fn settled(effect: &Effect, range: (f64, f64), interval: (f64, f64)) -> bool {
    if effect.is_of_nothing() {
        return false;
    }
    if !control_is_off(effect) {
        return settles(range, interval);
    }
    let beside = (from_control(effect, interval.0), from_control(effect, interval.1));
    let within = |(low, high): (f64, f64)| range.0 <= low && high <= range.1;
    settles(range, interval) && settles(range, beside) && within(interval) == within(beside)
}

/// Marks an expectation as undecided, because most pairs were disturbed.
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
pub fn level(look: Look) -> f64 {
    if look.index + 1 < look.of { 0.99 } else { 0.95 }
}

/// Computes the median of the set-ups' changes, each the median of its pairs' ratios; `None` if a
/// pair has no ratio.
fn ratios(set_ups: &[Vec<(Part, Part)>], level: f64) -> Option<Change> {
    if set_ups.iter().flatten().any(|(a, b)| a.is_nothing() || b.is_nothing()) {
        return None;
    }
    let middle = |of: &mut dyn Iterator<Item = f64>| {
        let mut values: Vec<f64> = of.collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let log = |(a, b): &(Part, Part)| Some(b.value()?.ln() - a.value()?.ln());
    let mut logs: Vec<f64> =
        set_ups.iter().filter_map(|pairs| middle(&mut pairs.iter().filter_map(log))).collect();
    let chance = signs::chance(&logs);
    logs.sort_by(f64::total_cmp);
    let a = middle(&mut set_ups.iter().flatten().filter_map(|(a, _)| a.value()))?;
    let b = middle(&mut set_ups.iter().flatten().filter_map(|(_, b)| b.value()))?;
    let interval = median_interval(&logs, level)?;
    Some(Change { log: median(&logs)?, interval, chance, ..Change::none(a, b) })
}

impl Change {
    /// Returns no change between `a` and `b`, with an interval of width 0.
    pub(super) fn none(a: f64, b: f64) -> Change {
        let interval = Interval { low: 0.0, high: 0.0 };
        Change { a, b, log: 0.0, interval, chance: 1.0, censored_below: None }
    }

    /// Returns true if neither side counted anything.
    fn is_of_nothing(self) -> bool {
        self.a == 0.0 && self.b == 0.0
    }
}

fn better_when(goal: Goal) -> &'static str {
    match goal {
        Goal::More => "higher",
        Goal::Less => "lower",
    }
}
