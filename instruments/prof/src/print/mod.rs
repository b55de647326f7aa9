//! Profiles and differences, set as text: each form is a struct with [`Display`](std::fmt::Display).
//!
//! - [`Readprofile`] and [`Kernprof`]: as those tools print them, bare, so that what a post has can
//!   be printed again to the byte, and so that others' programs can read it;
//! - [`Table`] and [`Ranked`]: for people, with units, conditions and warnings;
//! - [`csv`] and [`json`]: for programs; nothing is shortened, rounded or left out.
//!
//! A name in a profile is whatever its file or process says. What a terminal would take for an
//! order is escaped in all of them.

mod bare;
pub mod csv;
mod figures;
pub mod json;
mod preface;
mod ranked;
mod table;

use linerate_show::words::elided;

use crate::profile::{Profile, Row};

pub use bare::{Kernprof, Readprofile};
pub use linerate_show::words::harmless;
pub use preface::unit_of;
pub use ranked::Ranked;
pub use table::Table;

pub(crate) use preface::unit;

/// Rows by falling count, equal ones in the order that they have.
fn by_falling_count(profile: &Profile) -> Vec<&Row> {
    let mut rows: Vec<&Row> = profile.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Count for each byte of code: as the maker printed it, else computed with four digits, else
/// `n/a`.
fn load_of(row: &Row) -> String {
    match (row.load, row.code_bytes) {
        (Some(load), _) => bare::printed(load),
        (None, Some(bytes)) if bytes > 0 => format!("{:.4}", row.count as f64 / bytes as f64),
        _ => "n/a".to_owned(),
    }
}

/// Returns `name`, harmless, in at most `width` characters, without the middle of a long one.
fn short(name: &str, width: usize) -> String {
    elided(&harmless(name), width)
}

/// Returns the file of `object`, without its folders.
fn file_of(object: &str) -> &str {
    match object.rsplit('/').next() {
        Some(file) if !file.is_empty() => file,
        _ => object,
    }
}
