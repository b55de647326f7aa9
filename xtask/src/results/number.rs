//! Numbers in rendered tables.

/// Largest number of digits after the decimal point.
const DIGITS_MAX: usize = 9;

/// Formats a number with three significant digits, and with commas between thousands: `0.0267`,
/// `8.73`, `1,449`.
pub fn number(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        x if x >= 0.9995 => 2,
        x => digits_below_one(x),
    };
    let text = format!("{:.digits$}", x.abs());
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(w, r)| (w, Some(r)));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let is_zero = text.chars().all(|c| c == '0' || c == '.');
    let sign = if x < 0.0 && !is_zero { "−" } else { "" };
    format!("{sign}{grouped}{}", rest.map_or(String::new(), |rest| format!(".{rest}")))
}

/// Returns the number of digits after the decimal point of a number from 0 to 1.
fn digits_below_one(x: f64) -> usize {
    let (mut digits, mut scaled) = (3, 1000.0 * x);
    while scaled > 0.0 && scaled < 99.95 && digits < DIGITS_MAX {
        scaled *= 10.0;
        digits += 1;
    }
    digits
}

/// Formats a number with its sign and one digit after the decimal point.
pub fn signed(pct: f64) -> String {
    let sign = if pct < 0.0 { "−" } else { "+" };
    format!("{sign}{:.1}", pct.abs())
}

/// Returns the median; `None` if there is no number. Sorts the numbers.
pub fn median(all: &mut [f64]) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let upper = *all.get(all.len() / 2)?;
    Some(f64::midpoint(all[(all.len() - 1) / 2], upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        let of = [0.2667, 0.9996, 8.7333, 9.996, 47.96, 99.96, 1449.4, 3_192_540.0, -5.0, 0.0];
        let said = [
            "0.267",
            "1.00",
            "8.73",
            "10.0",
            "48.0",
            "100",
            "1,449",
            "3,192,540",
            "−5.00",
            "0.000",
        ];
        assert_eq!(of.map(number), said);
        let small = [0.05, 0.002_674, -0.0996, 0.009_98, 1e-12, -1e-12];
        let said = ["0.0500", "0.00267", "−0.0996", "0.00998", "0.000000000", "0.000000000"];
        assert_eq!(small.map(number), said);
    }

    #[test]
    fn median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median(&mut [10.0, 1.0, 4.0, 2.0]), Some(3.0));
        assert_eq!(median(&mut [5.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut []), None);
    }
}
