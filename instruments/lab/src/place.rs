//! The distance between two CPUs, which a host may change at any moment.
//!
//! A virtual CPU is wherever its host puts it: on one machine the two of them were seen on one core
//! complex, where a cache line comes back after some 150 ticks, and a minute later on two, where it
//! takes 1000. Whatever passes between two threads costs accordingly; so the distance is measured
//! before a pair and after it, and pairs are compared within a class only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use linerate_sys::thread::pin_to_cpu;
use linerate_sys::tsc;

use crate::record::PlacementRecord;
use crate::{Code, Error, Result};

/// Number of round trips that are timed together: so many that the clock reading is negligible.
const TRIPS: u64 = 20;

/// Number of readings. An interrupt or a preemption spoils one of them, but not their median.
const READINGS: usize = 101;

/// Least number of readings for a median.
const READINGS_MIN: usize = 11;

/// The longest wait of the two threads for each other: undisturbed, they meet within 2 ms.
const TIME_MAX: Duration = Duration::from_millis(250);

/// Iterations of a waiting loop between two clock readings.
const SPINS: u32 = 4096;

/// Ratio of two readings above which they belong to two placements: within one placement readings
/// differ by a fifth, between two by a factor of five.
pub const RATIO_MAX: f64 = 2.0;

/// The most ticks of a round trip between near CPUs. On a time stamp counter of 2.6 GHz, 124 to 192
/// were measured within one core complex and 1026 across two. The limit is the middle of their
/// logarithms, so that a counter of half or twice that rate gives the same class.
pub const NEAR_TICKS_MAX: f64 = 450.0;

/// The value by which a thread signals that it has given up.
const GONE: u64 = u64::MAX;

/// A value alone in two cache lines, because CPUs fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Returns the ticks of a cache line's round trip between two CPUs, the median of many readings.
///
/// Cost: two threads for some milliseconds; a quarter of a second where the CPUs are busy.
///
/// # Errors
/// `E-CPU` if one of them is not available, or too seldom.
pub fn round_trip_ticks(one: usize, other: usize) -> Result<f64> {
    let what = || format!("cannot measure from CPU {one} to CPU {other}");
    if one == other {
        return Err(Error::new(Code::Cpu, what(), "name two different CPUs"));
    }
    let line = Line(AtomicU64::new(0));
    let end = Instant::now() + TIME_MAX;
    let mut readings = scope(|s| {
        let answering = Builder::new()
            .spawn_scoped(s, || pinned(&line, other, || answer(&line, end)))
            .map_err(|e| Error::new(Code::Cpu, what(), e.to_string()))?;
        let asking = Builder::new()
            .spawn_scoped(s, || pinned(&line, one, || ask(&line, end)))
            // If this thread cannot start, end the answering thread: the scope waits for the
            // answering thread before it returns.
            .inspect_err(|_| line.0.store(GONE, Ordering::Release))
            .map_err(|e| Error::new(Code::Cpu, what(), e.to_string()))?;
        let readings = joined(asking, &what);
        joined(answering, &what)?;
        readings
    })?;
    if readings.len() < READINGS_MIN {
        let why = format!(
            "in {TIME_MAX:?} both CPUs were available for {} of {READINGS} readings",
            readings.len()
        );
        return Err(Error::new(Code::Cpu, what(), why).fix("end other programs on these CPUs"));
    }
    readings.sort_by(f64::total_cmp);
    Ok(readings[readings.len() / 2])
}

/// Returns the placement from two readings; `None` if the CPUs moved between them.
#[must_use]
pub fn placement(before_ticks: f64, after_ticks: f64) -> Option<PlacementRecord> {
    let ratio = before_ticks / after_ticks;
    if !(1.0 / RATIO_MAX..=RATIO_MAX).contains(&ratio) {
        return None;
    }
    // Classify the mean of both readings: one reading alone may be on the other side of the limit.
    let mean = (before_ticks * after_ticks).sqrt();
    let class = if mean <= NEAR_TICKS_MAX { "near" } else { "far" };
    Some(PlacementRecord { before_ticks, after_ticks, class: class.into() })
}

