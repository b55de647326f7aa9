//! Classes of change, which distinguish real changes from possible noise.
//!
//! A sample falls where the CPU happens to be: run the same twice, and every function's count is
//! another. Of a count that comes of many chances, each small, the variance is the count (Poisson),
//! and of a difference it is the sum of both. A difference of less than two standard deviations
//! counts as noise:
//!
//! ```text
//! do_check_pgt_cache   494 ->   584     +90   2·√1078 = 66     rose
//! __rdtsc_delay      1,117 -> 1,125      +8   2·√2242 = 95     noise
//! ```
//! Two of the same differ by more than that once in 20 times, and samples that come in bursts do
//! so more often: what is beyond is worth a look, and no proof. Events that were counted one by one
//! are compared as they are. With several runs a side, a difference must exceed what these differ
//! among themselves, too.

use serde::Serialize;

use super::{By, Count, Row, Scale};

/// Standard deviations by which two counts of the same work may differ by chance.
pub const SIGMAS: f64 = 2.0;
/// Relative difference by which the rounding of two scaled counts may make equal rates differ.
const ROUNDING: f64 = 1e-12;

named! {
    /// The class of a function's change, as it is written in JSON and CSV.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Change {
        /// The count fell.
        Fell = "fell",
        /// The count rose.
        Rose = "rose",
        /// A count is below a cut-off, and may have fallen.
        MayHaveFallen = "may_have_fallen",
        /// A count is below a cut-off, and may have risen.
        MayHaveRisen = "may_have_risen",
        /// The change may be sampling noise.
        Noise = "noise",
        /// The number of events did not change.
        Unchanged = "unchanged",
    }
}

impl Change {
    /// Returns the class of the change of `row`; `is_sampled` is true if its counts are samples.
    pub(super) fn of(row: &Row, scale: Scale, is_sampled: bool) -> Change {
        let (without_least, without_most) = row.without.range();
        let (with_least, with_most) = row.with.range();
        let moved = |without: u64, with: u64| {
            let (a, b) = (scale.without(without), scale.with(with));
            let chance = if is_sampled { SIGMAS * deviation(without, with, scale) } else { 0.0 };
            let is_scaled = scale.by != By::AsTheyAre;
            let rounding = if is_scaled { ROUNDING * a.max(b) } else { 0.0 };
            if (a - b).abs() > chance.max(row.noise).max(rounding) { a - b } else { 0.0 }
        };
        let (least, most) = (moved(without_least, with_most), moved(without_most, with_least));
        match () {
            () if most < 0.0 => Change::Rose,
            () if least > 0.0 => Change::Fell,
            () if least < 0.0 => Change::MayHaveRisen,
            () if most > 0.0 => Change::MayHaveFallen,
            () if is_sampled || row.noise > 0.0 => Change::Noise,
            () => Change::Unchanged,
        }
    }

    /// Returns the class's mark in tables; empty for a fall, which the saving shows.
    #[must_use]
    pub fn mark(self) -> String {
        match self {
            Change::Fell | Change::Unchanged => String::new(),
            other => other.as_str().replace('_', " "),
        }
    }

    /// Returns true for a rise or a possible rise.
    #[must_use]
    pub const fn is_rise(self) -> bool {
        matches!(self, Change::Rose | Change::MayHaveRisen)
    }
}

impl Count {
    /// Returns the lowest and the highest possible count.
    const fn range(self) -> (u64, u64) {
        match self {
            Count::Is(n) => (n, n),
            Count::Below(n) => (0, n.saturating_sub(1)),
        }
    }
}

