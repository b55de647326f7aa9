//! A paced generator: `gen [packet:eth0 [10s]]` sends a million packets a second.
//!
//! Without arguments it sends for 2 seconds to a thread of its own, over a ring, without
//! privileges.
//!
//! The frames go to 02:00:00:00:00:02. A switch sends frames to an address that it does not know to
//! all of its ports, so use a link of your own, such as a veth pair.

mod args;

use std::thread;
use std::time::Instant;

use linerate::{prelude::*, units};

/// An Ethernet frame of the least length to 02:00:00:00:00:02, with an EtherType for experiments.
const FRAME: [u8; 60] = {
    let (mut frame, head) = ([0; 60], *b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5");
    frame.split_at_mut(14).0.copy_from_slice(&head);
    frame
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = args::texts()?.into_iter();
    let (mut port, consumer) = match args.next() {
        Some(text) => (Port::open(&text)?, None),
        None => {
            let (port, peer) = Port::pair(1024, &Pool::builder().frames(8192).build()?)?;
            (port, Some(thread::spawn(|| consume(peer))))
        }
    };
    let run = units::duration(args.next().as_deref().unwrap_or("2s"))?;

    let (mut pace, mut batch) = (Pacer::pps(1_000_000), Batch::with_capacity(256));
    let end = Instant::now() + run;
    while Instant::now() < end && !port.health().ended() {
        let due = pace.due_up_to(Instant::now(), batch.spare());
        port.alloc(&mut batch, due); // fewer if the pool is empty; never blocks
        for skb in batch.iter_mut() {
            assert!(skb.put_slice(&FRAME), "a frame has room for 60 bytes");
        }
        let sent = port.xmit(&mut batch);
        pace.settle(sent, &mut batch); // unsent packets are dropped
        thread::sleep(pace.next(Instant::now()));
    }
    println!("{}", pace.report()); // requested, sent, unsent, lateness

    let (pool, health) = (port.pool().clone(), port.health());
    drop(port); // the consumer's `wait` then returns false
    if let Some(consumer) = consumer {
        consumer.join().map_err(|_| "the consumer panicked")??;
    }
    println!("{}", pool.ledger());
    Ok(health.check()?)
}

fn consume(mut peer: Port) -> linerate::Result<()> {
    let mut batch = Batch::with_capacity(256);
    while peer.wait(None)? {
        peer.rx(&mut batch);
        batch.clear(); // consumed
    }
    Ok(())
}
