//! Tests the uses that the host makes of an interface, and the answers that they are read from.

use std::process::Command;

use rustix::io::Errno;

use super::dump::{Bodies, Dump, NLM_F_DUMP_INTR, NLMSG_DONE, untorn};
use super::*;
use crate::netns::Netns;
use crate::rtnl::HEADER_BYTES;
use linerate_testing::{in_netns, ip};

fn used(name: &str) -> Option<String> {
    HostUse::of(&Interface::open(name).unwrap()).unwrap().map(|used| used.to_string())
}

#[test]
fn an_interface_without_addresses_and_routes_is_not_used_by_the_host() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("addr add 169.254.7.7/16 dev v0");
        assert_eq!(used("v0"), None);
        // Its other end's address is not its own.
        ip("addr add 192.0.2.1/24 dev v1");
        assert_eq!(used("v0"), None);
        assert_eq!(used("v1").unwrap(), "v1 has the address 192.0.2.1");
    });
}

#[test]
fn an_address_of_any_interface_is_the_hosts() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        ip("addr add 192.0.2.1/24 dev v1");
        ip("addr add fd00::1/64 dev v1 nodad");
        let interface = Interface::open("v0").unwrap();
        let has = |text: &str| HostUse::has_address(&interface, text.parse().unwrap()).unwrap();
        assert!(has("192.0.2.1") && has("fd00::1"));
        assert!(!has("192.0.2.2") && !has("fd00::2"));
        // It receives the broadcasts of its networks, and of one whose broadcast address was set.
        ip("addr add 198.51.100.1/24 brd 198.51.100.200 dev v1");
        ip("addr add 203.0.113.1/32 dev v1");
        assert!(has("192.0.2.255") && has("198.51.100.200") && has("198.51.100.255"));
        assert!(!has("192.0.2.254") && !has("203.0.113.255") && !has("198.51.100.0"));
        // Link-local addresses are the host's, too; those of IPv6 are of one link.
        ip("addr add 169.254.1.1/16 dev v1");
        ip("addr add fe80::5/64 dev v0 nodad");
        ip("addr add fe80::6/64 dev v1 nodad");
        assert!(has("169.254.1.1") && has("fe80::5"));
        assert!(!has("169.254.1.2") && !has("fe80::6"));
    });
}

#[test]
fn an_interface_below_a_session_of_pppoe_is_found_in_the_kernels_list() {
    let list = "Id       Address              Device\n01000000 02:00:00:00:00:01     eth1\n";
    assert!(super::has_session(list, "eth1"));
    for name in ["eth0", "eth11", "Device", ""] {
        assert!(!super::has_session(list, name), "{name}");
    }
}

#[test]
fn a_default_route_is_found_also_without_an_address_and_among_several_hops() {
    in_netns(|| {
        for pair in ["v0 type veth peer name v1", "w0 type veth peer name w1"] {
            ip(&format!("link add {pair}"));
        }
        for name in ["v0", "v1", "w0", "w1"] {
            ip(&format!("link set {name} up"));
        }
        ip("route add default dev v0 table 100");
        assert_eq!(used("v0").unwrap(), "v0 carries the route to 0.0.0.0/0");
        ip("route flush table 100");
        assert_eq!(used("v0"), None);
        ip("route add blackhole 198.51.100.0/24");
        ip("route add 192.0.2.7/32 dev v0");
        assert_eq!(used("v0").unwrap(), "v0 carries the route to 192.0.2.7/32");
        assert_eq!(used("v1"), None);
        ip("route add default dev v0");
        assert_eq!(used("v0").unwrap(), "v0 carries a default route");
        ip("route del 192.0.2.7/32");
        ip("route replace default nexthop dev w0 nexthop dev w1");
        assert_eq!((used("v0"), used("w1").is_some()), (None, true));
    });
}

