//! The state of an interface: its presence, kind and carrier, and whether it is up.

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{FLAG_RUNNING, FLAG_UP, HARDWARE_ETHERNET, Interface};
use linerate_sys::rtnl::{LinkInfo, XdpFeatures, reaches_hardware};

use super::finding::Findings;
use super::proc;
use crate::spec::nearest;

/// An interface that exists.
pub(crate) struct InterfaceInfo {
    pub interface: Interface,
    pub info: LinkInfo,
    pub is_up: bool,
    pub mtu: usize,
}

impl InterfaceInfo {
    /// Returns true if the interface is hardware, whose driver may have to stop it to change a
    /// setting.
    pub fn is_hardware(&self) -> bool {
        let ethernet = self.interface.hardware().is_ok_and(|h| h.kind == HARDWARE_ETHERNET);
        self.info.kind.is_empty() && ethernet
    }

    /// Returns true if the interface is hardware or stands on hardware, as a bond or a VLAN does:
    /// an XDP program changes settings of that, too.
    pub fn reaches_hardware(&self) -> bool {
        self.is_hardware() || reaches_hardware(&self.interface)
    }
}

/// Returns the other end of the veth that `info` describes, if it is in this namespace.
pub(crate) fn other_end(info: &LinkInfo) -> Option<Interface> {
    if info.kind != "veth" || info.other_is_elsewhere {
        return None;
    }
    Interface::by_index(info.other?).ok()
}

/// Examines the interface called `name`.
///
/// # Errors
/// `E-NODEV`, with a name that may have been meant.
pub(crate) fn examine(name: &str, found: &mut Findings) -> Result<InterfaceInfo> {
    let interface = Interface::find(name).map_err(|e| similar(e, name))?;
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
    match other_end(&of.info) {
        Some(other) => finding
            .why(format!("{}, its other end, is down", other.name()))
            .fix(format!("ip link set {} up", other.name())),
        None if of.is_hardware() => {
            finding.why("no cable, or the other end is down").fix(format!("ethtool {name}"))
        }
        None if of.info.kind == "veth" => {
            finding.why("its other end, in another network namespace, is down").fix(format!(
                "bring that end up; its number and its namespace: ip -d link show {name}"
            ))
        }
        None => {
            finding.why("no process has its other end open").fix(format!("ip -d link show {name}"))
        }
    };
}

/// Adds findings on the interfaces above and below this one; `takes` has the options that select
/// the packets of a port that takes them from the kernel.
pub(crate) fn standing(
    of: &InterfaceInfo,
    driver: &str,
    takes: Option<&str>,
    found: &mut Findings,
) {
    let name = of.interface.name();
    let named = |index: Option<u32>| Some(Interface::by_index(index?).ok()?.name().to_string());
    let below = named(of.info.other.filter(|_| !of.info.other_is_elsewhere));
    let parent = below.as_deref().unwrap_or("an interface elsewhere");
    let elsewhere =
        || format!("run in the network namespace of that interface: ip -d link show {name}");
    let (what, why, fix) = match of.info.kind.as_str() {
        kind @ ("bond" | "team" | "bridge") => {
            let members = LinkInfo::members_of(&of.interface).unwrap_or_default();
            let members: Vec<_> = members.iter().map(ToString::to_string).collect();
            let (list, first) = match &members[..] {
                [] => ("no member".to_owned(), "MEMBER"),
                [first, ..] => (members.join(" and "), first.as_str()),
            };
            let why = match kind {
                "bridge" => {
                    "a port on it does not see packets between its members, and the kernel runs XDP on it in generic mode, with copies"
                }
                _ => "only the drivers of its members have zero-copy",
            };
            let options = takes.unwrap_or_default();
            let fix = format!(
                "use a port for each member, as {driver}:{first}{options}: ip link show master {name}"
            );
            (format!("{name} is a {kind} of {list}"), why.to_owned(), fix)
        }
        "vlan" => (
            format!("{name} is a VLAN of {parent}"),
            "it has no driver of its own: the kernel runs XDP on it in generic mode, with copies"
                .to_owned(),
            below.as_ref().map_or_else(elsewhere, |parent| format!(
                "use {driver}:{parent},ethertype=0x8100, which takes the packets of every VLAN of {parent}, with their tags (also of one that the host uses, which xdp takes with ,all only): ip -d link show {name}"
            )),
        ),
        kind @ ("macvlan" | "macvtap" | "ipvlan" | "ipvtap") => (
            format!("{name} is a {kind} of {parent}"),
            "it has no driver of its own: the kernel runs XDP on it in generic mode, with copies"
                .to_owned(),
            below.as_ref().map_or_else(elsewhere, |parent| format!(
                "use {driver}:{parent},dst=ADDR for packets to one address: ip -d link show {name}"
            )),
        ),
        _ => return member(of, takes.is_some(), found),
    };
    if takes.is_some() {
        found.warn(what).why(why).fix(fix);
    } else {
        found.ok(what);
    }
    member(of, takes.is_some(), found);
}

