//! Packets of a VLAN whose sender keeps the tag beside the packet.

use std::process::Command;

use linerate_skb::Offload;
use linerate_sys::netif::{DeviceOffload, Interface};

use super::pool;
use crate::Port;
use crate::host::testing::{
    assert_silent, bytes, eventually, in_netns_with_xdp, ip, ipv4, queue, queue_in, receive_if,
    send, stamped, veth,
};

/// Makes VLAN 5 on one end of a veth pair, whose offload keeps tags out of the bytes; returns
/// false, with a note on stderr, if this kernel has no VLANs.
fn vlan() -> bool {
    veth(1500);
    let mut add = Command::new("ip");
    add.args(["link", "add", "link", "v1", "name", "v1.5", "type", "vlan", "id", "5"]);
    let done = add.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    if ["Unknown device type", "Operation not supported"].iter().any(|no| said.contains(no)) {
        eprintln!("skipped: this kernel has no VLANs: {}", said.trim());
        return false;
    }
    assert!(done.status.success(), "{said}");
    ip("link set v1.5 up");
    true
}

#[test]
fn tag_that_the_sender_keeps_beside_the_packet_arrives_in_it() {
    in_netns_with_xdp(|| {
        if !vlan() {
            return;
        }
        let sender = Interface::open("v1").unwrap();
        let is_on = || sender.offload(DeviceOffload::VlanInsertion).unwrap();
        assert!(is_on());
        let mut xdp = queue_in("xdp:v0", &pool(16384));
        assert!(!is_on());
        let frame = stamped(1, 100);
        send(&mut queue("packet:v1.5"), std::slice::from_ref(&frame), Offload::NONE);
        let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        let got = receive_if(&mut xdp, 1, |got| got[..6] == frame[..6]);
        assert_eq!(bytes(got.iter().next().unwrap()), tagged);
        drop(xdp);
        eventually(is_on);
    });
}

#[test]
fn offload_of_the_sender_is_off_while_the_port_receives() {
    in_netns_with_xdp(|| {
        veth(1500);
        let sender = Interface::open("v1").unwrap();
        let is_on = || sender.offload(DeviceOffload::VlanInsertion).unwrap();
        for (text, expected) in [
            ("xdp:v0", false),
            ("xdp:v0,udp=7777", false),
            ("xdp:v0,write", true),
            // A trial of `doctor`.
            ("xdp:v0,ethertype=0x88b6,promisc=off", true),
            ("xdp:v0,ethertype=0x88b6", false),
        ] {
            let xdp = queue_in(text, &pool(16384));
            assert_eq!(is_on(), expected, "{text}");
            drop(xdp);
            eventually(is_on);
        }
    });
}

#[test]
fn filter_leaves_packets_of_a_vlan_to_the_kernel_and_not_takes_them() {
    in_netns_with_xdp(|| {
        if !vlan() {
            return;
        }
        let (pool, mut vlan) = (pool(16384), queue("packet:v1.5"));
        let mut datagram = ipv4(17, 30);
        datagram[36..38].copy_from_slice(&7777u16.to_be_bytes());
        let mut xdp = queue_in("xdp:v0,udp=7777", &pool);
        send(&mut vlan, std::slice::from_ref(&datagram), Offload::NONE);
        assert_silent(&mut xdp, 2);
        assert_eq!(xdp.counts().rx_packets, 0);
        drop(xdp);
        let mut xdp = queue_in("xdp:v0,ethertype=0x8100", &pool);
        send(&mut vlan, std::slice::from_ref(&datagram), Offload::NONE);
        let got = receive_if(&mut xdp, 1, |got| got[..6] == datagram[..6]);
        assert_eq!(bytes(got.iter().next().unwrap())[12..16], [0x81, 0, 0, 5]);
    });
}

#[test]
fn tagged_packets_that_the_host_needs_are_taken_only_if_it_is_said() {
    in_netns_with_xdp(|| {
        if vlan() {
            let text = "xdp:v1,ethertype=0x8100";
            // The VLAN alone is no use, and an address on the interface has no tag.
            ip("addr add 192.0.2.1/24 dev v1");
            drop(queue(text));
            ip("addr add 198.51.100.1/24 dev v1.5");
            let e = Port::open(text).unwrap_err();
            assert!(e.why.contains("v1.5 has the address 198.51.100.1"), "{e}");
            drop(queue(&format!("{text},all")));
        }
    });
    in_netns_with_xdp(|| {
        veth(1500);
        ip("link add br0 type bridge");
        ip("link set v0 master br0");
        let e = Port::open("xdp:v0,ethertype=0x88a8").unwrap_err();
        assert!(e.why.contains("v0 is a member of br0") && e.fix.contains("0x88a8,all"), "{e}");
        drop(queue("xdp:v0,ethertype=0x88b5"));
    });
}
