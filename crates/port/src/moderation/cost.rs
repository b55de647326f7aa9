//! The cost of a wake-up and of a packet on this machine, from samples of a thread's CPU clock.
//!
//! A sample reads the clock before a sleep and after it: what passed in between is a wake-up's,
//! less the time of a reading, which two readings in a row before the sleep tell. The rest of the
//! CPU time since the sample before, less that of the other wake-ups, is the packets': also that of
//! the sample's three readings.
//! Both means lose weight with age. Least squares over whole rounds cannot tell the two apart where
//! load and holds stay the same.

use std::time::{Duration, Instant};

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(20);
/// Time between two readings before sleeps that did not follow: under load most waits find packets.
const RETRY: Duration = Duration::from_millis(1);
/// Weight that earlier samples keep when a sample is added.
const DECAY: f64 = 0.96;
/// Weight of the initial values, in wake-ups and in packets: it is so low that the first sample
/// replaces them.
const PRIOR_WAKES: f64 = 0.1;
const PRIOR_PACKETS: f64 = 200.0;
/// Upper limit of a wake-up's cost, as a multiple of the usual cost: a sample may include another
/// thread's work.
const OUTLIER: f64 = 4.0;

/// CPU time of a wake-up and of a packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Cost of a sleep and its wake-up, in nanoseconds. A worker's does not include arming.
    pub wake_ns: f64,
    /// Cost of a packet, in nanoseconds.
    pub packet_ns: f64,
}

/// CPU time that a queue took by the measured costs, and the time in which it was taken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub used_ns: f64,
    pub passed_ns: f64,
}

impl Usage {
    /// Returns the share of a CPU.
    pub fn share(self) -> f64 {
        self.used_ns / self.passed_ns.max(1.0)
    }
}

impl Default for Cost {
    /// Returns the costs on a virtual machine, which are used until some are measured.
    fn default() -> Cost {
        Cost { wake_ns: 12_000.0, packet_ns: 500.0 }
    }
}

impl Cost {
    /// Returns the share of CPU time that wake-ups take, in per cent.
    #[must_use]
    pub fn waking_percent(&self, packets_per_irq: f64) -> f64 {
        100.0 * self.wake_ns / (self.wake_ns + packets_per_irq * self.packet_ns)
    }
}

/// A reading of a thread's clock and counters, at the end of a sleep.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    cpu_ns: u64,
    irqs: u64,
    packets: u64,
}

/// A meter of a thread's [`Cost`], by readings around some of its sleeps.
#[derive(Debug, Default)]
pub struct CostMeter {
    last: Option<Reading>,
    /// CPU time at the beginning of the sleep, if the sleep is a sample; the next fields are the
    /// CPU time of such a reading, and the time of the last one.
    before: Option<u64>,
    reading_ns: Option<u64>,
    tried_at: Option<Instant>,
    sums: Sums,
}

/// Sums over a meter's samples, in which older samples weigh less.
#[derive(Debug, Default)]
struct Sums {
    /// CPU time of the wake-ups that were measured, and their number.
    wake_ns: f64,
    wakes: f64,
    /// All CPU time, with the irqs and packets of that time.
    all_ns: f64,
    irqs: f64,
    packets: f64,
}

impl CostMeter {
    /// Reads the thread's CPU clock twice before a sleep, if a sample is due.
    ///
    /// Cost: a comparison; two syscalls 50 times a second, or up to 1000 times if the thread does
    ///       not sleep then.
    #[inline]
    pub fn falls_asleep(&mut self, now: Instant, mut cpu_ns: impl FnMut() -> u64) {
        let is_due = |at: Instant, after: Duration| now.saturating_duration_since(at) >= after;
        if self.last.is_none_or(|last| is_due(last.at, PERIOD))
            && self.tried_at.is_none_or(|at| is_due(at, RETRY))
        {
            let first = cpu_ns();
            let before = cpu_ns();
            // An interrupt between the two is no part of a reading.
            let reading = before.saturating_sub(first);
            let most = self.reading_ns.map_or(u64::MAX, |last| 2 * last.max(1));
            self.reading_ns = Some(reading.min(most));
            (self.before, self.tried_at) = (Some(before), Some(now));
        } else {
            // A reading before an earlier sleep would make this one longer.
            self.before = None;
        }
    }

