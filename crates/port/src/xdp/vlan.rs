//! VLAN tags that are kept beside a packet, where neither an XDP program nor an AF_XDP socket can read them.
//!
//! A card with `rxvlan` removes the tag of a received packet, and the other end of a veth with `txvlan` leaves the
//! tag out of a packet that it sends. Without its tag a packet of a VLAN looks like one of none: a filter takes it away from
//! the VLAN's interface, and it is forwarded into another network. So these offloads are off while a port receives.

use linerate_sys::netif::{DeviceOffload, Interface};

use super::config::Config;
use super::partial::{OffloadOff, OtherEnd, other_end};
use crate::driver::Change;
use crate::host::filter::Filter;

/// Turns the offload that hides tags from the port off, if there is one; returns it, and a note.
pub(super) fn prepare(
    config: &Config,
    interface: &Interface,
) -> (Option<OffloadOff>, Option<String>) {
    let Some((of, which)) = hiding(config, interface) else { return (None, None) };
    let name = of.name();
    // Another port on the interface may live longer than this one, and need the offload off.
    if config.map.is_some() {
        let note =
            format!("VLAN tags: packets of VLANs arrive without them: the {which} of {name} is on");
        return (None, Some(note));
    }
    match OffloadOff::of(of, which) {
        Ok(off) => {
            (Some(off), Some(format!("VLAN tags: the {which} is off while the port is open")))
        }
        Err(why) => (
            None,
            Some(format!(
                "VLAN tags: packets of VLANs arrive without them: the {which} is on: {why}"
            )),
        ),
    }
}

/// Returns the setting that [`prepare`] will change.
pub(super) fn change(config: &Config) -> Option<Change> {
    let interface = Interface::open(&config.interface).ok().filter(|_| config.map.is_none())?;
    hiding(config, &interface).map(|(of, which)| Change::of_offload(&of, which))
}

/// Returns the interface whose offload hides the tags of packets that the port receives, and the offload.
fn hiding(config: &Config, interface: &Interface) -> Option<(Interface, DeviceOffload)> {
    let (of, which) = match other_end(interface) {
        _ if config.filter == Filter::Nothing => return None,
        OtherEnd::Here(other) => (other, DeviceOffload::VlanInsertion),
        OtherEnd::Elsewhere(_) => return None,
        OtherEnd::None => {
            (Interface::open(interface.name().as_str()).ok()?, DeviceOffload::VlanRemoval)
        }
    };
    matches!(of.offload(which), Ok(true)).then_some((of, which))
}
