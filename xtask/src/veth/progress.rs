//! How far the campaign is, on stderr: redrawn for a person, a line for each window in a log.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// All windows of all comparisons, one after the other.
pub struct Progress {
    total: usize,
    done: usize,
    start: Instant,
    seen: bool,
}

impl Progress {
    /// The start of `total` windows.
    pub fn new(total: usize) -> Progress {
        Progress { total, done: 0, start: Instant::now(), seen: io::stderr().is_terminal() }
    }

    /// Says that the next window has begun, and of what it is.
    pub fn begin(&mut self, what: &str) {
        let left = left(self.start.elapsed(), self.done, self.total);
        let left = left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs()));
        self.done += 1;
        self.total = self.total.max(self.done);
        let text = format!("veth: {} of {}, {what}{left}", self.done, self.total);
        let (before, behind) = if self.seen { ("\r", "\x1b[K") } else { ("", "\n") };
        let _ = write!(io::stderr(), "{before}{text}{behind}");
    }

    /// Wipes the line away.
    pub fn clear(&self) {
        if self.seen {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// What is left, if the rest goes on as it did.
fn left(took: Duration, done: usize, total: usize) -> Option<Duration> {
    let rest = total.saturating_sub(done) as f64;
    (done > 0).then(|| took.mul_f64(rest / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_a_window_as_what_is_done() {
        let took = Duration::from_secs(30);
        assert_eq!(left(took, 10, 40), Some(Duration::from_secs(90)));
        assert_eq!(left(took, 0, 40), None);
    }
}
