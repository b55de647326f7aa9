//! The progress of the guests, on stderr: redrawn for a person, a line now and then for a log.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::eta;

/// Time between two drawings for a person, and for a log.
const REDRAW: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(15)];

/// All tests of all guests, which run at the same time.
pub struct Progress {
    total: usize,
    start: Instant,
    seen: bool,
    drawn: Mutex<Drawn>,
}

struct Drawn {
    begun: usize,
    last: Instant,
}

impl Progress {
    /// The start of `total` tests.
    pub fn new(total: usize) -> Progress {
        let now = Instant::now();
        let drawn = Mutex::new(Drawn { begun: 0, last: now });
        Progress { total, start: now, seen: io::stderr().is_terminal(), drawn }
    }

    /// Says how many have begun now that `more` of them did, if it is time to say so.
    pub fn draw(&self, more: usize) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.begun += more;
        if drawn.last.elapsed() < REDRAW[usize::from(!self.seen)] {
            return;
        }
        drawn.last = Instant::now();
        let took = self.start.elapsed();
        let left = eta::told(took, drawn.begun, self.total);
        let text = format!("qemu: {} of {} tests{left}", drawn.begun, self.total);
        eta::draw(self.seen, &text);
    }

    /// Wipes the line away.
    pub fn clear(&self) {
        eta::clear(self.seen);
    }
}
