//! Spreads one address over servers through tunnels: `balancer CLIENTS TUNNEL 10.7.0.100
//! MAC=10.9.0.1 ...`, until its input ends; `decap` is the other end. A client stays with its
//! server. When a server is removed, hardly any other clients move (Maglev: Eisenbud et al., NSDI
//! 2016, section 3.4).
//!
//! Packets in a tunnel are 20 bytes longer, and are not fragmented: the longest are lost if the MTU
//! of the tunnel's path does not exceed the clients' by 20. For TCP it suffices that the servers'
//! MTU is 20 bytes below that of the path, because clients then send shorter segments.

mod args;
mod until;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::net::Ipv4Addr;

use linerate::prelude::*;
use linerate::wire::{Mac, Protocol};

/// Number of table entries: a prime, and at least a hundred times the number of servers.
const ENTRIES: usize = 65_537;

struct Balancer {
    clients: PortId,
    address: Ipv4Addr,
    /// The server for each hash of a client's address.
    table: Vec<(Mac, Ipv4Addr)>,
}

impl Stage for Balancer {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if turn.port() != self.clients {
            return; // answers of servers
        }
        batch.retain(|skb| match skb.ipv4().map(|ip| (ip.src(), ip.dst())) {
            Ok((client, address)) if address == self.address => {
                let (mac, server) = self.table[hash(client) % ENTRIES];
                skb.eth_mut()?.set_dst(mac);
                skb.push_ipv4(address, server, Protocol::IPIP) // inner checksums do not change
            }
            _ => Ok(()), // ARP, and other addresses
        });
    }
}

fn hash(of: impl Hash) -> usize {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of) as usize
}

/// Returns the server of each entry: each server has its own order of all entries, and the servers
/// in turn take their first free entry.
fn table(servers: &[(Mac, Ipv4Addr)]) -> Vec<(Mac, Ipv4Addr)> {
    let mut orders: Vec<_> = servers.iter().map(|s| (hash(s.1), hash((s.1, 1)))).collect();
    let mut table = vec![None; ENTRIES];
    for (at, server) in (0..ENTRIES).map(|turn| turn % servers.len()).zip(servers.iter().cycle()) {
        let (entry, step) = &mut orders[at];
        while table[*entry % ENTRIES].is_some() {
            *entry = entry.wrapping_add(1 + *step % (ENTRIES - 1)) % ENTRIES;
        }
        table[*entry % ENTRIES] = Some(*server);
    }
    table.into_iter().flatten().collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [clients, tunnel, address, servers @ ..] = &args[..] else {
        return Err("usage: balancer PORT PORT ADDRESS MAC=SERVER...".into());
    };
    let address = address.parse()?;
    let server = |text: &String| {
        let (mac, server) = text.split_once('=')?;
        Some((mac.parse().ok()?, server.parse().ok()?))
    };
    let servers: Option<Vec<_>> = servers.iter().map(server).collect();
    let servers = servers.filter(|all| !all.is_empty()).ok_or("a server is MAC=ADDRESS")?;
    let engine = Engine::builder().port("clients", clients).port("tunnel", tunnel);
    let engine = engine.wire("clients", "tunnel");
    let engine = engine.stage(move |cx| Balancer {
        clients: cx.port("clients"),
        address,
        table: table(&servers),
    });
    until::input_ends(engine.build()?)
}
