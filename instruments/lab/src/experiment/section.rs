//! A table of an experiment's file, read key by key, each with its line.

use std::ops::RangeInclusive;
use std::time::Duration;

use linerate_port::{nearest, units};
use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use crate::settings::{Setting, Settings, Value, wrong};
use crate::{Error, Result};

/// Keys in one table of settings, and values in one list.
const SETTINGS_MAX: usize = 64;
/// Letters of a name; what is printed in a column.
const NAME_MAX: usize = 48;

/// Where the lines of a text begin.
#[derive(Debug)]
pub(super) struct Lines(Vec<usize>);

impl Lines {
    /// Those of `text`.
    pub fn of(text: &str) -> Lines {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines(std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect())
    }

    /// The line that a byte is on, from 1.
    pub fn line(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte)
    }
}

/// Something that the file says, and on which line.
#[derive(Debug, Clone)]
pub(super) struct Said<T> {
    pub value: T,
    pub line: usize,
}

/// A table of the file; in the end, a key that nobody has asked for is refused.
#[derive(Debug)]
pub(super) struct Section<'t> {
    /// As its reader knows it: `[plan]`, `[[metric]]`.
    what: String,
    /// The line on which it begins.
    pub line: usize,
    table: &'t DeTable<'t>,
    lines: &'t Lines,
    asked: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// The whole file.
    pub fn root(table: &'t Spanned<DeTable<'t>>, lines: &'t Lines) -> Section<'t> {
        let what = "the file".into();
        Section { what, line: 1, table: table.get_ref(), lines, asked: Vec::new() }
    }

    /// What must be there.
    pub fn required<T>(&self, key: &str, said: Option<Said<T>>) -> Result<Said<T>> {
        said.ok_or_else(|| match self.misspelt(key) {
            Some((name, line)) => {
                let why = format!("{} has no {key:?}, and {name:?} is no key of it", self.what);
                wrong(line, why).fix(format!("did you mean {key:?} ?"))
            }
            None => wrong(self.line, format!("{} has no {key:?}", self.what)),
        })
    }

    /// A key that nobody has asked for, and that `key` may have been meant by, with its line.
    fn misspelt(&self, key: &str) -> Option<(&str, usize)> {
        let unasked = |name: &&str| !self.asked.contains(name);
        let names = self.table.keys().map(|name| name.get_ref().as_ref()).filter(unasked);
        let name = nearest(key, names)?;
        let (said, _) = self.table.iter().find(|(said, _)| said.get_ref().as_ref() == name)?;
        Some((said.get_ref().as_ref(), self.lines.line(said.span().start)))
    }

    /// A text.
    pub fn text(&mut self, key: &'static str) -> Result<Option<Said<String>>> {
        self.read(key, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// A text that must be there, with something in it.
    pub fn sentence(&mut self, key: &'static str) -> Result<Said<String>> {
        let said = self.text(key)?;
        let said = self.required(key, said)?;
        let value = said.value.trim().to_owned();
        match value.is_empty() {
            true => Err(wrong(said.line, format!("{key:?} is empty"))),
            false => Ok(Said { value, ..said }),
        }
    }

    /// A name that must be there, as it is printed in a column and written on the command line.
    pub fn name(&mut self, key: &'static str) -> Result<Said<String>> {
        let wanted = "a name of 1 to 48 characters without spaces, commas, = and /";
        let said = self.read(key, wanted, |value| {
            let free = |c: char| !c.is_control() && !c.is_whitespace() && !",=/".contains(c);
            let name = value.as_str()?;
            let fits = (1..=NAME_MAX).contains(&name.chars().count()) && name.chars().all(free);
            fits.then(|| name.to_owned())
        })?;
        self.required(key, said)
    }

    /// `true` or `false`, where it is said.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        let said = self.read(key, "true or false", DeValue::as_bool)?;
        Ok(said.map(|said| said.value))
    }

    /// A whole number within `range`.
    pub fn count(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<Said<u32>>> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(key, &wanted, |value| whole(value).filter(|n| range.contains(n)))
    }

    /// Whole numbers within `range`, each above the one before; at least one.
    pub fn ascending(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<Said<Vec<u32>>>> {
        let (from, to) = (range.start(), range.end());
        let wanted = format!("a list of 1 to 16 whole numbers from {from} to {to}, ascending");
        self.read(key, &wanted, |value| {
            let list = value.as_array().filter(|list| (1..=16).contains(&list.len()))?;
            let all = list.iter().map(|one| whole(one.get_ref()).filter(|n| range.contains(n)));
            let all: Vec<u32> = all.collect::<Option<_>>()?;
            all.is_sorted_by(|one, next| one < next).then_some(all)
        })
    }

    /// A number.
    pub fn number(&mut self, key: &'static str) -> Result<Option<Said<f64>>> {
        self.read(key, "a number", number)
    }

    /// Two numbers, the second not below the first.
    pub fn range(&mut self, key: &'static str) -> Result<Option<Said<(f64, f64)>>> {
        self.read(key, "two numbers, the lower first, as [-100, -51]", |value| {
            let list: &DeArray<'_> = value.as_array()?;
            let [low, high] = [list.first()?, list.get(1)?].map(|one| number(one.get_ref()));
            let both = (low?, high?);
            (list.len() == 2 && both.0 <= both.1).then_some(both)
        })
    }

    /// A time within `range`, in nanoseconds.
    pub fn time_ns(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<u64>> {
        let wanted = format!("a time from {:?} to {:?}, as \"50ms\"", range.start(), range.end());
        let said = self.read(key, &wanted, |value| {
            let time = units::duration(value.as_str()?).ok().filter(|time| range.contains(time))?;
            u64::try_from(time.as_nanos()).ok()
        })?;
        Ok(said.map(|said| said.value))
    }

    /// One of some words, as what it stands for.
    pub fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<Said<T>>> {
        let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        self.read(key, &format!("one of {}", all.join(", ")), |value| {
            words.iter().find(|(word, _)| Some(*word) == value.as_str()).map(|(_, t)| *t)
        })
    }

    /// A table of its own.
    pub fn section(&mut self, key: &'static str) -> Result<Option<Section<'t>>> {
        let said = self.read(key, &format!("a table, as [{key}]"), |value| value.as_table())?;
        let (what, lines) = (format!("[{key}]"), self.lines);
        Ok(said.map(|Said { value: table, line }| Section {
            what,
            line,
            table,
            lines,
            asked: Vec::new(),
        }))
    }

    /// Several tables of one name, at most `most`.
    pub fn sections(&mut self, key: &'static str, most: usize) -> Result<Vec<Section<'t>>> {
        let wanted = format!("tables, as [[{key}]]");
        let Some(said) = self.read(key, &wanted, |value| value.as_array())? else {
            return Ok(Vec::new());
        };
        if said.value.len() > most {
            return Err(wrong(said.line, format!("there are more than {most} [[{key}]]")));
        }
        let each = said.value.iter().map(|one| {
            let line = self.lines.line(one.span().start);
            let table = one.get_ref().as_table();
            let table = table.ok_or_else(|| wrong(line, format!("{key:?} is not {wanted}")))?;
            let what = format!("[[{key}]]");
            Ok(Section { what, line, table, lines: self.lines, asked: Vec::new() })
        });
        each.collect()
    }

    /// What a scenario is told; whether it knows the names is for the scenario to say.
    pub fn settings(&mut self, key: &'static str) -> Result<Settings> {
        let mut settings = Settings::new();
        let Some(section) = self.section(key)? else { return Ok(settings) };
        for (name, value) in section.entries(key)? {
            settings.set(name, Setting { value: setting(name, &value)?, line: value.line });
        }
        Ok(settings)
    }

    /// Names and texts, as `{ change = "both" }`.
    pub fn texts(&mut self, key: &'static str) -> Result<Vec<(String, Said<String>)>> {
        let Some(section) = self.section(key)? else { return Ok(Vec::new()) };
        let entries = section.entries(key)?;
        let texts = entries.into_iter().map(|(name, said)| match said.value.as_str() {
            Some(text) => Ok((name.to_owned(), Said { value: text.to_owned(), line: said.line })),
            None => Err(wrong(said.line, format!("{name:?} is not a text"))),
        });
        texts.collect()
    }

    /// Ends it: a key that nobody has asked for is wrong.
    pub fn finish(self) -> Result<()> {
        let keys = self.table.keys().filter(|key| !self.asked.contains(&key.get_ref().as_ref()));
        // The table is ordered by its keys; its reader reads it by its lines.
        let Some(first) = keys.min_by_key(|key| key.span().start) else { return Ok(()) };
        let (key, line) = (first.get_ref().as_ref(), self.lines.line(first.span().start));
        Err(unknown(line, &format!("{} has no key", self.what), key, self.asked.into_iter()))
    }

    /// Every key and value, with its line.
    fn entries(&self, key: &str) -> Result<Vec<(&'t str, Said<&'t DeValue<'t>>)>> {
        if self.table.len() > SETTINGS_MAX {
            let why = format!("{key:?} has more than {SETTINGS_MAX} names");
            return Err(wrong(self.line, why));
        }
        let entries = self.table.iter().map(|(name, value)| {
            let line = self.lines.line(name.span().start);
            (name.get_ref().as_ref(), Said { value: value.get_ref(), line })
        });
        Ok(entries.collect())
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        parse: impl Fn(&'t DeValue<'t>) -> Option<T>,
    ) -> Result<Option<Said<T>>> {
        self.asked.push(key);
        let Some((at, value)) = self.table.get_key_value(key) else { return Ok(None) };
        let line = self.lines.line(at.span().start);
        let value = parse(value.get_ref());
        let value = value.ok_or_else(|| wrong(line, format!("{key:?} is not {wanted}")))?;
        Ok(Some(Said { value, line }))
    }
}

/// That there is no such thing, with the one that was meant or all that there are.
pub(super) fn unknown<'a>(
    line: usize,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Error {
    let shown: String = name.chars().take(NAME_MAX).collect();
    let near = nearest(&shown, known.clone());
    wrong(line, format!("{what} {shown:?}")).fix(match near {
        Some(near) => format!("did you mean {near:?} ?"),
        None => format!("there are: {}", known.collect::<Vec<_>>().join(", ")),
    })
}

fn setting(name: &str, said: &Said<&DeValue<'_>>) -> Result<Value> {
    let refused = || {
        let wanted = format!("a text, a number, true, false, or a list of up to {SETTINGS_MAX}");
        wrong(said.line, format!("{name:?} is not {wanted}"))
    };
    match said.value {
        DeValue::Array(list) if list.len() <= SETTINGS_MAX => {
            let each = list.iter().map(|one| scalar(one.get_ref()).ok_or_else(refused));
            each.collect::<Result<_>>().map(Value::List)
        }
        one => scalar(one).ok_or_else(refused),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::Text(text.as_ref().into())),
        DeValue::Integer(n) => integer(n).map(Value::Int),
        DeValue::Float(_) => number(value).map(Value::Float),
        DeValue::Boolean(flag) => Some(Value::Bool(*flag)),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn whole(value: &DeValue<'_>) -> Option<u32> {
    value.as_integer().and_then(integer).and_then(|n| u32::try_from(n).ok())
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(n) => integer(n)? as f64,
        DeValue::Float(n) => n.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

fn integer(n: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(n.as_str(), n.radix()).ok()
}
