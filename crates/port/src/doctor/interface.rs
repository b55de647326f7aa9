//! An interface: whether it is there, up, has a carrier, and what it is.

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{FLAG_RUNNING, FLAG_UP, HARDWARE_ETHERNET, Interface};
use linerate_sys::rtnl::LinkInfo;

use super::finding::Findings;
use super::proc;
use crate::spec::nearest;

/// An interface that is there.
pub(crate) struct InterfaceInfo {
    pub interface: Interface,
    pub info: LinkInfo,
    pub is_up: bool,
    pub mtu: usize,
}

impl InterfaceInfo {
    /// Returns true if the interface has hardware, whose driver may have to stop for a change.
    pub fn is_hardware(&self) -> bool {
        let ethernet = self.interface.hardware().is_ok_and(|h| h.kind == HARDWARE_ETHERNET);
        self.info.kind.is_empty() && ethernet
    }

    /// Returns the other end of a veth, if it is in this namespace.
    pub fn other_end(&self) -> Option<Interface> {
        if self.info.kind != "veth" || self.info.other_is_elsewhere {
            return None;
        }
        Interface::by_index(self.info.other?).ok()
    }
}

/// Looks at the interface called `name`.
///
/// # Errors
/// `E-NODEV`, with a name that may have been meant.
pub(crate) fn examine(name: &str, found: &mut Findings) -> Result<InterfaceInfo> {
    let interface = Interface::open(name).map_err(|e| similar(e, name))?;
    let (flags, mtu) = (interface.flags()?, interface.mtu_bytes()? as usize);
    let info = LinkInfo::of(&interface)?;
    let of = InterfaceInfo { interface, info, is_up: flags & FLAG_UP != 0, mtu };
    if !of.is_up {
        let e = Error::new(Code::DeviceDown, format!("cannot use {name}"), "the interface is down");
        found.miss(&e.fix(format!("ip link set {name} up")));
    } else if flags & FLAG_RUNNING == 0 {
        no_carrier(&of, name, found);
    } else {
        found.ok(format!("{name}: {}, up, with a carrier, MTU {mtu}", kind(&of)));
    }
    Ok(of)
}

fn no_carrier(of: &InterfaceInfo, name: &str, found: &mut Findings) {
    let finding = found.warn(format!("{name}: {}, up, but has no carrier", kind(of)));
    match of.other_end() {
        Some(other) => finding
            .why(format!("{}, its other end, is down", other.name()))
            .fix(format!("ip link set {} up", other.name())),
        None if of.is_hardware() => {
            finding.why("no cable, or nobody at its other end").fix(format!("ethtool {name}"))
        }
        None => finding.why("nobody is at its other end").fix(format!("ip -d link show {name}")),
    };
}

/// Returns the kind and the driver.
fn kind(of: &InterfaceInfo) -> String {
    match (of.info.kind.as_str(), of.interface.driver()) {
        ("", Ok((driver, _))) => driver,
        ("", Err(_)) => "loopback".into(),
        (kind, _) => kind.to_owned(),
    }
}

/// Says what may have been meant, and what lists the names that there are: that is all a command can
/// do for one that is not.
fn similar(e: Error, name: &str) -> Error {
    if !matches!(e.code, Code::NoDevice | Code::PortSyntax) {
        return e;
    }
    // Not /sys, which shows the namespace of the process that mounted it.
    let list = proc::text("/proc/thread-self/net/dev").unwrap_or_default();
    let names = list.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let meant = match nearest(name, names) {
        Some(near) => format!("did you mean {near} ?"),
        None => "the name of one that is there;".into(),
    };
    e.fix(format!("{meant} this lists them: ip -br link"))
}