    /// Drops the reading of [`falls_asleep`](CostMeter::falls_asleep), because the thread does not
    /// sleep: a later sleep would be measured from it.
    #[inline]
    pub fn stay_awake(&mut self) {
        self.before = None;
    }

    /// Returns true if the sleep that ended is a sample.
    #[inline]
    #[must_use]
    pub fn is_sample(&self) -> bool {
        self.before.is_some()
    }

    /// Takes a sample after a sleep: the thread's CPU clock, and its irqs and packets so far.
    /// Returns the new cost if the sample changed it.
    ///
    /// A sample that cannot be of one thread is not used: more CPU time than time, or less than
    /// none.
    pub fn woke(&mut self, now: Instant, cpu_ns: u64, irqs: u64, packets: u64) -> Option<Cost> {
        let before = self.before.take()?;
        let last = self.last.replace(Reading { at: now, cpu_ns, irqs, packets })?;
        let passed = now.saturating_duration_since(last.at).as_nanos();
        let all_ns = cpu_ns.checked_sub(last.cpu_ns).filter(|ns| u128::from(*ns) <= passed)?;
        let wake_ns = cpu_ns.checked_sub(before).filter(|ns| *ns <= all_ns)?;
        let wake_ns = wake_ns.saturating_sub(self.reading_ns.unwrap_or(0));
        let irqs = irqs.checked_sub(last.irqs)?;
        let packets = packets.checked_sub(last.packets)?;
        let one = (wake_ns as f64).min(OUTLIER * self.cost().wake_ns);
        decay_and_add(&mut self.sums.wake_ns, one);
        decay_and_add(&mut self.sums.wakes, 1.0);
        decay_and_add(&mut self.sums.all_ns, all_ns as f64);
        decay_and_add(&mut self.sums.irqs, irqs as f64);
        decay_and_add(&mut self.sums.packets, packets as f64);
        Some(self.cost())
    }

    /// Returns the costs from all samples so far, with the initial values included.
    fn cost(&self) -> Cost {
        let prior = Cost::default();
        let Sums { wake_ns, wakes, all_ns, irqs, packets } = self.sums;
        let wake_ns = (wake_ns + prior.wake_ns * PRIOR_WAKES) / (wakes + PRIOR_WAKES);
        let of_packets = (all_ns - irqs * wake_ns).max(0.0) + prior.packet_ns * PRIOR_PACKETS;
        let packet_ns = of_packets / (packets + PRIOR_PACKETS);
        Cost { wake_ns: wake_ns.clamp(100.0, 1e6), packet_ns: packet_ns.clamp(1.0, 1e6) }
    }
}

