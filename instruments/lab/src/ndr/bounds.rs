//! Goals, trials, conclusions from the trials at one rate, and bounds from the trials at all rates.

use std::collections::BTreeMap;

use serde::Serialize;

/// The class of a rate with respect to a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The rate is carried, independent of further trials.
    Lower,
    /// The rate is not carried, independent of further trials.
    Upper,
    /// Further trials are needed to decide.
    Undecided,
}

/// Every trial so far, by its rate.
#[derive(Debug, Default)]
pub struct Trials(BTreeMap<u64, Vec<Trial>>);

/// The highest rate that the path carries, and the lowest rate that it does not carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The highest rate that is carried, below the lowest that is not.
    pub lower: Option<u64>,
    /// The lowest rate that is not carried.
    pub upper: Option<u64>,
}

/// Total times of the trials at one rate, by result.
struct Times {
    low_loss_s: f64,
    high_loss_s: f64,
    whole_s: f64,
}

impl Times {
    /// Adds up the times of the trials with low and with high loss. The total time of short trials
    /// with high loss is reduced by an allowance, which the short trials with low loss give.
    ///
    /// Source: draft-ietf-bmwg-mlrsearch-15, "Load Classification Code".
    fn of(goal: &Goal, trials: &[Trial]) -> Times {
        let sum = |long: bool, low: bool| -> f64 {
            let chosen = trials.iter().filter(|trial| {
                (trial.asked_s >= goal.trial_s) == long
                    && (trial.loss_ratio() <= goal.loss_ratio) == low
            });
            chosen.map(|trial| trial.asked_s).sum()
        };
        let balancing_s = if goal.exceed_ratio < 1.0 {
            sum(false, true) * goal.exceed_ratio / (1.0 - goal.exceed_ratio)
        } else {
            f64::INFINITY
        };
        let excess_s = (sum(false, false) - balancing_s).max(0.0);
        let (low_loss_s, high_loss_s) = (sum(true, true), sum(true, false) + excess_s);
        Times { low_loss_s, high_loss_s, whole_s: (low_loss_s + high_loss_s).max(goal.sum_s) }
    }
}

/// Classifies a rate by `trials`, all of which were made at that rate.
#[must_use]
pub fn classify(goal: &Goal, trials: &[Trial]) -> Class {
    let times = Times::of(goal, trials);
    let allowed_s = times.whole_s * goal.exceed_ratio;
    // The time still missing from `sum_s` counts as bad for the lower bound, and as good for the
    // upper bound: the class is final only if no further trial can change it.
    if times.whole_s - times.low_loss_s <= allowed_s {
        Class::Lower
    } else if times.high_loss_s > allowed_s {
        Class::Upper
    } else {
        Class::Undecided
    }
}

/// Returns the packets a second that are guaranteed at a rate that is carried: the output in all
/// but the worst of the trials.
///
/// Source: draft-ietf-bmwg-mlrsearch-15, "Conditional Throughput Code".
#[must_use]
pub fn throughput_pps(goal: &Goal, load_pps: u64, trials: &[Trial]) -> f64 {
    let times = Times::of(goal, trials);
    let mut remaining_s = times.whole_s * (1.0 - goal.exceed_ratio);
    let mut full: Vec<&Trial> = trials.iter().filter(|t| t.asked_s >= goal.trial_s).collect();
    full.sort_by(|a, b| a.loss_ratio().total_cmp(&b.loss_ratio()));
    let mut loss_ratio = 1.0;
    for trial in full {
        if remaining_s <= 0.0 {
            break;
        }
        loss_ratio = trial.loss_ratio();
        remaining_s -= trial.asked_s;
    }
    if remaining_s > 0.0 {
        loss_ratio = 1.0;
    }
    load_pps as f64 * (1.0 - loss_ratio)
}

impl Trials {
    /// Adds a trial.
    pub fn add(&mut self, trial: Trial) {
        self.0.entry(trial.load_pps).or_default().push(trial);
    }

    /// Returns the trials at a rate.
    #[must_use]
    pub fn at(&self, load_pps: u64) -> &[Trial] {
        self.0.get(&load_pps).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of trials.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Returns all trials, from the lowest rate.
    pub fn iter(&self) -> impl Iterator<Item = &Trial> {
        self.0.values().flatten()
    }

    /// Returns the bounds that follow from all trials.
    #[must_use]
    pub fn bounds(&self, goal: &Goal) -> Bounds {
        let of = |class: Class| {
            let loads = self.0.iter();
            loads.filter(move |(_, trials)| classify(goal, trials) == class).map(|(load, _)| *load)
        };
        let upper = of(Class::Upper).next();
        let below = |load: &u64| upper.is_none_or(|upper| *load < upper);
        Bounds { lower: of(Class::Lower).take_while(below).last(), upper }
    }
}

/// A tolerated loss, with the evidence required to accept a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// `NDR`, or `PDR`.
    pub name: &'static str,
    /// Share of packets that may be lost in a trial.
    pub loss_ratio: f64,
    /// Share of the trials' time in which the loss may be exceeded.
    pub exceed_ratio: f64,
    /// The width of the interval at which the search ends, as a share of its upper end.
    pub width: f64,
    /// Length of a trial, in seconds.
    pub trial_s: f64,
    /// Total time of the trials at one rate, in seconds, after which the rate is decided.
    pub sum_s: f64,
}

