//! Detection of the host's own use of an interface: an address on it, a route through it, or
//! membership in a bridge or bond. Interfaces stacked on it count as well: the bridge or bond that
//! it is a member of, a VLAN, a macvlan. A macvlan in another network namespace is found by its
//! address (host_use/stations.rs).
//!
//! ```text
//!   eth0 ──► IFLA_MASTER: br0 ──► IFLA_LINK of br0.7: br0.7     all that stand on eth0
//!              │                     └── address, route: the host uses eth0
//!              └── without them the host uses eth0, too: br0 forwards its packets
//! ```

mod dump;
mod next_hops;
mod stations;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ATTRIBUTE_BYTES, Answer, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO,
    IFLA_MASTER, LINK_BYTES, RTM_GETLINK, attributes, refused, u16_at, u32_at,
};
use crate::error::Result;
use crate::netif::{IfName, Interface};

pub(super) use dump::{dump, dump_by};
pub(super) use next_hops::NextHops;

const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
/// Lengths of `struct ifaddrmsg`, `struct rtmsg` and `struct rtnexthop`, in this order.
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
const HOP_BYTES: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_NH_ID: u16 = 30;
const TABLE_MAIN: u32 = 254;
/// The kind of a route that forwards packets; other kinds are for refusals and local addresses.
const RTN_UNICAST: u8 = 1;
/// The origin of routes that the kernel adds for the addresses of an interface, link-local ones
/// included.
const RTPROT_KERNEL: u8 = 2;
/// Most uses that are passed over because their interfaces were deleted meanwhile.
const DELETED_MAX: usize = 8;
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];

/// A use that the host makes of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUse {
    /// The used interface: the queried one, or one stacked on it.
    pub interface: IfName,
    /// Kind of the use.
    pub kind: UseKind,
}

/// A kind of use of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UseKind {
    /// It has this address.
    Address(IpAddr),
    /// A default route of the main table leads to it.
    DefaultRoute,
    /// A route to these addresses leads to it, in any table; the number is the length of the
    /// prefix.
    Route(IpAddr, u8),
    /// It is a member of this bridge or bond.
    Member(IfName),
    /// It receives for this MAC address of another interface, such as a macvlan in another network
    /// namespace.
    Station([u8; 6]),
    /// It carries a session of PPPoE, whose interface is not linked to it.
    Session,
}

impl HostUse {
    /// Returns the first use that the host makes of `interface`, addresses before routes before
    /// memberships before stations before sessions of PPPoE; `None` if the host does not use it. A link-local address does
    /// not count, because every interface has one, nor does membership in a VRF, which passes no
    /// packet on by itself.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer.
    ///
    /// Cost: up to five dumps of the namespace's links, addresses and routes, and one of the
    /// interface's MAC addresses, of which it holds one at a time in whole; up to two dumps of next
    /// hop objects, if routes need them; and a file. For setup.
    pub fn of(interface: &Interface) -> Result<Option<HostUse>> {
        let first = || {
            let Stack { all, member, .. } = stack_of(interface.index())?;
            if let Some(used) = find(&all, member)? {
                return Ok(Some(used));
            }
            // Last, because a bridge may add its addresses to a member. What stands higher adds its
            // own down to here.
            let station = station_of(interface.index())?;
            Ok(station.or_else(|| session_of(&all)))
        };
        named(first).map_err(|e| refused(interface.name(), "rtnetlink", e))
    }

    /// Returns the first use that the host makes of packets with a VLAN's tag on `interface`: by a
    /// VLAN on it and what stands on that, as [`HostUse::of`] finds it, or by a bridge or bond, which
    /// forwards them; `None` if there is none. A VLAN in another network namespace is not found.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer.
    ///
    /// Cost: as of [`HostUse::of`], with the MAC addresses of each VLAN. For setup.
    pub fn of_tagged(interface: &Interface) -> Result<Option<HostUse>> {
        let first = || {
            let Stack { tagged, member, .. } = stack_of(interface.index())?;
            let mut used = find(&tagged, member)?;
            for index in &tagged {
                if used.is_none() {
                    used = station_of(*index)?;
                }
            }
            Ok(used.or_else(|| session_of(&tagged)))
        };
        named(first).map_err(|e| refused(interface.name(), "rtnetlink", e))
    }

