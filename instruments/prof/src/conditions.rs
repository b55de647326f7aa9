//! Conditions of a measurement, which readers need to judge its figures.
//!
//! Everything here is read once, outside any measured window, from /proc and /sys. What cannot be
//! read is `None`.

mod machine;
mod moment;
mod traffic;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::bus::Bus;

pub(crate) use machine::{cpus_on_line, listed};
pub use moment::rfc3339;
pub use traffic::{Passed, Traffic};

/// The place, time and load of a profile's recording.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// The recording program, with its version: `linerate 0.1.0`.
    pub tool: Option<String>,
    /// The quantity that the program measures, in a sentence.
    pub measures: Option<String>,
    /// Kernel's name and release.
    pub kernel: Option<String>,
    /// Model of the CPU.
    pub cpu: Option<String>,
    /// Clock of the CPU, or of its time stamp counter, in MHz.
    pub mhz: Option<f64>,
    /// Number of online CPUs.
    pub cpus: Option<u32>,
    /// Hypervisor, if the machine is virtual.
    pub hypervisor: Option<String>,
    /// Network devices that carried traffic during the recording.
    #[serde(deserialize_with = "at_most::<4096, _, _>")]
    pub netdevs: Vec<Netdev>,
    /// The workload: a command line, or a post's description of it.
    pub workload: Option<String>,
    /// True if functions of every program on the machine are in the profile, and not those of the
    /// workload alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_machine: bool,
    /// Start time, as RFC 3339.
    pub started: Option<String>,
    /// Duration of the recording, in nanoseconds.
    pub wall_ns: Option<u64>,
    /// CPU time of the measured code, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Packets during the recording, if they were counted.
    pub packets: Option<u64>,
    /// Traffic of the memory bus, if the whole machine was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<Bus>,
}

/// A network device, with its traffic during the recording.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Netdev {
    /// The device's name.
    pub name: String,
    /// The device's driver.
    pub driver: Option<String>,
    /// Packets received from the device.
    pub rx_packets: u64,
    /// Bytes received from the device.
    pub rx_bytes: u64,
    /// Packets sent to the device.
    pub tx_packets: u64,
    /// Bytes sent to the device.
    pub tx_bytes: u64,
}

impl Conditions {
    /// Returns the present conditions on this machine: tool, kernel, CPU, clock, online CPUs,
    /// hypervisor and time.
    ///
    /// What a measurement has to add stays `None`: the workload, how long it lasted, the packets
    /// and, by [`Traffic`], the devices that carried them.
    ///
    /// Cost: reads five to ten files of /proc and /sys. Where neither says the clock, the time
    /// stamp counter is measured for 10 ms.
    #[must_use]
    pub fn here() -> Conditions {
        let cpuinfo = machine::read("/proc/cpuinfo").unwrap_or_default();
        Conditions {
            tool: Some(concat!("linerate ", env!("CARGO_PKG_VERSION")).into()),
            kernel: machine::kernel(),
            cpu: machine::cpu_model(&cpuinfo),
            mhz: machine::mhz(&cpuinfo),
            cpus: cpus_on_line().and_then(|cpus| u32::try_from(cpus.len()).ok()),
            hypervisor: machine::hypervisor(&cpuinfo),
            started: Some(rfc3339(std::time::SystemTime::now())),
            ..Conditions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_cpus_and_a_clock_and_says_who_asked() {
        let here = Conditions::here();
        assert!(here.kernel.unwrap().starts_with("Linux "));
        assert_eq!(here.tool.as_deref(), Some(concat!("linerate ", env!("CARGO_PKG_VERSION"))));
        assert!(here.cpus.unwrap() >= 1);
        assert!(here.started.unwrap().ends_with('Z'));
        if cfg!(target_arch = "x86_64") {
            let mhz = here.mhz.unwrap();
            assert!((100.0..20_000.0).contains(&mhz), "{mhz} MHz");
            assert!(here.cpu.is_some());
        }
        assert_eq!((here.workload, here.wall_ns, here.packets), (None, None, None));
    }
}
