//! Opening: the interface, made or found, and what it gave.

use linerate_skb::Result;
use linerate_sys::netif::Interface;
use linerate_sys::tun::{Tap, TapOffloads};

use crate::driver::Opened;
use crate::host::{Bell, Link, PACKET_BYTES_MAX};
use crate::obtained::Obtained;

use super::TapQueue;
use super::config::Config;
use super::rx::Rx;
use super::tx::Tx;

/// Opens the port.
pub(super) fn open(config: &Config) -> Result<Opened> {
    let tap = Tap::open(&config.name, TapOffloads::ALL)?;
    let interface = Interface::open(tap.name().as_str())?;
    if config.up {
        interface.set_up()?;
    }
    let mtu = interface.mtu_bytes()?;
    let link = Link::of_descriptor(interface);
    let how = if tap.created() { "created" } else { "attached" };
    let mode = format!(
        "TAP {how}, copy, a syscall a packet, MTU {mtu}, vnet_hdr{}",
        offloads(tap.offloads())
    );
    let mut obtained = Obtained::new(tap.name().as_str(), mode, PACKET_BYTES_MAX);
    if tap.offloads() != TapOffloads::ALL {
        obtained.refused.push(format!(
            "offloads{}: the kernel has them from 6.2 on",
            offloads(missing(tap.offloads()))
        ));
    }
    if !link.is_up() {
        obtained.refused.push(format!("down: ip link set {} up", tap.name()));
    }
    let bell = Bell::new(&tap)?;
    Ok(Opened::single(
        TapQueue { tap, rx: Rx::new(), tx: Tx::new(), link, bell, armed: false },
        obtained,
    ))
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