    /// Returns true if an interface of this host, not only `interface`, has the address `wanted`, or
    /// receives broadcasts to it. An IPv6 link-local address is that of one link: it counts on
    /// `interface` and on those that receive through it.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer; it names `interface`.
    ///
    /// Cost: a dump of the namespace's addresses of one family, which it holds in whole, and one of
    /// its links for a link-local address. For setup.
    pub fn has_address(interface: &Interface, wanted: IpAddr) -> Result<bool> {
        let fail = |e| refused(interface.name(), "rtnetlink", e);
        let is_of_a_link = wanted.is_ipv6() && is_link_local(wanted);
        let stack = is_of_a_link.then(|| stack_of(interface.index())).transpose().map_err(fail)?;
        let is_near = |index: &u32| stack.as_ref().is_none_or(|stack| stack.all.contains(index));
        let mut request = [0; ADDRESS_BYTES];
        request[0] = FAMILIES[usize::from(wanted.is_ipv6())];
        let mut found = false;
        dump(RTM_GETADDR, &request, |message| {
            let is_it = |(index, address): &(u32, IpAddr)| {
                is_near(index) && (*address == wanted || has_broadcast(message, wanted))
            };
            found |= address(message).as_ref().is_some_and(is_it);
        })
        .map_err(fail)?;
        Ok(found)
    }

    /// Returns the PPPoE session that `interface`, or one that receives through it, carries.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer.
    ///
    /// Cost: a dump of the namespace's links, and a file. For setup.
    pub fn session(interface: &Interface) -> Result<Option<HostUse>> {
        let fail = |e| refused(interface.name(), "rtnetlink", e);
        let stack = stack_of(interface.index()).map_err(fail)?;
        let below = session_of(&stack.all).and_then(|used| Interface::by_index(used.index).ok());
        Ok(below.map(|one| HostUse { interface: one.name(), kind: UseKind::Session }))
    }
}

impl fmt::Display for HostUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.interface;
        match self.kind {
            UseKind::Address(address) => write!(f, "{name} has the address {address}"),
            UseKind::DefaultRoute => write!(f, "{name} carries a default route"),
            UseKind::Route(to, prefix) => write!(f, "{name} carries the route to {to}/{prefix}"),
            UseKind::Member(master) => {
                write!(f, "{name} is a member of {master}, which forwards its packets")
            }
            UseKind::Session => write!(f, "{name} carries a PPPoE session of this host"),
            UseKind::Station(mac) => {
                let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
                write!(
                    f,
                    "{name} also receives for the station {mac} of another interface, such as a macvlan of a container or of a virtual machine"
                )
            }
        }
    }
}

/// A use as the kernel describes it, by the interfaces' indices.
#[derive(Debug, Clone, Copy)]
struct Used {
    index: u32,
    kind: Found,
}

#[derive(Debug, Clone, Copy)]
enum Found {
    Address(IpAddr),
    DefaultRoute,
    Route(IpAddr, u8),
    Member(u32),
    Station([u8; 6]),
    Session,
}

impl Used {
    /// Returns the use with its interfaces' names; `None` if one has just been deleted, and so is
    /// not in use.
    fn named(self) -> Option<HostUse> {
        let name = |index| Some(Interface::by_index(index).ok()?.name());
        let kind = match self.kind {
            Found::Address(address) => UseKind::Address(address),
            Found::DefaultRoute => UseKind::DefaultRoute,
            Found::Route(to, prefix) => UseKind::Route(to, prefix),
            Found::Member(master) => UseKind::Member(name(master)?),
            Found::Station(mac) => UseKind::Station(mac),
            Found::Session => UseKind::Session,
        };
        Some(HostUse { interface: name(self.index)?, kind })
    }
}

/// Returns the first use with its names. If an interface of it has just been deleted, another use
/// may remain, so `first` is asked again.
fn named(first: impl Fn() -> Answer<Option<Used>>) -> Answer<Option<HostUse>> {
    for _ in 0..DELETED_MAX {
        let Some(used) = first()? else { return Ok(None) };
        if let Some(named) = used.named() {
            return Ok(Some(named));
        }
    }
    Ok(None)
}

/// Returns the first use of the interfaces in `stack`: an address, a route, or that `member` is one
/// of a bridge or bond.
fn find(stack: &[u32], member: Option<(u32, u32)>) -> Answer<Option<Used>> {
    let mut first: Option<Used> = None;
    for family in FAMILIES {
        let mut request = [0; ADDRESS_BYTES];
        request[0] = family;
        dump(RTM_GETADDR, &request, |message| {
            let is_use = |(at, address): &(u32, IpAddr)| {
                first.is_none() && stack.contains(at) && !is_link_local(*address)
            };
            let found = address(message).filter(is_use);
            let used = |(index, address)| Used { index, kind: Found::Address(address) };
            first = first.or(found.map(used));
        })?;
    }
    let mut other: Option<Used> = None;
    for family in FAMILIES {
        if first.is_some() {
            break;
        }
        let mut request = [0; ROUTE_BYTES];
        request[0] = family;
        let mut hops = NextHops::default();
        dump(RTM_GETROUTE, &request, |message| {
            let route = hops.route(message);
            let Some(index) = route.out.into_iter().find(|at| stack.contains(at)) else { return };
            if route.is_default {
                first = first.or(Some(Used { index, kind: Found::DefaultRoute }));
            }
            let used = |(to, prefix)| Used { index, kind: Found::Route(to, prefix) };
            other = other.or(route.to.map(used));
        })?;
        hops.check()?;
    }
    let member = member.map(|(index, master)| Used { index, kind: Found::Member(master) });
    Ok(first.or(other).or(member))
}

