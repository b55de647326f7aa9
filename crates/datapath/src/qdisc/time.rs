//! Time in disciplines: nanoseconds since the first batch.

use std::time::{Duration, Instant};

/// Conversion between moments and nanoseconds since the first batch. The nanoseconds never
/// decrease.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    origin: Option<Instant>,
    last_ns: u64,
}

impl Clock {
    /// Returns `now` in nanoseconds since the first batch, or the previous time if `now` is
    /// earlier.
    pub fn read(&mut self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_insert(now);
        let ns = u64::try_from(now.saturating_duration_since(origin).as_nanos());
        self.last_ns = self.last_ns.max(ns.unwrap_or(u64::MAX));
        self.last_ns
    }

    /// Returns the last time that was read, in nanoseconds.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the last time that was read.
    pub fn last(&self) -> Option<Instant> {
        self.instant(self.last_ns)
    }

    /// Returns `ns` as a moment; `None` before the first reading.
    pub fn instant(&self, ns: u64) -> Option<Instant> {
        self.origin?.checked_add(Duration::from_nanos(ns))
    }
}
