//! Differences between the settings with which the cells of two runs ran.

use std::collections::{BTreeMap, BTreeSet};

use linerate_show::words::{elided, harmless};

use super::{Row, fail};
use crate::experiment::{Cell, Experiment};
use crate::record::Run;
use crate::settings::Settings;

/// Most differences of a cell that a sentence names.
const NAMED_MAX: usize = 3;

/// Most letters of a name or value in a sentence, because both come from a document.
const VALUE_MAX: usize = 40;

/// A cell that ran with other settings in the first run than in the second.
#[derive(Debug)]
pub(super) struct Differing {
    /// The cell, as the second run names it.
    pub(super) cell: String,
    /// The differences: `message 64 -> 1448`.
    said: String,
    /// True if the second run alone was quick, and false if the first was; `None` if that is not
    /// the only reason for the differences.
    quick: Option<bool>,
}

impl Differing {
    /// Returns the cells of `second` that differ from the same cells of `first`.
    pub(super) fn of(
        (one, other): (&Run, &Run),
        (first, second): (&Experiment, &Experiment),
    ) -> Vec<Differing> {
        let quick = (one.experiment.quick, other.experiment.quick);
        let differing = second.cells.iter().filter_map(|after| {
            let before = first.cells.iter().find(|before| is_at(before, after))?;
            let all = differences((before, quick.0), (after, quick.1));
            let is_window = before.window_ns(quick.0) != after.window_ns(quick.1);
            let [was, is] = [before, after].map(|cell| (cell.window_ns, cell.quick_window_ns));
            let by_quick = all.len() == 1 && is_window && was == is;
            (!all.is_empty()).then(|| Differing {
                cell: after.name(),
                said: said(&all),
                quick: by_quick.then_some(quick.1),
            })
        });
        differing.collect()
    }

    /// Returns the reason why a metric of the cell is not compared.
    pub(super) fn why(&self) -> String {
        let fix = match self.quick {
            None => "repeat one run with the settings of the other",
            Some(true) => "repeat the first run with --quick, or the second without it",
            Some(false) => "repeat the first run without --quick, or the second with it",
        };
        format!("its settings differ: {} ({fix}, or use --allow-env)", self.said)
    }

    /// Returns a sentence for each set of differences, with the cells among `rows` that have it.
    pub(super) fn notes(differing: &[Differing], rows: &[Row]) -> Vec<String> {
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        for one in differing.iter().filter(|one| rows.iter().any(|row| row.cell == one.cell)) {
            fail::add(&mut all, one.said.clone(), one.cell.clone());
        }
        let notes = all.iter().map(|(said, cells)| {
            format!("the settings of the runs differ{}: {said}", fail::at(cells))
        });
        notes.collect()
    }
}

/// Returns true if the cell with the levels `at` ran with other settings, or with windows of
/// another length, in one run than in the other.
pub(super) fn differ(
    at: &BTreeMap<String, String>,
    (one, first): (&Run, &Experiment),
    (other, second): (&Run, &Experiment),
) -> bool {
    let is_it = |cell: &&Cell| {
        cell.at.len() == at.len() && cell.at.iter().all(|(name, level)| at.get(name) == Some(level))
    };
    let [before, after] = [first, second].map(|of| of.cells.iter().find(is_it));
    before.zip(after).is_some_and(|(before, after)| {
        let quick = (one.experiment.quick, other.experiment.quick);
        !differences((before, quick.0), (after, quick.1)).is_empty()
    })
}

/// Returns true if both cells have the same levels. The order of factors may differ, because the
/// runs may have been made with different versions of the experiment.
fn is_at(one: &Cell, other: &Cell) -> bool {
    one.at.len() == other.at.len() && one.at.iter().all(|level| other.at.contains(level))
}

/// Returns the settings in which two cells differ. Each cell comes with true if its run was quick,
/// because a quick run may have windows of another length.
fn differences(
    (before, was_quick): (&Cell, bool),
    (after, is_quick): (&Cell, bool),
) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |name: &str, was: String, is: String| {
        if was != is {
            let [name, was, is] =
                [name, was.as_str(), is.as_str()].map(|text| elided(&harmless(text), VALUE_MAX));
            all.push(format!("{name} {was} -> {is}"));
        }
    };
    add("scenario", before.scenario.clone(), after.scenario.clone());
    let ms = |ns: u64| format!("{} ms", ns as f64 / 1e6);
    add("window", ms(before.window_ns(was_quick)), ms(after.window_ns(is_quick)));
    add("fresh", before.fresh.to_string(), after.fresh.to_string());
    let sides = [&before.a, &after.a, &before.b, &after.b];
    let names = sides.into_iter().flat_map(Settings::iter).map(|(name, _)| name);
    for name in names.collect::<BTreeSet<&str>>() {
        let [was_a, is_a, was_b, is_b] = sides.map(|side| value(side, name));
        if (&was_a, &is_a) == (&was_b, &is_b) {
            add(name, was_a, is_a);
        } else {
            add(&format!("{name} of A"), was_a, is_a);
            add(&format!("{name} of B"), was_b, is_b);
        }
    }
    all
}

/// Formats a setting without its line in the file, which is no difference.
fn value(settings: &Settings, name: &str) -> String {
    settings.get(name).map_or_else(|| "unset".into(), |setting| setting.value.to_string())
}

fn said(all: &[String]) -> String {
    let named = all.get(..NAMED_MAX).unwrap_or(all).join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => named,
        n => format!("{named}, and {n} more"),
    }
}
