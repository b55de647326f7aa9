//! A stage of your own on a wire: `wire packet:west packet:east pcap:mirror.pcapng 10s`. Without
//! arguments it guards generated traffic for 2 seconds; `stage_test.rs` tests the stage.

#[path = "args.rs"] // also as a module of `stage_test.rs`
mod args;

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use linerate::{PortId, prelude::*, units, wire::EtherType};

pub(crate) const BLOCKED: DropReason = DropReason::app(0, "blocked");

/// A stage that drops packets of some sources, clears DSCP, and mirrors every n-th packet.
pub(crate) struct Guard {
    deny: HashSet<Ipv4Addr>,
    mirror: PortId,
    mirror_every: u64,
    seen: u64,
}

pub(crate) fn guard(cx: &mut StageContext<'_>, mirror_every: u64) -> Guard {
    let deny = HashSet::from([Ipv4Addr::new(192, 0, 2, 7)]);
    Guard { deny, mirror: cx.port("tap"), mirror_every, seen: 0 }
}

// Each worker has its own stage (Send, not Sync), called with one dyn call a batch.
impl Stage for Guard {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.retain(|skb| {
            self.seen += 1;
            if self.seen.is_multiple_of(self.mirror_every) {
                turn.send(self.mirror, skb.share()); // shared; copied when one is written
            }
            if skb.eth()?.ether_type() != EtherType::IPV4 {
                return Ok(()); // ARP, IPv6 pass
            }
            let mut ip = skb.ipv4_mut()?; // a malformed packet is dropped
            if self.deny.contains(&ip.src()) {
                return Err(BLOCKED);
            }
            ip.set_dscp(0); // updates the checksum
            Ok(())
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let arg = |i: usize, default| args.get(i).map_or(default, String::as_str);
    let engine = Engine::builder()
        .port("west", arg(0, "gen:,rate=100kpps"))
        .port("east", arg(1, "sink:"))
        .port("tap", arg(2, "null:"))
        .wire("west", "east")
        .stage(|cx| guard(cx, 1000))
        .build()?; // no thread runs yet; refuses a pool that is too small
    let running = engine.start()?;
    let _ = running.wait(units::duration(arg(3, "2s"))?); // or until the sources end
    let stopped = running.stop(Duration::from_secs(1)); // sends the waiting packets
    println!("{stopped}"); // prints the ledger
    Ok(stopped.check()?)
}