/// Returns the use of an interface by another one, for whose MAC address it receives.
fn station_of(index: u32) -> Answer<Option<Used>> {
    let own = Interface::by_index(index).and_then(|one| one.hardware());
    let station = stations::first(index, own.ok().map(|hardware| hardware.mac))?;
    Ok(station.map(|mac| Used { index, kind: Found::Station(mac) }))
}

/// Returns the first interface of `stack` that carries a session of PPPoE. The kernel lists them in
/// a file, because the interface of a session, such as ppp0, is not linked to the one below.
fn session_of(stack: &[u32]) -> Option<Used> {
    let text = std::fs::read_to_string("/proc/thread-self/net/pppoe").ok()?;
    let is_listed = |index: &u32| {
        Interface::by_index(*index).is_ok_and(|one| has_session(&text, &one.name().to_string()))
    };
    let index = stack.iter().copied().find(is_listed)?;
    Some(Used { index, kind: Found::Session })
}

/// Returns true if the kernel's list of PPPoE sessions has one over the interface `name`.
///
/// Source: drivers/net/ppp/pppoe.c, `pppoe_seq_show`: session, address of the peer, interface.
fn has_session(text: &str, name: &str) -> bool {
    text.lines().skip(1).any(|line| line.split_whitespace().nth(2) == Some(name))
}

/// A link, with the link below it and the bridge or bond above it.
struct Link {
    index: u32,
    master: Option<u32>,
    below: Option<u32>,
    is_vrf: bool,
    is_vlan: bool,
}

fn link(message: &[u8]) -> Option<Link> {
    let index = u32_at(message, 4)?;
    let mut link = Link { index, master: None, below: None, is_vrf: false, is_vlan: false };
    let (mut is_veth, mut is_elsewhere) = (false, false);
    for (kind, value) in attributes(message.get(LINK_BYTES..)?) {
        match kind {
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_LINK => link.below = u32_at(value, 0),
            IFLA_LINK_NETNSID => is_elsewhere = true,
            IFLA_LINKINFO => {
                let name = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                let is = |kind: &[u8]| name.is_some_and(|(_, name)| name.starts_with(kind));
                (is_veth, link.is_vrf, link.is_vlan) = (is(b"veth"), is(b"vrf"), is(b"vlan\0"));
            }
            _ => {}
        }
    }
    // For a veth this attribute is the index of its other end, which is not a lower device.
    if is_veth || is_elsewhere {
        link.below = None;
    }
    Some(link)
}

/// The interfaces that receive packets through a given one.
pub(super) struct Stack {
    /// Indices of all interfaces in the stack; the given interface is the first.
    pub all: Vec<u32>,
    /// The given interface and its bridge or bond: their packets have no additional tag or tunnel
    /// header.
    pub untagged: Vec<u32>,
    /// The VLANs in the stack, and what stands on them.
    tagged: Vec<u32>,
    /// The first interface of the stack that is a member of a bridge or bond, and that bridge or
    /// bond.
    member: Option<(u32, u32)>,
}

/// Requests the links, and returns those stacked on `index`.
pub(super) fn stack_of(index: u32) -> Answer<Stack> {
    let mut links = Vec::new();
    dump(RTM_GETLINK, &[0; LINK_BYTES], |message| links.extend(link(message)))?;
    let masters = links.iter().filter(|l| l.index == index).filter_map(|l| l.master);
    let untagged = std::iter::once(index).chain(masters).collect();
    let all = standing_on(index, &links);
    let vlans = links.iter().filter(|link| link.is_vlan && all.contains(&link.index));
    let mut tagged: Vec<u32> = vlans.flat_map(|vlan| standing_on(vlan.index, &links)).collect();
    tagged.sort_unstable();
    tagged.dedup();
    Ok(Stack { member: member(&all, &links), all, untagged, tagged })
}

