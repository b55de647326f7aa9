//! Source NAT on a wire: `nat INSIDE OUTSIDE 10.7.0.254` hides hosts behind one address of their
//! own network, until its input ends. UDP, TCP and ARP pass. A flow is forgotten after five minutes
//! without a packet; until then any host outside reaches the sender by the port of its flow.

mod args;
mod until;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate::prelude::*;
use linerate::wire::{Mac, Protocol};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
const NO_PORT: DropReason = DropReason::app(0, "no_port_near");
/// The first of our own ports; the next constant is their number.
const FIRST: usize = 0x8000;
const PORTS: usize = 0x8000;
/// Most ports that are looked at for a packet, so that a full table costs no more; a flow may find
/// none near its hash while others are free.
const PROBES: usize = 64;
/// Time without a packet after which a flow is forgotten.
const IDLE: Duration = Duration::from_secs(300);

struct Nat {
    inside: PortId,
    address: IpAddr,
    /// The flow that each port belongs to.
    flows: Vec<Option<Flow>>,
}

#[derive(Clone)]
struct Flow {
    sender: (Protocol, SocketAddr, Mac),
    /// Time of its last packet.
    used: Instant,
}

impl Flow {
    fn is_alive(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < IDLE
    }
}

impl Stage for Nat {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let now = turn.now(); // one clock reading for the batch
        batch.decide(|skb| match skb.arp_mut() {
            Ok(mut arp) if arp.target_ip() == self.address => {
                arp.reply(MAC)?;
                Ok(turn.port().verdict()) // back to the sender
            }
            Ok(_) => Ok(Verdict::NONE), // to the other end of the wire
            Err(_) if turn.port() == self.inside => self.hide(skb, now),
            Err(_) => self.find(skb, now),
        });
    }
}

impl Nat {
    fn hide(&mut self, skb: &mut Skb, now: Instant) -> Result<Verdict, DropReason> {
        let (hash, mac) = (skb.flow_hash() as usize, skb.eth()?.src());
        let mut packet = skb.transport_mut()?;
        let sender = (packet.protocol(), packet.src_addr(), mac);
        let is_free = |flow: &Flow| flow.sender == sender || !flow.is_alive(now);
        let mut slots = (0..PROBES).map(|i| (hash + i) % PORTS);
        let slot = slots.find(|&slot| self.flows[slot].as_ref().is_none_or(is_free));
        let slot = slot.ok_or(NO_PORT)?;
        packet.set_src((self.address, (FIRST + slot) as u16).into())?; // updates the checksums
        self.flows[slot] = Some(Flow { sender, used: now });
        Ok(Verdict::NONE)
    }

    fn find(&mut self, skb: &mut Skb, now: Instant) -> Result<Verdict, DropReason> {
        let mut packet = skb.transport_mut()?;
        let (to, protocol) = (packet.dst_addr(), packet.protocol());
        let slot = usize::from(to.port()).wrapping_sub(FIRST);
        let flow = self.flows.get_mut(slot).and_then(Option::as_mut);
        let flow = flow.filter(|flow| flow.sender.0 == protocol && flow.is_alive(now));
        let flow = flow.filter(|_| to.ip() == self.address).ok_or(DropReason::UNWANTED)?;
        flow.used = now;
        let (_, host, mac) = flow.sender;
        packet.set_dst(host)?;
        skb.eth_mut()?.set_dst(mac);
        Ok(Verdict::NONE)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [inside, outside, address] = &args[..] else {
        return Err("usage: nat INSIDE OUTSIDE ADDRESS".into());
    };
    let address: IpAddr = address.parse()?;
    let engine = Engine::builder().port("inside", inside).port("outside", outside);
    let engine = engine.wire("inside", "outside");
    let engine = engine.stage(move |cx| Nat {
        inside: cx.port("inside"),
        address,
        flows: vec![None; PORTS],
    });
    until::input_ends(engine.build()?)
}

#[cfg(test)]
mod tests {
    use linerate::pcap::Frame;
    use linerate::testing::run_ports;
    use linerate::wire::{self, UdpEnds};

    use super::*;

    const ADDRESS: &str = "10.7.0.254";
    const HOSTS: [&str; 2] = ["10.7.0.1:1000", "10.7.0.2:53"];

    /// Returns a datagram from one address to another, which came after `seconds`.
    fn datagram(seconds: u64, [src, dst]: [&str; 2]) -> Frame {
        let [src_mac, dst_mac] = [Mac([2, 0, 0, 0, 0, 1]), MAC];
        let ends =
            UdpEnds { src_mac, dst_mac, src: src.parse().unwrap(), dst: dst.parse().unwrap() };
        let mut bytes = vec![0; 100];
        ends.write(&mut bytes).unwrap();
        Frame { stamp_ns: seconds * 1_000_000_000, bytes }
    }

    /// Returns what passes of a datagram from inside, and of those from outside.
    fn passed(outside: &[Frame]) -> [Vec<Frame>; 2] {
        let make = |cx: &mut StageContext<'_>| Nat {
            inside: cx.port("inside"),
            address: ADDRESS.parse().unwrap(),
            flows: vec![None; PORTS],
        };
        let inside = [datagram(0, HOSTS)];
        let run = run_ports(make, &[("inside", &inside), ("outside", outside)]);
        ["outside", "inside"].map(|port| run.out(port).to_vec())
    }

    #[test]
    fn answers_come_back_until_the_flow_has_been_idle_for_five_minutes() {
        let sent = passed(&[]).into_iter().next().unwrap();
        let hidden = wire::Head::new(&sent[0].bytes, 0).udp().unwrap().src_addr().to_string();
        assert!(hidden.starts_with(ADDRESS), "{hidden}");
        let answer = |seconds| datagram(seconds, [HOSTS[1], &hidden]);
        let [_, back] = passed(&[answer(299), answer(590), answer(891)]);
        assert_eq!(back.len(), 2, "each answer keeps the flow, and the last one is too late");
        let to = wire::Head::new(&back[0].bytes, 0).udp().unwrap().dst_addr().to_string();
        assert_eq!(to, HOSTS[0]);
    }
}
