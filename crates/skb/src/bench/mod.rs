//! What a packet buffer costs: loops from its allocation to its release, timed.
//!
//! For benchmarks, and only built for them (feature `bench`): the program that compares with a peer
//! and the one that compares with itself run the same loops.

mod cases;
mod cross;
mod options;
mod timer;

pub use cases::{CASES, Case, FRAMES, FRAMES_AT_MOST, GENERAL, named, pool, run};
pub use options::{Consumer, Options, Producer, number};
pub use timer::{Sample, Timer};

/// Packets allocated and freed at once.
pub const BURST: usize = 32;
