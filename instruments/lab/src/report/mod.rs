//! A run, told: as text, and as one HTML file.
//!
//! Both say the same from the same tables. Whatever stands in a run's document is somebody else's:
//! it is made harmless, bounded, and never believed to be well formed.

mod expected;
mod facts;
mod folded;
mod html;
mod metric;
mod reason;
mod remarks;
mod sentence;
mod tables;
mod text;
mod view;
pub(crate) mod words;

use crate::record::Run;

/// As text for a screen: what it came to, what to mind, the headline, and what else got better or
/// worse or is not as expected. The page has the rest.
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
