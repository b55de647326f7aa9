//! Selection of the pairs that a metric is computed from, its value in each pair, and sums of rare events.

use super::effect::Change;
use super::signs;
use super::signs::Interval;
use crate::experiment::{Clock, Formula, Metric};
use crate::random::Random;
use crate::record::PairRecord;
use crate::window::Window;

/// A metric in one window, before it is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    /// The numerator: the measured sum, times the metric's constant.
    pub(crate) over: f64,
    /// The denominator.
    pub(crate) under: f64,
}

/// The pairs that `clock` may be read from: admitted for it, and of the placement class that most of
/// those have. Pairs whose placement is not known are of one class.
#[must_use]
pub fn admitted(clock: Clock, pairs: &[PairRecord]) -> Vec<&PairRecord> {
    let ours: Vec<&PairRecord> = pairs.iter().filter(|pair| admits(clock, pair)).collect();
    let count = |class| ours.iter().filter(|pair| class_of(pair) == class).count();
    // Of two classes alike in number the one whose name comes first: `far`.
    let most = ours
        .iter()
        .map(|pair| class_of(pair))
        .max_by(|one, other| count(*one).cmp(&count(*other)).then_with(|| other.cmp(one)));
    ours.iter().copied().filter(|pair| Some(class_of(pair)) == most).collect()
}

/// Returns the number of pairs that are admitted for `clock`, at any placement.
pub(super) fn admissions(clock: Clock, pairs: &[PairRecord]) -> usize {
    pairs.iter().filter(|pair| admits(clock, pair)).count()
}

/// Returns true if most of `pairs` were disturbed for `clock`, so that they support no conclusion.
#[must_use]
pub fn noisy(clock: Clock, pairs: &[PairRecord]) -> bool {
    2 * admissions(clock, pairs) < pairs.len()
}

/// Returns the index of the look that `admitted` pairs have reached, from 0.
#[must_use]
pub fn look_reached(looks: &[u32], admitted: usize) -> usize {
    looks.iter().rposition(|look| admitted >= *look as usize).unwrap_or(0)
}

/// The class of a pair's placement, `None` if it is not known.
pub(crate) fn class_of(pair: &PairRecord) -> Option<&str> {
    pair.placement.as_ref().map(|placement| placement.class.as_str())
}

/// In how many windows of `pairs`, and of how many that have it, a half of `metric` is below 0: it
/// is a difference then, and has no ratio.
pub(super) fn negatives(metric: &Metric, pairs: &[&PairRecord]) -> (usize, usize) {
    let parting = Parting::of(&metric.formula);
    let windows =
        pairs.iter().flat_map(|pair| [Some(&pair.a), Some(&pair.b), pair.control.as_ref()]);
    let parts = windows.flatten().filter_map(|window| parting.part(window));
    parts.fold((0, 0), |(below, all), part| (below + usize::from(part.is_negative()), all + 1))
}

