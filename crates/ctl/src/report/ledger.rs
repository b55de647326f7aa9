//! The ledger of a run, with its reasons of drops by name.

use std::collections::BTreeMap;

use linerate_datapath::Stopped;

#[cfg(feature = "json")]
use serde::Serialize;

/// The account of all packets: `received + created = sent + consumed + dropped + in_flight`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct LedgerReport {
    /// Packets received from a device.
    pub received: u64,
    /// Packets made by the program.
    pub created: u64,
    /// Packets accepted by a device.
    pub sent: u64,
    /// Packets that the program consumed.
    pub consumed: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Packets still in flight on the path.
    pub in_flight: u64,
    /// True if the two sides are equal.
    pub balanced: bool,
}

impl LedgerReport {
    pub(super) fn of(stopped: &Stopped) -> LedgerReport {
        let ledger = &stopped.ledger;
        let dropped = by_name(ledger.dropped.iter().map(|(reason, n)| (reason.name(), *n)));
        LedgerReport {
            received: ledger.received,
            created: ledger.created,
            sent: ledger.sent,
            consumed: ledger.consumed,
            dropped,
            in_flight: ledger.in_flight,
            // The workers have ended: no packet moves, so every difference is an error.
            balanced: ledger.difference() == 0,
        }
    }

    /// Returns the number of packets dropped, over all reasons.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

/// Returns the sum of the packets of each reason's name.
pub(crate) fn by_name(
    dropped: impl Iterator<Item = (&'static str, u64)>,
) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for (name, n) in dropped {
        *sums.entry(name).or_default() += n;
    }
    sums
}
