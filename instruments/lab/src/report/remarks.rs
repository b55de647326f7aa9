//! Warnings, notes and reasons for readers of a run: texts that differ only in numbers are printed
//! once, with their cells and sides.

use std::collections::{BTreeMap, BTreeSet};

use linerate_show::number::grouped;

use super::tables::ROWS_MAX;
use super::view::View;
use super::words::{cells, n, short, shown};
use crate::experiment::Clock;
use crate::record::{CellRecord, PairRecord, Status, Warning};

/// The code of a note, in contrast to the codes of warnings.
const NOTE: &str = "W-NOTE";

/// A text for readers.
pub(super) struct Remark {
    /// The remark's code.
    pub code: String,
    /// The text, with its cells and sides.
    pub text: String,
    /// A remedy, if one is known.
    pub fix: Option<String>,
}

/// Returns the warnings.
pub(super) fn warnings(view: &View<'_>) -> Vec<Remark> {
    remarks(view, |warning| warning.code != NOTE)
}

/// Returns the notes.
pub(super) fn notes(view: &View<'_>) -> Vec<Remark> {
    remarks(view, |warning| warning.code == NOTE)
}

/// Returns the indices of the cells that have warnings.
pub(super) fn warned(view: &View<'_>) -> BTreeSet<usize> {
    let places = Places::of(view);
    let warnings = view.run.warnings.iter().filter(|warning| warning.code != NOTE);
    warnings.filter_map(|warning| Some(places.split(&warning.text).0?.cell)).collect()
}

/// The subject of a text: a cell, and its sides as a bit set; 0 if no side is named.
#[derive(Clone, Copy)]
struct Place {
    cell: usize,
    sides: u8,
}

/// The prefixes of a run's texts that name a side, and their bits.
const SIDES: [(&str, u8); 3] = [(", side a", 1), (", side b", 2), (", the control of a", 4)];

/// Texts that are printed as one, because they differ only in numbers.
struct Group<'a> {
    first: &'a Warning,
    folded: Folded,
    sides_of: BTreeMap<usize, u8>,
}

fn remarks(view: &View<'_>, is_one: impl Fn(&Warning) -> bool) -> Vec<Remark> {
    let places = Places::of(view);
    let mut known: BTreeMap<(&str, Option<&str>, String), usize> = BTreeMap::new();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for warning in view.run.warnings.iter().filter(|warning| is_one(warning)) {
        let (place, text) = places.split(&warning.text);
        let folded = Folded::new(text);
        let key = (warning.code.as_str(), warning.fix.as_deref(), folded.key());
        let at = *known.entry(key).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.folded.take(folded),
            None => groups.push(Group { first: warning, folded, sides_of: BTreeMap::new() }),
        }
        if let Some((group, place)) = groups.get_mut(at).zip(place) {
            *group.sides_of.entry(place.cell).or_default() |= place.sides;
        }
    }
    let told = |group: &Group<'_>| {
        let (said, of) = (shown(&group.folded.told(Numbers::Range)), of(view, &group.sides_of));
        Remark {
            code: short(&group.first.code),
            text: if of.is_empty() { said } else { format!("{said} ({of})") },
            fix: group.first.fix.as_deref().map(shown),
        }
    };
    groups.iter().take(ROWS_MAX).map(told).collect()
}

/// Returns `case=remote: all sides; case=local: b`, or the share of the run's cells.
fn of(view: &View<'_>, sides_of: &BTreeMap<usize, u8>) -> String {
    let mut alike: BTreeMap<u8, Vec<&str>> = BTreeMap::new();
    for (cell, sides) in sides_of {
        let name = view.cells.get(*cell).map_or("", String::as_str);
        alike.entry(*sides).or_default().push(name);
    }
    let each = alike.into_iter().map(|(bits, names)| {
        let sides: Vec<&str> = match bits {
            7 => vec!["all sides"],
            bits => ["a", "b", "control"]
                .into_iter()
                .zip(SIDES)
                .filter_map(|(side, (_, bit))| (bits & bit != 0).then_some(side))
                .collect(),
        };
        let (cells, sides) = (cells(&names, view.cells.len()), sides.join(", "));
        let colon = if cells.is_empty() || sides.is_empty() { "" } else { ": " };
        format!("{cells}{colon}{sides}")
    });
    each.collect::<Vec<_>>().join("; ")
}

/// The cells, which are found by their factors in any order.
struct Places<'a> {
    cells: BTreeMap<Vec<String>, usize>,
    /// The cell's names, if the run has only one.
    only: Option<[&'a str; 2]>,
}

