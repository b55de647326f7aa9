//! Opening of the port: the interface, created or found, and its properties.

use linerate_skb::Result;
use linerate_sys::netif::Interface;
use linerate_sys::tun::{Tap, TapOffloads};

use crate::driver::Opened;
use crate::host::{Bell, HostQueue, Link, PACKET_BYTES_MAX, is_busy, open_when_closed};
use crate::obtained::Obtained;
use crate::queue::QueueOps;

use super::Device;
use super::config::Config;
use super::rx::Rx;
use super::tx::Tx;

/// Opens a tap port.
pub(super) fn open(config: &Config) -> Result<Opened> {
    let taps = open_when_closed(is_busy, || match config.queues {
        1 => Ok(vec![Tap::open(&config.name, TapOffloads::ALL)?]),
        n => Tap::open_queues(&config.name, TapOffloads::ALL, n),
    })?;
    if config.up
        && let Some(tap) = taps.first()
    {
        Interface::open(tap.name().as_str())?.set_up()?;
    }
    let mut queues: Vec<Box<dyn QueueOps>> = Vec::with_capacity(taps.len());
    let mut obtained = None;
    for tap in taps {
        let link = Link::of_descriptor(Interface::open(tap.name().as_str())?);
        if obtained.is_none() {
            obtained = Some(obtain(&tap, &link, config.queues)?);
        }
        let bell = Bell::new(&tap)?;
        let device = Device { tap, rx: Rx::new(), tx: Tx::default() };
        queues.push(Box::new(HostQueue::new(link, bell, device)));
    }
    Ok(Opened { queues, obtained: obtained.unwrap_or_default() })
}

/// Returns the properties of the port, by its first queue.
fn obtain(tap: &Tap, link: &Link, queues: usize) -> Result<Obtained> {
    let mtu = link.interface().mtu_bytes()?;
    let how = if tap.created() { "created" } else { "attached" };
    let mode = format!(
        "TAP {how}, copy, a syscall a packet, MTU {mtu}, vnet_hdr{}",
        offloads(tap.offloads())
    );
    let mut obtained =
        Obtained::new(tap.name().as_str(), mode, PACKET_BYTES_MAX).mac_of(link.interface());
    obtained.queues = queues;
    if tap.offloads() != TapOffloads::ALL {
        obtained.refused.push(format!(
            "offloads{}: the kernel has them from 6.2 on",
            offloads(missing(tap.offloads()))
        ));
    }
    if !link.is_up() {
        obtained.refused.push(format!("down: ip link set {} up", tap.name()));
    }
    Ok(obtained)
}

fn missing(have: TapOffloads) -> TapOffloads {
    TapOffloads { csum: !have.csum, tso: !have.tso, uso: !have.uso }
}

fn offloads(which: TapOffloads) -> String {
    [(which.csum, " csum"), (which.tso, " tso"), (which.uso, " uso")]
        .into_iter()
        .filter_map(|(on, word)| on.then_some(word))
        .collect()
}
