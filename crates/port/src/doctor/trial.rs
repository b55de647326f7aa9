//! Trial of a port: opens it for a moment and restores all settings.

use std::time::Duration;

use linerate_skb::Result;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;

use super::interface::InterfaceInfo;
use crate::host::retry_for;
use crate::obtained::Obtained;
use crate::port::Port;

/// An EtherType for local experiments that linerate's test packets do not use, so that a trial
/// takes no real traffic.
///
/// Source: IEEE 802, table of EtherType values, "Local Experimental Ethertype 2".
pub(crate) const NOBODYS: &str = "ethertype=0x88b6";
/// Keys of a port text that select packets, which a trial replaces.
pub const FILTERS: [&str; 11] =
    ["all", "answer", "arp", "icmp", "dst", "ethertype", "udp", "tcp", "not", "write", "promisc"];
/// Longest time that the kernel needs to remove a program after its owner has closed it.
const GOING: Duration = Duration::from_millis(500);

/// Opens a port, closes it, and returns its properties.
pub(crate) fn open(text: &str) -> Result<Obtained> {
    Port::open(text).map(|port| port.obtained().clone())
}

/// Opens the xdp port of `text` with `filter` instead of its own filter, passes it to `run`, and
/// closes it.
pub(crate) fn open_xdp<T>(
    text: &str,
    filter: &str,
    on: &InterfaceInfo,
    run: impl FnOnce(&mut Port) -> T,
) -> Result<(Obtained, T)> {
    // The trial makes no interface promiscuous, which others would notice.
    let text = with(text, &FILTERS, filter) + ",promisc=off";
    let done = Port::open(&text).map(|mut port| {
        let result = run(&mut port);
        (port.obtained().clone(), result)
    });
    wait_until_detached(&on.interface);
    done
}

/// Returns `text` without the options whose keys are in `keys`, and with `option` added.
pub(crate) fn with(text: &str, keys: &[&str], option: &str) -> String {
    let is_other = |part: &&str| !keys.contains(&part.split('=').next().unwrap_or_default());
    let mut parts = text.split(',');
    // Keep the first part, which is always driver and argument.
    let head = parts.next().unwrap_or_default();
    let parts: Vec<&str> =
        std::iter::once(head).chain(parts.filter(is_other)).chain([option]).collect();
    parts.join(",")
}

/// Waits until a program is detached, which happens shortly after its last descriptor is closed.
fn wait_until_detached(interface: &Interface) {
    let look = || match LinkInfo::of(interface) {
        Ok(info) if !info.xdp_programs.is_empty() => Err(()),
        _ => Ok(()),
    };
    let _ = retry_for(GOING, |_| true, look);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_takes_nothing_of_interest_whatever_the_port_takes() {
        let of = |text| with(text, &FILTERS, NOBODYS);
        assert_eq!(of("xdp:v0"), "xdp:v0,ethertype=0x88b6");
        assert_eq!(of("a=xdp:v0,udp=7,ring=64"), "a=xdp:v0,ring=64,ethertype=0x88b6");
        assert_eq!(of("xdp:all,all,busy,not=tcp:22"), "xdp:all,busy,ethertype=0x88b6");
        assert_eq!(of("xdp:v0,answer=10.0.0.9,arp,icmp,dst=10.0.0.9"), "xdp:v0,ethertype=0x88b6");
        assert_eq!(of("xdp:v0,write"), "xdp:v0,ethertype=0x88b6");
        assert_eq!(with("packet:v0,promisc", &["promisc"], "promisc=off"), "packet:v0,promisc=off");
        assert!(crate::parse(&of("xdp:v0,tcp=1+2")).is_ok());
    }
}