/// Adds a finding on the effect on the bridge or bond of which the interface is a member.
fn member(of: &InterfaceInfo, takes: bool, found: &mut Findings) {
    let Some(master) = of.info.master.and_then(|index| Interface::by_index(index).ok()) else {
        return;
    };
    let (name, of_it) = (of.interface.name(), master.name());
    let kind = LinkInfo::of(&master).map_or("master".into(), |info| info.kind);
    let what = format!("{name} is a member of the {kind} {of_it}");
    if !takes {
        found.ok(format!("{what}, which gets its packets, too"));
        return;
    }
    found
        .warn(what)
        .why(format!(
            "packets that the port receives do not reach {of_it}, packets that it sends bypass {of_it}, and the port does not receive packets of other members"
        ))
        .fix(format!(
            "use a port for each member, or packet:{of_it} for copies of every member's packets: ip link show master {of_it}"
        ));
}

/// Adds a finding if the device merges packets that it receives; `why` says why that matters.
pub(crate) fn lro(of: &InterfaceInfo, why: &str, found: &mut Findings) {
    let name = of.interface.name();
    if of.interface.merging().is_ok_and(|merging| merging.by_device) {
        found
            .warn(format!("{name} merges packets that it receives (LRO)"))
            .why(why)
            .fix(format!("ethtool -K {name} lro off"));
    }
}

/// Returns the reason why a veth has no XDP now, and the remedy; `None` for another kind of
/// interface.
///
/// Source: drivers/net/veth.c, `veth_set_xdp_features` and `veth_xdp_set` (`ENOSPC`).
pub(crate) fn too_few_queues(interface: &Interface, info: &LinkInfo) -> Option<(String, String)> {
    let queues = interface.rx_queues().ok().filter(|_| info.kind == "veth")?;
    let (end, name) = match other_end(info) {
        Some(other) => (other.name().to_string(), other.name().to_string()),
        None => ("the other end".to_owned(), "IFACE".to_owned()),
    };
    let why = format!(
        "a veth has XDP only if its other end has no more transmit queues than it has receive queues, and {} has {queues}",
        interface.name()
    );
    Some((why, format!("limit the transmit queues of {end}: ethtool -L {name} tx {queues}")))
}

/// Adds a finding on the XDP features that the driver reports; opens nothing for this.
pub(crate) fn features(of: &InterfaceInfo, found: &mut Findings) {
    let name = of.interface.name();
    let features = match XdpFeatures::of(&of.interface) {
        Ok(Some(features)) => features,
        // The features are unknown here; the trial reports them, or that it was not made.
        Ok(None) | Err(_) => return,
    };
    let words = features.words().join(" ");
    if !features.has_programs() {
        let finding = found.warn(format!("{name}'s driver reports no XDP"));
        let generic = "the kernel runs XDP on it in generic mode, with copies";
        match too_few_queues(&of.interface, &of.info) {
            Some((why, fix)) => finding.why(format!("{generic}: {why}")).fix(fix),
            None => finding.why(generic),
        };
        return;
    }
    let zero_copy = match (features.has_zero_copy(), features.zero_copy_frames_max) {
        (false, _) => "no zero-copy".to_owned(),
        (true, Some(most)) if most > 1 => format!("zero-copy, up to {most} frames a packet"),
        (true, _) => "zero-copy, one frame a packet".to_owned(),
    };
    found.ok(format!("{name}'s driver reports: XDP, {zero_copy} ({words})"));
}

/// Returns a text with the kind and the driver of an interface.
fn kind(of: &InterfaceInfo) -> String {
    match (of.info.kind.as_str(), of.interface.driver()) {
        ("", Ok((driver, _))) => driver,
        ("", Err(_)) => "loopback".into(),
        (kind, _) => kind.to_owned(),
    }
}

