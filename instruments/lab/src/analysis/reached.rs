//! The load that a cell names, as a share of a link, and whether its sides reached it.
//!
//! A side that delivers less than it was asked for also takes less CPU time: its figures say
//! nothing about that load.

use super::samples::figures;
use crate::experiment::Experiment;
use crate::record::CellRecord;

/// The factor whose levels are loads of a link.
pub(crate) const LOAD: &str = "load";
/// The metric of the share of due packets that arrived, in per cent.
pub(crate) const ACHIEVED: &str = "achieved_pct";
/// Share of due packets that must arrive for a load to count as reached, in per cent.
pub(crate) const REACHED_PCT: f64 = 98.0;

/// Returns true if both sides of `cell` reached its load in the admitted windows; also if the cell
/// names no load, or no window has the share that arrived.
pub(super) fn reached(experiment: &Experiment, cell: &CellRecord) -> bool {
    let metric = experiment.metrics.iter().find(|metric| metric.name == ACHIEVED);
    let Some(metric) = metric.filter(|_| cell.at.contains_key(LOAD)) else { return true };
    figures(metric, &cell.pairs).iter().flatten().all(|pct| *pct >= REACHED_PCT)
}
