//! What two joined hosts do with each other; every test of a join runs the same.

use crate::topology::{EAST, Hosts, WEST};
use crate::traffic::{figure, iperf3, ping, transfer};

/// Pings in one frame, in a full one, and in fragments.
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

/// TCP both ways, two seconds each.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an end fails, or one way carries next to nothing.
pub fn tcp_both_ways(hosts: &Hosts) -> Result<(), String> {
    for args in [&["--time", "2"][..], &["--time", "2", "--reverse"]] {
        let report = iperf3(&hosts.west, &hosts.east, EAST, args)?;
        let bytes = figure(&report, "/sum_received/bytes");
        assert!(bytes > 1e6, "{args:?}: {bytes} bytes in two seconds");
    }
    Ok(())
}

/// UDP at 50 Mbit/s for two seconds, with less than one datagram in a hundred lost.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an end fails, or more is lost.
pub fn udp(hosts: &Hosts) -> Result<(), String> {
    let args = ["--udp", "--bitrate", "50M", "--time", "2", "--length", "1400"];
    let report = iperf3(&hosts.west, &hosts.east, EAST, &args)?;
    let (packets, lost) = (figure(&report, "/sum/packets"), figure(&report, "/sum/lost_packets"));
    assert!(packets > 1000.0 && lost < packets / 100.0, "{lost} of {packets} datagrams lost");
    Ok(())
}

/// A hundred megabytes each way over TCP, compared byte for byte.
///
/// # Panics
/// If a byte differs.
pub fn hundred_megabytes(hosts: &Hosts) {
    transfer(&hosts.west, &hosts.east, EAST, 100_000_000);
    transfer(&hosts.east, &hosts.west, WEST, 100_000_000);
}
