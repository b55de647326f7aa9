//! Readers of profiles from other programs: listings of kernprof and readprofile, also quoted in
//! old mail, the text of `perf script`, and our own JSON.
//!
//! ```text
//! file ─ lines ─┬─ kernprof ────┐
//!               ├─ readprofile ─┴─ listing ─┬─ rows ─ Profile, Profile, …
//!               └─ perf_script ─────────────┘
//! file ─ json ───────────────────────────────────── Profile, Profile, …
//! ```
//!
//! A file is read once, line by line, and never held: what is kept is a row for each function, at
//! most 1,000,000 of them; what is beyond that is summed in one row, `[other]`. A line that has the
//! shape of a row and is none is left out, counted and told of by its number; the rest is still
//! read. JSON is the exception: a broken document is an error, and nothing is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read as _};
use std::path::Path;

use linerate_sys::{Code, Error, Result};

use crate::profile::Profile;
use rows::Budget;

mod form;
pub mod json;
mod kernprof;
pub(crate) mod lines;
mod listing;
mod perf_script;
mod readprofile;
mod rows;
mod token;

pub use lines::{COMPLAINTS_KEPT, Complaint};
pub(crate) use rows::OTHER;

named! {
    /// Forms in which profiles are written.
    #[derive(Default)]
    pub enum Form {
        /// `function [address]: count`, as SGI's kernprof prints.
        #[default]
        Kernprof = "kernprof",
        /// `ticks function load`, as readprofile prints, or with the address first, as `readprofile
        /// -v` does.
        Readprofile = "readprofile",
        /// The output of `perf script` without options.
        PerfScript = "perf script",
        /// Our own form: see [`json`].
        Json = "linerate's JSON",
    }
}

/// The content of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Read {
    /// A profile for each listing, or for each event of a `perf script`, in the file's order.
    pub profiles: Vec<Profile>,
    /// The profiles' form.
    pub form: Form,
    /// The first lines with the shape of a row that are invalid. At most [`COMPLAINTS_KEPT`].
    pub complaints: Vec<Complaint>,
    /// The number of such lines.
    pub complaints_total: u64,
    /// Lines outside listings that are not blank.
    pub prose_lines: u64,
    /// Number of listings beyond the limit, and the line on which the first of them begins.
    pub listings_left_out: Option<(u64, u64)>,
}

/// The part of a text that is searched for rows to find its form.
const SEARCHED_BYTES: u64 = 1 << 20;

/// Reads the profiles in a file.
///
/// # Errors
/// `E-FILE` if it cannot be read, or if there is no profile in it.
pub fn open(path: &Path) -> Result<Read> {
    let what = || format!("cannot read a profile from {}", path.display());
    let file = File::open(path).map_err(|e| Error::new(Code::File, what(), e.to_string()))?;
    let read = parse(BufReader::with_capacity(1 << 16, file), None);
    read.map_err(|mut e| {
        e.what = what();
        e
    })
}

/// Reads the profiles in a text of `form`, or of the form of most rows in its first MiB.
///
/// # Errors
/// `E-FILE` if it cannot be read, or if there is no profile in it; then the reason says what is
/// read, and what was found instead.
pub fn parse(mut input: impl BufRead, form: Option<Form>) -> Result<Read> {
    if let Some(form) = form {
        return parse_as(input, form);
    }
    let mut head = Vec::new();
    input.by_ref().take(SEARCHED_BYTES).read_to_end(&mut head).map_err(|e| unreadable(&e))?;
    let form = form::of(&head).map_err(|mut e| {
        if head.len() as u64 == SEARCHED_BYTES {
            e.why.push_str("; only its first MiB was searched");
        }
        e
    })?;
    parse_as(Cursor::new(head).chain(input), form)
}

fn parse_as(input: impl BufRead, form: Form) -> Result<Read> {
    let read = match form {
        Form::Kernprof => listing::read(input, kernprof::SYNTAX, Budget::default()),
        Form::Readprofile => listing::read(input, readprofile::SYNTAX, Budget::default()),
        Form::PerfScript => perf_script::read(input),
        Form::Json => return json::read(input),
    }
    .map_err(|e| unreadable(&e))?;
    if !read.profiles.is_empty() {
        return Ok(read);
    }
    let why = match read.complaints.first() {
        Some(first) => format!("no row of {form} in it can be read: {first}"),
        None => format!("no row of {form} in {} lines", read.prose_lines),
    };
    Err(Error::new(Code::File, WHAT, why))
}

const LINE_TOO_LONG: &str = "it is longer than 65536 bytes";

const WHAT: &str = "cannot read a profile";

fn unreadable(e: &io::Error) -> Error {
    Error::new(Code::File, WHAT, e.to_string())
}

impl Read {
    fn new(form: Form) -> Read {
        Read { form, ..Read::default() }
    }

    fn complain(&mut self, line: u64, why: impl AsRef<str>) {
        self.complaints_total += 1;
        if self.complaints.len() < COMPLAINTS_KEPT {
            self.complaints.push(Complaint::new(line, why.as_ref()));
        }
    }

    /// Reads the `n`th profile; the first is 1.
    ///
    /// # Errors
    /// `E-FILE` if there are not as many.
    pub fn one(mut self, n: usize) -> Result<Profile> {
        if (1..=self.profiles.len()).contains(&n) {
            return Ok(self.profiles.swap_remove(n - 1));
        }
        let why = match self.profiles.len() {
            1 => "there is one, number 1".to_owned(),
            all => format!("there are {all}, numbers 1 to {all}"),
        };
        Err(Error::new(Code::File, format!("no profile number {n} in it"), why))
    }

    /// Returns the remark on lines and listings that were left out; `None` if there were none.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        let lines = self.complaints.first().map(|first| match self.complaints_total {
            1 => format!("1 line left out, the rest still read: {first}"),
            n => format!("{n} lines left out, the rest still read; the first: {first}"),
        });
        let most = self.profiles.len();
        let listings = self.listings_left_out.map(|(n, line)| {
            let listings = if n == 1 { "listing" } else { "listings" };
            format!("{n} {listings} left out, from line {line} on: {most} of a file are read")
        });
        let said: Vec<String> = listings.into_iter().chain(lines).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_kept_up_to_a_bound_and_all_counted() {
        let text = format!("a [1]: 1\n{}", "b [zz]: 1\n".repeat(500));
        let read = parse(text.as_bytes(), None).unwrap();
        assert_eq!((read.complaints.len(), read.complaints_total), (COMPLAINTS_KEPT, 500));
        let say = read.left_out().unwrap();
        assert_eq!(
            say,
            "500 lines left out, the rest still read; the first: line 2: \"zz\" is not an address"
        );
    }

    #[test]
    fn a_form_that_is_given_is_not_looked_for() {
        let e = parse("1 f 0.5\n".as_bytes(), Some(Form::Kernprof)).unwrap_err();
        assert_eq!(e.why, "no row of kernprof in 1 lines");
        let e = parse("f [zz]: 1\n".as_bytes(), Some(Form::Kernprof)).unwrap_err();
        assert!(e.why.contains("line 1: \"zz\" is not an address"), "{e}");
    }

    #[test]
    fn a_form_is_looked_for_within_a_bound_which_is_said() {
        let far = format!("{}f [c010]: 1\n", "prose\n".repeat(200_000));
        let e = parse(far.as_bytes(), None).unwrap_err();
        assert!(e.why.ends_with("only its first MiB was searched"), "{e}");
        assert!(parse(far.as_bytes(), Some(Form::Kernprof)).is_ok());
    }
}
