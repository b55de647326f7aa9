//! Answers DNS questions for A and AAAA with one address each, for other types with no record, as
//! tokio tasks, until its input ends: `dns xdp:eth0,udp=53`.

mod args;
mod serve;

use std::io::{Error, Result};
use std::net::{Ipv4Addr, Ipv6Addr};

use linerate::prelude::*;
use tokio::task;

const A: &[u8] = &Ipv4Addr::new(192, 0, 2, 53).octets();
const AAAA: &[u8] = &Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53).octets();
/// Length in bytes of a DNS header; the next constant is that of an answer without its data.
const HEADER: usize = 12;
const RECORD: usize = 12;

#[tokio::main]
async fn main() -> Result<()> {
    let args = args::texts().map_err(Error::other)?;
    let text = args.first().ok_or_else(|| Error::other("usage: dns PORT"))?;
    let port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let (pool, mut tasks) = (port.pool().clone(), task::JoinSet::new());
    port.split().into_iter().for_each(|queue| _ = tasks.spawn(serve::serve(queue, answer)));
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(|| end.send(std::io::copy(&mut std::io::stdin(), &mut std::io::sink())));
    let done = tokio::select! {
        _ = ended => Ok(()),
        Some(queue) = tasks.join_next() => queue?.map_err(Error::from), // the device has failed
    };
    tasks.shutdown().await;
    println!("{}", pool.ledger());
    done
}

/// Turns a question into its answer in place.
fn answer(skb: &mut Skb) -> std::result::Result<(), DropReason> {
    let udp = skb.udp()?;
    if !udp.checksum_ok() {
        return Err(DropReason::MALFORMED); // the answer's checksum would be right
    }
    // A standard query with one question, to this host.
    let (flags, questions) = (udp.payload().get(2), udp.payload().get(4..6));
    let is_question =
        flags.is_some_and(|flags| flags & 0xf8 == 0) && questions == Some(&[0, 1][..]);
    let is_question = is_question && !skb.eth()?.dst().is_multicast();
    let (true, 53) = (is_question, udp.dst_port()) else { return Err(DropReason::UNWANTED) };
    let (end, kind) = question(udp.payload()).ok_or(DropReason::MALFORMED)?;
    let data = match kind {
        [0, 1] => A,
        [0, 28] => AAAA,
        _ => &[], // no record: the name has none of this type
    };
    // A pointer to the question's name, the type, class IN, a TTL of 60 s, the length of the data.
    let [high, low] = kind;
    let record = [0xc0, HEADER as u8, high, low, 0, 1, 0, 0, 0, 60, 0, data.len() as u8];
    let records = usize::from(!data.is_empty());
    let data_at = end + records * RECORD;
    skb.set_udp_payload_len(data_at + data.len())?;
    let mut udp = skb.udp_mut()?;
    let dns = udp.payload_mut();
    let flags = 0x84 | (dns[2] & 1); // answer, authoritative, recursion desired as asked
    dns[2..HEADER].copy_from_slice(&[flags, 0, 0, 1, 0, records as u8, 0, 0, 0, 0]);
    dns[end..data_at].copy_from_slice(&record[..data_at - end]);
    dns[data_at..].copy_from_slice(data);
    udp.reply();
    udp.fill_checksum().then_some(()).ok_or(DropReason::UNSUPPORTED)
}

/// Returns the end of the first question, which is of class IN, and the requested record type.
fn question(dns: &[u8]) -> Option<(usize, [u8; 2])> {
    let mut at = HEADER;
    while let label @ 1..=63 = *dns.get(at)? {
        at += 1 + usize::from(label);
    }
    match dns.get(at..at + 5)? {
        [0, high, low, 0, 1] => Some((at + 5, [*high, *low])),
        _ => None,
    }
}
