//! Ratios of sums: the estimate for metrics that are counted, or are 0 in some windows.
//!
//! Sums of set-ups are held beside each other, and the interval is that of a ratio of two means:
//! Student's, of the logarithm, with the standard error of the residuals (the delta method). It
//! takes nothing for granted of how counts are spread: bursts of losses spread more than Poisson's.
//!
//! A side that never counted an event is not at 0. It is below one event over all that was looked
//! at, which is what is reported of it, as a bound; how far it may be above is what the counts of
//! both sides leave open: given k events in all, those of one side are binomial, and that none of k
//! fell on it has a chance that is exact. Events that come in bursts are fewer than they look: k is
//! divided by how much more they spread than Poisson's. Of ticks or bytes there is no one event: a
//! side that has none of them has no bound, and nothing is said of it.

use super::effect::Change;
use super::samples::Part;
use super::signs::{self, Interval};

/// Computes the change from the first to the second part of `set_ups`, each summed: 0 without a
/// width if neither side has events ([`crate::record::Effect::is_of_nothing`]); `one` is the
/// value of one event, if events are counted. Returns `None` if nothing was measured or one event
/// has no value; without events also if a side is 0.
pub(super) fn change(
    set_ups: &[Vec<(Part, Part)>],
    one: Option<f64>,
    level: f64,
) -> Option<Change> {
    let units: Vec<(Part, Part)> = set_ups
        .iter()
        .map(|pairs| (sum(pairs, |pair| pair.0), sum(pairs, |pair| pair.1)))
        .collect();
    let (a, b) = (sum(&units, |unit| unit.0), sum(&units, |unit| unit.1));
    if one.is_none() && (a.over == 0.0 || b.over == 0.0) {
        return None;
    }
    let (per_a, per_b) = (a.value()?, b.value()?);
    let differences: Vec<f64> =
        units.iter().filter_map(|(a, b)| Some(b.value()? - a.value()?)).collect();
    let chance = signs::chance(&differences);
    match (a.over > 0.0, b.over > 0.0) {
        (false, false) => Some(Change::none(0.0, 0.0)),
        (true, false) => {
            let bound = positive(one? / b.under)?;
            let log = bound.ln() - per_a.ln();
            let high = log + unseen(units.iter().map(|unit| unit.0), one?, level).ln();
            let interval = Interval { low: f64::NEG_INFINITY, high };
            let censored_below = Some(bound);
            Some(Change { a: per_a, b: bound, log, interval, chance, censored_below })
        }
        (false, true) => {
            let bound = positive(one? / a.under)?;
            let log = per_b.ln() - bound.ln();
            let low = log - unseen(units.iter().map(|unit| unit.1), one?, level).ln();
            let interval = Interval { low, high: log };
            let censored_below = Some(bound);
            Some(Change { a: bound, b: per_b, log, interval, chance, censored_below })
        }
        (true, true) => {
            let log = per_b.ln() - per_a.ln();
            let off = |of: Part, all: Part| of.over / all.over - of.under / all.under;
            let residuals = units.iter().map(|(x, y)| off(*y, b) - off(*x, a));
            let half = half_width(residuals, units.len(), level)?;
            let interval = Interval { low: log - half, high: log + half };
            Some(Change { log, interval, chance, ..Change::none(per_a, per_b) })
        }
    }
}

/// The figure of one side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sum {
    /// The value; a bound, if nothing was counted.
    pub(crate) value: f64,
    /// The interval of the figure's logarithm.
    pub(crate) interval: Interval,
    /// Factor by which the interval of a ratio to a side that counted nothing extends above its
    /// bound; `None` if this side counted nothing.
    pub(crate) unseen: Option<f64>,
}

/// Computes the figure of one side from its windows, by set-up.
pub(crate) fn value(set_ups: &[Vec<Part>], one: Option<f64>, level: f64) -> Option<Sum> {
    let units: Vec<Part> = set_ups.iter().map(|windows| sum(windows, |window| *window)).collect();
    let all = sum(&units, |unit| *unit);
    if all.over == 0.0 {
        let value = positive(one? / all.under)?;
        let interval = Interval { low: f64::NEG_INFINITY, high: value.ln() };
        return Some(Sum { value, interval, unseen: None });
    }
    let value = all.value()?;
    let residuals = units.iter().map(|unit| unit.over / all.over - unit.under / all.under);
    let half = half_width(residuals, units.len(), level)?;
    let interval = Interval { low: value.ln() - half, high: value.ln() + half };
    let unseen = one.map(|one| unseen(units.iter().copied(), one, level));
    Some(Sum { value, interval, unseen })
}

/// Returns half of the interval of a sum of `n` residuals, each a share of the whole.
fn half_width(residuals: impl Iterator<Item = f64>, n: usize, level: f64) -> Option<f64> {
    let squares: f64 = residuals.map(|residual| residual * residual).sum();
    let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)?;
    let error = (squares * n as f64 / freedom as f64).sqrt();
    Some(error * linerate_prof::student(freedom, level))
}

