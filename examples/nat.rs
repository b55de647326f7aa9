//! Source NAT on a wire: `nat INSIDE OUTSIDE 10.7.0.254` hides hosts behind one address of their
//! own network, until its input ends. UDP, TCP and ARP pass; flows are never forgotten, and any
//! host outside reaches the sender by the port of its flow.

mod args;
mod until;

use std::net::{IpAddr, SocketAddr};

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

struct Nat {
    inside: PortId,
    address: IpAddr,
    /// The sender of the flow that each port belongs to.
    senders: Vec<Option<(Protocol, SocketAddr, Mac)>>,
}

impl Stage for Nat {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.decide(|skb| match skb.arp_mut() {
            Ok(mut arp) if arp.target_ip() == self.address => {
                arp.reply(MAC)?;
                Ok(turn.port().verdict()) // back to the sender
            }
            Ok(_) => Ok(Verdict::NONE), // to the other end of the wire
            Err(_) if turn.port() == self.inside => self.hide(skb),
            Err(_) => self.find(skb),
        });
    }
}

impl Nat {
    fn hide(&mut self, skb: &mut Skb) -> Result<Verdict, DropReason> {
        let (hash, mac) = (skb.flow_hash() as usize, skb.eth()?.src());
        let mut packet = skb.transport_mut()?;
        let sender = Some((packet.protocol(), packet.src_addr(), mac));
        let mut slots = (0..PROBES).map(|i| (hash + i) % PORTS);
        let slot = slots.find(|&slot| self.senders[slot].is_none() || self.senders[slot] == sender);
        let slot = slot.ok_or(NO_PORT)?;
        packet.set_src((self.address, (FIRST + slot) as u16).into())?; // updates the checksums
        self.senders[slot] = sender;
        Ok(Verdict::NONE)
    }

    fn find(&mut self, skb: &mut Skb) -> Result<Verdict, DropReason> {
        let mut packet = skb.transport_mut()?;
        let (to, protocol) = (packet.dst_addr(), packet.protocol());
        let slot = usize::from(to.port()).wrapping_sub(FIRST);
        let sender = self.senders.get(slot).copied().flatten();
        let sender = sender.filter(|sender| sender.0 == protocol && to.ip() == self.address);
        let (_, host, mac) = sender.ok_or(DropReason::UNWANTED)?;
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
        senders: vec![None; PORTS],
    });
    until::input_ends(engine.build()?)
}
