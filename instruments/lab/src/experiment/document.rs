//! An experiment's file as parsed by serde: its tables and keys, and the valid values.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use linerate_port::{nearest, units};
use linerate_seeds::POSTS;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::Value as Toml;
use toml::de::DeTable;

use super::{Factor, Family, FixedPoint, Formula, Metric, Side};
use crate::scenario::SCENARIOS;
use crate::settings::{Setting, Settings, Value, wrong};
use crate::{Error, Result};

/// A value read from `D`.
type Read<'de, T, D> = std::result::Result<T, <D as Deserializer<'de>>::Error>;

/// Most keys in one table of settings, and most values in one list.
const SETTINGS_MAX: usize = 64;
/// The maximum length of a name that is printed in a column, in letters.
const NAME_MAX: usize = 48;
/// The largest number of pairs in a cell: if so many pairs do not suffice, the windows are too
/// short.
const PAIRS_MAX: i64 = 10_000;
const WINDOW: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_mins(1);

/// The whole file of an experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    #[serde(rename = "version", deserialize_with = "version")]
    _version: (),
    #[serde(deserialize_with = "id")]
    pub id: String,
    #[serde(deserialize_with = "sentence")]
    pub title: String,
    #[serde(deserialize_with = "sentence")]
    pub question: String,
    #[serde(default, deserialize_with = "post")]
    pub reproduces: Option<String>,
    #[serde(deserialize_with = "scenario")]
    pub scenario: Option<String>,
    /// The crates whose code the experiment measures: `cargo xtask tables` lists the stored runs
    /// that are older than this code.
    #[serde(default, rename = "measures", deserialize_with = "crates")]
    _measures: (),
    #[serde(default, deserialize_with = "device")]
    pub device: Option<String>,
    #[serde(default)]
    pub profiles: bool,
    #[serde(default)]
    pub settings: Settings,
    pub a: Side,
    pub b: Side,
    #[serde(default)]
    pub plan: Plan,
    #[serde(default, rename = "factor", deserialize_with = "at_most::<_, _, 16>")]
    pub factors: Vec<Spanned<Factor>>,
    #[serde(rename = "metric", deserialize_with = "at_most::<_, _, 64>")]
    pub metrics: Vec<Spanned<Metric>>,
    #[serde(default, rename = "fixed", deserialize_with = "at_most::<_, _, 256>")]
    pub fixed_points: Vec<FixedPoint>,
}

/// The table `[plan]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Plan {
    #[serde(deserialize_with = "window_ns")]
    pub window: Option<u64>,
    #[serde(deserialize_with = "count::<_, 0, 1000>")]
    pub warmup: Option<u32>,
    pub fresh: bool,
    #[serde(deserialize_with = "looks")]
    pub looks: Option<Vec<u32>>,
    #[serde(deserialize_with = "above_zero")]
    pub half_width_pct: Option<f64>,
    pub family: Option<Family>,
    pub quick: Quick,
}

/// The table `quick` of a plan.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Quick {
    #[serde(deserialize_with = "count::<_, 1, PAIRS_MAX>")]
    pub pairs: Option<u32>,
    #[serde(deserialize_with = "window_ns")]
    pub window: Option<u64>,
}

/// The offsets at which the lines of a text begin.
#[derive(Debug)]
pub(super) struct Lines(Vec<usize>);

impl Lines {
    /// Returns the line that a byte is on, from 1.
    pub fn line(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte)
    }
}

/// Reads a file's text.
pub(super) fn read(text: &str) -> Result<(Document, Lines)> {
    let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let lines = Lines(std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect());
    let (table, errors) = DeTable::parse_recoverable(text);
    // Recovery also reports errors that follow from an earlier one, and in another order: report
    // only the first error in the file.
    if let Some(e) = errors.iter().min_by_key(|e| e.span().map_or(0, |span| span.start)) {
        return Err(wrong(lines.line(e.span().map_or(0, |span| span.start)), e.message()));
    }
    match Document::deserialize(toml::Deserializer::from(table)) {
        Ok(document) => Ok((document, lines)),
        Err(e) => Err(refused(&e, &lines)),
    }
}

