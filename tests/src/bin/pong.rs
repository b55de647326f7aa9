//! Answers ARP and ping for an address that no host has: `pong packet:eth0 10.0.0.9 [answers]`.

use std::net::Ipv4Addr;

use linerate::prelude::*;
use linerate::wire::{ArpOp, EtherType, Mac, Protocol, checksum};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, text, address, answers @ ..] = &args[..] else {
        return Err("usage: pong PORT ADDRESS [answers]".into());
    };
    let address: Ipv4Addr = address.parse()?;
    let mut left = answers.first().map_or(Ok(usize::MAX), |n| n.parse())?;
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(64);
    while left > 0 && !port.health().ended() {
        port.wait(None)?;
        port.rx(&mut batch);
        batch.retain(|skb| match skb.eth()?.ether_type() {
            EtherType::ARP => answer_arp(skb, address),
            _ => answer_ping(skb, address).map(|()| left = left.saturating_sub(1)),
        });
        port.xmit(&mut batch);
        batch.discard(DropReason::TX_FULL);
    }
    println!("{}", port.ledger());
    Ok(port.health().check()?)
}

fn answer_arp(skb: &mut Skb, address: Ipv4Addr) -> Result<(), DropReason> {
    let arp = skb.arp()?;
    if arp.op() != ArpOp::REQUEST || arp.target_ip() != address {
        return Err(DropReason::UNWANTED);
    }
    let mut eth = skb.eth_mut()?;
    eth.swap_ends();
    eth.set_src(MAC);
    let arp = eth.payload_mut();
    arp[7] = ArpOp::REPLY.0 as u8;
    arp.copy_within(8..18, 18); // who asked is now who is spoken to
    arp[8..14].copy_from_slice(&MAC.0);
    arp[14..18].copy_from_slice(&address.octets());
    Ok(())
}

fn answer_ping(skb: &mut Skb, address: Ipv4Addr) -> Result<(), DropReason> {
    let mut ip = skb.ipv4_mut()?;
    if ip.dst() != address || ip.protocol() != Protocol::ICMP || ip.is_fragment() {
        return Err(DropReason::UNWANTED);
    }
    let [kind @ 8, 0, high, low, ..] = ip.payload_mut() else {
        return Err(DropReason::UNWANTED);
    };
    *kind = 0; // a request was 8
    [*high, *low] = checksum::update16(u16::from_be_bytes([*high, *low]), 8 << 8, 0).to_be_bytes();
    let asker = ip.src();
    ip.set_src(address);
    ip.set_dst(asker);
    skb.eth_mut()?.swap_ends();
    Ok(())
}
