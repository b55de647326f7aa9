//! Two hosts joined by taps: each tap is a host's uplink, by a bridge, as that of a virtual
//! machine.

use linerate_tests::command::Forward;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::scenario;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::{reaches, transfer};
use linerate_tests::wait::{SOON, until_true};

fn join_by_taps(hosts: &Hosts) -> Forward {
    let forward = Forward::start(&hosts.middle, &["tap:tw", "tap:te"]);
    hosts.bridge("tw", "w0");
    hosts.bridge("te", "e0");
    hosts.wait_until_joined();
    forward
}

fn join_by_plain_taps(hosts: &Hosts) -> Forward {
    let forward = Forward::start(&hosts.middle, &["tap:tw,vnet=off", "tap:te,vnet=off"]);
    hosts.bridge("tw", "w0");
    hosts.bridge("te", "e0");
    hosts.wait_until_joined();
    forward
}

fn join_by_packet_and_tap(hosts: &Hosts) -> Forward {
    let forward = Forward::start(&hosts.middle, &["packet:w0", "tap:te"]);
    hosts.wait_for_packet_port("w0");
    hosts.bridge("te", "e0");
    hosts.wait_until_joined();
    forward
}

fn ping_and_iperf(join: fn(&Hosts) -> Forward) {
    let hosts = or_skip!(Hosts::new());
    let forward = join(&hosts);
    let ran = scenario::pings(&hosts)
        .and_then(|()| scenario::tcp_both_ways(&hosts))
        .and_then(|()| scenario::udp(&hosts));
    let report = forward.interrupt();
    or_skip!(ran);
    assert!(report.ledger("sent") > 1000, "{report:?}");
}

#[test]
fn ping_and_iperf_pass_from_tap_to_tap() {
    ping_and_iperf(join_by_taps);
}

#[test]
fn ping_and_iperf_pass_from_tap_to_tap_without_offload_headers() {
    ping_and_iperf(join_by_plain_taps);
}

#[test]
fn ping_and_iperf_pass_from_packet_to_tap() {
    ping_and_iperf(join_by_packet_and_tap);
}

fn file(join: fn(&Hosts) -> Forward) {
    let hosts = or_skip!(Hosts::new());
    let forward = join(&hosts);
    scenario::hundred_megabytes(&hosts);
    let report = forward.interrupt();
    let bytes = report.port(0, "rx", "bytes") + report.port(1, "rx", "bytes");
    assert!(bytes > 200_000_000, "{report:?}");
}

#[test]
fn a_hundred_megabytes_pass_from_tap_to_tap() {
    file(join_by_taps);
}

#[test]
fn a_hundred_megabytes_pass_without_offload_headers_in_packets_of_the_mtu() {
    let hosts = or_skip!(Hosts::new());
    let forward = join_by_plain_taps(&hosts);
    scenario::hundred_megabytes(&hosts);
    let report = forward.interrupt();
    let (bytes, packets) = (report.port(0, "rx", "bytes"), report.port(0, "rx", "packets"));
    let (bytes, packets) =
        (bytes + report.port(1, "rx", "bytes"), packets + report.port(1, "rx", "packets"));
    assert!(bytes > 200_000_000, "{report:?}");
    assert!(packets > bytes / 1514, "{bytes} bytes in {packets} packets");
}

#[test]
fn a_hundred_megabytes_pass_from_packet_to_tap() {
    file(join_by_packet_and_tap);
}

#[test]
fn a_tap_can_be_given_to_another_namespace() {
    let (west, middle, east) =
        (or_skip!(Netns::new()), or_skip!(Netns::new()), or_skip!(Netns::new()));
    let forward = Forward::start(&middle, &["tap:tw", "tap:te"]);
    for (tap, host, address) in [("tw", &west, WEST), ("te", &east, EAST)] {
        until_true("a tap", SOON, || middle.interfaces().iter().any(|name| name == tap));
        middle.ip(&format!("link set dev {tap} netns {}", host.path()));
        host.ip(&format!("addr add {address}/24 dev {tap}"));
        host.ip(&format!("link set dev {tap} up"));
    }
    until_true("west to reach east", SOON, || reaches(&west, EAST));
    transfer(&west, &east, EAST, 10_000_000);
    let report = forward.interrupt();
    assert!(report.ledger("sent") > 100, "{report:?}");
}
