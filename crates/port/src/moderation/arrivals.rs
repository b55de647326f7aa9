//! The rate of arriving packets, measured between two moments at which the device was empty.
//!
//! In between it would be how fast they are taken: by copies 12 million a second looked like 20
//! (docs/adr/0013).

use std::time::{Duration, Instant};

/// Weight of past windows when a window is added.
const KEEP: f64 = 0.875;

/// Number of packets that arrived in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Window {
    pub packets: u32,
    pub passed: Duration,
}

impl Window {
    /// Returns the window's packets a nanosecond.
    pub fn rate(self) -> f64 {
        f64::from(self.packets) / self.passed.as_nanos().max(1) as f64
    }
}

/// A count of packets, and the smoothed rate.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    since: Option<Instant>,
    packets: u32,
    /// Weighted sums over past windows, in which older windows weigh less.
    kept_packets: f64,
    kept_ns: f64,
}

impl Arrivals {
    /// Adds packets that arrived to the current window.
    pub fn add(&mut self, packets: u32) {
        self.packets = self.packets.saturating_add(packets);
    }

    /// Returns the arrivals since the current window began; `None` if its begin is unknown, or
    /// after `now`, because the clock went back.
    pub fn so_far(&self, now: Instant) -> Option<Window> {
        let passed = now.checked_duration_since(self.since?)?;
        Some(Window { packets: self.packets, passed })
    }

    /// Ends the window at `now`, when the device is empty, adds it to the smoothed rate and begins
    /// the next window.
    pub fn close(&mut self, now: Instant) {
        if let Some(window) = self.so_far(now) {
            self.kept_packets = self.kept_packets * KEEP + f64::from(window.packets);
            self.kept_ns = self.kept_ns * KEEP + window.passed.as_nanos() as f64;
        }
        self.restart(now);
    }

    /// Begins a window without adding the last one to the rate.
    pub fn restart(&mut self, now: Instant) {
        (self.since, self.packets) = (Some(now), 0);
    }

    /// Clears the window and the rate, after a time in which arrivals are unknown.
    pub fn forget(&mut self) {
        *self = Arrivals::default();
    }

    /// Clears the smoothed rate.
    pub fn forget_rate(&mut self) {
        (self.kept_packets, self.kept_ns) = (0.0, 0.0);
    }

    /// Returns the smoothed rate, in packets a nanosecond.
    pub fn rate(&self) -> f64 {
        if self.kept_ns > 0.0 { self.kept_packets / self.kept_ns } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_windows_and_recent_ones_count_more() {
        let (mut arrivals, mut now) = (Arrivals::default(), Instant::now());
        arrivals.add(1000);
        assert_eq!(arrivals.so_far(now), None, "the time is not known");
        arrivals.close(now);
        for packets in [10; 20].into_iter().chain([20; 20]) {
            now += Duration::from_micros(1);
            arrivals.add(packets);
            assert_eq!(arrivals.so_far(now).unwrap().rate(), f64::from(packets) / 1000.0);
            arrivals.close(now);
        }
        assert!((0.019..0.02).contains(&arrivals.rate()), "{arrivals:?}");
        // If the clock goes back, the window does not count, and another one begins.
        let (rate, earlier) = (arrivals.rate(), now - Duration::from_secs(3600));
        arrivals.add(1);
        arrivals.close(earlier);
        assert_eq!(arrivals.rate(), rate);
        let window = arrivals.so_far(earlier + Duration::from_micros(1)).unwrap();
        assert_eq!(window, Window { packets: 0, passed: Duration::from_micros(1) });
    }
}
