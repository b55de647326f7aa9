//! The settings of a scenario, each declared in one place: name, values, default, effect.
//!
//! `lab show` prints the declarations, and `Reading` holds a file's values against them.

use std::fmt;
use std::str::FromStr;

use crate::settings::{Setting, Settings, Value, wrong};
use crate::{Error, Result};

/// A setting of a scenario.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// The setting's name in files.
    pub name: &'static str,
    /// The valid values.
    pub values: Values,
    /// The default as printed; a description if it depends on other settings.
    pub default: &'static str,
    /// The setting's effect, in a sentence.
    pub about: &'static str,
}

/// Values of a [`Knob`].
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// A whole number between both limits, inclusive.
    Count(u64, u64),
    /// A power of two between both limits, inclusive.
    PowerOfTwo(u64, u64),
    /// A choice of words.
    OneOf(&'static dyn Words),
    /// `true` or `false`.
    Flag,
    /// A whole number in the range of an engine's setting.
    Core(&'static linerate_skb::Knob),
    /// Other values, checked by the scenario and described in words.
    Other(&'static str),
}

/// The words of a choice, without their values.
pub trait Words: fmt::Debug + Sync {
    /// Returns the words, in the order of printing.
    fn words(&self) -> Vec<&'static str>;
}

/// A choice of words, each with its value.
pub(crate) type Choice<T, const N: usize> = [(&'static str, T); N];

/// The settings of a file, read against the knobs of a scenario: an unknown setting or an invalid
/// value is the error `E-EXPERIMENT` with its line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'a> {
    settings: &'a Settings,
    knobs: &'static [Knob],
}

impl Knob {
    /// Returns the default as `lab show` prints it; empty if there is none.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.values {
            Values::Core(knob) => knob.default.to_string(),
            _ => self.default.to_owned(),
        }
    }
}

/// Declares the settings of a scenario, each in one place: the name in files, the field, its type,
/// its valid values, its default (computed by `or` if it depends on earlier settings), and its
/// effect. The macro generates the struct, the list of knobs, and the function that reads the
/// struct; expressions refer to the [`Reading`] as `$told`.
macro_rules! knobs {
    ($(#[$doc:meta])* $config:ident of $scenario:literal, told as $told:ident:
     $($name:literal $field:ident: $type:ty = $kind:ident($($args:expr),*) $(or $or:expr)?, $default:literal, $about:expr;)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub(super) struct $config { $(pub $field: $type),* }

        pub(super) static KNOBS: &[crate::knobs::Knob] = &[$(crate::knobs::Knob {
            name: $name,
            values: crate::knobs::values!($kind $($args),*),
            default: $default,
            about: $about,
        }),*];

        impl $config {
            /// Reads the settings, and checks each against its knob.
            fn read(settings: &crate::settings::Settings) -> crate::Result<$config> {
                let $told = crate::knobs::Reading::new(settings, $scenario, KNOBS)?;
                $(let $field: $type = crate::knobs::read!($told $name $kind $($args),* $(; $or)?);)*
                Ok($config { $($field),* })
            }
        }
    };
}

/// The values of a knob, by the kind that `knobs!` names.
macro_rules! values {
    (count $low:expr, $high:expr) => {
        crate::knobs::Values::Count($low, $high)
    };
    (count_if_set $low:expr, $high:expr) => {
        crate::knobs::Values::Count($low, $high)
    };
    (power_of_two $low:expr, $high:expr) => {
        crate::knobs::Values::PowerOfTwo($low, $high)
    };
    (core $knob:expr) => {
        crate::knobs::Values::Core(&$knob)
    };
    (choice $words:expr) => {
        crate::knobs::Values::OneOf(&$words)
    };
    (flag) => {
        crate::knobs::Values::Flag
    };
    (other $words:expr, $read:expr) => {
        crate::knobs::Values::Other($words)
    };
}

/// Reads a setting of the kind that `knobs!` names.
macro_rules! read {
    ($told:ident $name:literal other $words:expr, $read:expr) => {
        $read
    };
    ($told:ident $name:literal flag) => {
        $told.flag($name)?
    };
    ($told:ident $name:literal flag; $or:expr) => {
        $told.flag_if_set($name)?.unwrap_or($or)
    };
    ($told:ident $name:literal choice $words:expr) => {
        $told.choice($name, &$words)?
    };
    ($told:ident $name:literal choice $words:expr; $or:expr) => {
        $told.choice_if_set($name, &$words)?.unwrap_or($or)
    };
    ($told:ident $name:literal count_if_set $($args:expr),*) => {
        $told.count_if_set($name)?.map(|n| n as _)
    };
    ($told:ident $name:literal $kind:ident $($args:expr),*) => {
        $told.count($name)? as _
    };
    ($told:ident $name:literal $kind:ident $($args:expr),*; $or:expr) => {
        $told.count_if_set($name)?.map_or($or, |n| n as _)
    };
}
pub(crate) use {knobs, read, values};

impl<'a> Reading<'a> {
    /// Begins to read `settings` for the scenario `scenario`, whose settings are `knobs`.
    pub(crate) fn new(
        settings: &'a Settings,
        scenario: &str,
        knobs: &'static [Knob],
    ) -> Result<Reading<'a>> {
        let is_known = |name: &str| knobs.iter().any(|knob| knob.name == name);
        let Some((name, setting)) = settings.iter().find(|(name, _)| !is_known(name)) else {
            return Ok(Reading { settings, knobs });
        };
        let why = format!("scenario {scenario:?} has no setting {name:?}");
        let names: Vec<&str> = knobs.iter().map(|knob| knob.name).collect();
        Err(wrong(setting.line, why).fix(format!("it has: {}", names.join(", "))))
    }

    /// Returns the whole number of a setting, or its default.
    pub(crate) fn count(&self, name: &str) -> Result<u64> {
        let default = || self.knob(name).and_then(|knob| knob.default_text().parse().ok());
        Ok(self.count_if_set(name)?.or_else(default).unwrap_or(0))
    }

    /// Returns the whole number of a setting; `None` if the file does not set it.
    pub(crate) fn count_if_set(&self, name: &str) -> Result<Option<u64>> {
        self.read(name, "a whole number", |value, values| {
            let Value::Int(n) = value else { return None };
            u64::try_from(*n).ok().filter(|n| match values {
                Values::Count(low, high) => (low..=high).contains(n),
                Values::PowerOfTwo(low, high) => (low..=high).contains(n) && n.is_power_of_two(),
                Values::Core(knob) => knob.allows(*n),
                Values::OneOf(_) | Values::Flag | Values::Other(_) => true,
            })
        })
    }

    /// Returns the number of a setting, above 0; `None` if the file does not set it.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a number above 0", |value, _| match value {
            Value::Int(n) => Some(*n as f64).filter(|n| *n > 0.0),
            Value::Float(n) => Some(*n).filter(|n| *n > 0.0 && n.is_finite()),
            _ => None,
        })
    }

    /// Returns the text of a setting; `None` if the file does not set it.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        self.read(name, "a text", |value, _| value.as_text().map(str::to_owned))
    }

    /// Returns the value parsed from the file's text or number, or from the default.
    pub(crate) fn parsed<T: FromStr<Err = Error>>(&self, name: &str) -> Result<T> {
        let (text, line) = match self.settings.get(name) {
            Some(setting) => (setting.value.to_string(), setting.line),
            None => (self.default(name).to_owned(), 0),
        };
        text.parse()
            .map_err(|e: Error| wrong(line, format!("{name} = {text}: {}", e.why)).fix(e.fix))
    }

    /// Returns the list of texts of a setting; `None` if the file does not set it.
    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.read(name, "a list of texts", |value, _| match value {
            Value::List(list) => {
                list.iter().map(|value| value.as_text().map(str::to_owned)).collect()
            }
            _ => None,
        })
    }

    /// Returns `true` or `false`, or the default.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.flag_if_set(name)?.unwrap_or_else(|| self.default(name) == "true"))
    }

    /// Returns `true` or `false` as set in the file; `None` if the file does not set it.
    pub(crate) fn flag_if_set(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", |value, _| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Returns the value of the word in the file, or of the default word; if the word is unknown,
    /// the first value.
    pub(crate) fn choice<T: Copy + fmt::Debug + Sync, const N: usize>(
        &self,
        name: &str,
        words: &Choice<T, N>,
    ) -> Result<T> {
        const { assert!(N > 0, "a choice of nothing") };
        let default = self.default(name).trim_matches('"');
        let usual = words.iter().find(|(word, _)| *word == default).unwrap_or(&words[0]);
        Ok(self.choice_if_set(name, words)?.unwrap_or(usual.1))
    }

    /// Returns the value of the word in the file; `None` if the file does not set it.
    pub(crate) fn choice_if_set<T: Copy + fmt::Debug + Sync, const N: usize>(
        &self,
        name: &str,
        words: &Choice<T, N>,
    ) -> Result<Option<T>> {
        self.read(name, &one_of(words), |value, _| {
            words.iter().find(|(word, _)| Some(*word) == value.as_text()).map(|(_, t)| *t)
        })
    }

    /// Returns the setting `name`; `None` if the file does not have it.
    pub(crate) fn said(&self, name: &str) -> Option<&'a Setting> {
        self.settings.get(name)
    }

    fn knob(&self, name: &str) -> Option<&'static Knob> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    fn default(&self, name: &str) -> &'static str {
        self.knob(name).map_or("", |knob| knob.default)
    }

    fn read<T>(
        &self,
        name: &str,
        wanted: &str,
        parse: impl Fn(&Value, Values) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(setting) = self.settings.get(name) else { return Ok(None) };
        let values = self.knob(name).map_or(Values::Other(""), |knob| knob.values);
        parse(&setting.value, values).map(Some).ok_or_else(|| {
            let wanted = values.wanted().unwrap_or_else(|| wanted.to_owned());
            wrong(setting.line, format!("{name} = {} is not {wanted}", setting.value))
        })
    }
}

