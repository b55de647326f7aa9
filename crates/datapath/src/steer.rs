//! Divides what comes by a device of one queue among workers, as the device's own queues would.

use linerate_port::Views;
use linerate_skb::Batch;
use linerate_wire::Toeplitz;

use crate::knob::BUDGET;
use crate::stage::{PortId, Stage, StageContext, Turn};

/// A stage that sends each packet of one port to one of several others, by its flow: rings, each to another
/// worker. Both ways of a flow go the same way, and what is not IP goes to the first.
///
/// A flow never changes its output, so nothing is reordered by a move. An output that has no room loses its
/// packets as `tx_full`, except the one that the port has its wire to, for whose room the port waits.
///
/// Shape: a verdict for each packet of the port; other ports' packets pass.
/// Cost:  [`Head::rss_hash`](linerate_wire::Head::rss_hash) a packet, and a hand-over a run of packets with
///        the same output. Worth it where the stages behind cost more than that.
///
/// ```
/// use linerate_datapath::{Engine, Steer};
///
/// # fn main() -> linerate_datapath::Result<()> {
/// let engine = Engine::builder()
///     .port("dev", "null:")
///     .port("to1", "ring:r1").port("to2", "ring:r2")
///     .port("of1", "ring:r1").port("of2", "ring:r2")
///     .port("out1", "sink:,blind").port("out2", "sink:,blind")
///     // Worker 0 has the device and both hand-overs, workers 1 and 2 what comes by them.
///     .wire("dev", "to1").wire("of1", "out1").wire("of2", "out2")
///     .stage(|cx| Steer::new(cx, "dev", &["to1", "to2"]))
///     .build()?;
/// # drop(engine);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Steer {
    from: Option<PortId>,
    outputs: Vec<PortId>,
    toeplitz: Toeplitz,
    /// Those of a batch: it has room for the longest.
    hashes: Vec<u32>,
}

impl Steer {
    /// Divides what comes by the port `from` among `outputs`; on a worker without that port, nothing.
    ///
    /// Building the engine fails, and says so, if the port's worker has not all of the outputs.
    #[must_use]
    pub fn new(cx: &mut StageContext<'_>, from: &str, outputs: &[&str]) -> Steer {
        let from = cx.find(from);
        let outputs = if from.is_some() { outputs } else { &[] };
        let outputs = outputs.iter().map(|name| cx.port(name)).collect();
        let hashes = Vec::with_capacity(BUDGET.max as usize);
        Steer { from, outputs, toeplitz: Toeplitz::SYMMETRIC, hashes }
    }

    /// Divides by another key, as that of a device whose queues are to be met.
    #[must_use]
    pub fn by(mut self, toeplitz: Toeplitz) -> Steer {
        self.toeplitz = toeplitz;
        self
    }
}

impl Stage for Steer {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if self.from != Some(turn.port()) {
            return;
        }
        self.hashes.clear();
        self.hashes.extend(batch.iter().map(|skb| skb.rss_hash(&self.toeplitz)));
        for (i, &hash) in self.hashes.iter().enumerate() {
            // Multiplied, not divided: the upper bits are as good as the lower.
            let place = (u64::from(hash) * self.outputs.len() as u64) >> 32;
            if let Some(output) = self.outputs.get(place as usize) {
                batch.set_verdict(i, output.verdict());
            }
        }
    }
}
