//! Experiments on a packet path, and the posts that they reproduce.
//!
//! An experiment is a claim as data ([`experiment`]): two sides of one [`scenario`], the factors
//! that are varied, what is measured and what is expected, written down before the first run. The
//! [`runner`] measures the sides in adjacent windows in random order, with a control of the first
//! side against itself in every unit, and keeps every one of them ([`record`]). What may be said is
//! computed from those ([`analysis`]), whenever it is asked, and printed or drawn ([`report`]).
//!
//! ```text
//!  TOML ── experiment ──> runner ──── Bench::window ────> scenario (engine, churn, host, command)
//!                           │  └ watch: what else the machine did
//!                           v
//!              lab/RUN/{experiment.toml, pairs.ndjson, run.json}
//!                           │
//!                           ├──> analysis ──> report (text, HTML, CSV), compare
//! ```
//!
//! [`ndr`] is the search for the highest rate that a path carries. The posts themselves, checked
//! against their own figures, are the crate `linerate-seeds`.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod buffers;
pub mod compare;
pub mod environment;
pub mod experiment;
pub mod far;
pub mod flood;
pub mod knobs;
pub mod meter;
pub mod ndr;
mod percentile;
pub mod place;
pub mod random;
pub mod record;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod settings;
pub mod triage;
pub mod watch;
pub mod window;

pub use linerate_prof::{Code, Error, Kind, Result};
