//! Answers ping, ARP and neighbour discovery for addresses that no host has: `responder packet:eth0
//! 10.0.0.9 fd00::9 [answers]`, or with `packet:eth0,dst=10.0.0.9` on an interface that the host
//! also uses.

mod args;

use std::net::{Ipv4Addr, Ipv6Addr};

use linerate::prelude::*;
use linerate::wire::{EtherType, Mac};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [text, v4, v6, answers @ ..] = &args[..] else {
        return Err("usage: responder PORT ADDRESS ADDRESS [answers]".into());
    };
    let (v4, v6) = (v4.parse()?, v6.parse()?);
    let mut left = answers.first().map_or(Ok(usize::MAX), |n| n.parse())?;
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(64);
    while left > 0 && port.wait(None)? {
        port.rx(&mut batch);
        batch.retain(|skb| answer(skb, v4, v6).map(|pings| left = left.saturating_sub(pings)));
        port.xmit(&mut batch);
        batch.discard(DropReason::TX_FULL);
    }
    println!("{}", port.ledger());
    Ok(())
}

/// Turns a question into its answer in place; returns the number of pings answered: 0 or 1.
fn answer(skb: &mut Skb, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<usize, DropReason> {
    if skb.eth()?.ether_type() == EtherType::ARP {
        let mut arp = skb.arp_mut()?;
        let ours = arp.target_ip() == v4;
        ours.then(|| arp.reply(MAC)).ok_or(DropReason::UNWANTED)??;
        return Ok(0);
    }
    if let Ok(mut nd) = skb.nd_mut() {
        let ours = nd.target() == v6;
        ours.then(|| nd.reply(MAC)).ok_or(DropReason::UNWANTED)??;
        return Ok(0);
    }
    let mut icmp = skb.icmp_mut()?;
    let ours = icmp.dst() == v4 || icmp.dst() == v6;
    ours.then(|| icmp.reply()).ok_or(DropReason::UNWANTED)??; // updates the checksum, computes none
    Ok(1)
}
