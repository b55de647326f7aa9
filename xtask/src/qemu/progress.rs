//! How far the guests are, on stderr: redrawn for a person, a line now and then for a log.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
        let left = left(took, drawn.begun, self.total);
        let left = left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs()));
        let text = format!("qemu: {} of {} tests{left}", drawn.begun, self.total);
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
    fn what_is_left_takes_as_long_a_test_as_what_is_done() {
        let took = Duration::from_secs(30);
        assert_eq!(left(took, 10, 40), Some(Duration::from_secs(90)));
        assert_eq!(left(took, 0, 40), None);
        assert_eq!(left(took, 41, 40), Some(Duration::ZERO));
    }
}