/// Runs `f` on `cpu`. If the kernel refuses that CPU, the other thread is told to stop waiting.
fn pinned<T>(line: &Line, cpu: usize, f: impl FnOnce() -> T) -> Result<T> {
    pin_to_cpu(cpu).inspect_err(|_| line.0.store(GONE, Ordering::Release))?;
    Ok(f())
}

/// Passes the cache line to the other thread and waits for its return; returns the ticks of a round
/// trip for each reading.
fn ask(line: &Line, end: Instant) -> Vec<f64> {
    let mut readings = Vec::with_capacity(READINGS);
    let mut trip = 0;
    while readings.len() < READINGS {
        let start = tsc::ticks();
        for _ in 0..TRIPS {
            line.0.store(2 * trip + 1, Ordering::Release);
            if !comes(line, 2 * trip + 2, end) {
                line.0.store(GONE, Ordering::Release);
                return readings;
            }
            trip += 1;
        }
        readings.push(tsc::ticks().saturating_sub(start) as f64 / TRIPS as f64);
    }
    line.0.store(GONE, Ordering::Release);
    readings
}

/// Passes the cache line back each time it arrives, until `end` or until the other thread ends.
fn answer(line: &Line, end: Instant) {
    let mut trip = 0;
    while comes(line, 2 * trip + 1, end) {
        // If the other thread has ended, nobody reads this value, which does no harm.
        line.0.store(2 * trip + 2, Ordering::Release);
        trip += 1;
    }
}

/// Waits until the line has `value`; returns false if that cannot happen any more.
fn comes(line: &Line, value: u64, end: Instant) -> bool {
    loop {
        for _ in 0..SPINS {
            match line.0.load(Ordering::Acquire) {
                GONE => return false,
                said if said == value => return true,
                _ => std::hint::spin_loop(),
            }
        }
        if Instant::now() >= end {
            return false;
        }
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>, what: &dyn Fn() -> String) -> Result<T> {
    let panicked = |_| Err(Error::new(Code::Cpu, what(), "a thread of it panicked"));
    thread.join().unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_sys::thread::allowed_cpus;

    #[test]
    fn two_cpus_have_a_distance_and_it_ends_in_time() {
        let cpus = allowed_cpus().unwrap();
        let [one, other, ..] = cpus[..] else { return println!("skipped: one CPU") };
        let start = Instant::now();
        match round_trip_ticks(one, other) {
            Ok(ticks) => {
                println!("{ticks} ticks");
                assert!(ticks > 10.0, "{ticks}");
            }
            // On a busy machine the two threads may find no common time; the error then names the
            // number of readings.
            Err(e) => assert!(e.why.contains("of 101 readings"), "{e}"),
        }
        // The time limit, plus the time to start two threads on CPUs that other programs use.
        assert!(start.elapsed() < TIME_MAX + Duration::from_secs(10));
    }

    #[test]
    fn missing_cpu_is_an_error_without_a_wait() {
        let here = allowed_cpus().unwrap()[0];
        for (one, other) in [(here, 100_000), (100_000, here), (here, here)] {
            assert_eq!(round_trip_ticks(one, other).unwrap_err().code, Code::Cpu);
        }
    }

    #[test]
    fn readings_are_near_or_far_or_of_two_placements() {
        let class = |before, after| placement(before, after).map(|placement| placement.class);
        assert_eq!(class(124.0, 192.0).as_deref(), Some("near"));
        assert_eq!(class(1026.0, 1050.0).as_deref(), Some("far"));
        assert_eq!(class(150.0, 1026.0), None);
        assert_eq!(class(1026.0, 150.0), None);
        assert_eq!(class(0.0, 0.0), None);
        assert_eq!(class(f64::NAN, 150.0), None);
        assert_eq!(class(440.0, 470.0).as_deref(), Some("far"));
    }
}
