//! A rate in bits a second, as `tc` writes it.

use std::fmt;
use std::str::FromStr;

use linerate_port::{Code, Error, Result};

use super::tbf::RATE_MAX_BPS;

/// The units of a rate, with their bits a second.
const UNITS: [(&str, u64); 5] = [
    ("Tbit", 1_000_000_000_000),
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

/// A rate in bits a second, 1 bit/s to 10 Tbit/s: `10Mbit`, `2.5Gbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

impl BitRate {
    /// Returns the rate of `bps` bits a second, or the nearest rate that a discipline can have.
    #[must_use]
    pub const fn from_bps(bps: u64) -> BitRate {
        match bps {
            0 => BitRate(1),
            1..=RATE_MAX_BPS => BitRate(bps),
            _ => BitRate(RATE_MAX_BPS),
        }
    }

    /// Returns the bits a second.
    #[must_use]
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Reads a rate; the error is the reason why it is none.
    pub(super) fn read(text: &str) -> std::result::Result<BitRate, &'static str> {
        const WANTED: &str = "say a rate in bits a second, as 10Mbit or 2.5Gbit";
        // One reader takes it for bits a second, and another for tc's bytes a second.
        const UNCLEAR: &str =
            "bps is bytes a second in tc: say 10Mbit for bits, or 80Mbit for 10 MB";
        const RANGE: &str =
            "say a rate from 1kbit to below 10Tbit; for no limit leave the option out";
        if text.ends_with("bps") {
            return Err(UNCLEAR);
        }
        let number = text.strip_suffix("bit").ok_or(WANTED)?;
        let (number, scale) = match number.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
            None => (number, 1.0),
            Some(rest) => match &number[rest.len()..] {
                "k" | "K" => (rest, 1e3),
                "M" | "m" => (rest, 1e6),
                "G" | "g" => (rest, 1e9),
                "T" | "t" => (rest, 1e12),
                _ => return Err(WANTED),
            },
        };
        let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let bps = number.parse::<f64>().ok().filter(|_| plain).ok_or(WANTED)? * scale;
        if bps < 1000.0 || bps >= RATE_MAX_BPS as f64 {
            return Err(RANGE);
        }
        Ok(BitRate(bps.round() as u64))
    }
}

impl FromStr for BitRate {
    type Err = Error;

    /// Reads a rate from 1 kbit/s to below 10 Tbit/s; only [`BitRate::from_bps`] makes others.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for anything else.
    fn from_str(text: &str) -> Result<BitRate> {
        BitRate::read(text).map_err(|fix| {
            let why = format!("'{text}' is no rate that a discipline can have");
            Error::new(Code::PortSyntax, format!("rate {text}"), why).fix(fix)
        })
    }
}

impl fmt::Display for BitRate {
    /// Formats the whole rate, with as many digits as it has. Rates outside the range of `from_str`
    /// are not read back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) =
            UNITS.into_iter().find(|(_, scale)| self.0 >= *scale).unwrap_or(("bit", 1));
        let (whole, part) = (self.0 / scale, self.0 % scale);
        if part == 0 {
            return write!(f, "{whole}{unit}");
        }
        let digits = scale.ilog10() as usize;
        let part = format!("{part:0digits$}");
        write!(f, "{whole}.{}{unit}", part.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_formatted_as_tc_does_and_reads_back() {
        for (bps, text) in [
            (1_000, "1kbit"),
            (1_001, "1.001kbit"),
            (10_000_000, "10Mbit"),
            (2_500_000_000, "2.5Gbit"),
            (1_000_000_001, "1.000000001Gbit"),
            (9_999_999_999_999, "9.999999999999Tbit"),
        ] {
            assert_eq!(BitRate::from_bps(bps).to_string(), text);
            assert_eq!(text.parse::<BitRate>().unwrap().bps(), bps);
        }
        assert_eq!(BitRate::from_bps(0).to_string(), "1bit");
        assert_eq!(BitRate::from_bps(u64::MAX).to_string(), "10Tbit");
        assert_eq!("18m".parse::<BitRate>().unwrap_err().code, Code::PortSyntax);
    }
}
