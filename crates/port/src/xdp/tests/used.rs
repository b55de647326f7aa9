//! Packets that the host may need on an interface that it uses: a port takes them only if its text
//! says so.

use std::process::Command;

use linerate_skb::Code;

use crate::Port;
use crate::host::testing::{eventually, in_netns_with_xdp, ip, queue, veth};

/// Asserts that the port of `text` opens on v0.
fn assert_opens(text: &str) {
    drop(queue(text));
    // A child of another test may have the program's descriptors between its fork and its exec.
    eventually(|| !ip("link show v0").contains("prog/xdp"));
}

/// Asserts that the port of `text` is refused for the reason `why`, and opens with `all`.
fn assert_needs_permission(text: &str, why: &str) {
    let e = Port::open(text).unwrap_err();
    assert_eq!(e.code, Code::Busy, "{text}: {e}");
    let permitted = format!("{text},all");
    assert!(e.why.contains(why) && e.fix.ends_with(&permitted), "{text}: {e}");
    assert_opens(&permitted);
}

/// Makes macsec0 on v0; returns false, with a note on stderr, if this kernel has no MACsec.
fn macsec() -> bool {
    let add = "link add link v0 name macsec0 type macsec";
    let done = Command::new("ip").args(add.split(' ')).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    if ["Unknown device type", "Operation not supported"].iter().any(|no| said.contains(no)) {
        eprintln!("skipped: this kernel has no MACsec: {}", said.trim());
        return false;
    }
    assert!(done.status.success(), "{said}");
    true
}

#[test]
fn frames_of_a_macsec_interface_with_the_hosts_address_are_taken_only_if_it_is_said() {
    in_netns_with_xdp(|| {
        veth(1500);
        if !macsec() {
            return;
        }
        let text = "xdp:v0,ethertype=0x88e5";
        assert_opens(text);
        ip("addr add 192.0.2.1/24 dev macsec0");
        assert_needs_permission(text, "ssh to this host ends: macsec0 has the address 192.0.2.1");
        assert_opens("xdp:v0,ethertype=0x88b5");
    });
}

#[test]
fn packets_to_groups_are_taken_from_an_interface_that_the_host_uses_only_if_it_is_said() {
    in_netns_with_xdp(|| {
        veth(1500);
        if std::fs::write("/proc/sys/net/ipv6/conf/v0/disable_ipv6", "0").is_err() {
            return eprintln!("skipped: this kernel has no IPv6");
        }
        ip("addr add fe80::5/64 dev v0 nodad");
        let groups = ["ff02::1", "ff02::1:ff00:1", "255.255.255.255", "0.0.0.0"];
        for group in groups {
            assert_opens(&format!("xdp:v0,dst={group}"));
        }
        ip("addr add fd00::1/64 dev v0 nodad");
        for group in groups {
            let why = "packets that this host may need, as for neighbour discovery or DHCP: v0 has \
                       the address fd00::1";
            assert_needs_permission(&format!("xdp:v0,dst={group}"), why);
        }
        assert_opens("xdp:v0,dst=fd00::2");
        ip("addr add 192.0.2.1/24 dev v0");
        let e = Port::open("xdp:v0,dst=192.0.2.255").unwrap_err();
        assert!(e.why.starts_with("192.0.2.255 is an address of this host"), "{e}");
    });
}
