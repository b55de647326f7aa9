//! Experiments, told: the list of all, and one of them.

use crate::experiment::Experiment;
use crate::scenario::Place;

/// A line for each: what it reproduces, its cells, its time, whether it runs here.
#[derive(Debug)]
pub struct List<'a> {
    /// Which.
    pub experiments: &'a [Experiment],
    /// Where.
    pub place: &'a Place,
}

/// One of them: question, sides, factors, metrics, expectations with their sources, fixed points.
#[derive(Debug)]
pub struct Show<'a> {
    /// Which.
    pub experiment: &'a Experiment,
    /// Where.
    pub place: &'a Place,
}
