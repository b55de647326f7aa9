//! Choice of the next trial, until each goal's interval is narrow enough.

use super::bounds::Goal;
use super::bounds::{Bounds, Class, Trials, classify, throughput_pps};
use super::bounds::{GoalResult, Outcome, Trial};
use crate::Result;

/// A source of trials.
pub trait Prober {
    /// Offers `load_pps` for `seconds`.
    fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial>;

    /// Receives the result of each trial; returns false to end the search early.
    fn go_on(&mut self, step: &Step<'_>) -> bool;

    /// Returns true if the search was ended during a trial, which then does not count.
    fn stops(&self) -> bool {
        false
    }
}

/// The progress of the search.
#[derive(Debug)]
pub struct Step<'a> {
    /// The goal that is searched for.
    pub goal: &'a Goal,
    /// The phase, from 1, and the number of phases.
    pub phase: (usize, usize),
    /// The interval so far.
    pub bounds: (Option<u64>, Option<u64>),
    /// The trial that was just made.
    pub trial: &'a Trial,
    /// Number of trials so far.
    pub trials: usize,
    /// The expected time left, in seconds of trials, if the trials at each rate agree.
    pub left_s: f64,
}

/// The limits of a search: its rates and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The lowest rate that is of interest, in packets a second.
    pub min_pps: u64,
    /// The highest rate: the limit of the generator or the link.
    pub max_pps: u64,
    /// Most trials of a search.
    pub trials_max: usize,
    /// The treatment of disturbed trials.
    pub disturbed: Disturbed,
}

/// The treatment of a trial that lost CPU time to a disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbed {
    /// The trial is discarded and repeated.
    Again {
        /// Most repetitions in a row; after them a disturbed trial is accepted and its rate marked
        /// irregular, because the machine is never quiet.
        again_max: usize,
        /// Number of disturbed trials for each undisturbed trial at which the search gives up; it
        /// is checked after the first dozen disturbed trials.
        per_trial_max: usize,
    },
    /// A disturbed trial counts as any other: the result describes the machine with its other
    /// programs. A rate that is not carried might be carried without them.
    Counts,
}

struct Search<'a> {
    limits: Limits,
    prober: &'a mut dyn Prober,
    trials: Trials,
    disturbed: usize,
    disturbed_last: Option<String>,
    ended: bool,
    /// The expected time of the goals after the present one.
    later_s: f64,
}

/// Searches for each of `goals`, in order; a trial for one goal also counts for the other goals.
///
/// It ends: every trial is at a rate that is undecided, and there are at most
/// [`Limits::trials_max`].
///
/// # Errors
/// What `prober` fails with.
pub fn search(goals: &[Goal], limits: Limits, prober: &mut dyn Prober) -> Result<Outcome> {
    let trials = Trials::default();
    let mut search = Search {
        limits,
        prober,
        trials,
        disturbed: 0,
        disturbed_last: None,
        ended: false,
        later_s: 0.0,
    };
    let mut found = Vec::new();
    for (i, goal) in goals.iter().enumerate() {
        let later = goals.get(i + 1..).unwrap_or_default();
        search.later_s = later.iter().flat_map(Goal::phases).map(|phase| phase_s(&phase)).sum();
        found.push(search.find(goal)?);
    }
    Ok(Outcome {
        found,
        disturbed: search.disturbed,
        disturbed_last: search.disturbed_last,
        complete: !search.ended,
        trials: search.trials.iter().cloned().collect(),
    })
}

