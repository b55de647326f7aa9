//! The text that names a port: `[name=]driver:arg[,key=value]…`.
//!
//! A flag is a key without value. Keys that the driver does not ask for are an error, so that a
//! misspelt option is never silently ignored. A driver that opens nothing by name has its options
//! where others have the argument: `gen:rate=1Mpps`, or `gen:,rate=1Mpps`.

mod options;

use std::fmt::{self, Display};

use linerate_skb::{Code, Error, Result};

use crate::moderation::Moderation;
use crate::wrap::toll::Toll;

pub use options::Options;
use options::{Refused, is_misspelt_secret};

/// A parsed port text.
#[derive(Clone, PartialEq, Eq)]
pub struct Spec {
    /// The port's name in reports: the part before `=`, else the argument, else the driver.
    pub name: String,
    /// Name of the driver.
    pub driver: String,
    /// Object that the driver opens: an interface, a file, a ring's name.
    pub arg: String,
    /// The moderation of the port's queues, if the text has one: an option of every port.
    pub moderation: Option<Moderation>,
    /// The price of the port's register access, if the text has one: an option of every port.
    pub toll: Option<Toll>,
    /// The options of the text.
    pub options: Options,
    text: String,
}

impl Spec {
    /// Parses a port text; `drivers` are the valid names.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`, naming the part that does not fit and what would.
    pub fn parse(text: &str, drivers: &[&str]) -> Result<Spec> {
        Spec::split(text, drivers)?.of_every_port()
    }

    /// Parses a port text, and leaves the options that every port has among [`Spec::options`].
    ///
    /// # Errors
    /// As [`Spec::parse`].
    pub(crate) fn split(text: &str, drivers: &[&str]) -> Result<Spec> {
        let bad =
            |why: String| Error::new(Code::PortSyntax, format!("port '{}'", shown(text)), why);
        let refused = |Refused(why, fix)| bad(why).fix(fix);
        let (head, options) = match text.split_once(',') {
            Some((head, options)) => (head, Some(options)),
            None => (text, None),
        };
        let Some((front, arg)) = head.split_once(':') else {
            if drivers.contains(&head) {
                return Err(bad(format!("no ':' follows the driver '{head}'")).fix(after(head)));
            }
            // A text without a driver is most often an interface's name: suggest drivers for it.
            let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let is_interface = !head.is_empty() && head.chars().all(is_name);
            let arg = if is_interface { head } else { "eth0" };
            return Err(bad("there is no driver".into()).fix(format!(
                "write driver:arg, as in xdp:{arg} or packet:{arg}; drivers: {}",
                list(drivers)
            )));
        };
        let (name, driver) = match front.split_once('=') {
            Some((name, driver)) => (Some(name), driver),
            None => (None, front),
        };
        if !drivers.contains(&driver) {
            let shown_front = shown(front);
            let said = if shown_front == front { driver } else { &shown_front };
            let near = nearest(said, drivers.iter().copied());
            return Err(bad(format!("there is no driver '{said}'")).fix(match near {
                Some(near) => format!("did you mean {near}:{}?", shown(arg)),
                None => format!("drivers: {}", list(drivers)),
            }));
        }
        if name.is_some_and(str::is_empty) {
            let fix = format!("write NAME={driver}:…, or leave out the =");
            return Err(bad("the name before '=' is empty".into()).fix(fix));
        }
        let fallback = if arg.is_empty() { driver } else { arg };
        Ok(Spec {
            name: name.unwrap_or(fallback).to_owned(),
            driver: driver.to_owned(),
            arg: arg.to_owned(),
            moderation: None,
            toll: None,
            options: Options::parse(options).map_err(refused)?,
            text: text.to_owned(),
        })
    }

    /// Moves the options that every port has from the driver's options to the fields of `Spec`.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for a value that makes no sense.
    pub(crate) fn of_every_port(mut self) -> Result<Spec> {
        let moderation = self.options.take_moderation().map(|mode| mode.parse()).transpose();
        self.moderation = moderation.map_err(|e: Error| self.error(e.why).fix(e.fix))?;
        self.toll = self.take("toll", str::parse)?;
        Ok(self)
    }

    /// Converts the argument after the colon into the first option, for a driver that opens nothing
    /// by name.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` as [`Spec::parse`].
    pub(crate) fn without_arg(mut self) -> Result<Spec> {
        if self.arg.is_empty() {
            return Ok(self);
        }
        let arg = std::mem::take(&mut self.arg);
        if self.name == arg {
            self.name.clone_from(&self.driver);
        }
        match self.options.add_first(&arg) {
            Ok(()) => Ok(self),
            Err(Refused(why, fix)) => Err(self.error(why).fix(fix)),
        }
    }

