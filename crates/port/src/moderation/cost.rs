//! The cost of a wake-up and of a packet on this machine, from samples of a thread's CPU clock.
//!
//! CPU time = wake-ups × a + packets × b, by least squares over samples that lose weight with age. Where
//! load and moderation stay the same, the samples tell only the sum: a prior decides between the two.

use std::time::{Duration, Instant};

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(20);
/// Weight of a sample that the next one leaves.
const DECAY: f64 = 0.96;
/// Wake-ups and packets of the prior, as if they had been observed.
const PRIOR: [f64; 2] = [10.0, 200.0];

/// CPU time of a wake-up and of a packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Nanoseconds that a sleep and its end take.
    pub wake_ns: f64,
    /// Nanoseconds that a packet takes.
    pub packet_ns: f64,
}

impl Default for Cost {
    /// Returns a virtual machine's, until something is learned.
    fn default() -> Cost {
        Cost { wake_ns: 12_000.0, packet_ns: 500.0 }
    }
}

impl Cost {
    /// Returns the part of CPU time that goes into waking, in per cent.
    #[must_use]
    pub fn waking_percent(&self, packets_per_irq: f64) -> f64 {
        100.0 * self.wake_ns / (self.wake_ns + packets_per_irq * self.packet_ns)
    }
}

/// A reading of a thread's clocks and counters.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    cpu_ns: u64,
    irqs: u64,
    packets: u64,
}

/// Learns a thread's [`Cost`] from readings that its owner takes now and then.
#[derive(Debug)]
pub struct CostMeter {
    last: Option<Reading>,
    /// Decayed sums of squares and products: wake-ups², wake-ups × packets, packets².
    squares: [f64; 3],
    /// Decayed sums of CPU time × wake-ups, and × packets.
    products: [f64; 2],
}

impl Default for CostMeter {
    fn default() -> CostMeter {
        CostMeter { last: None, squares: [0.0; 3], products: [0.0; 2] }
    }
}

impl CostMeter {
    /// Returns true if a sample is due.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last.at) >= PERIOD)
    }

    /// Takes a sample: the thread's CPU clock, its irqs and packets so far. Returns the cost if it learned
    /// something.
    ///
    /// A sample that cannot be of one thread is not used: more CPU time than time, or less than none.
    pub fn sample(&mut self, now: Instant, cpu_ns: u64, irqs: u64, packets: u64) -> Option<Cost> {
        let last = self.last.replace(Reading { at: now, cpu_ns, irqs, packets })?;
        let passed = now.saturating_duration_since(last.at).as_nanos();
        let cpu_ns = cpu_ns.checked_sub(last.cpu_ns).filter(|ns| u128::from(*ns) <= passed)?;
        let irqs = irqs.checked_sub(last.irqs)?;
        let packets = packets.checked_sub(last.packets)?;
        if irqs + packets == 0 {
            return None;
        }
        let (w, p, c) = (irqs as f64, packets as f64, cpu_ns as f64);
        for (sum, one) in self.squares.iter_mut().zip([w * w, w * p, p * p]) {
            *sum = *sum * DECAY + one;
        }
        for (sum, one) in self.products.iter_mut().zip([w * c, p * c]) {
            *sum = *sum * DECAY + one;
        }
        Some(self.fit())
    }

    /// Solves the normal equations, the prior included; neither cost is negative.
    fn fit(&self) -> Cost {
        let prior = Cost::default();
        let [w2, p2] = PRIOR.map(|n| n * n);
        let [ww, wp, pp] = [self.squares[0] + w2, self.squares[1], self.squares[2] + p2];
        let [wc, pc] =
            [self.products[0] + w2 * prior.wake_ns, self.products[1] + p2 * prior.packet_ns];
        // Positive, by the prior.
        let determinant = ww * pp - wp * wp;
        let (wake_ns, packet_ns) =
            ((wc * pp - pc * wp) / determinant, (pc * ww - wc * wp) / determinant);
        if packet_ns < 1.0 {
            return Cost { wake_ns: (wc / ww).clamp(100.0, 1e6), packet_ns: 1.0 };
        }
        if wake_ns < 100.0 {
            return Cost { wake_ns: 100.0, packet_ns: (pc / pp).clamp(1.0, 1e6) };
        }
        Cost { wake_ns: wake_ns.min(1e6), packet_ns: packet_ns.min(1e6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of 20 ms of a thread with these costs; `(irqs, packets)` of each.
    fn learned(wake_ns: u64, packet_ns: u64, samples: &[(u64, u64)]) -> Cost {
        let (mut meter, mut now) = (CostMeter::default(), Instant::now());
        let (mut cpu, mut irqs, mut packets) = (0, 0, 0);
        let mut cost = None;
        assert_eq!(meter.sample(now, 0, 0, 0), None);
        for &(w, p) in samples {
            now += PERIOD;
            assert!(meter.is_due(now));
            (irqs, packets) = (irqs + w, packets + p);
            cpu += w * wake_ns + p * packet_ns;
            cost = meter.sample(now, cpu, irqs, packets).or(cost);
            assert!(!meter.is_due(now));
        }
        cost.unwrap()
    }

    #[test]
    fn both_costs_are_learned_where_the_load_changes() {
        let samples = [(80, 1000), (80, 2000), (200, 200), (40, 4000)].repeat(10);
        let cost = learned(8000, 300, &samples);
        assert!((7900.0..8100.0).contains(&cost.wake_ns), "{cost:?}");
        assert!((290.0..310.0).contains(&cost.packet_ns), "{cost:?}");
    }

    #[test]
    fn a_steady_load_tells_the_sum_and_nothing_becomes_negative() {
        let cost = learned(16_000, 400, &[(80, 200); 50]);
        let sum = 80.0 * cost.wake_ns + 200.0 * cost.packet_ns;
        let real = 80.0 * 16_000.0 + 200.0 * 400.0;
        assert!((sum / real - 1.0).abs() < 0.02, "{cost:?}");
        let cheap = learned(0, 2, &[(80, 2000), (300, 20)].repeat(20));
        assert!(cheap.wake_ns >= 100.0 && cheap.packet_ns >= 1.0, "{cheap:?}");
    }

    #[test]
    fn clocks_that_jump_teach_nothing() {
        let (mut meter, now) = (CostMeter::default(), Instant::now());
        let later = now + PERIOD;
        assert_eq!(meter.sample(now, 1_000_000, 0, 0), None);
        assert_eq!(meter.sample(later, 900_000, 10, 10), None, "another thread's clock");
        assert_eq!(meter.sample(later, 90_000_000, 20, 20), None, "more than passed");
        assert_eq!(meter.sample(now, 90_000_001, 30, 30), None, "time went back");
        assert!(meter.sample(later, 90_100_000, 40, 40).is_some());
    }

    #[test]
    fn waking_is_half_of_the_time_where_a_packet_costs_as_much() {
        let cost = Cost { wake_ns: 4000.0, packet_ns: 1000.0 };
        assert_eq!((cost.waking_percent(4.0), cost.waking_percent(0.0)), (50.0, 100.0));
    }
}
