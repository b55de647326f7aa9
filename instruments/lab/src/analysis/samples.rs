//! Selection of the pairs from which a metric is computed, with its value in each pair, by set-up.

use std::collections::BTreeMap;

use super::signs::median;
use super::sums;
use crate::experiment::{Clock, Estimate, Formula, Metric, Plan};
use crate::record::{CellRecord, PairRecord};
use crate::window::Window;

/// The numerator and denominator of a metric in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    /// The numerator: the measured sum, times the metric's constant.
    pub(crate) over: f64,
    /// The denominator of the metric.
    pub(crate) under: f64,
}

/// Returns the pairs admitted for `clock`, of the most frequent placement class among them. Pairs
/// whose placement is not known are of one class.
#[must_use]
pub fn admitted(clock: Clock, pairs: &[PairRecord]) -> Vec<&PairRecord> {
    by_class(clock, pairs).0
}

/// Returns the pairs admitted for `clock`, of the less frequent placement class.
pub(super) fn of_other_class(clock: Clock, pairs: &[PairRecord]) -> Vec<&PairRecord> {
    by_class(clock, pairs).1
}

/// Returns the admitted pairs of the most frequent placement class, and the other admitted pairs.
fn by_class(clock: Clock, pairs: &[PairRecord]) -> (Vec<&PairRecord>, Vec<&PairRecord>) {
    let ours: Vec<&PairRecord> = pairs.iter().filter(|pair| admits(clock, pair)).collect();
    let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for pair in &ours {
        *counts.entry(class_of(pair)).or_default() += 1;
    }
    // If both classes have the same number of pairs, take the first by name: `far`.
    let most = counts
        .into_iter()
        .max_by(|(one, n), (other, m)| n.cmp(m).then_with(|| other.cmp(one)))
        .map(|(class, _)| class);
    ours.iter().copied().partition(|pair| Some(class_of(pair)) == most)
}

/// Returns the number of pairs that are admitted for `clock`, at any placement.
pub(super) fn admissions(clock: Clock, pairs: &[PairRecord]) -> usize {
    pairs.iter().filter(|pair| admits(clock, pair)).count()
}

/// Returns true if more pairs of `cell` were disturbed for `clock` than the run allowed, so that
/// the others support no conclusion: half of them, unless the run asked for more attempts.
#[must_use]
pub fn noisy(clock: Clock, cell: &CellRecord) -> bool {
    stays_disturbed(clock, &cell.pairs, cell.attempts.unwrap_or(Plan::ATTEMPTS), 0)
}

/// Returns true if a cell may have a verdict for `clock`: it is finished, and not too many of its
/// pairs were disturbed.
#[must_use]
pub fn is_valid(clock: Clock, cell: &CellRecord) -> bool {
    !cell.is_unfinished && !noisy(clock, cell)
}

/// Returns true if more of `pairs` were disturbed for `clock` than a run with `attempts` allows,
/// even with `more` pairs that are all admitted.
pub(crate) fn stays_disturbed(
    clock: Clock,
    pairs: &[PairRecord],
    attempts: u32,
    more: usize,
) -> bool {
    let (admitted, all) = (admissions(clock, pairs) + more, pairs.len() + more);
    (attempts as usize).saturating_mul(admitted) < all
}

/// Returns the index of the look that `admitted` pairs have reached, from 0.
#[must_use]
pub fn look_reached(looks: &[u32], admitted: usize) -> usize {
    looks.iter().rposition(|look| admitted >= *look as usize).unwrap_or(0)
}

/// Returns the class of a pair's placement; `None` if it is unknown.
pub(crate) fn class_of(pair: &PairRecord) -> Option<&str> {
    pair.placement.as_ref().map(|placement| placement.class.as_str())
}

