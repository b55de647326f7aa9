//! Figures of a side over all windows that its costs may be taken from.

use std::collections::BTreeSet;

use crate::record::{CellRecord, PairRecord};
use crate::window::Window;

/// One side of a cell.
#[derive(Clone, Copy)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    fn of(self, pair: &PairRecord) -> &Window {
        match self {
            Side::A => &pair.a,
            Side::B => &pair.b,
        }
    }

    /// Sum of a figure; `None` if a window has it not, or no window may be used.
    pub fn sum(self, cell: &CellRecord, name: &str) -> Option<f64> {
        let admitted = cell.pairs.iter().filter(|pair| pair.cost_accepted);
        let figures = admitted.map(|pair| self.of(pair).figure(name));
        let sum = figures.reduce(|sum, figure| Some(sum? + figure?)).flatten()?;
        sum.is_finite().then_some(sum)
    }
}

/// The workers that a cell's figures tell apart: of `allocs_w0` and `allocs_w1`, 0 and 1.
pub(super) fn workers(cell: &CellRecord) -> Vec<usize> {
    let windows = cell.pairs.iter().flat_map(|pair| [&pair.a, &pair.b]);
    let names = windows.flat_map(|window| window.figures.keys());
    let numbers = names.filter_map(|name| name.strip_prefix("allocs_w")?.parse().ok());
    numbers.collect::<BTreeSet<usize>>().into_iter().collect()
}
