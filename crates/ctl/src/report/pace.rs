//! The report of `gen`: a path's report, and how its generator kept the pace.

use linerate_port::Pace;

#[cfg(feature = "json")]
use serde::Serialize;

use super::ForwardReport;

/// The report of `gen`: the report of its path, and the generator's pace.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct GenReport {
    /// The generator's pace: packets requested, and packets sent.
    pub pace: PaceReport,
    /// The report of the path from the generator.
    #[cfg_attr(feature = "json", serde(flatten))]
    pub path: ForwardReport,
}

/// A generator's pace: packets requested, and packets sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PaceReport {
    /// Number of requested packets; `None` if the request does not limit it.
    pub asked: Option<u64>,
    /// Packets that left the generator.
    pub sent: u64,
    /// Requested packets that were not sent; `None` without a requested number.
    pub unsent: Option<u64>,
    /// Median lateness against the intended time; `None` without a rate, or with too few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of the lateness.
    pub late_p99_ns: Option<u64>,
}

impl GenReport {
    /// Adds the pace to the path's report; `asked` is the number of requested packets.
    #[must_use]
    pub fn new(path: ForwardReport, asked: Option<u64>, pace: Option<Pace>) -> GenReport {
        let sources = path.ports.iter().filter(|port| port.flags.generates);
        let sent = sources.map(|port| port.rx.packets).sum();
        let pace = PaceReport {
            asked,
            sent,
            unsent: asked.map(|asked| asked.saturating_sub(sent)),
            late_p50_ns: pace.and_then(|p| p.late_p50_ns),
            late_p99_ns: pace.and_then(|p| p.late_p99_ns),
        };
        GenReport { pace, path }
    }
}