/// `metric` in both windows of each pair that has it: of `b` beside `a`, or of what `other` takes.
pub(super) fn parts<'a>(
    metric: &Metric,
    pairs: &[&'a PairRecord],
    other: impl Fn(&'a PairRecord) -> Option<&'a Window>,
) -> Vec<(Part, Part)> {
    let parting = Parting::of(&metric.formula);
    let both =
        pairs.iter().filter_map(|pair| Some((parting.part(&pair.a)?, parting.part(other(pair)?)?)));
    both.collect()
}

/// `metric` in the changed side's windows.
pub(crate) fn parts_of_b(metric: &Metric, pairs: &[&PairRecord]) -> Vec<Part> {
    let parting = Parting::of(&metric.formula);
    pairs.iter().filter_map(|pair| parting.part(&pair.b)).collect()
}

fn admits(clock: Clock, pair: &PairRecord) -> bool {
    match clock {
        Clock::Wall => pair.accepted,
        Clock::Cost | Clock::Count => pair.cost_accepted,
    }
}

/// A formula as its two halves.
struct Parting {
    over: Formula,
    under: Formula,
}

impl Parting {
    fn of(formula: &Formula) -> Parting {
        let over = Formula { under: Vec::new(), ..formula.clone() };
        // Nothing to divide by is 1 a window.
        let under = Formula { scale: 1.0, over: formula.under.clone(), under: Vec::new() };
        Parting { over, under }
    }

    /// Returns the part of a window; `None` if a figure is missing, for any values of the others.
    fn part(&self, window: &Window) -> Option<Part> {
        let over = self.over.of(window)?;
        let under = if self.under.over.is_empty() { 1.0 } else { self.under.of(window)? };
        Some(Part { over, under })
    }
}

impl Part {
    /// Returns true if it is a difference with a result below 0.
    pub(crate) fn is_negative(self) -> bool {
        self.over < 0.0 || self.under < 0.0
    }

    /// Returns true if it has no logarithm: numerator or denominator is 0.
    pub(crate) fn is_nothing(self) -> bool {
        self.over == 0.0 || self.under == 0.0
    }

    /// The metric; `None` where it is divided by nothing.
    pub(crate) fn value(self) -> Option<f64> {
        (self.under > 0.0).then(|| self.over / self.under)
    }
}

// A side that never counted an event is not at 0. It is below one event over all that was looked
// at, which is what is reported of it, as a bound; how far it may be below or above is what a
// Poisson count of none leaves open. That is true of events alone: of ticks or bytes there is no
// one, a side that has none of them has no bound, and nothing is said of it.

/// Resamples of the pairs. The end of an interval moves by less than a tenth of its width between
/// one seed and another.
const RESAMPLES: usize = 2000;

/// The seed, fixed so that the same pairs give the same interval everywhere.
const SEED: u64 = 0x1e4a_57ba_5e00_0001;

/// Computes the change from the first to the second of `pairs`, added up; `one` is the value of one
/// event, if events are counted. Returns `None` if nothing was measured or one event counts
/// nothing; without events also if a side has nothing, or has it in so few windows that the
/// interval has no end.
pub(super) fn change(pairs: &[(Part, Part)], one: Option<f64>, level: f64) -> Option<Change> {
    let (a, b) = sums(pairs.iter());
    if one.is_none() && (a.over == 0.0 || b.over == 0.0) {
        return None;
    }
    let (per_a, per_b) = (a.value()?, b.value()?);
    let differences: Vec<f64> =
        pairs.iter().filter_map(|(a, b)| Some(b.value()? - a.value()?)).collect();
    let chance = signs::chance(&differences);
    // What would be counted once with this chance if it were that frequent, and was not.
    let unseen = -((1.0 - level) / 2.0).ln();
    let censored = |bound: f64, log: f64, interval| Change {
        log,
        interval,
        chance,
        censored_below: Some(bound),
        ..Change::none(per_a, per_b)
    };
    match (a.over > 0.0, b.over > 0.0) {
        (false, false) => Some(Change::none(0.0, 0.0)),
        (true, false) => {
            let bound = positive(one? / b.under)?;
            let log = bound.ln() - per_a.ln();
            let interval = Interval { low: f64::NEG_INFINITY, high: log + unseen.ln() };
            Some(Change { b: bound, ..censored(bound, log, interval) })
        }
        (false, true) => {
            let bound = positive(one? / a.under)?;
            let log = per_b.ln() - bound.ln();
            let interval = Interval { low: log - unseen.ln(), high: log };
            Some(Change { a: bound, ..censored(bound, log, interval) })
        }
        (true, true) => {
            let log = per_b.ln() - per_a.ln();
            let interval = bootstrap(pairs, one, level)?;
            Some(Change { log, interval, chance, ..Change::none(per_a, per_b) })
        }
    }
}

/// Computes the figure of one side alone: its value, the interval of its logarithm, and the bound
/// if nothing was counted.
pub(crate) fn value(
    windows: &[Part],
    one: Option<f64>,
    level: f64,
) -> Option<(f64, Interval, Option<f64>)> {
    // Beside a side that is always the same, the change is that of this one.
    let fixed = one.unwrap_or(1.0).max(1.0);
    let fixed = Part { over: fixed, under: fixed };
    let pairs: Vec<(Part, Part)> = windows.iter().map(|window| (fixed, *window)).collect();
    let change = change(&pairs, one, level)?;
    Some((change.b, change.interval, change.censored_below))
}

/// Percentiles of the ratio of sums over pairs drawn again and again.
fn bootstrap(pairs: &[(Part, Part)], one: Option<f64>, level: f64) -> Option<Interval> {
    let mut pairs: Vec<(Part, Part)> = pairs.to_vec();
    // In an order of their own: the order in which they ran must not matter.
    let key = |(a, b): &(Part, Part)| [a.over, b.over, a.under, b.under].map(f64::to_bits);
    pairs.sort_by_key(key);
    let mut random = Random::new(SEED);
    let mut logs: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let drawn: Vec<usize> = pairs.iter().map(|_| random.below(pairs.len())).collect();
            let (a, b) = sums(drawn.iter().filter_map(|i| pairs.get(*i)));
            let least = one.unwrap_or(0.0);
            let seen = |part: Part| Part { over: part.over.max(least), ..part }.value();
            Some(seen(b)?.ln() - seen(a)?.ln())
        })
        .collect();
    logs.sort_by(f64::total_cmp);
    let tail = (logs.len() as f64 * (1.0 - level) / 2.0) as usize;
    let last = logs.len().checked_sub(1 + tail)?;
    let interval = Interval { low: *logs.get(tail)?, high: *logs.get(last)? };
    (interval.low.is_finite() && interval.high.is_finite()).then_some(interval)
}

