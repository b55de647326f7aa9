//! Placement of threads on CPUs: proposes places from the machine's topology, measures them, and
//! keeps those that are better.
//!
//! ```text
//!   topology.rs   sockets, L3 caches, cores, siblings, small cores, as /sys describes them
//!   distance.rs   round trips of a line between CPUs, measured
//!   search.rs     places one after the other, by single readings
//!   proposals.rs  the places that are tried
//!   comparison.rs the best of them beside the start, in turn
//!   engine.rs     a running engine's workers and interrupts: CPU a packet, remote frees, hand-overs
//! ```
//!
//! A [`Gauge`] represents the things to place and the way to measure them: an engine's workers, or
//! a model in a test.

mod comparison;
mod distance;
mod engine;
mod proposals;
mod search;
#[cfg(test)]
mod tests;
mod topology;

pub use distance::{RoundTrip, round_trips};
pub use engine::{EngineGauge, Meter, PlacementReport};
pub use search::{Found, Gauge, Reading, Search, Tried};
pub use topology::{Cpu, Near, Topology};

/// The places: for each thing a CPU, or `None` if it keeps its original CPUs.
pub type Places = Vec<Option<usize>>;

/// Formats places for a reader: `worker 0 on 1, worker 1 as it was`.
pub(crate) fn describe(names: &[String], places: &[Option<usize>]) -> String {
    let one = |(name, cpu): (&String, &Option<usize>)| match cpu {
        Some(cpu) => format!("{name} on CPU {cpu}"),
        None => format!("{name} as it was"),
    };
    names.iter().zip(places).map(one).collect::<Vec<_>>().join(", ")
}