    /// Copies the options that this end lacks from `other`, the other end of the same pair.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` if the ends contradict each other.
    pub fn agree_with(&mut self, other: &Spec) -> Result<()> {
        for (key, value) in &other.options.pairs {
            let own = self.options.pairs.iter().find(|(own, _)| own == key);
            if own.is_some_and(|(_, own)| own != value) {
                let said = value.as_ref().map_or(String::new(), |value| format!("={value}"));
                let why = format!("the {}'s other end has {key}{said}", self.driver);
                return Err(self
                    .error(why)
                    .fix("give the same value at both ends, or at one end only"));
            }
            self.options.set_default(key, value.as_deref());
        }
        Ok(())
    }

    /// Returns the text that the spec was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the same text for output that others may read: without the secret of a memif port,
    /// also under a misspelt key.
    #[must_use]
    pub fn shown_text(&self) -> String {
        let options = self.options.misspelt_secrets();
        options.fold(shown(&self.text), |text, (option, hidden)| text.replace(&option, &hidden))
    }

    /// Makes an error about this port's text.
    #[must_use]
    pub fn error(&self, why: impl Display) -> Error {
        Error::new(Code::PortSyntax, format!("port '{}'", self.shown_text()), why.to_string())
    }

    /// Returns the value of `key`, parsed by `parse`; `None` if the text has no such key.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` if the key has no value or `parse` refuses it.
    pub fn value<T, E: Display>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        match self.options.find(key) {
            None => Ok(None),
            Some(None) => {
                let why = format!("option '{key}' needs a value");
                Err(self.error(why).fix(format!("write {key}=VALUE")))
            }
            Some(Some(text)) => {
                let refuse = |e| self.error(format!("{}: {e}", shown(&format!("{key}={text}"))));
                parse(&text).map(Some).map_err(refuse)
            }
        }
    }

    /// Returns the value of `queues`, a port's number of queues: from 1 to `most`, and 1 if the
    /// text has no such key.
    ///
    /// # Errors
    /// As [`Spec::value`].
    pub(crate) fn queues(&self, most: u32) -> Result<usize> {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(n) if (1..=most).contains(&n) => Ok(n as usize),
            _ => Err(format!("how many, 1 to {most}")),
        };
        Ok(self.value("queues", number)?.unwrap_or(1))
    }

    /// Removes `key` from the text and returns its value, parsed by `parse`: for an option of every
    /// port, which drivers do not read.
    ///
    /// # Errors
    /// As [`Spec::value`].
    pub fn take<T, E: Display>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        let value = self.value(key, parse)?;
        self.options.pairs.retain(|(k, _)| k != key);
        Ok(value)
    }

    /// Sets the remedy for `keys`, if the driver reads none of them: another option is missing with
    /// which they have a meaning.
    pub fn hint(&mut self, keys: &[&'static str], fix: &'static str) {
        self.options.hints.extend(keys.iter().map(|key| (*key, fix)));
    }

    /// Returns true if the flag `key` is set (`key`, `key=on`), false for `key=off` or without it.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for another value.
    pub fn flag(&self, key: &str) -> Result<bool> {
        match self.options.find(key) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(text)) => match text.as_str() {
                "on" | "yes" | "1" => Ok(true),
                "off" | "no" | "0" => Ok(false),
                other => {
                    let option = format!("{key}={other}");
                    Err(self.error(format!("{}: use on or off", shown(&option))))
                }
            },
        }
    }

    /// Completes the parsing of options: returns an error for a key that no driver has read.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for the first key in the text that no driver reads, with the nearest one;
    /// for an option that is part of the argument or of a value, because no comma stands before it.
    pub fn finish(&self) -> Result<()> {
        let asked = self.options.asked.borrow();
        if let Some(at) = self.options.pairs.iter().position(|(k, _)| !asked.contains(k)) {
            let (key, value) = &self.options.pairs[at];
            let known: Vec<&str> = asked.iter().map(String::as_str).collect();
            let said = if is_misspelt_secret(key, &asked) { hidden(key) } else { shown(key) };
            let error = self.error(format!("{} has no option '{said}'", self.driver));
            if let Some((_, fix)) = self.options.hints.iter().find(|(hinted, _)| hinted == key) {
                return Err(error.fix(*fix));
            }
            if let Some((is_of, fix)) = of_engines(key) {
                return Err(self.error(is_of).fix(fix));
            }
            if let Some(list) = self.options.joined(at) {
                return Err(error.fix(format!("several numbers are joined by +: {list}")));
            }
            // The key of `rate:1kpps`, or of `rate=1kpps` after a colon or a space, is `rate`.
            let key = key.trim().split(SEPARATORS).next().unwrap_or_default();
            return Err(error.fix(match nearest(key, known.iter().copied()) {
                Some(near) => format!("did you mean {near}?"),
                None if known.is_empty() => "it has no options".into(),
                // The word may be the rest of a name: `a,b.pcap`.
                None if value.is_none() && key.contains(['.', '/']) => format!(
                    "a comma begins an option, so no name or path can contain one; options: {}",
                    list(&known)
                ),
                None => format!("options: {}", list(&known)),
            }));
        }
        let values = self.options.pairs.iter().filter_map(|(_, value)| value.as_deref());
        let behind = |text| hidden_option(text, &asked);
        match hidden_key(&self.arg, &asked)
            .or_else(|| std::iter::once(&*self.arg).chain(values).find_map(behind))
        {
            None => Ok(()),
            Some(option) => {
                let option = shown(option);
                let why = format!("'{option}' is an option, and the comma before it is missing");
                Err(self.error(why).fix(format!("did you mean ,{option}?")))
            }
        }
    }
}

