//! Reports of a run: as text, and as one HTML file.
//!
//! Both say the same from the same tables. The texts of a run's document come from outside:
//! it is made harmless, bounded, and never believed to be well formed.

mod agreed;
mod batches;
mod crossover;
mod html;
mod margins;
mod posted;
mod profiles;
mod reads;
mod remarks;
mod sentence;
mod split;
mod stages;
mod tables;
mod text;
mod view;
pub(crate) mod words;

use crate::record::Run;

/// Formats the run as text for a screen: the result, the warnings, the headline, and other metrics
/// that changed or contradict an expectation. The page has the rest.
#[must_use]
pub fn text(run: &Run) -> String {
    text::text(run)
}

/// Formats runs as one self-contained HTML file. For several runs of one experiment it has a chart
/// over versions; the first run is shown in full.
#[must_use]
pub fn html(runs: &[Run]) -> String {
    html::html(runs)
}
