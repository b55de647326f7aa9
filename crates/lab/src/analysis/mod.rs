//! What may be said, computed from raw pairs.

use crate::experiment::{Experiment, Metric};
use crate::record::{CellRecord, Effect, OverallRecord, PairRecord, Run};

/// Computes everything of `run` that is computed: each cell's effects and status, the overall
/// lines, the verdict, and the warnings that follow from them.
///
/// What it said before is replaced; pairs, ledgers and profiles are left alone.
pub fn analyse(_experiment: &Experiment, _run: &mut Run) {}

/// The effect of one metric over a cell's pairs, before the grid's correction; `None` if no pair
/// can be used.
///
/// `looks` is how many looks there will have been in all, `look` which one this is, from 0: early
/// looks take a wider interval.
#[must_use]
pub fn effect(
    _metric: &Metric,
    _at: &[(String, String)],
    _pairs: &[PairRecord],
    _look: usize,
    _looks: usize,
) -> Option<Effect> {
    None
}

/// Lines over groups of cells: all, and each factor's values.
#[must_use]
pub fn overall(_experiment: &Experiment, _cells: &[CellRecord]) -> Vec<OverallRecord> {
    Vec::new()
}
