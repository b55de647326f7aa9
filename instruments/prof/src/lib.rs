//! Counts and samples the events and the time of a CPU, by function.
//!
//! Three layers, each usable without the next:
//! - **measure**: [`pmu`] counts the CPU's events over a window, [`sample`] takes
//!   samples of them or of time, [`region`] times a stretch of code, [`proc`] reads what the kernel
//!   says of the machine; [`lines`] reads a model of them, where nothing counts;
//! - **hold**: a [`profile::Profile`] is what was seen in each function, by any tool; [`read`]
//!   makes one of kernprof's, readprofile's and perf's listings, also out of old mail;
//! - **say**: [`diff`] ranks what changed between two, [`stage`] says whose cost it is,
//!   [`mod@print`] sets it as a table, CSV, JSON or a picture, [`agree`] holds two instruments
//!   against each other.
//!
//! A machine that has no counters, or does not let us, is an error with its reason and remedy,
//! never a made-up figure; a model's figure never passes for a measurement.

#[macro_use]
mod named;

pub mod agree;
mod bounded;
pub mod bus;
pub mod conditions;
pub mod diff;
pub mod flame;
pub mod lines;
pub mod pmu;
pub mod print;
pub mod proc;
pub mod profile;
pub mod read;
pub mod region;
pub mod sample;
pub mod stage;
mod student;
mod text;

pub use linerate_sys::clock::cpu_time;
pub use linerate_sys::tsc::ticks;
pub use linerate_sys::{Code, Error, Kind, Result};
pub use student::student;
