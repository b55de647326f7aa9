//! Spreads one address over two servers by tunnels (IPIP), until its input ends:
//! `balancer CLIENTS SERVERS 10.7.0.100 MAC=10.9.0.1 MAC=10.9.0.2`, and `balancer TUNNEL SERVERS` at
//! the other end. A client's packets go to one server; when a server goes, only its clients move.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::time::Duration;

use linerate::prelude::*;
use linerate::wire::{Mac, Protocol, checksum};

const IPIP: Protocol = Protocol(4);
/// The bytes of an Ethernet header, and of an IP header behind it.
const ETH: usize = 14;
const IP: usize = 20;

struct Encapsulate {
    address: Ipv4Addr,
    servers: Vec<(Mac, Ipv4Addr)>,
}

impl Stage for Encapsulate {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| match skb.ipv4().map(|ip| (ip.src(), ip.dst())) {
            Ok((client, address)) if address == self.address => self.encapsulate(skb, client),
            _ => Ok(()), // ARP, and what the servers answer
        });
    }
}

impl Encapsulate {
    fn encapsulate(&self, skb: &mut Skb, client: Ipv4Addr) -> Result<(), DropReason> {
        let (mac, server) = *server(&self.servers, client).ok_or(DropReason::NO_ROUTE)?;
        skb.eth_mut()?.set_dst(mac);
        let len = u16::try_from(skb.len() - ETH + IP).map_err(|_| DropReason::TOO_LONG)?;
        skb.push(IP).ok_or(DropReason::TOO_LONG)?;
        let bytes = skb.data_mut();
        bytes.copy_within(IP..IP + ETH, 0);
        let header = &mut bytes[ETH..ETH + IP];
        header[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, IPIP.0]);
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&self.address.octets());
        header[16..].copy_from_slice(&server.octets());
        let check = checksum::finish(checksum::sum(header));
        header[10..12].copy_from_slice(&check.to_be_bytes());
        Ok(())
    }
}

/// Returns the server of a client: the one whose hash with the client is the highest.
fn server(servers: &[(Mac, Ipv4Addr)], client: Ipv4Addr) -> Option<&(Mac, Ipv4Addr)> {
    servers.iter().max_by_key(|(_, server)| {
        let mut hasher = DefaultHasher::new();
        (client, server).hash(&mut hasher);
        hasher.finish()
    })
}

struct Decapsulate;

impl Stage for Decapsulate {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| {
            if skb.ipv4().is_ok_and(|ip| ip.protocol() == IPIP && ip.options().is_empty()) {
                skb.data_mut().copy_within(..ETH, IP);
                skb.pull(IP);
            }
            Ok(())
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [left, right, rest @ ..] = &args[..] else {
        return Err("usage: balancer PORT PORT [ADDRESS MAC=SERVER...]".into());
    };
    let engine = Engine::builder().port("left", left).port("right", right).wire("left", "right");
    let engine = match rest {
        [] => engine.stage(|_| Decapsulate),
        [address, servers @ ..] => {
            let address = address.parse()?;
            let pair = |text: &String| {
                let (mac, server) = text.split_once('=')?;
                Some((mac.parse().ok()?, server.parse().ok()?))
            };
            let servers: Option<Vec<_>> = servers.iter().map(pair).collect();
            let servers = servers.ok_or("a server is MAC=ADDRESS")?;
            engine.stage(move |_| Encapsulate { address, servers: servers.clone() })
        }
    };
    let running = engine.build()?.start()?;
    eprintln!("ready");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?; // until it ends
    println!("{}", running.stop(Duration::from_secs(1)));
    Ok(())
}
