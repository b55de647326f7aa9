//! Initialisation at allocation or at free: cycles of a call, CPU by CPU, as wide as its calls.

use crate::report::view::View;

/// To come with the figures of the scenario.
pub(super) fn calls(_view: &View<'_>) -> String {
    String::new()
}
