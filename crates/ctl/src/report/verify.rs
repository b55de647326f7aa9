//! The combined result of a run's verifying sinks.

use linerate_datapath::PortStats;
use linerate_port::Verified;

/// Returns the sum of the results of all ports; `None` without a verifying sink.
pub(super) fn sum(ports: &[PortStats]) -> Option<Verified> {
    ports.iter().filter_map(|port| port.verified).reduce(plus)
}

fn plus(mut sum: Verified, more: Verified) -> Verified {
    sum.packets += more.packets;
    // Saturate: a frame from an untrusted sender can carry any sequence number.
    sum.lost = sum.lost.saturating_add(more.lost);
    sum.reordered += more.reordered;
    sum.duplicated += more.duplicated;
    sum.late += more.late;
    sum.corrupted += more.corrupted;
    sum.foreign += more.foreign;
    sum
}

/// Returns the number of packets lost, reordered, duplicated (as far as known) or corrupted.
pub(super) fn faults(found: &Verified) -> u64 {
    found.lost.saturating_add(found.reordered + found.duplicated + found.late + found.corrupted)
}
