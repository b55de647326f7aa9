//! The command on interfaces of a namespace of its own, where a veth pair is `v0` and `v1`.

mod command;

use command::{Ended, run};
use linerate_sys::netns::Netns;
use linerate_testing::{netns_with_pair, unless};

fn run_in(netns: &Netns, words: &str) -> Ended {
    netns.run(|| run(words)).unwrap()
}

#[test]
fn a_wire_between_the_ends_of_one_veth_pair_is_warned_about() {
    let Some(netns) = netns_with_pair() else { return };
    let pair = "v0 and v1 are the ends of one veth pair";
    let warned = |words: &str| {
        let text = run_in(&netns, &format!("forward {words} --for 10ms"));
        let document = run_in(&netns, &format!("forward {words} --for 10ms --json"));
        assert_eq!((text.exit, document.exit), (Some(0), Some(0)), "{text:?} {document:?}");
        let warnings = document.document()["warnings"].to_string();
        assert_eq!(text.err.contains(pair), warnings.contains(pair), "{text:?} {document:?}");
        text.err.contains(&format!("warning: {pair}"))
    };
    assert!(warned("packet:v0 packet:v1"));
    assert!(!warned("packet:v0 sink:"));
    netns.ip("link add w0 type veth peer name w1").unwrap();
    netns.ip("link set w0 up").unwrap();
    assert!(!warned("packet:v0 packet:w0"));
}

#[test]
fn a_wire_between_two_networks_of_the_host_is_warned_about() {
    let Some(netns) = netns_with_pair() else { return };
    let warned = || {
        let ended = run_in(&netns, "forward packet:v0 packet:w0 --for 10ms");
        assert_eq!(ended.exit, Some(0), "{ended:?}");
        ended
            .err
            .contains("warning: v0 has the address 10.9.0.1, and w0 has the address 10.9.1.1: ")
    };
    for args in ["link add w0 type veth peer name w1", "link set w0 up"] {
        netns.ip(args).unwrap();
    }
    netns.ip("addr add 10.9.0.1/24 dev v0").unwrap();
    assert!(!warned(), "w0 is of no network");
    netns.ip("addr add 10.9.1.1/24 dev w0").unwrap();
    assert!(warned());
    if netns.ip("link add b0 type bridge").is_err() {
        return eprintln!("skipped: the kernel has no bridge");
    }
    for args in [
        "addr flush dev v0",
        "addr flush dev w0",
        "link set v0 master b0",
        "link set w0 master b0",
        "addr add 10.9.0.1/24 dev b0",
        "link set b0 up",
    ] {
        netns.ip(args).unwrap();
    }
    let ended = run_in(&netns, "forward packet:v0 packet:w0 --for 10ms");
    assert!(!ended.err.contains("between these networks"), "{ended:?}");
}

#[test]
fn a_wire_between_two_interfaces_of_one_network_is_warned_about() {
    let Some(netns) = netns_with_pair() else { return };
    let warned = |ports: &str| {
        let ended = run_in(&netns, &format!("forward {ports} --for 10ms"));
        assert_eq!(ended.exit, Some(0), "{ports}: {ended:?}");
        let mut warnings = ended.err.lines().filter_map(|line| line.strip_prefix("warning: "));
        let told = warnings.find_map(|told| told.split_once(", so both are on one network: "));
        told.map(|(relation, _)| relation.to_owned())
    };
    for args in ["link add w0 type veth peer name w1", "link set w0 up"] {
        netns.ip(args).unwrap();
    }
    assert_eq!(warned("packet:v0 packet:w0"), None);
    let has = |kind: &str, args: &str| match netns.ip(args) {
        Ok(_) => true,
        Err(e) if e.why.ends_with("Error: Unknown device type.") => {
            eprintln!("skipped: the kernel has no {kind}");
            false
        }
        Err(e) => panic!("{e}"),
    };
    if has("bridge", "link add b0 type bridge") {
        netns.ip("link set v0 master b0").unwrap();
        netns.ip("link set b0 up").unwrap();
        assert_eq!(warned("packet:v0 packet:w0"), None, "only one is a member");
        for ports in ["packet:b0 packet:v0", "packet:v0 packet:b0"] {
            assert_eq!(warned(ports).as_deref(), Some("v0 is a member of b0"));
        }
        netns.ip("link set w0 master b0").unwrap();
        let members = Some("v0 and w0 are members of b0");
        assert_eq!(warned("packet:v0 packet:w0").as_deref(), members);
        netns.ip("link del b0").unwrap();
    }
    if has("VRF", "link add r0 type vrf table 10") {
        netns.ip("link set v0 master r0").unwrap();
        netns.ip("link set w0 master r0").unwrap();
        assert_eq!(warned("packet:v0 packet:w0"), None, "members of a VRF are separate networks");
        netns.ip("link del r0").unwrap();
    }
    for (kind, options) in [("vlan", "id 5"), ("macvlan", "mode bridge")] {
        if !has(kind, &format!("link add m0 link v0 type {kind} {options}")) {
            continue;
        }
        netns.ip("link set m0 up").unwrap();
        for ports in ["packet:m0 packet:v0", "packet:v0 packet:m0"] {
            assert_eq!(warned(ports).as_deref(), Some("v0 is the lower device of m0"), "{kind}");
        }
        assert_eq!(warned("packet:m0 packet:w0"), None, "{kind}");
        let second = if kind == "vlan" { "id 6" } else { options };
        netns.ip(&format!("link add m1 link v0 type {kind} {second}")).unwrap();
        netns.ip("link set m1 up").unwrap();
        let beside = (kind == "macvlan").then_some("m0 and m1 are on top of v0");
        assert_eq!(warned("packet:m0 packet:m1").as_deref(), beside, "{kind}");
        netns.ip("link del m0").unwrap();
        netns.ip("link del m1").unwrap();
    }
}

