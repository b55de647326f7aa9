//! Wrappers around the ports of an engine, applied when the ports are opened.
//!
//! ```text
//!   worker ── what was asked for last ── … ── first ── [Meter, of a ring's end] ── device
//! ```
//!
//! A ring between two workers is known to be empty from the counts of packets that its ends have
//! sent and received. A fault wrapper around an end adds or removes packets, so the packets of the
//! ring are counted below the wrapper.

use std::sync::Arc;

use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Opened, QueueOps, QueueStats, Result};
use linerate_skb::{Batch, Local, Moved};

use crate::plan;
use crate::ports::{Named, Planned};

/// A function that wraps a queue, called with the queue's number within its port.
pub(crate) type Around =
    Box<dyn FnMut(Box<dyn QueueOps>, usize) -> Result<Box<dyn QueueOps>> + Send>;

/// The counters below a port's wrappers: one for each queue if the port is an end of a pair,
/// otherwise none.
pub(crate) type Meters = Vec<Arc<QueueStats>>;

/// Resolves the names of the wrapped ports to indices.
pub(crate) fn find(ports: &[Named], wraps: Vec<(String, Around)>) -> Result<Vec<(usize, Around)>> {
    let find = |name: &str| plan::find(ports, name, "something is to be put around");
    wraps.into_iter().map(|(name, around)| Ok((find(&name)?, around))).collect()
}

/// Applies each of `wraps` to the opened port of its index, in order; returns the meters of each
/// port.
///
/// # Errors
/// Those of `wraps`; the caller then closes the open ports.
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
