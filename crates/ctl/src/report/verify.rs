//! The result of verifying sinks.

use linerate_datapath::PortStats;
use linerate_port::Verified;

#[cfg(feature = "json")]
use serde::Serialize;

/// Result of verifying sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Verify {
    /// Stamped packets received.
    pub packets: u64,
    /// Sequence numbers that never arrived, below the highest received.
    pub lost: u64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Packets that arrived more than once.
    pub duplicated: u64,
    /// Packets so late that they cannot be checked for duplicates.
    pub late: u64,
    /// Packets with a changed byte.
    pub corrupted: u64,
    /// Packets without a stamp, which cannot be verified.
    pub foreign: u64,
}

impl Verify {
    pub(super) fn sum(ports: &[PortStats]) -> Option<Verify> {
        ports.iter().filter_map(|p| p.verified).map(Verify::from).reduce(Verify::plus)
    }

    fn plus(self, more: Verify) -> Verify {
        Verify {
            packets: self.packets + more.packets,
            // Saturate: a frame from an untrusted sender can carry any sequence number.
            lost: self.lost.saturating_add(more.lost),
            reordered: self.reordered + more.reordered,
            duplicated: self.duplicated + more.duplicated,
            late: self.late + more.late,
            corrupted: self.corrupted + more.corrupted,
            foreign: self.foreign + more.foreign,
        }
    }

    /// Returns the number of packets lost, reordered, duplicated (as far as known) or corrupted.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.lost.saturating_add(self.reordered + self.duplicated + self.late + self.corrupted)
    }
}

impl From<Verified> for Verify {
    fn from(found: Verified) -> Verify {
        Verify {
            packets: found.packets,
            lost: found.lost,
            reordered: found.reordered,
            duplicated: found.duplicated,
            late: found.late,
            corrupted: found.corrupted,
            foreign: found.foreign,
        }
    }
}