fn sums<'a>(pairs: impl Iterator<Item = &'a (Part, Part)>) -> (Part, Part) {
    let nothing = Part { over: 0.0, under: 0.0 };
    let add = |x: Part, y: Part| Part { over: x.over + y.over, under: x.under + y.under };
    pairs.fold((nothing, nothing), |(a, b), pair| (add(a, pair.0), add(b, pair.1)))
}

fn positive(value: f64) -> Option<f64> {
    (value > 0.0 && value.is_finite()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(over: f64) -> Part {
        Part { over, under: 1000.0 }
    }

    #[test]
    fn two_sides_without_counts_are_equal() {
        let none = change(&[(part(0.0), part(0.0)); 15], Some(1.0), 0.95).unwrap();
        assert_eq!((none.log, none.interval), (0.0, Interval { low: 0.0, high: 0.0 }));
        assert_eq!((none.chance, none.censored_below), (1.0, None));
    }

    #[test]
    fn side_without_counts_gets_an_upper_bound() {
        let gone = change(&[(part(8.0), part(0.0)); 10], Some(1.0), 0.95).unwrap();
        assert_eq!((gone.a, gone.b, gone.censored_below), (0.008, 1e-4, Some(1e-4)));
        assert!((gone.log.exp() - 1.0 / 80.0).abs() < 1e-12);
        // None was seen where 3.69 would be missed once in 40 times.
        assert!((gone.interval.high.exp() - 3.689 / 80.0).abs() < 1e-4);
        let come = change(&[(part(0.0), part(8.0)); 10], Some(1.0), 0.95).unwrap();
        assert_eq!((come.a, come.b, come.censored_below), (1e-4, 0.008, Some(1e-4)));
        assert!((come.log + gone.log).abs() < 1e-12 && come.interval.low > 0.0);
    }

    #[test]
    fn one_event_in_all_shows_nothing() {
        let mut pairs = vec![(part(0.0), part(0.0)); 29];
        pairs.push((part(1.0), part(0.0)));
        let once = change(&pairs, Some(1.0), 0.95).unwrap();
        assert!(once.interval.low < 0.0 && once.interval.high > 0.0 && once.chance == 1.0);
    }

    #[test]
    fn rare_events_are_added_up() {
        let pairs: Vec<(Part, Part)> =
            (0..40).map(|i| (part(f64::from(i % 3)), part(f64::from(2 * (i % 3))))).collect();
        let rare = change(&pairs, Some(1.0), 0.95).unwrap();
        assert!((rare.log - 2_f64.ln()).abs() < 1e-12 && rare.interval.low > 0.6);
        let mut turned = pairs.clone();
        turned.reverse();
        assert_eq!(change(&turned, Some(1.0), 0.95), Some(rare));
    }

    #[test]
    fn what_is_no_event_has_no_bound_and_is_added_up_if_both_sides_have_it() {
        assert_eq!(change(&[(part(8.0), part(0.0)); 10], None, 0.95), None);
        assert_eq!(change(&[(part(0.0), part(8.0)); 10], None, 0.95), None);
        assert_eq!(change(&[(part(0.0), part(0.0)); 10], None, 0.95), None);
        let mut some = vec![(part(100.0), part(50.0)); 19];
        some.push((part(100.0), part(0.0)));
        let found = change(&some, None, 0.95).unwrap();
        assert!((found.log - 0.475_f64.ln()).abs() < 1e-12 && found.censored_below.is_none());
        assert!(found.interval.high <= 0.5_f64.ln() + 1e-12, "{found:?}");
        let mut rare = vec![(part(100.0), part(0.0)); 19];
        rare.push((part(100.0), part(50.0)));
        assert_eq!(change(&rare, None, 0.95), None, "one window of twenty leaves no lower end");
    }
}
