//! The report of one phase of a run.

#[cfg(feature = "json")]
use serde::Serialize;

use super::Passed;

/// A phase of a run, with its own rate.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PhaseReport {
    /// The rate requested in the phase: `paced` or `flat out`.
    pub name: &'static str,
    /// Wall time of the phase.
    pub seconds: f64,
    /// Packets and bytes sent in the phase by ports other than rings.
    pub sent: Passed,
    /// CPU time of the whole process.
    pub cpu_seconds: f64,
    /// CPU time of the second process; `None` without one, or if the kernel does not report it.
    pub far_cpu_seconds: Option<f64>,
    /// Share of a CPU, in per cent, that the system of post 000 used at this rate; `None` for other
    /// rates.
    pub post_cpu_pct: Option<f64>,
    /// Median lateness of packets against their intended times; `None` without a rate, or with too
    /// few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of the lateness.
    pub late_p99_ns: Option<u64>,
}
