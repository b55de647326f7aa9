//! The packets that a device gathers by itself, and the decision whether a hold gathers more.
//!
//! ```text
//!  device   ─────────block├────────block├────────block├      it signals a block that is full, or after a time
//!  short    ─────────────t►a───────────t►a───────────t►a     a shorter hold finds nothing: one wake-up more a block
//!  long     ─────────────t────────────►t────────────►t       a longer one takes several blocks by one wake-up
//! ```

use std::time::Duration;

use super::moderator::{bound, from_nanos};
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
        self.device.time.min(from_nanos(f64::from(self.device.bytes) / bytes_per_ns))
    }

    /// Returns the longest time for which the device gathers packets.
    pub fn time(&self) -> Duration {
        self.device.time
    }
}
