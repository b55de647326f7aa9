//! The CPU's time-stamp counter: ticks at a constant rate, read in about 10 ns without a system
//! call.
//!
//! A tick is not a core cycle: the rate is fixed, the core's is not. Figures in ticks compare on
//! one machine only, and say so.

use std::time::{Duration, Instant};

/// Returns ticks since an arbitrary time; on a machine without such a clock, nanoseconds.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: RDTSC reads a counter into registers. x86-64 allows it in user space, and so does
    // Linux, unless prctl forbids it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Returns the ticks in program order: all earlier instructions are complete before the reading,
/// and all later ones start after it. Earlier stores may not have reached the cache yet, which
/// would need a fence.
///
/// Cost: some 10 ns more than [`ticks`]. Without such a clock it is as [`ticks`].
#[must_use]
#[inline]
pub fn ticks_ordered() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above; LFENCE is part of SSE2, which x86-64 always has, and accesses no memory.
    return unsafe {
        use core::arch::x86_64::{_mm_lfence, _rdtsc};
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    ticks()
}

/// Returns the cost of timing a call, in ticks: that of two readings of the clock, as the median of
/// 31 batches.
///
/// Cost: about 2,000 readings.
#[must_use]
pub fn timing_ticks() -> u64 {
    const BATCHES: usize = 31;
    const CALLS: u64 = 32;
    let mut batches = [0; BATCHES];
    for batch in &mut batches {
        let start = ticks();
        for _ in 0..2 * CALLS {
            std::hint::black_box(ticks());
        }
        *batch = ticks().wrapping_sub(start) / CALLS;
    }
    batches.sort_unstable();
    batches[BATCHES / 2]
}

/// Returns the ticks per second, measured against the monotonic clock during `window`.
#[must_use]
pub fn rate_hz(window: Duration) -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed() < window {
        std::hint::spin_loop();
    }
    let (elapsed, to) = (start.elapsed(), ticks());
    to.wrapping_sub(from) as f64 / elapsed.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_forward_at_the_rate_of_a_clock() {
        let (a, b) = (ticks(), ticks());
        assert!(b >= a);
        let (c, d) = (ticks_ordered(), ticks_ordered());
        assert!(b <= c && c <= d, "{b} {c} {d}");
        let rate = rate_hz(Duration::from_millis(20));
        assert!(rate > 1e8 && rate < 1e11, "{rate}");
    }
}