/// Returns the standard deviation of the difference of two counts, after scaling.
fn deviation(without: u64, with: u64, scale: Scale) -> f64 {
    (scale.without(without) * scale.without_factor + scale.with(with) * scale.with_factor).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;
    use Count::{Below, Is};

    fn change(without: Count, with: Count, is_sampled: bool) -> Change {
        scaled(without, with, is_sampled, Scale::as_they_are())
    }

    fn scaled(without: Count, with: Count, is_sampled: bool, scale: Scale) -> Change {
        let (symbol, object, stage) = ("f".into(), None, Stage::Other);
        let row = Row { symbol, object, stage, without, with, noise: 0.0 };
        Change::of(&row, scale, is_sampled)
    }

    #[test]
    fn samples_must_differ_by_more_than_chance_and_events_by_one() {
        // Of the posts: do_check_pgt_cache, eth_type_trans, __rdtsc_delay.
        assert_eq!(change(Is(494), Is(584), true), Change::Rose);
        assert_eq!(change(Is(927), Is(1094), true), Change::Rose);
        assert_eq!(change(Is(1117), Is(1125), true), Change::Noise);
        assert_eq!(change(Is(1117), Is(1125), false), Change::Rose);
        assert_eq!(change(Is(7), Is(7), false), Change::Unchanged);
        assert_eq!(change(Is(0), Is(5), true), Change::Rose);
        assert_eq!(change(Below(1), Is(4), true), Change::Noise, "4 is 2·√4");
    }

    #[test]
    fn change_below_a_cut_off_counts_only_if_certain() {
        // speedo_rx and alloc_skb_frame of the posts.
        assert_eq!(change(Is(3358), Below(216), true), Change::Fell);
        assert_eq!(change(Below(72), Is(335), true), Change::Rose);
        assert_eq!(change(Below(72), Is(43), true), Change::MayHaveRisen);
        assert_eq!(change(Is(43), Below(72), true), Change::MayHaveRisen);
        assert_eq!(change(Is(304), Below(290), true), Change::MayHaveFallen);
        assert_eq!(change(Is(3), Below(4), true), Change::Noise);
    }

    #[test]
    fn at_the_edge_of_a_cut_off_absent_is_fewer_and_not_as_many() {
        assert_eq!(change(Below(72), Is(72), false), Change::Rose, "71 at most, then 72");
        assert_eq!(change(Is(72), Below(72), false), Change::Fell);
        assert_eq!(change(Below(72), Is(72), true), Change::MayHaveRisen, "71 to 72 is nothing");
    }

    #[test]
    fn equal_rates_of_events_are_unchanged_although_they_are_rounded() {
        let scale = Scale { by: By::Second, without_factor: 0.1, with_factor: 0.3 };
        assert!(scale.without(3) > scale.with(1), "by 6e-17");
        assert_eq!(scaled(Is(3), Is(1), false, scale), Change::Unchanged);
        assert_eq!(scaled(Is(1), Is(3), false, scale), Change::Rose);
    }

    #[test]
    fn noise_is_that_of_the_counts_and_is_scaled_with_them() {
        let twice = Scale { by: By::Second, without_factor: 1.0, with_factor: 0.5 };
        assert_eq!(scaled(Is(100), Is(200), true, twice), Change::Noise, "the same rate");
        // 100 and 130 per second: ±√(100 + 260/4) = 12.8.
        assert_eq!(scaled(Is(100), Is(260), true, twice), Change::Rose);
        // 100 and 120 per second: ±12.6.
        assert_eq!(scaled(Is(100), Is(240), true, twice), Change::Noise);
    }

    #[test]
    fn events_of_several_runs_that_differ_by_less_than_their_spread_are_noise() {
        let (symbol, object, stage) = ("f".into(), None, Stage::Other);
        let mut row = Row { symbol, object, stage, without: Is(7), with: Is(9), noise: 2.0 };
        let change = |row: &Row| Change::of(row, Scale::as_they_are(), false);
        assert_eq!(change(&row), Change::Noise);
        row.noise = 1.9;
        assert_eq!(change(&row), Change::Rose);
        (row.with, row.noise) = (Is(7), 0.0);
        assert_eq!(change(&row), Change::Unchanged);
    }
}
