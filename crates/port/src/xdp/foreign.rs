//! Coexistence with another owner's XDP program: the program stays unchanged, and finds the port's
//! sockets in a map of its own.
//!
//! The entry of a queue is made when its socket is bound, and only if it is empty. The kernel takes
//! it out when the socket is closed, however the process ends.

use std::sync::Arc;

use linerate_skb::{Code, Error, Result};
use linerate_sys::bpf::{Mode, SocketMap};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;
use linerate_sys::xdp::XdpSocket;

use crate::doctor::Findings;
use crate::doctor::interface::InterfaceInfo;

use super::attach::{Attached, program_names};
use super::config::{Config, Map, Wanted};
use super::setup::{self, cannot};
use super::{hold, spread};
use crate::host::filter::Filter;

/// Opens the map, and determines where its program receives packets.
pub(super) fn join(
    config: &Config,
    map: &Map,
    interface: &Interface,
    queues: &[u32],
    refused: &mut Vec<String>,
) -> Result<(Attached, Option<Mode>)> {
    let map = open(config, map, queues)?;
    let mode = LinkInfo::of(interface).unwrap_or_default().xdp_mode;
    let name = &config.interface;
    let is_only_written = config.filter == Filter::Nothing;
    let differs = match (config.mode, mode) {
        (Wanted::Native | Wanted::ZeroCopy, Some(Mode::Generic)) => {
            Some("behind its driver (generic)")
        }
        (Wanted::Generic, Some(Mode::Native)) => Some("in its driver (native)"),
        _ => None,
    };
    if let Some(place) = differs.filter(|_| !is_only_written) {
        let why = format!("the XDP program that is attached to it runs {place}");
        return Err(Error::new(Code::Unsupported, cannot(config), why)
            .fix(format!("{}, without mode=; or attach it otherwise", config.text())));
    }
    match mode {
        _ if is_only_written => {}
        None => refused.push(format!(
            "packets: no XDP program is attached to {name}; the port receives none until a program that uses this map is attached, \
             and copies: for zero-copy open the port after that"
        )),
        Some(Mode::Generic) => refused.push(format!("native: the program on {name} is attached as generic")),
        Some(Mode::Native) => {}
    }
    let options =
        [("rss", spread::wanted_by(config).is_some()), ("hold", hold::wanted(config).is_some())];
    // Nothing tells this port of another one that uses the map.
    refused.extend(options.into_iter().filter(|(_, is_set)| *is_set).map(|(option, _)| {
        format!(
            "{option}: it applies to all of {name}; only one of the ports on it may have {option}=, and must be closed last"
        )
    }));
    let map = (!is_only_written).then_some(map);
    let set = |by| spread::set(by, name, queues);
    let _spread = spread::wanted_by(config).map(set).transpose()?;
    Ok((
        Attached { map, own: None, _spread, hold: None, _off: Vec::new(), promiscuous: None },
        mode,
    ))
}

/// Opens the map, unless it is given as a descriptor, and checks that it has room for `queues`.
pub(super) fn open(config: &Config, map: &Map, queues: &[u32]) -> Result<Arc<SocketMap>> {
    let (map, named) = match map {
        Map::Pinned(path) => (Arc::new(SocketMap::pinned(path)?), path.as_str()),
        Map::Given(map) => (map.clone(), "the map that was given"),
    };
    match queues.iter().find(|queue| **queue >= map.entries()) {
        None => Ok(map),
        Some(queue) => {
            let why = format!("{named} has {} entries, none for queue {queue}", map.entries());
            let last = map.entries().saturating_sub(1);
            Err(Error::new(Code::PortSyntax, cannot(config), why)
                .fix(format!("{},queues=0-{last}; or a longer map in the program", config.text())))
        }
    }
}

/// Examines a port that uses another owner's program, up to the trial; returns true if a trial
/// makes sense.
pub(super) fn examine(
    config: &Config,
    map: &Map,
    of: &InterfaceInfo,
    found: &mut Findings,
) -> bool {
    let name = of.interface.name();
    let tried = XdpSocket::new().and_then(|_| open(config, map, &setup::queues(config)?));
    let may = match tried {
        Ok(map) => {
            let entries = map.entries();
            found.ok(format!("an AF_XDP socket can be made, and the map has {entries} entries"));
            true
        }
        Err(e) => {
            found.miss(&config.least(e));
            false
        }
    };
    match program_names(&of.info.xdp_programs).as_str() {
        "" => {
            found
                .warn(format!("no XDP program is attached to {name}"))
                .why("the port receives packets only from a program that uses its map")
                .fix(format!(
                    "start the application that attaches it, and check: bpftool net show dev {name}"
                ));
        }
        names => {
            found.ok(format!("the XDP program {names} is attached to {name}, and stays"));
        }
    }
    may
}

/// Reports which program feeds the port.
pub(super) fn feeder(interface: &Interface) -> String {
    match program_names(&LinkInfo::of(interface).unwrap_or_default().xdp_programs).as_str() {
        "" => "no program uses it yet".to_owned(),
        names => format!("filled by the program {names}"),
    }
}
