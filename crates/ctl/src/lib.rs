//! Reports what a path did, as plain data that screens, scripts and metrics are made from.
//!
//! [`report`] holds the data. With the feature `json`, [`json`] writes the documents of `--json`.
#![forbid(unsafe_code)]

#[cfg(feature = "json")]
pub mod json;
pub mod report;

pub use report::{Cost, ForwardReport, GenReport, Spent, TSC, Told};
