//! The end of a VXLAN tunnel, until its input ends: frames from the port INSIDE leave by the port
//! OUTSIDE, in datagrams to the other end, and the frames of that end's datagrams come back.
//!
//! `vxlan INSIDE OUTSIDE 192.0.2.1 02:00:00:00:00:01 192.0.2.2 02:00:00:00:00:02 7`, with the IP
//! and MAC address of this end, those of the other end (the MAC address of the router towards it),
//! and the number of the network; as OUTSIDE `xdp:eth0,udp=4789`, say, which leaves ARP and all
//! else to the host. A further argument is another UDP port than 4789: 8472 is the default of
//! Linux, flannel and Cilium.
//!
//! The MTU inside is 50 bytes below that of the path, or 70 over IPv6: longer packets are lost on
//! it. The other end is known by its address alone, so the path must be one that others cannot send
//! to in its name.

mod args;
mod until;

use linerate::prelude::*;
use linerate::wire::Tunnel;

struct Vxlan {
    inside: PortId,
    tunnel: Tunnel,
    port: u16,
}

impl Vxlan {
    /// Takes the frame out of a datagram of the other end.
    fn pop(&self, skb: &mut Skb) -> Result<(), DropReason> {
        if skb.ip()?.src() != self.tunnel.dst || skb.pop_vxlan_at(self.port)? != self.tunnel.vni {
            return Err(DropReason::UNWANTED);
        }
        Ok(())
    }
}

impl Stage for Vxlan {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if turn.port() == self.inside {
            batch.retain(|skb| skb.push_vxlan(&self.tunnel));
        } else {
            batch.retain(|skb| self.pop(skb));
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let usage = "usage: vxlan INSIDE OUTSIDE IP MAC OTHER_IP OTHER_MAC NETWORK [PORT]";
    let [inside, outside, src, src_mac, dst, dst_mac, vni, port @ ..] = &args[..] else {
        return Err(usage.into());
    };
    if port.len() > 1 {
        return Err(usage.into());
    }
    let port = port.first().map_or(Ok(4789), |port| port.parse())?;
    let tunnel = Tunnel {
        src_mac: src_mac.parse()?,
        dst_mac: dst_mac.parse()?,
        src: src.parse()?,
        dst: dst.parse()?,
        vni: vni.parse()?,
        port: Some(port),
    };
    if tunnel.src.is_ipv4() != tunnel.dst.is_ipv4() || tunnel.vni >= 1 << 24 {
        return Err("two addresses of one version, and a network below 2^24".into());
    }
    let engine = Engine::builder().port("inside", inside).port("outside", outside);
    let engine = engine.wire("inside", "outside");
    let engine = engine.stage(move |cx| Vxlan { inside: cx.port("inside"), tunnel, port });
    until::input_ends(engine.build()?)
}
