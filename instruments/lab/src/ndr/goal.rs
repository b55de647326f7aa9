//! The condition under which a rate counts as carried.

use serde::Serialize;

/// A loss that is accepted, and how much has to be seen before a rate is said to keep it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// `NDR`, or `PDR`.
    pub name: &'static str,
    /// Share of packets that may be lost in a trial.
    pub loss_ratio: f64,
    /// Share of the trials' time in which more may be lost.
    pub exceed_ratio: f64,
    /// The interval's width at which it is done, as a share of its upper end.
    pub width: f64,
    /// Length of a trial, in seconds.
    pub trial_s: f64,
    /// Time of trials at one rate after which it is always decided, in seconds.
    pub sum_s: f64,
}

impl Goal {
    /// No loss, in trials of 1 s: what FD.io CSIT asks.
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

    /// Coarser forms of it, the goal itself last. Each begins where the one before ended, so that
    /// most of the way is gone in few trials.
    #[must_use]
    pub fn phases(&self) -> Vec<Goal> {
        // Geometric from one trial to all: 1 s, 4.6 s, 21 s.
        let trials = (self.sum_s / self.trial_s).max(1.0);
        let phase = |part: f64, width: f64| Goal {
            sum_s: self.trial_s * trials.powf(part),
            width: self.width * width,
            ..*self
        };
        if trials < 2.0 { vec![*self] } else { vec![phase(0.0, 4.0), phase(0.5, 2.0), *self] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_end_with_the_goal_and_one_trial_needs_none() {
        let phases = Goal::NDR.phases();
        assert_eq!((phases.len(), phases[2]), (3, Goal::NDR));
        assert_eq!((phases[0].sum_s, phases[0].width), (1.0, 0.02));
        assert_eq!(Goal::RFC_2544.phases(), [Goal::RFC_2544]);
    }
}
