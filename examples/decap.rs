//! Takes packets out of tunnels (IPv4 in IPv4) that end here, at the addresses given, until its
//! input ends: `decap TUNNEL SERVERS 10.9.0.1 ...`. Other packets, such as IPv6 in IPv4, pass
//! unchanged between the two ports.
//!
//! It does not check who sent a packet: only balancers may be able to send to the port TUNNEL.

mod args;
mod until;

use std::net::Ipv4Addr;

use linerate::prelude::*;
use linerate::wire::Protocol;

struct Decap {
    tunnel: PortId,
    ends: Vec<Ipv4Addr>,
}

impl Stage for Decap {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if turn.port() != self.tunnel {
            return; // answers of servers
        }
        batch.retain(|skb| match skb.ipv4().map(|ip| (ip.protocol(), ip.dst())) {
            Ok((Protocol::IPIP, end)) if self.ends.contains(&end) => skb.pop_ip(),
            _ => Ok(()), // in no tunnel, or in one that ends elsewhere
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [tunnel, servers, _, ..] = &args[..] else {
        return Err("usage: decap PORT PORT ADDRESS...".into());
    };
    let ends = args[2..].iter().map(|end| end.parse()).collect::<Result<Vec<Ipv4Addr>, _>>()?;
    let engine = Engine::builder().port("tunnel", tunnel).port("servers", servers);
    let engine = engine.wire("tunnel", "servers");
    let engine = engine.stage(move |cx| Decap { tunnel: cx.port("tunnel"), ends: ends.clone() });
    until::input_ends(engine.build()?)
}
