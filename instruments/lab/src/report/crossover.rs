//! The price of register access above which the changed side takes less CPU: a line for each level
//! of the other factors, with an interval. The prices come from a model, so the result does, too.
//!
//! Between two prices that were tried the change is taken to be on a straight line. The crossover
//! is where the change is 0 for the last time; its interval is from where the lower end of the
//! change's interval is to where the upper is. A price at which a side did not reach the load, or
//! most pairs were disturbed, has no change: where one could hide the last crossing, there is none
//! to tell.

use linerate_port::wrap::toll::Toll;

use super::posted::{grouped, reached};
use super::view::View;
use crate::analysis::is_valid;
use crate::experiment::Experiment;
use crate::record::{CellRecord, Effect, Status};

/// The factor whose levels are prices, and the setting that has them.
const TOLL: &str = "toll";
/// The metric that crosses.
const CPU: &str = "cpu_pct";

/// Returns the lines for a run that varies the price of register access; none for other runs.
pub(super) fn lines(view: &View<'_>) -> Vec<String> {
    let Some(experiment) = &view.experiment else { return Vec::new() };
    if experiment.metrics.iter().all(|metric| metric.name != CPU) {
        return Vec::new();
    }
    // A cell without figures has a price, too: no line may be drawn across it.
    let groups = grouped(view, &[TOLL], |_| true).into_iter();
    let line = |(title, cells): (String, Vec<&CellRecord>)| {
        let tried = tried(experiment, &cells);
        (tried.len() > 1).then(|| format!("MODEL: crossover of {CPU}, {title}: {}", told(&tried)))
    };
    groups.filter_map(line).collect()
}

/// Returns the prices of `cells` in ascending order, each with its change if that is usable.
///
/// A price that the machine could not measure is part of it only between two that it measured.
fn tried<'a>(experiment: &Experiment, cells: &[&'a CellRecord]) -> Vec<(f64, Option<&'a Effect>)> {
    let mut priced: Vec<(f64, &CellRecord)> =
        cells.iter().filter_map(|cell| Some((read_us(experiment, cell)?, *cell))).collect();
    priced.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let is_tried = |(_, cell): &(f64, &CellRecord)| cell.status != Status::Unsupported;
    let first = priced.iter().position(is_tried).unwrap_or(0);
    let end = priced.iter().rposition(is_tried).map_or(0, |last| last + 1);
    let priced = priced.get(first..end).unwrap_or_default().iter();
    priced.map(|&(price, cell)| (price, usable(experiment, cell))).collect()
}

/// Returns the time of a flushing read at the cell's price.
fn read_us(experiment: &Experiment, cell: &CellRecord) -> Option<f64> {
    let level = cell.at.get(TOLL)?;
    let factor = experiment.factors.iter().find(|factor| factor.name == TOLL)?;
    let level = factor.levels.iter().find(|known| known.name == *level)?;
    let toll: Toll = level.both.get(TOLL)?.value.to_string().parse().ok()?;
    Some(toll.read.as_secs_f64() * 1e6)
}

/// Returns the change of the CPU time in a cell; `None` if it is missing, a side did not reach the
/// load, or most pairs were disturbed.
fn usable<'a>(experiment: &Experiment, cell: &'a CellRecord) -> Option<&'a Effect> {
    let metric = experiment.metrics.iter().find(|metric| metric.name == CPU)?;
    let is_usable = reached(cell) == [true; 2] && is_valid(metric.clock, cell);
    cell.metrics.get(CPU).filter(|_| is_usable)
}

