//! Next hop objects, to which routes can refer by an id. With net.ipv4.nexthop_compat_mode=0 a
//! route's message has the id only, without an interface.
//!
//! ```text
//!   default nhid 9 ──► 9: a group of 7 and 8 ──► 7: eth0, 8: eth1
//! ```
//!
//! Source: include/uapi/linux/nexthop.h; net/ipv4/nexthop.c (Linux 5.3): no member of a group is a
//! group.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{Route, dump};
use crate::rtnl::{Answer, attributes, u32_at};

const RTM_GETNEXTHOP: u16 = 106;
/// Length of `struct nhmsg`.
const OBJECT_BYTES: usize = 8;
/// Length of `struct nexthop_grp`: an id, then a weight.
const MEMBER_BYTES: usize = 8;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;

/// The kernel's next hop objects. They are requested for the first route that needs them, and so
/// after the dump of routes that it is in: an object that is missing was deleted with its routes.
#[derive(Debug, Default)]
pub(in crate::rtnl) struct NextHops(Option<Answer<Objects>>);

impl NextHops {
    /// Reads a message about a route; a route that refers to a next hop object gets its interfaces
    /// and its gateway from there.
    pub fn route(&mut self, message: &[u8]) -> Route {
        let mut route = Route::of(message);
        let Some(id) = route.hop_id.filter(|_| route.out.is_empty()) else { return route };
        if let Ok(objects) = self.0.get_or_insert_with(Objects::now) {
            objects.add_to(&mut route, id);
        }
        route
    }

    /// Returns an error if the objects were needed, and the kernel did not tell them.
    pub fn check(self) -> Answer<()> {
        self.0.map_or(Ok(()), |answer| answer.map(drop))
    }
}

/// Next hop objects by their ids.
#[derive(Debug, Default)]
struct Objects(BTreeMap<u32, Object>);

/// A next hop object: an interface and perhaps a gateway, or a group of other objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct Object {
    out: Option<u32>,
    gateway: Option<Ipv4Addr>,
    members: Vec<u32>,
}

impl Objects {
    /// Requests the present objects.
    fn now() -> Answer<Objects> {
        let mut objects = Objects::default();
        dump(RTM_GETNEXTHOP, &[0; OBJECT_BYTES], |message| objects.0.extend(object(message)))?;
        Ok(objects)
    }

    /// Adds to a route the interfaces and the gateway of the object `id`.
    fn add_to(&self, route: &mut Route, id: u32) {
        let Some(object) = self.0.get(&id) else { return };
        let members = object.members.iter().filter_map(|member| self.0.get(member)?.out);
        route.out.extend(object.out.into_iter().chain(members));
        route.gateway = route.gateway.or(object.gateway);
    }
}

/// Reads a message about an object.
fn object(message: &[u8]) -> Option<(u32, Object)> {
    let (mut id, mut object) = (None, Object::default());
    for (kind, value) in attributes(message.get(OBJECT_BYTES..)?) {
        match kind {
            NHA_ID => id = u32_at(value, 0),
            NHA_GROUP => {
                let members = value.chunks_exact(MEMBER_BYTES);
                object.members = members.filter_map(|member| u32_at(member, 0)).collect();
            }
            NHA_OIF => object.out = u32_at(value, 0),
            NHA_GATEWAY => object.gateway = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
            _ => {}
        }
    }
    Some((id?, object))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::{RTA_NH_ID, RTA_OIF, RTN_UNICAST, TABLE_MAIN};
    use super::*;

    /// Returns a message with a head of `head`, and these attributes.
    fn message(head: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for (kind, value) in attributes {
            bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    fn default_route(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let (family, table) = (libc::AF_INET as u8, TABLE_MAIN as u8);
        let head = [family, 0, 0, 0, table, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        message(&head, attributes)
    }

    /// Returns the interface 3 by a gateway (7), the interface 4 (8), and a group of both and of an
    /// object that does not exist (9).
    fn messages() -> [Vec<u8>; 3] {
        let number = u32::to_ne_bytes;
        let member = |id: u32| [number(id), [0; 4]].concat();
        let group = [member(7), member(8), member(99)].concat();
        [
            message(
                &[0; OBJECT_BYTES],
                &[(NHA_ID, &number(7)), (NHA_OIF, &number(3)), (NHA_GATEWAY, &[10, 0, 0, 1])],
            ),
            message(&[0; OBJECT_BYTES], &[(NHA_ID, &number(8)), (NHA_OIF, &number(4))]),
            message(&[0; OBJECT_BYTES], &[(NHA_ID, &number(9)), (NHA_GROUP, &group)]),
        ]
    }

    #[test]
    fn a_route_with_an_id_alone_leads_to_the_interfaces_of_its_object() {
        let objects = Objects(messages().iter().filter_map(|one| object(one)).collect());
        let mut hops = NextHops(Some(Ok(objects)));
        for (id, out, gateway) in [
            (7, vec![3], Some(Ipv4Addr::new(10, 0, 0, 1))),
            (8, vec![4], None),
            (9, vec![3, 4], None),
            (10, vec![], None),
        ] {
            let route = hops.route(&default_route(&[(RTA_NH_ID, &u32::to_ne_bytes(id))]));
            assert_eq!((route.is_default, route.out, route.gateway), (true, out, gateway), "{id}");
        }
        let both = [(RTA_NH_ID, &u32::to_ne_bytes(7)[..]), (RTA_OIF, &u32::to_ne_bytes(5))];
        assert_eq!(hops.route(&default_route(&both)).out, [5], "the kernel tells the interface");
        assert_eq!(hops.check(), Ok(()));
    }

    #[test]
    fn objects_that_the_kernel_does_not_tell_are_an_error_only_if_a_route_needs_them() {
        assert_eq!(NextHops::default().check(), Ok(()));
        let mut hops = NextHops(Some(Err(Errno::PERM)));
        assert!(hops.route(&default_route(&[(RTA_NH_ID, &[7, 0, 0, 0])])).out.is_empty());
        assert_eq!(hops.check(), Err(Errno::PERM));
    }

    #[test]
    fn object_that_is_cut_off_or_has_short_values_is_read_as_far_as_it_goes() {
        for whole in messages() {
            for cut in 0..whole.len() {
                let (id, cut_off) = object(&whole[..cut]).unwrap_or_default();
                assert!(id <= 9 && cut_off.members.len() <= 3, "{cut}");
            }
        }
        let short = [(NHA_ID, &[7_u8, 0, 0][..]), (NHA_OIF, &[3]), (NHA_GROUP, &[1, 0, 0, 0])];
        assert_eq!(object(&message(&[0; OBJECT_BYTES], &short)), None);
        let short = [(NHA_ID, &[7_u8, 0, 0, 0][..]), (NHA_OIF, &[3]), (NHA_GATEWAY, &[1; 16])];
        let read = object(&message(&[0; OBJECT_BYTES], &short));
        assert_eq!(read, Some((7, Object::default())));
    }
}