#[test]
fn ports_that_take_the_packets_from_two_members_of_a_bridge_are_not_warned_about() {
    let Some(netns) = netns_with_pair() else { return };
    netns.ip("link add w0 type veth peer name w1").unwrap();
    netns.ip("link set w0 up").unwrap();
    match netns.ip("link add b0 type bridge") {
        Err(e) if e.why.ends_with("Error: Unknown device type.") => {
            return eprintln!("skipped: the kernel has no bridge");
        }
        made => made.map(drop).unwrap(),
    }
    for member in ["v0", "w0"] {
        netns.ip(&format!("link set {member} master b0")).unwrap();
    }
    let ended = run_in(&netns, "forward xdp:v0,all xdp:w0,all --for 10ms");
    if ended.exit == Some(5) {
        return eprintln!("skipped: {}", ended.err.trim());
    }
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    assert!(!ended.err.contains("one network"), "{ended:?}");
    let ended = run_in(&netns, "forward xdp:v0,all packet:w0 --for 10ms");
    assert!(ended.err.contains("warning: v0 and w0 are members of b0"), "{ended:?}");
}

#[test]
fn a_wire_between_two_names_of_one_interface_is_refused() {
    let Some(netns) = netns_with_pair() else { return };
    let named = netns.ip("link property add dev v0 altname v0b");
    // iproute2 before 5.5.
    if unless(named, |e| e.why.contains("\"property\" is unknown")).is_none() {
        return;
    }
    for other in ["v0", "v0b"] {
        let refused = run_in(&netns, &format!("forward packet:v0 packet:{other} --for 10ms"));
        assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.err.contains("both ports are on "), "{refused:?}");
    }
}

#[test]
fn an_interface_that_the_host_uses_gets_no_packets_without_a_rate_or_an_end() {
    let Some(netns) = netns_with_pair() else { return };
    netns.ip("addr add 192.0.2.1/24 dev v0").unwrap();
    let refused = run_in(&netns, "gen packet:v0");
    assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    for part in
        ["error[E-USAGE]: ", "v0 has the address 192.0.2.1", "fix: add --rate, --for or --count"]
    {
        assert!(refused.err.contains(part), "{part}: {refused:?}");
    }
    for bound in ["--count 1", "--for 1ms", "--rate 1kpps --count 1"] {
        let sent = run_in(&netns, &format!("gen packet:v0 {bound}"));
        assert_eq!(sent.exit, Some(0), "{bound}: {sent:?}");
    }
    for source in ["gen:", "gen:rate=1kpps,rate_for=1s"] {
        let refused = run_in(&netns, &format!("forward {source} packet:v0"));
        assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
        for part in ["error[E-USAGE]: ", "v0 has the address", "fix: add --for or --count"] {
            assert!(refused.err.contains(part), "{part}: {refused:?}");
        }
    }
    for bounded in ["gen:count=1 packet:v0", "gen: packet:v0 --count 1"] {
        let sent = run_in(&netns, &format!("forward {bounded}"));
        assert_eq!(sent.exit, Some(0), "{bounded}: {sent:?}");
    }
}

#[test]
fn a_generator_of_which_nothing_is_sent_fails_with_the_reason() {
    let Some(netns) = netns_with_pair() else { return };
    for (words, exit) in [
        ("gen packet:v0 --count 10 --size 1515", 3),
        ("forward gen:,count=10,size=1515 packet:v0", 3),
        ("gen packet:v0 --count 10 --size 1514", 0),
    ] {
        let ended = run_in(&netns, words);
        assert_eq!(ended.exit, Some(exit), "{words}: {ended:?}");
        let why = "every packet was dropped: 10 too_long; v0 has the MTU 1500 and sends packets of up to 1514 bytes";
        let lines = format!("error[E-VERIFY]: no packet was sent\n  why: {why}\n  fix: a size of");
        assert_eq!(ended.err.contains(&lines), exit == 3, "{words}: {ended:?}");
    }
}
