//! VLAN tags that are kept beside a packet, where neither an XDP program nor an AF_XDP socket can
//! read them.
//!
//! A card with `rxvlan` removes the tag of a received packet, and the other end of a veth with
//! `txvlan` leaves the tag out of a packet that it sends. Without its tag a packet of a VLAN looks
//! like one of none: a filter takes it away from the VLAN's interface, and it is forwarded into
//! another network. So these offloads are off while a port receives.

use linerate_sys::netif::{DeviceOffload, Interface};
use linerate_sys::rtnl::LinkInfo;

use super::config::Config;
use super::partial::{OffloadOff, OtherEnd, other_end};
use crate::doctor::Findings;
use crate::doctor::trial::NOBODYS;
use crate::driver::Change;
use crate::host::filter::{Filter, Match};

/// Command that makes the other end of a pair write the tags into its packets.
const TAGS_ON: &str = "ethtool -K IFACE txvlan off tx-vlan-stag-hw-insert off";

/// Turns the offload that hides tags from the port off, if there is one; returns it, and a note.
pub(super) fn prepare(
    config: &Config,
    interface: &Interface,
) -> (Option<OffloadOff>, Option<String>) {
    let lost =
        |why: String| Some(format!("VLAN tags: packets of VLANs arrive without them: {why}"));
    let (of, which) = match hiding(config, interface) {
        Hiding::None => return (None, None),
        Hiding::Elsewhere => {
            let note = "VLAN tags: packets of VLANs may arrive without them; if the other end has VLANs, there";
            return (None, Some(format!("{note}: {TAGS_ON}")));
        }
        Hiding::By(of, which) => (of, which),
    };
    // Another port on the interface may live longer than this one, and need the offload off.
    if config.map.is_some() {
        return (None, lost(format!("the {which} of {} is on", of.name())));
    }
    match OffloadOff::of(of, which) {
        Ok(off) => {
            (Some(off), Some(format!("VLAN tags: the {which} is off while the port is open")))
        }
        Err(why) => (None, lost(format!("the {which} is on: {why}"))),
    }
}

/// Reports what [`prepare`] will do for the port of `config`.
pub(super) fn examine(config: &Config, interface: &Interface, found: &mut Findings) {
    match hiding(config, interface) {
        Hiding::None => {}
        Hiding::Elsewhere => {
            found
                .warn("not obtained: VLAN tags")
                .why("packets of VLANs may arrive without them, if the other end has VLANs")
                .fix(format!("there: {TAGS_ON}"));
        }
        Hiding::By(of, which) => {
            found.ok(format!("the {which} of {} is off while the port is open", of.name()));
        }
    }
}

/// Returns the setting that [`prepare`] will change.
pub(super) fn change(config: &Config) -> Option<Change> {
    let interface = Interface::open(&config.interface).ok().filter(|_| config.map.is_none())?;
    match hiding(config, &interface) {
        Hiding::By(of, which) => Some(Change::of_offload(&of, which)),
        Hiding::None | Hiding::Elsewhere => None,
    }
}

/// Reason for which packets may arrive without their VLAN tags.
enum Hiding {
    None,
    /// The offload of this interface, which is on.
    By(Interface, DeviceOffload),
    /// The other end, which is in another network namespace, or of another kind than veth.
    Elsewhere,
}

fn hiding(config: &Config, interface: &Interface) -> Hiding {
    if takes_no_traffic(config) {
        return Hiding::None;
    }
    let (of, which) = match other_end(interface) {
        OtherEnd::Here(other) => (Ok(other), DeviceOffload::VlanInsertion),
        OtherEnd::None => (Interface::open(interface.name().as_str()), DeviceOffload::VlanRemoval),
        OtherEnd::Elsewhere(_) => {
            let kind = LinkInfo::of(interface).unwrap_or_default().kind;
            let is_pair = matches!(kind.as_str(), "veth" | "netkit");
            return if is_pair { Hiding::Elsewhere } else { Hiding::None };
        }
    };
    match of {
        Ok(of) if matches!(of.offload(which), Ok(true)) => Hiding::By(of, which),
        _ => Hiding::None,
    }
}

/// Returns true for a port that only sends, and for a trial of `doctor`, which changes as little as
/// possible: its text has both a filter of its own and `promisc=off`.
fn takes_no_traffic(config: &Config) -> bool {
    let is_tried = config.promisc == Some(false);
    match &config.filter {
        Filter::Nothing | Filter::Only(Match::Answer(_)) => true,
        filter => is_tried && filter.to_string() == NOBODYS,
    }
}
