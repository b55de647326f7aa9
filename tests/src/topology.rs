//! Hosts in namespaces of their own, and the links between them.
//!
//! ```text
//!   west            middle              east
//!  10.7.0.1 eth0 ── w0    e0 ── eth0 10.7.0.2       veth pairs, offloads at their defaults
//!                    linerate
//! ```
//!
//! No interface in `middle` has an address, so only linerate carries packets across it.

use std::net::Ipv4Addr;

use crate::available;
use crate::command::Forward;
use crate::netns::Netns;
use crate::traffic;
use crate::wait::{SOON, until_true};

/// The address of the western host.
pub const WEST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// The address of the eastern host.
pub const EAST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

/// Two hosts and a namespace between them.
#[derive(Debug)]
pub struct Hosts {
    /// The host with the address [`WEST`].
    pub west: Netns,
    /// The namespace in which linerate runs.
    pub middle: Netns,
    /// The host with the address [`EAST`].
    pub east: Netns,
}

impl Hosts {
    /// Creates two hosts, each with a veth pair whose other end, `w0` or `e0`, is in the middle.
    ///
    /// # Errors
    /// The reason to skip.
    pub fn new() -> Result<Hosts, String> {
        Hosts::with_queues(1)
    }

    /// Returns two hosts as [`Hosts::new`] does, with `queues` receive and transmit queues at both
    /// ends of each pair.
    ///
    /// # Errors
    /// The reason to skip.
    pub fn with_queues(queues: usize) -> Result<Hosts, String> {
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        let hosts = Hosts { west: Netns::new()?, middle: Netns::new()?, east: Netns::new()? };
        for (host, end, address) in [(&hosts.west, "w0", WEST), (&hosts.east, "e0", EAST)] {
            let peer = host.path();
            hosts.middle.try_ip(&format!(
                "link add dev {end} {queues} type veth peer name eth0 {queues} netns {peer}"
            ))?;
            hosts.middle.ip(&format!("link set dev {end} up"));
            host.ip(&format!("addr add {address}/24 dev eth0"));
            host.ip("link set dev eth0 up");
        }
        for (netns, name) in [
            (&hosts.west, "eth0"),
            (&hosts.east, "eth0"),
            (&hosts.middle, "w0"),
            (&hosts.middle, "e0"),
        ] {
            wait_for_carrier(netns, name);
        }
        Ok(hosts)
    }

    /// Starts `linerate forward packet:w0 packet:e0` in the middle, and waits until packets pass.
    ///
    /// # Panics
    /// If no packet passes within [`SOON`].
    #[must_use]
    pub fn join_by_packet(&self) -> Forward {
        let forward = Forward::start(&self.middle, &["packet:w0", "packet:e0"]);
        self.wait_for_packet_port("w0");
        self.wait_for_packet_port("e0");
        self.wait_until_joined();
        forward
    }

    /// Starts `linerate forward WEST EAST` in the middle, and waits until packets pass. Each end is
    /// a port by `packet` or `xdp` on `w0` and `e0`, or a tap, which a bridge joins to that
    /// interface.
    ///
    /// # Errors
    /// The reason to skip, if a port cannot be opened.
    ///
    /// # Panics
    /// If no packet passes within [`SOON`].
    pub fn join(&self, west: &str, east: &str) -> Result<Forward, String> {
        for port in [west, east] {
            // A port that is opened without an engine has no discipline.
            let plain = port.split(',').next().unwrap_or(port);
            available(self.middle.run(|| linerate::Port::open(plain).map(drop)))?;
        }
        let forward = Forward::start(&self.middle, &[west, east]);
        for (port, end) in [(west, "w0"), (east, "e0")] {
            if let Some(tap) = port.strip_prefix("tap:") {
                self.bridge(tap, end);
            } else if port.starts_with("packet:") {
                self.wait_for_packet_port(end);
            } else {
                let show = format!("link show dev {end}");
                until_true("an XDP program", SOON, || self.middle.ip(&show).contains("prog/xdp"));
            }
        }
        self.wait_until_joined();
        Ok(forward)
    }

    /// Waits until a packet port has been opened on interface `name` in the middle.
    ///
    /// # Panics
    /// If no port is opened within [`SOON`].
    pub fn wait_for_packet_port(&self, name: &str) {
        until_true("a packet socket", SOON, || self.middle.packet_sockets(name) > 0);
    }

    /// Waits for the interface `tap` in the middle, and joins it to `end` (`w0`, `e0`) by a bridge:
    /// the tap is then a host's uplink, as a virtual machine's tap would be.
    ///
    /// # Panics
    /// If the interface does not exist within [`SOON`].
    pub fn bridge(&self, tap: &str, end: &str) {
        until_true("a tap", SOON, || self.middle.interfaces().iter().any(|name| name == tap));
        let bridge = format!("br-{end}");
        self.middle.ip(&format!("link add name {bridge} type bridge"));
        for port in [tap, end] {
            self.middle.ip(&format!("link set dev {port} master {bridge}"));
            self.middle.ip(&format!("link set dev {port} up"));
        }
        self.middle.ip(&format!("link set dev {bridge} up"));
    }

    /// Waits until the hosts reach each other.
    ///
    /// # Panics
    /// If they do not within [`SOON`].
    pub fn wait_until_joined(&self) {
        until_true("west to reach east", SOON, || traffic::reaches(&self.west, EAST));
    }
}

/// Waits until the kernel has noticed that interface `name` has a carrier and started its queues.
///
/// # Panics
/// If it has not within [`SOON`].
pub fn wait_for_carrier(netns: &Netns, name: &str) {
    // Do not check IFF_RUNNING: the kernel also sets it while the state is unknown.
    let show = format!("-o link show dev {name}");
    until_true("a carrier", SOON, || netns.ip(&show).contains(" state UP "));
    // The kernel's worker first changes the state and then starts the queues, under the lock that
    // this command also takes: when the command returns, the queues have started.
    netns.ip(&format!("link set dev {name} up"));
}
