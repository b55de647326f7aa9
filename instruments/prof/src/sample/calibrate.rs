//! The cost of one sample for the sampled thread.
//!
//! A loop of known length runs on the calling thread, by turns with and without samples. Its time
//! is the wall's without what it waited for a CPU: the interrupts are in it, other processes are
//! not. Each turn gives one difference; if nearly all of them are positive the median is the cost.

use std::hint::black_box;
use std::time::{Duration, Instant};

use linerate_sys::thread::run_delay_ns;
use linerate_sys::{Code, Error, Result};
use perf_event::data::Record;

use super::What;
use super::attach::Setup;

/// Returns the cost of one sample in nanoseconds of CPU time; `None` if it cannot be distinguished
/// from 0, or if no sample was taken.
///
/// It is a sample of the clock's, whatever is to be sampled: no loop gives every event at a known
/// rate. An event's interrupt takes about as long.
pub(super) fn sample_ns(call_chains: bool, kernel: bool) -> Option<f64> {
    let what = What::Time { hz: CALIBRATION_HZ };
    let setup = Setup::new(&what, call_chains, kernel, RING_BYTES).ok()?;
    let mut rings = setup.this_thread().ok()?;
    let turns = turns();
    let mut costs = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let without = spin(turns)?;
        rings.enable().ok()?;
        let with = spin(turns)?;
        rings.disable().ok()?;
        let mut samples = 0u32;
        rings.drain(|_, record| {
            samples += u32::from(matches!(record, Some(Record::Sample(_))));
        });
        if samples == 0 {
            return None;
        }
        costs.push((with - without) / f64::from(samples));
    }
    distinct(&mut costs)
}

/// Refuses a sampling rate that leaves the target little CPU time: the timer would fire again
/// during a sample, and a run of a tenth of a second might never end.
///
/// # Errors
/// `E-UNSUPPORTED`, with a rate that fits.
pub(super) fn affordable(what: &What, sample_ns: Option<f64>) -> Result<()> {
    let &What::Time { hz } = what else { return Ok(()) };
    let refuse = |why: String, fix: String| {
        Err(Error::new(Code::Unsupported, "cannot sample by time", why).fix(fix))
    };
    match sample_ns {
        None if hz > HZ_MAX => refuse(
            format!("{hz} samples a second, of which it is not known what one takes, are too many"),
            format!("at most {HZ_MAX} a second; 1000 are usual"),
        ),
        Some(ns) if f64::from(hz) * ns > SHARE_MAX * 1e9 => {
            let us = ns / 1000.0;
            let pct = f64::from(hz) * ns / 1e7;
            let fitting = (SHARE_MAX * 1e9 / ns).floor().max(1.0);
            refuse(
                format!(
                    "{hz} samples a second of {us:.1} us each would take {pct:.0} % of the \
                     target's CPU time"
                ),
                format!("{fitting} a second would take {:.0} %; 1000 are usual", 100.0 * SHARE_MAX),
            )
        }
        _ => Ok(()),
    }
}

/// Returns the median, if at most one of the costs is not positive: of nine tosses of a coin, eight
/// or more fall alike in 4 % of all cases.
fn distinct(costs: &mut [f64]) -> Option<f64> {
    let positive = costs.iter().filter(|&&cost| cost > 0.0).count();
    if positive + 1 < costs.len() {
        return None;
    }
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).copied().filter(|&cost| cost > 0.0)
}

/// Returns the number of iterations for which the loop takes about [`SPIN`].
fn turns() -> u64 {
    const TRIAL: u64 = 100_000;
    // Use the shortest of three trials, because the first runs with cold caches.
    let trial = |_| {
        let start = Instant::now();
        work(TRIAL);
        start.elapsed()
    };
    let shortest = (0..3).map(trial).min().unwrap_or(SPIN).max(Duration::from_micros(1));
    (SPIN.as_nanos() * u128::from(TRIAL) / shortest.as_nanos()).try_into().unwrap_or(TRIAL)
}

/// Returns the CPU time of the loop in nanoseconds, interrupts included.
fn spin(turns: u64) -> Option<f64> {
    let waited = run_delay_ns().ok()?;
    let start = Instant::now();
    work(turns);
    let wall = start.elapsed().as_nanos() as f64;
    Some(wall - run_delay_ns().ok()?.saturating_sub(waited) as f64)
}

/// Works on a chain of shifts in a register. A loop through memory would be unsuitable: an
/// interrupt changes the speed of store forwarding by more than the interrupt itself takes.
fn work(turns: u64) {
    let shift = |x: u64, _| {
        let x = x ^ x << 13;
        let x = x ^ x >> 7;
        x ^ x << 17
    };
    black_box((0..black_box(turns)).fold(black_box(1), shift));
}

/// Sampling rate of the calibration: high enough for a measurable difference in a short time, low
/// enough that the thread runs its own code in between, because permanently warm caches would
/// underestimate the cost.
const CALIBRATION_HZ: u32 = 10_000;
/// Highest rate while the cost of a sample is unknown: in a virtual machine 20 to 30 us are common.
const HZ_MAX: u32 = 20_000;
/// Largest share of the target's CPU time for samples.
const SHARE_MAX: f64 = 0.5;
const SPIN: Duration = Duration::from_millis(5);
const ROUNDS: usize = 9;
const RING_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_told_only_if_the_differences_agree() {
        assert_eq!(distinct(&mut [3.0, 1.0, 2.0, 4.0, -9.0]), Some(2.0));
        assert_eq!(distinct(&mut [3.0, 1.0, 2.0, -4.0, -9.0]), None);
        assert_eq!(distinct(&mut []), None);
    }

    #[test]
    fn a_rate_that_would_take_most_of_the_cpu_is_refused_with_one_that_fits() {
        let at = |hz, sample_ns| affordable(&What::Time { hz }, sample_ns);
        assert!(at(20_000, Some(25_000.0)).is_ok());
        let e = at(20_001, Some(25_000.0)).unwrap_err();
        assert!(e.why.contains("25.0 us each would take 50 %"), "{e}");
        assert!(e.fix.starts_with("20000 a second"), "{e}");
        assert!(at(100_000, Some(2_000.0)).is_ok());
        assert!(at(1, Some(1e10)).unwrap_err().fix.starts_with("1 a second"));
        assert!(at(20_000, None).is_ok());
        assert!(at(20_001, None).unwrap_err().fix.contains("at most 20000"));
    }
}