/// Returns the first interface of `stack` that is a member of another interface than a VRF, and
/// that interface.
fn member(stack: &[u32], links: &[Link]) -> Option<(u32, u32)> {
    let link_of = |index: u32| links.iter().find(|link| link.index == index);
    stack.iter().find_map(|&at| {
        let master = link_of(at)?.master?;
        let is_vrf = link_of(master).is_some_and(|link| link.is_vrf);
        (!is_vrf).then_some((at, master))
    })
}

/// Returns `index` itself, and the indices of all links that receive packets through it.
fn standing_on(index: u32, links: &[Link]) -> Vec<u32> {
    let mut stack = vec![index];
    let mut next = 0;
    while let Some(&at) = stack.get(next) {
        let masters = links.iter().filter(|l| l.index == at).filter_map(|l| l.master);
        let above = links.iter().filter(|l| l.below == Some(at)).map(|l| l.index);
        for one in masters.chain(above) {
            if !stack.contains(&one) {
                stack.push(one);
            }
        }
        next += 1;
    }
    stack
}

/// Returns true for an address that every interface has, or may have, without being set up.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the index of the interface and the address in a message.
fn address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let family = *message.first()?;
    let index = u32_at(message, 4)?;
    let body = message.get(ADDRESS_BYTES..)?;
    // On a point-to-point link the first address is the peer's.
    let of = |wanted| attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let bytes = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?;
    let address = match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some((index, address))
}

/// Returns true if the interface in a message about an IPv4 address receives broadcasts to
/// `wanted`: its broadcast address, and the last address of its network.
///
/// Source: net/ipv4/fib_frontend.c, `fib_add_ifaddr`.
fn has_broadcast(message: &[u8], wanted: IpAddr) -> bool {
    let IpAddr::V4(wanted) = wanted else { return false };
    let wanted = u32::from(wanted);
    let (Some(&prefix_len), Some(body)) = (message.get(1), message.get(ADDRESS_BYTES..)) else {
        return false;
    };
    attributes(body).any(|(kind, value)| {
        let Ok(bytes) = <[u8; 4]>::try_from(value) else { return false };
        let address = u32::from_be_bytes(bytes);
        match kind {
            IFA_BROADCAST => address == wanted,
            // A network of one or two addresses has none.
            IFA_ADDRESS if prefix_len < 31 => address | (u32::MAX >> prefix_len) == wanted,
            _ => false,
        }
    })
}

/// The parts of a route that this crate uses.
pub(super) struct Route {
    /// True for a default route of the main table.
    pub is_default: bool,
    /// The destination of a route that forwards packets and that the kernel has not added by
    /// itself: a prefix and its length.
    to: Option<(IpAddr, u8)>,
    /// Output interfaces of the route.
    pub out: Vec<u32>,
    /// The IPv4 gateway, unless the route has several.
    pub gateway: Option<Ipv4Addr>,
    /// The id of the route's next hop object. The kernel does not tell the interfaces of such a
    /// route with it if net.ipv4.nexthop_compat_mode is 0: see [`NextHops`].
    hop_id: Option<u32>,
}

impl Route {
    /// Reads a message about a route.
    pub fn of(message: &[u8]) -> Route {
        let [family, to_len, _, _, table, origin, _, kind] =
            message.first_chunk::<8>().copied().unwrap_or([1, 1, 1, 1, 1, RTPROT_KERNEL, 1, 1]);
        let (mut table, mut out, mut gateway) = (u32::from(table), Vec::new(), None);
        let mut hop_id = None;
        let mut to = match i32::from(family) {
            libc::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            _ => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        for (attribute, value) in attributes(message.get(ROUTE_BYTES..).unwrap_or_default()) {
            match attribute {
                RTA_TABLE => table = u32_at(value, 0).unwrap_or(table),
                RTA_DST => to = ip_address(value).unwrap_or(to),
                RTA_OIF => out.extend(u32_at(value, 0)),
                RTA_GATEWAY => gateway = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
                RTA_MULTIPATH => out.extend(hops(value)),
                RTA_NH_ID => hop_id = u32_at(value, 0),
                _ => {}
            }
        }
        let is_default = to_len == 0 && kind == RTN_UNICAST && table == TABLE_MAIN;
        let is_set = kind == RTN_UNICAST && origin != RTPROT_KERNEL;
        Route { is_default, to: is_set.then_some((to, to_len)), out, gateway, hop_id }
    }
}

/// Returns the address in `bytes`, which have the length of one of either family.
fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Returns the interfaces of the next hops in `bytes`.
fn hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    while let (Some(len), Some(index)) = (u16_at(bytes, 0), u32_at(bytes, 4)) {
        out.push(index);
        let len = usize::from(len).max(HOP_BYTES).next_multiple_of(ATTRIBUTE_BYTES);
        bytes = bytes.get(len..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests;
