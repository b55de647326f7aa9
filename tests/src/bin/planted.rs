//! Forwards between two ports with a fault that occurs only with batches: `planted IN OUT CAP
//! none|core|driver ONE_IN`.
//!
//! The core's fault is a stage that loses packets; the driver's fault is a queue of OUT that
//! reports lost packets as sent. The program ends at the end of its standard input, and prints the
//! packets that the engine received, that its core dropped, and that it reports as sent by OUT. A
//! guest runs it (`cargo xtask qemu triage`).

use std::io;
use std::time::Duration;

use linerate::prelude::*;
use linerate::wrap::{Layer, Wrapped};
use linerate::{Moved, QueueOps, TxBatch};

/// The reason for packets dropped by the faulty core.
const PLANTED: DropReason = DropReason::app(0, "planted");
/// The longest batch: the maximum of the knob.
const BATCH_MAX: usize = 1024;
/// Time for sending the waiting packets at the end.
const DRAIN: Duration = Duration::from_secs(1);

/// A fault that loses one packet in `one_in`.
struct Loses {
    one_in: u64,
    seen: u64,
    spare: Batch,
    lost: Batch,
}

impl Loses {
    fn one_in(one_in: u64) -> Loses {
        let [spare, lost] = [BATCH_MAX, 1].map(Batch::with_capacity);
        Loses { one_in, seen: 0, spare, lost }
    }

    /// Returns true once in `one_in` calls.
    fn turn(&mut self) -> bool {
        self.seen += 1;
        self.seen.is_multiple_of(self.one_in)
    }
}

impl Stage for Loses {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|_| if self.turn() { Err(PLANTED) } else { Ok(()) });
    }
}

impl Layer for Loses {
    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut said = Moved::default();
        if batch.len() > 1 {
            let n = batch.len();
            batch.move_to(&mut self.spare, n);
            while let Some(skb) = self.spare.pop() {
                let to = if self.turn() { &mut self.lost } else { &mut *batch };
                // Never refused: the packet was in this batch before.
                let _ = to.push(skb);
                said += self.lost.sent(self.lost.len(), mem);
            }
        }
        said += below.xmit(mem, batch);
        said
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, cap, part, one_in] = &args[..] else {
        return Err("usage: planted IN OUT CAP none|core|driver ONE_IN".into());
    };
    let (cap, one_in): (TxBatch, u64) = (cap.parse()?, one_in.parse()?);
    let mut engine = Engine::builder().port("in", from).port("out", to).wire("in", "out");
    engine = engine.tx_batch(cap).workers(1);
    match &**part {
        "none" => {}
        // Without batches the core has no fault, so there is no stage.
        "core" if cap == TxBatch::Packets(1) => {}
        "core" => engine = engine.stage(move |_| Loses::one_in(one_in)),
        "driver" => {
            engine = engine.wrap("out", move |ops, _| {
                Ok(Box::new(Wrapped::around(ops, Loses::one_in(one_in))))
            });
        }
        _ => return Err(format!("{part}: the faults are none, core and driver").into()),
    }
    let running = engine.build()?.start()?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    let stopped = running.stop(DRAIN);
    let said: u64 = stopped
        .ports
        .iter()
        .filter(|port| port.name == "out")
        .map(|port| port.counts.tx_packets)
        .sum();
    println!(
        "received {} dropped {} said {said}",
        stopped.ledger.received,
        stopped.ledger.dropped_total()
    );
    Ok(stopped.check()?)
}
