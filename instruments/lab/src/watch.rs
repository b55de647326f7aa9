//! Activity of the machine during a window, and the decision whether the window counts.
//!
//! Admission looks at the environment and never at results. A person who discards odd results finds
//! what was expected. What counts against a window is what others took from its CPUs: exactly, by
//! the run delay of each thread that has a CPU to itself; roughly, by CPU time that is not ours,
//! which the kernel tells in ticks of 10 ms; and by what the host says that it took.
//!
//! # Interrupts
//!
//! What is not ours is the programs' and the kernel's time of the CPUs (user, nice and system of
//! /proc/stat) less our own threads' time. Interrupts, hard and soft, are fields of their own
//! there; they are left out, ksoftirqd's with them, on every kernel and for every scenario. What
//! that means depends on the kernel:
//!
//! - With CONFIG_IRQ_TIME_ACCOUNTING they are in no thread's time either. What is not ours is then
//!   that of others' threads; time that interrupts took from us is not seen.
//! - Without it they are in the time of the thread that they interrupt. Where that is ours, what is
//!   not ours comes out too small by as much: of a side whose threads are in soft interrupts for a
//!   tenth of their time, others may have a tenth of its CPU unseen.
//!
//! Adding both fields would overstate it: interrupts on idle CPUs and in ksoftirqd would count as
//! other programs' time. They may be for the side's own packets, as in the scenario `host`, whose
//! links are soft interrupts and nothing else. No file of the kernel tells for whom an interrupt
//! came. So the figure is the least that others had, and a window is refused for nothing less
//! certain. On CPUs that a thread has to itself the run delay tells of others' threads, on either
//! kernel, and of little else. What ksoftirqd had of the CPU is known to the nanosecond, and comes
//! off. A soft interrupt that wakes the thread and goes on is in it, too: 2 to 5 µs a wake-up, of
//! workers that receive a stream of TCP. No file tells its length, so [`WAKE_DELAY_NS`] is all that
//! it may have, and some undisturbed windows of such workers are refused.
//!
//! Thresholds: the method's rule 4. Steal alone detects next to nothing (it read 0 or 1 while
//! windows took 65 times their time), and the run delay nearly all.

mod ksoftirqd;

use std::collections::BTreeMap;

use linerate_prof::proc::CpuTimes;
use linerate_sys::process::children_cpu_ns;

use crate::window::{ThreadTime, Window};
use crate::{Code, Error, Result};

/// Largest run delay (ready, but without a CPU) of a pinned thread, in per cent of its wall time,
/// beyond [`WAKE_DELAY_NS`] for each wake-up.
pub const RUN_DELAY_PCT_MAX: f64 = 1.0;

/// Run delay of a wake-up that nothing disturbs: the kernel takes the CPU out of idle. Of a thread
/// that wakes 18,000 times a second on a CPU of its own, 0.1 to 0.7 µs a wake-up were measured, and
/// less than 1 µs if another virtual CPU wakes it out of idle.
pub const WAKE_DELAY_NS: u64 = 1_000;

/// Largest share of the side's CPUs that other programs may use, in per cent.
pub const FOREIGN_CPU_PCT_MAX: f64 = 2.0;

/// The largest share of the side's CPUs that the host may take, in per cent.
pub const STEAL_PCT_MAX: f64 = 0.5;

/// Smallest share of a window for which its events must be counted, in per cent.
pub const PMU_RUNNING_PCT_MIN: f64 = 100.0;

/// Error of foreign CPU time for each CPU, in ticks: /proc/stat has the time of programs and of the
/// kernel in whole ticks, each rounded down.
const FOREIGN_TICKS_UNSURE: u64 = 2;

/// The fields of /proc/stat for time in programs: user, nice, system. The first two include the
/// guests' time. Interrupts, fields 5 and 6, are left out: the module explains why.
const BUSY: [usize; 3] = [0, 1, 2];
const STEAL: usize = 7;

const PATH: &str = "/proc/stat";
const WHAT: &str = "cannot watch the machine";

/// An observation of the machine.
#[derive(Debug)]
pub struct Watch {
    cpus: Vec<usize>,
    first: Reading,
}

/// The activity of the watched CPUs so far.
#[derive(Debug)]
pub struct Reading {
    times: Vec<CpuTimes>,
    ksoftirqd_ns: BTreeMap<usize, u64>,
    /// CPU time of this process and of its ended children.
    own_ns: u64,
}

