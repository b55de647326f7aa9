//! The IPv4 neighbours of an interface: the gateway of its default route, and the neighbours that
//! the kernel knows.
//!
//! Source: rtnetlink(7), include/uapi/linux/{rtnetlink,neighbour}.h.

use std::net::Ipv4Addr;

use super::host_use::{NextHops, dump, stack_of};
use super::{attributes, refused, u16_at, u32_at};
use crate::error::Result;
use crate::netif::Interface;

const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
/// Bytes of `struct rtmsg`, and of `struct ndmsg`.
const BODY_BYTES: usize = 12;
const NDA_DST: u16 = 1;
/// States of a neighbour that has answered at least once: reachable, stale, delayed, probed,
/// permanent.
const HAS_ANSWERED: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;

/// The neighbours of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Neighbours {
    /// True if a default route uses the interface, or one stacked on it.
    pub carries_default: bool,
    /// The gateway of the default route, if it is an IPv4 neighbour on the interface itself or on
    /// its bridge or bond.
    pub gateway: Option<Ipv4Addr>,
    /// Addresses of neighbours that have answered the kernel.
    pub known: Vec<Ipv4Addr>,
}

impl Neighbours {
    /// Queries `interface`.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer.
    pub fn of(interface: &Interface) -> Result<Neighbours> {
        let fail = |e| refused(interface.name(), "rtnetlink", e);
        let mut found = Neighbours::default();
        let stack = stack_of(interface.index()).map_err(fail)?;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut request = [0; BODY_BYTES];
            request[0] = family as u8;
            let mut hops = NextHops::default();
            let each = |message: &[u8]| {
                let route = hops.route(message);
                if !route.is_default || !route.out.iter().any(|out| stack.all.contains(out)) {
                    return;
                }
                found.carries_default = true;
                if family == libc::AF_INET
                    && route.out.iter().any(|out| stack.untagged.contains(out))
                {
                    found.gateway = found.gateway.or(route.gateway);
                }
            };
            dump(RTM_GETROUTE, &request, each).map_err(fail)?;
            hops.check().map_err(fail)?;
        }
        let mut request = [0; BODY_BYTES];
        request[0] = libc::AF_INET as u8;
        let each = |message: &[u8]| {
            let known = neighbour(message).filter(|(index, _)| stack.untagged.contains(index));
            found.known.extend(known.map(|(_, address)| address));
        };
        dump(RTM_GETNEIGH, &request, each).map_err(fail)?;
        found.known.sort_unstable();
        found.known.dedup();
        Ok(found)
    }
}

/// Returns the index of the interface and the address of a neighbour that has answered.
fn neighbour(message: &[u8]) -> Option<(u32, Ipv4Addr)> {
    let (index, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
    let (_, bytes) = attributes(message.get(BODY_BYTES..)?).find(|(kind, _)| *kind == NDA_DST)?;
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?);
    (state & HAS_ANSWERED != 0 && !address.is_multicast() && !address.is_broadcast())
        .then_some((index, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn the_gateway_and_known_neighbours_of_an_interface_are_told() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let of = |name| Neighbours::of(&Interface::open(name).unwrap()).unwrap();
            assert_eq!(of("v0"), Neighbours::default());
            ip("link set v0 up");
            ip("link set v1 up");
            ip("addr add 10.7.0.1/24 dev v0");
            ip("neigh add 10.7.0.5 lladdr 02:00:00:00:00:05 dev v0");
            ip("route add default via 10.7.0.2");
            let told = of("v0");
            assert!(told.carries_default, "{told:?}");
            assert_eq!(told.gateway, Some(Ipv4Addr::new(10, 7, 0, 2)));
            assert_eq!(told.known, [Ipv4Addr::new(10, 7, 0, 5)]);
            assert_eq!(of("v1"), Neighbours::default());
        });
    }

    #[test]
    fn the_gateway_of_a_next_hop_object_is_told() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            ip("addr add 10.7.0.1/24 dev v0");
            let is_set = std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").is_ok();
            let mut add = std::process::Command::new("ip");
            add.args(["nexthop", "add", "id", "7", "via", "10.7.0.2", "dev", "v0"]);
            if !is_set || !add.output().unwrap().status.success() {
                return eprintln!("skipped: no next hop objects, or their interfaces are told");
            }
            ip("route add default nhid 7");
            let told = Neighbours::of(&Interface::open("v0").unwrap()).unwrap();
            let gateway = Some(Ipv4Addr::new(10, 7, 0, 2));
            assert_eq!((told.carries_default, told.gateway), (true, gateway));
        });
    }

    #[test]
    fn what_is_cut_off_is_no_neighbour() {
        let mut message = vec![0; BODY_BYTES];
        (message[4], message[8]) = (3, 2);
        message.extend([8, 0, 1, 0, 10, 7, 0, 5]);
        assert_eq!(neighbour(&message), Some((3, Ipv4Addr::new(10, 7, 0, 5))));
        assert!((0..message.len()).all(|len| neighbour(&message[..len]).is_none()));
        message[8] = 0x20;
        assert_eq!(neighbour(&message), None, "one that failed");
    }
}
