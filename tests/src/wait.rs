//! Bounded polling, so that no test relies on a sleep of fixed length.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for an event that should come at once, on a machine that is busy with other work.
pub const SOON: Duration = Duration::from_secs(10);

/// Polls `ask` until it returns an answer.
///
/// # Panics
/// If there is none within `time`; the message contains `what`.
pub fn until<T>(what: &str, time: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + time;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {time:?} for {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Polls `ask` until it returns true, as [`until`] does.
///
/// # Panics
/// As [`until`].
pub fn until_true(what: &str, time: Duration, mut ask: impl FnMut() -> bool) {
    until(what, time, || ask().then_some(()));
}
