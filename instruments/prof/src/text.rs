//! Formatting of figures and sentences in this crate.

use linerate_show::number;
use linerate_show::words::{WIDTH, wrapped_at};

/// Returns a figure with about three digits that mean something: `0`, `<0.0001`, `0.0213`, `4.57`,
/// `81.2`, `1,234`.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "n/a".into(),
        _ if size == 0.0 => "0".into(),
        // A small figure must not be printed as 0.
        _ if size < 0.00005 => "<0.0001".into(),
        _ if size < 0.0995 => format!("{value:.4}"),
        _ if size < 9.995 => format!("{value:.2}"),
        _ if size < 99.95 => format!("{value:.1}"),
        _ => number::real(value, 0),
    }
}

/// Returns `text` broken into lines that begin with `indent`; all lines but the first are indented
/// by four more columns. Lines are two columns narrower than a screen, because reports indent them
/// again.
pub(crate) fn wrapped(indent: &str, text: &str) -> String {
    wrapped_at(WIDTH - 2, text, indent, &format!("{indent}    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_about_three_digits() {
        let said = [0.0, 1e-9, 0.0213, 4.567, 81.24, 99.96, 1234.4, -1234.6, f64::NAN].map(figure);
        assert_eq!(
            said,
            ["0", "<0.0001", "0.0213", "4.57", "81.2", "100", "1,234", "-1,235", "n/a"]
        );
    }
}
