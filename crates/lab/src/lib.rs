//! Experiments on a packet path, and the posts that they come from.
#![forbid(unsafe_code)]

pub mod seeds;
pub mod stats;
