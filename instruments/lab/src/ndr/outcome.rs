//! What a search came to.

use serde::Serialize;

use super::goal::Goal;
use super::trial::Trial;

/// What was found for one goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The goal.
    pub goal: Goal,
    /// The highest rate that is carried. `None`: not even the lowest is.
    pub lower_pps: Option<u64>,
    /// The lowest rate that is not. `None`: even the highest is.
    pub upper_pps: Option<u64>,
    /// Packets a second that can be counted on at the lower bound.
    pub throughput_pps: Option<f64>,
    /// Why it is not an interval of the width asked for; `None` if it is one.
    pub irregular: Option<&'static str>,
    /// Trials, those of earlier goals that served this one too not counted.
    pub trials: usize,
}

/// What a search came to, over all goals.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Each goal.
    pub found: Vec<Found>,
    /// Every trial that said something.
    pub trials: Vec<Trial>,
    /// Trials from which something took the CPUs: those that were made again, and those that counted.
    pub disturbed: usize,
    /// What took them from the last of those.
    pub disturbed_last: Option<String>,
    /// False if it was interrupted, or made as many trials as it may.
    pub complete: bool,
}
