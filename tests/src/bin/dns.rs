//! Answers DNS questions for A and AAAA with one address each: `dns xdp:eth0,udp=53 [answers]`.

use std::net::{Ipv4Addr, Ipv6Addr};

use linerate::prelude::*;
use linerate::wire::{EtherType, checksum};

const A: &[u8] = &Ipv4Addr::new(192, 0, 2, 53).octets();
const AAAA: &[u8] = &Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53).octets();
/// The bytes of a DNS header.
const HEADER: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, text, answers @ ..] = &args[..] else {
        return Err("usage: dns PORT [answers]".into());
    };
    let mut left = answers.first().map_or(Ok(usize::MAX), |n| n.parse())?;
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let mut batch = Batch::with_capacity(64);
    while left > 0 && !port.health().ended() {
        port.wait(None)?;
        port.rx(&mut batch);
        batch.retain(answer);
        left = left.saturating_sub(port.xmit(&mut batch));
        batch.discard(DropReason::TX_FULL);
    }
    println!("{}", port.ledger());
    Ok(port.health().check()?)
}

/// Turns a question into its answer, where it lies.
fn answer(skb: &mut Skb) -> Result<(), DropReason> {
    let (udp, eth) = (skb.udp()?, skb.eth()?);
    let dns = udp.payload();
    let is_question = dns.get(2).is_some_and(|flags| flags & 0x80 == 0);
    if udp.dst_port() != 53 || !is_question {
        return Err(DropReason::UNWANTED);
    }
    let (end, kind) = question(dns).ok_or(DropReason::MALFORMED)?;
    let data = match kind {
        1 => A,
        28 => AAAA,
        _ => return Err(DropReason::UNWANTED),
    };
    let at = |part: &[u8]| part.as_ptr().addr() - skb.data().as_ptr().addr();
    let (ip_at, dns_at, is_v4) = (at(eth.payload()), at(dns), eth.ether_type() == EtherType::IPV4);

    // Behind the question: its name again, the kind, class IN, a minute to live, the data.
    let record = [0xc0, HEADER as u8, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8];
    if !skb.trim(dns_at + end) || !skb.put_slice(&record) || !skb.put_slice(data) {
        return Err(DropReason::TOO_LONG);
    }
    let len = skb.len();
    let bytes = skb.data_mut();
    let flags = 0x84 | (bytes[dns_at + 2] & 1); // an answer, of authority, recursion as it was desired
    bytes[dns_at + 2..dns_at + HEADER].copy_from_slice(&[flags, 0, 0, 1, 0, 1, 0, 0, 0, 0]);
    let mut set =
        |at: usize, value: usize| bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    set(dns_at - 4, len - dns_at + 8);
    if is_v4 {
        set(ip_at + 2, len - ip_at);
        set(ip_at + 10, 0);
        let sum = checksum::finish(checksum::sum(&skb.data()[ip_at..dns_at - 8]));
        skb.copy_from(ip_at + 10, &sum.to_be_bytes());
    } else {
        set(ip_at + 4, len - ip_at - 40);
    }
    let mut udp = skb.udp_mut()?;
    udp.swap_ends();
    if udp.fill_checksum() { Ok(()) } else { Err(DropReason::TOO_LONG) }
}

/// Returns the end of the first question of a message, and the type of record it asks for.
fn question(dns: &[u8]) -> Option<(usize, u8)> {
    let mut at = HEADER;
    while let label @ 1..=63 = *dns.get(at)? {
        at += 1 + usize::from(label);
    }
    match dns.get(at..at + 5)? {
        [0, 0, kind, 0, 1] => Some((at + 5, *kind)),
        _ => None,
    }
}
