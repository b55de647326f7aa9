//! The first program of the README: answers datagrams to UDP port 7777 of eth0.

use linerate::prelude::*;

fn main() -> linerate::Result<()> {
    let mut port = Port::first_of(["xdp:eth0,udp=7777", "packet:eth0,udp=7777"])?;
    println!("{}", port.obtained());
    // eth0 AF_XDP native copy, diverts udp=7777, queue 0 (zero-copy: the driver has none)

    let mut batch = Batch::with_capacity(64);
    // Sleeps until packets come; an interface that was deleted is an error.
    while port.wait(None)? {
        port.rx(&mut batch); // receives up to 64 packets
        batch.retain(|skb| {
            let mut udp = skb.udp_mut()?; // Err(reason) drops, counts
            // Two echoes would answer each other for ever.
            // An answer must not come from a multicast address.
            let is_asked = udp.src_port() != 7777 && !udp.ends().dst().is_multicast();
            is_asked.then(|| udp.reply()).ok_or(DropReason::UNWANTED)
        });
        port.xmit(&mut batch); // sends from the front; the rest stays
        batch.discard(DropReason::TX_FULL); // this program drops it
    }
    Ok(())
}
