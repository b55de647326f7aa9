//! The alarms of stages: calls without packets, at the times that the stages want.
//!
//! Owner: the worker. A worker without stages of the program pays one branch a turn; one with such
//!        stages asks each of them after the packets of a turn.

use std::time::{Duration, Instant};

use super::{Worker, dispatch};
use crate::stage::{PortId, Stage, Turn};
use crate::worker_slot::Phase;

/// Least time between two calls of a stage, also of one whose alarm is always in the past.
const CALL_INTERVAL: Duration = Duration::from_millis(1);

/// The times at which the stages want to be called.
#[derive(Debug, Default)]
pub(crate) struct StageAlarms {
    /// The earliest time at which a stage is called.
    pub next: Option<Instant>,
    /// The answers of the stages that are asked.
    asked: Vec<Asked>,
}

/// The last answer of a stage.
#[derive(Debug, Clone, Default)]
struct Asked {
    /// The time at which the stage is called.
    at: Option<Instant>,
    /// The time before which it is not called again.
    not_before: Option<Instant>,
}

impl StageAlarms {
    /// Asks the first `stages` stages of a worker, beginning with its first turn.
    pub fn of_first(stages: usize) -> StageAlarms {
        let next = (stages > 0).then(Instant::now);
        StageAlarms { next, asked: vec![Asked::default(); stages] }
    }

    /// Returns true if there is no stage to ask.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Asks the stages again.
    fn ask(&mut self, stages: &[Box<dyn Stage>]) {
        for (asked, stage) in self.asked.iter_mut().zip(stages) {
            let alarm = stage.alarm();
            asked.at = alarm.map(|at| asked.not_before.map_or(at, |earliest| at.max(earliest)));
        }
        self.next = self.asked.iter().filter_map(|asked| asked.at).min();
    }
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
        for (stage, asked) in self.stages.iter_mut().zip(&mut self.stage_alarms.asked) {
            if asked.at.is_none_or(|at| at > now) {
                continue;
            }
            stage.alarmed(&mut Turn::new(now, PortId::NONE, None, &mut self.outbox, mem));
            dispatch(&mut self.outbox, &mut self.napis, now, mem);
            asked.not_before = Some(now + CALL_INTERVAL);
        }
        self.stage_alarms.ask(&self.stages);
    }
}
