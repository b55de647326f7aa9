//! The number of paced packets that leave after one wake-up.
//!
//! A wake-up takes CPU time, however many packets it sends: one or two microseconds on a physical
//! machine, twenty on a virtual one. So packets wait until there are enough of them to keep the
//! cost of wake-ups at a twentieth of a CPU, but no longer than 1 ms. The measured lateness
//! includes this wait.

use linerate_sys::clock::thread_cpu_ns;

/// Divisor of a CPU's time: wake-ups may use one part in 20.
const SHARE: u64 = 20;
/// Longest time that a packet waits for later packets.
const HOLD_MAX_NS: u64 = 1_000_000;
/// Most packets that leave together by default: the batch of one turn, which fits in any ring.
const PACKETS_MAX: u64 = 64;
/// CPU time that is assumed for a wake-up until one is measured.
const WAKE_NS: u64 = 5_000;
/// Upper limit of a sample, because the worker may have done other work.
const SAMPLE_MAX_NS: u64 = 100_000;
/// Interval of samples, in wake-ups.
const SAMPLED: u32 = 16;
/// Divisor of a sample's weight in the mean.
const WEIGHT: u64 = 8;

/// The number of paced packets that leave together, computed from the rate and the cost of a
/// wake-up.
#[derive(Debug)]
pub(super) struct Burst {
    /// The number of packets that the user has set.
    chosen: Option<u64>,
    pps: f64,
    /// CPU time of a wake-up, as a moving mean.
    wake_ns: u64,
    /// Number of bursts made so far.
    bursts: u32,
    /// CPU time of the thread when the last packets were made, if their wake-up is a sample.
    made_ns: Option<u64>,
    /// True if the thread has slept since the last packets were made.
    slept: bool,
}

impl Burst {
    pub fn new(chosen: Option<u64>, pps: f64) -> Burst {
        Burst { chosen, pps, wake_ns: WAKE_NS, bursts: 0, made_ns: None, slept: false }
    }

    /// Returns true if packets can leave together at this rate, when a wake-up costs enough.
    pub fn gathers(&self) -> bool {
        self.chosen.is_none() && self.within(HOLD_MAX_NS) > 1
    }

    /// Returns the number of packets that should leave together.
    pub fn packets(&self) -> u64 {
        self.chosen.unwrap_or_else(|| self.within(self.wake_ns.saturating_mul(SHARE)))
    }

    /// Records that packets were made.
    ///
    /// Cost: one time in 16 a system call here and one at the next wake-up, if packets gather.
    pub fn made(&mut self) {
        let is_sample = self.bursts.is_multiple_of(SAMPLED) && self.gathers();
        self.bursts = self.bursts.wrapping_add(1);
        self.slept = false;
        self.made_ns = is_sample.then(thread_cpu_ns);
    }

    /// Records that the worker is about to sleep until packets are due.
    pub fn sleeps(&mut self) {
        self.slept = true;
    }

    /// Records that the worker requests packets; if it has slept, the CPU time since the last
    /// packets is a sample.
    pub fn asked(&mut self) {
        if self.slept
            && let Some(made_ns) = self.made_ns.take()
        {
            self.measured(thread_cpu_ns().saturating_sub(made_ns));
        }
    }

    fn measured(&mut self, ns: u64) {
        let ns = ns.min(SAMPLE_MAX_NS);
        self.wake_ns = (self.wake_ns * (WEIGHT - 1) + ns) / WEIGHT;
    }

    /// Returns the number of packets that become due within `ns`, which is limited to the longest
    /// hold.
    fn within(&self, ns: u64) -> u64 {
        let n = self.pps * ns.min(HOLD_MAX_NS) as f64 / 1e9;
        (n as u64).clamp(1, PACKETS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_gather_as_long_as_waking_takes_a_twentieth_of_a_cpu() {
        let packets = |pps, wake_ns| {
            let mut burst = Burst::new(None, pps);
            (0..100).for_each(|_| burst.measured(wake_ns));
            burst.packets()
        };
        // A wake-up of 20 us every 400 us, at the post's 992 Mbit/s in full frames.
        assert_eq!(packets(81_902.0, 20_000), 32);
        assert_eq!(packets(81_902.0, 2_000), 3);
        assert_eq!(packets(20_000.0, 1_000_000), 20, "1 ms is the longest");
        assert_eq!(packets(1e9, 20_000), PACKETS_MAX);
        assert_eq!(packets(1000.0, 20_000), 1);
    }

    #[test]
    fn as_many_leave_together_as_was_asked_for() {
        for chosen in [1, 200] {
            let mut burst = Burst::new(Some(chosen), 81_902.0);
            burst.measured(50_000);
            assert!(burst.packets() == chosen && !burst.gathers());
        }
        assert!(Burst::new(None, 81_902.0).gathers() && !Burst::new(None, 1000.0).gathers());
    }

    #[test]
    fn only_a_wake_up_behind_packets_is_measured() {
        let mut burst = Burst::new(None, 81_902.0);
        burst.asked();
        burst.made();
        burst.asked();
        assert_eq!(burst.wake_ns, WAKE_NS);
        burst.sleeps();
        burst.asked();
        assert_ne!(burst.wake_ns, WAKE_NS);
        let known = burst.wake_ns;
        burst.asked();
        assert_eq!(burst.wake_ns, known);
    }

    #[test]
    fn an_interrupted_sample_counts_no_more_than_the_longest() {
        let mut burst = Burst::new(None, 1e6);
        burst.measured(80_000_000);
        assert_eq!(burst.wake_ns, (WAKE_NS * 7 + SAMPLE_MAX_NS) / 8);
    }
}
