//! Experiments on a packet path, and the posts that they come from.
#![forbid(unsafe_code)]

pub mod decimal;
pub mod seeds;
pub mod stats;
pub mod table;

pub use linerate_prof::{Code, Error, Result};
