//! The packets that a device gathers by itself, and the decision whether a hold gathers more.
//!
//! ```text
//!  device   ─────────block├────────block├────────block├      it signals a block that is full, or after a time
//!  short    ─────────────t►a───────────t►a───────────t►a     a shorter hold finds nothing: one wake-up more a block
//!  long     ─────────────t────────────►t────────────►t       a longer one takes several blocks by one wake-up
//! ```

use std::time::Duration;

use super::moderator::bound;
use crate::caps::Gathers;

/// The gathering of one queue's device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathering {
    device: Gathers,
    /// Smoothed length of a packet, in bytes.
    packet_bytes: f64,
}

impl Gathering {
    pub fn new(device: Gathers) -> Gathering {
        Gathering { device, packet_bytes: 0.0 }
    }

    /// Notes packets of `bytes` in all, which the device signalled.
    pub fn add(&mut self, packets: u32, bytes: u64) {
        if packets > 0 && !self.device.time.is_zero() {
            let each = bytes as f64 / f64::from(packets);
            let old = if self.packet_bytes > 0.0 { self.packet_bytes } else { each };
            self.packet_bytes = (7.0 * old + each) / 8.0;
        }
    }

    /// Returns true if a hold in a ring of `ring_len` packets gathers more than the device does, at a
    /// rate of packets a nanosecond.
    pub fn pays(&self, hold: Duration, rate: f64, ring_len: u32) -> bool {
        self.device.time.is_zero() || bound(hold, rate, ring_len).0 > self.interval(rate)
    }

    /// Returns the time from one signal of the device to the next, at a rate of packets a nanosecond.
    fn interval(&self, rate: f64) -> Duration {
        let bytes_per_ns = rate * self.packet_bytes;
        if bytes_per_ns <= 0.0 {
            return self.device.time;
        }
        let full_ns = f64::from(self.device.bytes) / bytes_per_ns;
        Duration::from_nanos(full_ns.min(self.device.time.as_nanos() as f64) as u64)
    }

    /// Returns the longest time for which the device gathers packets.
    pub fn time(&self) -> Duration {
        self.device.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_signals_after_its_time_or_a_full_block_if_that_is_sooner() {
        let ms = Duration::from_millis;
        let mut device = Gathering::new(Gathers { time: ms(20), bytes: 1000 });
        assert_eq!(device.interval(1e-3), ms(20), "no packet has come");
        device.add(10, 1000);
        for (rate, interval) in
            [(0.0, ms(20)), (1e-9, ms(20)), (1e-6, ms(10)), (1e-4, ms(10) / 100)]
        {
            assert_eq!(device.interval(rate), interval, "{rate}");
        }
        assert!(!device.pays(ms(8), 1e-9, 4096) && device.pays(ms(8), 1e-5, 4096));
        assert!(Gathering::new(Gathers::NOTHING).pays(Duration::ZERO, 1.0, 64));
    }
}