impl<'a> Places<'a> {
    fn of(view: &View<'a>) -> Places<'a> {
        let factors = |cell: &CellRecord| {
            let mut all: Vec<String> =
                cell.at.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
            all.sort();
            all
        };
        let cells = &view.run.cells;
        let only = (cells.len() == 1).then_some(["the only cell", &view.run.experiment.id]);
        Places { cells: cells.iter().map(factors).zip(0..).collect(), only }
    }

    /// Splits a text into its subject and its statement.
    fn split<'t>(&self, text: &'t str) -> (Option<Place>, &'t str) {
        let Some((head, said)) = text.split_once(": ") else { return (None, text) };
        let side = SIDES.iter().find_map(|(end, bit)| Some((head.strip_suffix(end)?, *bit)));
        let (name, sides) = side.unwrap_or((head, 0));
        let mut factors: Vec<String> = name.split(' ').map(str::to_owned).collect();
        factors.sort();
        let is_only = self.only.is_some_and(|names| names.contains(&name));
        match self.cells.get(&factors).copied().or(is_only.then_some(0)) {
            Some(cell) => (Some(Place { cell, sides }), said),
            None => (None, text),
        }
    }
}

/// The largest number of kinds of disturbance that are named, most rejections first.
const KINDS_MAX: usize = 4;

/// The reason why a cell has few figures.
pub(super) struct Reason {
    /// The reason in a word or two.
    pub short: &'static str,
    /// The reason in a sentence.
    pub long: String,
}

/// Returns the reason why a cell has few or no figures; `None` if it has all.
pub(super) fn reason(view: &View<'_>, cell: &CellRecord) -> Option<Reason> {
    let reason = |short, long: &str| Some(Reason { short, long: long.to_owned() });
    match cell.status {
        _ if !cell.ledger.balanced() => {
            reason("withheld", "its packets are not conserved: its results are withheld")
        }
        Status::Ok if cell.is_unfinished => reason(
            "unfinished",
            "the run ended before the cell did; to finish it: linerate lab run --resume RUN",
        ),
        Status::Ok => None,
        Status::Unreachable => reason("not reached", "the load that it names was not reached"),
        Status::Unsupported => reason("not run here", "it cannot be run here"),
        Status::Inconclusive => {
            Some(Reason { short: "disturbed", long: disturbed(view, &cell.pairs) })
        }
    }
}

/// Returns the cells that need a remark, with their reasons; cells with the same reason are
/// grouped. Cells that cannot be run here are left out, because a warning already gives the reason.
pub(super) fn reasons(view: &View<'_>) -> Vec<(String, String)> {
    let mut alike: Vec<(String, Vec<&str>)> = Vec::new();
    let warned = warned(view);
    for (place, (name, cell)) in view.named().enumerate() {
        let Some(Reason { long, .. }) = reason(view, cell) else { continue };
        let is_told = cell.status == Status::Unsupported;
        if is_told && cell.ledger.balanced() && warned.contains(&place) {
            continue;
        }
        let known = alike.iter().position(|(same, _)| *same == long).unwrap_or(alike.len());
        match alike.get_mut(known) {
            Some((_, names)) => names.push(name),
            None if known < ROWS_MAX => alike.push((long, vec![name])),
            None => {}
        }
    }
    let all = view.cells.len();
    alike.into_iter().map(|(long, names)| (cells(&names, all), long)).collect()
}

/// Returns the reasons for disturbed pairs, by the headline's clock, such as `0 of 18 pairs were
/// undisturbed: run delay up to 71.4 % (limit 1 %) in 17 …`.
fn disturbed(view: &View<'_>, pairs: &[PairRecord]) -> String {
    let is_rate = view.headline().is_some_and(|metric| metric.clock == Some(Clock::Wall));
    let is_rejected =
        |pair: &&PairRecord| if is_rate { !pair.accepted } else { !pair.cost_accepted };
    let mut kinds: BTreeMap<String, (Folded, usize)> = BTreeMap::new();
    let rejected: Vec<&PairRecord> = pairs.iter().filter(is_rejected).collect();
    for reason in rejected.iter().filter_map(|pair| pair.reject_reason.as_deref()) {
        let mut of_pair: BTreeMap<String, Folded> = BTreeMap::new();
        for part in reason.split("; ").take(ROWS_MAX) {
            fold(&mut of_pair, Folded::new(&kind(part)));
        }
        for (key, folded) in of_pair {
            match kinds.get_mut(&key) {
                Some((all, count)) => {
                    all.take(folded);
                    *count += 1;
                }
                None => drop(kinds.insert(key, (folded, 1))),
            }
        }
    }
    let mut kinds: Vec<(Folded, usize)> = kinds.into_values().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let each = kinds
        .iter()
        .take(KINDS_MAX)
        .map(|(folded, count)| format!("{} in {}", shown(&folded.told(Numbers::Most)), n(*count)));
    let why = each.collect::<Vec<_>>().join("; ");
    let undisturbed = n(pairs.len() - rejected.len());
    let said = format!("{undisturbed} of {} pairs were undisturbed", n(pairs.len()));
    if why.is_empty() { said } else { format!("{said}: {why}") }
}

