//! Open-loop pacing: packet `i` is due at `start + i / rate`, whatever happened to those before.

use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linerate_skb::{Batch, DropReason};

/// Longest lateness told apart; later counts as this.
const LATE_MAX_NS: u64 = 60_000_000_000;

/// Says how many packets are due, and how late they are against their intended times.
#[derive(Debug, Clone)]
pub struct Pacer {
    pps: f64,
    start: Option<Instant>,
    /// Packets whose time has come and that were given out by `due`.
    issued: u64,
    sent: u64,
    unsent: u64,
    late_ns: Histogram<u64>,
}

impl Pacer {
    /// A pace of `packets_per_second`, from the first call of [`Pacer::due`] on.
    #[must_use]
    pub fn pps(packets_per_second: u64) -> Pacer {
        Pacer::rate(packets_per_second as f64)
    }

    /// A pace of a fractional number of packets a second; below one in ten years counts as that.
    #[must_use]
    pub fn rate(packets_per_second: f64) -> Pacer {
        Pacer {
            pps: packets_per_second.max(3e-9),
            start: None,
            issued: 0,
            sent: 0,
            unsent: 0,
            late_ns: histogram(),
        }
    }

    /// Packets that are due at `now` and were not given out before; at most 1024 at once. Into a
    /// batch: [`Pacer::due_up_to`] its room, so that what does not fit stays due.
    ///
    /// Cost: a histogram update a packet due, no clock.
    pub fn due(&mut self, now: Instant) -> usize {
        self.due_up_to(now, 1024)
    }

    /// As [`Pacer::due`], at most `most`; the others stay due, and get later.
    pub fn due_up_to(&mut self, now: Instant, most: usize) -> usize {
        let start = *self.start.get_or_insert(now);
        let elapsed_ns = now.saturating_duration_since(start).as_nanos() as f64;
        let due = (elapsed_ns * self.pps / 1e9) as u64 + 1;
        let n = due.saturating_sub(self.issued).min(most as u64);
        for i in self.issued..self.issued + n {
            let intended_ns = i as f64 * 1e9 / self.pps;
            let late = (elapsed_ns - intended_ns).max(0.0) as u64;
            self.late_ns.saturating_record(late);
        }
        self.issued += n;
        n as usize
    }

    /// The time at which packet `i` was meant to leave, once the first was due.
    #[must_use]
    pub fn intended(&self, i: u64) -> Option<Instant> {
        let after_ns = i as f64 * 1e9 / self.pps;
        self.start?.checked_add(Duration::from_nanos(after_ns as u64))
    }

    /// Packets given out so far.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Takes back packets given out that no frame could be had for: they are due again.
    pub(crate) fn put_back(&mut self, n: usize) {
        self.issued = self.issued.saturating_sub(n as u64);
    }

    /// Time from `now` until the next packet is due; zero if one is.
    #[must_use]
    pub fn next(&self, now: Instant) -> Duration {
        match self.intended(self.issued) {
            Some(at) => at.saturating_duration_since(now),
            None => Duration::ZERO,
        }
    }

    /// Settles one round: `sent` packets left, what is in `batch` did not and is dropped as
    /// `unsent`; so counts what was due and never made.
    pub fn settle(&mut self, sent: usize, batch: &mut Batch) {
        batch.discard(DropReason::UNSENT);
        self.sent += sent as u64;
        self.unsent = self.issued.saturating_sub(self.sent);
    }

    /// What was asked, sent, and how late.
    #[must_use]
    pub fn report(&self) -> Pace {
        Pace {
            asked: self.issued,
            sent: self.sent,
            unsent: self.unsent,
            late_p50_ns: self.quantile(0.50),
            late_p99_ns: self.quantile(0.99),
        }
    }

    /// A quantile is stated only from 10 / (1 - q) observations on.
    fn quantile(&self, q: f64) -> Option<u64> {
        let enough = self.late_ns.len() as f64 >= 10.0 / (1.0 - q);
        enough.then(|| self.late_ns.value_at_quantile(q))
    }
}

/// A histogram of nanoseconds up to [`LATE_MAX_NS`] with three digits.
fn histogram() -> Histogram<u64> {
    // Cannot fail: it refuses more than 5 digits and a maximum below 2, and both are constants.
    Histogram::new_with_max(LATE_MAX_NS, 3).expect("three digits and a maximum of a minute")
}

/// How a paced run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// Packets that were due.
    pub asked: u64,
    /// Packets that left.
    pub sent: u64,
    /// Packets that were due and did not leave.
    pub unsent: u64,
    /// Median lateness against the intended time; `None` from too few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of it; `None` from too few packets.
    pub late_p99_ns: Option<u64>,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| match ns {
            Some(ns) => format!("{:.1} us", ns as f64 / 1e3),
            None => "-".into(),
        };
        write!(
            f,
            "asked {}  sent {}  unsent {}  late p50 {}  p99 {}",
            self.asked,
            self.sent,
            self.unsent,
            us(self.late_p50_ns),
            us(self.late_p99_ns)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_their_times_and_not_before() {
        let mut pace = Pacer::pps(1000);
        let t0 = Instant::now();
        assert_eq!(pace.due(t0), 1);
        assert_eq!(pace.due(t0 + Duration::from_micros(999)), 0);
        assert_eq!(pace.next(t0 + Duration::from_micros(400)), Duration::from_micros(600));
        assert_eq!(pace.due(t0 + Duration::from_micros(5500)), 5);
        assert_eq!(pace.report().asked, 6);
    }

    #[test]
    fn a_pacer_that_is_called_late_says_so_and_catches_up() {
        let mut pace = Pacer::pps(1_000_000);
        let t0 = Instant::now();
        pace.due(t0);
        let late = t0 + Duration::from_millis(3);
        let n: usize = std::iter::from_fn(|| Some(pace.due(late)).filter(|n| *n > 0)).sum();
        assert_eq!(n, 3000);
        let p50 = pace.report().late_p50_ns.unwrap();
        assert!((1_490_000..=1_510_000).contains(&p50), "{p50}");
    }

    #[test]
    fn quantiles_of_too_few_are_not_stated() {
        let mut pace = Pacer::pps(10);
        pace.due(Instant::now());
        let report = pace.report();
        assert_eq!((report.late_p50_ns, report.late_p99_ns), (None, None));
        assert!(report.to_string().ends_with("p99 -"));
    }

    #[test]
    fn what_did_not_leave_is_unsent() {
        let mut pace = Pacer::pps(1000);
        let t0 = Instant::now();
        pace.due(t0);
        pace.due(t0 + Duration::from_millis(9));
        pace.settle(7, &mut Batch::with_capacity(1));
        assert_eq!((pace.report().asked, pace.report().sent, pace.report().unsent), (10, 7, 3));
    }
}