/// The purposes for which a window or a pair counts, with the reason if it does not count for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// True if the rates count.
    pub rate: bool,
    /// True if the costs and the counts count.
    pub cost: bool,
    /// The reason why the window or the pair does not count for a purpose; `None` if it counts for
    /// all.
    pub reason: Option<String>,
}

impl Watch {
    /// Begins to observe `cpus`, or all CPUs if `cpus` is empty.
    ///
    /// Cost: reads /proc/stat, some ten microseconds and some more for each CPU and interrupt of
    /// the machine. Not within a window.
    ///
    /// # Errors
    /// `E-FILE` without /proc; `E-CPU` if one of them is off line.
    pub fn start(cpus: &[usize]) -> Result<Watch> {
        Ok(Watch { cpus: cpus.to_vec(), first: Reading::of(cpus)? })
    }

    /// Reads the activity so far; [`Watch::stop_at`] ends the watch at such a reading.
    ///
    /// # Errors
    /// As above.
    pub fn read(&self) -> Result<Reading> {
        Reading::of(&self.cpus)
    }

    /// Ends the watch now, and adds its results to `window`, as [`Watch::stop_at`] does.
    ///
    /// # Errors
    /// As above.
    pub fn stop(self, window: &mut Window) -> Result<()> {
        let last = self.read()?;
        self.stop_at(last, window)
    }

    /// Ends the watch at its reading `last`, and adds its results to `window`.
    ///
    /// What is not ours is what the CPUs did less what this process and its ended children had, on
    /// whatever CPU: exact where all CPUs are watched that they run on, which
    /// [`Bench::cpus`](crate::scenario::Bench::cpus) says, and else too little.
    ///
    /// # Errors
    /// As above.
    pub fn stop_at(self, last: Reading, window: &mut Window) -> Result<()> {
        let own_ns = last.own_ns.saturating_sub(self.first.own_ns);
        let since = last.times.iter().zip(&self.first.times).map(|(now, then)| now.since(then));
        let Some(since) = since.collect::<Option<Vec<CpuTimes>>>() else {
            return Err(off_line("time of a CPU went backwards: the CPU was offline in between"));
        };
        let ticks = |fields: &[usize]| -> u64 {
            let of = |times: &CpuTimes| fields.iter().filter_map(|&field| times.0[field]).sum();
            since.iter().map(of).fold(0, |sum: u64, ticks: u64| sum.saturating_add(ticks))
        };
        let busy_ns = ticks(&BUSY).saturating_mul(tick_ns());
        window.steal_ticks = Some(ticks(&[STEAL]));
        window.ksoftirqd_ns = last.ksoftirqd_ns;
        for (cpu, ns) in &mut window.ksoftirqd_ns {
            *ns = ns.saturating_sub(self.first.ksoftirqd_ns.get(cpu).copied().unwrap_or(*ns));
        }
        window.ksoftirqd_ns.retain(|_, ns| *ns > 0);
        let side_ns = own_ns.saturating_add(window.beside_cpu_ns.unwrap_or(0));
        window.foreign_cpu_ns = Some(busy_ns.saturating_sub(side_ns));
        window.cpus = Some(since.len() as u64);
        Ok(())
    }
}

impl Reading {
    /// Reads the activity of `cpus`, or of all CPUs if `cpus` is empty.
    fn of(cpus: &[usize]) -> Result<Reading> {
        let times = times_of(&read()?, cpus)?;
        Ok(Reading { times, ksoftirqd_ns: ksoftirqd::times_ns(), own_ns: own_ns() })
    }
}

