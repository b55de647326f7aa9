//! A series read back from its file, sample by sample.
//!
//! The file may be cut off, damaged or made up: a line that is not understood is complained
//! of by its number, and the rest is read. Only a file without a header is refused.

use std::io::BufRead;

use linerate_show::words::harmless;
use linerate_sys::{Code, Error, Result};
use serde::Deserialize;

use super::series::{COLUMNS_MAX, Column, End, Feed, Header, SCHEMA, Sample};
pub use crate::read::lines::Complaint;
use crate::read::lines::{COMPLAINTS_KEPT, Line as Text, Lines, excerpt};

/// Most bytes of a line: 65,536 columns of 20 digits, or of names of 200 letters.
const LINE_BYTES_MAX: usize = 16 << 20;

/// The series in a file. Only one line and the columns are in memory.
#[derive(Debug)]
pub struct Replay<R> {
    lines: Lines<R>,
    header: Header,
    so_far: SoFar,
    complaints: Vec<Complaint>,
    complaints_total: u64,
}

/// The state after the lines read so far.
#[derive(Debug, Default)]
struct SoFar {
    columns: Vec<Column>,
    last_ns: Option<u64>,
    end: Option<End>,
}

/// A line after the first.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Columns(Vec<Column>),
    Sample(Sample),
    End(End),
}

impl<R: BufRead> Replay<R> {
    /// Opens a series, and reads its header.
    ///
    /// # Errors
    /// `E-FILE` if `input` cannot be read, or does not start with the header of a series.
    pub fn open(input: R) -> Result<Replay<R>> {
        let failed = |why| Error::new(Code::File, "cannot replay the series", why);
        let mut lines = Lines::within(input, LINE_BYTES_MAX);
        let first = match lines.next().map_err(|e| unreadable(&e))? {
            Some((_, Text::Text(text))) => text,
            _ => "",
        };
        let header: Header = serde_json::from_str(first).map_err(|e| {
            let e = e.to_string();
            failed(format!("line 1 is not the header of a series: {}", harmless(&e)))
                .fix("linerate profile watch --output FILE")
        })?;
        if header.schema != SCHEMA {
            let schema = excerpt(&header.schema);
            return Err(failed(format!("its schema is {schema}, not {SCHEMA:?}")));
        }
        if header.period_ns == 0 {
            return Err(failed("its period is 0".to_owned()));
        }
        let (so_far, complaints) = (SoFar::default(), Vec::new());
        Ok(Replay { lines, header, so_far, complaints, complaints_total: 0 })
    }

    /// Returns the first hundred of the lines that were left out.
    #[must_use]
    pub fn complaints(&self) -> &[Complaint] {
        &self.complaints
    }

    /// Returns the number of lines that were left out.
    #[must_use]
    pub fn complaints_total(&self) -> u64 {
        self.complaints_total
    }
}

fn unreadable(e: &std::io::Error) -> Error {
    Error::new(Code::File, "cannot read the series", e.to_string())
}

impl SoFar {
    /// Returns the sample in the line, if it is consistent with the lines before.
    fn sample(&mut self, line: &str) -> std::result::Result<Option<Sample>, String> {
        match serde_json::from_str(line).map_err(|e| e.to_string())? {
            Line::Columns(new) if new.len() > COLUMNS_MAX - self.columns.len() => {
                Err(format!("more than {COLUMNS_MAX} columns"))
            }
            Line::Columns(new) if !new.iter().all(Column::is_sound) => {
                Err("a column's name is too long, or cannot be shown".into())
            }
            Line::Columns(new) => {
                self.columns.extend(new);
                Ok(None)
            }
            Line::Sample(sample) => {
                let (values, columns) = (sample.values.len(), self.columns.len());
                if values != columns {
                    return Err(format!("{values} values for {columns} columns"));
                }
                if self.last_ns.is_some_and(|last| sample.t_ns <= last) {
                    return Err(format!("{} ns is not after the sample before", sample.t_ns));
                }
                self.last_ns = Some(sample.t_ns);
                Ok(Some(sample))
            }
            Line::End(end) => {
                self.end = Some(end);
                Ok(None)
            }
        }
    }
}

