//! Search for the highest rate that a path carries without loss (NDR), or with a little loss (PDR).
//!
//! [`search`] decides what is tried next and what the trials so far mean; it has no clock and no
//! device. [`Path`] makes a trial: a generator, the path, a sink that verifies.
//!
//! ```text
//!   gen ── A   path under test   B ── sink         devices: whatever joins A and B
//!   gen ── ring:a ── worker ── ring:b ── sink      rings: our own worker
//! ```
//!
//! Source: "Multiple Loss Ratio Search", draft-ietf-bmwg-mlrsearch-15, 2025; RFC 2544, section
//!         26.1.

mod bounds;
mod search;
mod setup;

pub use bounds::Goal;
pub use bounds::{Class, classify};
pub use bounds::{GoalResult, Outcome, Trial};
pub use search::{Disturbed, Limits, Prober, Step, search};
pub use setup::Path;
pub use setup::Setup;
