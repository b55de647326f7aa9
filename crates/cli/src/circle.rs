//! The warnings about a path between two ports of one network, on which packets circulate, and about
//! one that joins two networks of the host.

use linerate::{Driver, Registry};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::{HostUse, LinkInfo, UseKind};

use crate::run::planned;

/// An end of a path that is on an interface.
struct End {
    interface: Interface,
    info: LinkInfo,
    /// True if the driver takes the packets from the interface, before a bridge receives them.
    takes: bool,
}

impl End {
    /// Returns the end that a port's text describes; `None` if it is on no interface that exists.
    fn of(text: &str, drivers: &Registry) -> Option<End> {
        let interface = Interface::open(planned(drivers, text).ok()?.interface()?).ok()?;
        let info = LinkInfo::of(&interface).ok()?;
        // The other drivers of interfaces receive copies.
        let takes =
            drivers.of_links().map(Driver::name) == Some(&*drivers.parse(text).ok()?.driver);
        Some(End { interface, info, takes })
    }

    /// Returns the index of the other end of a pair, or of the lower device, in this namespace.
    fn lower(&self) -> Option<u32> {
        self.info.other.filter(|_| !self.info.other_is_elsewhere)
    }

    /// Returns true if the interface is on top of the one of `other`, or the other end of its pair.
    fn is_above(&self, other: &End) -> bool {
        self.lower() == Some(other.interface.index())
    }

    /// Returns true if the interface shares the network of its lower device.
    fn shares_lower(&self) -> bool {
        matches!(&*self.info.kind, "macvlan" | "macvtap" | "ipvlan" | "ipvtap")
    }
}

/// Returns a warning if packets would circulate between the two ports of a path: they are on the
/// two ends of one pair, or on one network.
pub fn circle(ends: [&str; 2], drivers: &Registry) -> Option<String> {
    let [Some(a), Some(b)] = ends.map(|text| End::of(text, drivers)) else { return None };
    if a.is_above(&b) && b.is_above(&a) {
        let (kind, a, b) = (&a.info.kind, a.interface.name(), b.interface.name());
        return Some(format!(
            "{a} and {b} are the ends of one {kind} pair: each receives what the other sends, so \
             packets circulate without end (name one end each of two pairs)"
        ));
    }
    let relation = below(&a, &b).or_else(|| below(&b, &a)).or_else(|| beside(&a, &b))?;
    Some(format!(
        "{relation}, so both are on one network: packets are duplicated, or return to their sender \
         (name interfaces of two networks)"
    ))
}

/// Returns a warning if the path joins two networks of the host itself.
pub fn joins_networks(ends: [&str; 2], drivers: &Registry) -> Option<String> {
    // An address or a route is of a network; a member or a station may be of any.
    let is_of_network = |used: &HostUse| {
        matches!(used.kind, UseKind::Address(_) | UseKind::DefaultRoute | UseKind::Route(..))
    };
    let used = |text| HostUse::of(&End::of(text, drivers)?.interface).ok()?.filter(is_of_network);
    let [Some(a), Some(b)] = ends.map(used) else { return None };
    // Members of one bridge share its network.
    (a.interface != b.interface).then(|| format!(
        "{a}, and {b}: packets pass between these networks by this path, which neither the host's \
         firewall nor its routes see (name interfaces without addresses and routes)"
    ))
}

/// Describes how the interface of `a` is directly below that of `b`, if it is.
fn below(a: &End, b: &End) -> Option<String> {
    let (name, above) = (a.interface.name(), b.interface.name());
    if a.info.master == Some(b.interface.index()) {
        return Some(format!("{name} is a member of {above}"));
    }
    // The packets of a tunnel's interface are others than those of the device that carries them.
    let is_joined = b.is_above(a) && (b.info.kind == "vlan" || b.shares_lower());
    is_joined.then(|| format!("{name} is the lower device of {above}"))
}

/// Describes what the interfaces of both ends are directly below or above, if that joins them.
fn beside(a: &End, b: &End) -> Option<String> {
    let (x, y) = (a.interface.name(), b.interface.name());
    let found = |index: Option<u32>| Interface::by_index(index?).ok();
    if let Some(master) = found(a.info.master.filter(|_| a.info.master == b.info.master)) {
        let is_joined = match &*LinkInfo::of(&master).ok()?.kind {
            // The members of a VRF are separate networks; those of Open vSwitch may belong to
            // different bridges.
            "vrf" | "openvswitch" => false,
            // The bridge receives no packet that both ports take from its members.
            "bridge" => !(a.takes && b.takes),
            _ => true,
        };
        return is_joined.then(|| format!("{x} and {y} are members of {}", master.name()));
    }
    let is_shared = a.shares_lower() && b.shares_lower() && a.lower() == b.lower();
    let lower = found(a.lower().filter(|_| is_shared))?;
    Some(format!("{x} and {y} are on top of {}", lower.name()))
}
