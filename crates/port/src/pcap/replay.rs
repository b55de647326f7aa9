//! The times at which the records of a capture are replayed.

use std::time::{Duration, Instant};

use crate::r#gen::Lateness;
use crate::stats::Pace;

/// Slowest pace, as a factor of the capture's; the next constant is the fastest.
const PACE_MIN: f64 = 1e-3;
const PACE_MAX: f64 = 1e6;

/// A replay of records at their captured intervals, divided by a factor.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    pace: f64,
    /// The time of the first record that has one, and the moment at which it was requested.
    start: Option<(u64, Instant)>,
    late: Lateness,
}

impl Replay {
    pub fn new(pace: f64) -> Replay {
        Replay { pace, start: None, late: Lateness::new() }
    }

    /// Returns the time at which a record captured at `time_ns` is due. A record without a time, or
    /// with an earlier time than the first record, is due immediately.
    pub fn due(&mut self, time_ns: Option<u64>, now: Instant) -> Instant {
        let Some(time_ns) = time_ns else { return now };
        let (first_ns, start) = *self.start.get_or_insert((time_ns, now));
        let after_ns = time_ns.saturating_sub(first_ns) as f64 / self.pace;
        // On overflow deliver now: the wait would be practically without end, and adding would
        // panic.
        start.checked_add(Duration::from_nanos(after_ns as u64)).unwrap_or(now)
    }

    /// Records that the record due at `due` was delivered at `now`.
    pub fn left(&mut self, due: Instant, now: Instant) {
        self.late.record(now.saturating_duration_since(due).as_nanos() as u64);
    }

    pub fn report(&self) -> Pace {
        let sent = self.late.len();
        let [late_p50_ns, late_p99_ns] = self.late.quantiles();
        Pace { asked: sent, sent, unsent: 0, late_p50_ns, late_p99_ns }
    }
}

/// Parses the pace: `1` replays as captured, `2` in half the time.
pub(super) fn pace(text: &str) -> Result<f64, String> {
    let pace = text.parse::<f64>().ok().filter(|pace| (PACE_MIN..=PACE_MAX).contains(pace));
    pace.ok_or_else(|| "1 as captured, 2 twice as fast; from 0.001 to 1000000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_far_apart_as_captured_or_by_a_factor_closer() {
        let now = Instant::now();
        for (factor, after) in [(1.0, 30_000), (2.0, 15_000), (0.5, 60_000)] {
            let mut replay = Replay::new(factor);
            assert_eq!(replay.due(Some(1_000_000_000), now), now);
            let later = now + Duration::from_millis(7);
            assert_eq!(replay.due(Some(1_030_000_000), later), now + Duration::from_micros(after));
        }
    }

    #[test]
    fn a_record_without_a_time_or_of_an_earlier_one_is_due_at_once() {
        let (now, mut replay) = (Instant::now(), Replay::new(1.0));
        assert_eq!(replay.due(None, now), now);
        let first = Some(1_700_000_000_000_000_000);
        assert_eq!(replay.due(first, now), now, "the first with a time");
        assert!(replay.due(Some(5), now) <= now);
        let last = replay.due(Some(u64::MAX), now);
        assert!(last > now, "so far away that it never comes");
        assert!(Replay::new(PACE_MIN).due(Some(u64::MAX), now) >= now);
    }

    #[test]
    fn gap_after_a_first_record_of_time_0_is_kept() {
        let (now, mut replay) = (Instant::now(), Replay::new(1.0));
        assert_eq!(replay.due(Some(0), now), now);
        assert_eq!(replay.due(Some(30_000), now), now + Duration::from_micros(30));
    }

    #[test]
    fn a_pace_is_a_factor_above_zero() {
        assert_eq!((pace("1"), pace("0.5"), pace("1e3")), (Ok(1.0), Ok(0.5), Ok(1000.0)));
        for bad in ["", "0", "-1", "NaN", "inf", "1e9", "2x", "fast"] {
            assert!(pace(bad).is_err(), "{bad}");
        }
    }
}
