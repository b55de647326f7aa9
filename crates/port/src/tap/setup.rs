//! Opening of the port: the interface, created or found, and its properties.

use linerate_skb::Result;
use linerate_sys::netif::Interface;
use linerate_sys::tun::{Tap, TapOffloads};
use linerate_wire::VLAN_BYTES;

use crate::driver::Opened;
use crate::host::{
    Bell, HostQueue, Link, PACKET_BYTES_MAX, is_busy, longest_frame, open_when_closed,
};
use crate::obtained::Obtained;
use crate::queue::QueueOps;

use super::config::Config;
use super::rx::Rx;
use super::tx::Tx;
use super::{Device, Dropped};

/// Longest frame of an interface with the usual MTU, including two tags.
const FRAME_BYTES_USUAL: usize = 1522;

/// Returns the length of the longest packet that the port delivers. An interface that does not
/// exist yet gets the usual MTU.
pub(super) fn packet_max_bytes(config: &Config) -> Result<usize> {
    if config.vnet {
        return Ok(PACKET_BYTES_MAX);
    }
    let there = Interface::open(&config.name);
    there.map_or(Ok(FRAME_BYTES_USUAL), |interface| longest(&interface, false))
}

/// Returns the length of the longest packet of `interface`: a superframe, or without offload
/// headers a frame with two VLAN tags.
fn longest(interface: &Interface, vnet: bool) -> Result<usize> {
    if vnet {
        return Ok(PACKET_BYTES_MAX);
    }
    let longest = longest_frame(interface)? + VLAN_BYTES;
    Ok(longest.clamp(FRAME_BYTES_USUAL, PACKET_BYTES_MAX))
}

/// Opens a tap port.
pub(super) fn open(config: &Config) -> Result<Opened> {
    let taps = open_when_closed(is_busy, || match (config.vnet, config.queues) {
        (false, n) => Tap::open_plain(&config.name, n),
        (true, 1) => Ok(vec![Tap::open(&config.name, TapOffloads::ALL)?]),
        (true, n) => Tap::open_queues(&config.name, TapOffloads::ALL, n),
    })?;
    let mut parts = Vec::with_capacity(taps.len());
    for tap in taps {
        let interface = Interface::open(tap.name().as_str())?;
        parts.push((Bell::new(&tap)?, tap, interface));
    }
    // Set up last: what can fail is done, but for queries of the interface.
    if config.up
        && let Some((_, _, interface)) = parts.first()
    {
        interface.set_up()?;
    }
    let mut queues: Vec<Box<dyn QueueOps>> = Vec::with_capacity(parts.len());
    let mut obtained = None;
    for (bell, tap, interface) in parts {
        let link = Link::of_descriptor(interface);
        let mut dropped = None;
        if obtained.is_none() {
            obtained = Some(obtain(&tap, &link, config)?);
            dropped = Dropped::open(link.interface(), config.queues);
        }
        let device = Device { tap, rx: Rx::new(config.vnet), tx: Tx::new(config.vnet), dropped };
        queues.push(Box::new(HostQueue::new(link, bell, device)));
    }
    Ok(Opened { queues, obtained: obtained.unwrap_or_default() })
}

/// Returns the properties of the port, by its first queue.
fn obtain(tap: &Tap, link: &Link, config: &Config) -> Result<Obtained> {
    let mtu = link.interface().mtu_bytes()?;
    let how = if tap.created() { "created" } else { "attached" };
    let mut mode = format!("TAP {how}, copy, a syscall a packet, MTU {mtu}");
    if config.vnet {
        mode.push_str(", vnet_hdr");
        mode.push_str(&offloads(tap.offloads()));
    }
    let longest = longest(link.interface(), config.vnet)?;
    let mut obtained = Obtained::new(tap.name().as_str(), mode, longest).mac_of(link.interface());
    obtained.queues = config.queues;
    if config.vnet && tap.offloads() != TapOffloads::ALL {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_that_a_kernel_lacks_are_named() {
        let had = TapOffloads { csum: true, tso: true, uso: false };
        assert_eq!((offloads(had), offloads(missing(had))), (" csum tso".into(), " uso".into()));
        assert_eq!(offloads(missing(TapOffloads::ALL)), "");
    }
}