/// Runs `ip nexthop` with `args`; returns false, and reports it, where the kernel or `ip` has no
/// next hop objects.
fn adds_next_hop(args: &str) -> bool {
    let out = Command::new("ip").arg("nexthop").args(args.split(' ')).output().unwrap();
    let why = String::from_utf8_lossy(&out.stderr);
    if ["is unknown", "not supported"].iter().any(|no| why.contains(no)) {
        eprintln!("skipped: there are no next hop objects: {why}");
        return false;
    }
    assert!(out.status.success(), "ip nexthop {args}: {why}");
    true
}

#[test]
fn a_route_by_a_next_hop_object_is_found_also_where_the_kernel_tells_its_id_only() {
    in_netns(|| {
        for pair in ["v0 type veth peer name v1", "w0 type veth peer name w1"] {
            ip(&format!("link add {pair}"));
        }
        for name in ["v0", "v1", "w0", "w1"] {
            ip(&format!("link set {name} up"));
        }
        if std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").is_err() {
            return eprintln!("skipped: this kernel tells the interface of every route");
        }
        for object in ["id 7 dev v0", "id 8 dev w0", "id 9 group 7/8"] {
            if !adds_next_hop(&format!("add {object}")) {
                return;
            }
        }
        assert_eq!((used("v0"), used("w0")), (None, None));
        ip("route add default nhid 7");
        assert_eq!(used("v0").unwrap(), "v0 carries a default route");
        assert_eq!((used("v1"), used("w0")), (None, None));
        ip("route replace default nhid 9");
        assert_eq!(used("w0").unwrap(), "w0 carries a default route");
        ip("route del default");
        assert_eq!((used("v0"), used("w0")), (None, None));
    });
}

#[test]
fn what_stands_on_it_counts() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        ip("link add br0 type bridge");
        assert_eq!(used("v0"), None);
        ip("link set v0 master br0");
        let member = "v0 is a member of br0, which forwards its packets";
        assert_eq!((used("v0").unwrap(), used("br0")), (member.into(), None));
        ip("addr add 192.0.2.1/24 dev br0");
        assert_eq!(used("v0").unwrap(), "br0 has the address 192.0.2.1");
        assert_eq!(used("v1"), None);
    });
    // eth0 (1) in br0 (2), on which is a VLAN (3); another interface (4).
    let link = |index, master, below| Link { index, master, below, is_vrf: false, is_vlan: false };
    let links =
        [link(1, Some(2), None), link(2, None, None), link(3, None, Some(2)), link(4, None, None)];
    assert_eq!(standing_on(1, &links), [1, 2, 3]);
    assert_eq!(standing_on(3, &links), [3]);
    assert_eq!(member(&[1, 2, 3], &links), Some((1, 2)));
    assert_eq!(member(&[3], &links), None);
    // A VLAN (2) of eth0 (1) in a bridge (3), and a member (4) of a VRF (5).
    let mut links = [
        link(1, None, None),
        link(2, Some(3), Some(1)),
        link(3, None, None),
        link(4, Some(5), None),
        link(5, None, None),
    ];
    links[4].is_vrf = true;
    assert_eq!(member(&standing_on(1, &links), &links), Some((2, 3)));
    assert_eq!(member(&standing_on(4, &links), &links), None);
}

#[test]
fn use_of_an_interface_that_was_just_deleted_hides_no_other() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        let index = Interface::open("v0").unwrap().index();
        let asked = std::cell::Cell::new(0);
        let first = || {
            asked.set(asked.get() + 1);
            let index = if asked.get() < 3 { 60_000 } else { index };
            Ok(Some(Used { index, kind: Found::DefaultRoute }))
        };
        let used = named(first).unwrap().unwrap().to_string();
        assert_eq!((used.as_str(), asked.get()), ("v0 carries a default route", 3));
    });
}

