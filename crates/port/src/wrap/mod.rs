//! Wrappers: layers around any queue, which give a queue again.
//!
//! ```text
//!   Queue ── Box<dyn QueueOps> = tee ── Faulty ── the driver's
//!             rx  ◄── packets pass the tee, which copies them ◄── after the faults
//! ```
//!
//! [`Port::wrap`](crate::Port::wrap) and [`Queue::wrap`](crate::Queue::wrap) put them around; what
//! is put around last is nearest to the program. Each keeps the contract of
//! [`QueueOps`](crate::QueueOps): order, room, accounts, wake-ups, health.
//!
//! - [`tee`]: copies into a pcapng file while the path runs, written on a thread of the program's.
//! - [`fault`]: what can go wrong, by a plan and a seed, with every packet accounted for.
//! - [`toll`]: the price of register access, on ports that have no registers: a model.
//! - [`Layer`]: what these are made of, and a program's own: a call that it does not implement goes
//!   to the queue below.
//!
//! A tee is one load a call while it is off, and shares the descriptor of the queue below.
//! docs/ports/wrap.md has the limits, each with its cause.

pub mod fault;
mod layer;
pub mod tee;
pub mod toll;

#[cfg(test)]
mod conforms;
#[cfg(test)]
mod over_xdp;
#[cfg(test)]
mod testing;

pub use layer::{Layer, Wrapped};
