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
        let mut slots = (0..PROBES).map(|i| (hash + i) % PORTS);
        let alive = |slot: usize| self.flows[slot].as_ref().filter(|flow| flow.is_alive(now));
        // Its own port first: one in front of it may have become free since.
        let own = slots.clone().find(|&at| alive(at).is_some_and(|flow| flow.sender == sender));
        let slot = own.or_else(|| slots.find(|&at| alive(at).is_none())).ok_or(NO_PORT)?;
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

    /// Returns what passes of datagrams from inside, sent at these seconds, and of those from
    /// outside; the ports in `taken` belong to other flows that had a packet at the start.
    fn passed(inside: &[u64], outside: &[Frame], taken: &[usize]) -> [Vec<Frame>; 2] {
        let make = |cx: &mut StageContext<'_>| {
            let mut flows = vec![None; PORTS];
            let other = HOSTS[1].parse().unwrap();
            let flow = Flow { sender: (Protocol::UDP, other, MAC), used: Instant::now() };
            taken.iter().for_each(|slot| flows[*slot] = Some(flow.clone()));
            Nat { inside: cx.port("inside"), address: ADDRESS.parse().unwrap(), flows }
        };
        let inside: Vec<_> = inside.iter().map(|seconds| datagram(*seconds, HOSTS)).collect();
        let run = run_ports(make, &[("inside", &inside), ("outside", outside)]);
        ["outside", "inside"].map(|port| run.out(port).to_vec())
    }

    fn sender(frame: &Frame) -> SocketAddr {
        wire::Head::new(&frame.bytes, 0).udp().unwrap().src_addr()
    }

    #[test]
    fn a_flow_keeps_its_port_when_one_in_front_of_it_becomes_free() {
        let [first, _] = passed(&[0], &[], &[]);
        let slot = usize::from(sender(&first[0]).port()) - FIRST;
        let [sent, _] = passed(&[0, 200, 400, 650], &[], &[slot]);
        let ports: Vec<u16> = sent.iter().map(|frame| sender(frame).port()).collect();
        assert_eq!(ports, [(FIRST + (slot + 1) % PORTS) as u16; 4]);
    }

    #[test]
    fn answers_come_back_until_the_flow_has_been_idle_for_five_minutes() {
        let [sent, _] = passed(&[0], &[], &[]);
        let hidden = sender(&sent[0]).to_string();
        assert!(hidden.starts_with(ADDRESS), "{hidden}");
        let answer = |seconds| datagram(seconds, [HOSTS[1], &hidden]);
        let [_, back] = passed(&[0], &[answer(299), answer(590), answer(891)], &[]);
        assert_eq!(back.len(), 2, "each answer keeps the flow, and the last one is too late");
        let to = wire::Head::new(&back[0].bytes, 0).udp().unwrap().dst_addr().to_string();
        assert_eq!(to, HOSTS[0]);
    }
}
