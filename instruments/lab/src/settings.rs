//! What a scenario is told: names and values, each with the line that it stands on.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::{Code, Error, Result};

/// A value of an experiment's file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A word.
    Text(String),
    /// Several, as the arguments of a command.
    List(Vec<Value>),
}

/// A value and where it was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// The line of the file; 0 if no file said it.
    pub line: usize,
}

/// Names and values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings(BTreeMap<String, Setting>);

/// Reads [`Settings`] name by name, so that in the end what nobody asked for can be refused.
#[derive(Debug)]
pub struct Reading<'a> {
    settings: &'a Settings,
    scenario: &'a str,
    asked: Vec<&'static str>,
}

impl Settings {
    /// None.
    #[must_use]
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Says `name`, in place of what was said of it before.
    pub fn set(&mut self, name: &str, setting: Setting) {
        self.0.insert(name.into(), setting);
    }

    /// The same with `name` said by no file: for tests and defaults.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Settings {
        self.set(name, Setting { value: value.into(), line: 0 });
        self
    }

    /// These, and where `over` says something else, that.
    #[must_use]
    pub fn and(&self, over: &Settings) -> Settings {
        let mut both = self.clone();
        both.0.extend(over.0.iter().map(|(name, setting)| (name.clone(), setting.clone())));
        both
    }

    /// What was said of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    /// Every name and what was said of it, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, setting)| (name.as_str(), setting))
    }

    /// Begins to read them for `scenario`.
    #[must_use]
    pub fn reading<'a>(&'a self, scenario: &'a str) -> Reading<'a> {
        Reading { settings: self, scenario, asked: Vec::new() }
    }
}

impl Reading<'_> {
    /// A whole number within `range`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` if it is none, with its line.
    pub fn count(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(name, &wanted, |value| match value {
            Value::Int(n) => u64::try_from(*n).ok().filter(|n| range.contains(n)),
            _ => None,
        })
    }

    /// A number above 0.
    ///
    /// # Errors
    /// As above.
    pub fn number(&mut self, name: &'static str) -> Result<Option<f64>> {
        self.read(name, "a number above 0", |value| match value {
            Value::Int(n) => Some(*n as f64).filter(|n| *n > 0.0),
            Value::Float(n) => Some(*n).filter(|n| *n > 0.0 && n.is_finite()),
            _ => None,
        })
    }

    /// A word.
    ///
    /// # Errors
    /// As above.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        self.read(name, "a text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A list of words.
    ///
    /// # Errors
    /// As above.
    pub fn texts(&mut self, name: &'static str) -> Result<Option<Vec<String>>> {
        self.read(name, "a list of texts", |value| match value {
            Value::List(list) => list
                .iter()
                .map(|value| match value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// As above.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        self.read(name, "true or false", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// One of some words, as what it stands for.
    ///
    /// # Errors
    /// As above.
    pub fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>> {
        let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        self.read(name, &format!("one of {}", all.join(", ")), |value| match value {
            Value::Text(text) => words.iter().find(|(word, _)| word == text).map(|(_, t)| *t),
            _ => None,
        })
    }

    /// Ends it: whatever nobody has asked for is wrong.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the name's line, and the names that there are.
    pub fn finish(self) -> Result<()> {
        let unknown = self.settings.iter().find(|(name, _)| !self.asked.contains(name));
        let Some((name, setting)) = unknown else { return Ok(()) };
        let why = format!("scenario {:?} has no setting {name:?}", self.scenario);
        Err(wrong(setting.line, why).fix(format!("it has: {}", self.asked.join(", "))))
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.asked.push(name);
        let Some(setting) = self.settings.get(name) else { return Ok(None) };
        let refused = || wrong(setting.line, format!("{name} = {} is not {wanted}", setting.value));
        parse(&setting.value).ok_or_else(refused).map(Some)
    }
}

/// What is wrong with an experiment, at a line of its file; whoever knows the file's name adds it.
#[must_use]
pub fn wrong(line: usize, why: impl fmt::Display) -> Error {
    let why = if line == 0 { why.to_string() } else { format!("line {line}: {why}") };
    Error::new(Code::Experiment, "cannot use the experiment", why)
}

/// The same, with the name of the file before its line: `pool.toml:12: …`.
#[must_use]
pub fn in_file(mut e: Error, file: &str) -> Error {
    if e.code == Code::Experiment {
        e.why = match e.why.strip_prefix("line ") {
            Some(line_and_why) => format!("{file}:{line_and_why}"),
            None => format!("{file}: {}", e.why),
        };
    }
    e
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(n) => write!(f, "{n}"),
            Value::Text(text) => f.write_str(text),
            Value::List(list) => {
                let each: Vec<String> = list.iter().map(Value::to_string).collect();
                write!(f, "[{}]", each.join(", "))
            }
        }
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Int(n)
    }
}

impl From<f64> for Value {
    fn from(n: f64) -> Value {
        Value::Float(n)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_with_its_line() {
        let mut settings = Settings::new();
        settings.set("hot_list", Setting { value: Value::Text("long".into()), line: 12 });
        let e = settings.reading("engine").count("hot_list", 0..=65_536).unwrap_err();
        assert_eq!(e.why, "line 12: hot_list = long is not a whole number from 0 to 65536");
    }

    #[test]
    fn a_setting_that_nobody_asks_for_is_refused_with_those_that_there_are() {
        let settings = Settings::new().with("hot_lists", 128).with("burst", 64);
        let mut reading = settings.reading("engine");
        assert_eq!(reading.count("hot_list", 0..=9), Ok(None));
        assert_eq!(reading.count("burst", 0..=64), Ok(Some(64)));
        let e = reading.finish().unwrap_err();
        assert_eq!(e.why, "scenario \"engine\" has no setting \"hot_lists\"");
        assert_eq!(e.fix, "it has: hot_list, burst");
    }
}
