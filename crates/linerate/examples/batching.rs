//! Batch sizes that change while packets pass: `cargo run -p linerate --example batching`.

use std::time::Duration;

use linerate::{Engine, Result, Setting, TxBatch};

fn main() -> Result<()> {
    let engine = Engine::builder()
        .port("in", "gen:,count=200k")
        // A port's text takes precedence: `sink:,tx_batch=64` would override the builder.
        .port("out", "sink:")
        .wire("in", "out")
        .tx_batch(TxBatch::Packets(1))
        .build()?;
    let running = engine.start()?;

    // Any thread may order this while packets pass; the worker executes it between two turns.
    let asked = running.control().set_tx_batch("out", None, TxBatch::Packets(64))?;
    let applied = asked.wait(Duration::from_secs(1))?;
    assert_eq!(applied.applied, Setting::TxBatch(TxBatch::Packets(64)));

    running.wait(Duration::from_secs(10))?;
    let stopped = running.stop(Duration::from_secs(1));
    let out = &stopped.ports[1];
    // Transmit calls by the number of packets accepted, for instance `1: 1,024, 64-127: 3,109`.
    println!("{} packets, tx_batch {}: {}", out.counts.tx_packets, out.tx_batch, out.flushes.sizes);
    stopped.check()
}