/// Adds a sample to a sum in which older samples weigh less.
pub(super) fn decay_and_add(sum: &mut f64, sample: f64) {
    *sum = *sum * DECAY + sample;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the costs learned from samples of 20 ms, each of `(irqs, packets)`, of a thread with
    /// these costs; the last irq of each is measured.
    fn learned(wake_ns: u64, packet_ns: u64, samples: &[(u64, u64)]) -> Cost {
        let (mut meter, mut now) = (CostMeter::default(), Instant::now());
        let (mut cpu, mut irqs, mut packets) = (0, 0, 0);
        let mut cost = None;
        for &(w, p) in samples {
            now += PERIOD;
            (irqs, packets) = (irqs + w, packets + p);
            cpu += (w - 1) * wake_ns + p * packet_ns;
            meter.falls_asleep(now, || cpu);
            assert!(meter.is_sample());
            cpu += wake_ns;
            cost = meter.woke(now, cpu, irqs, packets).or(cost);
            meter.falls_asleep(now, || unreachable!("not due"));
            assert!(!meter.is_sample());
        }
        cost.unwrap()
    }

    #[test]
    fn both_costs_are_learned_also_where_the_load_never_changes() {
        let loads = [vec![(80, 200); 50], [(80, 1000), (200, 200), (40, 4000)].repeat(17)];
        for (load, (wake, packet)) in loads.iter().zip([(25_000, 400), (8_000, 300)]) {
            let cost = learned(wake, packet, load);
            assert!((cost.wake_ns / wake as f64 - 1.0).abs() < 0.05, "{cost:?}");
            assert!((cost.packet_ns / packet as f64 - 1.0).abs() < 0.25, "{cost:?}");
        }
    }

    #[test]
    fn time_of_reading_the_clock_is_no_part_of_a_wake_up() {
        let (mut meter, mut now, mut cpu, mut cost) =
            (CostMeter::default(), Instant::now(), 0, None);
        for i in 1..=50 {
            now += PERIOD;
            // 79 of 80 wake-ups of 2 us, each with a packet of 200 ns; a reading takes 300 ns.
            cpu += 79 * 2_000 + 80 * 200;
            meter.falls_asleep(now, || {
                cpu += 300;
                cpu
            });
            cpu += 2_000 + 300;
            cost = meter.woke(now, cpu, 80 * i, 80 * i).or(cost);
        }
        let cost = cost.unwrap();
        assert!((1_990.0..2_060.0).contains(&cost.wake_ns), "{cost:?}");
        assert!((150.0..250.0).contains(&cost.packet_ns), "{cost:?}");
    }

    #[test]
    fn costs_are_never_negative_and_one_long_wake_up_counts_for_four() {
        let cheap = learned(0, 2, &[(80, 2000), (300, 20)].repeat(20));
        assert!(cheap.wake_ns >= 100.0 && cheap.packet_ns >= 1.0, "{cheap:?}");
        let (mut meter, now) = (CostMeter::default(), Instant::now());
        for (i, wake_ns) in [12_000; 50].into_iter().chain([19_000_000]).enumerate() {
            let i = i as u64;
            meter.falls_asleep(now + PERIOD * i as u32, || 20_000_000 * i);
            let cpu_ns = 20_000_000 * i + wake_ns;
            meter.woke(now + PERIOD * i as u32 + PERIOD, cpu_ns, i, 0);
        }
        assert!(meter.cost().wake_ns < 16_000.0, "{:?}", meter.cost());
    }

    #[test]
    fn clocks_that_jump_teach_nothing() {
        let (mut meter, now) = (CostMeter::default(), Instant::now());
        let mut sample = |now, before, cpu_ns, irqs| {
            meter.before = Some(before);
            meter.woke(now, cpu_ns, irqs, irqs).is_some()
        };
        let later = now + PERIOD;
        assert!(!sample(now, 900_000, 1_000_000, 0), "the first one");
        assert!(!sample(later, 800_000, 900_000, 10), "another thread's clock");
        assert!(!sample(later, 900_000, 90_000_000, 20), "more than passed");
        assert!(!sample(now, 90_000_000, 90_000_001, 30), "time went back");
        assert!(!sample(later, 90_200_000, 90_100_000, 40), "less than before the sleep");
        assert!(sample(later + PERIOD, 90_150_000, 90_200_000, 50));
        assert_eq!(meter.woke(later, 0, 0, 0), None, "not a sample");
    }

    #[test]
    fn a_thread_that_stays_awake_gives_no_sample() {
        let (mut meter, now) = (CostMeter::default(), Instant::now());
        meter.falls_asleep(now, || 1_000);
        meter.stay_awake();
        assert!(!meter.is_sample());
        meter.falls_asleep(now + RETRY, || 2_000);
        assert!(meter.is_sample(), "it is still due");
    }

    #[test]
    fn thread_that_hardly_ever_sleeps_tries_a_sample_once_in_a_millisecond() {
        let (mut meter, now, mut readings) = (CostMeter::default(), Instant::now(), 0);
        for us in 0..10_000 {
            meter.falls_asleep(now + Duration::from_micros(us), || {
                readings += 1;
                0
            });
            meter.stay_awake();
        }
        assert_eq!(readings, 2 * 10);
    }

    #[test]
    fn waking_is_half_of_the_time_where_a_packet_costs_as_much() {
        let cost = Cost { wake_ns: 4000.0, packet_ns: 1000.0 };
        assert_eq!((cost.waking_percent(4.0), cost.waking_percent(0.0)), (50.0, 100.0));
    }
}
