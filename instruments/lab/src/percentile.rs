//! Percentiles of a window's latencies, and the number of values that each takes.

/// A percentile of a sample, by nearest rank: the smallest value that is at least as large as this
/// share of all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Percentile {
    /// The name in a figure, as `p99` in `receipt_p99_ns`.
    pub name: &'static str,
    permille: usize,
    /// The smallest sample that has the percentile.
    pub least: usize,
}

/// The percentiles of a window.
///
/// A sample has a percentile if its largest value is above the true one with a probability of 95 %:
/// 1 − qⁿ ≥ 0.95, so n ≥ 299 for q = 0.99 and 2995 for q = 0.999. With fewer values, every value is
/// often below the true percentile, and the figure would be too low however many windows have it.
/// A window needs no more: its own error is seen in the differences between windows, of which the
/// effect's interval consists. (A single sample has no such interval; `gen` and `prof`, which print
/// one, ask for ten values beyond the percentile.) For the median 5 values would do; it takes 20.
///
/// Source: S. S. Wilks, "Determination of sample sizes for setting tolerance limits", Annals of
/// Mathematical Statistics 12 (1941).
pub(crate) const PERCENTILES: [Percentile; 3] = [
    Percentile { name: "p50", permille: 500, least: 20 },
    Percentile { name: "p99", permille: 990, least: 299 },
    Percentile { name: "p999", permille: 999, least: 2995 },
];

/// The median.
pub(crate) const P50: Percentile = PERCENTILES[0];
/// The 99th percentile.
pub(crate) const P99: Percentile = PERCENTILES[1];

impl Percentile {
    /// Returns the percentile of `values`, whose order changes; `None` if they are too few.
    pub fn of(self, values: &mut [u64]) -> Option<u64> {
        let rank = (values.len() * self.permille).div_ceil(1000).checked_sub(1)?;
        (values.len() >= self.least).then(|| *values.select_nth_unstable(rank).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_of_too_few_values_is_no_figure() {
        let of = |n: u64, p: Percentile| p.of(&mut (1..=n).rev().collect::<Vec<_>>());
        assert_eq!((of(0, P50), of(19, P50), of(20, P50)), (None, None, Some(10)));
        assert_eq!((of(298, P99), of(299, P99), of(1000, P99)), (None, Some(297), Some(990)));
        let [_, _, p999] = PERCENTILES;
        assert_eq!((of(2994, p999), of(2995, p999)), (None, Some(2993)));
    }

    #[test]
    fn smallest_sample_reaches_its_percentile_with_95_per_cent() {
        for Percentile { name, permille, least } in PERCENTILES {
            let q = permille as f64 / 1000.0;
            let misses = |n: usize| q.powi(n as i32);
            assert!(misses(least) <= 0.05, "{name}");
            assert!(name == "p50" || misses(least - 1) > 0.05, "{name}: fewer would do");
        }
    }
}
