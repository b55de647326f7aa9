//! The progress line on stderr, shown at a terminal.

use linerate_sys::text::thousands;
use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::report::rate;

/// Interval at which the line is redrawn.
pub const REDRAW: Duration = Duration::from_millis(250);

/// Lets the terminal cut a line that is longer than it is wide, so that redrawing does not fill the
/// screen; and its opposite.
///
/// Source: DECAWM in xterm's "Control Sequences", DEC Private Mode 7.
const CUT: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
/// Erases the line in which the cursor is, and returns to its start.
const ERASE: &str = "\r\x1b[K";
/// True while the terminal shows a progress line, which notes of every thread must not continue.
/// Changed only by the holder of the lock of stderr.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// A line on stderr that is redrawn in place.
#[derive(Debug)]
pub struct Line {
    /// The time at which the line was last drawn.
    last: Option<Instant>,
}

/// The progress line of a run.
#[derive(Debug)]
pub struct Progress {
    line: Line,
    started: Instant,
    /// The duration of the run, if it is limited.
    total: Option<Duration>,
    /// The time at which the line was last drawn, and the number of packets then.
    last: (Instant, u64),
}

impl Line {
    /// Creates a line; `None` if stderr is not a terminal, or is one that erases no line.
    pub fn new() -> Option<Line> {
        let is_shown = io::stderr().is_terminal() && erases(env::var_os("TERM").as_deref());
        is_shown.then_some(Line { last: None })
    }

    /// Draws the line, unless it was drawn less than [`REDRAW`] ago.
    pub fn draw(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < REDRAW) {
            return;
        }
        self.last = Some(now);
        let text = text();
        let mut err = io::stderr().lock();
        DRAWN.store(true, Ordering::Relaxed);
        let _ = err.write_all(drawn(&text).as_bytes());
    }

    /// Erases the progress line.
    pub fn clear(&mut self) {
        note("");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress {
    /// Creates the line of a run that starts now; `None` as [`Line::new`].
    pub fn new(total: Option<Duration>) -> Option<Progress> {
        let now = Instant::now();
        let mut line = Line::new()?;
        line.last = Some(now);
        Some(Progress { line, started: now, total, last: (now, 0) })
    }

    /// Draws the progress, unless it was drawn less than [`REDRAW`] ago; `packets` have been sent
    /// so far.
    pub fn draw(&mut self, packets: u64) {
        let (started, total, last) = (self.started, self.total, &mut self.last);
        self.line.draw(|| {
            let now = Instant::now();
            let since = now - last.0;
            let pps = (packets - last.1.min(packets)) as f64 / since.as_secs_f64();
            *last = (now, packets);
            line(now - started, total, packets, pps)
        });
    }
}

/// Returns what draws the line `text`, to be written in one call: another process's text must not
/// be cut.
fn drawn(text: &str) -> String {
    format!("\r{CUT}{text}\x1b[K{WRAP}")
}

/// Writes `text` to stderr, in place of the progress line if there is one.
pub fn note(text: &str) {
    let mut err = io::stderr().lock();
    write_note(&mut err, &DRAWN, text);
}

/// Writes `text` in place of the line, if it is `drawn`. A failure is ignored: there is no other
/// channel for it.
fn write_note(err: &mut impl Write, drawn: &AtomicBool, text: &str) {
    let erase = if drawn.swap(false, Ordering::Relaxed) { ERASE } else { "" };
    // One call, so that other processes write before it or after it.
    let _ = err.write_all(format!("{erase}{text}").as_bytes());
}

/// Returns true if a terminal of this type can erase a line.
fn erases(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

fn line(elapsed: Duration, total: Option<Duration>, packets: u64, pps: f64) -> String {
    let seconds = |d: Duration| format!("{:.1} s", d.as_secs_f64());
    let time = match total {
        Some(total) => format!(
            "{} of {}, {} to go",
            seconds(elapsed),
            seconds(total),
            seconds(total.saturating_sub(elapsed))
        ),
        None => format!("{}, Ctrl-C ends it", seconds(elapsed)),
    };
    format!("{}   {} packets   {time}", rate(pps), thousands(packets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_replaces_a_line_that_is_drawn() {
        let (drawn, mut err) = (AtomicBool::new(true), Vec::<u8>::new());
        write_note(&mut err, &drawn, "note: a\n");
        write_note(&mut err, &drawn, "note: b\n");
        assert_eq!(String::from_utf8(err).unwrap(), "\r\x1b[Knote: a\nnote: b\n");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_later_text_is_not() {
        assert_eq!(drawn("4.20 Mpps"), "\r\x1b[?7l4.20 Mpps\x1b[K\x1b[?7h");
    }

    #[test]
    fn terminal_that_erases_no_line_gets_none() {
        for (term, shown) in [("xterm", true), ("linux", true), ("dumb", false), ("", false)] {
            assert_eq!(erases(Some(OsStr::new(term))), shown, "{term}");
        }
        assert!(!erases(None));
    }

    #[test]
    fn the_line_says_how_fast_how_much_and_how_long() {
        let s = Duration::from_secs;
        let timed = line(s(1), Some(s(3)), 4_200_000, 4.2e6);
        assert_eq!(timed, "4.20 Mpps   4,200,000 packets   1.0 s of 3.0 s, 2.0 s to go");
        assert_eq!(line(s(1), None, 0, 0.0), "0.00 pps   0 packets   1.0 s, Ctrl-C ends it");
        assert!(line(s(4), Some(s(3)), 0, 0.0).contains("0.0 s to go"));
    }
}
