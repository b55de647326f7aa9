//! The head that `top` prints: processes by state, CPU time by kind, memory and swap.
//!
//! It is printed and read in the form that `top` had when kernels were 2.4, four lines of it.

mod measure;
mod parse;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use measure::Started;

/// The state of a machine, as in the first lines of `top`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// Processes, by state.
    pub processes: Processes,
    /// CPU time of all CPUs, by kind.
    pub cpu: Cpu,
    /// The use of memory.
    pub mem: Mem,
    /// The use of swap.
    pub swap: Swap,
}

/// Processes, by the state of their main threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Processes {
    /// Number of all processes.
    pub total: u64,
    /// Processes asleep, including those that wait for a disk and idle kernel threads.
    pub sleeping: u64,
    /// Processes that run or are ready to run.
    pub running: u64,
    /// Processes that have ended and were not waited for.
    pub zombie: u64,
    /// Processes stopped by a signal or a debugger.
    pub stopped: u64,
    /// True if /proc hides other processes from us.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub some_hidden: bool,
}

/// CPU time, in per cent of all CPUs.
///
/// Kernels before 2.6 knew four kinds, and these are printed. What later ones tell apart is in
/// them, and is `None` where the source does not tell it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// Share of programs without a positive nice value.
    pub user_pct: f64,
    /// Share of the kernel, which includes `irq_pct` and `softirq_pct`, as in 2.4.
    pub system_pct: f64,
    /// Share of programs with a positive nice value.
    pub nice_pct: f64,
    /// Share of idle time, which includes `iowait_pct`.
    pub idle_pct: f64,
    /// Part of `idle_pct`: time waiting for a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iowait_pct: Option<f64>,
    /// Part of `system_pct`: time in interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irq_pct: Option<f64>,
    /// Part of `system_pct`: time in soft interrupts, in which packets are received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirq_pct: Option<f64>,
    /// Share taken by the hypervisor, in addition to the four shares of Linux 2.4. Some hypervisors
    /// do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_pct: Option<f64>,
}

/// The use of memory, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mem {
    /// Memory available to the kernel.
    pub av_kb: u64,
    /// Memory that is not free, with buffers and caches.
    pub used_kb: u64,
    /// Free memory.
    pub free_kb: u64,
    /// Shared memory; unknown with kernels before 2.6.32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrd_kb: Option<u64>,
    /// Buffers of block devices.
    pub buff_kb: u64,
    /// Memory of cached files, which `top` prints in the line of the swap.
    pub cached_kb: u64,
}

/// The use of swap, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Swap {
    /// Total swap.
    pub av_kb: u64,
    /// Used swap.
    pub used_kb: u64,
    /// Free swap.
    pub free_kb: u64,
}

/// Displays four lines, as `top` printed them.
impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Head { processes: p, cpu, mem, swap } = self;
        writeln!(
            f,
            "{} processes: {} sleeping, {} running, {} zombie, {} stopped",
            p.total, p.sleeping, p.running, p.zombie, p.stopped
        )?;
        writeln!(
            f,
            "CPU states: {:.1}% user, {:.1}% system, {:.1}% nice, {:.1}% idle",
            cpu.user_pct, cpu.system_pct, cpu.nice_pct, cpu.idle_pct
        )?;
        let shrd = mem.shrd_kb.map_or("n/a".into(), |shrd_kb| format!("{shrd_kb}K"));
        writeln!(
            f,
            "Mem: {}K av, {}K used, {}K free, {shrd} shrd, {}K buff",
            mem.av_kb, mem.used_kb, mem.free_kb, mem.buff_kb
        )?;
        // `top` printed no comma before the last state.
        writeln!(
            f,
            "Swap: {}K av, {}K used, {}K free {}K cached",
            swap.av_kb, swap.used_kb, swap.free_kb, mem.cached_kb
        )
    }
}