/// Returns the number of windows of `pairs` in which a part of `metric` is negative, and the number
/// of windows that have it: a difference with negative values has no ratio.
pub(super) fn negatives(metric: &Metric, pairs: &[&PairRecord]) -> (usize, usize) {
    let parting = Parting::of(&metric.formula);
    let windows =
        pairs.iter().flat_map(|pair| [Some(&pair.a), Some(&pair.b), pair.control.as_ref()]);
    let parts = windows.flatten().filter_map(|window| parting.part(window));
    parts.fold((0, 0), |(below, all), part| (below + usize::from(part.is_negative()), all + 1))
}

/// Returns the number of windows of `pairs` in which `metric` is 0 or divided by 0, so that it has
/// no ratio.
pub(super) fn zeros(metric: &Metric, pairs: &[&PairRecord]) -> usize {
    let parting = Parting::of(&metric.formula);
    let windows =
        pairs.iter().flat_map(|pair| [Some(&pair.a), Some(&pair.b), pair.control.as_ref()]);
    let parts = windows.flatten().filter_map(|window| parting.part(window));
    parts.filter(|part| part.is_nothing()).count()
}

/// Returns the number of windows of `pairs` that lack a figure of `metric` although the same side
/// has it in other windows, and the number of all windows of the sides that have it. A side that
/// has it in no window does not count: the metric is not one of its figures.
pub(super) fn missing(metric: &Metric, pairs: &[&PairRecord]) -> (usize, usize) {
    let sides: [fn(&PairRecord) -> Option<&Window>; 3] =
        [|pair| Some(&pair.a), |pair| Some(&pair.b), |pair| pair.control.as_ref()];
    let each = sides.map(|side| lacking(metric, pairs.iter().copied().filter_map(side)));
    each.iter().fold((0, 0), |(lack, all), side| (lack + side.0, all + side.1))
}

/// Returns the number of a side's windows that lack a figure of `metric`, and of all its windows;
/// both are 0 if no window has it.
fn lacking<'a>(metric: &Metric, windows: impl Iterator<Item = &'a Window>) -> (usize, usize) {
    let parting = Parting::of(&metric.formula);
    let (lack, all) = windows.fold((0, 0), |(lack, all), window| {
        (lack + usize::from(parting.part(window).is_none()), all + 1)
    });
    if lack == all { (0, 0) } else { (lack, all) }
}

/// Returns true if a window of a side of `pairs` has the figures of `metric`.
pub(crate) fn has_figures(metric: &Metric, pairs: &[PairRecord]) -> bool {
    let parting = Parting::of(&metric.formula);
    let mut windows = pairs.iter().flat_map(|pair| [&pair.a, &pair.b]);
    windows.any(|window| parting.part(window).is_some())
}

