//! Results of a run as plain data, for screens, scripts and metrics.
//!
//! [`report`], [`pool`] and [`excess`] hold the data. [`doctor`] checks whether a port can be
//! opened here, and in which mode. [`affinity`] and [`placement`] move interrupts, workers and
//! threads to other CPUs. With the feature `json`, the module `json` writes the documents of
//! `--json`, and the module `tune` serves the settings of a run on a socket.
#![forbid(unsafe_code)]

pub mod affinity;
pub mod doctor;
pub mod excess;
#[cfg(feature = "json")]
pub mod json;
pub mod placement;
pub mod pool;
pub mod poor_use;
mod registers;
pub mod report;
#[cfg(feature = "json")]
pub mod tune;

pub use excess::{Calls, Locks, Waits};
pub use linerate_datapath::driver_text;
pub use pool::PoolReport;
pub use report::{Cost, ErrorReport, ForwardReport, GenReport, Spent, TSC};
