//! Hides hosts behind one address, until its input ends: `snat INSIDE 10.7.0.254 OUTSIDE 10.8.0.254`.
//! It answers and asks by ARP itself; the kernel's stack has no part in it.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use linerate::wire::{ArpOp, Mac};
use linerate::{PortId, prelude::*};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
const NO_NEIGHBOUR: DropReason = DropReason::app(0, "no_neighbour");
const NO_PORT: DropReason = DropReason::app(1, "no_port_left");
const NO_HOPS: DropReason = DropReason::app(2, "no_hops_left");
/// The first of our own ports.
const FIRST: usize = 20_000;

/// TCP or UDP, and who sends.
type Flow = (bool, Ipv4Addr, u16);

struct Nat {
    inside: PortId,
    /// Our addresses, inside and outside.
    ours: [Ipv4Addr; 2],
    neighbours: HashMap<Ipv4Addr, Mac>,
    /// The port of each flow, and the flow of each port from FIRST on.
    ports: HashMap<Flow, u16>,
    flows: Vec<Flow>,
    /// For our own questions.
    mem: Local,
}

impl Stage for Nat {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.retain(|skb| match skb.arp() {
            Ok(_) => self.answer(skb, turn),
            Err(_) => self.translate(skb, turn),
        });
        // What is left of ARP are our answers: they go where the question came from.
        let answers = batch.iter().enumerate().filter(|(_, skb)| skb.arp().is_ok());
        for i in answers.map(|(i, _)| i).collect::<Vec<_>>() {
            batch.set_verdict(i, turn.port().verdict());
        }
    }
}

impl Nat {
    fn answer(&mut self, skb: &mut Skb, turn: &Turn<'_>) -> Result<(), DropReason> {
        let ours = self.ours[usize::from(turn.port() != self.inside)];
        let arp = *skb.arp()?;
        if arp.target_ip() == ours {
            self.neighbours.insert(arp.sender_ip(), arp.sender_mac());
        }
        if arp.op() != ArpOp::REQUEST || arp.target_ip() != ours {
            return Err(DropReason::UNWANTED);
        }
        skb.copy_from(0, &arp_frame(ArpOp::REPLY, ours, arp.sender_mac(), arp.sender_ip()));
        Ok(())
    }

    fn translate(&mut self, skb: &mut Skb, turn: &mut Turn<'_>) -> Result<(), DropReason> {
        let (is_tcp, src_port, dst_port) = match skb.tcp() {
            Ok(tcp) => (true, tcp.src_port(), tcp.dst_port()),
            Err(_) => skb.udp().map(|udp| (false, udp.src_port(), udp.dst_port()))?,
        };
        let mut ip = skb.ipv4_mut()?;
        let outward = turn.port() == self.inside;
        let (port, next_hop) = if outward {
            let port = self.port_of((is_tcp, ip.src(), src_port))?;
            ip.set_src(self.ours[1]);
            (port, ip.dst())
        } else {
            let flow = self.flows.get(usize::from(dst_port).wrapping_sub(FIRST));
            let ours = flow.filter(|flow| flow.0 == is_tcp && ip.dst() == self.ours[1]);
            let (_, host, port) = *ours.ok_or(DropReason::UNWANTED)?;
            ip.set_dst(host);
            (port, host)
        };
        if !ip.dec_ttl() {
            return Err(NO_HOPS);
        }
        match (is_tcp, outward) {
            (true, true) => skb.tcp_mut()?.set_src_port(port),
            (true, false) => skb.tcp_mut()?.set_dst_port(port),
            (false, true) => skb.udp_mut()?.set_src_port(port),
            (false, false) => skb.udp_mut()?.set_dst_port(port),
        }
        let Some(mac) = self.neighbours.get(&next_hop) else {
            let ours = self.ours[usize::from(outward)];
            let question = arp_frame(ArpOp::REQUEST, ours, Mac::BROADCAST, next_hop);
            if let (Some(peer), Some(skb)) = (turn.peer(), self.mem.alloc_copy(&question)) {
                turn.send(peer, skb);
            }
            return Err(NO_NEIGHBOUR);
        };
        let mut eth = skb.eth_mut()?;
        eth.set_src(MAC);
        eth.set_dst(*mac);
        Ok(())
    }

    fn port_of(&mut self, flow: Flow) -> Result<u16, DropReason> {
        if let Some(port) = self.ports.get(&flow) {
            return Ok(*port);
        }
        let port = u16::try_from(FIRST + self.flows.len()).map_err(|_| NO_PORT)?;
        self.flows.push(flow);
        self.ports.insert(flow, port);
        Ok(port)
    }
}

fn arp_frame(op: ArpOp, ours: Ipv4Addr, to: Mac, address: Ipv4Addr) -> Vec<u8> {
    let head = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, op.0 as u8];
    [&to.0[..], &MAC.0, &head, &MAC.0, &ours.octets(), &to.0, &address.octets()].concat()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, inside, inside_address, outside, outside_address] = &args[..] else {
        return Err("usage: snat INSIDE ADDRESS OUTSIDE ADDRESS".into());
    };
    let ours = [inside_address.parse()?, outside_address.parse()?];
    let questions = Pool::builder().frames(64).build()?;
    let engine = Engine::builder()
        .port("inside", inside)
        .port("outside", outside)
        .wire("inside", "outside")
        .stage(move |cx| Nat {
            inside: cx.port("inside"),
            ours,
            neighbours: HashMap::new(),
            ports: HashMap::new(),
            flows: Vec::new(),
            mem: questions.local(),
        })
        .build()?;
    let running = engine.start()?;
    eprintln!("ready");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?; // until it ends
    println!("{}", running.stop(Duration::from_secs(1)));
    Ok(())
}