/// Adds to the error the interface names that are similar to `name`, and the command that lists all
/// interfaces.
fn similar(e: Error, name: &str) -> Error {
    let is_elsewhere = e.fix.starts_with("ip netns exec");
    if is_elsewhere || !matches!(e.code, Code::NoDevice | Code::PortSyntax) {
        return e;
    }
    // Do not read /sys, which shows the namespace of the process that mounted it.
    let list = proc::text("/proc/thread-self/net/dev").unwrap_or_default();
    let names = list.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let meant = match nearest(name, names) {
        Some(near) => format!("did you mean {near}?"),
        None => "use the name of an existing interface;".into(),
    };
    e.fix(format!("{meant} this lists them: ip -br link"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::host::testing::{in_netns, ip, veth};

    #[test]
    fn bridges_their_members_and_what_stands_on_another_are_named_with_what_to_do() {
        in_netns(|| {
            veth(1500);
            ip("link add b0 type bridge");
            ip("link set v0 master b0");
            let told = |name: &str, kind: Option<&str>, takes: bool| {
                let mut found = Findings::default();
                let mut of = examine(name, &mut Findings::default()).unwrap();
                if let Some(kind) = kind {
                    // Pretend to be of this kind, because not every kernel has every kind.
                    (of.info.kind, of.info.other) = (kind.into(), Some(of.interface.index()));
                }
                standing(&of, "xdp", takes.then_some(",udp=7777"), &mut found);
                found.into_vec()
            };
            let bridge = &told("b0", None, true)[0];
            assert_eq!((bridge.level, &*bridge.what), (Level::Warn, "b0 is a bridge of v0"));
            let fix = &bridge.fix.as_ref().unwrap().text;
            assert_eq!(
                fix,
                "use a port for each member, as xdp:v0,udp=7777: ip link show master b0"
            );
            let member = &told("v0", None, true)[0];
            assert_eq!(member.what, "v0 is a member of the bridge b0");
            assert!(member.why.as_ref().unwrap().contains("do not reach b0"), "{member:?}");
            let copies = &told("v0", None, false)[0];
            assert_eq!((copies.level, copies.fix.as_ref()), (Level::Ok, None));
            assert_eq!(told("v1", None, true), []);
            for (kind, what, fix) in [
                ("bond", "v1 is a bond of no member", "ip link show master v1"),
                (
                    "vlan",
                    "v1 is a VLAN of v1",
                    "use xdp:v1,ethertype=0x8100, which takes the packets of every VLAN of v1, with their tags (also of one that the host uses, which xdp takes with ,all only): ip -d link show v1",
                ),
                (
                    "macvlan",
                    "v1 is a macvlan of v1",
                    "use xdp:v1,dst=ADDR for packets to one address: ip -d link show v1",
                ),
            ] {
                let found = &told("v1", Some(kind), true)[0];
                assert_eq!((found.level, &*found.what), (Level::Warn, what));
                assert!(found.fix.as_ref().unwrap().text.ends_with(fix), "{found:?}");
            }
        });
    }

    #[test]
    fn what_a_driver_says_of_its_xdp_is_told_without_a_trial() {
        in_netns(|| {
            veth(1500);
            let told = |name: &str| {
                let mut found = Findings::default();
                let of = examine(name, &mut Findings::default()).unwrap();
                features(&of, &mut found);
                found.into_vec()
            };
            let Some(veth) = told("v0").pop() else {
                return eprintln!("skipped: this kernel does not say");
            };
            assert!(
                veth.what.starts_with("v0's driver reports: XDP, no zero-copy (basic redirect ")
            );
            assert_eq!((veth.level, told("lo")[0].level), (Level::Ok, Level::Warn));
            assert_eq!(told("lo")[0].what, "lo's driver reports no XDP");
            assert!(!ip("link show v0").contains("prog/xdp"));
        });
    }

    #[test]
    fn cause_of_a_missing_carrier_is_the_other_end_where_that_is() {
        in_netns(|| {
            veth(1500);
            ip("link set v1 down");
            let mut of = examine("v0", &mut Findings::default()).unwrap();
            let told = |of: &InterfaceInfo| {
                let mut found = Findings::default();
                no_carrier(of, "v0", &mut found);
                found.into_vec().pop().unwrap()
            };
            let here = told(&of);
            assert_eq!(here.why.as_deref(), Some("v1, its other end, is down"));
            assert_eq!(here.fix.unwrap().text, "ip link set v1 up");
            of.info.other_is_elsewhere = true;
            let elsewhere = told(&of);
            let why = "its other end, in another network namespace, is down";
            assert_eq!(elsewhere.why.as_deref(), Some(why));
            of.info.kind = "tun".into();
            assert_eq!(told(&of).why.as_deref(), Some("no process has its other end open"));
        });
    }

    #[test]
    fn veth_with_too_few_queues_for_xdp_is_told_with_the_remedy_at_its_other_end() {
        in_netns(|| {
            let few = "link add v1 numtxqueues 4 numrxqueues 4 type veth peer name v0";
            ip(&format!("{few} numtxqueues 4 numrxqueues 2"));
            let of = examine("v0", &mut Findings::default()).unwrap();
            let (why, fix) = too_few_queues(&of.interface, &of.info).unwrap();
            assert!(why.ends_with("and v0 has 2"), "{why}");
            assert_eq!(fix, "limit the transmit queues of v1: ethtool -L v1 tx 2");
            let mut found = Findings::default();
            features(&of, &mut found);
            let Some(told) = found.into_vec().pop() else {
                return eprintln!("skipped: this kernel does not say");
            };
            assert_eq!(told.what, "v0's driver reports no XDP");
            assert_eq!(told.fix.unwrap().text, fix);
            let lo = examine("lo", &mut Findings::default()).unwrap();
            assert_eq!(too_few_queues(&lo.interface, &lo.info), None);
        });
    }
}
