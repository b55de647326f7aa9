//! Measurement of the figures in the head of `top`, over an interval on this machine.

use std::fs;

use linerate_sys::{Code, Error, Result};

use super::{Cpu, Head, Mem, Processes, Swap};
use crate::proc::files::cpu_lines;
use crate::proc::split::{CpuTimes, Split};

/// CPU times at the start of the interval.
#[derive(Debug, Clone, Copy)]
pub struct Started(CpuTimes);

impl Head {
    /// Starts an interval.
    ///
    /// # Errors
    /// `E-FILE` without /proc.
    pub fn start() -> Result<Started> {
        Ok(Started(cpu_times(&read("/proc/stat")?)?))
    }
}

impl Started {
    /// Ends the interval and returns its head: CPU time over the interval, processes and memory at
    /// its end. The kernel counts CPU time in ticks of 1/100 s on each CPU, so that a shorter
    /// interval is too coarse.
    ///
    /// # Errors
    /// `E-FILE` without /proc, `E-SYSTEM` if the interval was too short for any CPU time to be
    /// counted.
    pub fn stop(&self) -> Result<Head> {
        let now = cpu_times(&read("/proc/stat")?)?;
        let split = now.since(&self.0).and_then(|since| since.split()).ok_or_else(|| {
            let why = "no tick of the kernel's clock fell in the interval, or its count went back";
            Error::new(Code::System, "cannot tell what the CPUs did", why)
                .fix("measure for at least 100 ms")
        })?;
        let (mem, swap) = memory(&read("/proc/meminfo")?)?;
        Ok(Head { processes: processes()?, cpu: Cpu::from(split), mem, swap })
    }
}

/// Conversion into the four shares of Linux 2.4, which include the finer shares of later kernels.
impl From<Split> for Cpu {
    fn from(split: Split) -> Cpu {
        let [.., iowait_pct, irq_pct, softirq_pct, steal_pct] = split.0;
        Cpu {
            user_pct: split.sum(&["user"]),
            system_pct: split.sum(&["system", "irq", "softirq"]),
            nice_pct: split.sum(&["nice"]),
            idle_pct: split.sum(&["idle", "iowait"]),
            iowait_pct,
            irq_pct,
            softirq_pct,
            steal_pct,
        }
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|e| Error::new(Code::File, format!("cannot read {path}"), e.to_string()))
}

fn unexpected(path: &str, what: &str) -> Error {
    Error::new(Code::File, format!("cannot read {path}"), format!("{what} is not in it"))
}

fn cpu_times(stat: &str) -> Result<CpuTimes> {
    let machine = cpu_lines(stat).find(|(name, _)| *name == "cpu").and_then(|(_, times)| times);
    machine.ok_or_else(|| unexpected("/proc/stat", "the line `cpu`"))
}

/// Reads memory and swap, from /proc/meminfo.
fn memory(meminfo: &str) -> Result<(Mem, Swap)> {
    let kb = |key: &str| {
        let mut values = meminfo.lines().filter_map(|line| line.split_once(':'));
        let value = values.find(|(name, _)| *name == key).map(|(_, value)| value.trim());
        let number = value.and_then(|value| value.strip_suffix("kB")?.trim().parse().ok());
        number.ok_or_else(|| unexpected("/proc/meminfo", key))
    };
    let (av_kb, free_kb): (u64, u64) = (kb("MemTotal")?, kb("MemFree")?);
    let (shrd_kb, buff_kb, cached_kb) = (kb("Shmem").ok(), kb("Buffers")?, kb("Cached")?);
    let used_kb = av_kb.saturating_sub(free_kb);
    let mem = Mem { av_kb, used_kb, free_kb, shrd_kb, buff_kb, cached_kb };
    let (av_kb, free_kb): (u64, u64) = (kb("SwapTotal")?, kb("SwapFree")?);
    Ok((mem, Swap { av_kb, used_kb: av_kb.saturating_sub(free_kb), free_kb }))
}

/// Counts the processes by state. A process that ends during the count may be missing.
fn processes() -> Result<Processes> {
    let entries = fs::read_dir("/proc")
        .map_err(|e| Error::new(Code::File, "cannot list /proc", e.to_string()))?;
    // Process 1 always exists. If its file cannot be read, other users' processes are hidden from
    // us.
    let some_hidden = fs::read("/proc/1/stat").is_err();
    let mut processes = Processes { some_hidden, ..Processes::default() };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())) {
            // The name of a program may have bytes that are not UTF-8.
            let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
            if let Some(state) = state(&stat) {
                count(&mut processes, state);
            }
        }
    }
    Ok(processes)
}

