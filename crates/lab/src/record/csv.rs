//! A run's tables as CSV.

use crate::record::Run;

/// Every window of every pair, a line each, with its figures.
#[must_use]
pub fn csv(_run: &Run) -> String {
    String::new()
}
