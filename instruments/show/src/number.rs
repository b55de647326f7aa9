//! Formatting of numbers, readable for any value.
//!
//! A document may contain any value: a value that is not a number is printed as a dash, and a value
//! that is larger than any figure of ours has an exponent, so that no cell is longer than a few
//! characters.

pub use linerate_sys::text::grouped;

use crate::table::Cell;

/// Values from which numbers are printed with an exponent, because their digits do not fit in a
/// column.
const EXPONENT_FROM: f64 = 1e13;

/// The text for a missing figure.
const NONE: &str = "no figure";

/// Values below which numbers are printed with an exponent, because six digits after the point
/// would show fewer than three that are not 0.
const EXPONENT_BELOW: f64 = 1e-4;

/// Returns the number of decimals with which `x` has four digits in all; at most six.
#[must_use]
pub fn digits(x: f64) -> u8 {
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

/// Returns the number of decimals for a change of `pct` per cent.
#[must_use]
pub fn change_digits(pct: f64) -> u8 {
    match pct.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    }
}

/// Returns the table cell of a figure.
#[must_use]
pub fn cell(x: f64) -> Cell {
    match plain(x) && !tiny(x) {
        true => Cell::Real(x, digits(x)),
        false if x.is_finite() => Cell::Text(exponent(x)),
        false => Cell::Absent(NONE),
    }
}

/// Returns the table cell of a change in per cent.
#[must_use]
pub fn change_cell(pct: f64) -> Cell {
    match plain(pct) {
        true => Cell::Change(pct, change_digits(pct)),
        false if pct.is_finite() => Cell::Text(exponent(pct)),
        false => Cell::Absent(NONE),
    }
}

/// Formats a figure outside a table.
#[must_use]
pub fn figure(x: f64) -> String {
    cell(x).to_string()
}

/// Formats a change without its unit, with its sign.
#[must_use]
pub fn change(pct: f64) -> String {
    change_cell(pct).to_string()
}

/// Formats the ends of a change's interval: `[-52.1, -50.3]`. Both ends have the number of decimals
/// of the larger one.
#[must_use]
pub fn interval((low, high): (f64, f64)) -> String {
    if !plain(low) || !plain(high) {
        return format!("[{}, {}]", change(low), change(high));
    }
    let digits = usize::from(change_digits(low.abs().max(high.abs())));
    let end = |x: f64| grouped(&format!("{x:+.digits$}"));
    format!("[{}, {}]", end(low), end(high))
}

/// Formats an expected range: `-100 to -51`.
#[must_use]
pub fn range((low, high): (f64, f64)) -> String {
    let end = |x: f64| if plain(x) { format!("{x:+}") } else { exponent(x) };
    format!("{} to {}", end(low), end(high))
}

/// Formats a whole number: `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    grouped(&n.to_string())
}

/// Returns the table cell of a value of which only the upper bound is known.
#[must_use]
pub fn under(bound: f64) -> Cell {
    match cell(bound) {
        Cell::Real(bound, digits) => Cell::Under(bound, digits),
        Cell::Text(bound) => Cell::Text(format!("< {bound}")),
        other => other,
    }
}

/// Formats a number with `digits` after the decimal point: `-1,234.50`. There is no `-0.0`, and
/// `n/a` stands for NaN and infinity.
#[must_use]
pub fn real(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return "n/a".to_owned();
    }
    let text = format!("{x:.digits$}");
    let is_zero = text.bytes().all(|b| matches!(b, b'-' | b'0' | b'.'));
    grouped(if is_zero { text.trim_start_matches('-') } else { &text })
}

fn plain(x: f64) -> bool {
    x.is_finite() && x.abs() < EXPONENT_FROM
}

/// Returns true for a value other than 0 that would be printed with fewer than three digits other
/// than 0.
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
    fn a_number_with_given_digits_is_never_minus_0() {
        assert_eq!([-1234.5, -0.04, f64::NAN].map(|x| real(x, 1)), ["-1,234.5", "0.0", "n/a"]);
        assert_eq!(real(0.994, 2), "0.99");
    }

    #[test]
    fn both_ends_of_an_interval_have_the_same_digits() {
        assert_eq!(interval((-52.14, -9.3)), "[-52.1, -9.3]");
        assert_eq!(interval((-0.4, 0.6)), "[-0.40, +0.60]");
        assert_eq!(interval((f64::NAN, 1e40)), "[–, 1.00e40]");
        assert_eq!(range((-100.0, -51.5)), "-100 to -51.5");
    }
}
