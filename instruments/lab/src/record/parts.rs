//! Sum of the parts of a cell that was interrupted and continued.

use crate::record::{CellEnd, Ledger, Ledgers, Status, Total, Warning};

impl CellEnd {
    /// Merges the results of a cell that ran in two parts: ledgers and matrices are sums, totals
    /// are means over the sides' lives, the rest is the later part's. Notes of both parts appear
    /// once.
    pub(crate) fn and(self, later: CellEnd) -> CellEnd {
        let mut matrices = self.matrices;
        for (name, matrix) in later.matrices {
            let sum = matrices.remove(&name).map_or(matrix.clone(), |one| added(one, matrix));
            matrices.insert(name, sum);
        }
        let mut totals = self.totals;
        for (name, total) in later.totals {
            totals.entry(name).and_modify(|one| *one = one.and(total)).or_insert(total);
        }
        let ledger = Ledgers {
            a: self.ledger.a.and(&later.ledger.a),
            b: self.ledger.b.and(&later.ledger.b),
            control: both(self.ledger.control, later.ledger.control, |a, b| a.and(&b)),
        };
        // Why it could not be run once is nothing to be told once it was.
        let earlier = self.warnings.into_iter().filter(|_| self.status != Status::Unsupported);
        let mut warnings: Vec<Warning> = earlier.collect();
        let new = later.warnings.into_iter().filter(|one| !warnings.contains(one));
        let new: Vec<Warning> = new.collect();
        warnings.extend(new);
        let pairs = self.pairs.saturating_add(later.pairs);
        CellEnd { matrices, totals, ledger, warnings, pairs, ..later }
    }
}

impl Total {
    /// Creates the total of one life of a side.
    pub(crate) fn of(value: f64) -> Total {
        Total { mean: value, lives: 1 }
    }

    fn and(self, later: Total) -> Total {
        let lives = self.lives.saturating_add(later.lives).max(1);
        let mean = self.mean + (later.mean - self.mean) * (later.lives as f64 / lives as f64);
        Total { mean, lives }
    }
}

impl Ledger {
    /// The ledger of both, one after the other. What one has not counted is known of neither.
    pub(crate) fn and(&self, later: &Ledger) -> Ledger {
        let sum = |a: Option<u64>, b| both(a, b, u64::saturating_add);
        let mut dropped = self.dropped.clone();
        for (reason, n) in &later.dropped {
            let sum = dropped.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
        Ledger {
            offered: sum(self.offered, later.offered),
            unsent: sum(self.unsent, later.unsent),
            received: self.received.saturating_add(later.received),
            created: self.created.saturating_add(later.created),
            sent: self.sent.saturating_add(later.sent),
            consumed: self.consumed.saturating_add(later.consumed),
            dropped,
            in_flight: self.in_flight.saturating_add(later.in_flight),
            reordered: sum(self.reordered, later.reordered),
            duplicated: sum(self.duplicated, later.duplicated),
            retransmitted: sum(self.retransmitted, later.retransmitted),
            balanced: self.balanced && later.balanced,
        }
    }
}

fn both<T>(a: Option<T>, b: Option<T>, sum: impl Fn(T, T) -> T) -> Option<T> {
    Some(sum(a?, b?))
}

fn added(mut a: Vec<Vec<u64>>, b: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
    let shape = |m: &[Vec<u64>]| m.iter().map(Vec::len).collect::<Vec<_>>();
    if shape(&a) != shape(&b) {
        return b;
    }
    for (x, y) in a.iter_mut().flatten().zip(b.iter().flatten()) {
        *x = x.saturating_add(*y);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(dropped: &[(&str, u64)], matrix: &[Vec<u64>], late: Option<u64>) -> CellEnd {
        let dropped = dropped.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect();
        let a = Ledger { received: u64::MAX - 5, dropped, reordered: late, ..Ledger::default() };
        let matrices = [("free_matrix".to_owned(), matrix.to_vec())].into();
        CellEnd { ledger: Ledgers { a, ..Ledgers::default() }, matrices, ..CellEnd::default() }
    }

    #[test]
    fn sums_hold_their_bounds_and_what_one_part_does_not_know_is_unknown() {
        let one = end(&[("ring_full", 3)], &[vec![1, 2]], Some(1));
        let other = end(&[("ring_full", 4), ("no_frame", 1)], &[vec![10, 20]], None);
        let both = one.and(other);
        let a = &both.ledger.a;
        assert_eq!((a.received, a.reordered, a.balanced), (u64::MAX, None, true));
        assert_eq!((a.dropped["ring_full"], a.dropped["no_frame"]), (7, 1));
        assert_eq!(both.matrices["free_matrix"], [[11, 22]]);
    }

    #[test]
    fn totals_are_means_of_every_time_that_a_side_was_set_up() {
        let end = |frees: f64| CellEnd {
            totals: [("frees".to_owned(), Total::of(frees))].into(),
            ..CellEnd::default()
        };
        let three = end(10.0).and(end(20.0)).and(end(60.0));
        assert_eq!(three.totals["frees"], Total { mean: 30.0, lives: 3 });
        let six = three.and(end(0.0).and(end(0.0)).and(end(0.0)));
        assert_eq!(six.totals["frees"], Total { mean: 15.0, lives: 6 });
        assert_eq!(end(7.0).and(CellEnd::default()).totals["frees"], Total::of(7.0));
    }

    #[test]
    fn matrices_of_different_shapes_are_not_added_and_an_imbalance_stays_one() {
        let mut one = end(&[], &[vec![1, 2]], None);
        one.ledger.a.balanced = false;
        let both = one.and(end(&[], &[vec![5]], None));
        assert_eq!(both.matrices["free_matrix"], [[5]]);
        assert!(!both.ledger.balanced());
    }
}
