//! Bulk TCP by IPv6 between two kernels: every byte is compared, and the kernels count no error.

use std::net::Ipv6Addr;

use linerate_tests::command::Report;
use linerate_tests::or_skip;
use linerate_tests::topology::Hosts;
use linerate_tests::traffic::transfer;

const WEST: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 1);
const EAST: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 2);
/// Number of bytes sent in each direction.
const LEN: usize = 4_000_000;
/// Fewest segments that carry them: an MTU of 1500 less the headers of IPv6 and TCP.
const SEGMENTS: u64 = LEN as u64 / 1440;
/// Counts of a kernel that stay 0 while all headers and checksums are right.
const ERRORS: [&str; 4] =
    ["Ip6InHdrErrors", "Ip6InTruncatedPkts", "TcpInCsumErrors", "Icmp6InCsumErrors"];

/// The report of a run, and the number of packets in which the eastern kernel received [`LEN`]
/// bytes.
struct Carried {
    report: Report,
    packets: u64,
}

/// Sends [`LEN`] bytes in each direction across a join of these two ports.
fn carry(west: &str, east: &str) -> Result<Carried, String> {
    let hosts = Hosts::new()?;
    let forward = hosts.join(west, east)?;
    // After the join, so that the search for duplicates of the link-local addresses crosses it.
    hosts.west.add_ipv6("eth0", WEST)?;
    hosts.east.add_ipv6("eth0", EAST)?;
    transfer(&hosts.west, &hosts.east, EAST, LEN);
    let packets = hosts.east.count("Ip6InReceives");
    transfer(&hosts.east, &hosts.west, WEST, LEN);
    for host in [&hosts.west, &hosts.east] {
        assert_eq!(ERRORS.map(|name| host.count(name)), [0; 4], "{ERRORS:?}");
        let addresses = host.ip("-6 -o addr show dev eth0");
        assert!(!addresses.contains("dadfailed"), "{addresses}");
    }
    let report = forward.interrupt();
    for port in 0..2 {
        assert!(report.port(port, "rx", "bytes") > LEN as u64, "{report:?}");
    }
    Ok(Carried { report, packets })
}

#[test]
fn bulk_ipv6_passes_from_packet_to_packet_in_superframes() {
    let Carried { report, packets } = or_skip!(carry("packet:w0", "packet:e0"));
    assert!(packets < SEGMENTS, "{packets} packets of {SEGMENTS} segments: {report:?}");
}

#[test]
fn superframes_of_ipv6_are_cut_from_packet_to_xdp() {
    let Carried { report, .. } = or_skip!(carry("packet:w0", "xdp:e0"));
    assert!(report.ledger("created") > SEGMENTS / 2, "few were cut: {report:?}");
}

#[test]
fn bulk_ipv6_passes_from_xdp_to_xdp_with_its_checksums_completed() {
    or_skip!(carry("xdp:w0", "xdp:e0"));
}

#[test]
fn bulk_ipv6_passes_from_tap_to_tap_in_superframes() {
    let Carried { report, packets } = or_skip!(carry("tap:tw", "tap:te"));
    assert!(packets < SEGMENTS, "{packets} packets of {SEGMENTS} segments: {report:?}");
}
