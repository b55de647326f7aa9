//! The device of a held queue: the length of its ring, which ends a hold, and the packets that it
//! gathers by itself, beside which a short hold gains nothing.
//!
//! ```text
//!  device   ─────────block├────────block├────────block├      it signals a block that is full, or after a time
//!  short    ─────────────t►a───────────t►a───────────t►a     a shorter hold finds nothing: one wake-up more a block
//!  long     ─────────────t────────────►t────────────►t       a longer one takes several blocks by one wake-up
//! ```

use std::time::Duration;

use super::moderator::{SLEEP_MIN, from_nanos};
use crate::caps::Gathers;

/// Assumed length of a ring whose length is unknown: 256, as in many devices.
pub(super) const RING_LEN: u32 = 256;
/// The longest busy wait: half of the shortest sleep that is worth its wake-up (docs/adr/0011).
const SPIN_MAX: Duration = Duration::from_micros(25);

/// The ring and the gathering of one queue's device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathering {
    device: Gathers,
    ring_len: u32,
    /// Smoothed length of a packet, in bytes.
    packet_bytes: f64,
}

impl Gathering {
    pub fn new(device: Gathers) -> Gathering {
        Gathering { device, ring_len: RING_LEN, packet_bytes: 0.0 }
    }

    /// Sets the length of the ring, in packets.
    pub fn set_ring_len(&mut self, packets: u32) {
        self.ring_len = packets;
    }

    /// Returns the length of the ring, in packets.
    pub fn ring_len(&self) -> u32 {
        self.ring_len
    }

    /// Sets what the device gathers, and forgets the length of packets.
    pub fn set_device(&mut self, device: Gathers) {
        (self.device, self.packet_bytes) = (device, 0.0);
    }

    /// Notes packets of `bytes` in all, which the device signalled.
    pub fn add(&mut self, packets: u32, bytes: u64) {
        if packets > 0 && !self.device.time.is_zero() {
            let each = bytes as f64 / f64::from(packets);
            let old = if self.packet_bytes > 0.0 { self.packet_bytes } else { each };
            self.packet_bytes = (7.0 * old + each) / 8.0;
        }
    }

    /// Returns true if a hold gathers more than the device does, at a rate of packets a nanosecond.
    pub fn pays(&self, hold: Duration, rate: f64) -> bool {
        self.device.time.is_zero() || self.bound(hold, rate).0 > self.interval(rate)
    }

    /// Shortens a hold so that at most half of the ring is full at its end, but not below
    /// [`SLEEP_MIN`] if less than three quarters arrive in that time; returns true if the rest is
    /// too short for a sleep, so that the CPU must wait busily.
    ///
    /// A sleep ends somewhat late, and a sender that finds a full ring is slower than it can be.
    /// Half, so that the sender finds room.
    pub fn bound(&self, hold: Duration, rate: f64) -> (Duration, bool) {
        if rate <= 0.0 {
            return (hold, false);
        }
        let half = from_nanos(f64::from(self.ring_len / 2) / rate);
        if hold <= half {
            return (hold, false);
        }
        let sleep_min = SLEEP_MIN.as_nanos() as f64;
        if rate * sleep_min < f64::from(self.ring_len / 4 * 3) {
            return (hold.min(half.max(SLEEP_MIN)), false);
        }
        (half, half <= SPIN_MAX)
    }

    /// Returns the time from one signal of the device to the next, at a rate of packets a
    /// nanosecond.
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
        device.set_ring_len(4096);
        assert!(!device.pays(ms(8), 1e-9) && device.pays(ms(8), 1e-5));
        assert!(Gathering::new(Gathers::NOTHING).pays(Duration::ZERO, 1.0));
    }
}
