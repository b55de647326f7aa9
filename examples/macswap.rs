//! Sends back what comes, its addresses swapped: `macswap memif:/run/x.sock,role=client`.
//!
//! Any port will do. It writes twelve bytes of each packet, whoever else can write the memory.

use linerate::prelude::*;

/// Both addresses of an Ethernet frame.
const ADDRESSES: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = std::env::args().nth(1).ok_or("usage: macswap PORT")?;
    let mut port = Port::open(&text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(256);
    while !port.health().ended() {
        if port.rx(&mut batch) == 0 {
            port.wait(None)?; // idle costs nothing
            continue;
        }
        batch.iter_mut().for_each(swap);
        port.xmit(&mut batch);
        batch.discard(DropReason::TX_FULL); // this program's policy
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
