//! The progress of the campaign, on stderr: redrawn for a person, a line for each window in a log.

use std::io::{self, IsTerminal};
use std::time::Instant;

use crate::eta;

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
        let left = eta::told(self.start.elapsed(), self.done, self.total);
        self.done += 1;
        self.total = self.total.max(self.done);
        let text = format!("veth: {} of {}, {what}{left}", self.done, self.total);
        eta::draw(self.seen, &text);
    }

    /// Wipes the line away.
    pub fn clear(&self) {
        eta::clear(self.seen);
    }
}
