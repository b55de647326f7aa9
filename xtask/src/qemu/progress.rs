//! The progress of the guests: lines on stderr at intervals.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
const REST: Duration = Duration::from_secs(15);

/// Progress over all tests of all guests, which run at the same time.
pub struct Progress {
    total: usize,
    start: Instant,
    /// Number of started tests, and the time at which the last line was printed.
    told: Mutex<(usize, Instant)>,
}

impl Progress {
    /// Creates the progress over `total` tests, none of which has started.
    pub fn new(total: usize) -> Progress {
        let start = Instant::now();
        Progress { total, start, told: Mutex::new((0, start)) }
    }

    /// Adds `more` started tests, and prints the number of started tests if the last line is old
    /// enough.
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
