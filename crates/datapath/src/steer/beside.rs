//! A stage of the program on a worker with a divided device: packets between the device and its rings pass it by.

use linerate_skb::Batch;

use super::Steering;
use crate::stage::{PortId, Stage, Turn};

/// A stage that runs on the batches of other ports than those of divisions.
struct Beside {
    stage: Box<dyn Stage>,
    divided: Vec<PortId>,
}

impl Stage for Beside {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if !self.divided.contains(&turn.port()) {
            self.stage.run(batch, turn);
        }
    }
}

/// Returns `stage` as it is on a worker with the ports `names`: beside the ports of divisions, if there are any.
pub(crate) fn beside(
    steerings: &[Steering],
    names: &[String],
    stage: Box<dyn Stage>,
) -> Box<dyn Stage> {
    let is_divided = |name: &String| {
        steerings.iter().any(|one| *one.from == **name || one.outputs.contains(name))
    };
    let divided = names.iter().enumerate().filter(|(_, name)| is_divided(name));
    let divided: Vec<PortId> = divided.map(|(i, _)| PortId(i as u8)).collect();
    if divided.is_empty() { stage } else { Box::new(Beside { stage, divided }) }
}
