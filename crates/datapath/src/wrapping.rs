//! Wrappers around the ports of an engine, applied when the ports are opened.
//!
//! ```text
//!   worker ── what was asked for last ── … ── first ── [Meter, of a ring's end] ── device
//! ```
//!
//! Whether a ring between two workers is empty is told from what its ends have sent and received. A
//! fault around an end makes more or fewer packets of those, so the ring's are counted below it.

use std::sync::Arc;

use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Opened, QueueOps, QueueStats, Result};
use linerate_skb::{Batch, Local, Moved};

use crate::plan;
use crate::ports::{Named, Planned};

/// A function that wraps a queue, called with the queue's number within its port.
pub(crate) type Around = Box<dyn FnMut(Box<dyn QueueOps>, usize) -> Result<Box<dyn QueueOps>>>;

/// The counters below a port's wrappers: one for each queue if the port is an end of a pair, else
/// none.
pub(crate) type Meters = Vec<Arc<QueueStats>>;

/// Finds the ports by their names.
pub(crate) fn find(ports: &[Named], wraps: Vec<(String, Around)>) -> Result<Vec<(usize, Around)>> {
    let find = |name: &str| plan::find(ports, name, "something is to be put around");
    wraps.into_iter().map(|(name, around)| Ok((find(&name)?, around))).collect()
}

/// Applies each of `wraps` to the port of its index, in order; returns the meters of each port.
/// Each of `ports` is open.
///
/// # Errors
/// Those of `wraps`; what is open is to be closed then.
pub(crate) fn wrap_all(
    ports: &[Planned],
    opened: &mut [Opened],
    wraps: Vec<(usize, Around)>,
) -> Result<Vec<Meters>> {
    let mut meters: Vec<Meters> = vec![Meters::new(); ports.len()];
    for (port, mut around) in wraps {
        let queues = &mut opened[port].queues;
        if ports[port].flags.paired && meters[port].is_empty() {
            (*queues, meters[port]) = queues.drain(..).map(metered).unzip();
        }
        let wrapped = queues.drain(..).enumerate().map(|(i, ops)| around(ops, i));
        *queues = wrapped.collect::<Result<_>>()?;
    }
    Ok(meters)
}

fn metered(ops: Box<dyn QueueOps>) -> (Box<dyn QueueOps>, Arc<QueueStats>) {
    let meter = Meter::default();
    let stats = meter.0.clone();
    (Box::new(Wrapped::around(ops, meter)), stats)
}

/// A layer that counts the packets of the queue below it.
#[derive(Debug, Default)]
struct Meter(Arc<QueueStats>);

impl Layer for Meter {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let moved = below.rx(mem, out, budget);
        self.0.count_rx(moved.packets as u64, moved.bytes);
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let moved = below.xmit(mem, batch);
        self.0.count_tx(moved.packets as u64, moved.bytes);
        moved
    }
}