fn told(tried: &[(f64, Option<&Effect>)]) -> String {
    let of = |value: fn(&Effect) -> f64| {
        let points: Vec<_> =
            tried.iter().map(|(price, effect)| (*price, effect.map(value))).collect();
        last_zero(&points)
    };
    let rounded = |us: f64| (us * 10.0).round() / 10.0;
    let lowest = tried.first().map_or(0.0, |(price, _)| *price);
    let said = |at: At| match at {
        At::Below if lowest > 0.0 => format!("under {} us", rounded(lowest)),
        At::Below => "none".to_owned(),
        At::Price(us) => format!("{us:.1} us"),
        At::Above => {
            let us = tried.last().map_or(0.0, |(price, _)| *price);
            format!("over {} us", rounded(us))
        }
        At::Unknown => "n/a".to_owned(),
    };
    let (low, high) = (of(|effect| effect.ci95_pct.0), of(|effect| effect.ci95_pct.1));
    let interval = format!("[{}, {}]", said(low), said(high));
    let is_more = |effect: &Effect| effect.change_pct >= 0.0;
    match of(|effect| effect.change_pct) {
        At::Below if lowest > 0.0 => {
            format!("less at each price that was tried, {} {interval}", said(At::Below))
        }
        At::Below => format!("less even if register reads cost nothing {interval}"),
        At::Price(us) => format!("less from a flushing read of {us:.1} us on {interval}"),
        At::Above if tried.iter().all(|(_, effect)| effect.is_some_and(is_more)) => {
            format!("less at no price that was tried, {} {interval}", said(At::Above))
        }
        // A lower price has a change below 0, or none.
        At::Above => {
            format!("not less at the highest price that was tried, {} {interval}", said(At::Above))
        }
        At::Unknown => {
            let missing = tried.iter().filter(|(_, effect)| effect.is_none());
            let missing: Vec<String> = missing.map(|(us, _)| rounded(*us).to_string()).collect();
            format!(
                "n/a: at {} us the load was not reached, most pairs were disturbed, or there is no \
                 effect",
                missing.join(", ")
            )
        }
    }
}

/// A position on the scale of prices.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    /// The crossing is below the lowest price.
    Below,
    Price(f64),
    /// The crossing is above the highest price.
    Above,
    /// A price without a change may be next to the crossing, or beyond it.
    Unknown,
}

