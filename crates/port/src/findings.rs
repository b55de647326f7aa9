//! Results of a queue beyond packet counts: the pace of a source, and the errors that a verifying sink
//! found.

use std::fmt;

/// Result of a paced run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// Packets that were due.
    pub asked: u64,
    /// Packets that left.
    pub sent: u64,
    /// Packets that were due and did not leave.
    pub unsent: u64,
    /// Median lateness against the intended time; `None` from too few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of it; `None` from too few packets.
    pub late_p99_ns: Option<u64>,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| match ns {
            Some(ns) => format!("{:.1} us", ns as f64 / 1e3),
            None => "-".into(),
        };
        write!(
            f,
            "asked {}  sent {}  unsent {}  late p50 {}  p99 {}",
            self.asked,
            self.sent,
            self.unsent,
            us(self.late_p50_ns),
            us(self.late_p99_ns)
        )
    }
}

/// Result of a verifying sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Stamped packets that came.
    pub packets: u64,
    /// Sequence numbers that never came, below the highest that did.
    pub lost: u64,
    /// Packets that came after a later one of their flow.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicated: u64,
    /// Packets too far behind, more than 64 numbers, to tell whether they came before. Their
    /// numbers stay in `lost` if they were there.
    pub late: u64,
    /// Stamped packets with a byte that was not sent.
    pub corrupted: u64,
    /// Packets without a stamp.
    pub foreign: u64,
}
