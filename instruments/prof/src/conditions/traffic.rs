//! Traffic of the network devices during a recording.

use std::path::{Path, PathBuf};

use linerate_sys::{Code, Error, Result};

use super::{Netdev, machine};
use crate::proc::netdev::{self, RX_BYTES, RX_PACKETS, TX_BYTES, TX_PACKETS};

/// A reading of every network device of a namespace, for comparison with a later one.
#[derive(Debug, Clone)]
pub struct Traffic {
    path: String,
    /// True if the devices are in our own network namespace, so that our /sys describes them.
    ours: bool,
    before: Vec<netdev::Device>,
}

/// Traffic between two readings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passed {
    /// Devices that carried traffic, in the kernel's order.
    pub netdevs: Vec<Netdev>,
    /// Devices with unknown traffic, because their counters decreased or the device was recreated.
    pub reset: Vec<String>,
}

impl Traffic {
    /// Reads the devices of the network namespace of process `pid`, or of our own.
    ///
    /// # Errors
    /// `E-FILE` without such a process, or without /proc.
    pub fn start(pid: Option<u32>) -> Result<Traffic> {
        let path = pid.map_or("/proc/self/net/dev".into(), |pid| format!("/proc/{pid}/net/dev"));
        let before = read(&path)?;
        let ours = pid.is_none_or(|pid| namespace(&pid.to_string()) == namespace("self"));
        Ok(Traffic { path, ours, before })
    }

    /// Reads the devices again, and returns the traffic between the readings. The counters of a
    /// device created in between start from 0; a device removed in between is missing.
    ///
    /// # Errors
    /// `E-FILE` if the process has ended.
    pub fn stop(&self) -> Result<Passed> {
        let driver = |name: &str| if self.ours { driver(name) } else { None };
        Ok(between(&self.before, &read(&self.path)?, driver))
    }
}

fn read(path: &str) -> Result<Vec<netdev::Device>> {
    let text = machine::read(path)
        .map_err(|e| Error::new(Code::File, format!("cannot read {path}"), e.to_string()))?;
    Ok(netdev::devices(&text).0)
}

/// Returns the identity of a process's network namespace.
fn namespace(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

fn between(
    before: &[netdev::Device],
    after: &[netdev::Device],
    driver: impl Fn(&str) -> Option<String>,
) -> Passed {
    let mut passed = Passed::default();
    for now in after {
        let then = before.iter().find(|then| then.name == now.name);
        let since = |at: usize| now.counts[at].checked_sub(then.map_or(0, |then| then.counts[at]));
        let counts = [RX_PACKETS, RX_BYTES, TX_PACKETS, TX_BYTES].map(since);
        let [Some(rx_packets), Some(rx_bytes), Some(tx_packets), Some(tx_bytes)] = counts else {
            passed.reset.push(now.name.clone());
            continue;
        };
        if rx_packets == 0 && tx_packets == 0 {
            continue;
        }
        let (name, driver) = (now.name.clone(), driver(&now.name));
        passed.netdevs.push(Netdev { name, driver, rx_packets, rx_bytes, tx_packets, tx_bytes });
    }
    passed
}

/// Returns the driver of a device in our own namespace; `None` for another namespace, whose devices
/// our /sys does not show.
///
/// A device without hardware has a kind (`bridge`, `vlan`) that its driver is known by; a veth and
/// the loopback have not even that, and are `None`.
fn driver(name: &str) -> Option<String> {
    // The kernel allows no slash in a device's name; a name that starts with `..` would lead to
    // another folder.
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let device = Path::new("/sys/class/net").join(name);
    if let Ok(link) = std::fs::read_link(device.join("device/driver")) {
        return Some(link.file_name()?.to_string_lossy().into_owned());
    }
    let uevent = machine::read(device.join("uevent")).ok()?;
    let kind = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    kind.map(Into::into).or_else(|| device.join("tun_flags").exists().then(|| "tun".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, rx: u64, tx: u64) -> netdev::Device {
        let mut counts = [0; netdev::FIELDS.len()];
        (counts[0], counts[1], counts[8], counts[9]) = (60 * rx, rx, 60 * tx, tx);
        netdev::Device { name: name.into(), counts }
    }

    #[test]
    fn only_devices_that_carried_traffic_are_named_and_a_reset_one_is_not_guessed_at() {
        let before = [device("lo", 5, 5), device("eth0", 10, 10), device("eth1", 7, 7)];
        let after =
            [device("lo", 5, 5), device("eth0", 15, 10), device("eth1", 6, 9), device("new", 0, 1)];
        let passed = between(&before, &after, |name| (name == "eth0").then(|| "e1000".into()));
        let [eth0, new] = &passed.netdevs[..] else { panic!("{passed:?}") };
        assert_eq!((eth0.name.as_str(), eth0.driver.as_deref()), ("eth0", Some("e1000")));
        assert_eq!((eth0.rx_packets, eth0.rx_bytes, eth0.tx_packets), (5, 300, 0));
        assert_eq!((new.name.as_str(), new.driver.as_deref(), new.tx_packets), ("new", None, 1));
        assert_eq!(passed.reset, ["eth1"]);
    }

    #[test]
    fn packets_sent_over_the_loopback_are_counted() {
        let traffic = Traffic::start(None).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
        }
        let passed = traffic.stop().unwrap();
        let lo = passed.netdevs.iter().find(|dev| dev.name == "lo").unwrap();
        assert!(lo.tx_packets >= 10 && lo.tx_bytes >= 1000, "{lo:?}");
        // Above the highest process that the kernel hands out, 4,194,304.
        assert_eq!(Traffic::start(Some(u32::MAX)).unwrap_err().code, Code::File);
    }
}
