//! Sign test: the probability of differences at least this large if each sign is random.
//!
//! The statistic is the sum of the ranks of the positive differences, as Wilcoxon's: among ranks
//! one wild pair weighs no more than n, where in a sum of logarithms it would hide all others. All
//! 2ⁿ ways to flip the signs of up to 256 differences are counted at once, by the number of ways to
//! reach each sum, so that no sampling and no seed is in it; the sums of more are as good as
//! normal. Differences of 0 take the lowest ranks and part in no sum (Pratt).

/// Most differences for which the combinations of signs are counted exactly. For more, the normal
/// approximation is used, whose error is at most 0.002.
const EXACT: usize = 256;

/// Returns the two-sided probability that a sum of ranks is at least as far from its mean as the
/// sum of `differences`; 1 without a difference.
///
/// It cannot be below 2¹⁻ⁿ of n differences: five never say anything at 5 %.
pub(super) fn chance(differences: &[f64]) -> f64 {
    let ranked = doubled_ranks(differences);
    let total: usize = ranked.iter().map(|(rank, _)| rank).sum();
    let positive: usize = ranked.iter().filter(|(_, up)| *up).map(|(rank, _)| rank).sum();
    let off = (2 * positive).abs_diff(total);
    if off == 0 {
        return 1.0;
    }
    let ranks: Vec<usize> = ranked.into_iter().map(|(rank, _)| rank).collect();
    if ranks.len() <= EXACT { by_counting(&ranks, total, off) } else { by_limit(&ranks, off) }
}

/// Returns `chances` corrected for a family of at least `family` hypotheses (Holm 1979): each is
/// multiplied by the number of chances that are not smaller, and none is below the one before it.
/// If no cell has a difference, the probability that any of them is then below 5 % is at most 5 %.
/// Missing hypotheses of the family count as the largest.
pub(super) fn holm(chances: &[f64], family: usize) -> Vec<f64> {
    let family = family.max(chances.len());
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|i, j| chances[*i].total_cmp(&chances[*j]));
    let mut corrected = vec![1.0; chances.len()];
    let mut floor: f64 = 0.0;
    for (place, i) in order.into_iter().enumerate() {
        floor = floor.max(chances[i] * (family - place) as f64).min(1.0);
        corrected[i] = floor;
    }
    corrected
}

/// Returns twice the rank by size of each difference other than 0, and true if it is positive.
/// Equal sizes share a mean rank; doubling keeps ranks whole.
fn doubled_ranks(differences: &[f64]) -> Vec<(usize, bool)> {
    let mut by_size: Vec<f64> = differences.iter().copied().filter(|d| d.is_finite()).collect();
    by_size.sort_by(|x, y| x.abs().total_cmp(&y.abs()));
    let mut before = 0;
    let groups = by_size.chunk_by(|x, y| x.abs() == y.abs());
    let ranked = groups.flat_map(|group| {
        let rank = 2 * before + group.len() + 1;
        before += group.len();
        group.iter().map(move |d| (rank, *d)).collect::<Vec<_>>()
    });
    ranked.filter(|(_, d)| *d != 0.0).map(|(rank, d)| (rank, d > 0.0)).collect()
}

/// Returns the share of all choices of signs whose sum is at least `off` from the mean.
fn by_counting(ranks: &[usize], total: usize, off: usize) -> f64 {
    // Ranks without ties are doubled ones, all even: then no sum is odd, and none is counted.
    let step = if ranks.iter().all(|rank| rank.is_multiple_of(2)) { 2 } else { 1 };
    let mut ways = vec![0.0; total / step + 1];
    ways[0] = 1.0;
    let mut reached = 0;
    for rank in ranks {
        reached += rank / step;
        add_shifted(&mut ways[..=reached], rank / step);
    }
    let far = ways.iter().enumerate().filter(|(sum, _)| (2 * step * sum).abs_diff(total) >= off);
    // Exact, as a power of two: the ways of up to 256 signs are far from the largest number.
    let one = 0.5_f64.powi(ranks.len() as i32);
    (far.map(|(_, ways)| ways).sum::<f64>() * one).min(1.0)
}

/// Adds to the ways to reach each sum those to reach it with one more `rank`, from the largest sum
/// down. Indices of a slice, because tests call this a million times without optimisation.
fn add_shifted(ways: &mut [f64], rank: usize) {
    let mut sum = ways.len();
    while sum > rank {
        sum -= 1;
        ways[sum] += ways[sum - rank];
    }
}

