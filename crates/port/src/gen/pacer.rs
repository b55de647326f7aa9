//! Open-loop pacing: packet `i` is due at `start + i / rate`, even if earlier packets were late.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linerate_skb::{Batch, DropReason};

use crate::stats::Pace;

/// Slowest pace in packets a second, one in ten years; the next constant is the fastest, a thousand
/// a nanosecond.
const PPS_MIN: f64 = 3e-9;
pub(super) const PPS_MAX: f64 = 1e12;
/// Largest lateness in the histogram; longer ones are counted as this.
const LATE_MAX_NS: u64 = 60_000_000_000;

/// The schedule of paced packets: how many are due, and how late they are compared with their
/// intended times.
#[derive(Debug, Clone)]
pub struct Pacer {
    pps: f64,
    start: Option<Instant>,
    /// Number of packets that `due` has issued.
    issued: u64,
    sent: u64,
    unsent: u64,
    late: Lateness,
}

impl Pacer {
    /// Makes a pacer of `packets_per_second`, which starts with the first call of [`Pacer::due`].
    #[must_use]
    pub fn pps(packets_per_second: u64) -> Pacer {
        Pacer::rate(packets_per_second as f64)
    }

    /// Creates a pacer of a fractional number of packets a second, clamped to the range from one in
    /// ten years to 10¹².
    #[must_use]
    pub fn rate(packets_per_second: f64) -> Pacer {
        // NaN is treated as the slowest pace.
        let pps = if packets_per_second.is_nan() { PPS_MIN } else { packets_per_second };
        Pacer {
            pps: pps.clamp(PPS_MIN, PPS_MAX),
            start: None,
            issued: 0,
            sent: 0,
            unsent: 0,
            late: Lateness::new(),
        }
    }

    /// Issues the packets that are due at `now`, at most 1024; returns their number. Callers with a
    /// batch use [`Pacer::due_up_to`] with its room, so that packets that do not fit stay due.
    ///
    /// Cost: a histogram update a packet due, no clock.
    pub fn due(&mut self, now: Instant) -> usize {
        self.due_up_to(now, 1024)
    }

    /// Issues at most `most` of the packets that are due at `now`; the others stay due, and their
    /// lateness grows.
    pub fn due_up_to(&mut self, now: Instant, most: usize) -> usize {
        let n = self.peek(now, most);
        self.issue(n, now);
        n
    }

    /// Returns the number of packets that [`Pacer::due_up_to`] would issue, without issuing them.
    pub(super) fn peek(&mut self, now: Instant, most: usize) -> usize {
        let due = ((self.elapsed_ns(now) * self.pps / 1e9) as u64).saturating_add(1);
        due.saturating_sub(self.issued).min(most as u64) as usize
    }

    /// Issues the next `n` packets, and records how late each is.
    pub(super) fn issue(&mut self, n: usize, now: Instant) {
        let elapsed_ns = self.elapsed_ns(now);
        for _ in 0..n {
            let intended_ns = self.issued as f64 * 1e9 / self.pps;
            let late = (elapsed_ns - intended_ns).max(0.0) as u64;
            self.late.record(late);
            self.issued += 1;
        }
    }

    /// Returns the time since the first packet was due. The first packet is due at the first call.
    fn elapsed_ns(&mut self, now: Instant) -> f64 {
        let start = *self.start.get_or_insert(now);
        now.saturating_duration_since(start).as_nanos() as f64
    }

    /// Returns the intended time of packet `i`; `None` before the first packet was due.
    #[must_use]
    pub fn intended(&self, i: u64) -> Option<Instant> {
        let after_ns = i as f64 * 1e9 / self.pps;
        self.start?.checked_add(Duration::from_nanos(after_ns as u64))
    }

    /// Returns the number of packets issued so far.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Returns the time from `now` until the next packet is due; zero if one is due already.
    #[must_use]
    pub fn next(&self, now: Instant) -> Duration {
        self.next_of(1, now)
    }

    /// Returns the time from `now` until `n` packets are due; zero if they are due already.
    pub(super) fn next_of(&self, n: u64, now: Instant) -> Duration {
        match self.intended(self.issued + n.saturating_sub(1)) {
            Some(at) => at.saturating_duration_since(now),
            None => Duration::ZERO,
        }
    }

    /// Corrects the counts after one round: `sent` packets left. Packets still in `batch` are
    /// dropped and counted as `unsent`, as are packets that were due and never made.
    pub fn settle(&mut self, sent: usize, batch: &mut Batch) {
        batch.discard(DropReason::UNSENT);
        self.sent += sent as u64;
        self.unsent = self.issued.saturating_sub(self.sent);
    }

    /// Returns how many packets were due, how many were sent, and how late they were.
    #[must_use]
    pub fn report(&self) -> Pace {
        let [late_p50_ns, late_p99_ns] = self.late.quantiles();
        let (asked, sent, unsent) = (self.issued, self.sent, self.unsent);
        Pace { asked, sent, unsent, late_p50_ns, late_p99_ns }
    }
}

/// The lateness of packets: how long after their intended times they left.
#[derive(Debug, Clone)]
pub(crate) struct Lateness(Histogram<u64>);

impl Lateness {
    pub fn new() -> Lateness {
        // The call cannot fail: it refuses only more than 5 digits or a maximum below 2, and both
        // are constants.
        let new = Histogram::new_with_max(LATE_MAX_NS, 3);
        Lateness(new.expect("three digits and a maximum of a minute"))
    }

    #[inline(always)]
    pub fn record(&mut self, late_ns: u64) {
        self.0.saturating_record(late_ns);
    }

    /// Returns the number of packets.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the median and the 99th percentile; each is `None` with fewer than 10 / (1 - q)
    /// observations, where q is the quantile.
    pub fn quantiles(&self) -> [Option<u64>; 2] {
        [0.50, 0.99].map(|q| {
            let enough = self.0.len() as f64 >= 10.0 / (1.0 - q);
            enough.then(|| self.0.value_at_quantile(q))
        })
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
    fn a_packet_that_is_only_looked_at_stays_due_and_is_not_late_yet() {
        let mut pace = Pacer::pps(1000);
        let t0 = Instant::now();
        for _ in 0..100 {
            assert_eq!(pace.peek(t0, 8), 1);
        }
        assert_eq!((pace.report().asked, pace.report().late_p50_ns), (0, None));
        pace.issue(1, t0);
        assert_eq!((pace.peek(t0, 8), pace.report().asked), (0, 1));
    }

    #[test]
    fn a_pace_beyond_all_counting_is_bounded() {
        for pps in [f64::MAX, f64::INFINITY, f64::NAN, -1.0] {
            let mut pace = Pacer::rate(pps);
            let t0 = Instant::now();
            assert!((1..=1024).contains(&pace.due(t0)), "{pps}");
            // A time far beyond the range of the counter at the fastest rate.
            let late = t0.checked_add(Duration::from_secs(1 << 32)).unwrap();
            assert!(pace.due(late) > 0, "{pps}");
        }
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

    #[test]
    fn packets_of_every_call_are_settled() {
        let (mut pace, t0) = (Pacer::pps(1000), Instant::now());
        let mut batch = Batch::with_capacity(1);
        for ms in [0, 1] {
            pace.due(t0 + Duration::from_millis(ms));
            pace.settle(1, &mut batch);
        }
        assert_eq!((pace.report().sent, pace.report().unsent), (2, 0));
    }
}
