//! How long it will be yet: what is planned, at the pace so far.

use std::time::{Duration, Instant};

use crate::experiment::Cell;
use crate::runner::Request;

/// Windows of a pair: two sides and the control.
const WINDOWS: u64 = 3;

/// What is planned, what of it is done, and since when.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    /// Window time that is planned at most for the cells behind this one.
    later_ns: u64,
    /// Window time that has passed.
    done_ns: u64,
    pairs: u64,
    quick: bool,
}

impl Pace {
    /// Of a run of `cells`, each until the last of `looks`.
    pub(super) fn of(cells: &[(usize, &Cell)], request: &Request, looks: &[u32]) -> Pace {
        let pairs = u64::from(looks.last().copied().unwrap_or(0));
        let quick = request.quick;
        let mut pace = Pace { began: Instant::now(), later_ns: 0, done_ns: 0, pairs, quick };
        pace.later_ns = cells.iter().fold(0, |sum: u64, (_, cell)| {
            sum.saturating_add(pace.pair_ns(cell).saturating_mul(pairs))
        });
        pace
    }

    /// A cell begins, or is left out: it is no more among the later ones.
    pub(super) fn cell(&mut self, cell: &Cell) {
        let planned_ns = self.pair_ns(cell).saturating_mul(self.pairs);
        self.later_ns = self.later_ns.saturating_sub(planned_ns);
    }

    /// A pair of `cell` is done.
    pub(super) fn pair(&mut self, cell: &Cell) {
        self.done_ns = self.done_ns.saturating_add(self.pair_ns(cell));
    }

    /// How long the run has been on.
    pub(super) fn passed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What is left at most if `accepted` pairs of `cell` are done; `None` before the first.
    pub(super) fn left(&self, cell: &Cell, accepted: usize) -> Option<Duration> {
        self.left_after(self.began.elapsed(), cell, accepted)
    }

    fn left_after(&self, passed: Duration, cell: &Cell, accepted: usize) -> Option<Duration> {
        let here = self.pairs.saturating_sub(accepted as u64);
        let left_ns = self.pair_ns(cell).saturating_mul(here).saturating_add(self.later_ns);
        let done_ns = (self.done_ns > 0).then_some(self.done_ns as f64)?;
        Duration::try_from_secs_f64(passed.as_secs_f64() * left_ns as f64 / done_ns).ok()
    }

    fn pair_ns(&self, cell: &Cell) -> u64 {
        cell.window_ns(self.quick).saturating_mul(WINDOWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::tests::{grid, request};

    #[test]
    fn what_is_left_is_what_is_planned_at_the_pace_so_far() {
        let request = request(grid());
        let cells: Vec<(usize, &Cell)> = request.experiment.cells(false).collect();
        let mut pace = Pace::of(&cells, &request, &[4, 10]);
        let (one, passed) = (cells[0].1, Duration::from_secs(6));
        pace.cell(one);
        assert_eq!(pace.left_after(passed, one, 0), None);
        (0..3).for_each(|_| pace.pair(one));
        // Two of three were accepted in 6 s, 2 s each: 8 here and 10 for each other cell remain.
        let others = cells.len() as u64 - 1;
        let left = Duration::from_secs(2 * (8 + 10 * others));
        assert_eq!(pace.left_after(passed, one, 2), Some(left));
    }
}
