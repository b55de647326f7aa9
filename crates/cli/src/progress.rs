//! The line on stderr that shows a run at work, if a person is looking.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::report::{rate, thousands};

/// Time between two drawings of the line.
pub const REDRAW: Duration = Duration::from_millis(250);

/// One line, drawn over and over.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    /// The run's time, if it has one.
    total: Option<Duration>,
    /// When it was last drawn, and the packets then.
    last: (Instant, u64),
    drawn: bool,
}

impl Progress {
    /// A line for a run that starts now; `None` if nobody could see it.
    pub fn new(total: Option<Duration>) -> Option<Progress> {
        let now = Instant::now();
        let line = Progress { started: now, total, last: (now, 0), drawn: false };
        io::stderr().is_terminal().then_some(line)
    }

    /// Draws it, unless that was done a moment ago; `packets` have left so far.
    pub fn draw(&mut self, packets: u64) {
        let now = Instant::now();
        let since = now - self.last.0;
        if since < REDRAW {
            return;
        }
        let pps = (packets - self.last.1.min(packets)) as f64 / since.as_secs_f64();
        self.last = (now, packets);
        self.drawn = true;
        let line = line(now - self.started, self.total, packets, pps);
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    /// Wipes it away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
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
