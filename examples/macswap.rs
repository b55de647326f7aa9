//! Sends each packet back with its addresses swapped: `macswap memif:/run/x.sock,role=client
//! [spin|sink]`.
//!
//! Every driver works. The program writes twelve bytes of each packet, even if other processes can
//! write the memory. By default a stage on an engine's thread does this; the thread sleeps when
//! there is no packet, and lets packets gather at high rates. With `spin` a loop of the program
//! does it and never sleeps; with `sink` the loop sends nothing back.
//!
//! It returns every packet, broadcasts and those to the host too: use it only on an interface that
//! nothing else uses.

mod args;

use std::time::Duration;

use linerate::prelude::*;

/// Length in bytes of both addresses of an Ethernet frame.
const ADDRESSES: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    match &args[..] {
        [text] => engine(text),
        [text, word] if word == "spin" || word == "sink" => spin(text, word == "spin"),
        _ => Err("usage: macswap PORT [spin|sink]".into()),
    }
}

struct Swap;

impl Stage for Swap {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.iter_mut().for_each(swap);
        batch.set_verdicts(turn.port().verdict());
    }
}

fn engine(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder()
        .port("port", text)
        .port("nowhere", "sink:,blind") // a port is only read if it has a wire
        .wire("port", "nowhere")
        .stage(|_| Swap)
        .build()?;
    let running = engine.start()?;
    while running.wait(Duration::from_secs(3600)) == Ok(false) {} // sleeps
    let stopped = running.stop(Duration::from_secs(1));
    println!("{stopped}");
    Ok(stopped.check()?) // a deleted interface is an error
}

fn spin(text: &str, back: bool) -> Result<(), Box<dyn std::error::Error>> {
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(256);
    while !port.health().ended() {
        port.rx(&mut batch);
        if back {
            batch.iter_mut().for_each(swap);
            port.xmit(&mut batch);
            batch.discard(DropReason::TX_FULL); // this program's policy
        }
        batch.clear(); // consumed
    }
    Ok(port.health().check()?)
}

fn swap(skb: &mut Skb) {
    let mut addresses = [0; ADDRESSES];
    if skb.copy_to(0, &mut addresses) == ADDRESSES {
        addresses.rotate_left(ADDRESSES / 2);
        skb.copy_from(0, &addresses);
    }
}
