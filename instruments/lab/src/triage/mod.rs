//! Triage of a run with transmit batches: names the cause of losses and disorder among core,
//! driver, device and receiver.
//!
//! ```text
//!  taken.rs   what was seen: of a kept run, and in windows that are run for it     needs root
//!  rules.rs   what that says: pure, and the same for both
//!  told.rs    the answer as text
//! ```
//!
//! Post 002 asks three questions to find its own fault: another device, a cap of 2, the receiver's
//! counters. They are asked here, too. Before them come counts that the post did not have: what
//! entered each part of the way, less what left it.

mod rules;
mod taken;
mod told;

use std::collections::BTreeMap;

use serde::Serialize;

pub use rules::judge;
pub use taken::{Case, Extra};

/// A part of the path that can be at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The engine, between its ports.
    Core,
    /// The engine's code for a device.
    Driver,
    /// An interface, its queue, its ring or its wire.
    Device,
    /// The receiving host and its programs.
    Receiver,
}

/// The cap on batches of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// One packet: no batches.
    One,
    /// Two packets, as the post recommends.
    Two,
    /// The cap of the case.
    Batch,
}

/// The sums over all windows with one device and one cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// The driver of the engine's ports: `xdp`, `packet`.
    pub device: String,
    /// True if the device is that of the case, false if it is the one for comparison.
    pub own: bool,
    /// The cap on batches.
    pub cap: Cap,
    /// Packets that the engine sent.
    pub packets: u64,
    /// Those of them in windows of numbered datagrams.
    pub load_packets: u64,
    /// Figures of the scenario `host`, and [`LATE_AFTER`].
    pub sums: BTreeMap<String, f64>,
    /// True if the engine's ledger accounts for every packet of these windows.
    pub balanced: bool,
}

/// Datagrams read after a later one of their flow, without those that the engine itself sent in
/// that order: known only if windows were run for it.
pub const LATE_AFTER: &str = "late_after";

/// A cause with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The part at fault.
    pub cause: Cause,
    /// The evidence, in sentences.
    pub why: String,
    /// Packets at fault in a million, with batches.
    pub per_million: f64,
    /// The same count with a cap of one packet; `None` if that was not run.
    pub without_per_million: Option<f64>,
    /// The same count with batches on the other device; `None` if that was not run.
    pub elsewhere_per_million: Option<f64>,
}

/// The result of a triage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The causes, the one of most packets first; empty if nothing is wrong or the data do not
    /// decide.
    pub causes: Vec<Finding>,
    /// Open questions, with the measurements that would answer them.
    pub untold: Vec<String>,
}

/// A case with its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Triage {
    /// The name of the run.
    pub run: String,
    /// The factor values of the case's cell.
    pub at: BTreeMap<String, String>,
    /// The result.
    pub verdict: Verdict,
    /// The observations on which the result is based.
    pub seen: Vec<Seen>,
    /// Number of the stored run's pairs that are in no observation, because they were not admitted
    /// or had their CPUs at another distance.
    pub left_out: usize,
}

impl Triage {
    /// Returns true if the ledger of each observation accounts for every packet.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.seen.iter().all(|seen| seen.balanced)
    }
}

impl Cause {
    /// Returns the word for the cause.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Core => "core",
            Cause::Driver => "driver",
            Cause::Device => "device",
            Cause::Receiver => "receiver",
        }
    }
}

impl Seen {
    /// Returns a figure for a million packets; `None` if it was not counted.
    ///
    /// The packets are those of the windows that can have such events: of datagrams for
    /// [`LATE_AFTER`], of the other workload for TCP's figures, of both for the rest.
    #[must_use]
    pub fn per_million(&self, name: &str) -> Option<f64> {
        let sum = self.sums.get(name)?;
        let packets = match name {
            LATE_AFTER => self.load_packets,
            _ if name.starts_with("tcp_") => self.packets.saturating_sub(self.load_packets),
            _ => self.packets,
        };
        Some(1e6 * sum / packets.max(1) as f64)
    }
}
