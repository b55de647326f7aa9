//! Hosts in unnamed namespaces, with links to a third namespace between them.
//!
//! ```text
//!   west               middle               east
//!  10.7.0.1 eth0 ── w0  linerate  e0 ── eth0 10.7.0.2
//!  10.7.1.1 eth1 ── w1            e1 ── eth1 10.7.1.2      with two adapters
//! ```
//!
//! With east = "smoltcp" there is no link to the eastern host: its programs have TCP in user space.
//! With port `tap` there are no veth pairs: the engine makes the hosts' `eth0` itself, in `middle`,
//! from where they are moved. Nothing in `middle` has an address: what crosses it, the engine has
//! carried. Neighbours are set and not asked for, IPv6 is off: what crosses it is the traffic and
//! nothing else.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use linerate_sys::netif::{DeviceOffload, Interface};
use linerate_sys::netns::Netns;

use super::config::{Config, Port};
use crate::scenario::pause::pause;
use crate::{Code, Error, Result};

/// The longest wait for a link's carrier.
const CARRIER: Duration = Duration::from_secs(10);
/// Number of TCP retransmissions for a connection that its program has closed and no process
/// answers: some seconds by the kernel's timers. The default is 8, which takes minutes.
const ORPHAN_RETRIES: &str = "3";

/// The settings of post 002, for the hosts.
///
/// Source: post 002, "sysctl -w net.ipv4.tcp_wmem=…" and so on.
const POST_002: [(&str, &str); 5] = [
    ("net.ipv4.tcp_wmem", "4096 524288 4194304"),
    ("net.ipv4.tcp_rmem", "4096 1048576 4194304"),
    ("net.core.rmem_max", "4194304"),
    ("net.core.wmem_max", "4194304"),
    ("net.core.netdev_max_backlog", "120000"),
];
/// Length of the post's send queue, in front of the hosts' devices. Without one, packets are lost
/// for which a veth pair's own queue of 256 has no room; with one the kernel, since 6.16, keeps
/// them.
///
/// Source: drivers/net/veth.c, `veth_xmit` and `VETH_RING_SIZE`; post 002, "modprobe ib_ipoib
/// send_queue_size=512".
const SEND_QUEUE: u32 = 512;
/// The remark that a veth pair has no receive queue whose length is the post's.
const RECEIVE_QUEUE: &str = "n/a: its receive queue of 4096, which a veth pair does not have; `ring` sets the length \
                             of an xdp port's rings";

/// Two hosts and the links between them.
#[derive(Debug)]
pub(super) struct Hosts {
    pub west: Netns,
    pub middle: Netns,
    pub east: Netns,
    /// The settings of post 002, if requested: each with its value, or with the reason why a
    /// namespace lacks it.
    tunings: Vec<String>,
}

impl Hosts {
    /// Creates two hosts with `adapters` links each, to interfaces of the engine or, with port
    /// `tap`, to the engine itself, which creates them; the caller then calls [`Hosts::adopt`].
    /// Without `offload`, packets have the size that a wire would carry.
    ///
    /// # Errors
    /// `E-PERM` without the privilege, `E-UNSUPPORTED` without `ip` or without veth.
    pub fn new(config: &Config) -> Result<Hosts> {
        let [west, middle, east] = [Netns::new()?, Netns::new()?, Netns::new()?];
        let mut hosts = Hosts { west, middle, east, tunings: Vec::new() };
        for netns in [&hosts.west, &hosts.middle, &hosts.east] {
            netns.quiet()?;
            forget_orphans(netns)?;
        }
        if config.tuned {
            hosts.tune()?;
        }
        if config.port != Port::Tap {
            for (host, end, adapter) in hosts.ends(config) {
                let peer = host.path();
                hosts.middle.ip(&format!(
                    "link add dev {end} type veth peer name eth{adapter} netns {peer}"
                ))?;
                hosts.middle.ip(&format!("link set dev {end} up"))?;
            }
            hosts.set_up(config)?;
            for (_, end, _) in hosts.ends(config) {
                wait_for_carrier(&hosts.middle, &end)?;
            }
        }
        hosts.queue_packets(config);
        Ok(hosts)
    }

    /// Gives the hosts' devices the send queue of post 002, if requested, and records whether they
    /// have one.
    fn queue_packets(&mut self, config: &Config) {
        if !config.tuned {
            return;
        }
        if config.port == Port::Tap {
            return self.tunings.push("send queue n/a: a TAP device has its own".into());
        }
        let queued = |(host, _, adapter): (&Netns, String, usize)| {
            host.ip(&format!("link set dev eth{adapter} txqueuelen {SEND_QUEUE}"))?;
            host.tc(&format!("qdisc replace dev eth{adapter} root pfifo_fast"))
        };
        let done: Result<Vec<String>> = self.ends(config).into_iter().map(queued).collect();
        self.tunings.push(match done {
            Ok(_) => format!("send queue = {SEND_QUEUE} (pfifo_fast; of use since Linux 6.16)"),
            Err(e) => format!("send queue n/a: {}", e.why),
        });
    }

