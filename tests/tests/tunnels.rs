//! Packets of a kernel in a tunnel (VXLAN, Geneve, GRE), of which it leaves checksums and cuts to a
//! device: they arrive at another kernel with right bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use linerate::prelude::*;
use linerate::wire::{Mac, Tunnel as Ends};
use linerate_port::doctor::kernel;
use linerate_tests::command::{Forward, Report};
use linerate_tests::netns::Netns;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::{reaches, send_in_superframes, transfer};
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, or_skip};

/// Addresses of the hosts outside of the tunnel, if that is over IPv6.
const WEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 1);
const EAST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 2);
/// Addresses of the hosts in the tunnel.
const INNER_WEST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const INNER_EAST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
/// Number of bytes that are sent by TCP in each direction.
const LEN: usize = 1_000_000;
/// Lengths of datagrams: the shortest, odd ones, the longest in one packet of VXLAN over IPv4, and
/// one of several fragments, whose outer checksum the sender leaves unfinished.
const DATAGRAMS: [usize; 6] = [1, 2, 333, 1000, 1422, 3001];
/// Length of a datagram of a superframe, number of bytes of one: 40 datagrams, and a shorter one;
/// and number of superframes.
const DATAGRAM: usize = 1200;
const SUPERFRAME: usize = 40 * DATAGRAM + 500;
const SUPERFRAMES: usize = 20;
/// Counts of a kernel that stay 0 while all headers and checksums are right, those of the tunnel,
/// too.
const ERRORS: [&str; 5] =
    ["IpInHdrErrors", "IpExtInCsumErrors", "TcpInCsumErrors", "UdpInErrors", "UdpInCsumErrors"];
/// Those of a tunnel over IPv6.
const ERRORS6: [&str; 3] = ["Ip6InHdrErrors", "Udp6InErrors", "Udp6InCsumErrors"];
/// Message of `ip` where the kernel has no tunnel of a kind.
const NO_TUNNEL: &str = "Error: Unknown device type.";

/// The arguments of `ip link add`, in which `LOCAL` and `REMOTE` stand for addresses, and true if
/// these are of IPv6.
type Tunnel<'a> = (&'a str, bool);

const VXLAN: &str = "type vxlan id 7 local LOCAL remote REMOTE dev eth0";
const GENEVE: &str = "type geneve id 7 remote REMOTE udpcsum";
const GRE: &str = "type gretap local LOCAL remote REMOTE key 5 csum";

/// Adds the interface of a tunnel between the addresses `outer`, the own one first, to `host`.
fn add_tunnel(host: &Netns, args: &str, outer: [String; 2], inner: Ipv4Addr) -> Result<(), String> {
    let args = args.replace("LOCAL", &outer[0]).replace("REMOTE", &outer[1]);
    host.try_ip(&format!("link add name tun0 {args}")).map_err(|why| {
        assert_eq!(why.trim(), NO_TUNNEL, "this is no reason to skip");
        format!("ip link add {args}: {}", why.trim())
    })?;
    host.ip(&format!("addr add {inner}/24 dev tun0"));
    host.ip("link set dev tun0 up");
    Ok(())
}

/// Joins two hosts by these two ports, and in a tunnel across that join.
fn join(west: &str, east: &str, (args, is_v6): Tunnel) -> Result<(Hosts, Forward), String> {
    let hosts = Hosts::new()?;
    let mut outer = [WEST, EAST].map(|address| address.to_string());
    if is_v6 {
        hosts.west.add_ipv6("eth0", WEST6)?;
        hosts.east.add_ipv6("eth0", EAST6)?;
        outer = [WEST6, EAST6].map(|address| address.to_string());
    }
    add_tunnel(&hosts.west, args, outer.clone(), INNER_WEST)?;
    outer.reverse();
    add_tunnel(&hosts.east, args, outer, INNER_EAST)?;
    let forward = hosts.join(west, east)?;
    until_true("the tunnel", SOON, || reaches(&hosts.west, INNER_EAST));
    Ok((hosts, forward))
}

/// Returns a sender at `source`, and a receiver at `target` to which it is connected.
fn sockets(from: &Netns, to: &Netns, source: Ipv4Addr, target: Ipv4Addr) -> (UdpSocket, UdpSocket) {
    let receiver = to.run(|| UdpSocket::bind((target, 0))).expect("a free port");
    receiver.set_read_timeout(Some(SOON)).expect("a timeout above zero");
    let sender = from.run(|| UdpSocket::bind((source, 0))).expect("a free port");
    sender.connect(receiver.local_addr().expect("it is bound")).expect("a route");
    (sender, receiver)
}

/// Receives a datagram.
fn receive(receiver: &UdpSocket, what: usize) -> Vec<u8> {
    let mut got = vec![0; 1 << 16];
    let n = receiver.recv(&mut got).unwrap_or_else(|e| panic!("{what}: {e}"));
    got.truncate(n);
    got
}

