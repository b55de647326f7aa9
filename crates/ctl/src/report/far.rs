//! The report of a second process, which receives a run's packets.

#[cfg(feature = "json")]
use serde::Serialize;

use super::Passed;

/// Result of a second process that maps this process's packet memory.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct FarReport {
    /// The process's id.
    pub process: u32,
    /// Packets and bytes that the process received from the shared memory.
    pub received: Passed,
    /// True if the process's ledger balances with no packet dropped and none in flight.
    pub whole: bool,
    /// Packets that the process's sink verified.
    pub verified: u64,
    /// Bytes that the process's port copied from the shared memory; `None` if unknown.
    pub copied_bytes: Option<u64>,
    /// CPU time of the process, from the start of its workers to their end.
    pub cpu_seconds: f64,
}
