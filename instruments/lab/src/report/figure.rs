//! A figure of a run, set so that it can be read, whatever it is.
//!
//! A run's document may say anything: what is no number is a dash, and what is larger than any
//! figure of ours is set with an exponent, so that no cell is longer than a few characters.

use crate::table::{Cell, grouped};

/// From here on a number is set with an exponent: it has more digits than a column.
const EXPONENT_FROM: f64 = 1e13;

/// Why there is none.
const NONE: &str = "no figure";

/// Below this a number has fewer than three digits that are not 0 among six behind the point.
const EXPONENT_BELOW: f64 = 1e-4;

/// Digits behind the point that show four in all of `x`, and no more than six.
pub(crate) fn digits(x: f64) -> u8 {
    match x.abs() {
        x if !x.is_finite() || x >= 1000.0 || x == 0.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 10.0 => 2,
        x if x >= 1.0 => 3,
        x if x >= 0.1 => 4,
        x if x >= 0.01 => 5,
        _ => 6,
    }
}

/// Digits behind the point of a change of so many per cent.
pub(crate) fn change_digits(pct: f64) -> u8 {
    match pct.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    }
}

/// A figure of a table.
pub(crate) fn cell(x: f64) -> Cell {
    match plain(x) && !tiny(x) {
        true => Cell::Real(x, digits(x)),
        false if x.is_finite() => Cell::Text(exponent(x)),
        false => Cell::Absent(NONE),
    }
}

/// A change in per cent, of a table.
pub(crate) fn change_cell(pct: f64) -> Cell {
    match plain(pct) {
        true => Cell::Change(pct, change_digits(pct)),
        false if pct.is_finite() => Cell::Text(exponent(pct)),
        false => Cell::Absent(NONE),
    }
}

/// A figure by itself.
pub(crate) fn figure(x: f64) -> String {
    cell(x).to_string()
}

/// A change by itself, with its sign.
pub(crate) fn change(pct: f64) -> String {
    change_cell(pct).to_string()
}

/// Where a change lies: `[-52.1, -50.3]`, both ends with the digits of the larger.
pub(crate) fn interval((low, high): (f64, f64)) -> String {
    if !plain(low) || !plain(high) {
        return format!("[{}, {}]", change(low), change(high));
    }
    let digits = usize::from(change_digits(low.abs().max(high.abs())));
    let end = |x: f64| grouped(&format!("{x:+.digits$}"));
    format!("[{}, {}]", end(low), end(high))
}

/// A range that somebody expected: `-100 to -51`.
pub(crate) fn range((low, high): (f64, f64)) -> String {
    let end = |x: f64| if plain(x) { format!("{x:+}") } else { exponent(x) };
    format!("{} to {}", end(low), end(high))
}

/// A whole number.
pub(crate) fn count(n: u64) -> String {
    grouped(&n.to_string())
}

/// What a side's value is below, where that is all that is known.
pub(crate) fn under(bound: f64) -> Cell {
    match cell(bound) {
        Cell::Real(bound, digits) => Cell::Under(bound, digits),
        Cell::Text(bound) => Cell::Text(format!("< {bound}")),
        other => other,
    }
}

fn plain(x: f64) -> bool {
    x.is_finite() && x.abs() < EXPONENT_FROM
}

/// Whether it would be set as 0, or nearly, and is not.
fn tiny(x: f64) -> bool {
    x != 0.0 && x.abs() < EXPONENT_BELOW
}

fn exponent(x: f64) -> String {
    if x.is_finite() { format!("{x:.2e}") } else { "–".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_four_digits_and_a_huge_one_an_exponent() {
        let texts = [1_234_567.8, 123.456, 12.3456, 0.123_456, 0.0, 1e300].map(figure);
        assert_eq!(texts, ["1,234,568", "123.5", "12.35", "0.1235", "0", "1.00e300"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(figure), ["–", "–"]);
    }

    #[test]
    fn a_small_figure_has_three_digits_and_is_never_0() {
        let texts = [0.001_234, 0.000_123_4, 0.000_099_9, -4.567e-9, 5e-324].map(figure);
        assert_eq!(texts, ["0.001234", "0.000123", "9.99e-5", "-4.57e-9", "4.94e-324"]);
        assert_eq!([0.000_31, 3.1e-7].map(|x| under(x).to_string()), ["< 0.000310", "< 3.10e-7"]);
    }

    #[test]
    fn both_ends_of_an_interval_have_the_same_digits() {
        assert_eq!(interval((-52.14, -9.3)), "[-52.1, -9.3]");
        assert_eq!(interval((-0.4, 0.6)), "[-0.40, +0.60]");
        assert_eq!(interval((f64::NAN, 1e40)), "[–, 1.00e40]");
        assert_eq!(range((-100.0, -51.5)), "-100 to -51.5");
    }
}
