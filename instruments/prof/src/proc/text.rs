//! Rows set in columns, and figures that one can read.

use std::fmt;

/// Writes rows: the first column to the left, the others to the right, two spaces between.
pub(crate) fn aligned<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    rows: &[[String; N]],
) -> fmt::Result {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            match at {
                0 => write!(f, "{cell:width$}")?,
                _ => write!(f, "  {cell:>width$}")?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

/// `1,234,567`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A figure with about three digits that mean something: `0`, `<0.0001`, `0.0213`, `4.57`, `81.2`,
/// `1,234`.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "n/a".into(),
        _ if size == 0.0 => "0".into(),
        // Little is not nothing.
        _ if size < 0.00005 => "<0.0001".into(),
        _ if size < 0.0995 => format!("{value:.4}"),
        _ if size < 9.995 => format!("{value:.2}"),
        _ if size < 99.95 => format!("{value:.1}"),
        _ if value < 0.0 => format!("-{}", thousands(size.round() as u64)),
        _ => thousands(size.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_thousands_apart_and_three_digits() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        let said = [0.0, 1e-9, 0.0213, 4.567, 81.24, 99.96, 1234.4, -1234.6, f64::NAN].map(figure);
        assert_eq!(
            said,
            ["0", "<0.0001", "0.0213", "4.57", "81.2", "100", "1,234", "-1,235", "n/a"]
        );
    }
}
