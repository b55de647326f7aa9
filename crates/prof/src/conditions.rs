//! Under which conditions a figure was taken: without them it is a rumour.
//!
//! Everything here is read once, outside any measured window, from /proc and /sys. What cannot be
//! read is `None`.

use serde::{Deserialize, Serialize};

/// Where, when and under what load a profile was taken.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// What took it, with its version: `linerate 0.1.0`.
    pub tool: Option<String>,
    /// What that measures, in a sentence.
    pub measures: Option<String>,
    /// Kernel's name and release.
    pub kernel: Option<String>,
    /// Model of the CPU.
    pub cpu: Option<String>,
    /// Its clock, or its time stamp counter's, in MHz.
    pub mhz: Option<f64>,
    /// CPUs on line.
    pub cpus: Option<u32>,
    /// Hypervisor, if the machine is virtual.
    pub hypervisor: Option<String>,
    /// Network devices that carried traffic meanwhile.
    pub netdevs: Vec<Netdev>,
    /// What ran: a command line, or what a post says of it.
    pub workload: Option<String>,
    /// When it began, RFC 3339.
    pub started: Option<String>,
    /// How long it lasted, in nanoseconds.
    pub wall_ns: Option<u64>,
    /// CPU time of what was measured, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Packets that went through meanwhile, if somebody counted them.
    pub packets: Option<u64>,
}

/// A network device and what passed it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Received from it, in packets.
    pub rx_packets: u64,
    /// Received from it, in bytes.
    pub rx_bytes: u64,
    /// Sent to it, in packets.
    pub tx_packets: u64,
    /// Sent to it, in bytes.
    pub tx_bytes: u64,
}
