//! The options of a port text: `key=value` pairs and flags, in their order.
//!
//! Each key occurs once. A key that was asked for is noted, so that the others can be refused.

use std::cell::RefCell;
use std::fmt;

use super::{SECRET, SEPARATORS, hidden, nearest, shown};

/// Options whose values are lists of numbers.
const LISTS: [&str; 3] = ["udp", "tcp", "queues"];

/// The reason why an option was refused, and the remedy.
pub(super) struct Refused(pub String, pub &'static str);

/// The options of a port text, and which of them the driver has read.
#[derive(Clone, Default)]
pub struct Options {
    pub(super) pairs: Vec<(String, Option<String>)>,
    pub(super) asked: RefCell<Vec<String>>,
    /// Keys that need another option, and what to do.
    pub(super) hints: Vec<(&'static str, &'static str)>,
}

/// Displays the options as they are written, without the secret of a memif port.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = self.asked.borrow();
        let option = |pair: &(String, Option<String>)| match is_misspelt_secret(&pair.0, &asked) {
            true => hidden(&whole(pair)),
            false => whole(pair),
        };
        // All at once, because the secret may be behind a comma.
        let all = self.pairs.iter().map(option).collect::<Vec<_>>().join(",");
        f.debug_list().entries(shown(&all).split(',')).finish()
    }
}

impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        self.pairs == other.pairs
    }
}

impl Eq for Options {}

impl Options {
    pub(super) fn parse(text: Option<&str>) -> std::result::Result<Options, Refused> {
        let mut options = Options::default();
        for part in text.into_iter().flat_map(|text| text.split(',')) {
            let pair = options.pair(part)?;
            options.pairs.push(pair);
        }
        Ok(options)
    }

    /// Inserts the option `part` before the others.
    pub(super) fn add_first(&mut self, part: &str) -> std::result::Result<(), Refused> {
        let pair = self.pair(part)?;
        self.pairs.insert(0, pair);
        Ok(())
    }

    /// Parses an option that must not be present yet.
    fn pair(&self, part: &str) -> std::result::Result<(String, Option<String>), Refused> {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (part, None),
        };
        if part.is_empty() {
            let why = "an option is empty: one comma too many";
            return Err(Refused(why.into(), "leave out the comma"));
        }
        if key.is_empty() {
            return Err(Refused(format!("'{}' has no key", shown(part)), "write KEY=VALUE"));
        }
        if self.pairs.iter().any(|(k, _)| k == key) {
            let why = format!("option '{}' is given twice", shown(key));
            return Err(Refused(why, "leave out one of them"));
        }
        Ok((key.to_owned(), value))
    }

    /// Returns the list `udp=80+443` if the options from `at` on are numbers that a comma separates
    /// from such a list.
    pub(super) fn joined(&self, at: usize) -> Option<String> {
        let (before, rest) = self.pairs.split_at(at);
        let (key, first) = before.last().filter(|(key, _)| LISTS.contains(&&**key))?;
        let is_number = |(text, value): &&(String, Option<String>)| {
            value.is_none() && text.starts_with(|first: char| first.is_ascii_digit())
        };
        let numbers: Vec<&str> =
            rest.iter().take_while(is_number).map(|(text, _)| &**text).collect();
        let first = first.as_ref().filter(|_| !numbers.is_empty())?;
        Some(format!("{key}={first}+{}", numbers.join("+")))
    }

    /// Removes and returns the text of a moderation, including the numbers of `fixed`, which follow
    /// a comma: `moderation=fixed:usecs=100,frames=32`.
    pub(super) fn take_moderation(&mut self) -> Option<String> {
        self.asked.borrow_mut().push("moderation".into());
        let at = self.pairs.iter().position(|(key, _)| key == "moderation")?;
        let mut text = self.pairs.remove(at).1.unwrap_or_default();
        let is_fixed = text.starts_with("fixed:");
        while is_fixed
            && let Some((key, Some(value))) = self.pairs.get(at)
            && matches!(&**key, "usecs" | "frames")
        {
            text += &format!(",{key}={value}");
            self.pairs.remove(at);
        }
        Some(text)
    }

    /// Returns each option that is probably a misspelt `secret`, as it is written and without its
    /// value.
    pub(super) fn misspelt_secrets(&self) -> impl Iterator<Item = (String, String)> {
        let asked = self.asked.borrow();
        let is_one = |(key, _): &&(String, Option<String>)| is_misspelt_secret(key, &asked);
        let found: Vec<String> = self.pairs.iter().filter(is_one).map(whole).collect();
        found.into_iter().map(|option| (option.clone(), hidden(&option)))
    }

    /// Finds the value of a key: `None` without the key, `Some(None)` for a key without value.
    pub(super) fn find(&self, key: &str) -> Option<Option<String>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.iter().any(|a| a == key) {
            asked.push(key.to_owned());
        }
        self.pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    }

    /// Returns true if the text has the key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Adds a key unless the text has it already.
    pub fn set_default(&mut self, key: &str, value: Option<&str>) {
        if !self.pairs.iter().any(|(k, _)| k == key) {
            self.pairs.push((key.to_owned(), value.map(str::to_owned)));
        }
    }
}

/// Returns an option as it is written.
fn whole((key, value): &(String, Option<String>)) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    }
}

/// Returns true if `key`, which is none of the keys that were `asked` for, is most similar to
/// `secret`.
pub(super) fn is_misspelt_secret(key: &str, asked: &[String]) -> bool {
    let word = key.trim().split(SEPARATORS).next().unwrap_or_default();
    let known = asked.iter().map(String::as_str).chain([SECRET]);
    !asked.iter().any(|asked| asked == key) && key != SECRET && nearest(word, known) == Some(SECRET)
}
