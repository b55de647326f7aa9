//! Sends back what comes, its addresses swapped: `macswap memif:/run/x.sock,role=client [spin|sink]`.
//!
//! Any port will do. It writes twelve bytes of each packet, whoever else can write the memory. With
//! `spin` it never sleeps, as programs do that have a CPU to themselves; with `sink` it sends nothing
//! back, either.

use linerate::prelude::*;

/// Both addresses of an Ethernet frame.
const ADDRESSES: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (text, spin, back) = match &args[..] {
        [text] => (text, false, true),
        [text, word] if word == "spin" => (text, true, true),
        [text, word] if word == "sink" => (text, true, false),
        _ => return Err("usage: macswap PORT [spin|sink]".into()),
    };
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(256);
    while !port.health().ended() {
        if port.rx(&mut batch) == 0 {
            if !spin {
                port.wait(None)?; // idle costs nothing
            }
            continue;
        }
        if !back {
            batch.clear();
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
