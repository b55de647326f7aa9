//! A run, told: as text, and as one HTML file.
//!
//! Both say the same from the same tables. Whatever stands in a run's document is somebody else's:
//! it is made harmless, bounded, and never believed to be well formed.

mod figure;
mod html;
mod profiles;
mod sums;
mod svg;
mod tables;
mod text;
mod view;

use crate::record::Run;

/// As text: the table of each cell and metric, the overall lines, what to mind.
#[must_use]
pub fn text(run: &Run) -> String {
    text::text(run)
}

/// As one HTML file that needs nothing else. Several runs of one experiment make a chart over
/// versions; the first is the one that is told.
#[must_use]
pub fn html(runs: &[Run]) -> String {
    html::html(runs)
}
