//! The present settings of one queue, published by the worker that owns it.
//!
//! Owner: the worker; only it writes. Any thread may read, and gets the result of the last order.
//! Neither side waits, because each setting is one atomic word.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linerate_port::Moderation;
use linerate_port::moderation::word;

use crate::qdisc::BitRate;
use crate::tx_batch::TxBatch;

/// The bit above a moderation's word that is set if the moderation lets packets gather in a device.
const GATHERS: u64 = 1 << 63;

/// A reading of one queue's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSettings {
    /// The moderation: when the queue is polled again.
    pub moderation: Moderation,
    /// False if the moderation has no effect, because the queue's packets wait in no device.
    pub gathers: bool,
    /// The most packets that go to the queue's device with one doorbell.
    pub tx_batch: TxBatch,
    /// The rate to which the queue's discipline limits packets; `None` if it limits none.
    pub shape: Option<BitRate>,
    /// The most packets that wait in the queue's receive ring, as of its worker's last report;
    /// `None` if unknown.
    pub rx_ring_len: Option<u32>,
}

/// The atomic words from which [`QueueSettings`] is read.
#[derive(Debug, Default)]
pub(crate) struct SettingsPage {
    moderation: AtomicU64,
    /// The cap on packets for one doorbell; 0 for auto.
    tx_batch: AtomicU32,
    /// The rate in bits a second; 0 if there is none.
    shape_bps: AtomicU64,
    /// The length of the receive ring; 0 if unknown.
    rx_ring_len: AtomicU32,
}

impl SettingsPage {
    /// Stores the moderation, and whether it lets packets gather.
    pub fn set_moderation(&self, mode: Moderation, gathers: bool) {
        let gathers = if gathers { GATHERS } else { 0 };
        self.moderation.store(word::of(mode) | gathers, Ordering::Relaxed);
    }

    /// Stores the cap on packets for one doorbell.
    pub fn set_tx_batch(&self, cap: TxBatch) {
        let packets = if let TxBatch::Packets(packets) = cap { packets } else { 0 };
        self.tx_batch.store(packets, Ordering::Relaxed);
    }

    /// Stores the rate to which the discipline limits packets.
    pub fn set_shape(&self, rate: Option<BitRate>) {
        self.shape_bps.store(rate.map_or(0, BitRate::bps), Ordering::Relaxed);
    }

    /// Stores the length of the device's receive ring.
    pub fn set_rx_ring_len(&self, packets: Option<u32>) {
        self.rx_ring_len.store(packets.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the settings as last stored.
    pub fn read(&self) -> QueueSettings {
        let moderation = self.moderation.load(Ordering::Relaxed);
        let tx_batch = match self.tx_batch.load(Ordering::Relaxed) {
            0 => TxBatch::Auto,
            packets => TxBatch::Packets(packets),
        };
        let rx_ring_len = Some(self.rx_ring_len.load(Ordering::Relaxed)).filter(|len| *len > 0);
        let shape_bps = self.shape_bps.load(Ordering::Relaxed);
        let shape = (shape_bps > 0).then(|| BitRate::from_bps(shape_bps));
        let (moderation, gathers) = (word::mode(moderation), moderation & GATHERS != 0);
        QueueSettings { moderation, gathers, tx_batch, shape, rx_ring_len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_stored() {
        let page = SettingsPage::default();
        for text in ["interrupt", "napi", "fixed:usecs=10000,frames=65536", "dim", "busy"]
            .into_iter()
            .chain(["adaptive:latency=10000us", "adaptive:cpu=100%", "fixed:usecs=1,frames=1"])
        {
            for (gathers, cap) in [(true, "auto"), (false, "1"), (true, "1024")] {
                let (mode, tx_batch) = (text.parse().unwrap(), cap.parse().unwrap());
                page.set_moderation(mode, gathers);
                page.set_tx_batch(tx_batch);
                let rx_ring_len = gathers.then_some(512);
                page.set_rx_ring_len(rx_ring_len);
                let shape = gathers.then(|| BitRate::from_bps(10_000_000));
                page.set_shape(shape);
                let stored =
                    QueueSettings { moderation: mode, gathers, tx_batch, shape, rx_ring_len };
                assert_eq!(page.read(), stored);
            }
        }
    }
}