/// Returns the upper bound of the side that counted nothing, as a factor on the value of one event:
/// with k events on the other side it is k · ((α/2)^(-1/k) − 1), and 3.7 for very many.
fn unseen(units: impl Iterator<Item = Part> + Clone, one: f64, level: f64) -> f64 {
    let all = units.clone().fold(NOTHING, plus);
    let events = all.over / one;
    let spread = |unit: Part| {
        let expected = events * unit.under / all.under;
        (unit.over / one - expected).powi(2) / expected
    };
    let n = units.clone().count();
    let spread: f64 = units.filter(|unit| unit.under > 0.0).map(spread).sum();
    let spread = (spread / n.saturating_sub(1).max(1) as f64).max(1.0);
    events * (-((1.0 - level) / 2.0).ln() * spread / events).exp_m1()
}

const NOTHING: Part = Part { over: 0.0, under: 0.0 };

fn plus(x: Part, y: Part) -> Part {
    Part { over: x.over + y.over, under: x.under + y.under }
}

/// Returns the sum of the parts of `all`.
pub(super) fn sum<T>(all: &[T], part: impl Fn(&T) -> Part) -> Part {
    all.iter().map(part).fold(NOTHING, plus)
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

    fn of(pairs: &[(f64, f64)], one: Option<f64>) -> Option<Change> {
        let set_ups: Vec<_> = pairs.iter().map(|(a, b)| vec![(part(*a), part(*b))]).collect();
        change(&set_ups, one, 0.95)
    }

    #[test]
    fn two_sides_without_counts_have_no_change_and_no_width() {
        let none = of(&[(0.0, 0.0); 15], Some(1.0)).unwrap();
        assert_eq!((none.log, none.interval), (0.0, Interval { low: 0.0, high: 0.0 }));
        assert_eq!((none.chance, none.censored_below), (1.0, None));
    }

    /// Checks the bound with six events against none: 0.85 of the other side's rate, where 3.69
    /// events would give 0.61.
    #[test]
    fn side_without_counts_gets_the_exact_upper_bound() {
        for (events, ratio) in [(6.0, 0.849_311), (10.0, 0.446_126)] {
            let mut pairs = [(0.0, 0.0); 10];
            pairs.iter_mut().take(events as usize).for_each(|pair| pair.0 = 1.0);
            let gone = of(&pairs, Some(1.0)).unwrap();
            assert_eq!((gone.b, gone.censored_below), (1e-4, Some(1e-4)));
            assert!((gone.interval.high.exp() - ratio).abs() < 1e-4, "{gone:?}");
            pairs.iter_mut().for_each(|pair| *pair = (pair.1, pair.0));
            let come = of(&pairs, Some(1.0)).unwrap();
            assert!((come.log + gone.log).abs() < 1e-12, "{come:?}");
            assert!((come.interval.low + gone.interval.high).abs() < 1e-12, "{come:?}");
        }
    }

    #[test]
    fn events_in_bursts_bound_less_than_as_many_that_come_alone() {
        let even = of(&[(8.0, 0.0); 20], Some(1.0)).unwrap();
        let mut bursts = [(0.0, 0.0); 20];
        bursts[3].0 = 80.0;
        bursts[9].0 = 80.0;
        let bursts = of(&bursts, Some(1.0)).unwrap();
        assert_eq!(even.log, bursts.log);
        assert!(even.interval.high < (3.8_f64 / 160.0).ln(), "{even:?}");
        assert!(
            bursts.interval.high > 0.0,
            "two bursts of twenty windows are no proof: {bursts:?}"
        );
    }

    #[test]
    fn one_event_in_all_shows_nothing() {
        let mut pairs = [(0.0, 0.0); 30];
        pairs[29].0 = 1.0;
        let once = of(&pairs, Some(1.0)).unwrap();
        assert!(once.interval.low < 0.0 && once.interval.high > 0.0 && once.chance == 1.0);
    }

    #[test]
    fn rare_events_are_added_up_in_any_order() {
        let mut pairs: Vec<(f64, f64)> =
            (0..40).map(|i| (f64::from(i % 3), f64::from(2 * (i % 3)))).collect();
        let rare = of(&pairs, Some(1.0)).unwrap();
        assert!((rare.log - 2_f64.ln()).abs() < 1e-12 && rare.interval.low > 0.6);
        pairs.reverse();
        assert!((of(&pairs, Some(1.0)).unwrap().interval.low - rare.interval.low).abs() < 1e-12);
    }

    #[test]
    fn sums_without_events_have_no_bound() {
        assert_eq!(of(&[(8.0, 0.0); 10], None), None);
        assert_eq!(of(&[(0.0, 8.0); 10], None), None);
        assert_eq!(of(&[(0.0, 0.0); 10], None), None);
        let mut some = vec![(100.0, 50.0); 19];
        some.push((100.0, 0.0));
        let found = of(&some, None).unwrap();
        assert!((found.log - 0.475_f64.ln()).abs() < 1e-12 && found.censored_below.is_none());
    }
}
