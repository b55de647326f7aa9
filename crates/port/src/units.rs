//! Durations, rates, sizes and counts as people write them. An unknown unit is an error.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The error of a text that is no duration, rate, size or count. It displays the reason, with what
/// would be right: `'10' needs a unit: ns us ms s m h`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(String);

impl ParseError {
    pub(crate) fn new(why: impl Into<String>) -> ParseError {
        ParseError(why.into())
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ParseError {}

/// Returns the reason, so that a parser of a program's own whose error is a text can use `?`.
impl From<ParseError> for String {
    fn from(e: ParseError) -> String {
        e.0
    }
}

/// A packet rate, given in packets or in bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// A rate in packets a second.
    Pps(f64),
    /// A rate in bits a second; preamble and gap of frames do not count.
    Bps(f64),
}

impl Rate {
    /// Returns the number of packets a second for frames of `frame_bytes`.
    #[must_use]
    pub fn pps(self, frame_bytes: f64) -> f64 {
        match self {
            Rate::Pps(pps) => pps,
            Rate::Bps(bps) => bps / (8.0 * frame_bytes.max(1.0)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = match *self {
            Rate::Pps(n) => (n, "pps"),
            Rate::Bps(n) => (n, "bps"),
        };
        let (n, prefix) = match n {
            n if n >= 1e9 => (n / 1e9, "G"),
            n if n >= 1e6 => (n / 1e6, "M"),
            n if n >= 1e3 => (n / 1e3, "k"),
            n => (n, ""),
        };
        write!(f, "{n}{prefix}{unit}")
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    /// Parses a rate as [`rate`] does.
    fn from_str(text: &str) -> Result<Rate, ParseError> {
        rate(text)
    }
}

/// Greatest count, which a floating-point number also represents.
const COUNT_MAX: u64 = 1 << 53;

/// Splits `10ms` into 10 and `ms`.
fn split(text: &str) -> Result<(f64, &str), ParseError> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() => Ok((n, unit)),
        _ => Err(ParseError(format!("'{text}' does not start with a number"))),
    }
}

/// Units of rates.
const RATES: &str = "pps kpps Mpps bps Mbps Gbps";

/// Returns the error for a `unit` that is missing or not one of `units`.
fn no_unit(text: &str, unit: &str, units: &str) -> ParseError {
    if unit.is_empty() {
        return ParseError(format!("'{text}' needs a unit: {units}"));
    }
    ParseError(format!("'{unit}' is not a unit: {units}"))
}

/// Parses a duration: `10s`, `250ms`, `5us`, `100ns`, `2m`, `1h`.
///
/// # Errors
/// If there is no unit, or an unknown one; the error lists the units.
pub fn duration(text: &str) -> Result<Duration, ParseError> {
    let (n, unit) = split(text)?;
    let scale = match unit {
        "h" => 3600.0,
        "m" | "min" => 60.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return Err(no_unit(text, unit, "ns us ms s m h")),
    };
    Duration::try_from_secs_f64(n * scale).map_err(|_| ParseError(format!("'{text}' is too long")))
}

/// Parses a rate: `1.5Mpps`, `800kpps`, `4Gbps`, `100Mbps`.
///
/// # Errors
/// If there is no unit, or an unknown one; the error lists the units.
pub fn rate(text: &str) -> Result<Rate, ParseError> {
    let (n, unit) = split(text)?;
    let (prefix, kind): (_, fn(f64) -> Rate) = match (unit.strip_suffix("pps"), unit) {
        (Some(prefix), _) => (prefix, Rate::Pps),
        (None, unit) => match unit.strip_suffix("bps") {
            Some(prefix) => (prefix, Rate::Bps),
            None => return Err(no_unit(text, unit, RATES)),
        },
    };
    let scale = match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        _ => return Err(no_unit(text, unit, RATES)),
    };
    if n <= 0.0 {
        return Err(ParseError(format!("'{text}' is not a rate: it must be above 0")));
    }
    Ok(kind(n * scale))
}

/// Parses a count: `1000`, `10k`, `2.5M`.
///
/// # Errors
/// Says what a count is.
pub fn count(text: &str) -> Result<u64, ParseError> {
    let (_, unit) = split(text)?;
    let zeros = match unit {
        "" => 0,
        "k" | "K" => 3,
        "M" => 6,
        "G" => 9,
        _ => return Err(ParseError(format!("'{text}' is not a count: write 1000, 10k or 2.5M"))),
    };
    // Decimal digits, because a product of floating-point numbers such as 4.1 and a million is not
    // exact.
    let number = text.strip_suffix(unit).unwrap_or(text);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let part = part.trim_end_matches('0');
    let n = match part.len() <= zeros {
        true => format!("0{whole}{part:0<zeros$}").parse().ok(),
        false => None,
    };
    n.filter(|n| *n <= COUNT_MAX)
        .ok_or_else(|| ParseError(format!("'{text}' is not a whole number, or too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_mean_what_they_say() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(rate("1.5Mpps"), Ok(Rate::Pps(1.5e6)));
        assert_eq!(rate("4Gbps").unwrap().pps(500.0), 1e6);
        assert_eq!(count("2.5M"), Ok(2_500_000));
        assert_eq!(Rate::Pps(1.5e6).to_string(), "1.5Mpps");
    }

    #[test]
    fn count_is_exact_to_its_last_digit() {
        for (text, n) in [
            ("4.1M", 4_100_000),
            ("16.1k", 16_100),
            ("1.001M", 1_001_000),
            ("1.07G", 1_070_000_000),
            (".5k", 500),
            ("5.", 5),
            ("1.000", 1),
            ("0.0", 0),
            (".0", 0),
            ("007", 7),
            ("9007199254740992", 1 << 53),
        ] {
            assert_eq!(count(text), Ok(n), "{text}");
        }
        for text in ["1.0001k", "0.5", "9007199254740993", ".", "1.2.3k", "18446744073709551616"] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_of_parsing_goes_where_a_program_sends_its_errors() {
        fn program(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
            Ok(duration(text)?)
        }
        fn parser(text: &str) -> Result<u64, String> {
            Ok(count(text)?)
        }
        assert_eq!(program("10").unwrap_err().to_string(), "'10' needs a unit: ns us ms s m h");
        assert_eq!(parser("x").unwrap_err(), "'x' does not start with a number");
        let kept = std::io::Error::other(duration("10").unwrap_err());
        assert!(kept.get_ref().is_some_and(|e| e.is::<ParseError>()));
    }

    #[test]
    fn a_rate_is_parsed_as_it_is_displayed() {
        for text in ["1.5Mpps", "800kpps", "4Gbps", "12pps"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10".parse::<Rate>(), rate("10"));
    }

    #[test]
    fn an_unknown_unit_is_an_error() {
        assert_eq!(
            duration("10sec").unwrap_err().to_string(),
            "'sec' is not a unit: ns us ms s m h"
        );
        assert_eq!(duration("10").unwrap_err().to_string(), "'10' needs a unit: ns us ms s m h");
        assert_eq!(
            rate("1Tpps").unwrap_err().to_string(),
            "'Tpps' is not a unit: pps kpps Mpps bps Mbps Gbps"
        );
        for text in ["10", "10x", "s", "", "1e400s", "-1s", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["10", "10pp", "1Tpps", "0pps", "bogus"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "1.5", "1x", "9999999999G"] {
            assert!(count(text).is_err(), "{text}");
        }
    }
}