/// Returns the letter after the program's name, which is in brackets and may itself contain
/// brackets.
fn state(stat: &[u8]) -> Option<u8> {
    let behind = stat.iter().rposition(|&b| b == b')')?;
    stat.get(behind + 2).copied()
}

/// Counts a process of the given state.
///
/// Source: proc_pid_stat(5).
fn count(processes: &mut Processes, state: u8) {
    match state {
        b'R' => processes.running += 1,
        b'S' | b'D' | b'I' | b'P' => processes.sleeping += 1,
        b'Z' => processes.zombie += 1,
        b'T' | b't' => processes.stopped += 1,
        // The process ended during the count, or its state is not known here.
        _ => return,
    }
    processes.total += 1;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn this_machine_has_a_head_whose_parts_sum_and_which_reads_back() {
        let started = Head::start().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let head = started.stop().unwrap();
        let Processes { total, sleeping, running, zombie, stopped, .. } = head.processes;
        assert_eq!(total, sleeping + running + zombie + stopped);
        // At least we are there; our main thread sleeps while this one tests.
        assert!(total >= 1, "{head}");
        let Cpu { user_pct, system_pct, nice_pct, idle_pct, steal_pct, .. } = head.cpu;
        let sum = user_pct + system_pct + nice_pct + idle_pct + steal_pct.unwrap_or(0.0);
        assert!((sum - 100.0).abs() < 1e-6, "{sum}");
        assert_eq!(head.mem.av_kb, head.mem.used_kb + head.mem.free_kb);
        let text = head.to_string();
        assert_eq!(Head::parse(&text).unwrap().to_string(), text);
    }

    #[test]
    fn memory_swap_and_processes_are_the_kernels_of_that_name_or_state() {
        let meminfo = "MemTotal: 900 kB\nMemFree: 200 kB\nMemAvailable: 650 kB\nBuffers: 30 kB\n\
            Cached: 40 kB\nSwapCached: 5 kB\nShmem: 60 kB\nSwapTotal: 100 kB\nSwapFree: 70 kB\n";
        let (mem, swap) = memory(meminfo).unwrap();
        assert_eq!((mem.av_kb, mem.used_kb, mem.free_kb), (900, 700, 200));
        assert_eq!((mem.shrd_kb, mem.buff_kb, mem.cached_kb), (Some(60), 30, 40));
        assert_eq!((swap.av_kb, swap.used_kb, swap.free_kb), (100, 30, 70));
        let mut all = Processes::default();
        b"RSSDIZTtTX".iter().for_each(|letter| count(&mut all, *letter));
        let Processes { total, sleeping, running, zombie, stopped, .. } = all;
        assert_eq!((total, sleeping, running, zombie, stopped), (9, 4, 1, 1, 3));
    }

    #[test]
    fn interrupts_are_of_the_system_and_waiting_for_a_disk_is_idle() {
        let times = CpuTimes::parse("10 5 20 30 10 5 15 5 0 0").unwrap();
        let cpu = Cpu::from(times.split().unwrap());
        assert_eq!((cpu.user_pct, cpu.nice_pct), (10.0, 5.0));
        assert_eq!((cpu.system_pct, cpu.idle_pct, cpu.steal_pct), (40.0, 40.0, Some(5.0)));
    }

    #[test]
    fn a_program_may_be_called_anything_and_a_file_of_nonsense_is_an_error() {
        assert_eq!(state(b"7 (a) R 1) S 1 2"), Some(b'S'));
        assert_eq!(state(b"7 (\xff\xfe) Z"), Some(b'Z'));
        for cut in [&b"7 (a)"[..], b"7 (a) ", b"7 (a", b""] {
            assert_eq!(state(cut), None);
        }
        assert!(cpu_times("cpu0 1 2 3 4\n").is_err());
        assert!(memory("MemTotal: 12 kB\nMemFree: x kB\n").is_err());
    }

    #[test]
    fn figures_missing_in_old_kernels_are_not_0() {
        let meminfo = "MemTotal: 90 kB\nMemFree: 20 kB\nBuffers: 5 kB\nCached: 7 kB\n\
            SwapTotal: 0 kB\nSwapFree: 0 kB\n";
        let (mem, swap) = memory(meminfo).unwrap();
        assert_eq!((mem.used_kb, mem.shrd_kb), (70, None));
        let cpu = Cpu::from(CpuTimes::parse("10 0 20 70").unwrap().split().unwrap());
        assert_eq!((cpu.system_pct, cpu.idle_pct, cpu.iowait_pct), (20.0, 70.0, None));
        let head = Head { processes: Processes::default(), cpu, mem, swap };
        assert!(head.to_string().contains("20K free, n/a shrd, 5K buff"), "{head}");
        assert_eq!(Head::parse(&head.to_string()).unwrap(), head);
    }
}
