//! Verdict on an effect.

use crate::record::{Effect, Verdict};

/// The margin of `same` in per cent if an experiment declares none, and the tolerance of a control.
pub const SAME_PCT: f64 = 1.0;

/// Smallest number of set-ups for a verdict: with five, the probability cannot be below 5 %.
pub(crate) const SET_UPS_MIN: usize = 6;

/// Probability below which a difference is accepted, after the correction for the grid.
const ALPHA: f64 = 0.05;

/// Returns true if the sides differ, in either direction: the interval excludes no change, the
/// change exceeds the noise floor, and the probability is below 5 %.
///
/// Without a control, or if neither it nor the first side counted anything, the floor is not known;
/// it is taken as 1 %.
#[must_use]
pub fn distinct(effect: &Effect) -> bool {
    let unlikely = effect.p_holm.is_some_and(|chance| chance < ALPHA);
    excludes_none(effect.ci95_pct) && is_beyond_control(effect) && unlikely && is_least(effect)
}

/// Returns true if the real change is not less than the measured one, in its direction: a side's
/// value that is a lower bound may be higher, so the other side has to be the lower one.
fn is_least(effect: &Effect) -> bool {
    match effect.at_least {
        [false, false] => true,
        [true, false] => effect.change_pct < 0.0,
        [false, true] => effect.change_pct > 0.0,
        [true, true] => false,
    }
}

/// Returns true if a change exceeds the difference between identical runs. If that difference is
/// not noise around zero, either of the two identical sides may be the outlier: then the change
/// must exceed the difference measured from each of them.
///
/// Differences are compared as logarithms: a factor and its reciprocal are equally far from no
/// change.
fn is_beyond_control(effect: &Effect) -> bool {
    let log = |pct: f64| (1.0 + pct / 100.0).ln().abs();
    let floor = match effect.aa_pct {
        Some((_, low, high)) => log(low).max(log(high)),
        // Of a difference without a direction, the one with the greater distance.
        None => log(-effect.aa_half_width_pct.unwrap_or(SAME_PCT).min(100.0)),
    };
    let beyond = |change_pct: f64| {
        log(change_pct) > floor && (change_pct > 0.0) == (effect.change_pct > 0.0)
    };
    beyond(effect.change_pct)
        && (!control_is_off(effect) || beyond(from_control(effect, effect.change_pct)))
}

/// Returns the second side's change relative to the control instead of to the first side.
pub(super) fn from_control(effect: &Effect, change_pct: f64) -> f64 {
    let control_pct = effect.aa_pct.map_or(0.0, |(median, ..)| median);
    100.0 * ((1.0 + change_pct / 100.0) / (1.0 + control_pct / 100.0) - 1.0)
}

/// Returns true if identical code measured differently: by more than 1 %, with the whole interval
/// on one side of zero.
pub(super) fn control_is_off(effect: &Effect) -> bool {
    effect
        .aa_pct
        .is_some_and(|(median, low, high)| excludes_none((low, high)) && median.abs() > SAME_PCT)
}

/// Returns the verdict from the effect's other figures: *same* means an interval within the
/// declared margin, which noise does not widen. Without an event on either side nothing is known of
/// their ratio. Nor are sides the same if a value is a lower bound.
///
/// Where neither direction is better, a difference has no name: it is unclear what to say of it,
/// and [`distinct`] tells it from one that is not known.
pub(super) fn judge(effect: &Effect) -> Verdict {
    if effect.n_set_ups.is_some_and(|set_ups| set_ups < SET_UPS_MIN) {
        return Verdict::Unclear;
    }
    if distinct(effect) {
        return direction(effect.change_pct, effect.better_when.as_deref());
    }
    if control_is_off(effect) || effect.is_of_nothing() || effect.at_least.contains(&true) {
        return Verdict::Unclear;
    }
    let margin = effect.same_pct.unwrap_or(SAME_PCT);
    let (low, high) = effect.ci95_pct;
    if low >= -margin && high <= margin { Verdict::Same } else { Verdict::Unclear }
}

/// Returns the verdict for the direction of a real change.
pub(crate) fn direction(change_pct: f64, better_when: Option<&str>) -> Verdict {
    match (better_when, change_pct > 0.0) {
        (Some("higher"), true) | (Some("lower"), false) => Verdict::Better,
        (Some("higher"), false) | (Some("lower"), true) => Verdict::Worse,
        _ => Verdict::Unclear,
    }
}

