//! A text read line by line, with a bound on the length of a line.

use std::fmt;
use std::io::{self, BufRead, Read};

use linerate_show::words::harmless;

/// The longest line that is read. `perf script` prints C++ names of some kilobytes.
pub(super) const LINE_MAX_BYTES: usize = 64 << 10;

/// Lines of `R`, numbered from 1.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    max_bytes: usize,
    number: u64,
    bytes: Vec<u8>,
    /// The line converted from Latin-1, if it is not UTF-8, as in old mail.
    text: String,
}

/// A line of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line without its newline, with bytes that are not UTF-8 replaced.
    Text(&'a str),
    /// A line longer than the bound, which was skipped.
    TooLong,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Lines<R> {
        Lines::within(input, LINE_MAX_BYTES)
    }

    /// Reads lines of at most `max_bytes` bytes.
    pub(crate) fn within(input: R, max_bytes: usize) -> Lines<R> {
        Lines { input, max_bytes, number: 0, bytes: Vec::new(), text: String::new() }
    }

    /// Returns the next line with its number; `None` after the last.
    ///
    /// # Errors
    /// What the input says.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.bytes.clear();
        let mut bounded = self.input.by_ref().take(self.max_bytes as u64 + 1);
        bounded.read_until(b'\n', &mut self.bytes)?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if self.bytes.len() > self.max_bytes && !self.bytes.ends_with(b"\n") {
            self.input.skip_until(b'\n')?;
            return Ok(Some((self.number, Line::TooLong)));
        }
        let line = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let bom: &[u8] = if self.number == 1 { b"\xef\xbb\xbf" } else { b"" };
        let line = line.strip_prefix(bom).unwrap_or(line);
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(_) => {
                self.text = String::from_utf8_lossy(line).into_owned();
                &self.text
            }
        };
        Ok(Some((self.number, Line::Text(text))))
    }
}

/// Returns the line without quotation marks of mail (`>`, `> >`, `>>>` or `|`), and without blanks
/// at its ends.
pub(crate) fn unquoted(line: &str) -> &str {
    line.trim_start_matches(|c: char| matches!(c, '>' | '|') || c.is_whitespace()).trim_end()
}

/// Returns the beginning of a line, in quotes, to be printed.
pub(crate) fn excerpt(line: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let shown: String = line.chars().take(SHOWN_CHARS).collect();
    let more = if shown.len() < line.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

/// A line that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Number of the line; the first is 1.
    pub line: u64,
    /// The error in the line, with unsafe characters of the line escaped.
    pub why: String,
}

impl Complaint {
    /// Creates a complaint. `why` may contain text of the file, so its control characters are
    /// escaped.
    pub(crate) fn new(line: u64, why: &str) -> Complaint {
        Complaint { line, why: harmless(why).into_owned() }
    }
}

/// Complaints that are stored with their text; later ones are only counted.
pub const COMPLAINTS_KEPT: usize = 100;

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(u64, Option<String>)> {
        let mut lines = Lines::new(text);
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next().unwrap() {
            found.push(match line {
                Line::Text(text) => (number, Some(text.to_owned())),
                Line::TooLong => (number, None),
            });
        }
        found
    }

    #[test]
    fn lines_end_as_on_unix_or_windows_and_the_last_need_not() {
        let found = all(b"\xef\xbb\xbfa\r\n\nb\xe9\nc");
        let texts: Vec<_> = found.iter().map(|(_, text)| text.as_deref().unwrap()).collect();
        assert_eq!(texts, ["a", "", "b\u{fffd}", "c"]);
        assert_eq!(found[3].0, 4);
    }

    #[test]
    fn a_line_beyond_the_bound_is_passed_over_and_the_next_is_read() {
        let mut text = vec![b'x'; LINE_MAX_BYTES];
        text.extend(b"\n");
        text.extend(vec![b'y'; 3 * LINE_MAX_BYTES]);
        text.extend(b"\nz");
        let found = all(&text);
        assert_eq!(found[0].1.as_ref().map(String::len), Some(LINE_MAX_BYTES));
        assert_eq!(found[1..], [(2, None), (3, Some("z".to_owned()))]);
    }

    #[test]
    fn marks_of_quoting_mail_are_no_part_of_a_line() {
        for line in ["a [1]: 2", ">a [1]: 2", "> > a [1]: 2 ", ">>>\ta [1]: 2", "| a [1]: 2"] {
            assert_eq!(unquoted(line), "a [1]: 2");
        }
        assert_eq!(unquoted("> >"), "");
    }

    #[test]
    fn a_long_line_is_shown_by_its_beginning() {
        assert_eq!(excerpt("a\"b"), r#""a\"b""#);
        assert!(excerpt(&"é".repeat(100)).ends_with("\"…"));
    }
}