impl Goal {
    /// No loss, in trials of 1 s: the requirement of FD.io CSIT.
    pub const NDR: Goal = Goal {
        name: "NDR",
        loss_ratio: 0.0,
        exceed_ratio: 0.5,
        width: 0.005,
        trial_s: 1.0,
        sum_s: 21.0,
    };

    /// A loss of 0.5 %.
    pub const PDR: Goal = Goal { name: "PDR", loss_ratio: 0.005, ..Goal::NDR };

    /// No loss in one trial of 60 s: the throughput of RFC 2544.
    pub const RFC_2544: Goal = Goal { exceed_ratio: 0.0, trial_s: 60.0, sum_s: 60.0, ..Goal::NDR };

    /// Returns coarser versions of the goal, followed by the goal itself. Each begins at the result
    /// of the one before, so that the search needs few trials.
    #[must_use]
    pub fn phases(&self) -> Vec<Goal> {
        // The phases' total times grow geometrically from one trial to all: 1 s, 4.6 s, 21 s.
        let trials = (self.sum_s / self.trial_s).max(1.0);
        let phase = |part: f64, width: f64| Goal {
            sum_s: self.trial_s * trials.powf(part),
            width: self.width * width,
            ..*self
        };
        if trials < 2.0 { vec![*self] } else { vec![phase(0.0, 4.0), phase(0.5, 2.0), *self] }
    }
}

/// The result for one goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoalResult {
    /// The goal of the search.
    pub goal: Goal,
    /// The highest rate that is carried; `None` if even the lowest rate is not carried.
    pub lower_pps: Option<u64>,
    /// The lowest rate that is not carried; `None` if even the highest is carried.
    pub upper_pps: Option<u64>,
    /// Packets a second that the path guarantees at the lower bound.
    pub throughput_pps: Option<f64>,
    /// The reason why the interval is wider than requested; `None` if it is not.
    pub irregular: Option<&'static str>,
    /// Number of trials for this goal, without trials for earlier goals that also counted for it.
    pub trials: usize,
}

/// The result of a search, over all goals.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The result for each goal.
    pub found: Vec<GoalResult>,
    /// The trials that were accepted.
    pub trials: Vec<Trial>,
    /// Number of trials in which other programs used the CPUs, both repeated and accepted ones.
    pub disturbed: usize,
    /// The disturbance of the last disturbed trial.
    pub disturbed_last: Option<String>,
    /// False if the search was interrupted, or reached its limit of trials.
    pub complete: bool,
}

/// A trial: packets offered at a rate, and the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The requested rate, in packets a second.
    pub load_pps: u64,
    /// The requested length of the trial, in seconds.
    pub asked_s: f64,
    /// The number of packets at this rate in this time.
    pub offered: u64,
    /// Offered packets that never left the generator. They count as lost.
    pub unsent: u64,
    /// Packets that arrived at the other end, whole and without duplicates.
    pub forwarded: u64,
    /// Packets that arrived twice, out of order or damaged.
    pub faults: u64,
    /// 99th percentile of the lateness of sent packets; `None` if unknown.
    pub late_p99_ns: Option<u64>,
    /// Share of the trial in which the path's own worker slept for lack of packets; `None` for an
    /// external path. A worker that slept was not the limit.
    pub path_asleep_pct: Option<f64>,
    /// The disturbance that took CPU time during the trial; such a trial is repeated unless all
    /// trials count.
    pub disturbed: Option<String>,
}

impl Trial {
    /// Returns the share of the offered packets that did not arrive.
    #[must_use]
    pub fn loss_ratio(&self) -> f64 {
        if self.offered == 0 {
            return 1.0;
        }
        self.offered.saturating_sub(self.forwarded) as f64 / self.offered as f64
    }

