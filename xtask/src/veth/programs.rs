//! The programs under test, and how each is told to join two interfaces on the CPU of its own.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::veth::child::Running;
use crate::veth::{kernel, vswitch};

/// CPU of the program under test.
pub const DUT_CPU: usize = 0;
/// CPU of the generator.
pub const GENERATOR_CPU: usize = 1;

/// Programs that every measurement needs, with their Debian packages.
pub const TOOLS: [(&str, &str); 2] = [("ip", "iproute2"), ("taskset", "util-linux")];

const TESTPMD: &str = "dpdk-testpmd";
/// Memory for testpmd if there are no huge pages.
const SMALL_PAGES_MB: &str = "512";
/// Huge pages that testpmd's packet buffers and rings fit into.
const HUGE_KB: u64 = 128 << 10;

/// The program under test, and the folder for output.
pub struct Place<'a> {
    /// The linerate to measure.
    pub linerate: &'a Path,
    /// Folder of the logs.
    pub folder: &'a Path,
}

/// A program under test.
#[derive(Debug, Clone, Copy)]
pub enum Dut {
    /// `linerate forward` between two ports.
    Linerate([&'static str; 2]),
    /// `dpdk-testpmd`, forwarding between two virtual devices without a look at the packets.
    Testpmd([&'static str; 2]),
    /// `ovs-vswitchd` between two interfaces.
    Vswitch([&'static str; 2]),
}

/// The source of packets.
#[derive(Debug, Clone, Copy)]
pub enum Generator {
    /// The kernel itself, out of `a0`: as many as it can.
    Kernel,
    /// `linerate forward gen:` to a packet port of that interface; at most so many a second.
    Packet(&'static str, Option<u64>),
}

impl Dut {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Dut::Linerate(_) => "linerate",
            Dut::Testpmd(_) => "testpmd",
            Dut::Vswitch(_) => "vswitch",
        }
    }

    /// Its program and Debian's package of it, if it is not there.
    pub fn missing(self) -> Option<(&'static str, &'static str)> {
        match self {
            Dut::Linerate(_) => None,
            Dut::Testpmd(_) => missing(&[(TESTPMD, "dpdk")]),
            Dut::Vswitch(_) => missing(&vswitch::PROGRAMS),
        }
    }

    /// Starts it on [`DUT_CPU`], in the network namespace of the calling thread.
    pub fn start(self, place: &Place<'_>) -> Result<Running> {
        let mut command = pinned(DUT_CPU);
        match self {
            Dut::Vswitch(interfaces) => return vswitch::start(interfaces, place),
            Dut::Linerate([a, b]) => {
                command.arg(place.linerate).args(["forward", a, b, "--quiet"]);
                command.args(["--cpu", &DUT_CPU.to_string()]);
            }
            Dut::Testpmd([a, b]) => {
                // Two lcores are the least that it takes; the first only waits at the prompt.
                let lcores = format!("0@{DUT_CPU},1@{DUT_CPU}");
                command.args([TESTPMD, "--lcores", &lcores, "--no-pci"]).args(memory());
                // Its folder is not in /var/run: killed, it leaves it behind.
                command.args(["--file-prefix", "veth"]).env("RUNTIME_DIRECTORY", place.folder);
                command.args(["--vdev", a, "--vdev", b, "--", "--forward-mode=io"]);
                command.args(["--auto-start", "--nb-cores=1", "--total-num-mbufs=16384", "-i"]);
            }
        }
        Running::start(command, self.name(), place.folder)
    }
}

impl Generator {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Generator::Kernel => "kernel",
            Generator::Packet(..) => "packet",
        }
    }

    /// Starts it on [`GENERATOR_CPU`], in the network namespace of the calling thread.
    pub fn start(self, place: &Place<'_>) -> Result<Running> {
        let command = match self {
            Generator::Kernel => kernel::command(),
            Generator::Packet(interface, pps) => {
                let pace = pps.map_or(String::new(), |pps| format!(",rate={pps}pps"));
                let (source, port) = (format!("gen:{pace}"), format!("packet:{interface},bypass"));
                let mut command = pinned(GENERATOR_CPU);
                command.arg(place.linerate).args(["forward", &source, &port, "--quiet"]);
                command.args(["--cpu", &GENERATOR_CPU.to_string()]);
                command
            }
        };
        Running::start(command, &format!("{}-generator", self.name()), place.folder)
    }
}

impl fmt::Display for Dut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Dut::Linerate([a, b]) | Dut::Testpmd([a, b]) | Dut::Vswitch([a, b])) = self;
        write!(f, "{} {a} {b}", self.name())
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Generator::Kernel => write!(f, "kernel (BPF_PROG_TEST_RUN, live frames)"),
            Generator::Packet(interface, _) => write!(f, "packet (gen: packet:{interface},bypass)"),
        }
    }
}

/// The first of `programs` that is not there, with its package.
pub fn missing(programs: &[(&'static str, &'static str)]) -> Option<(&'static str, &'static str)> {
    programs.iter().copied().find(|(program, _)| !is_there(program))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// taskset(1) becomes the program that it starts: one process, and its CPU from the first moment.
pub fn pinned(cpu: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]);
    command
}

/// Returns testpmd's options for memory: huge pages that nobody shares, if there are any.
fn memory() -> &'static [&'static str] {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if huge_kb(&text) >= HUGE_KB {
        &["--in-memory"]
    } else {
        &["--no-huge", "--no-shconf", "-m", SMALL_PAGES_MB]
    }
}

/// Free huge pages, from the text of `/proc/meminfo`.
fn huge_kb(meminfo: &str) -> u64 {
    let of = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let free = of("HugePages_Free").unwrap_or(0).saturating_sub(of("HugePages_Rsvd").unwrap_or(0));
    free.saturating_mul(of("Hugepagesize").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_huge_pages_are_not_free() {
        let text = "HugePages_Free:      280\nHugePages_Rsvd:       12\nHugepagesize:    2048 kB\n";
        assert_eq!(huge_kb(text), 268 * 2048);
        assert_eq!(huge_kb("MemTotal: 1 kB\n"), 0);
    }

    #[test]
    fn a_missing_program_is_told_with_its_package() {
        assert_eq!(missing(&[("sh", "dash")]), None);
        assert_eq!(
            missing(&[("sh", "dash"), ("no such", "x"), ("sh", "y")]),
            Some(("no such", "x"))
        );
    }
}
