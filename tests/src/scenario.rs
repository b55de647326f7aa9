//! Exchanges of traffic between two joined hosts, run by every test of a join.

use std::net::Ipv4Addr;

use crate::netns::Netns;
use crate::topology::{EAST, Hosts, WEST};
use crate::traffic::{figure, iperf3, ping, transfer};

/// Sends pings of one frame, of a full frame, and of several fragments.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an answer is missing.
pub fn pings(hosts: &Hosts) -> Result<(), String> {
    for size in [0, 56, 1472, 8000] {
        ping(&hosts.west, EAST, size, 50)?;
    }
    ping(&hosts.east, WEST, 1472, 50)
}

/// Sends TCP both ways, one second each.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// As [`tcp`].
pub fn tcp_both_ways(hosts: &Hosts) -> Result<(), String> {
    tcp(&hosts.west, &hosts.east, EAST, "1")
}

/// Sends TCP from `client` to `address` of `server` and back, for `seconds` in each direction.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an end fails, or one direction carries almost nothing.
pub fn tcp(client: &Netns, server: &Netns, address: Ipv4Addr, seconds: &str) -> Result<(), String> {
    for args in [&["--time", seconds][..], &["--time", seconds, "--reverse"]] {
        let report = iperf3(client, server, address, args)?;
        let bytes = figure(&report, "/sum_received/bytes");
        assert!(bytes > 5e5, "{args:?}: {bytes} bytes");
    }
    Ok(())
}

/// Sends UDP at 10 Mbit/s for two seconds.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// As [`datagrams`].
pub fn udp(hosts: &Hosts) -> Result<(), String> {
    datagrams(&hosts.west, &hosts.east, EAST, "2")
}

/// Sends UDP from `client` to `address` of `server` at 10 Mbit/s for `seconds`, and checks that
/// less than one datagram in a hundred is lost.
///
/// A host that gets no CPU for a third of a second loses datagrams in its own socket, which is no
/// fault of the path; so one of three attempts must succeed. Packets that the path dropped are in
/// its ledger; `forward_packet.rs` checks that there are none after pings and datagrams. Packets
/// that the kernel drops before the port are in no ledger.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an end fails, or more is lost each time.
pub fn datagrams(
    client: &Netns,
    server: &Netns,
    address: Ipv4Addr,
    seconds: &str,
) -> Result<(), String> {
    let args = ["--udp", "--bitrate", "10M", "--time", seconds, "--length", "1400"];
    let mut seen = Vec::new();
    for _ in 0..3 {
        let report = iperf3(client, server, address, &args)?;
        let (packets, lost) =
            (figure(&report, "/sum/packets"), figure(&report, "/sum/lost_packets"));
        if packets > 500.0 && lost < packets / 100.0 {
            return Ok(());
        }
        seen.push(format!("{lost} of {packets}"));
    }
    panic!("datagrams lost: {}", seen.join(", "));
}

/// Sends a hundred megabytes in each direction over TCP, and compares them byte for byte.
///
/// # Panics
/// If a byte differs.
pub fn hundred_megabytes(hosts: &Hosts) {
    transfer(&hosts.west, &hosts.east, EAST, 100_000_000);
    transfer(&hosts.east, &hosts.west, WEST, 100_000_000);
}
