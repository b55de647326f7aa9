//! Two hosts joined only by `linerate forward packet:w0 packet:e0`.

use linerate_tests::command::Report;
use linerate_tests::or_skip;
use linerate_tests::scenario;
use linerate_tests::topology::Hosts;

/// Checks that both ports together saw at least `packets` packets, that the ledger has all of them,
/// and that none was dropped.
fn assert_carried(report: &Report, packets: u64) {
    let received: u64 = (0..2).map(|port| report.port(port, "rx", "packets")).sum();
    assert!(received >= packets, "{received} packets seen, at least {packets} sent: {report:?}");
    assert!(report.ledger("received") >= received, "{report:?}");
    assert_eq!(report.dropped(), 0, "{report:?}");
}

#[test]
fn every_ping_is_answered_whatever_its_size() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    or_skip!(scenario::pings(&hosts));
    // 250 requests and as many answers; those of 8000 bytes are six frames each.
    assert_carried(&forward.interrupt(), 2 * (4 + 6) * 50);
}

#[test]
fn tcp_flows_both_ways_in_superframes() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    or_skip!(scenario::tcp_both_ways(&hosts));
    let report = forward.interrupt();
    for port in 0..2 {
        let (packets, bytes) =
            (report.port(port, "rx", "packets"), report.port(port, "rx", "bytes"));
        // Each end sent data for two seconds, so packets are longer on average than a frame of this
        // MTU, although acknowledgements of the other direction are among them.
        assert!(bytes > 1514 * packets, "{bytes} bytes in {packets} packets: {report:?}");
    }
}

#[test]
fn udp_at_a_bounded_rate_arrives() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    or_skip!(scenario::udp(&hosts));
    assert_carried(&forward.interrupt(), 2 * 10_000_000 / 8 / 1400 / 2);
}

#[test]
fn a_hundred_megabytes_arrive_as_they_were_sent() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    scenario::hundred_megabytes(&hosts);
    let report = forward.interrupt();
    let bytes = report.port(0, "rx", "bytes") + report.port(1, "rx", "bytes");
    assert!(bytes > 200_000_000, "{report:?}");
}

#[test]
fn frames_cross_without_offload_headers_too() {
    let hosts = or_skip!(Hosts::new());
    // Without the header, superframes cannot cross: the hosts must not make any.
    for host in [&hosts.west, &hosts.east] {
        host.ip("link set dev eth0 gso_max_segs 1");
    }
    let ports = ["packet:w0,vnet=off", "packet:e0,vnet=off"];
    let forward = linerate_tests::command::Forward::start(&hosts.middle, &ports);
    hosts.wait_for_packet_port("w0");
    hosts.wait_for_packet_port("e0");
    or_skip!(scenario::pings(&hosts));
    assert_carried(&forward.interrupt(), 2 * (4 + 6) * 50);
}
