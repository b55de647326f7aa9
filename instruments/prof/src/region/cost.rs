//! The cost of timing a region on this machine, and the rate of its clock.

use std::sync::OnceLock;
use std::time::Duration;

use linerate_sys::tsc::{rate_hz, ticks};
use serde::{Deserialize, Serialize};

use super::Region;

/// The cost of timing a region, in ticks: the median of many empty ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Apparent duration of an empty region; subtracted from every region.
    pub subtracted_ticks: u64,
    /// Cost of entering, leaving and recording for the program. It is in no region, unless one is inside
    /// another.
    pub whole_ticks: u64,
}

impl Cost {
    /// The cost on this machine; measured once in a process.
    #[must_use]
    pub fn calibrated() -> Cost {
        static COST: OnceLock<Cost> = OnceLock::new();
        *COST.get_or_init(Cost::calibrate)
    }

    /// Medians: a minimum would be of the luckiest time, and a mean of the interrupts.
    fn calibrate() -> Cost {
        const TIMES: usize = 1001;
        const BATCHES: usize = 31;
        const BATCH: u64 = 64;
        let mut region = Region::with_cost(String::new(), Cost::default());
        let empty = |_| {
            let entered = region.enter();
            ticks().saturating_sub(entered.0)
        };
        let subtracted_ticks = median((0..TIMES).map(empty).collect());
        let batch = |_| {
            let start = ticks();
            for _ in 0..BATCH {
                let entered = region.enter();
                region.leave(entered);
            }
            ticks().saturating_sub(start) / BATCH
        };
        let whole_ticks = median((0..BATCHES).map(batch).collect());
        Cost { subtracted_ticks, whole_ticks: whole_ticks.max(subtracted_ticks) }
    }
}

/// Ticks a second: the median of three measurements, so that one during which we lost the CPU at
/// the wrong moment does not count. Measured once in a process.
pub(super) fn ticks_hz() -> f64 {
    static HZ: OnceLock<f64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let mut rates = [(); 3].map(|()| rate_hz(Duration::from_millis(5)));
        rates.sort_by(f64::total_cmp);
        rates[1]
    })
}

/// The kernel's clock source, if the clock that we read is the time stamp counter and the kernel
/// keeps time by another: it has found the counters of the CPUs out of step, or of no fixed rate, or
/// was told not to use them. Read once in a process.
pub(super) fn other_clock() -> Option<String> {
    static CLOCK: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let source = std::fs::read_to_string(path).ok()?;
        (source.trim() != "tsc").then(|| source.trim().to_owned())
    };
    if cfg!(target_arch = "x86_64") { CLOCK.get_or_init(read).clone() } else { None }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_costs_something_and_less_than_a_system_call() {
        let cost = Cost::calibrated();
        assert!(cost.subtracted_ticks > 0 && cost.subtracted_ticks <= cost.whole_ticks);
        // Unoptimized, on a slow machine: 10 µs would be absurd.
        assert!((cost.whole_ticks as f64) < ticks_hz() / 1e5, "{cost:?}");
    }

    #[test]
    fn the_clock_has_a_rate_and_keeps_it_and_an_empty_region_takes_about_0() {
        let mut empty = Region::new("empty");
        for _ in 0..10_000 {
            let entered = empty.enter();
            empty.leave(entered);
        }
        let (timing, cost) = (empty.timing(), Cost::calibrated());
        // Half of the times are below the median that is subtracted, or at it.
        assert!(timing.p50_ticks <= Some(cost.subtracted_ticks), "{timing:?}");
        assert!(timing.cost_pct.unwrap() > 0.0);
        let rate = ticks_hz();
        assert!(rate > 1e8 && rate < 1e11, "{rate}");
        assert_eq!(rate.to_bits(), ticks_hz().to_bits());
    }
}
