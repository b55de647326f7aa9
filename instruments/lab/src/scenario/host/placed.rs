//! Placement of a side's adapters: the interrupts of the engine's devices, and the cost of all of
//! an adapter's threads.
//!
//! ```text
//!  sender ─ veth ─► NAPI's thread ─► worker ─ veth ─► TCP, on the worker's CPU ─► reader
//!                   interrupt        poller                                       process
//! ```
//!
//! On every such side the engine's devices have threads for NAPI; placements differ by where these,
//! the worker and the reader may run, and by nothing else.

use std::fs;

use linerate_ctl::affinity::{InterruptGuard, Pin};

use super::config::Config;
use super::hosts::Hosts;
use crate::Result;

/// The interrupts of a side's devices, and the threads that are counted.
#[derive(Debug)]
pub(super) struct Placed {
    _interrupts: Vec<InterruptGuard>,
    napi: Vec<i32>,
    workers: Vec<i32>,
    readers: Vec<i32>,
    notes: Vec<String>,
}

/// The counts of a side's threads so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub napi_ns: u64,
    workers_ns: u64,
    readers_ns: u64,
    /// Context switches, if the kernel counts them; the next is the number of moves to another CPU.
    switches: Option<u64>,
    migrations: Option<u64>,
}

impl Placed {
    /// Gives the engine's devices threads for NAPI and binds these threads, if requested; returns
    /// `None` for a side with a fixed placement. The ports must be open.
    ///
    /// # Errors
    /// Those of [`InterruptGuard`]: `E-UNSUPPORTED` before Linux 5.12.
    pub fn open(
        config: &Config,
        hosts: &Hosts,
        workers: &[i32],
        readers: Vec<i32>,
    ) -> Result<Option<Placed>> {
        if config.roamed.is_empty() {
            return Ok(None);
        }
        let mut interrupts = Vec::new();
        for (_, end, adapter) in hosts.ends(config) {
            let mut guard = hosts.middle.run(|| InterruptGuard::of(&end))??;
            guard.pin(&config.worker_cpus(adapter))?;
            interrupts.push(guard);
        }
        let napi = interrupts.iter().flat_map(InterruptGuard::threads).collect();
        let mut notes: Vec<String> =
            interrupts.iter().flat_map(InterruptGuard::notes).cloned().collect();
        notes.dedup();
        let workers = workers.to_vec();
        Ok(Some(Placed { _interrupts: interrupts, napi, workers, readers, notes }))
    }

    /// Returns remarks on other programs that may have undone the placement.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the numbers of the threads that are counted.
    pub fn threads(&self) -> Vec<i32> {
        [&self.napi[..], &self.workers, &self.readers].concat()
    }

    /// Returns the counts so far.
    pub fn taken(&self) -> Taken {
        let cpu_ns = |threads: &[i32]| threads.iter().filter_map(|thread| cpu_ns(*thread)).sum();
        let all = self.threads();
        let count = |name: &str| all.iter().map(|thread| accounted(*thread, name)).sum();
        Taken {
            napi_ns: cpu_ns(&self.napi),
            workers_ns: cpu_ns(&self.workers),
            readers_ns: cpu_ns(&self.readers),
            switches: count("nr_switches"),
            migrations: count("se.nr_migrations"),
        }
    }
}

impl Taken {
    /// Returns the CPU time of all threads.
    pub fn path_ns(&self) -> u64 {
        self.napi_ns + self.workers_ns + self.readers_ns
    }

    /// Returns the figures of a window whose start was `before`.
    pub fn since(&self, before: &Taken) -> Vec<(String, f64)> {
        let ns = |of: fn(&Taken) -> u64| of(self).saturating_sub(of(before)) as f64;
        let napi_ns = ns(|taken| taken.napi_ns);
        let readers_ns = ns(|taken| taken.readers_ns);
        let path_ns = ns(Taken::path_ns);
        let mut figures = vec![
            ("napi_cpu_ns".to_owned(), napi_ns),
            ("readers_cpu_ns".to_owned(), readers_ns),
            ("path_cpu_ns".to_owned(), path_ns),
        ];
        for (name, now, then) in [
            ("switches", self.switches, before.switches),
            ("migrations", self.migrations, before.migrations),
        ] {
            let since = now.zip(then).map(|(now, then)| now.saturating_sub(then));
            figures.extend(since.map(|since| (name.to_owned(), since as f64)));
        }
        figures
    }
}

/// Returns the CPU time of a thread, a kernel's too.
///
/// Source: Documentation/scheduler/sched-stats.rst.
fn cpu_ns(thread: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns one of the scheduler's counts of a thread; `None` if the kernel was built without them.
fn accounted(thread: i32, name: &str) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{thread}/sched")).ok()?, name)
}

fn field(sched: &str, name: &str) -> Option<u64> {
    let line = sched.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_start().strip_prefix(':')?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_the_scheduler_is_found_by_its_whole_name() {
        let text = "x (7, #threads: 1)\n----\nse.nr_migrations :   12\nnr_switches :  345\n";
        assert_eq!(
            (field(text, "nr_switches"), field(text, "se.nr_migrations")),
            (Some(345), Some(12))
        );
        assert_eq!((field(text, "nr_switch"), field(text, "nr_voluntary_switches")), (None, None));
    }

    #[test]
    fn figures_of_a_window_are_differences_and_what_is_not_told_is_left_out() {
        let before =
            Taken { napi_ns: 5, workers_ns: 7, readers_ns: 1, switches: Some(3), migrations: None };
        let after =
            Taken { napi_ns: 15, workers_ns: 27, readers_ns: 31, switches: Some(9), ..before };
        let figures = after.since(&before);
        let of =
            |name: &str| figures.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!(
            (of("path_cpu_ns"), of("switches"), of("migrations")),
            (Some(60.0), Some(6.0), None)
        );
    }
}
