//! The values of options: their parsers, and the help of those that are knobs.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use linerate::knob::Knob;
use linerate::units;

/// Remedy for a time of a run that is not above 0.
const TIME: &str = "write a time above 0, as in 10s or 500ms";

/// Parses the number of a CPU in a list.
///
/// # Errors
/// A text that says how to write the list.
pub fn cpu(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write CPU numbers separated by commas, as in 0,1".into())
}

/// Returns the help text of a knob's flag.
pub(super) fn effect(knob: &Knob) -> String {
    let default = if knob.or.is_empty() {
        String::new()
    } else {
        format!(", by default {}", knob.default_text())
    };
    format!("{} ({knob} {}{default})", knob.effect, knob.unit)
}

/// Returns a parser for numbers in the knob's range.
pub(super) fn number(knob: &'static Knob) -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(knob.min..=knob.max)
}

/// Parses a setting of the library; an error has its remedy in parentheses.
pub(super) fn setting<T: FromStr<Err = linerate::Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: linerate::Error| format!("{} ({})", e.why, e.fix))
}

/// Parses the time of a run; refuses 0, and the option that follows if the time was forgotten.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    match units::duration(text) {
        Err(_) if text.starts_with('-') => Err(TIME.into()),
        Ok(Duration::ZERO) => Err(TIME.into()),
        parsed => Ok(parsed?),
    }
}

pub(super) fn rate(text: &str) -> Result<String, String> {
    units::rate(text)?;
    Ok(text.to_owned())
}

/// Accepts a value that goes into the text of a port, in which a comma would begin another option.
pub(super) fn one_value(text: &str) -> Result<String, String> {
    if text.contains(',') { Err("one value, without a comma".into()) } else { Ok(text.to_owned()) }
}

pub(super) fn receiver(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an address and a port: 192.0.2.7:7777 or [2001:db8::7]:7777".into())
}

/// Returns a parser that accepts one of two words and returns its value.
pub(super) fn one_of<T>(words: &'static [(&'static str, T); 2]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let [first, second] = words;
    PossibleValuesParser::new([first.0, second.0])
        .map(|word| if word == first.0 { first.1 } else { second.1 })
}

/// Parses the number of frames, optionally with their size in bytes; the default size is 16384.
pub(super) fn jumbo(text: &str) -> Result<(u32, u32), String> {
    let (count, bytes) = text.split_once(':').unwrap_or((text, "16384"));
    Ok((frames(count)?, frames(bytes)?))
}

pub(super) fn packets(text: &str) -> Result<u64, String> {
    match units::count(text)? {
        0 => Err("at least 1 packet".into()),
        n => Ok(n),
    }
}

pub(super) fn frames(text: &str) -> Result<u32, String> {
    number_below(text, |most| format!("a pool has at most {most} frames"))
}

pub(super) fn frame_bytes(text: &str) -> Result<u32, String> {
    number_below(text, |most| format!("a frame has at most {most} bytes"))
}

/// Parses a number of 32 bits; `why` says why a larger one is refused.
fn number_below(text: &str, why: impl FnOnce(u32) -> String) -> Result<u32, String> {
    u32::try_from(units::count(text)?).map_err(|_| why(u32::MAX))
}
