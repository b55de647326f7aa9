//! Packets of a kernel in a tunnel over UDP (VXLAN), of which it leaves checksums and cuts to a device: they arrive at
//! another kernel with right bytes.

use std::net::{Ipv4Addr, UdpSocket};

use linerate_tests::command::Report;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::{reaches, transfer};
use linerate_tests::wait::{SOON, until_true};

/// Addresses of the hosts in the tunnel.
const INNER_WEST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const INNER_EAST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
/// Number of bytes that are sent by TCP in each direction.
const LEN: usize = 1_000_000;
/// Lengths of datagrams: the shortest, odd ones, the longest in one packet of the tunnel, and one of several fragments,
/// whose outer checksum the sender leaves unfinished.
const DATAGRAMS: [usize; 6] = [1, 2, 333, 1000, 1422, 3001];
/// Counts of a kernel that stay 0 while all headers and checksums are right, those of the tunnel, too.
const ERRORS: [&str; 5] =
    ["IpInHdrErrors", "IpExtInCsumErrors", "TcpInCsumErrors", "UdpInErrors", "UdpInCsumErrors"];
/// Message of `ip` where the kernel has no VXLAN.
const NO_VXLAN: &str = "Error: Unknown device type.";

/// Adds the interface of a tunnel to `host`.
fn add_vxlan(
    host: &Netns,
    outer: [Ipv4Addr; 2],
    inner: Ipv4Addr,
    options: &str,
) -> Result<(), String> {
    let [local, remote] = outer;
    let add = format!("link add name vx0 type vxlan id 7 local {local} remote {remote} dev eth0");
    host.try_ip(&format!("{add} {options}")).map_err(|why| {
        assert_eq!(why.trim(), NO_VXLAN, "this is no reason to skip");
        format!("no VXLAN: {}", why.trim())
    })?;
    host.ip(&format!("addr add {inner}/24 dev vx0"));
    host.ip("link set dev vx0 up");
    Ok(())
}

/// Sends datagrams of all lengths, one after another, and compares them.
fn exchange(from: &Netns, to: &Netns, source: Ipv4Addr, target: Ipv4Addr) {
    let receiver = to.run(|| UdpSocket::bind((target, 0))).expect("a free port");
    receiver.set_read_timeout(Some(SOON)).expect("a timeout above zero");
    let sender = from.run(|| UdpSocket::bind((source, 0))).expect("a free port");
    sender.connect(receiver.local_addr().expect("it is bound")).expect("a route");
    for (round, len) in DATAGRAMS.into_iter().cycle().take(120).enumerate() {
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        assert_eq!(sender.send(&sent).expect("the kernel takes a datagram"), len);
        let mut got = vec![0; 1 << 16];
        let n = receiver.recv(&mut got).unwrap_or_else(|e| panic!("{round}, {len} bytes: {e}"));
        assert!(got[..n] == sent, "{round}: {n} bytes, other than the {len} sent");
    }
}

/// Sends TCP and UDP in both directions in a tunnel by VXLAN across a join of these two ports; returns the report.
fn carry(west: &str, east: &str, options: &str) -> Result<Report, String> {
    let hosts = Hosts::new()?;
    add_vxlan(&hosts.west, [WEST, EAST], INNER_WEST, options)?;
    add_vxlan(&hosts.east, [EAST, WEST], INNER_EAST, options)?;
    let forward = hosts.join(west, east)?;
    until_true("the tunnel", SOON, || reaches(&hosts.west, INNER_EAST));
    exchange(&hosts.west, &hosts.east, INNER_WEST, INNER_EAST);
    exchange(&hosts.east, &hosts.west, INNER_EAST, INNER_WEST);
    transfer(&hosts.west, &hosts.east, INNER_EAST, LEN);
    transfer(&hosts.east, &hosts.west, INNER_WEST, LEN);
    for host in [&hosts.west, &hosts.east] {
        assert_eq!(ERRORS.map(|name| host.count(name)), [0; 5], "{ERRORS:?}");
    }
    let report = forward.interrupt();
    assert_eq!(report.dropped_as("unsupported"), 0, "{report:?}");
    Ok(report)
}

#[test]
fn tcp_and_udp_in_vxlan_with_outer_checksums_pass_from_xdp_to_xdp() {
    or_skip!(carry("xdp:w0", "xdp:e0", "dstport 4789 udpcsum"));
}

#[test]
fn tcp_and_udp_in_vxlan_without_outer_checksums_pass_from_xdp_to_xdp() {
    or_skip!(carry("xdp:w0", "xdp:e0", "dstport 4789 noudpcsum"));
}

#[test]
fn tcp_and_udp_in_vxlan_at_the_port_of_linux_pass_from_xdp_to_xdp() {
    or_skip!(carry("xdp:w0", "xdp:e0", "dstport 8472"));
}

#[test]
fn superframes_in_vxlan_are_cut_from_packet_to_packet() {
    let report = or_skip!(carry("packet:w0", "packet:e0", "dstport 4789"));
    assert!(report.ledger("created") > 0, "no superframe was cut: {report:?}");
}