/// Returns the position of the last zero crossing of `points`, after which they are negative.
fn last_zero(points: &[(f64, Option<f64>)]) -> At {
    let is_below = |change: &Option<f64>| change.is_some_and(|change| change < 0.0);
    let Some(i) = points.iter().rposition(|(_, change)| !is_below(change)) else {
        return At::Below;
    };
    match (points.get(i), points.get(i + 1)) {
        (Some((_, None)), _) => At::Unknown,
        (Some((from, Some(high))), Some((to, Some(low)))) => {
            At::Price(from + (to - from) * high / (high - low))
        }
        _ => At::Above,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(change: f64, half: f64) -> Effect {
        let ci95_pct = (change - half, change + half);
        Effect { change_pct: change, ci95_pct, ..Effect::default() }
    }

    #[test]
    fn crossover_lies_between_two_prices_and_has_an_interval() {
        let of = |changes: [f64; 3]| {
            let effects = changes.map(|change| effect(change, 5.0));
            let [a, b, c] = &effects;
            told(&[(0.0, Some(a)), (1.0, Some(b)), (3.0, Some(c))])
        };
        assert_eq!(
            of([10.0, -10.0, -40.0]),
            "less from a flushing read of 0.5 us on [0.2 us, 0.8 us]"
        );
        // A side that is better at the lowest prices and worse at the next pays only above the last
        // crossing.
        assert_eq!(
            of([-1.0, 10.0, -10.0]),
            "less from a flushing read of 2.0 us on [1.5 us, 2.5 us]"
        );
        assert_eq!(
            of([-9.0, -10.0, -40.0]),
            "less even if register reads cost nothing [none, none]"
        );
        assert_eq!(
            of([-3.0, -10.0, -40.0]),
            "less even if register reads cost nothing [none, 0.3 us]"
        );
        assert_eq!(
            of([9.0, 8.0, 7.0]),
            "less at no price that was tried, over 3 us [over 3 us, over 3 us]"
        );
        let rising = [effect(9.0, 5.0), effect(8.0, 5.0)];
        assert_eq!(
            told(&[(0.0, Some(&rising[0])), (0.5, Some(&rising[1]))]),
            "less at no price that was tried, over 0.5 us [over 0.5 us, over 0.5 us]"
        );
    }

    #[test]
    fn sentence_claims_nothing_of_prices_that_were_not_tried_or_are_less() {
        let effects = [-10.0, -20.0, 10.0, 9.0].map(|change| effect(change, 5.0));
        let [less, least, more, last] = effects.each_ref().map(Some);
        let highest = "not less at the highest price that was tried, over 3 us";
        for lowest in [less, None] {
            let told = told(&[(0.0, lowest), (1.0, more), (3.0, last)]);
            assert!(told.starts_with(highest), "{told}");
        }
        assert_eq!(
            told(&[(1.0, less), (3.0, least)]),
            "less at each price that was tried, under 1 us [under 1 us, under 1 us]"
        );
    }

    #[test]
    fn price_that_the_machine_cannot_measure_has_no_line_drawn_across_it() {
        let experiment = crate::experiment::builtin("coalesce-bus").unwrap();
        let cell = |level: &str, change: Option<f64>| CellRecord {
            at: [(TOLL.to_owned(), level.to_owned())].into(),
            status: change.map_or(Status::Unsupported, |_| Status::Ok),
            metrics: change.into_iter().map(|pct| (CPU.to_owned(), effect(pct, 5.0))).collect(),
            ..CellRecord::default()
        };
        let of = |changes: [Option<f64>; 3]| {
            let [first, middle, last] = changes;
            let cells = [cell("3us", last), cell("none", first), cell("1us", middle)];
            let tried = tried(&experiment, &cells.each_ref());
            let known = tried.iter().map(|(us, effect)| (us.round() as u32, effect.is_some()));
            known.collect::<Vec<_>>()
        };
        assert_eq!(of([Some(9.0), None, Some(-9.0)]), [(0, true), (1, false), (3, true)]);
        assert_eq!(of([Some(9.0), Some(-9.0), None]), [(0, true), (1, true)]);
        assert!(of([None; 3]).is_empty());
    }

    #[test]
    fn price_without_a_change_matters_only_beyond_the_last_crossing() {
        let [more, less] = [10.0, -10.0].map(|change| effect(change, 5.0));
        let (more, less) = (Some(&more), Some(&less));
        let why = "the load was not reached, most pairs were disturbed, or there is no effect";
        assert_eq!(told(&[(0.0, more), (1.0, None), (3.0, less)]), format!("n/a: at 1 us {why}"));
        assert_eq!(told(&[(0.0, more), (1.0, less), (3.0, None)]), format!("n/a: at 3 us {why}"));
        assert_eq!(
            told(&[(0.0, None), (1.0, more), (3.0, less)]),
            "less from a flushing read of 2.0 us on [1.5 us, 2.5 us]"
        );
        // Where the lower end of the interval crosses is not known, but the change itself is.
        let unsure = effect(2.0, 5.0);
        assert_eq!(
            told(&[(0.0, None), (1.0, Some(&unsure)), (3.0, less)]),
            "less from a flushing read of 1.3 us on [n/a, 2.2 us]"
        );
    }

    #[test]
    fn price_at_which_a_cell_was_disturbed_or_missed_its_load_has_no_change() {
        let experiment = crate::experiment::builtin("coalesce-bus").unwrap();
        let cell = || CellRecord {
            metrics: [(CPU.to_owned(), effect(9.0, 5.0))].into(),
            ..CellRecord::default()
        };
        let has_change = |cell: CellRecord| usable(&experiment, &cell).is_some();
        assert!(has_change(cell()));
        assert!(!has_change(CellRecord { is_unfinished: true, ..cell() }));
        assert!(!has_change(CellRecord { status: Status::Unreachable, ..cell() }));
        let pairs = vec![crate::record::PairRecord::default(); 3];
        assert!(!has_change(CellRecord { pairs, ..cell() }), "none of them was admitted");
    }
}
