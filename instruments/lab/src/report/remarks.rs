//! Warnings and notes for the reader of a run: equal texts once, with the cells and sides that they
//! are about.

use std::collections::{BTreeMap, BTreeSet};

use super::folded::{Folded, Numbers};
use super::tables::ROWS_MAX;
use super::view::View;
use super::words::{cells, short, shown};
use crate::record::{CellRecord, Warning};

/// The code of a note, which is no warning.
const NOTE: &str = "W-NOTE";

/// One text.
pub(super) struct Remark {
    /// Its code.
    pub code: String,
    /// The text, with its cells and sides.
    pub text: String,
    /// A remedy.
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

/// The cells, by their place, that a warning is about.
pub(super) fn warned(view: &View<'_>) -> BTreeSet<usize> {
    let places = Places::of(view);
    let warnings = view.run.warnings.iter().filter(|warning| warning.code != NOTE);
    warnings.filter_map(|warning| Some(places.split(&warning.text).0?.cell)).collect()
}

/// The subject of a text: a cell, and its sides as a set of bits; 0 if no side is named.
#[derive(Clone, Copy)]
struct Place {
    cell: usize,
    sides: u8,
}

/// The prefixes of a run's texts that name a side, and their bits.
const SIDES: [(&str, u8); 3] = [(", side a", 1), (", side b", 2), (", the control of a", 4)];

/// Texts that are printed as one.
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

/// `case=remote: all sides; case=local: b`, or how much of the run that is.
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

/// The cells by their factors, in whichever order a text names them.
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
