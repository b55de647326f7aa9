//! What a queue can say of its packets beyond counting them: how a source kept its pace, what a sink
//! found when it verified them.

use std::fmt;

/// How a paced run went.
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

/// What a sink found.
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
