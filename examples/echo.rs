//! UDP echo in a loop of one's own: `echo packet:eth0 7777 [answers]`.
//!
//! A packet port gets copies: the kernel sees every datagram too, and tells the client that the
//! port is unreachable unless a socket holds it. Here nothing holds it; so give the interface no
//! address of the kernel's, and the client a neighbour entry for the one it asks:
//! `ip neigh add 10.7.0.9 lladdr 02:00:00:00:00:09 dev eth0`.

use linerate::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, text, udp_port, answers @ ..] = &args[..] else {
        return Err("usage: echo packet:eth0 7777 [answers]".into());
    };
    let udp_port: u16 = udp_port.parse()?;
    let mut left = answers.first().map_or(Ok(usize::MAX), |n| n.parse())?;

    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained()); // eth0 AF_PACKET TPACKET_V3 copy
    let mut batch = Batch::with_capacity(64);
    while left > 0 && !port.health().ended() {
        port.wait(None)?; // idle costs nothing
        port.rx(&mut batch);
        batch.retain(|skb| {
            let mut udp = skb.udp_mut()?; // another protocol: dropped, and counted as such
            if udp.dst_port() != udp_port {
                return Err(DropReason::UNWANTED);
            }
            udp.swap_ends(); // no checksum changes
            Ok(())
        });
        left = left.saturating_sub(port.xmit(&mut batch));
        batch.discard(DropReason::TX_FULL); // this program's policy
    }
    println!("{}", port.ledger());
    Ok(port.health().check()?)
}