/// Sends datagrams of all lengths, one after another, and compares them.
fn exchange(from: &Netns, to: &Netns, source: Ipv4Addr, target: Ipv4Addr) {
    let (sender, receiver) = sockets(from, to, source, target);
    for (round, len) in DATAGRAMS.into_iter().cycle().take(120).enumerate() {
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        assert_eq!(sender.send(&sent).expect("the kernel takes a datagram"), len);
        let got = receive(&receiver, round);
        assert!(got == sent, "{round}: {} bytes, other than the {len} sent", got.len());
    }
}

/// Sends superframes of UDP, one after another, and compares their datagrams, which may arrive in
/// any order.
fn exchange_superframes(from: &Netns, to: &Netns, source: Ipv4Addr, target: Ipv4Addr) {
    let (sender, receiver) = sockets(from, to, source, target);
    send_in_superframes(&sender, DATAGRAM);
    for round in 0..SUPERFRAMES {
        let byte = |at: usize| (((round + at) as u32).wrapping_mul(0x9e37_79b1) >> 24) as u8;
        let bytes: Vec<u8> = (0..SUPERFRAME).map(byte).collect();
        assert_eq!(sender.send(&bytes).expect("the kernel takes a superframe"), SUPERFRAME);
        let mut sent: Vec<&[u8]> = bytes.chunks(DATAGRAM).collect();
        let mut got: Vec<Vec<u8>> = sent.iter().map(|_| receive(&receiver, round)).collect();
        sent.sort_unstable();
        got.sort_unstable();
        assert!(got == sent, "round {round}: datagrams other than those sent");
    }
}

/// Stops forwarding; returns the report.
fn end(hosts: &Hosts, forward: Forward, is_v6: bool) -> Report {
    for host in [&hosts.west, &hosts.east] {
        assert_eq!(ERRORS.map(|name| host.count(name)), [0; 5], "{ERRORS:?}");
        if is_v6 {
            assert_eq!(ERRORS6.map(|name| host.count(name)), [0; 3], "{ERRORS6:?}");
        }
    }
    let report = forward.interrupt();
    assert_eq!(report.dropped_as("unsupported"), 0, "{report:?}");
    report
}

/// Sends TCP and UDP in both directions in a tunnel across a join of these two ports; returns the
/// report.
fn carry(west: &str, east: &str, tunnel: Tunnel) -> Result<Report, String> {
    let (hosts, forward) = join(west, east, tunnel)?;
    exchange(&hosts.west, &hosts.east, INNER_WEST, INNER_EAST);
    exchange(&hosts.east, &hosts.west, INNER_EAST, INNER_WEST);
    transfer(&hosts.west, &hosts.east, INNER_EAST, LEN);
    transfer(&hosts.east, &hosts.west, INNER_WEST, LEN);
    Ok(end(&hosts, forward, tunnel.1))
}

/// Does as [`carry`] in VXLAN with these `options`.
fn carry_vxlan(port: &str, options: &str, is_v6: bool) -> Result<Report, String> {
    let args = format!("{VXLAN} {options}");
    carry(&format!("{port}:w0"), &format!("{port}:e0"), (&args, is_v6))
}

#[test]
fn tcp_and_udp_in_vxlan_with_outer_checksums_pass_from_xdp_to_xdp() {
    or_skip!(carry_vxlan("xdp", "dstport 4789 udpcsum", false));
}

#[test]
fn tcp_and_udp_in_vxlan_without_outer_checksums_pass_from_xdp_to_xdp() {
    or_skip!(carry_vxlan("xdp", "dstport 4789 noudpcsum", false));
}

#[test]
fn tcp_and_udp_in_vxlan_at_the_port_of_linux_pass_from_xdp_to_xdp() {
    or_skip!(carry_vxlan("xdp", "dstport 8472", false));
}

#[test]
fn tcp_and_udp_in_vxlan_over_ipv6_pass_from_xdp_to_xdp() {
    or_skip!(carry_vxlan("xdp", "dstport 4789", true));
}

#[test]
fn tcp_and_udp_in_geneve_pass_from_xdp_to_xdp() {
    or_skip!(carry("xdp:w0", "xdp:e0", (GENEVE, false)));
}

#[test]
fn tcp_and_udp_in_gre_with_checksums_pass_from_xdp_to_xdp() {
    or_skip!(carry("xdp:w0", "xdp:e0", (GRE, false)));
}

#[test]
fn superframes_in_vxlan_are_cut_from_packet_to_packet() {
    let report = or_skip!(carry_vxlan("packet", "dstport 4789", false));
    assert!(report.ledger("created") > 0, "no superframe was cut: {report:?}");
}

#[test]
fn superframes_in_vxlan_over_ipv6_are_cut_from_packet_to_packet() {
    let report = or_skip!(carry_vxlan("packet", "dstport 4789", true));
    assert!(report.ledger("created") > 0, "no superframe was cut: {report:?}");
}

#[test]
fn superframes_in_gre_with_checksums_are_cut_from_packet_to_packet() {
    let report = or_skip!(carry("packet:w0", "packet:e0", (GRE, false)));
    assert!(report.ledger("created") > 0, "no superframe was cut: {report:?}");
}

