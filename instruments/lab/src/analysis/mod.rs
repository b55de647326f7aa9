//! Statistical conclusions, computed from raw pairs.
//!
//! The figure of a pair is a ratio: a metric over the window of `b` by the same over the window of
//! `a`, which ran next to it. Everything here works on the logarithms of these ratios, so that a
//! change and its undoing are the same distance apart and `b` by `a` is exactly `a` by `b` undone.
//!
//! - **Which pairs.** Those admitted by the environment for the metric's clock, of the one
//!   placement class that most of them have ([`admitted`]). No pair is left out for its result.
//! - **Which cells.** Those whose load both sides reached: a cell that names a load of a link keeps
//!   only the share that arrived if that is below 98 % on a side (`reached`).
//! - **Which unit.** A set-up of the sides: pairs of one share its memory and its luck. There are
//!   at least 6, and as many as the family of hypotheses needs; fewer say nothing.
//! - **Effect.** One estimate a metric, whatever its windows hold. The median of the set-ups'
//!   ratios, each the median of its pairs', and the interval that holds it: order statistics,
//!   interpolated (`signs`). Of what is counted, the ratio of sums, and Student's interval
//!   (`sums`).
//! - **Noise floor.** The same for control by `a`, which is the same code: the largest change
//!   within *its* interval. It is unknown, and verdicts take 1 % for it, if there is no control or
//!   neither of them counted anything.
//! - **Chance.** Signs of the logarithms flipped in all 2ⁿ ways, counted up to 256 pairs and in the
//!   limit beyond (`signs`); corrected by Holm over the family that the experiment declares: the
//!   cells that were planned, whether they ran or not, of each metric by itself or of all together.
//! - **Verdict.** Better or worse: the interval excludes no change, the change is beyond the noise
//!   floor, and chance is below 5 %. Same: the whole interval lies within the margin that the
//!   experiment declares, 1 % if it says nothing; noise never widens it. Anything else is unclear
//!   (`verdict`).
//! - **Looks.** A cell may end at an early look, if its interval is narrow enough on the scale of
//!   logarithms, and never because of what it found. That alone would not raise the rate of false
//!   verdicts; early looks are still taken at 99 %, for the reader who stops a run when it says
//!   what he hoped for: the chances of all looks together stay about 5 %, as the tests show by
//!   simulation.
//!
//! Windows of 0 have no ratio: a metric that has them is to be declared as one of sums or of
//! events, and an event that was never seen is below a bound and not 0 (`sums`). A difference of
//! figures that was below 0 in any window has no ratio either: the effect is withheld, with a
//! warning. So is it where a side lacks the figure in some of its windows, because these are often
//! its worst.

mod effect;
#[cfg(test)]
mod golden;
mod overall;
mod reached;
mod run;
mod samples;
mod signs;
#[cfg(test)]
mod simulation;
mod sums;
#[cfg(test)]
pub(crate) mod testing;
mod verdict;

pub(crate) use effect::one_event;
pub use effect::{Look, effect, half_width_pct, level};
pub use overall::overall;
pub(crate) use reached::{ACHIEVED, LOAD, REACHED_PCT};
pub use run::analyse;
pub(crate) use run::pairs_needed;
pub(crate) use samples::{
    Part, class_of, figures, has_figures, parts_of_b, set_ups, stays_disturbed,
};
pub use samples::{admitted, is_valid, look_reached, noisy};
pub(crate) use signs::{Interval, median, median_interval};
pub(crate) use sums::{Sum, value as sum_of};
pub(crate) use verdict::SET_UPS_MIN;
pub use verdict::{SAME_PCT, distinct};
pub(crate) use verdict::{direction, excludes_none};

/// Returns a ratio's logarithm as a change in per cent.
pub(crate) fn pct(log: f64) -> f64 {
    100.0 * log.exp_m1()
}
