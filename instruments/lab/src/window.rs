//! Raw figures of one side in a time interval, from which all other values are computed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The figures of one side in one time interval.
///
/// Its figures have names, so that an experiment's file can say `cost_ns / packets`:
/// [`Window::figure`] has them all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Window {
    /// Wall time between the two clock readings.
    pub wall_ns: u64,
    /// Sum of the times that the side's threads were ready without a CPU.
    pub run_delay_ns: u64,
    /// Sum of the CPU times of the side's threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Number of preemptions of the side's threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nivcsw: Option<u64>,
    /// Time that the host took from the CPUs of this side, in ticks of USER_HZ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_ticks: Option<u64>,
    /// CPU time of other programs on the CPUs of this side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_cpu_ns: Option<u64>,
    /// CPU time of another process that belongs to the side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside_cpu_ns: Option<u64>,
    /// CPU time of ksoftirqd, by CPU: of all CPUs on which it ran, while the window was watched,
    /// which may be longer than the window itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ksoftirqd_ns: BTreeMap<usize, u64>,
    /// The number of CPUs that `steal_ticks` and `foreign_cpu_ns` cover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// Number of packets that passed.
    pub packets: u64,
    /// Bytes of these packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of times that a thread was woken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<u64>,
    /// Number of system calls, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscalls: Option<u64>,
    /// Events of the CPUs by name, if they can be counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pmu: BTreeMap<String, PmuCount>,
    /// Figures of each thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadTime>,
    /// The other figures of the scenario, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// The reason why the window's rates are invalid although no other program used its CPUs: a
    /// generator that fell behind, a peer that stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<String>,
    /// The reason why all figures of the window are invalid, as reported by the measured program
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
    /// CPUs of the side that also run threads outside [`Window::threads`]: run delay on these CPUs
    /// is part of the workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_cpus: Vec<usize>,
}

/// The count of an event, with the share of time in which it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PmuCount {
    /// The number of events.
    pub value: u64,
    /// Share of the time in which the event was counted, in per cent: below 100 the count is an
    /// estimate.
    pub running_pct: f64,
}

/// The cost of one thread in a window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ThreadTime {
    /// The purpose of the thread, such as `worker 0` or `traffic`.
    pub role: String,
    /// The CPU to which the thread is pinned; `None` if it is not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Wall time of the thread.
    pub wall_ns: u64,
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time ready but without a CPU.
    pub run_delay_ns: u64,
    /// Number of times that it was given a CPU; 0 in documents that do not have it.
    #[serde(default)]
    pub runs: u64,
    /// Number of preemptions.
    pub nivcsw: u64,
    /// Events of the CPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pmu: BTreeMap<String, PmuCount>,
    /// True if the thread's cost belongs to the side: false for a generator or a sink.
    pub measured: bool,
}

/// The figures that windows of every scenario have, with their meaning.
pub const COMMON: [(&str, &str); 10] = [
    ("wall_ns", "wall time"),
    ("seconds", "wall time, in seconds"),
    ("run_delay_ns", "time that its threads were ready and had no CPU"),
    ("cost_ns", "each thread's wall time less its run delay: what threads cost that never sleep"),
    ("cpu_ns", "time on a CPU: what threads cost that sleep"),
    ("nivcsw", "times that a thread was taken off its CPU"),
    ("packets", "packets that went through"),
    ("bytes", "their bytes"),
    ("wakeups", "times that a thread was woken"),
    ("syscalls", "system calls"),
];

/// Returns the name of the figure that marks `figure` as a lower bound.
pub(crate) fn at_least(figure: &str) -> String {
    format!("{figure}_at_least")
}

impl Window {
    /// Returns a window of threads that ran at the same time; its costs are those of the measured
    /// threads.
    #[must_use]
    pub fn of(threads: Vec<ThreadTime>) -> Window {
        let measured = || threads.iter().filter(|thread| thread.measured);
        let mut pmu: BTreeMap<String, PmuCount> = BTreeMap::new();
        for (name, count) in measured().flat_map(|thread| &thread.pmu) {
            let sum = pmu.entry(name.clone()).or_insert(PmuCount { value: 0, running_pct: 100.0 });
            sum.value += count.value;
            sum.running_pct = sum.running_pct.min(count.running_pct);
        }
        // Drop an event that not every measured thread could count: its sum would be too low.
        pmu.retain(|name, _| measured().all(|thread| thread.pmu.contains_key(name)));
        Window {
            wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
            run_delay_ns: measured().map(|thread| thread.run_delay_ns).sum(),
            cpu_ns: Some(measured().map(|thread| thread.cpu_ns).sum()),
            nivcsw: Some(measured().map(|thread| thread.nivcsw).sum()),
            pmu,
            threads,
            ..Window::default()
        }
    }

