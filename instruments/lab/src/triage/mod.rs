//! From a run of transmit batches to one named cause of its losses and disorder: core, driver, device or receiver.
//!
//! ```text
//!  taken.rs   what was seen: of a kept run, and in windows that are run for it     needs root
//!  rules.rs   what that says: pure, and the same for both
//!  told.rs    the answer as text
//! ```
//!
//! Post 002 asks three questions to find its own fault: another device, a cap of 2, the receiver's counters.
//! They are asked here, too. Before them come counts that the post did not have: what entered each part of the
//! way, less what left it.

mod rules;
mod taken;
mod told;

use std::collections::BTreeMap;

use serde::Serialize;

pub use rules::judge;
pub use taken::{Case, Extra};

/// A part of the way that can be at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The engine, between its ports.
    Core,
    /// The engine's code for a device.
    Driver,
    /// An interface, its queue, its ring or its wire.
    Device,
    /// The host that gets the packets, and its programs.
    Receiver,
}

/// The cap of what was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// One packet: no batches.
    One,
    /// Two, as the post has it.
    Two,
    /// The case's own.
    Batch,
}

/// The sums over all windows with one device and one cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// The engine's ports: `xdp`, `packet`.
    pub device: String,
    /// True if they are those of the case, and not the ones to compare them with.
    pub own: bool,
    /// The cap on its batches.
    pub cap: Cap,
    /// Packets that the engine sent.
    pub packets: u64,
    /// Figures of the scenario `host`, and [`LATE_AFTER`].
    pub sums: BTreeMap<String, f64>,
}

/// Datagrams that were read after a later one of their flow, less those that the engine sent so: known where
/// windows were run for it.
pub const LATE_AFTER: &str = "late_after";

/// A cause and what speaks for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The part at fault.
    pub cause: Cause,
    /// In sentences.
    pub why: String,
    /// Packets of a million, with batches.
    pub per_million: f64,
    /// The same with a cap of one packet; `None` if that was not run.
    pub without_per_million: Option<f64>,
    /// The same with batches on the other device; `None` if that was not run.
    pub elsewhere_per_million: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The causes, the one with most packets first; none if nothing is wrong, or nothing can be told.
    pub causes: Vec<Finding>,
    /// Questions that are open, and what would answer them.
    pub untold: Vec<String>,
}

/// A case with its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Triage {
    /// The run.
    pub run: String,
    /// The cell of it.
    pub at: BTreeMap<String, String>,
    /// The answer.
    pub verdict: Verdict,
    /// The counts that the answer rests on.
    pub seen: Vec<Seen>,
}

impl Cause {
    /// Returns its word.
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
    #[must_use]
    pub fn per_million(&self, name: &str) -> Option<f64> {
        let sum = self.sums.get(name)?;
        Some(1e6 * sum / self.packets.max(1) as f64)
    }
}