/// Returns the normal approximation of the share that [`by_counting`] returns.
fn by_limit(ranks: &[usize], off: usize) -> f64 {
    let variance: f64 = ranks.iter().map(|rank| (*rank as f64).powi(2)).sum();
    two_tails(off as f64 / variance.sqrt())
}

/// Returns the probability that a normal variable is more than `z` standard deviations from its
/// mean, to 1.2 parts in 10⁷: Numerical Recipes' rational Chebyshev fit of the complementary error
/// function.
fn two_tails(z: f64) -> f64 {
    const FIT: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    t * (FIT.iter().rev().fold(0.0, |sum, c| sum * t + c) - x * x).exp()
}

// The interval from the k-th smallest to the k-th largest of n values contains the distribution's
// median with a probability that depends only on n and k: it misses the median if fewer than k of n
// coins show heads, or fewer than k show tails. For probabilities between those of two k, the ends
// are interpolated.
//
// A bootstrap is not used: that of a median takes few distinct values, which are the same order
// statistics, and its percentiles are rounded to one of them. Over 15 values its 99 % interval
// equals its 95 % interval, which contains the median 96 % of the time; over 7 values its 95 %
// interval contains the median 87 % of the time. A bias correction (BCa) does not help, because the
// jackknife of a median has two values.
//
// Source: Hettmansperger and Sheather, "Confidence intervals based on interpolated order
// statistics", Statistics & Probability Letters 4 (1986).

/// An interval, given by its two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

/// Returns the median of `sorted`: the middle value, or the mean of the two middle ones; `None` if
/// there are no values.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(if lower == upper { upper } else { lower + (upper - lower) / 2.0 })
}

/// Returns an interval that contains the median of the distribution from which `sorted` was drawn,
/// with probability `level`; `None` if `sorted` is empty.
///
/// So few values that even their whole range holds it less often give that range: fewer than 6 for
/// 95 %, fewer than 8 for 99 %.
pub(crate) fn median_interval(sorted: &[f64], level: f64) -> Option<Interval> {
    let n = sorted.len();
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let (mut inner, mut outer) = (0, 0.0);
    // Find the innermost pair of order statistics that contains the median with probability
    // `level`; k is its distance from the ends.
    let (mut missed, mut ln_chance) = (0.0, -(n as f64) * std::f64::consts::LN_2);
    let mut weight = None;
    for k in 0..n.div_ceil(2) {
        missed += 2.0 * ln_chance.exp();
        let held = 1.0 - missed;
        if held < level {
            weight = (k > 0).then(|| interpolation(n, k, outer, held, level));
            break;
        }
        (inner, outer) = (k, held);
        ln_chance += ((n - k) as f64).ln() - ((k + 1) as f64).ln();
    }
    let Some(weight) = weight else {
        let whole = Interval { low: first, high: last };
        let ends = sorted.get(inner).zip(sorted.get(n - 1 - inner));
        return Some(ends.map_or(whole, |(low, high)| Interval { low: *low, high: *high }));
    };
    let toward = |from: usize, to: usize| match (sorted.get(from), sorted.get(to)) {
        (Some(from), Some(to)) => from + weight * (to - from),
        _ => f64::NAN,
    };
    Some(Interval { low: toward(inner, inner + 1), high: toward(n - 1 - inner, n - 2 - inner) })
}

