//! Batch sizes that change while packets pass: `cargo run -p linerate --example batching`.

use std::time::Duration;

use linerate::{Engine, Result, Setting, TxBatch};

fn main() -> Result<()> {
    let engine = Engine::builder()
        .port("in", "gen:,count=200k")
        // The text of a port has the last word: `sink:,tx_batch=64` would win over the builder.
        .port("out", "sink:")
        .wire("in", "out")
        .tx_batch(TxBatch::Packets(1))
        .build()?;
    let running = engine.start()?;

    // From any thread, while packets pass: obeyed between two turns of the worker.
    let asked = running.control().set_tx_batch("out", None, TxBatch::Packets(64))?;
    let applied = asked.wait(Duration::from_secs(1))?;
    assert_eq!(applied.applied, Setting::TxBatch(TxBatch::Packets(64)));

    running.wait(Duration::from_secs(10))?;
    let stopped = running.stop(Duration::from_secs(1));
    let out = &stopped.ports[1];
    // Calls by the packets that the device took: `1: 1,024, 64-127: 3,109`, say.
    println!("{} packets, tx_batch {}: {}", out.counts.tx_packets, out.tx_batch, out.flushes.sizes);
    stopped.check()
}
