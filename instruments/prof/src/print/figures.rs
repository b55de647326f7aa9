//! Numbers as people read them.

use crate::diff::{By, Saving, Scale};

/// `1,234,567`.
pub(super) fn grouped(n: u64) -> String {
    group(&n.to_string())
}

/// `-1,234.50`, with so many digits behind the point. There is no `-0.0`, and what is not a number
/// is not known.
pub(super) fn grouped_real(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return "n/a".to_owned();
    }
    let text = format!("{:.digits$}", x.abs());
    let is_zero = text.bytes().all(|b| b == b'0' || b == b'.');
    let sign = if x < 0.0 && !is_zero { "-" } else { "" };
    match text.split_once('.') {
        Some((whole, rest)) => format!("{sign}{}.{rest}", group(whole)),
        None => format!("{sign}{}", group(&text)),
    }
}

fn group(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the name of the row that sums the functions not shown.
pub(super) fn more_functions(n: u64) -> String {
    format!("({} more function{})", grouped(n), plural(n))
}

/// `3 functions`.
pub(super) fn functions(n: u64) -> String {
    format!("{} function{}", grouped(n), plural(n))
}

const fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Per cent with one digit.
pub(super) fn percent(pct: f64) -> String {
    grouped_real(pct, 1)
}

/// `-53.0 %` for what was saved: a change of the cost, so that less is less.
pub(super) fn change(saved_pct: Option<f64>) -> String {
    saved_pct.map_or_else(
        || "n/a (nothing is listed without the change)".to_owned(),
        |pct| {
            let text = percent(-pct);
            let plus = if pct < 0.0 && text != "0.0" { "+" } else { "" };
            format!("{plus}{text} %")
        },
    )
}

/// A saving as it stands in a column.
pub(super) fn saving(saving: Saving) -> String {
    match saving {
        Saving::Is(pct) => percent(pct),
        Saving::AtLeast(pct) => format!("≥ {}", percent(pct)),
        Saving::Unknown => "n/a".to_owned(),
    }
}

/// Digits behind the point that a scaled count is worth: as many that a single sample is seen.
pub(super) fn digits(scale: Scale) -> usize {
    let one = scale.without_factor.min(scale.with_factor);
    let seen = if one > 0.0 { (-one.log10()).ceil().clamp(0.0, DIGITS_MAX) as usize } else { 0 };
    match scale.by {
        By::AsTheyAre => 0,
        By::Second => seen.max(1),
        By::KiloPacket | By::Share => seen.max(2),
    }
}

/// As many as a share of the largest total takes.
const DIGITS_MAX: f64 = 18.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(121_743), "121,743");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(grouped_real(-1234.5, 2), "-1,234.50");
    }

    #[test]
    fn nothing_is_minus_0_and_what_is_not_a_number_is_not_known() {
        assert_eq!(grouped_real(-0.04, 1), "0.0");
        assert_eq!(grouped_real(f64::NAN, 1), "n/a");
        assert_eq!(change(Some(-0.01)), "0.0 %");
    }

    #[test]
    fn less_cost_is_a_negative_change() {
        assert_eq!(change(Some(52.999_421)), "-53.0 %");
        assert_eq!(change(Some(-18.2)), "+18.2 %");
        assert!(change(None).starts_with("n/a"));
    }

    #[test]
    fn a_single_sample_of_many_packets_is_seen() {
        let of = |by, factor| digits(Scale { by, without_factor: 1.0, with_factor: factor });
        // 200 million packets: a sample is 0.000005 for each thousand.
        assert_eq!(of(By::KiloPacket, 1e3 / 200e6), 6);
        assert_eq!(of(By::KiloPacket, 1e3 / 100e3), 2);
        assert_eq!((of(By::Second, 0.1), of(By::Second, 0.01)), (1, 2));
        assert_eq!((of(By::AsTheyAre, 1.0), of(By::Share, 100.0 / 291_873.0)), (0, 4));
        assert_eq!((of(By::KiloPacket, 0.0), of(By::KiloPacket, f64::NAN)), (2, 2));
    }
}
