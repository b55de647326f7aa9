//! The part of the first side's extra CPU time that flushing reads explain, in a run with a price
//! of register access: a line for each level of the other factors. The price is a model's, so the
//! share is, too.

use super::posted::{groups, reached};
use super::view::{Side, View};
use crate::analysis::LOAD;
use crate::record::{CellRecord, Verdict};

/// Returns the lines for a run in which flushing reads have a price; none for other runs.
pub(super) fn lines(view: &View<'_>) -> Vec<String> {
    let [a, _] = view.sides();
    let line = |(title, cells): (String, Vec<&CellRecord>)| {
        let shares: Vec<String> = cells.iter().filter_map(|cell| share(cell)).collect();
        (!shares.is_empty()).then(|| {
            format!(
                "MODEL: share of {a}'s additional CPU (the difference in cpu_pct) that is flushing reads, \
                 {title}: {}",
                shares.join(", ")
            )
        })
    };
    groups(view, &[LOAD]).into_iter().filter_map(line).collect()
}

/// Formats the share at a cell's load; `None` if no read has a price there, or a side did not reach
/// the load.
fn share(cell: &CellRecord) -> Option<String> {
    let pct = |name: &str| {
        let of = |side: Side| Some(100.0 * side.sum(cell, name)? / side.sum(cell, "wall_ns")?);
        Some([of(Side::A)?, of(Side::B)?])
    };
    let (reads, cpu) = (pct("flushing_ns")?, pct("cpu_ns")?);
    if reads == [0.0; 2] || reached(cell) != [true; 2] {
        return None;
    }
    let load = cell.at.get(LOAD)?;
    // Of a difference that may be chance, no share says anything.
    let is_less = cell.metrics.get("cpu_pct")?.verdict == Verdict::Better;
    let share = 100.0 * (reads[0] - reads[1]) / (cpu[0] - cpu[1]);
    Some(match is_less && share.is_finite() {
        true => format!("{share:.0} % at load={load}"),
        false => format!("n/a at load={load}, where its CPU is not clearly more"),
    })
}