    /// Returns the packets a second that arrived.
    #[must_use]
    pub fn forwarded_pps(&self) -> u64 {
        (self.load_pps as f64 * (1.0 - self.loss_ratio())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(load_pps: u64, lost: u64) -> Trial {
        Trial {
            load_pps,
            asked_s: 1.0,
            offered: load_pps,
            unsent: 0,
            forwarded: load_pps - lost,
            faults: 0,
            late_p99_ns: None,
            path_asleep_pct: None,
            disturbed: None,
        }
    }

    #[test]
    fn eleven_of_twenty_one_decide() {
        let class = |good: usize, bad: usize| {
            let mut trials = vec![trial(1000, 0); good];
            trials.extend(vec![trial(1000, 1); bad]);
            classify(&Goal::NDR, &trials)
        };
        assert_eq!(class(10, 0), Class::Undecided);
        assert_eq!(class(11, 0), Class::Lower);
        assert_eq!(class(11, 10), Class::Lower);
        assert_eq!(class(10, 10), Class::Undecided);
        assert_eq!(class(10, 11), Class::Upper);
        assert_eq!(class(0, 11), Class::Upper);
        assert_eq!(class(0, 0), Class::Undecided);
    }

    #[test]
    fn one_lossy_trial_of_rfc_2544_is_enough() {
        let long = |lost| Trial { asked_s: 60.0, ..trial(1000, lost) };
        assert_eq!(classify(&Goal::RFC_2544, &[long(0)]), Class::Lower);
        assert_eq!(classify(&Goal::RFC_2544, &[long(1)]), Class::Upper);
        // A trial that is too short can reject a rate, but cannot accept it.
        assert_eq!(classify(&Goal::RFC_2544, &[trial(1000, 0)]), Class::Undecided);
        assert_eq!(classify(&Goal::RFC_2544, &[trial(1000, 1)]), Class::Upper);
    }

    #[test]
    fn a_partial_drop_rate_takes_its_loss() {
        let goal = Goal { sum_s: 1.0, ..Goal::PDR };
        assert_eq!(classify(&goal, &[trial(1000, 5)]), Class::Lower);
        assert_eq!(classify(&goal, &[trial(1000, 6)]), Class::Upper);
        assert_eq!(throughput_pps(&goal, 1000, &[trial(1000, 5)]), 995.0);
    }

    #[test]
    fn the_throughput_is_that_of_all_but_the_worst() {
        let mut trials = vec![trial(1000, 0); 12];
        trials.extend(vec![trial(1000, 500); 9]);
        assert_eq!(throughput_pps(&Goal::NDR, 1000, &trials), 1000.0);
        assert_eq!(throughput_pps(&Goal::NDR, 1000, &trials[..3]), 0.0);
    }

    #[test]
    fn a_carried_rate_above_one_that_is_not_does_not_count() {
        let goal = Goal { sum_s: 1.0, ..Goal::NDR };
        let mut trials = Trials::default();
        for (load, lost) in [(100, 0), (200, 1), (300, 0)] {
            trials.add(trial(load, lost));
        }
        assert_eq!(trials.bounds(&goal), Bounds { lower: Some(100), upper: Some(200) });
    }

    #[test]
    fn phases_end_with_the_goal_and_one_trial_needs_none() {
        let phases = Goal::NDR.phases();
        assert_eq!((phases.len(), phases[2]), (3, Goal::NDR));
        assert_eq!((phases[0].sum_s, phases[0].width), (1.0, 0.02));
        assert_eq!(Goal::RFC_2544.phases(), [Goal::RFC_2544]);
    }

    /// Checks the allowance: of short trials a share of `exceed_ratio` may be lossy without saying
    /// anything. Source: draft-ietf-bmwg-mlrsearch-15, "Load Classification Code".
    #[test]
    fn short_lossy_trials_count_beyond_what_the_short_good_ones_allow() {
        let goal = Goal { exceed_ratio: 0.25, trial_s: 2.0, sum_s: 20.0, ..Goal::NDR };
        let class = |good: usize, bad: usize| {
            let mut trials = vec![trial(1000, 0); good];
            trials.extend(vec![trial(1000, 1); bad]);
            classify(&goal, &trials)
        };
        assert_eq!(class(0, 5), Class::Undecided);
        assert_eq!(class(0, 6), Class::Upper, "6 s are more than a quarter of 20 s");
        assert_eq!((class(9, 8), class(9, 9)), (Class::Undecided, Class::Upper), "3 s of 9 s");
    }

    #[test]
    fn short_good_trials_take_nothing_from_the_loss_of_long_ones() {
        let goal = Goal { exceed_ratio: 0.25, trial_s: 2.0, sum_s: 4.0, ..Goal::NDR };
        let mut trials = vec![trial(1000, 0); 30];
        trials.push(Trial { asked_s: 2.0, ..trial(1000, 1) });
        assert_eq!(classify(&goal, &trials), Class::Upper);
    }

    #[test]
    fn packets_that_never_left_the_generator_are_lost() {
        let late = Trial { unsent: 10, ..trial(1000, 10) };
        assert_eq!((late.loss_ratio(), late.forwarded_pps()), (0.01, 990));
        let none = Trial { offered: 0, forwarded: 0, ..trial(1000, 0) };
        assert_eq!((none.loss_ratio(), none.forwarded_pps()), (1.0, 0));
    }
}