impl Search<'_> {
    fn find(&mut self, goal: &Goal) -> Result<GoalResult> {
        let before = self.trials.count();
        let phases = goal.phases();
        let mut coarse = Bounds::default();
        for (i, phase) in phases.iter().enumerate() {
            let number = (i + 1, phases.len());
            // The earlier phase decided these two rates by few trials: decide them again with the
            // trials that this phase requires.
            for load in [coarse.lower, coarse.upper].into_iter().flatten() {
                self.decide(phase, number, load)?;
            }
            self.narrow(phase, number)?;
            coarse = self.trials.bounds(phase);
        }
        let Bounds { lower, upper } = self.trials.bounds(goal);
        let throughput = |load| throughput_pps(goal, load, self.trials.at(load));
        Ok(GoalResult {
            goal: *goal,
            lower_pps: lower,
            upper_pps: upper,
            throughput_pps: lower.map(throughput),
            irregular: self.irregular(goal, lower, upper),
            trials: self.trials.count() - before,
        })
    }

    fn irregular(
        &self,
        goal: &Goal,
        lower: Option<u64>,
        upper: Option<u64>,
    ) -> Option<&'static str> {
        match (lower, upper) {
            _ if self.ended => Some("the search was ended early"),
            _ if self.is_doubtful(lower) || self.is_doubtful(upper) => {
                Some("other processes repeatedly took the CPUs from trials at its bounds")
            }
            (Some(lower), Some(upper)) if !narrow(goal, lower, upper) => Some("not narrow enough"),
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some("the path carries the highest rate that can be offered"),
            (None, _) => Some("the path does not carry the lowest rate"),
        }
    }

    /// Returns true if a disturbed trial at a bound was accepted.
    fn is_doubtful(&self, bound: Option<u64>) -> bool {
        let disturbed = |load| self.trials.at(load).iter().any(|trial| trial.disturbed.is_some());
        self.limits.disturbed != Disturbed::Counts && bound.is_some_and(disturbed)
    }

    /// Tries rates until the interval is as narrow as `goal` requires, or cannot become narrower.
    fn narrow(&mut self, goal: &Goal, phase: (usize, usize)) -> Result<()> {
        // Distance of the next rate from the interval, in widths; it doubles with each step.
        let mut stride = 1.0;
        while !self.ended {
            let bounds = self.trials.bounds(goal);
            let Some(load) = self.next(goal, bounds, stride) else { return Ok(()) };
            if bounds.lower.is_none() || bounds.upper.is_none() {
                stride *= 2.0;
            }
            self.decide(goal, phase, load)?;
        }
        Ok(())
    }

    /// Returns the next rate to try; `None` if there is none.
    fn next(&self, goal: &Goal, bounds: Bounds, stride: f64) -> Option<u64> {
        let Limits { min_pps, max_pps, .. } = self.limits;
        let step = (1.0 - goal.width).powf(stride);
        match (bounds.lower, bounds.upper) {
            (None, None) => Some(max_pps),
            (Some(lower), None) if lower >= max_pps => None,
            (Some(lower), None) => Some(((lower as f64 / step) as u64).clamp(lower + 1, max_pps)),
            (None, Some(upper)) if upper <= min_pps => None,
            (None, Some(upper)) => {
                // In the first step, the rate that arrived during the trials at the upper bound is
                // a better guess than a step of a fixed width.
                let came = self.trials.at(upper).iter().map(Trial::forwarded_pps).max();
                let guess = came.filter(|_| stride == 1.0).unwrap_or(0);
                let stepped = (upper as f64 * step) as u64;
                Some(if guess > 0 { guess.min(stepped) } else { stepped }.clamp(min_pps, upper - 1))
            }
            (Some(lower), Some(upper)) if narrow(goal, lower, upper) => None,
            // The width of an interval is a ratio, so bisect by ratio: take the geometric mean.
            (Some(lower), Some(upper)) => {
                let middle = (lower as f64 * upper as f64).sqrt() as u64;
                Some(middle.clamp(lower + 1, upper - 1))
            }
        }
    }

    /// Makes trials at `load` until they classify it.
    fn decide(&mut self, goal: &Goal, phase: (usize, usize), load: u64) -> Result<()> {
        while !self.ended && classify(goal, self.trials.at(load)) == Class::Undecided {
            let trial = self.trial(load, goal.trial_s)?;
            if self.prober.stops() {
                self.ended = true;
                return Ok(());
            }
            self.trials.add(trial.clone());
            let Bounds { lower, upper } = self.trials.bounds(goal);
            let trials = self.trials.count();
            let left_s = self.left_s(goal, phase, Bounds { lower, upper });
            let step = Step { goal, phase, bounds: (lower, upper), trial: &trial, trials, left_s };
            let go_on = self.prober.go_on(&step);
            let crowded = match self.limits.disturbed {
                Disturbed::Again { per_trial_max, .. } => {
                    self.disturbed > DISTURBED_FREE + per_trial_max * trials
                }
                Disturbed::Counts => false,
            };
            self.ended |= !go_on || trials >= self.limits.trials_max || crowded;
        }
        Ok(())
    }

    fn left_s(&self, goal: &Goal, phase: (usize, usize), bounds: Bounds) -> f64 {
        let halvings = match (bounds.lower, bounds.upper) {
            (Some(lower), Some(upper)) => {
                ((upper as f64 / lower as f64).ln() / goal.width).log2().ceil().max(0.0)
            }
            _ => OUTSIDE,
        };
        let phases_left = phase.1.saturating_sub(phase.0) as f64;
        halvings * rate_s(goal) + phases_left * phase_s(goal) + self.later_s
    }

    /// Repeats a trial until it counts, and returns it.
    fn trial(&mut self, load: u64, seconds: f64) -> Result<Trial> {
        let mut again = match self.limits.disturbed {
            Disturbed::Again { again_max, .. } => again_max,
            Disturbed::Counts => 0,
        };
        loop {
            let trial = self.prober.trial(load, seconds)?;
            // A trial during which the search was ended is discarded, and so is its disturbance.
            if let Some(why) = trial.disturbed.as_ref().filter(|_| !self.prober.stops()) {
                self.disturbed += 1;
                self.disturbed_last = Some(why.clone());
            }
            if trial.disturbed.is_none() || again == 0 || self.prober.stops() {
                return Ok(trial);
            }
            again -= 1;
        }
    }
}

