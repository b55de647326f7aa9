//! Formatting of numbers for people.

use linerate_show::number;

use crate::diff::{By, Figures, Scale};

/// Returns the name of the row that sums the functions not shown.
pub(super) fn more_functions(n: u64) -> String {
    format!("({} more function{})", number::count(n), plural(n))
}

/// Formats a number of functions: `3 functions`.
pub(super) fn functions(n: u64) -> String {
    format!("{} function{}", number::count(n), plural(n))
}

const fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Formats per cent with one digit.
pub(super) fn percent(pct: f64) -> String {
    number::real(pct, 1)
}

/// Formats a saving as a change of the cost: `-53.0 %` for a saving of 53 %.
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

/// Formats a saving for a column.
pub(super) fn saving(figures: Figures) -> String {
    match (figures.saving_pct, figures.saving_pct_at_least) {
        (Some(pct), _) => percent(pct),
        (None, Some(pct)) => format!("≥ {}", percent(pct)),
        (None, None) => "n/a".to_owned(),
    }
}

/// Returns the number of digits after the decimal point that a scaled count needs to show a single
/// sample.
pub(super) fn digits(scale: Scale) -> usize {
    let one = scale.without_factor.min(scale.with_factor);
    let seen = if one > 0.0 { (-one.log10()).ceil().clamp(0.0, DIGITS_MAX) as usize } else { 0 };
    match scale.by {
        By::AsTheyAre => 0,
        By::Second => seen.max(1),
        By::KiloPacket | By::Share => seen.max(2),
    }
}

/// Most digits after the decimal point, enough for a share of the largest total.
const DIGITS_MAX: f64 = 18.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_cost_is_a_negative_change() {
        assert_eq!(change(Some(-0.01)), "0.0 %");
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
