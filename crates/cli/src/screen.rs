//! The destination of text: stdout, or stderr if packets go to stdout; with `--json` one document
//! on stdout.

use std::borrow::Cow;
use std::io::{self, Write};

use linerate::{Registry, Spec};
use linerate_ctl::{ErrorReport, json};
use linerate_sys::text::harmless;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::errors::{self, Failure, RUNTIME};
use crate::progress;

/// Returns true for a port that reads the standard input or writes the standard output.
pub fn is_pipe(port: &Spec, drivers: &Registry) -> bool {
    port.arg == "-" && drivers.flags(port).pipes
}

/// Destination and format of a run's text.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// True to print one JSON document instead of text.
    pub json: bool,
    /// True to print only the result.
    pub quiet: bool,
    /// True if a port writes packets to stdout, so that text must not go there.
    stdout_taken: bool,
}

impl Screen {
    /// Returns the screen of a run between these ports: the last port is written, the first is
    /// read.
    pub fn new(json: bool, quiet: bool, ports: &[&str], drivers: &Registry) -> Screen {
        let taken = ports.iter().enumerate().any(|(i, port)| {
            let last = i + 1 == ports.len();
            drivers.parse(port).is_ok_and(|spec| {
                let has = |flag| spec.flag(flag).unwrap_or(false);
                is_pipe(&spec, drivers) && (has("write") || (last && !has("read")))
            })
        });
        Screen { json, quiet, stdout_taken: taken }
    }

    /// Creates a screen for commands that move no packets.
    pub fn plain(json: bool) -> Screen {
        Screen { json, quiet: false, stdout_taken: false }
    }

    /// Prints text before the result.
    ///
    /// # Errors
    /// If stdout cannot be written, for instance to a full disk, the run has failed.
    pub fn preface(&self, text: &str) -> Result<(), Failure> {
        if self.json || self.quiet { Ok(()) } else { self.print(text) }
    }

    /// Prints the result: a table, or the document.
    ///
    /// # Errors
    /// As [`Screen::preface`].
    pub fn result(
        &self,
        table: impl FnOnce() -> String,
        document: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.print(&if self.json { quoted(&document()) + "\n" } else { table() })
    }

    /// Prints a line for which another process waits.
    ///
    /// # Errors
    /// As [`Screen::preface`].
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.print(&format!("{text}\n"))
    }

    /// Prints a note that is not the result; with `--json` it is not printed.
    pub fn note(&self, text: &str) {
        if !self.json {
            eprint_all(text);
        }
    }

    /// Prints a note while a run goes on, as [`Screen::note`] does. Leaves it out if stderr does
    /// not take it soon, because the run's end must not wait for a terminal that is stopped.
    pub fn passing_note(&self, text: &str) {
        if !self.json {
            progress::note_soon(&plain(text));
        }
    }

    /// Prints a note about a change on an interface, also with `--json`, because the change would
    /// otherwise be unknown while it lasts. Leaves it out if stderr does not take it soon, because
    /// the thread of the control socket prints such notes, too.
    pub fn change(&self, text: &str) {
        progress::note_soon(&plain(text));
    }

    /// Prints the failure of a command without a result.
    pub fn failure(&self, error: &ErrorReport) {
        let document = || quoted(&json::error(error)) + "\n";
        if !self.json || self.print(&document()).is_err() {
            eprint_all(&errors::text(error));
        }
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        if self.stdout_taken {
            eprint_all(text);
            return Ok(());
        }
        let text = plain(text);
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // No failure: the reader of the pipe has read enough (`linerate … | head`), or the
            // terminal has gone.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) && is_device(&out) => Ok(()),
            Err(e) => {
                let what = "cannot write the result to stdout";
                Err(Failure::new(RUNTIME, "E-FILE", what, e.to_string(), ""))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Writes to the standard error, in place of a progress line.
fn eprint_all(text: &str) {
    progress::note(&plain(text));
}

/// Removes escape sequences that a terminal would execute, because names and reasons may come from
/// another user.
fn plain(text: &str) -> String {
    let parts =
        text.split_inclusive(['\n', '\t']).map(|part| match part.char_indices().next_back() {
            Some((at, end @ ('\n' | '\t'))) => {
                harmless(&part[..at]).into_owned() + end.encode_utf8(&mut [0; 4])
            }
            _ => harmless(part).into_owned(),
        });
    parts.collect()
}

/// Returns a JSON document in which such characters are escaped; they occur in strings only.
fn quoted(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    for c in document.chars() {
        if c == '\n' || matches!(harmless(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_)) {
            text.push(c);
        } else {
            let units = c
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            text += &units;
        }
    }
    text
}

/// Replaces every run of white space by one space.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns true for a device, such as a terminal; a terminal that has gone is none to isatty(3).
fn is_device(stdout: &io::StdoutLock<'_>) -> bool {
    let kind = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode);
    fstat(stdout).is_ok_and(|stat| kind(stat) == FileType::CharacterDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(ports: &[&str]) -> bool {
        Screen::new(false, false, ports, &Registry::default()).stdout_taken
    }

    #[test]
    fn a_terminal_is_given_no_orders_and_lines_and_columns_stay() {
        assert_eq!(plain("a\tb\nc\u{1b}]0;x\u{7}\n"), "a\tb\nc\\u{1b}]0;x\\u{7}\n");
        assert_eq!(plain(""), "");
        let document = "{\n  \"name\": \"\u{9b}2J\u{202e}\u{e0001}é\"\n}";
        let quoted = quoted(document);
        assert_eq!(quoted, "{\n  \"name\": \"\\u009b2J\\u202e\\udb40\\udc01é\"\n}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&quoted), read(document));
    }

    #[test]
    fn stdout_is_left_to_packets_that_are_written_there() {
        assert!(taken(&["packet:eth0", "pcap:-"]));
        assert!(taken(&["pcap:-,write", "packet:eth0"]));
        assert!(!taken(&["pcap:-", "packet:eth0"]));
        assert!(!taken(&["sink:", "pcap:-,read"]));
        assert!(!taken(&["gen:", "pcap:out"]));
    }
}
