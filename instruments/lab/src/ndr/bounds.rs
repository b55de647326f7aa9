//! Conclusions from the trials at one rate, and bounds from the trials at all rates.

use std::collections::BTreeMap;

use super::goal::Goal;
use super::outcome::Trial;

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

/// Highest rate that is carried, and lowest that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The highest that is carried, of those below the lowest that is not.
    pub lower: Option<u64>,
    /// The lowest that is not.
    pub upper: Option<u64>,
}

/// Trials at one rate, as times.
struct Times {
    low_loss_s: f64,
    high_loss_s: f64,
    whole_s: f64,
}

impl Times {
    /// Adds up full-length trials. Excess loss of short ones counts as far as short ones without
    /// loss do not balance it.
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

/// Classifies a rate by `trials`, which were all made at it.
#[must_use]
pub fn classify(goal: &Goal, trials: &[Trial]) -> Class {
    let times = Times::of(goal, trials);
    let allowed_s = times.whole_s * goal.exceed_ratio;
    // Unseen time is bad time to the pessimist, and good time to the optimist.
    if times.whole_s - times.low_loss_s <= allowed_s {
        Class::Lower
    } else if times.high_loss_s > allowed_s {
        Class::Upper
    } else {
        Class::Undecided
    }
}

/// Packets a second that can be counted on at a rate that is carried: what came out in all but the
/// worst of the trials.
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
    /// Adds one.
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

    /// All, from the lowest rate.
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
        // A short one cannot say yes, and can say no.
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
}
