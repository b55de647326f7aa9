//! The settings of one queue, as the worker that owns it has them now.
//!
//! Owner: the worker, who alone writes. Anyone may read, and reads what the last order did: neither side waits,
//! because a setting is a word.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linerate_port::{Goal, Moderation};

use crate::tx_batch::TxBatch;

/// Bits of a number in the word of a moderation.
const NUMBER: u32 = 30;
/// The place of the mode in it, above its two numbers.
const MODE: u32 = 2 * NUMBER;
/// The bit of a queue whose packets wait in a device.
const GATHERS: u64 = 1 << 63;

/// A reading of one queue's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSettings {
    /// When it is looked at again.
    pub moderation: Moderation,
    /// False if that does not apply: its packets wait in no device.
    pub gathers: bool,
    /// The packets that go to its device with one doorbell.
    pub tx_batch: TxBatch,
    /// Packets that wait in its receive ring at most, as of its worker's last report; `None` if that is not
    /// known.
    pub rx_ring_len: Option<u32>,
}

/// The words behind [`QueueSettings`].
#[derive(Debug, Default)]
pub(crate) struct SettingsPage {
    moderation: AtomicU64,
    /// 0 for auto.
    tx_batch: AtomicU32,
    /// 0 if it is not known.
    rx_ring_len: AtomicU32,
}

impl SettingsPage {
    /// Stores when the queue is looked at again.
    pub fn set_moderation(&self, mode: Moderation, gathers: bool) {
        let gathers = if gathers { GATHERS } else { 0 };
        self.moderation.store(bits(mode) | gathers, Ordering::Relaxed);
    }

    /// Stores the packets of one doorbell.
    pub fn set_tx_batch(&self, cap: TxBatch) {
        let packets = if let TxBatch::Packets(packets) = cap { packets } else { 0 };
        self.tx_batch.store(packets, Ordering::Relaxed);
    }

    /// Stores the length of the device's receive ring.
    pub fn set_rx_ring_len(&self, packets: Option<u32>) {
        self.rx_ring_len.store(packets.unwrap_or(0), Ordering::Relaxed);
    }

    /// Reads them.
    pub fn read(&self) -> QueueSettings {
        let moderation = self.moderation.load(Ordering::Relaxed);
        let tx_batch = match self.tx_batch.load(Ordering::Relaxed) {
            0 => TxBatch::Auto,
            packets => TxBatch::Packets(packets),
        };
        let rx_ring_len = Some(self.rx_ring_len.load(Ordering::Relaxed)).filter(|len| *len > 0);
        let gathers = moderation & GATHERS != 0;
        QueueSettings { moderation: of_bits(moderation), gathers, tx_batch, rx_ring_len }
    }
}

/// Returns a moderation as a word; a number that no knob has becomes the greatest that there is room for.
fn bits(mode: Moderation) -> u64 {
    let (mode, a, b) = match mode {
        Moderation::Interrupt => (0, 0, 0),
        Moderation::Napi => (1, 0, 0),
        Moderation::Fixed { usecs, frames } => (2, usecs, frames),
        Moderation::Dim => (3, 0, 0),
        Moderation::Adaptive(Goal::Latency { p99_usecs }) => (4, p99_usecs, 0),
        Moderation::Adaptive(Goal::Cpu { percent }) => (5, percent, 0),
        Moderation::Busy => (6, 0, 0),
    };
    let number = |n: u32| u64::from(n).min((1 << NUMBER) - 1);
    mode << MODE | number(a) << NUMBER | number(b)
}

/// Returns the moderation of a word.
fn of_bits(bits: u64) -> Moderation {
    let number = |shift: u32| (bits >> shift & ((1 << NUMBER) - 1)) as u32;
    match bits >> MODE & 7 {
        0 => Moderation::Interrupt,
        1 => Moderation::Napi,
        2 => Moderation::Fixed { usecs: number(NUMBER), frames: number(0) },
        3 => Moderation::Dim,
        4 => Moderation::Adaptive(Goal::Latency { p99_usecs: number(NUMBER) }),
        5 => Moderation::Adaptive(Goal::Cpu { percent: number(NUMBER) }),
        _ => Moderation::Busy,
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
                let stored = QueueSettings { moderation: mode, gathers, tx_batch, rx_ring_len };
                assert_eq!(page.read(), stored);
            }
        }
    }

    #[test]
    fn number_that_no_knob_has_leaves_the_mode_as_it_is() {
        let page = SettingsPage::default();
        page.set_moderation(Moderation::Fixed { usecs: u32::MAX, frames: u32::MAX }, false);
        let most = (1 << NUMBER) - 1;
        let read = page.read();
        assert_eq!(read.moderation, Moderation::Fixed { usecs: most, frames: most });
        assert!(!read.gathers);
    }
}
