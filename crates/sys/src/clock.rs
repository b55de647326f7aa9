//! The monotonic clock that all processes of a machine share, and the clocks of CPU time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds: the same for every process of this machine outside time
/// namespaces. [`std::time::Instant`] is this clock too, but does not give its number.
///
/// Cost: some 25 ns, and no system call where the vDSO has the clock.
///
/// Source: clock_gettime(2), time_namespaces(7).
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Returns the CPU time of the calling thread in nanoseconds.
///
/// Cost: a system call.
///
/// Source: clock_gettime(2), CLOCK_THREAD_CPUTIME_ID.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// Returns the CPU time of all threads of this process, including ended ones.
///
/// Cost: a system call.
///
/// Source: clock_gettime(2), CLOCK_PROCESS_CPUTIME_ID.
#[must_use]
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let [seconds, ns] = [now.tv_sec, now.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
    Duration::from_secs(seconds) + Duration::from_nanos(ns)
}

/// Returns an [`Instant`] and the monotonic clock's nanoseconds at that time: exact to a
/// microsecond, unless the thread is preempted at each of eight attempts; then the best of them.
///
/// Cost: three readings of the clock, or some more.
#[must_use]
pub fn now_and_ns() -> (Instant, u64) {
    let reading = || {
        let (before, ns, after) = (Instant::now(), monotonic_ns(), Instant::now());
        (after - before, before, ns)
    };
    let mut best = reading();
    for _ in 1..8 {
        if best.0 < CLOSE {
            break;
        }
        let next = reading();
        best = if next.0 < best.0 { next } else { best };
    }
    let (_, at, ns) = best;
    (at, ns)
}

fn nanoseconds(time: Timespec) -> u64 {
    // Neither number is ever negative, because these clocks start at 0.
    let [seconds, ns] = [time.tv_sec, time.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Largest difference between two readings that count as one moment.
const CLOSE: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_and_its_number_are_of_one_time() {
        let (at, ns) = now_and_ns();
        let (later, later_ns) = now_and_ns();
        let apart = (later - at).as_nanos().abs_diff(u128::from(later_ns - ns));
        // A machine that takes the CPU away at every try is not judged.
        assert!(apart < 1_000_000_000, "{apart} ns");
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let (before, end) = (cpu_time(), Instant::now() + Duration::from_millis(50));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        assert!(cpu_time() - before > Duration::from_millis(5));
    }

    #[test]
    fn it_passes_as_instants_do() {
        let (from, start) = (monotonic_ns(), Instant::now());
        std::thread::sleep(Duration::from_millis(2));
        let took = start.elapsed();
        assert!(u128::from(monotonic_ns() - from) >= took.as_nanos(), "{from} {took:?}");
    }
}
