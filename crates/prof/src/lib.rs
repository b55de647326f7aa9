//! Counts the CPU's events for a process, and the time it had a CPU.
//!
//! [`count`] asks the CPU's own counters through perf_event_open(2); a machine that has none, or
//! does not let us, is an error with its reason and remedy, never a made-up figure. [`cpu_time`]
//! works everywhere.

pub mod count;
mod cpu;

pub use cpu::cpu_time;
pub use linerate_sys::tsc::ticks;
pub use linerate_sys::{Code, Error, Kind, Result};