/// Returns the fraction of the step from the k-th value inward, for which the interval has
/// probability `level`; the outer interval contains the median with probability `outer`, the inner
/// one with `inner`. It is exact in the middle of a Laplace distribution, and close elsewhere.
fn interpolation(n: usize, k: usize, outer: f64, inner: f64, level: f64) -> f64 {
    let (n, k) = (n as f64, k as f64);
    let part = (outer - level) / (outer - inner);
    (n - k) * part / (k + (n - 2.0 * k) * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64, within: f64) {
        assert!((value - expected).abs() <= within, "{value}, not {expected}");
    }

    /// Checks chances against published two-tailed probabilities of Wilcoxon's signed ranks.
    #[test]
    fn the_chances_are_those_of_the_tables() {
        near(chance(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 32.0, 1e-12);
        near(chance(&[-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 4.0 / 64.0, 1e-12);
        // n = 10, smaller sum 8: 25 of 1024 sums are at most 8.
        let ten = [-1.0, -7.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0];
        near(chance(&ten), 50.0 / 1024.0, 1e-12);
    }

    #[test]
    fn all_ways_are_counted_as_by_hand() {
        let differences = [0.3, -0.1, 0.7, 0.7, -0.2, 0.9, 0.0, 1.4];
        let ranked = doubled_ranks(&differences);
        let total: i64 = ranked.iter().map(|(rank, _)| *rank as i64).sum();
        let sum = |up: &dyn Fn(usize) -> bool| {
            let of = |i: usize| if up(i) { ranked[i].0 as i64 } else { 0 };
            (2 * (0..ranked.len()).map(of).sum::<i64>() - total).abs()
        };
        let seen = sum(&|i| ranked[i].1);
        let ways = 1_u32 << ranked.len();
        let far = (0..ways).filter(|bits| sum(&|i| bits >> i & 1 == 1) >= seen).count();
        near(chance(&differences), far as f64 / f64::from(ways), 1e-12);
    }

    #[test]
    fn the_limit_meets_the_count() {
        let differences: Vec<f64> =
            (1..=256_i32).map(|i| f64::from(if i % 5 < 2 { -i } else { i })).collect();
        let ranks: Vec<usize> = doubled_ranks(&differences).iter().map(|(rank, _)| *rank).collect();
        let total: usize = ranks.iter().sum();
        for off in [total / 20, total / 10, total / 6] {
            let (exact, limit) = (by_counting(&ranks, total, off), by_limit(&ranks, off));
            near(limit, exact, 0.002);
        }
        near(two_tails(1.959_964), 0.05, 1e-6);
    }

    #[test]
    fn no_difference_is_certain_to_be_chance() {
        assert_eq!(chance(&[]), 1.0);
        assert_eq!(chance(&[0.0; 9]), 1.0);
        assert_eq!(chance(&[-1.0, 1.0]), 1.0);
    }

    #[test]
    fn one_wild_pair_does_not_hide_the_others() {
        let mut differences = vec![0.02; 15];
        differences[7] = -1.4;
        assert!(chance(&differences) < 0.01, "{}", chance(&differences));
    }

    #[test]
    fn holms_correction_is_the_published_one() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005], 4);
        let expected = [0.03, 0.06, 0.06, 0.02];
        corrected.iter().zip(expected).for_each(|(p, e)| near(*p, e, 1e-12));
        assert_eq!(holm(&[0.7, 0.6], 2), [1.0, 1.0]);
        assert!(holm(&[], 9).is_empty());
        let of_ten = holm(&[0.01, 0.002], 10);
        of_ten.iter().zip([0.09, 0.02]).for_each(|(p, e)| near(*p, e, 1e-12));
    }

    fn counting(n: usize) -> Vec<f64> {
        (1..=n).map(|i| i as f64).collect()
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 3.0, 9.0]), Some(2.5));
    }

    #[test]
    fn too_few_values_give_their_range() {
        assert_eq!(median_interval(&[], 0.95), None);
        for n in 1..=5 {
            let all = Interval { low: 1.0, high: n as f64 };
            assert_eq!(median_interval(&counting(n), 0.95), Some(all), "{n}");
        }
        assert_eq!(median_interval(&counting(7), 0.99), Some(Interval { low: 1.0, high: 7.0 }));
    }

    /// Checks intervals against tables of the sign test: of 15 values, the 4th to the 12th contain
    /// the median with 96.5 %, the 5th to the 11th with 88.2 %, the 3rd to the 13th with 99.3 %.
    #[test]
    fn the_interval_lies_between_the_order_statistics_of_the_tables() {
        let fifteen = counting(15);
        let at95 = median_interval(&fifteen, 0.95).unwrap();
        assert!(
            at95.low > 4.0 && at95.low < 5.0 && (at95.low + at95.high - 16.0).abs() < 1e-9,
            "{at95:?}"
        );
        let at99 = median_interval(&fifteen, 0.99).unwrap();
        assert!(
            at99.low > 3.0 && at99.low < 4.0 && (at99.low + at99.high - 16.0).abs() < 1e-9,
            "{at99:?}"
        );
        let exact = median_interval(&fifteen, 0.964_843).unwrap();
        assert!((exact.low - 4.0).abs() < 1e-3, "{exact:?}");
    }

    #[test]
    fn many_values_are_no_trouble() {
        let many = median_interval(&counting(5001), 0.95).unwrap();
        // The interval extends 0.98 √n ranks to either side of the middle.
        assert!((many.low - (2501.0 - 0.98 * 5001_f64.sqrt())).abs() < 1.5, "{many:?}");
        let alike = median_interval(&[7.0; 40], 0.99);
        assert_eq!(alike, Some(Interval { low: 7.0, high: 7.0 }));
    }
}