impl Values {
    /// Describes the valid values in words; `None` if only the scenario knows them.
    fn wanted(self) -> Option<String> {
        match self {
            Values::Count(low, high) => Some(format!("a whole number from {low} to {high}")),
            Values::PowerOfTwo(low, high) => Some(format!("a power of two from {low} to {high}")),
            Values::Core(knob) => Some(format!("a whole number from {} to {}", knob.min, knob.max)),
            Values::OneOf(words) => Some(one_of(words)),
            Values::Flag | Values::Other(_) => None,
        }
    }
}

fn one_of(words: &dyn Words) -> String {
    format!("one of \"{}\"", words.words().join("\", \""))
}

/// Formats the values as `lab show` prints them.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Count(low, high) => write!(f, "{low}..={high}"),
            Values::PowerOfTwo(low, high) => write!(f, "a power of two, {low}..={high}"),
            Values::Core(knob) => write!(f, "{knob}"),
            Values::OneOf(words) => write!(f, "\"{}\"", words.words().join("\" | \"")),
            Values::Flag => f.write_str("true | false"),
            Values::Other(words) => f.write_str(words),
        }
    }
}

impl<T: fmt::Debug + Sync, const N: usize> Words for Choice<T, N> {
    fn words(&self) -> Vec<&'static str> {
        self.iter().map(|(word, _)| *word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Choice<bool, 2> = [("local", false), ("remote", true)];
    knobs! {
        Config of "engine", told as told:
        "hot_list" hot_list: usize = core(linerate_skb::knob::HOT_LIST), "", "";
        "ring_len" ring_len: u32 = power_of_two(2, 64), "16", "";
        "free" free: bool = choice(FREE), "remote", "";
        "touch" touch: bool = flag(), "true", "";
        "reap" reap: u64 = count(1, 9) or u64::from(ring_len) / 2, "half of ring_len", "";
    }

    #[test]
    fn an_unset_knob_has_its_declared_default() {
        let config = Config::read(&Settings::new().with("ring_len", 8)).unwrap();
        let told = Config { hot_list: 1024, ring_len: 8, free: true, touch: true, reap: 4 };
        assert_eq!(config, told);
    }

    #[test]
    fn a_value_outside_its_declared_range_is_refused_with_its_line() {
        let why = |name: &str, value: Value| {
            let mut settings = Settings::new();
            settings.set(name, Setting { value, line: 12 });
            Config::read(&settings).unwrap_err().why
        };
        assert_eq!(
            why("hot_list", "long".into()),
            "line 12: hot_list = long is not a whole number from 0 to 65536"
        );
        assert_eq!(
            why("ring_len", 48.into()),
            "line 12: ring_len = 48 is not a power of two from 2 to 64"
        );
    }

    #[test]
    fn a_setting_without_a_knob_is_refused_with_those_that_there_are() {
        let settings = Settings::new().with("hot_lists", 128);
        let e = Config::read(&settings).unwrap_err();
        assert_eq!(e.why, "scenario \"engine\" has no setting \"hot_lists\"");
        assert_eq!(e.fix, "it has: hot_list, ring_len, free, touch, reap");
    }
}
