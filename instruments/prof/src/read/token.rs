//! Strict parsers for the words of a row: counts, addresses, loads and names.

use super::lines::excerpt;
use crate::profile::Load;

/// Parses a count, which has digits only.
///
/// # Errors
/// Why it is none.
pub(super) fn count(text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{} is not a count", excerpt(text)));
    }
    text.parse().map_err(|_| format!("the count {text:.40} does not fit in 64 bits"))
}

/// Parses an address: hexadecimal digits, with or without `0x`.
///
/// # Errors
/// Why it is none.
pub(super) fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!("{} is not an address", excerpt(text)));
    }
    u64::from_str_radix(digits, 16)
        .map_err(|_| format!("the address {text:.40} does not fit in 64 bits"))
}

/// Parses a normalised load: digits, a point, digits.
///
/// # Errors
/// Why it is none.
pub(super) fn load(text: &str) -> Result<Load, String> {
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let parts = text.split_once('.').filter(|(whole, part)| all_digits(whole) && all_digits(part));
    let value = parts.and_then(|_| text.parse::<f64>().ok()).filter(|value| value.is_finite());
    let digits = parts.and_then(|(_, part)| u8::try_from(part.len()).ok());
    match (value, digits) {
        (Some(value), Some(digits)) => Ok(Load { value, digits }),
        _ => Err(format!("{} is not a load", excerpt(text))),
    }
}

/// Returns true if the text can be the name of a function: a demangled name may have blanks, but
/// then also brackets.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && (!text.contains(char::is_whitespace) || text.contains(['<', '(', '{']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_strict() {
        assert_eq!(count("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "+1", "-1", "1.0", "0x1", "18446744073709551616", "١"] {
            assert!(count(bad).is_err(), "{bad}");
        }
        assert_eq!(address("0xC0105280"), Ok(0xc010_5280));
        for bad in ["", "0x", "+1", "11112222333344445"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(load("584.2500"), Ok(Load { value: 584.25, digits: 4 }));
        let huge = format!("{}.0", "9".repeat(400));
        for bad in ["", "1", ".5", "1.", "-1.0", "nan", "inf", "1e3", "1.0.0", &huge] {
            assert!(load(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_with_blanks_has_brackets() {
        for name in ["f", "f.isra.0", "<A as B>::c", "operator new(unsigned long)", "[other]"] {
            assert!(is_name(name), "{name}");
        }
        assert!(!is_name("") && !is_name("of them"));
    }
}
