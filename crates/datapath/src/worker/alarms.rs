//! The alarms of stages: calls without packets, at the times that the stages want.
//!
//! Owner: the worker. A worker without stages of the program pays one branch a turn; one with such
//!        stages asks each of them after the packets of a turn.

use std::time::{Duration, Instant};

use super::{Worker, dispatch};
use crate::stage::{PortId, Stage, Turn};
use crate::worker_slot::Phase;

/// Time after which a stage is called again whose alarm is still in the past after a call.
const PAST_INTERVAL: Duration = Duration::from_millis(1);

/// The times at which the stages want to be called.
#[derive(Debug, Default)]
pub(crate) struct StageAlarms {
    /// The earliest time at which a stage is called.
    pub next: Option<Instant>,
    /// For each stage that is asked, the time before which it is not called again.
    not_before: Vec<Option<Instant>>,
}

impl StageAlarms {
    /// Asks the first `stages` stages of a worker, beginning with its first turn.
    pub fn of_first(stages: usize) -> StageAlarms {
        StageAlarms { next: (stages > 0).then(Instant::now), not_before: vec![None; stages] }
    }

    /// Returns true if there is no stage to ask.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.not_before.is_empty()
    }

    /// Asks the stages again.
    fn ask(&mut self, stages: &[Box<dyn Stage>]) {
        let all = stages.iter().zip(&self.not_before);
        self.next = all.filter_map(|(stage, not_before)| alarm(&**stage, *not_before)).min();
    }
}

/// Returns the time at which the stage is to be called.
fn alarm(stage: &dyn Stage, not_before: Option<Instant>) -> Option<Instant> {
    stage.alarm().map(|at| not_before.map_or(at, |earliest| at.max(earliest)))
}

impl Worker {
    /// Asks the stages if they have run in this turn, and calls those whose time has come. A worker
    /// that ends calls none.
    #[inline(never)]
    pub(super) fn serve_alarms(&mut self, now: Instant, ran: bool) {
        if self.slot.phase() != Phase::Run {
            self.stage_alarms.next = None;
            return;
        }
        if ran {
            self.stage_alarms.ask(&self.stages);
        }
        if self.stage_alarms.next.is_some_and(|at| at <= now) {
            self.call_alarmed(now);
        }
    }

    /// Calls the stages whose time has come, sends their packets, and asks all stages again.
    #[cold]
    fn call_alarmed(&mut self, now: Instant) {
        let Some(mem) = self.mems.first_mut() else { return };
        let StageAlarms { not_before, .. } = &mut self.stage_alarms;
        for (stage, not_before) in self.stages.iter_mut().zip(not_before) {
            if alarm(&**stage, *not_before).is_none_or(|at| at > now) {
                continue;
            }
            stage.alarmed(&mut Turn::new(now, PortId::NONE, None, &mut self.outbox, mem));
            dispatch(&mut self.outbox, &mut self.napis, now, mem);
            let is_past = stage.alarm().is_some_and(|at| at <= now);
            *not_before = is_past.then(|| now + PAST_INTERVAL);
        }
        self.stage_alarms.ask(&self.stages);
    }
}
