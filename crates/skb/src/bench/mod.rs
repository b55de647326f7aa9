//! The cost of a packet buffer: timed loops from its allocation to its release.
//!
//! Only built with the feature `bench`, for the lab: its experiment `peers-buffers` runs a case
//! here and the same case of a peer in turn.

mod cases;
mod cross;
mod timer;

pub use cases::{CASES, Case, named, pool, run};
pub use timer::{Sample, Timer};

/// Number of packets that are allocated, and freed, together.
pub const BURST: usize = 32;
