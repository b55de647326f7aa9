//! Detection of a text's form, which is the form of most of its rows. A line of prose may look like
//! a row of any form, but a listing has many rows.

use linerate_sys::{Code, Error, Result};

use super::lines::{Line, Lines, excerpt, unquoted};
use super::listing::Parsed;
use super::{Form, WHAT, kernprof, perf_script, readprofile};

/// The supported forms, for the error on any other.
const FORMS: &str = "read are listings of kernprof (function [address]: count) and readprofile \
                     (ticks function load), also quoted in mail, the text that `perf script` \
                     prints, and linerate's JSON";

/// Returns the form of the text that begins with `head`: that of most of its rows, and of the
/// earliest among equals.
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
    // Rows of each form, in the order in which the forms were first seen.
    let mut votes: Vec<(Form, u64)> = Vec::new();
    let mut lines = Lines::new(head);
    while let Ok(Some((number, line))) = lines.next() {
        count = number;
        let Line::Text(line) = line else { continue };
        let line = unquoted(line);
        match row(line) {
            Ok(form) => match votes.iter_mut().find(|(of, _)| *of == form) {
                Some((_, rows)) => *rows += 1,
                None => votes.push((form, 1)),
            },
            Err(why) => {
                first = first.or_else(|| (!line.is_empty()).then(|| excerpt(line)));
                broken = broken.or_else(|| why.map(|why| format!("line {number}: {why}")));
            }
        }
    }
    // The earliest form must win among equals: `max_by_key` returns the last maximum, so iterate in
    // reverse.
    if let Some((form, _)) = votes.iter().rev().max_by_key(|(_, rows)| rows) {
        return Ok(*form);
    }
    let why = match (first, broken) {
        (None, _) => format!("there is no text in it; {FORMS}"),
        (_, Some(broken)) => format!("no row in {count} lines can be read, {broken}; {FORMS}"),
        (Some(first), None) => format!("no row in {count} lines, the first is {first}; {FORMS}"),
    };
    Err(Error::new(Code::File, WHAT, why))
}

/// Returns the form of a row; an error for a line that has the shape of a row but is invalid.
fn row(line: &str) -> std::result::Result<Form, Option<String>> {
    let mut why = None;
    for syntax in [kernprof::SYNTAX, readprofile::SYNTAX] {
        match (syntax.line)(line, false) {
            Parsed::Row(_) | Parsed::Total(_) => return Ok(syntax.form),
            Parsed::Broken(broken) => why = why.or(Some(broken)),
            Parsed::Prose => {}
        }
    }
    if perf_script::is_sample(line) { Ok(Form::PerfScript) } else { Err(why) }
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
        let say = why("the profile:\nfn [zz]: 12\n");
        assert!(say.contains("line 2: \"zz\" is not an address"), "{say}");
        let e = of(b"PERFILE2\x68\0\0\0").unwrap_err();
        assert!(e.fix.starts_with("perf script"), "{e}");
    }
}