#[test]
fn superframes_of_udp_in_vxlan_are_cut_at_their_boundaries_from_packet_to_packet() {
    if kernel::version() < Some((6, 2)) {
        return eprintln!("skipped: before Linux 6.2 a packet socket gets no superframes of UDP");
    }
    for (options, is_v6) in [("dstport 4789 udpcsum", false), ("dstport 4789", true)] {
        let args = format!("{VXLAN} {options}");
        let (hosts, forward) = or_skip!(join("packet:w0", "packet:e0", (&args, is_v6)));
        exchange_superframes(&hosts.west, &hosts.east, INNER_WEST, INNER_EAST);
        let report = end(&hosts, forward, is_v6);
        let datagrams = SUPERFRAMES * SUPERFRAME.div_ceil(DATAGRAM);
        let cut = report.ledger("created");
        assert!(cut >= datagrams as u64, "some were not cut: {report:?}");
    }
}

/// Puts the packets of one port into VXLAN, and takes those of the other port out of it.
struct Gateway {
    inside: PortId,
    ends: Ends,
}

impl Stage for Gateway {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let (is_inside, ends) = (turn.port() == self.inside, self.ends);
        batch.retain(|skb| match is_inside {
            true => skb.push_vxlan(&ends),
            false
                if skb.udp().is_ok_and(|udp| udp.dst_port() == 4789)
                    && skb.pull(ends.header_bytes()) =>
            {
                Ok(())
            }
            false => Err(DropReason::UNWANTED),
        });
    }
}

/// Returns the MAC address of the host's interface.
fn mac_of(host: &Netns) -> Mac {
    let shown = host.ip("-br link show dev eth0");
    let text = shown.split_whitespace().nth(2).expect("a MAC address");
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    Mac(bytes.try_into().expect("six bytes"))
}

/// Joins a host without a tunnel, whose packets a stage of this process puts into VXLAN, with one
/// whose kernel has it.
fn through_a_stage(ports: [&str; 2], is_v6: bool) -> Result<(), String> {
    let hosts = Hosts::new()?;
    let [src, dst]: [IpAddr; 2] = match is_v6 {
        true => [WEST6.into(), EAST6.into()],
        false => [WEST.into(), EAST.into()],
    };
    let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 9]), mac_of(&hosts.east));
    let ends = Ends { src_mac, dst_mac, src, dst, vni: 7, port: None };
    hosts.west.ip(&format!("addr add {INNER_WEST}/24 dev eth0"));
    // The inner packets have room for the tunnel's headers.
    hosts.west.ip("link set dev eth0 mtu 1430");
    let mut options = "noudpcsum";
    if is_v6 {
        hosts.east.add_ipv6("eth0", EAST6)?;
        options = "";
    }
    let outer = [dst, src].map(|address| address.to_string());
    add_tunnel(&hosts.east, &format!("{VXLAN} dstport 4789 {options}"), outer, INNER_EAST)?;
    hosts.east.ip(&format!("neigh replace {src} lladdr 02:00:00:00:00:09 dev eth0"));
    let build = || {
        let engine = Engine::builder().port("inside", ports[0]).port("outside", ports[1]);
        let engine = engine.wire("inside", "outside");
        engine.stage(move |cx| Gateway { inside: cx.port("inside"), ends }).build()?.start()
    };
    let running = available(hosts.middle.run(build))?;
    until_true("the tunnel", SOON, || reaches(&hosts.west, INNER_EAST));
    exchange_superframes(&hosts.west, &hosts.east, INNER_WEST, INNER_EAST);
    transfer(&hosts.west, &hosts.east, INNER_EAST, LEN);
    transfer(&hosts.east, &hosts.west, INNER_WEST, LEN);
    for host in [&hosts.west, &hosts.east] {
        assert_eq!(ERRORS.map(|name| host.count(name)), [0; 5], "{ERRORS:?}");
        if is_v6 {
            assert_eq!(ERRORS6.map(|name| host.count(name)), [0; 3], "{ERRORS6:?}");
        }
    }
    let ledger = running.stop(SOON).ledger;
    assert_eq!((ledger.difference(), ledger.dropped(DropReason::UNSUPPORTED)), (0, 0), "{ledger}");
    assert!(ledger.created > 0, "no superframe was cut: {ledger}");
    Ok(())
}

#[test]
fn superframes_that_a_stage_puts_into_vxlan_reach_the_kernel_at_its_end() {
    or_skip!(through_a_stage(["packet:w0", "packet:e0"], false));
    or_skip!(through_a_stage(["packet:w0", "xdp:e0,dst=10.7.0.1"], false));
}

#[test]
fn superframes_that_a_stage_puts_into_vxlan_over_ipv6_reach_the_kernel_at_its_end() {
    or_skip!(through_a_stage(["packet:w0", "packet:e0"], true));
    or_skip!(through_a_stage(["packet:w0", "xdp:e0"], true));
}