fn fold(all: &mut BTreeMap<String, Folded>, one: Folded) {
    match all.get_mut(&one.key()) {
        Some(same) => same.take(one),
        None => drop(all.insert(one.key(), one)),
    }
}

/// Returns the kind of a disturbance: its text without the window and without *at least*, so that
/// texts of the same kind are combined.
fn kind(part: &str) -> String {
    let part = part.replacen("others had at least ", "others had ", 1);
    let of_thread = part.split_once(" of ").zip(part.split_once(" (limit "));
    match of_thread {
        Some(((delay, _), (_, limit))) if delay.starts_with("run delay ") => {
            format!("{delay} (limit {limit}")
        }
        _ => part,
    }
}

/// A text, with the range of each of its numbers.
pub(super) struct Folded {
    /// The words before the first number, between numbers, and after the last.
    words: Vec<String>,
    ranges: Vec<(Number, Number)>,
}

/// The format of a number that differs between the texts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// `32 to 1,056`
    Range,
    /// `up to 1,056`
    Most,
}

#[derive(Clone)]
struct Number {
    text: String,
    value: f64,
}

impl Folded {
    /// Creates a folded text of `text` alone.
    pub fn new(text: &str) -> Folded {
        let mut folded = Folded { words: vec![String::new()], ranges: Vec::new() };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let before = folded.words.last().and_then(|words| words.chars().last());
            let number = number(before, rest);
            let (taken, left) = rest.split_at(number.map_or(c.len_utf8(), str::len));
            rest = left;
            match (number.and_then(|text| text.parse().ok()), folded.words.last_mut()) {
                (Some(value), _) => {
                    let number = Number { text: taken.to_owned(), value };
                    folded.ranges.push((number.clone(), number));
                    folded.words.push(String::new());
                }
                (None, Some(words)) => words.push_str(taken),
                (None, None) => {}
            }
        }
        folded
    }

    /// Returns the text without its numbers: texts with equal keys are printed as one.
    pub fn key(&self) -> String {
        self.words.join("\0")
    }

    /// Adds another text with the same key.
    pub fn take(&mut self, other: Folded) {
        for ((low, high), (least, most)) in self.ranges.iter_mut().zip(other.ranges) {
            if least.value < low.value {
                *low = least;
            }
            if most.value > high.value {
                *high = most;
            }
        }
    }

    /// Formats the words with their numbers.
    pub fn told(&self, numbers: Numbers) -> String {
        let mut text = String::new();
        for (i, words) in self.words.iter().enumerate() {
            text += words;
            let Some((low, high)) = self.ranges.get(i) else { continue };
            text += &match numbers {
                _ if low.value == high.value => low.text.clone(),
                Numbers::Range => format!("{} to {}", grouped(&low.text), grouped(&high.text)),
                Numbers::Most => format!("up to {}", grouped(&high.text)),
            };
        }
        text
    }
}

/// Returns the number at the start of `rest`; `None` if it is part of a name, as in `r0` and
/// `len=256`, or of a word, as in `64k`.
fn number(before: Option<char>, rest: &str) -> Option<&str> {
    if before.is_some_and(|c| c.is_alphanumeric() || "_=.-".contains(c)) {
        return None;
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(rest);
    let part = rest.get(whole..)?.strip_prefix('.').map_or(0, digits);
    let length = if part > 0 { whole + 1 + part } else { whole };
    let is_word = rest.get(length..)?.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    // If a letter follows, the digits belong to a word such as `64k` and are not a number.
    (whole > 0 && !is_word).then(|| rest.get(..length)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(texts: &[&str], numbers: Numbers) -> String {
        let mut all = texts.iter().map(|text| Folded::new(text));
        let mut first = all.next().unwrap();
        for other in all {
            assert_eq!(other.key(), first.key());
            first.take(other);
        }
        first.told(numbers)
    }

    #[test]
    fn numbers_that_differ_become_a_range_and_those_that_do_not_stay() {
        let texts =
            ["32 of 64 packets, 9.75 %", "1056 of 64 packets, 10.5 %", "7 of 64 packets, 9.75 %"];
        assert_eq!(folded(&texts, Numbers::Range), "7 to 1,056 of 64 packets, 9.75 to 10.5 %");
        assert_eq!(folded(&texts, Numbers::Most), "up to 1,056 of 64 packets, up to 10.5 %");
    }

    #[test]
    fn a_number_within_a_name_is_not_one() {
        for (one, other) in [("ring r0", "ring r1"), ("len=1", "len=2"), ("64k", "65k")] {
            assert_ne!(Folded::new(one).key(), Folded::new(other).key());
        }
        for text in ["", "µ1", "CPU 0, 1", "1.", "1.2.3", "[1]: 5%", "9".repeat(400).as_str()] {
            assert_eq!(folded(&[text], Numbers::Range), text);
        }
    }
}
