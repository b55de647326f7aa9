//! Trials of a search, and its outcome.

use serde::Serialize;

use super::goal::Goal;

/// The result for one goal.
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

/// The result of a search, over all goals.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Each goal.
    pub found: Vec<Found>,
    /// The trials that were accepted.
    pub trials: Vec<Trial>,
    /// Trials from which something took the CPUs: those that were made again, and those that counted.
    pub disturbed: usize,
    /// The disturbance of the last of those trials.
    pub disturbed_last: Option<String>,
    /// False if it was interrupted, or made as many trials as it may.
    pub complete: bool,
}

/// A trial: so many packets offered at a rate, and what came of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The rate that was asked for, in packets a second.
    pub load_pps: u64,
    /// The requested length of the trial, in seconds.
    pub asked_s: f64,
    /// Packets that this amounts to.
    pub offered: u64,
    /// Offered packets that never left the generator. They count as lost.
    pub unsent: u64,
    /// Packets that came out at the other end, once each and whole.
    pub forwarded: u64,
    /// Packets that came twice, out of order or damaged.
    pub faults: u64,
    /// 99th percentile of how late packets left; `None` if it is not known.
    pub late_p99_ns: Option<u64>,
    /// Share of the trial that the path's own worker slept, for want of packets; `None` for a path
    /// that is not ours. One that slept had time left, whatever was lost.
    pub path_asleep_pct: Option<f64>,
    /// The disturbance that took CPU time from the trial; such a trial is repeated unless all
    /// trials count.
    pub disturbed: Option<String>,
}

impl Trial {
    /// Returns the share of the offered packets that did not come out.
    #[must_use]
    pub fn loss_ratio(&self) -> f64 {
        if self.offered == 0 {
            return 1.0;
        }
        self.offered.saturating_sub(self.forwarded) as f64 / self.offered as f64
    }

    /// Packets a second that came out.
    #[must_use]
    pub fn forwarded_pps(&self) -> u64 {
        (self.load_pps as f64 * (1.0 - self.loss_ratio())) as u64
    }
}