    /// Returns true if a figure is a lower bound, because some of its values were not known when
    /// the window ended.
    pub(crate) fn is_at_least(&self, figure: &str) -> bool {
        self.figures.contains_key(&at_least(figure))
    }

    /// Returns a figure by its name: one of [`COMMON`], `pmu.NAME`, or one of the scenario's. If
    /// the window has no count of a common name, a program that is a side may say it.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        let of = |n: Option<u64>| n.map(|n| n as f64).or_else(|| self.figures.get(name).copied());
        match name {
            "wall_ns" => of(Some(self.wall_ns)),
            "seconds" => Some(self.wall_ns as f64 / 1e9),
            "run_delay_ns" => of(Some(self.run_delay_ns)),
            "cost_ns" => of(Some(self.cost_ns())),
            "cpu_ns" => of(self.cpu_ns),
            "nivcsw" => of(self.nivcsw),
            "packets" => of(Some(self.packets)),
            "bytes" => of(self.bytes),
            "wakeups" => of(self.wakeups),
            "syscalls" => of(self.syscalls),
            _ => match name.strip_prefix("pmu.") {
                Some(event) => self.pmu.get(event).map(|count| count.value as f64),
                None => self.figures.get(name).copied(),
            },
        }
    }

    /// Returns the wall time of the measured threads, each by its own clock, less their run delay;
    /// the window's own wall time if it has no figures by thread.
    #[must_use]
    pub fn cost_ns(&self) -> u64 {
        let measured = self.threads.iter().filter(|thread| thread.measured);
        let costs = measured.map(|thread| thread.wall_ns.saturating_sub(thread.run_delay_ns));
        costs
            .reduce(u64::saturating_add)
            .unwrap_or_else(|| self.wall_ns.saturating_sub(self.run_delay_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(role: &str, measured: bool) -> ThreadTime {
        let pmu = [("instructions".to_owned(), PmuCount { value: 70, running_pct: 100.0 })];
        ThreadTime {
            role: role.into(),
            wall_ns: 1000,
            cpu_ns: 900,
            run_delay_ns: 50,
            runs: 2,
            nivcsw: 1,
            measured,
            pmu: pmu.into(),
            cpu: None,
        }
    }

    #[test]
    fn a_generators_cost_is_not_the_sides() {
        let window = Window::of(vec![thread("worker", true), thread("gen", false)]);
        assert_eq!((window.cost_ns(), window.cpu_ns), (950, Some(900)));
        assert_eq!(window.figure("pmu.instructions"), Some(70.0));
        let window = Window::of(vec![thread("a", true), thread("b", true)]);
        assert_eq!((window.cost_ns(), window.figure("pmu.instructions")), (1900, Some(140.0)));
    }

    #[test]
    fn a_program_may_say_a_common_figure_that_the_window_has_not() {
        let mut window = Window { packets: 5, ..Window::default() };
        window.figures.extend([("bytes".into(), 700.0), ("packets".into(), 9.0)]);
        assert_eq!(["bytes", "packets"].map(|name| window.figure(name)), [Some(700.0), Some(5.0)]);
        window.bytes = Some(600);
        assert_eq!(window.figure("bytes"), Some(600.0));
    }

    #[test]
    fn a_thread_that_was_measured_longer_does_not_make_the_others_cost_more() {
        let long = ThreadTime { wall_ns: 3000, ..thread("gen", false) };
        let late = ThreadTime { wall_ns: 1500, ..thread("b", true) };
        let window = Window::of(vec![thread("a", true), late, long]);
        assert_eq!((window.wall_ns, window.cost_ns()), (3000, 950 + 1450));
        let plain = Window { wall_ns: 1000, run_delay_ns: 1200, ..Window::default() };
        assert_eq!(plain.cost_ns(), 0, "a delay is in no window longer than the window");
        let plain = Window { run_delay_ns: 200, ..plain };
        assert_eq!(plain.cost_ns(), 800);
    }

    #[test]
    fn an_event_that_one_thread_could_not_count_is_unknown() {
        let blind = ThreadTime { pmu: BTreeMap::new(), ..thread("b", true) };
        let window = Window::of(vec![thread("a", true), blind]);
        assert_eq!(window.figure("pmu.instructions"), None);
    }

    #[test]
    fn every_common_figure_has_a_value_or_is_optional() {
        let whole =
            Window { cpu_ns: Some(1), nivcsw: Some(1), bytes: Some(1), ..Window::default() };
        let whole = Window { wakeups: Some(1), syscalls: Some(1), ..whole };
        assert!(COMMON.iter().all(|(name, _)| whole.figure(name).is_some()));
        assert_eq!(whole.figure("hits"), None);
    }
}