/// Returns true if an interval lies entirely above or entirely below 0.
pub(crate) fn excludes_none((low, high): (f64, f64)) -> bool {
    low > 0.0 || high < 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(ci95_pct: (f64, f64), floor: f64, chance: f64) -> Effect {
        Effect {
            unit: "ns".into(),
            better_when: Some("lower".into()),
            a: 100.0,
            b: 90.0,
            change_pct: f64::midpoint(ci95_pct.0, ci95_pct.1),
            ci95_pct,
            n_pairs: 15,
            n_set_ups: Some(15),
            same_pct: Some(1.0),
            censored_below: None,
            at_least: [false; 2],
            aa_half_width_pct: Some(floor),
            aa_pct: Some((0.0, -floor, floor)),
            p_holm: Some(chance),
            expected: None,
            elsewhere: None,
            verdict: Verdict::Unclear,
        }
    }

    #[test]
    fn a_difference_must_pass_all_three_hurdles() {
        assert_eq!(judge(&effect((-12.0, -8.0), 0.5, 0.01)), Verdict::Better);
        assert_eq!(judge(&effect((8.0, 12.0), 0.5, 0.01)), Verdict::Worse);
        assert_eq!(judge(&effect((-12.0, 1.0), 0.5, 0.01)), Verdict::Unclear);
        assert_eq!(judge(&effect((-12.0, -8.0), 11.0, 0.01)), Verdict::Unclear);
        assert_eq!(judge(&effect((-12.0, -8.0), 0.5, 0.06)), Verdict::Unclear);
    }

    #[test]
    fn a_small_difference_that_is_certain_is_one() {
        assert_eq!(judge(&effect((-0.4, -0.2), 0.0, 0.001)), Verdict::Better);
        assert_eq!(judge(&effect((-0.4, -0.2), 0.35, 0.001)), Verdict::Same);
    }

    #[test]
    fn same_needs_an_interval_within_the_declared_margin_whatever_the_noise() {
        assert_eq!(judge(&effect((-0.9, 0.9), 0.1, 1.0)), Verdict::Same);
        assert_eq!(judge(&effect((-0.9, 1.1), 0.1, 1.0)), Verdict::Unclear);
        assert_eq!(judge(&effect((-0.9, 1.1), 2.0, 1.0)), Verdict::Unclear);
        assert_eq!(judge(&effect((-88.0, 104.0), 150.0, 1.0)), Verdict::Unclear);
        let mut wider = effect((-0.9, 1.1), 2.0, 1.0);
        wider.same_pct = Some(2.0);
        assert_eq!(judge(&wider), Verdict::Same);
    }

    #[test]
    fn fewer_than_six_set_ups_say_nothing_not_even_that_it_is_the_same() {
        for (interval, chance) in [((-0.1, 0.1), 1.0), ((-12.0, -8.0), 0.001)] {
            let mut few = effect(interval, 0.1, chance);
            few.n_set_ups = Some(5);
            assert_eq!(judge(&few), Verdict::Unclear);
        }
    }

    #[test]
    fn beside_a_control_that_is_off_a_change_counts_from_whichever_of_the_two_is_nearer() {
        let beside = |ci95_pct, aa: (f64, f64, f64)| {
            let floor = aa.1.abs().max(aa.2.abs());
            let mut one = effect(ci95_pct, floor, 0.001);
            one.aa_pct = Some(aa);
            judge(&one)
        };
        assert_eq!(beside((-12.0, -8.0), (2.0, 1.0, 3.0)), Verdict::Better, "-12 from the control");
        assert_eq!(beside((-12.0, -8.0), (-6.0, -7.0, -5.0)), Verdict::Unclear, "-4 from it");
        assert_eq!(beside((-12.0, -8.0), (-11.0, -9.0, -9.0)), Verdict::Unclear, "+1 from it");
        assert_eq!(beside((-98.0, -97.0), (-40.0, -45.0, -30.0)), Verdict::Better);
        // The verdict is not `same` if identical code differs by more than the margin.
        assert_eq!(beside((-0.5, 0.5), (2.0, 1.0, 3.0)), Verdict::Unclear);
        assert_eq!(beside((-0.5, 0.5), (0.8, 0.5, 1.1)), Verdict::Same, "within its allowance");
    }

    #[test]
    fn a_change_and_its_undoing_are_equally_far_beyond_the_noise() {
        let beside = |ci95_pct, aa: (f64, f64, f64)| {
            let mut one = effect(ci95_pct, aa.1.abs().max(aa.2.abs()), 0.001);
            one.aa_pct = Some(aa);
            judge(&one)
        };
        // Identical code differed by a factor of 0.7, which is 43 % the other way.
        assert_eq!(beside((31.0, 39.0), (-10.0, -30.0, 5.0)), Verdict::Unclear);
        assert_eq!(beside((44.0, 52.0), (-10.0, -30.0, 5.0)), Verdict::Worse);
        // A quarter is further away than the double.
        assert_eq!(beside((-78.0, -72.0), (10.0, -50.0, 110.0)), Verdict::Better);
        assert_eq!(beside((-52.0, -48.0), (10.0, -50.0, 110.0)), Verdict::Unclear);
    }

    #[test]
    fn without_a_goal_a_difference_is_distinct_and_has_no_name() {
        let mut one = effect((-12.0, -8.0), 0.5, 0.01);
        one.better_when = None;
        assert_eq!((judge(&one), distinct(&one)), (Verdict::Unclear, true));
        let mut same = effect((-0.5, 0.5), 0.5, 1.0);
        same.better_when = None;
        assert_eq!((judge(&same), distinct(&same)), (Verdict::Same, false));
    }

    #[test]
    fn without_a_control_less_than_one_per_cent_is_no_difference() {
        let mut one = effect((-0.9, -0.8), 0.0, 0.001);
        (one.aa_half_width_pct, one.aa_pct) = (None, None);
        assert_eq!(judge(&one), Verdict::Same);
    }

    #[test]
    fn a_change_that_is_the_opposite_from_the_control_is_none() {
        let mut one = effect((4.0, 8.0), 0.0, 0.001);
        // The change is +6 % from the first side, and −7 % from the control.
        (one.aa_half_width_pct, one.aa_pct) = (Some(5.0), Some((14.0, 13.0, 15.0)));
        assert_eq!((judge(&one), distinct(&one)), (Verdict::Unclear, false));
    }

    #[test]
    fn six_set_ups_are_enough_for_a_verdict() {
        let mut few = effect((-12.0, -8.0), 0.1, 0.04);
        few.n_set_ups = Some(SET_UPS_MIN);
        assert_eq!(judge(&few), Verdict::Better);
    }
}
