//! Estimate of the time left: the rest of the plan, at the pace so far.

use std::time::{Duration, Instant};

use crate::experiment::{Cell, Plan};
use crate::runner::Request;

/// Windows of a pair: two sides and the control.
const WINDOWS: u64 = 3;

/// The plan, its finished part, and the start time.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    /// Window time that is planned at most for the cells behind this one.
    later_ns: u64,
    /// Window time that has passed: that of the warm-up with that of the pair behind it.
    done_ns: u64,
    /// Pairs of this cell that were run.
    ran: u32,
    pairs: u32,
    plan: Plan,
    quick: bool,
}

impl Pace {
    /// Creates the pace of a run of `cells`, each until the last of `looks`.
    pub(super) fn of(cells: &[(usize, &Cell)], request: &Request, looks: &[u32]) -> Pace {
        let (pairs, quick) = (looks.last().copied().unwrap_or(0), request.quick);
        let (began, plan) = (Instant::now(), request.experiment.plan.clone());
        let mut pace = Pace { began, later_ns: 0, done_ns: 0, ran: 0, pairs, plan, quick };
        pace.later_ns = cells
            .iter()
            .fold(0, |sum: u64, (_, cell)| sum.saturating_add(pace.window_ns(cell, pairs)));
        pace
    }

    /// A cell begins, or is left out: it is no more among the later ones.
    pub(super) fn cell(&mut self, cell: &Cell) {
        self.later_ns = self.later_ns.saturating_sub(self.window_ns(cell, self.pairs));
        self.ran = 0;
    }

    /// A pair of `cell` is done.
    pub(super) fn pair(&mut self, cell: &Cell) {
        let before_ns = self.window_ns(cell, self.ran);
        self.ran = self.ran.saturating_add(1);
        let pair_ns = self.window_ns(cell, self.ran).saturating_sub(before_ns);
        self.done_ns = self.done_ns.saturating_add(pair_ns);
    }

    /// Returns the time since the start of the run.
    pub(super) fn passed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the longest time left once `accepted` pairs of `cell` are done; `None` before the
    /// first pair.
    pub(super) fn left(&self, cell: &Cell, accepted: usize) -> Option<Duration> {
        self.left_after(self.began.elapsed(), cell, accepted)
    }

    fn left_after(&self, passed: Duration, cell: &Cell, accepted: usize) -> Option<Duration> {
        // Those that were rejected are run again; the warm-up is not.
        let accepted = u32::try_from(accepted).unwrap_or(u32::MAX);
        let here_ns = self.window_ns(cell, self.pairs);
        let left_ns = here_ns.saturating_sub(self.window_ns(cell, accepted.max(1)));
        let first_ns = if accepted == 0 { self.first_ns(cell) } else { 0 };
        let left_ns = left_ns.saturating_add(first_ns).saturating_add(self.later_ns);
        let done_ns = (self.done_ns > 0).then_some(self.done_ns as f64)?;
        Duration::try_from_secs_f64(passed.as_secs_f64() * left_ns as f64 / done_ns).ok()
    }

    /// Window time of one more pair of `cell`.
    fn first_ns(&self, cell: &Cell) -> u64 {
        self.window_ns(cell, 2).saturating_sub(self.window_ns(cell, 1))
    }

    /// Window time of `pairs` pairs of `cell`, with their warm-up.
    fn window_ns(&self, cell: &Cell, pairs: u32) -> u64 {
        let windows = if pairs == 0 { 0 } else { self.plan.windows(cell, pairs) };
        cell.window_ns(self.quick).saturating_mul(WINDOWS).saturating_mul(windows)
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
        let one = cells[0].1;
        pace.cell(one);
        assert_eq!(pace.left_after(Duration::from_secs(6), one, 0), None);
        (0..3).for_each(|_| pace.pair(one));
        // Three pairs and the warm-up took 2 s a window of each side, whatever was planned. Two
        // pairs were accepted: 8 here and, with their warm-up, 10 for each other cell remain.
        let windows = |pairs: u32| request.experiment.plan.windows(one, pairs);
        let passed = Duration::from_secs(2 * windows(3));
        let others = cells.len() as u64 - 1;
        let left = Duration::from_secs(2 * (8 + windows(10) * others));
        assert_eq!(pace.left_after(passed, one, 2), Some(left));
        let left = Duration::from_secs(2 * (10 + windows(10) * others));
        assert_eq!(pace.left_after(passed, one, 0), Some(left));
    }
}
