//! The kernel's figures of the machine: a series sampled at a fixed period, and the head of `top`.
//!
//! - [`Sampler`] reads the files of /proc that count interrupts, CPU time and packets, at fixed
//!   deadlines; [`Writer`] puts what it reads in a file, a line a sample; [`Replay`] reads that
//!   file back. Sampler and replay are both a [`Feed`]: what takes one takes the other.
//! - [`Rates`] makes rates of two samples, [`Summary`] a table of many.
//! - [`Head`] is the head that `top` prints, measured or read from a text.
//!
//! Every parser here takes text, and takes any text: what it does not understand it counts.

pub(crate) mod files;
pub(crate) mod head;
pub(crate) mod netdev;
mod rates;
mod replay;
mod sampler;
mod series;
mod split;
mod summary;
mod writer;

pub use head::{Cpu, Head, Mem, Processes, Started, Swap};
pub use rates::{Rate, Rates};
pub use replay::{Complaint, Replay};
pub use sampler::{Options, PERIOD_MIN, Sampler, Source};
pub use series::{Absent, Column, End, Feed, Header, Kind, SCHEMA, Sample};
pub use split::{CpuTimes, Split};
pub use summary::Summary;
pub use writer::Writer;
