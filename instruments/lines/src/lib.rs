//! A plugin for QEMU: a model of coherent caches that follows the memory accesses of real code.
//!
//! ```text
//!   program or kernel ── QEMU ──► access(CPU, address, instruction)
//!                                    │
//!                                 lines: who holds each 64 bytes, who wrote it last
//!                                    │
//!                                 counts by instruction ──► file ──► linerate-lab lines
//! ```
//!
//! QEMU tells of each access to memory; a line that another CPU wrote or holds has to travel, and
//! the instruction that made it travel is charged. Threads are CPUs in QEMU's user mode. What it
//! counts is a model's, never a measurement, and each line that prints it says so. No shipped
//! program depends on this crate: QEMU loads it when asked.
//!
//! | module | has |
//! |---|---|
//! | `api` | the part of QEMU's interface that is used, declared by hand |
//! | `plugin` | the calls of QEMU |
//! | [`model`] | lines and their holders |
//! | [`cache`] | a cache of limited size for each CPU |
//! | [`mark`] | how a program says from where to where to count |
//! | [`report`] | the file that is left at the end |

mod api;
pub mod cache;
pub mod mark;
pub mod model;
mod plugin;
pub mod report;
