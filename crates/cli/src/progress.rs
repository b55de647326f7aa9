//! The progress line on stderr, shown at a terminal.

use linerate_sys::text::thousands;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::report::rate;

/// Interval at which the line is redrawn.
pub const REDRAW: Duration = Duration::from_millis(250);

/// A line on stderr that is redrawn in place.
#[derive(Debug)]
pub struct Line {
    /// The time at which the line was last drawn.
    last: Option<Instant>,
    drawn: bool,
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
    /// Creates a line; `None` if stderr is not a terminal.
    pub fn new() -> Option<Line> {
        io::stderr().is_terminal().then_some(Line { last: None, drawn: false })
    }

    /// Draws the line, unless it was drawn less than [`REDRAW`] ago.
    pub fn draw(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < REDRAW) {
            return;
        }
        self.last = Some(now);
        self.drawn = true;
        let _ = write!(io::stderr(), "\r{}\x1b[K", text());
    }

    /// Erases the progress line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress {
    /// Creates the line of a run that starts now; `None` if stderr is not a terminal.
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
    fn the_line_says_how_fast_how_much_and_how_long() {
        let s = Duration::from_secs;
        let timed = line(s(1), Some(s(3)), 4_200_000, 4.2e6);
        assert_eq!(timed, "4.20 Mpps   4,200,000 packets   1.0 s of 3.0 s, 2.0 s to go");
        assert_eq!(line(s(1), None, 0, 0.0), "0.00 pps   0 packets   1.0 s, Ctrl-C ends it");
        assert!(line(s(4), Some(s(3)), 0, 0.0).contains("0.0 s to go"));
    }
}