/// Converts serde's error into this crate's error, with its line, its key, and the closest valid
/// name.
fn refused(e: &toml::de::Error, lines: &Lines) -> Error {
    let line = lines.line(e.span().map_or(0, |span| span.start));
    let (text, message) = (e.to_string(), e.message());
    // serde's error has the keys only in its text: "in `plan.warmup`" after the message.
    let path = text.strip_prefix(message).unwrap_or_default().trim();
    let path = path.trim_start_matches("in `").trim_end_matches('`');
    let table = if path.is_empty() { "the file".into() } else { format!("[{path}]") };
    let key = path.rsplit('.').next().unwrap_or_default();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let name = quoted.next().unwrap_or_default();
    if message.starts_with("unknown field") {
        return unknown(line, &format!("{table} has no key"), name, quoted);
    }
    if message.starts_with("unknown variant") {
        return unknown(line, &format!("{key:?} cannot be"), name, quoted);
    }
    let (why, fix) = message.split_once('\n').unwrap_or((message, ""));
    let why = match why {
        _ if why.starts_with("missing field") => format!("{table} has no {name:?}"),
        _ if why.starts_with("is ") => format!("{key:?} {why}"),
        _ if why.starts_with("invalid") => format!("{key:?}: {why}"),
        _ => why.to_owned(),
    };
    wrong(line, why).fix(fix)
}

/// Returns the error for an unknown name, with the closest valid name or the list of all.
pub(super) fn unknown<'a>(
    line: usize,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Error {
    let (why, fix) = absent(what, name, known);
    wrong(line, why).fix(fix)
}

fn absent<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> (String, String) {
    let shown: String = name.chars().take(NAME_MAX).collect();
    let fix = match nearest(&shown, known.clone()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("there are: {}", known.collect::<Vec<_>>().join(", ")),
    };
    (format!("{what} {shown:?}"), fix)
}

/// Reads a value of any kind, and refuses a value that `parse` cannot read.
fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    wanted: &str,
    parse: impl FnOnce(&Toml) -> Option<T>,
) -> Read<'de, T, D> {
    parse(&Toml::deserialize(from)?).ok_or_else(|| D::Error::custom(format!("is not {wanted}")))
}

/// Deserializes a text that is one of `known`.
fn one_of<'de, D: Deserializer<'de>>(
    from: D,
    what: &str,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Read<'de, Option<String>, D> {
    let name = String::deserialize(from)?;
    if known.clone().any(|one| one == name) {
        return Ok(Some(name));
    }
    let (why, fix) = absent(what, &name, known);
    Err(D::Error::custom(format!("{why}\n{fix}")))
}

fn version<'de, D: Deserializer<'de>>(from: D) -> Read<'de, (), D> {
    match u32::deserialize(from)? {
        1 => Ok(()),
        version => Err(D::Error::custom(format!(
            "version {version} of experiments' files is not known\nthis program reads version = 1"
        ))),
    }
}

fn post<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<String>, D> {
    one_of(from, "there is no post", POSTS.iter().map(|post| post.id))
}

fn device<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<String>, D> {
    sentence(from).map(Some)
}

pub(super) fn scenario<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<String>, D> {
    one_of(from, "there is no scenario", SCENARIOS.iter().map(|scenario| scenario.name()))
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Read<'de, String, D> {
    let wanted = "a lower-case letter, then up to 47 of such letters, digits, -";
    parsed(from, wanted, |value| {
        let id = value.as_str()?;
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_id = id.starts_with(|c: char| c.is_ascii_lowercase()) && id.chars().all(inner);
        (is_id && id.len() <= NAME_MAX).then(|| id.to_owned())
    })
}

/// Deserializes a text that is not empty.
pub(super) fn sentence<'de, D: Deserializer<'de>>(from: D) -> Read<'de, String, D> {
    match String::deserialize(from)?.trim() {
        "" => Err(D::Error::custom("is empty")),
        text => Ok(text.to_owned()),
    }
}

/// Deserializes a name that fits a column of a table and the command line.
pub(super) fn name<'de, D: Deserializer<'de>>(from: D) -> Read<'de, String, D> {
    let text = String::deserialize(from)?;
    let free = |c: char| !c.is_control() && !c.is_whitespace() && !",=/".contains(c);
    if (1..=NAME_MAX).contains(&text.chars().count()) && text.chars().all(free) {
        return Ok(text);
    }
    let wanted = "a name of 1 to 48 characters without spaces, commas, = and /";
    Err(D::Error::custom(format!("is not {wanted}")))
}

fn count<'de, D: Deserializer<'de>, const LOW: i64, const HIGH: i64>(
    from: D,
) -> Read<'de, Option<u32>, D> {
    parsed(from, &format!("a whole number from {LOW} to {HIGH}"), |value| {
        value.as_integer().filter(|n| (LOW..=HIGH).contains(n)).map(|n| n.try_into().ok())
    })
}

fn looks<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<Vec<u32>>, D> {
    let wanted = format!("a list of 1 to 16 whole numbers from 1 to {PAIRS_MAX}, ascending");
    parsed(from, &wanted, |value| {
        let list = value.as_array().filter(|list| (1..=16).contains(&list.len()))?;
        let all = list.iter().map(|one| one.as_integer().filter(|n| (1..=PAIRS_MAX).contains(n)));
        let all: Vec<u32> = all.map(|n| n?.try_into().ok()).collect::<Option<_>>()?;
        all.is_sorted_by(|one, next| one < next).then_some(Some(all))
    })
}