impl<R: BufRead> Feed for Replay<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn columns(&self) -> &[Column] {
        &self.so_far.columns
    }

    fn next(&mut self, sample: &mut Sample) -> Result<bool> {
        while let Some((number, line)) = self.lines.next().map_err(|e| unreadable(&e))? {
            let read = match line {
                Text::Text(text) if text.trim().is_empty() => continue,
                Text::Text(text) => self.so_far.sample(text),
                Text::TooLong => Err(format!("it is longer than {LINE_BYTES_MAX} bytes")),
            };
            match read {
                Ok(None) => {}
                Ok(Some(read)) => {
                    *sample = read;
                    return Ok(true);
                }
                Err(why) => {
                    self.complaints_total += 1;
                    if self.complaints.len() < COMPLAINTS_KEPT {
                        self.complaints.push(Complaint::new(number, &why));
                    }
                }
            }
        }
        Ok(false)
    }

    fn end(&self) -> Option<End> {
        self.so_far.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = r#"{"schema":"linerate-series/1","period_ns":100}"#;
    const COLUMNS: &str = r#"{"columns":[{"name":"a","unit":"packets","kind":"counter"}]}"#;

    fn sample(t_ns: u64, values: &str) -> String {
        format!(
            r#"{{"sample":{{"t_ns":{t_ns},"late_ns":0,"missed":0,"own_ns":1,"values":[{values}]}}}}"#
        )
    }

    /// A test's result: time and first value of each sample; line and text of each complaint; and
    /// the end.
    type Replayed = (Vec<(u64, Option<u64>)>, Vec<(u64, String)>, Option<End>);

    fn replayed(text: &str) -> Replayed {
        let mut replay = Replay::open(text.as_bytes()).unwrap();
        let (mut sample, mut samples) = (Sample::default(), Vec::new());
        while replay.next(&mut sample).unwrap() {
            samples.push((sample.t_ns, sample.values.first().copied().flatten()));
        }
        let complaints = replay.complaints().iter().map(|c| (c.line, c.why.clone())).collect();
        (samples, complaints, replay.end())
    }

    #[test]
    fn a_malformed_line_is_complained_of_by_its_number_and_the_rest_is_read() {
        let lines = [
            HEAD,
            COLUMNS,
            &sample(100, "1"),
            "nonsense",
            &sample(200, "1,2"),
            &sample(50, "3"),
            &sample(300, "-1"),
            &sample(400, "null"),
            &sample(500, "18446744073709551615"),
            r#"{"sample":{"t_ns":600,"late"#,
        ];
        let (samples, complaints, end) = replayed(&lines.join("\n"));
        assert_eq!(samples, [(100, Some(1)), (400, None), (500, Some(u64::MAX))]);
        let at: Vec<u64> = complaints.iter().map(|(line, _)| *line).collect();
        assert_eq!(at, [4, 5, 6, 7, 10]);
        assert_eq!(complaints[1].1, "2 values for 1 columns");
        assert_eq!(complaints[2].1, "50 ns is not after the sample before");
        assert_eq!(end, None);
    }

    #[test]
    fn a_line_that_is_too_long_takes_no_more_memory_than_a_line_may() {
        let long =
            format!("{HEAD}\n{COLUMNS}\n{}\n{}", "9".repeat(LINE_BYTES_MAX + 9), sample(1, "7"));
        let (samples, complaints, _) = replayed(&long);
        assert_eq!((samples, complaints.len(), complaints[0].0), (vec![(1, Some(7))], 1, 3));
    }

    #[test]
    fn a_hundred_complaints_are_kept_all_are_counted_and_what_they_quote_is_harmless() {
        let bad = COLUMNS.replace("counter", "\\u001b[2J\\u202e");
        let text = format!("{HEAD}\n{bad}\n{}", "x\n".repeat(250));
        let mut replay = Replay::open(text.as_bytes()).unwrap();
        assert!(!replay.next(&mut Sample::default()).unwrap());
        assert_eq!((replay.complaints().len(), replay.complaints_total()), (100, 251));
        let why = &replay.complaints()[0].why;
        assert!(why.contains("[2J") && !why.contains(['\u{1b}', '\u{202e}']), "{why}");
    }

    #[test]
    fn a_file_that_is_no_series_is_refused() {
        let old = r#"{"schema":"linerate-series/9","period_ns":100}"#;
        let still = r#"{"schema":"linerate-series/1","period_ns":0}"#;
        let escape = HEAD.replace("period_ns\":100", "period_ns\":\"\\u001b[2J\"");
        for text in ["", "nonsense", "{}", old, still, &escape] {
            let e = Replay::open(text.as_bytes()).unwrap_err();
            assert!(e.code == Code::File && !e.why.contains('\u{1b}'), "{e}");
        }
        let e = Replay::open(still.as_bytes()).unwrap_err();
        assert_eq!(e.why, "its period is 0");
    }

    #[test]
    fn a_name_that_would_write_to_the_terminal_or_fill_the_memory_is_refused() {
        let named = |name: &str| COLUMNS.replace("\"a\"", &format!("\"{name}\""));
        for name in [
            "\\u001b[2J",
            "a\\nb",
            "a\\u202eb",
            "\\u009b",
            "\\u00ad",
            "\\uffff",
            "x".repeat(2000).as_str(),
        ] {
            let (_, complaints, _) = replayed(&format!("{HEAD}\n{}", named(name)));
            assert_eq!(complaints.len(), 1, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_behind_a_header_are_read_without_a_panic(
            lines in prop::collection::vec("(\\PC{0,60}|\\{\"(sample|columns|end)\":[\\[\\]{}:,0-9\"a-z_]{0,60})", 0..20)
        ) {
            replayed(&format!("{HEAD}\n{}", lines.join("\n")));
        }
    }
}
