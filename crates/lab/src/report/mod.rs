//! A run, told: as text, and as one HTML file.

use crate::record::Run;

/// As text: the table of each cell and metric, the overall lines, what to mind.
#[must_use]
pub fn text(_run: &Run) -> String {
    String::new()
}

/// As one HTML file that needs nothing else. Several runs of one experiment make a chart over
/// versions; the first is the one that is told.
#[must_use]
pub fn html(_runs: &[Run]) -> String {
    String::new()
}
