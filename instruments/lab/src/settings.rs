//! Settings of a scenario, each with its line in the file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::{Code, Error};

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
    /// A text.
    Text(String),
    /// A list of values, such as the arguments of a command.
    List(Vec<Value>),
}

/// A value and its line in the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "Value")]
pub struct Setting {
    /// The value of the setting.
    pub value: Value,
    /// The line of the file; 0 if the value is from no file.
    pub line: usize,
}

/// A scenario's settings, by name.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Settings(BTreeMap<String, Setting>);

impl Settings {
    /// Creates an empty set of settings.
    #[must_use]
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Sets `name`, in place of an earlier value.
    pub fn set(&mut self, name: &str, setting: Setting) {
        self.0.insert(name.into(), setting);
    }

    /// Sets `name` without a line of a file: for tests and defaults.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Settings {
        self.set(name, Setting { value: value.into(), line: 0 });
        self
    }

    /// Merges these settings with `over`; for a name that both have, the value of `over` wins.
    #[must_use]
    pub fn and(&self, over: &Settings) -> Settings {
        let mut both = self.clone();
        both.0.extend(over.0.iter().map(|(name, setting)| (name.clone(), setting.clone())));
        both
    }

    /// Returns the settings with their line numbers mapped by `line`.
    pub(crate) fn in_lines(mut self, line: impl Fn(usize) -> usize) -> Settings {
        self.0.values_mut().for_each(|setting| setting.line = line(setting.line));
        self
    }

    /// Returns the setting `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    /// Iterates over the settings in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, setting)| (name.as_str(), setting))
    }
}

/// Returns the error for a mistake in an experiment, with its line; the caller adds the file's name
/// if it knows the name.
#[must_use]
pub fn wrong(line: usize, why: impl fmt::Display) -> Error {
    let why = if line == 0 { why.to_string() } else { format!("line {line}: {why}") };
    Error::new(Code::Experiment, "cannot use the experiment", why)
}

/// Adds the name of the file before the line of an error: `pool.toml:12: …`.
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

impl Value {
    /// Returns the text; `None` if the value is no text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
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

impl From<Setting> for Value {
    fn from(setting: Setting) -> Value {
        setting.value
    }
}

macro_rules! from {
    ($($type:ty => $kind:ident),*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$kind(value.into())
            }
        })*
    };
}
from!(bool => Bool, i64 => Int, f64 => Float, &str => Text);