/// Judges windows that belong together by their environment, not by their results: one disturbed
/// window excludes the others, too.
#[must_use]
pub fn admit(windows: &[&Window]) -> Admission {
    let against_rates: Vec<String> = windows.iter().flat_map(|w| against_rates(w)).collect();
    let against_costs: Vec<String> = windows.iter().flat_map(|w| against_costs(w)).collect();
    let (rate, cost) = (against_rates.is_empty(), against_costs.is_empty());
    let mut reasons = against_rates;
    for reason in against_costs {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    Admission { rate, cost, reason }
}

/// Returns the reasons why a window's wall time includes other work, so that its rates do not
/// count.
fn against_rates(window: &Window) -> Vec<String> {
    let alone = window.threads.iter().filter(|thread| has_a_cpu_to_itself(thread, window));
    let mut reasons: Vec<String> = alone.filter_map(|thread| waited(thread, window)).collect();
    reasons.extend(foreign(window));
    reasons.extend(stolen(window));
    reasons.extend(window.disturbed.clone());
    reasons.extend(window.void.clone());
    reasons
}

/// Returns the reasons why costs and counts of a window may include other work. CPU time and ticks
/// include time that the host took from the CPU while a thread ran on it.
fn against_costs(window: &Window) -> Vec<String> {
    let shared = window.pmu.iter().filter(|(_, count)| count.running_pct < PMU_RUNNING_PCT_MIN);
    // All events are counted as one group, so they share one percentage: one event suffices.
    let told = shared.take(1).map(|(name, count)| {
        format!(
            "{name} was counted for {:.1} % of the time (limit {PMU_RUNNING_PCT_MIN:.0} %)",
            count.running_pct
        )
    });
    let mut reasons: Vec<String> = told.collect();
    // A single thread has the same cost whenever it runs. If two threads exchange packets and one
    // waits for a CPU, the other's cache lines go cold and its ring runs empty, and these costs are
    // not the side's own.
    if window.threads.len() > 1 {
        let alone = window.threads.iter().filter(|thread| has_a_cpu_to_itself(thread, window));
        reasons.extend(alone.filter_map(|thread| waited(thread, window)));
    }
    reasons.extend(stolen(window));
    reasons.extend(window.void.clone());
    reasons
}

/// Returns true if the thread has a CPU to itself, so that its run delay is a disturbance. For
/// threads that share a CPU, or that may gather on one, run delay is part of the workload; then
/// only the CPU time of others counts.
fn has_a_cpu_to_itself(thread: &ThreadTime, window: &Window) -> bool {
    let on_it = |cpu| window.threads.iter().filter(|other| other.cpu == Some(cpu)).count();
    let is_alone = |cpu| on_it(cpu) == 1 && !window.shared_cpus.contains(&cpu);
    thread.cpu.is_some_and(is_alone)
}

fn waited(thread: &ThreadTime, window: &Window) -> Option<String> {
    // A thread is also given a CPU after each preemption, and that wait is what others took.
    let wake_ups = thread.runs.saturating_sub(thread.nivcsw);
    let of_wake_ups = wake_ups.saturating_mul(WAKE_DELAY_NS);
    // An upper bound: this time begins at `Watch::start`, before the preparation of the window.
    let of_interrupts = thread.cpu.and_then(|cpu| window.ksoftirqd_ns.get(&cpu)).copied();
    let excused = of_wake_ups.saturating_add(of_interrupts.unwrap_or(0));
    let pct = pct(thread.run_delay_ns.saturating_sub(excused), thread.wall_ns);
    (pct > RUN_DELAY_PCT_MAX).then(|| {
        format!("run delay {pct:.1} % of {}'s window (limit {RUN_DELAY_PCT_MAX} %)", thread.role)
    })
}

fn foreign(window: &Window) -> Option<String> {
    let cpus = window.cpus?.max(1);
    // CPU time below the error of the ticks is not reported; in short windows the run delay shows
    // the time that other programs took.
    let unsure_ns = cpus.saturating_mul(FOREIGN_TICKS_UNSURE).saturating_mul(tick_ns());
    let sure_ns = window.foreign_cpu_ns?.checked_sub(unsure_ns)?;
    let pct = pct(sure_ns, window.wall_ns.saturating_mul(cpus));
    (pct > FOREIGN_CPU_PCT_MAX).then(|| {
        let s = if cpus == 1 { "" } else { "s" };
        format!("others had at least {pct:.1} % of {cpus} CPU{s} (limit {FOREIGN_CPU_PCT_MAX} %)")
    })
}

fn stolen(window: &Window) -> Option<String> {
    let (ticks, cpus) = (window.steal_ticks?, window.cpus?.max(1));
    let stolen_ns = ticks.saturating_mul(tick_ns());
    let pct = pct(stolen_ns, window.wall_ns.saturating_mul(cpus));
    let ms = stolen_ns / 1_000_000;
    (pct > STEAL_PCT_MAX)
        .then(|| format!("the host took {ms} ms, {pct:.1} % (limit {STEAL_PCT_MAX} %)"))
}

/// Returns the percentage of a part; 0 of 0 is 0 %, and a positive part of 0 is divided by 1 ns.
fn pct(part_ns: u64, whole_ns: u64) -> f64 {
    if part_ns == 0 { 0.0 } else { 100.0 * part_ns as f64 / whole_ns.max(1) as f64 }
}

fn read() -> Result<String> {
    std::fs::read_to_string(PATH)
        .map_err(|e| Error::new(Code::File, WHAT, format!("{PATH}: {e}")).fix("mount /proc"))
}

/// Returns the times of `cpus` in the order given, or of every online CPU if `cpus` is empty.
fn times_of(stat: &str, cpus: &[usize]) -> Result<Vec<CpuTimes>> {
    let of_one = |line: &str| {
        let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        Some((number.parse::<usize>().ok()?, CpuTimes::parse(times)?))
    };
    let all: Vec<(usize, CpuTimes)> = stat.lines().filter_map(of_one).collect();
    if cpus.is_empty() {
        return Ok(all.into_iter().map(|(_, times)| times).collect());
    }
    let of = |cpu: &usize| {
        let times = all.iter().find(|(number, _)| number == cpu).map(|(_, times)| *times);
        times.ok_or_else(|| off_line(format!("{PATH} has no line of CPU {cpu}")))
    };
    cpus.iter().map(of).collect()
}

fn off_line(why: impl Into<String>) -> Error {
    Error::new(Code::Cpu, WHAT, why).fix("cat /sys/devices/system/cpu/online")
}

fn own_ns() -> u64 {
    let own_ns = u64::try_from(linerate_prof::cpu_time().as_nanos()).unwrap_or(u64::MAX);
    own_ns.saturating_add(children_cpu_ns())
}

/// Returns the length of a tick, which the kernel reports: 10 ms on every known architecture.
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::PmuCount;

    const WALL_NS: u64 = 50_000_000;

    fn thread(role: &str, cpu: Option<usize>, run_delay_ns: u64) -> ThreadTime {
        let wall_ns = WALL_NS;
        ThreadTime { role: role.into(), cpu, wall_ns, run_delay_ns, ..ThreadTime::default() }
    }

    fn window(threads: Vec<ThreadTime>) -> Window {
        let watched = Window { cpus: Some(2), ..Window::of(threads) };
        Window { foreign_cpu_ns: Some(0), steal_ticks: Some(0), ..watched }
    }

    fn quiet() -> Window {
        window(vec![thread("worker 0", Some(0), 499_000), thread("traffic", Some(1), 0)])
    }

    fn refused(window: Window) -> String {
        let admission = admit(&[&quiet(), &window, &quiet()]);
        assert_eq!((admission.rate, admission.cost), (false, true), "{admission:?}");
        admission.reason.unwrap()
    }

    #[test]
    fn a_quiet_pair_is_admitted_for_everything() {
        let admission = admit(&[&quiet(), &quiet(), &quiet()]);
        assert_eq!(admission, Admission { rate: true, cost: true, reason: None });
    }

    #[test]
    fn a_thread_that_waited_for_its_cpu_spoils_rates_and_no_costs() {
        let waited = window(vec![thread("worker 0", Some(0), 6_150_000)]);
        assert_eq!(refused(waited), "run delay 12.3 % of worker 0's window (limit 1 %)");
    }

    #[test]
    fn wake_ups_themselves_are_no_disturbance_and_hide_none() {
        let woken =
            |run_delay_ns| ThreadTime { runs: 900, ..thread("receiver", Some(0), run_delay_ns) };
        assert!(admit(&[&window(vec![woken(1_399_000)])]).rate);
        let reason = refused(window(vec![woken(1_900_000)]));
        assert_eq!(reason, "run delay 2.0 % of receiver's window (limit 1 %)");
    }

    #[test]
    fn returns_after_preemptions_are_no_wake_ups_and_excuse_no_delay() {
        let preempted =
            ThreadTime { runs: 900, nivcsw: 800, ..thread("receiver", Some(0), 1_399_000) };
        let reason = refused(window(vec![preempted]));
        assert_eq!(reason, "run delay 2.6 % of receiver's window (limit 1 %)");
    }

    #[test]
    fn a_thread_that_waited_for_soft_interrupts_of_its_cpu_is_not_disturbed() {
        let waited = |cpu| Window {
            ksoftirqd_ns: [(cpu, 5_700_000)].into(),
            ..window(vec![thread("worker 0", Some(0), 6_150_000)])
        };
        assert!(admit(&[&waited(0)]).rate);
        assert!(refused(waited(1)).contains("12.3 % of worker 0's"), "another CPU's");
    }

    #[test]
    fn one_delayed_thread_of_a_pair_rejects_costs_too() {
        let two = |delay_ns| Window {
            threads: vec![thread("alloc", Some(0), 0), thread("free", Some(1), delay_ns)],
            ..quiet()
        };
        assert!(admit(&[&two(WALL_NS / 200)]).cost);
        let admission = admit(&[&two(WALL_NS / 4)]);
        assert!(!admission.cost && !admission.rate);
        let reason = admission.reason.unwrap();
        assert_eq!(reason.matches("run delay 25.0 % of free's").count(), 1, "{reason}");
    }

    #[test]
    fn where_threads_share_a_cpu_their_waiting_is_the_workload() {
        let crowd = |cpu| (0..8).map(|n| thread(&format!("host {n}"), cpu, WALL_NS / 2)).collect();
        for cpu in [None, Some(1)] {
            let crowded = window(crowd(cpu));
            assert!(admit(&[&crowded]).rate, "{cpu:?}");
            // Time of other programs still counts: 100 ms of 200 ms on two CPUs, less 40 ms of tick
            // error.
            let beside = Window { foreign_cpu_ns: Some(100_000_000), ..crowded };
            let reason = refused(beside);
            assert_eq!(reason, "others had at least 60.0 % of 2 CPUs (limit 2 %)");
        }
    }

    #[test]
    fn disturbance_below_a_tick_does_not_reject_a_window() {
        let within = Window { foreign_cpu_ns: Some(40_000_000), ..quiet() };
        assert!(admit(&[&within]).rate);
        // In a window of 10 s the same time is reported, and so is 3 % of two CPUs.
        let long = |foreign_cpu_ns| Window {
            wall_ns: 10_000_000_000,
            foreign_cpu_ns: Some(foreign_cpu_ns),
            ..quiet()
        };
        assert!(admit(&[&long(440_000_000)]).rate);
        assert!(refused(long(640_000_000)).contains("at least 3.0 % of 2 CPUs"));
    }

    #[test]
    fn time_that_the_host_took_spoils_rates_and_costs() {
        let stolen = Window { steal_ticks: Some(1), ..quiet() };
        let admission = admit(&[&quiet(), &stolen, &quiet()]);
        assert_eq!((admission.rate, admission.cost), (false, false), "ticks run while it is taken");
        assert_eq!(admission.reason.unwrap(), "the host took 10 ms, 10.0 % (limit 0.5 %)");
        let long = Window { steal_ticks: Some(1), wall_ns: 1_000_000_000, ..quiet() };
        assert!(admit(&[&long]).rate);
    }

    #[test]
    fn a_scenario_may_say_itself_that_it_was_disturbed() {
        let why = "the generator fell behind by 2 ms";
        assert_eq!(refused(Window { disturbed: Some(why.into()), ..quiet() }), why);
    }

    #[test]
    fn window_that_its_program_declares_void_is_rejected() {
        let why = "2 of 15 repetitions had their CPUs to themselves";
        let admission = admit(&[&quiet(), &Window { void: Some(why.into()), ..quiet() }]);
        assert_eq!((admission.rate, admission.cost), (false, false));
        assert_eq!(admission.reason.as_deref(), Some(why));
    }

    #[test]
    fn a_worker_beside_the_traffic_waits_for_it_and_is_not_disturbed() {
        let workers =
            || vec![thread("worker 0", Some(0), 0), thread("worker 1", Some(1), WALL_NS / 3)];
        let alone = window(workers());
        let admission = admit(&[&alone]);
        assert_eq!((admission.rate, admission.cost), (false, false));
        let crowded = Window { shared_cpus: vec![1], ..window(workers()) };
        assert_eq!(admit(&[&crowded]), Admission { rate: true, cost: true, reason: None });
        // A thread that shares another CPU does not excuse the run delay of a thread with a CPU to
        // itself.
        let elsewhere = Window { shared_cpus: vec![0], ..window(workers()) };
        assert!(!admit(&[&elsewhere]).cost);
    }

    #[test]
    fn interrupt_time_is_not_counted_as_busy() {
        let times = |line: &str| CpuTimes::parse(line).unwrap();
        let busy = |times: CpuTimes| BUSY.iter().filter_map(|&field| times.0[field]).sum::<u64>();
        assert_eq!(busy(times("5 3 2 900 80 700 600 0 0 0")), 10);
    }

    #[test]
    fn counters_that_were_shared_spoil_costs_and_no_rates() {
        let half = PmuCount { value: 7, running_pct: 50.0 };
        let pmu = ["cycles", "instructions"].map(|name| (name.to_owned(), half));
        let shared = Window { pmu: pmu.into(), ..quiet() };
        let admission = admit(&[&quiet(), &shared]);
        assert_eq!((admission.rate, admission.cost), (true, false));
        let reason = admission.reason.unwrap();
        assert_eq!(reason, "cycles was counted for 50.0 % of the time (limit 100 %)");
    }

    #[test]
    fn unknown_disturbance_does_not_reject_a_window() {
        assert!(admit(&[&Window::default()]).rate);
        assert!(admit(&[]).rate);
    }

    #[test]
    fn the_named_cpus_are_read_and_one_that_is_off_line_is_an_error() {
        let stat = "cpu  9 0 9 9 0 0 0 9 0 0\ncpu0 1 0 2 3 0 0 0 4 0 0\ncpu2 5 0 6 7 0 0 0 8 0 0\n\
            intr 5\n";
        assert_eq!(times_of(stat, &[2]).unwrap()[0].0[STEAL], Some(8));
        assert_eq!(times_of(stat, &[]).unwrap().len(), 2);
        let e = times_of(stat, &[0, 1]).unwrap_err();
        assert_eq!((e.code, e.why.as_str()), (Code::Cpu, "/proc/stat has no line of CPU 1"));
    }

    #[test]
    fn watch_counts_what_happened_up_to_its_last_reading() {
        let at = |user: u64, steal: u64, ksoftirqd_ns: u64, own_ns: u64| {
            let line = format!("cpu3 {user} 0 0 900 0 0 0 {steal} 0 0\n");
            let ksoftirqd_ns = [(3, ksoftirqd_ns)].into();
            Reading { times: times_of(&line, &[3]).unwrap(), ksoftirqd_ns, own_ns }
        };
        let watch = Watch { cpus: vec![3], first: at(10, 1, 500, 0) };
        let mut window = Window::default();
        watch.stop_at(at(15, 3, 700, 2 * tick_ns()), &mut window).unwrap();
        assert_eq!(window.foreign_cpu_ns, Some(3 * tick_ns()));
        assert_eq!((window.steal_ticks, window.cpus), (Some(2), Some(1)));
        assert_eq!(window.ksoftirqd_ns, BTreeMap::from([(3, 200)]));
    }

    #[test]
    fn our_own_work_is_not_foreign() {
        let has_no_file = |e: &Error| e.code == Code::File && e.why.contains("No such file");
        let Some(watch) = linerate_testing::unless(Watch::start(&[]), has_no_file) else { return };
        let start = own_ns();
        while own_ns() < start + 300_000_000 {
            std::hint::spin_loop();
        }
        let busy: u64 = times_of(&read().unwrap(), &[])
            .unwrap()
            .iter()
            .zip(&watch.first.times)
            .filter_map(|(now, before)| now.since(before))
            .map(|times| BUSY.iter().filter_map(|&field| times.0[field]).sum::<u64>())
            .sum();
        let mut window = Window::default();
        watch.stop(&mut window).unwrap();
        // At least 300 ms of the busy time were this test's own, less the rounding of the ticks.
        let foreign_ns = window.foreign_cpu_ns.unwrap();
        let later_ns = 200_000_000;
        assert!(foreign_ns + 250_000_000 < busy * tick_ns() + later_ns, "{foreign_ns} of {busy}");
        assert!(window.steal_ticks.is_some() && window.cpus > Some(0), "{window:?}");
    }

    #[test]
    fn time_of_the_sides_programs_is_not_foreign_nor_what_we_had_before() {
        let at = |user: u64, ksoftirqd_ns: &[(usize, u64)], own_ns: u64| {
            let line = format!("cpu3 {user} 0 0 900 0 0 0 0 0 0\n");
            let ksoftirqd_ns = ksoftirqd_ns.iter().copied().collect();
            Reading { times: times_of(&line, &[3]).unwrap(), ksoftirqd_ns, own_ns }
        };
        let first = at(10, &[(3, 500), (4, 50)], 7 * tick_ns());
        let watch = Watch { cpus: vec![3], first };
        let mut window = Window { beside_cpu_ns: Some(tick_ns()), ..Window::default() };
        // Of 8 ticks, 2 are ours, and 1 is of the side's programs.
        let last = at(18, &[(3, 500), (4, 80), (5, 1000)], 9 * tick_ns());
        watch.stop_at(last, &mut window).unwrap();
        assert_eq!(window.foreign_cpu_ns, Some(5 * tick_ns()));
        let known = BTreeMap::from([(4, 30)]);
        assert_eq!(window.ksoftirqd_ns, known, "that of CPU 3 did nothing, of 5 nothing is known");
    }
}