    /// Applies the settings of post 002 to both hosts, and records which ones a namespace lacks.
    fn tune(&mut self) -> Result<()> {
        for (name, value) in POST_002 {
            let set = || tune(name, value);
            let done = self.west.run(set)?.and(self.east.run(set)?);
            self.tunings.push(match done {
                Ok(()) => format!("{name} = {value}"),
                Err(why) => format!("{name} n/a: {why}"),
            });
        }
        self.tunings.push(RECEIVE_QUEUE.into());
        Ok(())
    }

    /// Returns a remark on the requested settings; `None` if there were none.
    pub fn tunings(&self) -> Option<String> {
        let told = self.tunings.join("; ");
        (!told.is_empty()).then(|| format!("Settings of post 002 in both hosts: {told}."))
    }

    /// Moves the interfaces that the engine has created to the hosts.
    pub fn adopt(&self, config: &Config) -> Result<()> {
        if config.port != Port::Tap {
            return Ok(());
        }
        for (host, end, adapter) in self.ends(config) {
            let host = host.path();
            self.middle.ip(&format!("link set dev {end} netns {host} name eth{adapter}"))?;
        }
        self.set_up(config)
    }

    /// Returns each host with the engine's interface that leads to it, and the number of the pair.
    pub fn ends(&self, config: &Config) -> Vec<(&Netns, String, usize)> {
        let both = |adapter| {
            let west = (&self.west, format!("w{adapter}"), adapter);
            let east = (&self.east, format!("e{adapter}"), adapter);
            [Some(west), (!config.user_space).then_some(east)]
        };
        (0..config.adapters).flat_map(both).flatten().collect()
    }

    /// Sets addresses on the hosts' interfaces, and waits for their carriers.
    fn set_up(&self, config: &Config) -> Result<()> {
        for (host, end, adapter) in self.ends(config) {
            let last = if end.starts_with('w') { 1 } else { 2 };
            let (eth, mac) = (format!("eth{adapter}"), mac(adapter, last));
            if !config.offload {
                host.run(|| Interface::open(&eth)?.set_offload(DeviceOffload::Checksums, false))??;
            }
            host.ip(&format!("link set dev {eth} address {mac}"))?;
            host.ip(&format!("addr add {}/24 dev {eth}", address(adapter, last)))?;
            host.ip(&format!("link set dev {eth} up"))?;
            let (other, other_mac) = (address(adapter, 3 - last), self::mac(adapter, 3 - last));
            host.ip(&format!("neigh replace {other} lladdr {other_mac} dev {eth} nud permanent"))?;
        }
        for (host, _, adapter) in self.ends(config) {
            wait_for_carrier(host, &format!("eth{adapter}"))?;
        }
        Ok(())
    }
}

/// Limits how long a namespace outlives a killed program: the kernel retransmits for the program's
/// connections through a path that no longer exists, and each of them keeps the namespace alive.
fn forget_orphans(netns: &Netns) -> Result<()> {
    netns.run(|| {
        // This setting belongs to the namespace. If it cannot be written, an orphan lasts for the
        // minutes of the default.
        let _ = fs::write("/proc/sys/net/ipv4/tcp_orphan_retries", ORPHAN_RETRIES);
    })
}

/// Applies a setting in the calling thread's namespace, and checks it.
fn tune(name: &str, value: &str) -> std::result::Result<(), String> {
    let file = format!("/proc/sys/{}", name.replace('.', "/"));
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match fs::write(&file, value).and_then(|()| fs::read_to_string(&file)).map(words) {
        Ok(now) if now == value => Ok(()),
        Ok(now) => Err(format!("it stays {now}")),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                Err("it is the machine's, and not a namespace's".into())
            }
            _ => Err(e.to_string()),
        },
    }
}

/// Returns the address of the western host on a link.
pub(super) fn west(adapter: usize) -> Ipv4Addr {
    address(adapter, 1)
}

/// Returns the address of the eastern host on a link.
pub(super) fn east(adapter: usize) -> Ipv4Addr {
    address(adapter, 2)
}

fn address(adapter: usize, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, adapter as u8, last)
}

fn mac(adapter: usize, last: u8) -> String {
    mac_bytes(adapter, last).map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the MAC address of the host whose address ends with `last` on a link.
pub(super) fn mac_bytes(adapter: usize, last: u8) -> [u8; 6] {
    [2, 0, 0, 0, adapter as u8, last]
}

/// Waits until the kernel has noticed the carrier of `interface` and started its queues.
pub(in crate::scenario) fn wait_for_carrier(netns: &Netns, interface: &str) -> Result<()> {
    // Check the state and not IFF_RUNNING, which is also set while the state is still unknown.
    let show = format!("-o -d link show dev {interface}");
    let until = Instant::now() + CARRIER;
    let has_one = |state: &str| {
        // The state of a TAP device stays UNKNOWN, so its carrier shows only as LOWER_UP.
        state.contains(" state UP ") || (state.contains(" tun ") && state.contains("LOWER_UP"))
    };
    while !has_one(&netns.ip(&show)?) {
        if Instant::now() >= until {
            let why = format!("{interface} has none after {} s", CARRIER.as_secs());
            return Err(Error::new(Code::DeviceDown, "cannot wait for a carrier", why));
        }
        pause(Duration::from_millis(1));
    }
    // The kernel's worker changes the state before it starts the queues, and holds the RTNL lock
    // for both. This command changes nothing, but waits for that lock, so the queues are started
    // when it returns.
    netns.ip(&format!("link set dev {interface} up")).map(drop)
}
