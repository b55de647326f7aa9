//! The progress line on stderr, shown at a terminal.

use linerate_sys::text::thousands;
use linerate_sys::wait::is_writable;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::report::rate;

/// Interval at which the line is redrawn.
pub const REDRAW: Duration = Duration::from_millis(250);
/// Longest wait of [`note_soon`] until stderr can be written.
const PATIENCE: Duration = Duration::from_millis(200);
/// Interval at which it looks again.
const STEP: Duration = Duration::from_millis(5);

/// Lets the terminal cut a line that is longer than it is wide, so that redrawing does not fill the
/// screen; and its opposite.
///
/// Source: DECAWM in xterm's "Control Sequences", DEC Private Mode 7.
const CUT: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
/// Erases the line in which the cursor is, and returns to its start.
const ERASE: &str = "\r\x1b[K";
/// True while the terminal shows a progress line, which notes of every thread must not continue.
/// Its lock is held while stderr is written.
static DRAWN: Mutex<bool> = Mutex::new(false);

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

    /// Draws the line, unless it was drawn less than [`REDRAW`] ago, or stderr cannot be written
    /// now: on a terminal that is stopped (Ctrl-S) the run goes on, and ends when it is to end.
    pub fn draw(&mut self, text: impl FnOnce() -> String) {
        self.draw_on(&mut io::stderr(), &DRAWN, text);
    }

    fn draw_on(
        &mut self,
        err: &mut (impl Write + AsFd),
        state: &Mutex<bool>,
        text: impl FnOnce() -> String,
    ) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < REDRAW) {
            return;
        }
        self.last = Some(now);
        let Some(mut is_drawn) = free(&*err, state) else { return };
        *is_drawn = true;
        let _ = err.write_all(drawn(&text()).as_bytes());
    }

    /// Erases the progress line, if stderr can be written soon.
    pub fn clear(&mut self) {
        note_soon("");
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

/// Writes `text` to stderr, in place of the progress line if there is one. Waits until stderr takes
/// it: for results and errors.
pub fn note(text: &str) {
    let mut is_drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    write_note(&mut io::stderr(), &mut is_drawn, text);
}

/// Writes `text` as [`note`] does, but leaves it out if stderr cannot be written within 0.2 s: for
/// threads that must go on although a terminal is stopped (Ctrl-S), or a pipe is full.
/// A text that is longer than the room there waits all the same.
pub fn note_soon(text: &str) {
    note_soon_on(&mut io::stderr(), &DRAWN, text);
}

/// Writes `text` within [`PATIENCE`]; returns false if it is left out.
fn note_soon_on(err: &mut (impl Write + AsFd), state: &Mutex<bool>, text: &str) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(mut is_drawn) = free(&*err, state) {
            write_note(err, &mut is_drawn, text);
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(STEP);
    }
}

/// Locks the state of the line; `None` if another thread writes, or `err` cannot be written now.
fn free<'a>(err: &impl AsFd, state: &'a Mutex<bool>) -> Option<MutexGuard<'a, bool>> {
    let state = match state.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(e)) => e.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    is_writable(err.as_fd()).then_some(state)
}

/// Writes `text` in place of the line, if it is drawn. A failure is ignored: there is no other
/// channel for it.
fn write_note(err: &mut impl Write, is_drawn: &mut bool, text: &str) {
    let erase = if std::mem::take(is_drawn) { ERASE } else { "" };
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
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn note_replaces_a_line_that_is_drawn() {
        let (mut is_drawn, mut err) = (true, Vec::<u8>::new());
        write_note(&mut err, &mut is_drawn, "note: a\n");
        write_note(&mut err, &mut is_drawn, "note: b\n");
        assert_eq!(String::from_utf8(err).unwrap(), "\r\x1b[Knote: a\nnote: b\n");
    }

    #[test]
    fn a_terminal_that_takes_nothing_delays_no_line_and_no_note() {
        let (mut err, mut reader) = UnixStream::pair().unwrap();
        let (state, mut line) = (Mutex::new(false), Line { last: None });
        // A stopped terminal takes nothing, as a full socket.
        err.set_nonblocking(true).unwrap();
        while err.write(&[0; 4096]).is_ok() {}
        line.draw_on(&mut err, &state, || panic!("the text is not needed"));
        assert!(!note_soon_on(&mut err, &state, "note: a\n") && !*state.lock().unwrap());
        // The terminal goes on.
        reader.set_nonblocking(true).unwrap();
        while reader.read(&mut [0; 4096]).is_ok() {}
        line.last = None;
        line.draw_on(&mut err, &state, || "4.20 Mpps".into());
        assert!(*state.lock().unwrap());
        assert!(note_soon_on(&mut err, &state, "note: b\n"));
        let mut text = [0; 4096];
        let n = reader.read(&mut text).unwrap();
        let shown = String::from_utf8(text[..n].to_vec()).unwrap();
        assert_eq!(shown, drawn("4.20 Mpps") + ERASE + "note: b\n");
    }

    #[test]
    fn a_thread_that_writes_delays_no_line_and_no_note() {
        let (mut err, _reader) = UnixStream::pair().unwrap();
        let (state, mut line) = (Mutex::new(false), Line { last: None });
        let writing = state.lock().unwrap();
        line.draw_on(&mut err, &state, || panic!("the text is not needed"));
        assert!(!note_soon_on(&mut err, &state, "note: a\n"));
        drop(writing);
        assert!(note_soon_on(&mut err, &state, "note: a\n"));
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
