//! The figures of one queue that its worker publishes, because only the worker can ask the device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Instant;

use linerate_port::{
    Copies, Counters, DriverCounts, DriverQueue, Health, HealthKind, Moderated, Pace, Verified,
};

use crate::egress::Egress;
use crate::qdisc::QdiscCounts;
use crate::settings::SettingsPage;
use crate::waits::FlushPage;

/// Figures that only a queue's owner can read from the device; the worker updates them when it has
/// time.
#[derive(Debug, Default)]
pub(crate) struct QueueSlot {
    pub rx_missed: AtomicU64,
    pub rx_nombuf: AtomicU64,
    pub flushes: FlushPage,
    /// The queue's settings; the worker writes them when one changes.
    pub settings: SettingsPage,
    pub report: Mutex<DeviceReport>,
}

/// The figures that a device reports of itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct DeviceReport {
    pub health: Health,
    pub copies: Copies,
    pub counts: DriverCounts,
    pub verified: Option<Verified>,
    pub pace: Option<Pace>,
    pub moderation: Moderated,
    pub qdisc: Option<QdiscCounts>,
}

impl DeviceReport {
    fn of(
        ops: &mut DriverQueue,
        health: Health,
        counters: &Counters,
        egress: &Egress,
    ) -> DeviceReport {
        let Counters { driver, verified, pace, .. } = *counters;
        let copies = ops.caps().copies;
        let moderation = ops.moderator().moderated();
        let qdisc = egress.qdisc_counts();
        DeviceReport { health, copies, counts: driver, verified, pace, moderation, qdisc }
    }
}

impl QueueSlot {
    /// Stores the device's counts so far, and those of the transmit side.
    fn count(&self, counters: &Counters, egress: &Egress) {
        self.flushes.set(&egress.flushes);
        self.rx_missed.store(counters.rx_missed, Ordering::Relaxed);
        self.rx_nombuf.store(counters.rx_nombuf, Ordering::Relaxed);
    }

    /// Reads a device's figures and publishes them. Never waits: returns false if a reader has the
    /// lock, and the next call publishes them.
    pub fn publish(&self, ops: &mut DriverQueue, egress: &Egress) -> bool {
        let mut known = match self.report.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let (counters, health) = (ops.counters(), ops.health());
        *known = DeviceReport::of(ops, health, &counters, egress);
        self.count(&counters, egress);
        self.settings.set_rx_ring_len(ops.caps().rx_ring_len);
        true
    }

    /// Closes the device of a queue whose worker ends, until `until` at most, and publishes the
    /// queue's last figures; waits if a reader has the lock. With `None` the device is not closed.
    pub fn conclude(&self, ops: &mut DriverQueue, egress: &Egress, until: Option<Instant>) {
        // A closed device is no longer up, and has counted the packets that the close has lost.
        let mut health = ops.health();
        if let Some(until) = until {
            ops.close(until);
            // A device may fail at the close: a capture without packets that cannot be written.
            if ops.health_kind() == HealthKind::Failed {
                health = ops.health();
            }
        }
        let counters = ops.counters();
        let report = DeviceReport::of(ops, health, &counters, egress);
        self.count(&counters, egress);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Returns the last published report of the device; waits while the worker publishes one.
    pub fn report(&self) -> DeviceReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