/// Number of disturbed trials up to which their share is not checked.
const DISTURBED_FREE: usize = 12;
/// Rates tried in a phase, for the estimate of the time: the two ends of the previous interval, and
/// one between.
const RATES: f64 = 3.0;
/// Rates tried before both bounds are known, for the estimate of the time.
const OUTSIDE: f64 = 6.0;

/// Returns the total time of the trials that decide a rate, if all have the same result.
fn rate_s(goal: &Goal) -> f64 {
    let trials = goal.sum_s / goal.trial_s * goal.exceed_ratio.max(1.0 - goal.exceed_ratio);
    goal.trial_s * trials.ceil().max(1.0)
}

fn phase_s(goal: &Goal) -> f64 {
    RATES * rate_s(goal)
}

/// Returns true if an interval is narrow enough or cannot become narrower.
fn narrow(goal: &Goal, lower: u64, upper: u64) -> bool {
    upper - lower <= 1 || (upper - lower) as f64 <= goal.width * upper as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        min_pps: 1000,
        max_pps: 10_000_000,
        trials_max: 5000,
        disturbed: Disturbed::Again { again_max: 3, per_trial_max: 9 },
    };

    /// A simulated path that carries `capacity_pps`, and a tenth less in a share of trials.
    struct Simulated {
        capacity_pps: u64,
        bad_share: f64,
        random: Random,
        trials: usize,
        disturb: bool,
    }

    impl Simulated {
        fn new(capacity_pps: u64, bad_share: f64) -> Simulated {
            Simulated { capacity_pps, bad_share, random: Random::new(3), trials: 0, disturb: false }
        }
    }

    impl Prober for Simulated {
        fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
            self.trials += 1;
            let bad = (self.random.below(1000) as f64) < 1000.0 * self.bad_share;
            let carried = if bad { self.capacity_pps * 9 / 10 } else { self.capacity_pps };
            let offered = (load_pps as f64 * seconds) as u64;
            let disturbed = (self.disturb && self.random.coin()).then(|| "a neighbour".to_owned());
            let carried = if disturbed.is_some() { 0 } else { carried };
            Ok(Trial {
                load_pps,
                asked_s: seconds,
                offered,
                unsent: 0,
                forwarded: offered.min((carried as f64 * seconds) as u64),
                faults: 0,
                late_p99_ns: None,
                path_asleep_pct: None,
                disturbed,
            })
        }

        fn go_on(&mut self, _: &Step<'_>) -> bool {
            true
        }
    }

    proptest! {
        #[test]
        fn the_interval_has_the_capacity_in_it_and_is_narrow(capacity in 1001u64..9_900_000) {
            let mut path = Simulated::new(capacity, 0.0);
            let outcome = search(&[Goal::NDR, Goal::PDR], LIMITS, &mut path).unwrap();
            let ndr = &outcome.found[0];
            let (lower, upper) = (ndr.lower_pps.unwrap(), ndr.upper_pps.unwrap());
            prop_assert!(lower <= capacity && capacity < upper, "{lower} {capacity} {upper}");
            prop_assert!(narrow(&Goal::NDR, lower, upper) && ndr.irregular.is_none());
            let pdr = &outcome.found[1];
            prop_assert!(pdr.lower_pps.unwrap() as f64 <= capacity as f64 / 0.995);
            prop_assert!(pdr.upper_pps.unwrap() as f64 >= capacity as f64 / 0.995 - 1.0);
            prop_assert!(path.trials < 400, "{} trials", path.trials);
        }

        #[test]
        fn search_ends_on_any_path_behaviour(seed in any::<u64>()) {
            struct Chaos(Random);
            impl Prober for Chaos {
                fn trial(&mut self, load_pps: u64, asked_s: f64) -> Result<Trial> {
                    let offered = load_pps;
                    let forwarded = [offered, offered / 2, 0, offered - 1][self.0.below(4)];
                    let mut trial = Simulated::new(1, 0.0).trial(load_pps, asked_s)?;
                    (trial.offered, trial.forwarded) = (offered, forwarded);
                    Ok(trial)
                }
                fn go_on(&mut self, _: &Step<'_>) -> bool {
                    true
                }
            }
            let mut path = Chaos(Random::new(seed));
            let outcome = search(&[Goal::NDR, Goal::PDR], LIMITS, &mut path).unwrap();
            prop_assert!(outcome.trials.len() <= LIMITS.trials_max);
        }
    }

    #[test]
    fn a_third_of_bad_trials_does_not_move_it() {
        let mut path = Simulated::new(2_000_000, 0.3);
        let found = search(&[Goal::NDR], LIMITS, &mut path).unwrap().found.remove(0);
        let (lower, upper) = (found.lower_pps.unwrap(), found.upper_pps.unwrap());
        assert!(lower <= 2_000_000 && 2_000_000 < upper, "{lower} {upper}");
    }

    #[test]
    fn rates_outside_the_limits_are_irregular() {
        let found = |capacity| {
            let mut path = Simulated::new(capacity, 0.0);
            search(&[Goal::NDR], LIMITS, &mut path).unwrap().found.remove(0)
        };
        let fast = found(20_000_000);
        assert_eq!((fast.lower_pps, fast.upper_pps), (Some(10_000_000), None));
        assert_eq!(fast.irregular, Some("the path carries the highest rate that can be offered"));
        let dead = found(10);
        assert_eq!((dead.lower_pps, dead.upper_pps), (None, Some(1000)));
        assert_eq!(dead.irregular, Some("the path does not carry the lowest rate"));
    }

    #[test]
    fn a_disturbed_trial_is_made_again_and_says_nothing() {
        let mut path = Simulated::new(2_000_000, 0.0);
        path.disturb = true;
        let limits =
            Limits { disturbed: Disturbed::Again { again_max: 64, per_trial_max: 9 }, ..LIMITS };
        let outcome = search(&[Goal::NDR], limits, &mut path).unwrap();
        let found = &outcome.found[0];
        assert!(found.lower_pps.unwrap() <= 2_000_000 && found.upper_pps.unwrap() > 2_000_000);
        assert_eq!(outcome.disturbed_last.as_deref(), Some("a neighbour"));
        assert!(outcome.disturbed > 0 && outcome.trials.iter().all(|t| t.disturbed.is_none()));
    }

    #[test]
    fn a_path_that_is_never_left_alone_is_irregular() {
        struct Crowded(Simulated);
        impl Prober for Crowded {
            fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
                let trial = self.0.trial(load_pps, seconds)?;
                Ok(Trial { disturbed: Some("a neighbour".into()), ..trial })
            }
            fn go_on(&mut self, _: &Step<'_>) -> bool {
                true
            }
        }
        let mut path = Crowded(Simulated::new(2_000_000, 0.0));
        let found = search(&[Goal::NDR], LIMITS, &mut path).unwrap().found.remove(0);
        assert!(
            found.irregular.unwrap().starts_with("other processes repeatedly took the CPUs"),
            "{found:?}"
        );
        let limits =
            Limits { disturbed: Disturbed::Again { again_max: 3, per_trial_max: 2 }, ..LIMITS };
        let outcome = search(&[Goal::NDR], limits, &mut path).unwrap();
        assert!(!outcome.complete && outcome.trials.len() <= 13, "{}", outcome.trials.len());
        let as_it_is = Limits { disturbed: Disturbed::Counts, ..LIMITS };
        let outcome = search(&[Goal::NDR], as_it_is, &mut path).unwrap();
        let found = &outcome.found[0];
        assert!(outcome.complete && found.irregular.is_none(), "{found:?}");
        assert!(found.lower_pps.unwrap() <= 2_000_000 && found.upper_pps.unwrap() > 2_000_000);
        assert_eq!(outcome.disturbed, outcome.trials.len());
    }

    #[test]
    fn rfc_2544_decides_with_one_trial_a_rate() {
        let mut path = Simulated::new(2_000_000, 0.0);
        let outcome = search(&[Goal::RFC_2544], LIMITS, &mut path).unwrap();
        let mut loads: Vec<u64> = outcome.trials.iter().map(|trial| trial.load_pps).collect();
        let trials = loads.len();
        loads.dedup();
        assert_eq!(loads.len(), trials);
        assert!(outcome.found[0].irregular.is_none());
    }

    /// A path whose trials, by their number from 1 and their rate, are disturbed or end the search;
    /// and the steps that it was told.
    struct Told<D> {
        path: Simulated,
        disturbed: D,
        stops_after: usize,
        left_s: Vec<(&'static str, f64)>,
    }

    impl<D: Fn(usize, u64) -> bool> Told<D> {
        fn new(disturbed: D) -> Told<D> {
            let path = Simulated::new(2_000_000, 0.0);
            Told { path, disturbed, stops_after: usize::MAX, left_s: Vec::new() }
        }
    }

    impl<D: Fn(usize, u64) -> bool> Prober for Told<D> {
        fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
            let trial = self.path.trial(load_pps, seconds)?;
            let why = format!("a neighbour, {}", self.path.trials);
            let disturbed = (self.disturbed)(self.path.trials, load_pps).then_some(why);
            Ok(Trial { disturbed, ..trial })
        }

        fn go_on(&mut self, step: &Step<'_>) -> bool {
            self.left_s.push((step.goal.name, step.left_s));
            true
        }

        fn stops(&self) -> bool {
            self.path.trials >= self.stops_after
        }
    }

    #[test]
    fn a_trial_during_which_the_search_was_ended_does_not_count() {
        let mut path = Told::new(|_, _| false);
        path.stops_after = 5;
        let outcome = search(&[Goal::NDR], LIMITS, &mut path).unwrap();
        assert_eq!((path.path.trials, outcome.trials.len(), path.left_s.len()), (5, 4, 4));
        assert!(!outcome.complete);
        assert_eq!(outcome.found[0].irregular, Some("the search was ended early"));
        let mut path = Told::new(|_, _| true);
        path.stops_after = 1;
        let outcome = search(&[Goal::NDR], LIMITS, &mut path).unwrap();
        assert_eq!((outcome.disturbed, outcome.disturbed_last), (0, None));
    }

    #[test]
    fn a_disturbed_bound_is_doubtful_at_either_end() {
        for is_upper in [true, false] {
            let mut path = Told::new(|_, load: u64| (load > 2_000_000) == is_upper);
            let limits =
                Limits { disturbed: Disturbed::Again { again_max: 1, per_trial_max: 9 }, ..LIMITS };
            let outcome = search(&[Goal::NDR], limits, &mut path).unwrap();
            let why = outcome.found[0].irregular.unwrap();
            assert!(why.starts_with("other processes repeatedly took"), "{is_upper}: {why}");
        }
    }

    #[test]
    fn a_dozen_disturbed_trials_end_no_search_and_the_last_of_them_is_named() {
        let limits =
            Limits { disturbed: Disturbed::Again { again_max: 64, per_trial_max: 0 }, ..LIMITS };
        let mut path = Told::new(|number, _| number <= 12);
        let outcome = search(&[Goal::NDR], limits, &mut path).unwrap();
        assert_eq!((outcome.complete, outcome.disturbed), (true, 12));
        assert_eq!(outcome.disturbed_last.as_deref(), Some("a neighbour, 12"));
        let mut path = Told::new(|number, _| number <= 13);
        assert!(!search(&[Goal::NDR], limits, &mut path).unwrap().complete);
    }

    #[test]
    fn each_goal_counts_its_own_trials_and_the_time_left_ends_with_the_last() {
        let mut path = Told::new(|_, _| false);
        let outcome = search(&[Goal::NDR, Goal::PDR], LIMITS, &mut path).unwrap();
        let each: Vec<usize> = outcome.found.iter().map(|found| found.trials).collect();
        assert_eq!(each.iter().sum::<usize>(), outcome.trials.len(), "{each:?}");
        assert!(each[1] > 0, "{each:?}");
        let last = |name| path.left_s.iter().rfind(|(goal, _)| *goal == name).unwrap().1;
        let of_pdr: f64 = Goal::PDR.phases().iter().map(phase_s).sum();
        assert_eq!((last("NDR"), last("PDR")), (of_pdr, 0.0));
    }

    #[test]
    fn the_width_of_an_interval_is_a_share_of_its_upper_end() {
        assert!(narrow(&Goal::NDR, 995_000, 1_000_000));
        assert!(!narrow(&Goal::NDR, 994_999, 1_000_000));
        assert!(narrow(&Goal::NDR, 3, 4) && !narrow(&Goal::NDR, 3, 5), "there is none between");
    }
}
