//! A stage of the program on a worker with a divided device: it gets no packets between the device
//! and its rings.

use std::time::Instant;

use linerate_skb::Batch;

use super::Steering;
use crate::stage::{PortId, Stage, Turn};

/// A stage that runs on the batches of other ports than those of divisions.
struct Outside {
    stage: Box<dyn Stage>,
    divided: Vec<PortId>,
}

impl Stage for Outside {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if !self.divided.contains(&turn.port()) {
            self.stage.run(batch, turn);
        }
    }

    fn alarm(&self) -> Option<Instant> {
        self.stage.alarm()
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        self.stage.alarmed(turn);
    }
}

/// Returns `stage` as it is on a worker with the ports `names`: outside of the divisions of these
/// ports, if there are any.
pub(crate) fn outside(
    steerings: &[Steering],
    names: &[String],
    stage: Box<dyn Stage>,
) -> Box<dyn Stage> {
    let is_divided = |name: &String| {
        steerings.iter().any(|one| *one.from == **name || one.outputs.contains(name))
    };
    let divided = names.iter().enumerate().filter(|(_, name)| is_divided(name));
    let divided: Vec<PortId> = divided.map(|(i, _)| PortId(i as u8)).collect();
    if divided.is_empty() { stage } else { Box::new(Outside { stage, divided }) }
}
