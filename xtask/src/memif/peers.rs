//! The programs at either end of a socket.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Asked;
use crate::veth::child::Running;
use crate::veth::programs::pinned;

/// A side of the link: the one that maps the memory and listens, or the one that owns it and connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }

    pub fn other(self) -> Role {
        match self {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        }
    }
}

/// A memif device of testpmd's.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    pub socket: &'a Path,
    pub role: Role,
    /// Its packet buffers are the client's memory. They are in huge pages then.
    pub zero_copy: bool,
}

/// Memory of testpmd's packet buffers.
const MEGABYTES: &str = "256";
/// Huge pages that these take, and what its other memory does.
const HUGE_PAGES: u64 = 150;

/// Returns the reason why a zero-copy device cannot be had, with its remedy.
pub fn no_huge_pages() -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = |line: &str| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok();
    let free = text.lines().find_map(free).unwrap_or(0);
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    if !mounts.contains(" hugetlbfs ") {
        return Some(
            "huge pages are mounted nowhere: mount -t hugetlbfs none /dev/hugepages".into(),
        );
    }
    (free < HUGE_PAGES).then(|| {
        format!(
            "{free} huge pages are free, testpmd takes {HUGE_PAGES}: sysctl vm.nr_hugepages=300"
        )
    })
}

/// Starts testpmd in the mode `forward` on these devices, on one CPU.
pub fn testpmd(
    name: &str,
    devices: &[Device<'_>],
    forward: &str,
    cpu: usize,
    folder: &Path,
) -> Result<Running> {
    let mut command = pinned(cpu);
    // Packet buffers in small pages: a machine has those. Two threads of it share the CPU, of which
    // the one with the prompt sleeps.
    command.args(["dpdk-testpmd", "--no-pci", "--no-shconf", "-m", MEGABYTES]);
    command.arg(match devices.iter().any(|device| device.zero_copy) {
        // Its memif shares whole files, and a file for each page would be too many.
        true => "--single-file-segments",
        false => "--no-huge",
    });
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--file-prefix", name]);
    for (i, device) in devices.iter().enumerate() {
        let (role, socket) = (device.role.as_str(), device.socket.display());
        command.arg(format!(
            "--vdev=net_memif{i},role={role},id=0,socket={socket},socket-abstract=no,rsize=10{}",
            if device.zero_copy { ",zero-copy=yes" } else { "" }
        ));
    }
    command.args(["--", "--auto-start", "--nb-cores=1", "--total-num-mbufs=16384"]);
    command.args([&format!("--forward-mode={forward}"), "--stats-period=1"]);
    Running::start(command, name, folder)
}

/// Starts one of ours.
pub fn ours(
    asked: &Asked,
    program: &str,
    args: &[&str],
    cpu: usize,
    name: &str,
) -> Result<Running> {
    let mut command: Command = pinned(cpu);
    command.arg(asked.programs.join(program)).args(args);
    Running::start(command, name, &asked.folder)
}

/// Numbers that testpmd has printed behind `label`, once a second.
pub fn printed(label: &str, name: &str, folder: &Path) -> Result<Vec<u64>> {
    let path = folder.join(format!("{name}.log"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(numbers(&text, label))
}

fn numbers(text: &str, label: &str) -> Vec<u64> {
    let behind = |line: &str| {
        let at = line.find(label)? + label.len();
        line[at..].split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(behind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_testpmd_prints_each_second_is_found() {
        let text = "  Throughput (since last show)\n  Rx-pps:      9049824          Rx-bps: 1\n  \
                    Tx-pps:           12          Tx-bps: 2\n  Rx-pps:  7  Rx-bps: 1\n";
        assert_eq!(numbers(text, "Rx-pps:"), [9_049_824, 7]);
        assert_eq!(numbers(text, "Tx-pps:"), [12]);
    }
}