/// Returns the values of `metric` for each pair that has them, grouped by set-up: first in the
/// window of side `b`, then in the window that `other` selects.
pub(super) fn parts<'a>(
    metric: &Metric,
    pairs: &[&'a PairRecord],
    other: impl Fn(&'a PairRecord) -> Option<&'a Window>,
) -> Vec<Vec<(Part, Part)>> {
    let parting = Parting::of(&metric.formula);
    by_set_up(pairs, |pair| Some((parting.part(&pair.a)?, parting.part(other(pair)?)?)))
}

/// Returns the values as [`parts`] does, with each lower bound of the sides in `raised` replaced by
/// more than any value; `None` if these sides have no lower bounds.
pub(super) fn parts_raised(
    metric: &Metric,
    pairs: &[&PairRecord],
    raised: [bool; 2],
) -> Option<Vec<Vec<(Part, Part)>>> {
    let parting = Parting::of(&metric.formula);
    let is_bound = |window: &Window| {
        let mut figures = metric.formula.figures();
        figures.any(|figure| window.is_at_least(figure))
    };
    let sides =
        |pair: &PairRecord| [raised[0] && is_bound(&pair.a), raised[1] && is_bound(&pair.b)];
    let of = |window: &Window, is_raised: bool| {
        let part = parting.part(window)?;
        Some(if is_raised { Part { over: f64::MAX, under: 1.0 } } else { part })
    };
    pairs.iter().any(|pair| sides(pair).contains(&true)).then(|| {
        by_set_up(pairs, |pair| {
            let [a, b] = sides(pair);
            Some((of(&pair.a, a)?, of(&pair.b, b)?))
        })
    })
}

/// Returns `metric` of the changed side's windows, grouped by set-up.
pub(crate) fn parts_of_b(metric: &Metric, pairs: &[&PairRecord]) -> Vec<Vec<Part>> {
    let parting = Parting::of(&metric.formula);
    by_set_up(pairs, |pair| parting.part(&pair.b))
}

/// Returns the figure of `metric` on each side over the admitted pairs, by the metric's estimate:
/// the median of the windows, or the ratio of their sums. `None` for a side that lacks it in all
/// windows.
pub(crate) fn figures(metric: &Metric, pairs: &[PairRecord]) -> [Option<f64>; 2] {
    let (parting, ours) = (Parting::of(&metric.formula), admitted(metric.clock, pairs));
    let sides: [fn(&PairRecord) -> &Window; 2] = [|pair| &pair.a, |pair| &pair.b];
    sides.map(|side| {
        let parts: Vec<Part> = ours.iter().filter_map(|pair| parting.part(side(pair))).collect();
        if metric.estimate() != Estimate::Ratios {
            return sums::sum(&parts, |part| *part).value();
        }
        let mut values: Vec<f64> = parts.iter().filter_map(|part| part.value()).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    })
}

/// Groups the values that `of` returns for pairs by the set-up of their sides. A pair without a
/// set-up number has a set-up of its own; pairs of one set-up are adjacent.
fn by_set_up<'a, T>(
    pairs: &[&'a PairRecord],
    of: impl Fn(&'a PairRecord) -> Option<T>,
) -> Vec<Vec<T>> {
    let alike =
        |one: &&PairRecord, other: &&PairRecord| one.set_up.is_some() && one.set_up == other.set_up;
    let groups = pairs.chunk_by(alike).map(|group| group.iter().filter_map(|pair| of(pair)));
    groups.map(Iterator::collect).filter(|group: &Vec<T>| !group.is_empty()).collect()
}

/// Returns the number of set-ups in `pairs`.
pub(crate) fn set_ups(pairs: &[&PairRecord]) -> usize {
    by_set_up(pairs, |_| Some(())).len()
}

fn admits(clock: Clock, pair: &PairRecord) -> bool {
    match clock {
        Clock::Wall => pair.accepted,
        Clock::Cost | Clock::Count => pair.cost_accepted,
    }
}

/// A metric's formula, split into numerator and denominator.
struct Parting {
    over: Formula,
    under: Formula,
}

impl Parting {
    fn of(formula: &Formula) -> Parting {
        let over = Formula { under: Vec::new(), ..formula.clone() };
        // A formula without a denominator is divided by 1 in each window, so its sum is divided by
        // the number of windows.
        let under = Formula { scale: 1.0, over: formula.under.clone(), under: Vec::new() };
        Parting { over, under }
    }

    /// Returns the parts for a window; `None` if a figure is missing.
    fn part(&self, window: &Window) -> Option<Part> {
        let over = self.over.of(window)?;
        let under = if self.under.over.is_empty() { 1.0 } else { self.under.of(window)? };
        Some(Part { over, under })
    }
}

impl Part {
    /// Returns true if a part is negative.
    pub(crate) fn is_negative(self) -> bool {
        self.over < 0.0 || self.under < 0.0
    }

    /// Returns true if the numerator or the denominator is 0, so that there is no logarithm.
    pub(crate) fn is_nothing(self) -> bool {
        self.over == 0.0 || self.under == 0.0
    }

    /// Returns the metric's value; `None` if the denominator is 0.
    pub(crate) fn value(self) -> Option<f64> {
        (self.under > 0.0).then(|| self.over / self.under)
    }
}