#[test]
fn a_macvlan_in_another_namespace_is_a_use_of_its_lower_interface() {
    in_netns(|| {
        ip("link add w0 type veth peer name w1");
        ip("link set w0 up");
        let other = Netns::new().unwrap();
        assert_eq!(used("w0"), None);
        let add = "link add link w0 name m0 address 02:00:00:00:00:07 type macvlan mode bridge";
        let made = Command::new("ip").args(add.split(' ')).output().unwrap();
        let why = String::from_utf8_lossy(&made.stderr);
        if ["Unknown device type", "Operation not supported"].iter().any(|no| why.contains(no)) {
            return eprintln!("skipped: this kernel has no macvlan: {why}");
        }
        assert!(made.status.success(), "{why}");
        ip(&format!("link set m0 netns {}", other.path()));
        assert_eq!(used("w0"), None, "it is down, and receives nothing");
        other.ip("link set m0 up").unwrap();
        let station = "w0 also receives for the station 02:00:00:00:00:07 of another interface";
        let told = used("w0").unwrap();
        assert!(told.starts_with(station), "{told}");
        assert_eq!(used("w1"), None);
        other.ip("link set m0 down").unwrap();
        assert_eq!(used("w0"), None);
    });
}

#[test]
fn dump_that_failed_or_missed_objects_does_not_read_as_complete() {
    let message = |kind: u16, flags: u16, body: i32| {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&20u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(body.to_ne_bytes());
        bytes
    };
    let read = |messages: &[Vec<u8>]| {
        let (mut dump, mut n) = (Dump::default(), 0);
        dump.part(&messages.concat(), &mut |_| n += 1).map(|()| (dump.has_ended, dump.is_torn, n))
    };
    let (object, done) = (message(RTM_GETROUTE, 2, 7), |flags, e| message(NLMSG_DONE, flags, e));
    assert_eq!(read(&[object.clone(), object.clone()]), Ok((false, false, 2)));
    assert_eq!(read(&[object.clone(), done(2, 0)]), Ok((true, false, 1)));
    assert_eq!(read(&[object.clone(), done(2 | NLM_F_DUMP_INTR, 0)]), Ok((true, true, 1)));
    let torn = message(RTM_GETROUTE, 2 | NLM_F_DUMP_INTR, 7);
    assert_eq!(read(&[torn, done(2, 0)]), Ok((true, true, 1)));
    assert_eq!(read(&[object, done(2, -libc::ENOBUFS)]), Err(Errno::NOBUFS));
}

#[test]
fn objects_of_a_torn_dump_are_not_reported() {
    let mut attempts = 0;
    let third = |bodies: &mut Bodies| {
        attempts += 1;
        bodies.push(&[attempts, 7]);
        bodies.push(&[]);
        Ok(Dump { has_ended: true, is_torn: attempts < 3 })
    };
    let mut seen = Vec::new();
    assert_eq!(untorn(third, |body| seen.push(body.to_vec())), Ok(()));
    assert_eq!(seen, [vec![3, 7], vec![]]);
    let torn = |_: &mut Bodies| Ok(Dump { has_ended: true, is_torn: true });
    assert_eq!(untorn(torn, |_| panic!("an object was reported")), Err(Errno::AGAIN));
}

#[test]
fn messages_that_are_cut_off_tell_nothing() {
    let mut route = vec![libc::AF_INET as u8, 0, 0, 0, TABLE_MAIN as u8, 0, 0, RTN_UNICAST];
    route.extend([0; 4]);
    for (kind, value) in [(RTA_OIF, &7u32.to_ne_bytes()[..]), (RTA_MULTIPATH, &[9; 20])] {
        route.extend(((4 + value.len()) as u16).to_ne_bytes());
        route.extend(kind.to_ne_bytes());
        route.extend(value);
    }
    let whole = Route::of(&route);
    assert!(whole.is_default && whole.out[0] == 7);
    for cut in 0..route.len() {
        let _ = (Route::of(&route[..cut]), address(&route[..cut]), link(&route[..cut]));
    }
    assert!(Route::of(&[]).to.is_none() && !Route::of(&[]).is_default && hops(&[0; 8]).len() == 1);
}
