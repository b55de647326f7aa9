//! Waiting for a time, or for a condition that can only be polled.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval of polling.
const LOOK: Duration = Duration::from_micros(500);

/// Waits for `time`.
pub(crate) fn pause(time: Duration) {
    wait_until(Instant::now() + time);
}

/// Waits until `at`; returns immediately if that has passed.
pub(crate) fn wait_until(at: Instant) {
    // Wait on a private lock: waiting by park could consume a park token that is meant for the
    // caller.
    let (lock, never) = (Mutex::new(()), Condvar::new());
    let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        guard = never.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Polls `done` for up to `timeout`; returns true if it became true.
pub(crate) fn look_until(timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + timeout;
    while !done() {
        if Instant::now() >= until {
            return false;
        }
        pause(LOOK);
    }
    true
}
