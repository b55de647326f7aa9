//! Parser of /proc/stat: CPU time by kind, interrupts, context switches, processes.
//!
//! Source: fs/proc/stat.c, proc_stat(5).

use super::{Kind, Readings};
use crate::proc::split::CpuTimes;

/// Reads CPU times, and the counters after them.
pub(crate) fn stat(text: &str, readings: &mut Readings) {
    // Read the tick rate from the kernel, although it is 100 Hz on every known architecture.
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    for (name, times) in cpu_lines(text) {
        let Some(times) = times else {
            readings.unread += 1;
            continue;
        };
        for (field, ticks) in times.fields() {
            let ns = ticks.saturating_mul(tick_ns);
            readings.counter(format_args!("stat/{name}/{field}"), "ns", ns);
        }
    }
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (unit, kind) = match words.next() {
            // Read only the first number, the sum; the numbers after it are also in
            // /proc/interrupts, by CPU.
            Some("intr") => ("interrupts", Kind::Counter),
            Some("softirq") => ("softirqs", Kind::Counter),
            Some("ctxt") => ("switches", Kind::Counter),
            Some("processes") => ("forks", Kind::Counter),
            Some("procs_running" | "procs_blocked") => ("threads", Kind::Gauge),
            _ => continue,
        };
        let key = line.split_ascii_whitespace().next().unwrap_or_default();
        match words.next().and_then(|word| word.parse().ok()) {
            Some(value) => readings.put(format_args!("stat/{key}"), unit, kind, "", value),
            None => readings.unread += 1,
        }
    }
}

/// Returns the lines of CPU time: `cpu` for the machine, `cpuN` for each online CPU, with `None`
/// for an invalid line.
pub(crate) fn cpu_lines(text: &str) -> impl Iterator<Item = (&str, Option<CpuTimes>)> {
    text.lines().filter(|line| line.starts_with("cpu")).map(|line| {
        let (name, numbers) = line.split_once(' ').unwrap_or((line, ""));
        (name, CpuTimes::parse(numbers))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn cpu_time_is_in_nanoseconds_and_interrupts_are_the_sum() {
        let text = "cpu  3 0 4 5 6 0 7 8 0 0\ncpu0 3 0 4 5 6 0 7 8 0 0\nintr 42 1 2 3\nctxt 9\n\
            btime 1795231200\nprocesses 11\nprocs_running 3\nprocs_blocked 0\nsoftirq 12 0 1\n";
        let (said, unread) = found(stat, text);
        assert_eq!((said.len(), unread), (26, 0));
        assert_eq!(said[10], "stat/cpu0/user 30000000 ns");
        assert_eq!(said[16], "stat/cpu0/softirq 70000000 ns");
        assert_eq!(said[20], "stat/intr 42 interrupts");
        assert_eq!(said[23], "stat/procs_running 3 threads");
    }

    #[test]
    fn a_line_that_is_not_understood_is_counted() {
        assert_eq!(found(stat, "cpu0 1 2\ncpu1 a b c d\ncpu\nctxt\nintr -1\n"), (vec![], 5));
    }
}
