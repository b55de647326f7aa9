//! Detection of a text's form: the one that most of its rows have. One line of prose may look like a row
//! of any form; a listing has more of them.

use linerate_sys::{Code, Error, Result};

use super::lines::{Line, Lines, excerpt, unquoted};
use super::{Form, WHAT, kernprof, perf_script, readprofile};

/// The forms that can be read, for the error on any other.
const FORMS: &str = "read are listings of kernprof (function [address]: count) and readprofile \
                     (ticks function load), also quoted in mail, the text that `perf script` \
                     prints, and linerate's JSON";

/// The form of the text that begins with `head`: that of most rows in it, and of the first of them
/// if several have as many.
///
/// # Errors
/// `E-FILE` if there is no row in it, with what there is instead.
pub(super) fn of(head: &[u8]) -> Result<Form> {
    if head.starts_with(b"PERFILE2") {
        let fix = "perf script -i FILE > FILE.txt";
        return Err(Error::new(Code::File, WHAT, "it is perf's own file, not its text").fix(fix));
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if text.trim_ascii_start().starts_with(b"{") {
        return Ok(Form::Json);
    }
    let (mut count, mut first, mut broken) = (0, None, None);
    let mut rows = Votes::default();
    let mut lines = Lines::new(head);
    while let Ok(Some((number, line))) = lines.next() {
        count = number;
        let Line::Text(line) = line else { continue };
        let line = unquoted(line);
        if let Some(form) = row(line) {
            rows.add(form);
            continue;
        }
        if first.is_none() && !line.is_empty() {
            first = Some(excerpt(line));
        }
        if broken.is_none() {
            let why = kernprof::broken(line).or_else(|| readprofile::broken(line));
            broken = why.map(|why| format!("line {number}: {why}"));
        }
    }
    if let Some(form) = rows.most() {
        return Ok(form);
    }
    let why = match (first, broken) {
        (None, _) => format!("there is no text in it; {FORMS}"),
        (_, Some(broken)) => format!("no row in {count} lines can be read, {broken}; {FORMS}"),
        (Some(first), None) => format!("no row in {count} lines, the first is {first}; {FORMS}"),
    };
    Err(Error::new(Code::File, WHAT, why))
}

/// The form of a row; `None` if the line is none of any form.
fn row(line: &str) -> Option<Form> {
    if kernprof::is_row(line) {
        Some(Form::Kernprof)
    } else if readprofile::is_row(line) {
        Some(Form::Readprofile)
    } else if perf_script::is_sample(line) {
        Some(Form::PerfScript)
    } else {
        None
    }
}

/// Rows of each form, in the order in which the forms were first seen.
#[derive(Default)]
struct Votes(Vec<(Form, u64)>);

impl Votes {
    fn add(&mut self, form: Form) {
        match self.0.iter_mut().find(|(of, _)| *of == form) {
            Some((_, rows)) => *rows += 1,
            None => self.0.push((form, 1)),
        }
    }

    fn most(&self) -> Option<Form> {
        let first_of_most =
            |best: (Form, u64), next: (Form, u64)| if next.1 > best.1 { next } else { best };
        self.0.iter().copied().reduce(first_of_most).map(|(form, _)| form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        let e = of(text.as_bytes()).unwrap_err();
        assert_eq!(e.code, Code::File);
        e.why
    }

    #[test]
    fn most_rows_decide_and_of_as_many_the_first() {
        let cases = [
            ("prose\n\n> > f [c010]: 7\r\n1 f 0.5\n", Form::Kernprof),
            ("12 processes: 1 running\n  1 f   0.5000\nf [c010]: 7\n", Form::Readprofile),
            // A line of prose that could be a row of readprofile's: of what was measured before.
            ("2 adapters 0.5\nf [c010]: 7\ng [c020]: 3\n", Form::Kernprof),
            (
                "f [1]: 5\nspin 1 1.5: 7 cycles:\n\t10 f (/a)\nspin 1 1.6: 7 cycles:\n",
                Form::PerfScript,
            ),
            ("# head\nspin 8297 1.5: 7 cycles:\n", Form::PerfScript),
            ("\u{feff} {\"schema\":", Form::Json),
        ];
        for (text, form) in cases {
            assert_eq!(of(text.as_bytes()), Ok(form), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_row_is_refused_with_what_it_is_and_what_is_read() {
        let say = why("\n> Dear all,\nit is slow.\n");
        assert!(say.starts_with("no row in 3 lines, the first is \"Dear all,\"; "), "{say}");
        for form in ["kernprof", "readprofile", "perf script", "JSON"] {
            assert!(say.contains(form), "{say}");
        }
        assert!(why("").starts_with("there is no text in it"));
        assert!(why("\n\n").starts_with("there is no text in it"));
    }

    #[test]
    fn rows_that_are_all_broken_are_told_of_by_the_first() {
        let say = why("the profile:\nfn [zz]: 12\n");
        assert!(say.contains("line 2: \"zz\" is not an address"), "{say}");
    }

    #[test]
    fn perfs_own_file_is_refused_with_the_command_that_makes_text_of_it() {
        let e = of(b"PERFILE2\x68\0\0\0").unwrap_err();
        assert!(e.fix.starts_with("perf script"), "{e}");
    }
}
