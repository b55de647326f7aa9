//! The progress of the guests: a line on stderr now and then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
const REST: Duration = Duration::from_secs(15);

/// All tests of all guests, which run at the same time.
pub struct Progress {
    total: usize,
    start: Instant,
    /// Tests that have begun, and the time of the last line.
    told: Mutex<(usize, Instant)>,
}

impl Progress {
    /// Returns the start of `total` tests.
    pub fn new(total: usize) -> Progress {
        let start = Instant::now();
        Progress { total, start, told: Mutex::new((0, start)) }
    }

    /// Counts `more` tests that have begun, and says how many did, if it is time to say so.
    pub fn add(&self, more: usize) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.0 += more;
        if told.1.elapsed() >= REST {
            told.1 = Instant::now();
            let seconds = self.start.elapsed().as_secs();
            eprintln!("qemu: {} of {} tests have begun after {seconds} s", told.0, self.total);
        }
    }
}
