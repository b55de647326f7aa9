//! A decimal number with its printed digits, and exact arithmetic.
//!
//! Old posts were made with `bc`, which truncates and prints no 0 before the point. A check to the
//! last digit must compute as `bc` does; binary floating point has other last digits.

use std::fmt;

use linerate_show::table::Cell;
use serde::{Serialize, Serializer};

/// Most digits of a number. The product of two numbers and a scale then fits in 128 bits.
const DIGITS_MAX: usize = 15;

/// A decimal number: a multiple (`units`) of its last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    units: i128,
    digits: u8,
}

/// The treatment of digits that are not printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Rounded to the nearest; ties away from 0.
    Nearest,
    /// Truncated towards 0, as `bc` does.
    Truncate,
}

impl Decimal {
    /// Returns a whole number.
    #[must_use]
    pub fn whole(n: u64) -> Decimal {
        Decimal { units: i128::from(n), digits: 0 }
    }

    /// Parses `1.51`, `.72`, `-8.65`, `235,478`; `None` for anything else, and for more than 15
    /// digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Decimal> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole = grouped(whole)?;
        let all = whole.chars().chain(fraction.chars());
        if whole.len() + fraction.len() > DIGITS_MAX || text.ends_with('.') || text.is_empty() {
            return None;
        }
        let mut units = 0i128;
        for c in all {
            units = units * 10 + i128::from(c.to_digit(10)?);
        }
        let digits = fraction.len() as u8; // At most DIGITS_MAX.
        Some(Decimal { units: if negative { -units } else { units }, digits })
    }

    /// Returns the exact change from `before` to `after` in per cent of `before`, with `digits`
    /// after the decimal point; `None` if `before` is 0.
    #[must_use]
    pub fn change_pct(
        before: Decimal,
        after: Decimal,
        digits: u8,
        rounding: Rounding,
    ) -> Option<Decimal> {
        let (before, after) = aligned(before, after)?;
        let change = after.checked_sub(before)?.checked_mul(100)?.checked_mul(power(digits)?)?;
        Some(Decimal { units: divided(change, before, rounding)?, digits })
    }

    /// Returns `self / by` with `digits` after the decimal point; `None` if `by` is 0.
    #[must_use]
    pub fn divided_by(self, by: Decimal, digits: u8, rounding: Rounding) -> Option<Decimal> {
        let (dividend, divisor) = aligned(self, by)?;
        let dividend = dividend.checked_mul(power(digits)?)?;
        Some(Decimal { units: divided(dividend, divisor, rounding)?, digits })
    }

    /// Returns the number with `digits` digits after the decimal point, rounded or with zeros
    /// appended.
    #[must_use]
    pub fn with_digits(self, digits: u8, rounding: Rounding) -> Option<Decimal> {
        self.divided_by(Decimal::whole(1), digits, rounding)
    }

    /// Returns the sum, with the decimals of the number that has more.
    #[must_use]
    pub fn plus(self, other: Decimal) -> Option<Decimal> {
        let (a, b) = aligned(self, other)?;
        Some(Decimal { units: a.checked_add(b)?, digits: self.digits.max(other.digits) })
    }

    /// Returns the number as an integer; `None` if it is negative or no integer.
    #[must_use]
    pub fn as_count(self) -> Option<u64> {
        let one = power(self.digits)?;
        (self.units % one == 0).then(|| u64::try_from(self.units / one).ok()).flatten()
    }

    /// Returns the nearest `f64`.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        self.units as f64 / 10f64.powi(i32::from(self.digits))
    }

    /// Formats the number as `bc` does: `.72`, not `0.72`, and `0`, not `0.00`.
    #[must_use]
    pub fn as_bc_prints(self) -> String {
        if self.units == 0 {
            return "0".to_owned();
        }
        let text = self.to_string();
        match text.strip_prefix('-') {
            Some(rest) => format!("-{}", rest.strip_prefix("0.").map_or(rest.into(), dotted)),
            None => text.strip_prefix("0.").map_or(text.clone(), dotted),
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = usize::from(self.digits);
        let text = format!("{:0>width$}", self.units.unsigned_abs(), width = digits + 1);
        let (whole, fraction) = text.split_at(text.len() - digits);
        let point = if digits > 0 { "." } else { "" };
        f.pad_integral(self.units >= 0, "", &format!("{whole}{point}{fraction}"))
    }
}

impl From<Decimal> for Cell {
    fn from(number: Decimal) -> Cell {
        Cell::Printed(number.to_string())
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.digits, i64::try_from(self.units)) {
            (0, Ok(whole)) => serializer.serialize_i64(whole),
            _ => serializer.serialize_f64(self.to_f64()),
        }
    }
}

