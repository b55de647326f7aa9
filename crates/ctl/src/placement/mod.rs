//! Placement of threads on CPUs: proposes places from the machine's topology, applies and measures
//! them, and keeps better ones.
//!
//! ```text
//!   topology.rs   sockets, cores and their siblings, small cores, as /sys describes them
//!   distance.rs   round trips of a line between CPUs, measured
//!   search.rs     proposals, one after the other, against the spread of the start itself
//!   engine.rs     a running engine's workers and interrupts: CPU a packet, remote frees, hand-overs
//! ```
//!
//! What is placed and by what it is judged is behind [`Gauge`]: an engine's workers, or a model in a test.

mod distance;
mod engine;
mod search;
#[cfg(test)]
mod tests;
mod topology;

pub use distance::{RoundTrip, round_trips};
pub use engine::{EngineGauge, Meter, PlacementReport};
pub use search::{Found, Gauge, Reading, Search, Tried};
pub use topology::{Cpu, Near, Topology};

/// The places: a CPU for each thing, or `None` where it runs as it was found.
pub type Places = Vec<Option<usize>>;

/// Returns places for a reader: `worker 0 on 1, worker 1 as it was`.
#[must_use]
pub fn told(names: &[String], places: &[Option<usize>]) -> String {
    let one = |(name, cpu): (&String, &Option<usize>)| match cpu {
        Some(cpu) => format!("{name} on CPU {cpu}"),
        None => format!("{name} as it was"),
    };
    names.iter().zip(places).map(one).collect::<Vec<_>>().join(", ")
}
