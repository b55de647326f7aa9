//! UDP echo in a loop of your own, on an interface that ssh also uses: `echo 7777 eth0 [answers]`.
//!
//! It takes the datagrams to one UDP port from the interface: in the driver if that supports
//! AF_XDP, else as copies. All other packets go to the kernel, which also reserves the UDP port. A
//! port text may replace the interface, as `packet:eth0,udp=7777`.
//!
//! Datagrams from its own port and from ports below 1024 get no answer: they may be answers of
//! another service, and two services would answer each other for ever. With a service at another
//! port, such as an echo at 8888, this can still happen.

mod args;

use linerate::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [udp_port, device, answers @ ..] = &args[..] else {
        return Err("usage: echo 7777 eth0 [answers]".into());
    };
    let udp_port: u16 = udp_port.parse()?;
    let mut left = answers.first().map_or(Ok(usize::MAX), |n| n.parse())?;

    let texts = match device.contains(':') {
        true => vec![device.clone()],
        false => ["xdp", "packet"].map(|driver| format!("{driver}:{device},udp={udp_port}")).into(),
    };
    let mut port = Port::first_of(texts)?;
    eprintln!("{}", port.obtained()); // eth0 AF_XDP native copy, diverts udp=7777, queue 0
    let mut batch = Batch::with_capacity(64);
    while left > 0 && port.wait(None)? {
        port.rx(&mut batch);
        batch.retain(|skb| {
            let mut udp = skb.udp_mut()?; // other protocols are dropped and counted
            // Two echoes would answer each other for ever.
            // An answer must not come from a multicast address.
            let is_service = udp.src_port() == udp_port || udp.src_port() < 1024;
            if udp.dst_port() != udp_port || is_service || udp.ends().dst().is_multicast() {
                return Err(DropReason::UNWANTED);
            }
            udp.reply(); // swaps addresses and ports; the checksum stays valid
            Ok(())
        });
        left = left.saturating_sub(port.xmit(&mut batch));
        batch.discard(DropReason::TX_FULL); // this program's policy
    }
    println!("{}", port.ledger());
    Ok(())
}
