//! Profiles and differences formatted as text: each format is a struct with
//! [`Display`](std::fmt::Display).
//!
//! - [`Readprofile`] and [`Kernprof`]: as those tools print them, bare, so that what a post has can
//!   be printed again to the byte, and so that others' programs can read it;
//! - [`Table`], [`Ranked`] and [`Chains`]: for people, with units, conditions and warnings;
//! - [`csv`] and [`json`]: for programs; nothing is shortened, rounded or left out.
//!
//! A name in a profile is whatever its file or process says. What a terminal would take for an
//! order is escaped in all but [`csv`] and [`json`].

mod bare;
mod chains;
pub mod csv;
mod figures;
pub mod json;
mod preface;
mod ranked;
mod table;

use std::fmt::{self, Write as _};

use linerate_show::words::elided;

use crate::diff::Diff;
use crate::profile::{Origin, Profile, Row};

pub use bare::{Kernprof, Readprofile};
pub use chains::Chains;
pub use linerate_show::words::harmless;
pub use preface::unit_of;
pub use ranked::Ranked;
pub use table::Table;

pub(crate) use preface::unit;

/// Returns the rows by falling count; equal counts stay in the profile's order.
fn by_falling_count(profile: &Profile) -> Vec<&Row> {
    let mut rows: Vec<&Row> = profile.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Returns the count for each byte of code: as printed by the source, else computed with four
/// digits, else `n/a`.
fn load_of(row: &Row) -> String {
    match (row.load, row.code_bytes) {
        (Some(load), _) => bare::printed(load),
        (None, Some(bytes)) if bytes > 0 => format!("{:.4}", row.count as f64 / bytes as f64),
        _ => "n/a".to_owned(),
    }
}

/// The mark that starts each line with figures of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(&'static str);

/// The mark of a model.
pub(crate) const MODEL: Mark = Mark("MODEL");
/// No mark: figures of a counter, a clock or a listing.
const NONE: Mark = Mark("");

impl Mark {
    /// Returns the mark for figures of this origin.
    fn of(origin: Origin) -> Mark {
        if origin == Origin::Model { MODEL } else { NONE }
    }

    /// Returns the mark for a difference. A model against a measurement is named in the first line;
    /// its rows are neither, and so have no mark.
    fn between(diff: &Diff) -> Mark {
        let (without, with) = (diff.without.origin, diff.with.origin);
        if without == with { Mark::of(with) } else { NONE }
    }

    /// Writes `text` with the mark before each line.
    pub(crate) fn each_line(
        self,
        f: &mut fmt::Formatter<'_>,
        text: &impl fmt::Display,
    ) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "{text}");
        }
        for line in text.to_string().lines() {
            f.write_str(self.0)?;
            if !line.is_empty() {
                write!(f, "  {line}")?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// Returns `name` with unsafe characters escaped, in at most `width` characters; a long name loses
/// its middle.
pub(crate) fn short(name: &str, width: usize) -> String {
    elided(&harmless(name), width)
}

/// Returns the file name of `object`, without folders.
fn file_of(object: &str) -> &str {
    match object.rsplit('/').next() {
        Some(file) if !file.is_empty() => file,
        _ => object,
    }
}