/// Returns the digits without the commas between thousands; `None` if a comma is anywhere else.
fn grouped(whole: &str) -> Option<String> {
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let commas = whole.contains(',');
    let sound = groups.all(|group| group.len() == 3) && (!commas || (1..=3).contains(&first.len()));
    sound.then(|| whole.replace(',', ""))
}

fn dotted(fraction: &str) -> String {
    format!(".{fraction}")
}

/// Returns both numbers in units of the last digit of the finer one.
fn aligned(a: Decimal, b: Decimal) -> Option<(i128, i128)> {
    let digits = a.digits.max(b.digits);
    let scaled = |d: Decimal| d.units.checked_mul(power(digits - d.digits)?);
    Some((scaled(a)?, scaled(b)?))
}

fn power(digits: u8) -> Option<i128> {
    10i128.checked_pow(u32::from(digits))
}

fn divided(dividend: i128, divisor: i128, rounding: Rounding) -> Option<i128> {
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend.checked_rem(divisor)?.unsigned_abs();
    let up = rounding == Rounding::Nearest && rest >= divisor.unsigned_abs() - rest;
    let away = if (dividend < 0) == (divisor < 0) { 1 } else { -1 };
    Some(quotient + if up { away } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_number_keeps_the_digits_that_it_was_written_with() {
        for text in ["0", "7", "1.51", "64.05", "-8.65", "83.60", "0.0210", "-0.05"] {
            assert_eq!(d(text).to_string(), text);
        }
        assert_eq!(d("235,478").as_count(), Some(235_478));
        assert_eq!(d(".72").to_string(), "0.72");
        assert_eq!(format!("{:>7}|{:>+7}", d("-8.65"), d("1.5")), "  -8.65|   +1.5");
    }

    #[test]
    fn text_that_is_no_number_parses_to_none() {
        let long = "1234567890123456";
        for text in
            ["", "-", ".", "1.", "1.2.3", "12a", "1,23", ",123", "1234,567", "+1", "٣", long]
        {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn bc_truncates_towards_zero_and_leaves_the_zero_out() {
        let change = |a: &str, b: &str, r| Decimal::change_pct(d(a), d(b), 2, r).unwrap();
        // 93.1979…
        assert_eq!(change("35313", "68224", Rounding::Truncate), d("93.19"));
        assert_eq!(change("35313", "68224", Rounding::Nearest), d("93.20"));
        // -4.9374…, -8.6550…
        assert_eq!(change("246546", "234373", Rounding::Truncate), d("-4.93"));
        assert_eq!(change("8573", "7831", Rounding::Nearest), d("-8.66"));
        assert_eq!(change("1930", "1944", Rounding::Truncate).as_bc_prints(), ".72");
        assert_eq!(d("-0.50").as_bc_prints(), "-.50");
        assert_eq!(d("10.50").as_bc_prints(), "10.50");
        assert_eq!(change("1930", "1930", Rounding::Truncate).as_bc_prints(), "0");
    }

    #[test]
    fn the_middle_is_rounded_away_from_zero() {
        let rounded = |text: &str| d(text).with_digits(0, Rounding::Nearest).unwrap().to_string();
        assert_eq!([rounded("0.5"), rounded("-0.5"), rounded("0.49")], ["1", "-1", "0"]);
        let cut = |text: &str| d(text).with_digits(0, Rounding::Truncate).unwrap().to_string();
        assert_eq!([cut("0.9"), cut("-8.65")], ["0", "-8"]);
    }

    #[test]
    fn sums_and_quotients_are_exact() {
        assert_eq!(d("64.05").plus(d("127.54")), Some(d("191.59")));
        assert_eq!(d("0.1").plus(d("0.2")), Some(d("0.3")));
        assert_eq!(d("45").divided_by(d("17"), 2, Rounding::Nearest), Some(d("2.65")));
        assert_eq!(d("1").divided_by(d("0"), 2, Rounding::Nearest), None);
        assert_eq!(Decimal::change_pct(d("0"), d("1"), 2, Rounding::Truncate), None);
    }

    #[test]
    fn the_largest_numbers_overflow_into_none_and_not_into_a_panic() {
        let large = d("999999999999999");
        let small = d("0.00000000000001");
        assert_eq!(Decimal::change_pct(small, large, 15, Rounding::Nearest), None);
        assert_eq!(large.divided_by(small, 30, Rounding::Nearest), None);
        assert_eq!(large.with_digits(200, Rounding::Nearest), None);
    }
}