/// Displays the text and the options without the secret of a memif port.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("text", &self.shown_text())
            .field("moderation", &self.moderation)
            .field("toll", &self.toll)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Returns a port text, or a part of it, for errors, without its secret: also in capital letters,
/// and where a wrong character stands before the option or in place of its `=`.
pub(crate) fn shown(text: &str) -> String {
    // A comma is in place of the `=`.
    let mut is_next = false;
    let part = |part: &str| {
        let is_value = is_next && !part.contains('=');
        is_next = part.trim().eq_ignore_ascii_case(SECRET);
        if is_value {
            return "***".to_owned();
        }
        // Changes no length: other letters than those of ASCII stay.
        let lower = part.to_ascii_lowercase();
        let is_secret = |(at, _): &(usize, &str)| {
            let (before, behind) = (&part[..*at], &part[at + SECRET.len()..]);
            (before.is_empty() || before.ends_with(SEPARATORS))
                && behind.starts_with(|c: char| c == '=' || SEPARATORS.contains(&c))
        };
        match lower.match_indices(SECRET).find(is_secret) {
            Some((at, _)) => format!("{}***", &part[..=at + SECRET.len()]),
            None => part.to_owned(),
        }
    };
    text.split(',').map(part).collect::<Vec<_>>().join(",")
}

/// The option whose value is never shown.
const SECRET: &str = "secret";

/// Returns an option without the text behind its key.
fn hidden(option: &str) -> String {
    let start = option.len() - option.trim_start_matches(SEPARATORS).len();
    match option[start..].find(|c: char| c == '=' || SEPARATORS.contains(&c)) {
        Some(at) => format!("{}***", &option[..=start + at]),
        None => option.to_owned(),
    }
}

/// Returns the remedy for a text that is the name of `driver` alone.
fn after(driver: &str) -> String {
    match driver {
        "xdp" | "packet" => format!("write {driver}:INTERFACE, as in {driver}:eth0"),
        _ => format!(
            "write {driver}:ARGUMENT, as in xdp:eth0, or {driver}: if it needs no argument: linerate --help lists the ports"
        ),
    }
}

/// Returns the reason and the remedy for an option that an engine reads itself, and no driver: the
/// text of a port that is opened without an engine has it.
fn of_engines(key: &str) -> Option<(String, &'static str)> {
    let fix = match key {
        "qdisc" | "shape" => {
            "leave it out, and put the discipline in front of the port: linerate::qdisc::Shaped"
        }
        "tx_batch" => {
            "leave it out, and pass xmit a batch of as many packets as one call is to send"
        }
        _ => return None,
    };
    let why = format!(
        "'{key}' is an option of ports in an engine and in the command, and this port has no engine"
    );
    Some((why, fix))
}

fn list(words: &[&str]) -> String {
    words.join(" ")
}

/// Separators that users type between options by mistake, instead of a comma.
const SEPARATORS: [char; 4] = [';', ':', ' ', '\t'];

/// Returns the argument's key, if the argument is an option with a value because the name was
/// forgotten.
fn hidden_key<'a>(arg: &'a str, keys: &[String]) -> Option<&'a str> {
    let key = arg.split_once('=')?.0;
    keys.iter().any(|known| known == key).then_some(arg)
}

/// Returns the first option in `text` after a separator other than a comma.
fn hidden_option<'a>(text: &'a str, keys: &[String]) -> Option<&'a str> {
    text.split(SEPARATORS).skip(1).find(|part| {
        let key = part.split('=').next().unwrap_or_default();
        keys.iter().any(|known| known == key)
    })
}

/// Returns the candidate most similar to `word`, if at most a third of its letters differ, ignoring
/// case: probably the intended word.
#[must_use]
pub fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    among
        .map(|c| (distance(word, c), c))
        .min()
        .filter(|(d, c)| *d <= c.len().max(3) / 3)
        .map(|(_, c)| c)
}

/// Returns how many letters must be inserted, deleted or replaced, and pairs swapped, to turn one
/// word into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase().into_bytes(), b.to_ascii_lowercase().into_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = rows[i][j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(row[j] + 1).min(rows[i][j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests;