fn crates<'de, D: Deserializer<'de>>(from: D) -> Read<'de, (), D> {
    parsed(from, "a list of 1 to 16 names of crates, as \"skb\"", |value| {
        let list = value.as_array().filter(|list| (1..=16).contains(&list.len()))?;
        let is_name = |name: &str| name.bytes().all(|c| c.is_ascii_lowercase()) && !name.is_empty();
        list.iter().all(|one| one.as_str().is_some_and(is_name)).then_some(())
    })
}

/// Reads a finite number.
pub(super) fn number<'de, D: Deserializer<'de>>(from: D) -> Read<'de, f64, D> {
    parsed(from, "a number", finite)
}

fn above_zero<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<f64>, D> {
    parsed(from, "a number above 0", |value| finite(value).filter(|n| *n > 0.0).map(Some))
}

/// Reads a margin in per cent.
pub(super) fn margin<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<f64>, D> {
    let wanted = "a number above 0, and at most 50";
    parsed(from, wanted, |value| finite(value).filter(|pct| *pct > 0.0 && *pct <= 50.0).map(Some))
}

/// Deserializes two numbers, the second not below the first.
pub(super) fn range<'de, D: Deserializer<'de>>(from: D) -> Read<'de, (f64, f64), D> {
    parsed(from, "two numbers, the lower first, as [-100, -51]", |value| {
        let [low, high] = value.as_array()?.as_slice() else { return None };
        let both = (finite(low)?, finite(high)?);
        (both.0 <= both.1).then_some(both)
    })
}

pub(super) fn window_ns<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Option<u64>, D> {
    let wanted = format!("a time from {:?} to {:?}, as \"50ms\"", WINDOW.start(), WINDOW.end());
    parsed(from, &wanted, |value| {
        let time = units::duration(value.as_str()?).ok().filter(|time| WINDOW.contains(time))?;
        u64::try_from(time.as_nanos()).ok().map(Some)
    })
}

/// Deserializes a list of at most `MOST` entries.
pub(super) fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    from: D,
) -> Read<'de, Vec<T>, D> {
    let list = Vec::deserialize(from)?;
    match list.len() <= MOST {
        true => Ok(list),
        false => Err(D::Error::custom(format!("is not a list of up to {MOST} tables"))),
    }
}

/// Deserializes a table of settings; the scenario checks their names later. Each setting has its
/// byte offset in place of its line, until `Settings::in_lines`.
impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Read<'de, Settings, D> {
        let table: BTreeMap<Spanned<String>, Value> = BTreeMap::deserialize(from)?;
        if table.len() > SETTINGS_MAX {
            let why = format!("is not a table of up to {SETTINGS_MAX} names");
            return Err(D::Error::custom(why));
        }
        let mut settings = Settings::new();
        for (name, value) in table {
            settings.set(name.get_ref(), Setting { value, line: name.span().start });
        }
        Ok(settings)
    }
}

/// Deserializes the factors' values to which an expectation applies.
pub(super) fn at<'de, D: Deserializer<'de>>(from: D) -> Read<'de, Vec<(String, String)>, D> {
    Ok(BTreeMap::deserialize(from)?.into_iter().collect())
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Read<'de, Value, D> {
        let wanted = format!("a text, a number, true, false, or a list of up to {SETTINGS_MAX}");
        parsed(from, &wanted, |value| match value {
            Toml::Array(list) if list.len() <= SETTINGS_MAX => {
                list.iter().map(scalar).collect::<Option<_>>().map(Value::List)
            }
            one => scalar(one),
        })
    }
}

impl<'de> Deserialize<'de> for Formula {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Read<'de, Formula, D> {
        Formula::parse(&sentence(from)?).map_err(|e| D::Error::custom(e.why))
    }
}

fn scalar(value: &Toml) -> Option<Value> {
    match value {
        Toml::String(text) => Some(Value::Text(text.clone())),
        Toml::Integer(n) => Some(Value::Int(*n)),
        Toml::Float(_) => finite(value).map(Value::Float),
        Toml::Boolean(flag) => Some(Value::Bool(*flag)),
        Toml::Datetime(_) | Toml::Array(_) | Toml::Table(_) => None,
    }
}

fn finite(value: &Toml) -> Option<f64> {
    let number = match value {
        Toml::Integer(n) => *n as f64,
        Toml::Float(n) => *n,
        _ => return None,
    };
    number.is_finite().then_some(number)
}
