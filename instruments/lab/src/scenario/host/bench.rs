//! One side: hosts, an engine between them, traffic. A window at a time.
//!
//! ```text
//!  read ─ traffic and workers go ─────────── until ─ workers stand still ─ read
//!                                                    workers carry on, unmeasured, until all has
//!                                                    arrived, and stand still
//! ```

mod machine;
mod remarks;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use linerate_prof::profile::{Profile, Row};
use linerate_sys::bpf::Link;
use linerate_sys::clock::cpu_time;
use linerate_sys::tsc::ticks;

use super::config::{Config, Port, Workload};
use super::counters::{Counters, Kernel};
use super::crew::{Counts, Load, Round, Told, open_load};
use super::datagrams::Datagrams;
use super::hosts::Hosts;
use super::path::Path;
use super::placed::{Placed, Taken};
use super::split::Split;
use crate::Result;
use crate::scenario::pause::{look_until, pause};
use crate::scenario::pool_figures::{self, Reading};
use crate::scenario::{Bench, Finished, Ledger, check, free_matrix};
use crate::window::Window;
use remarks::{Remarks, offered_pct};

/// Time without a packet after which the path counts as empty.
pub(super) const QUIET: Duration = Duration::from_millis(3);
/// Longest wait for an empty path.
const QUIET_WAIT: Duration = Duration::from_millis(500);
/// Samples for each second of a worker's CPU time: a prime number, so that they do not run in step
/// with holds and with the kernel's timers.
const PROFILE_HZ: u32 = 1999;

/// A side, ready to run. Its fields are dropped in this order: traffic, workers, hosts.
pub(super) struct HostBench {
    config: Config,
    load: Box<dyn Load>,
    probe: Option<Datagrams>,
    counters: Counters,
    /// The kernel's counts before the first window.
    first: Option<Kernel>,
    rounds: u64,
    placed: Option<Placed>,
    path: Path,
    /// The injected fault of a device, which is removed on drop.
    _planted: Vec<Link>,
    hosts: Hosts,
    remarks: Remarks,
}

/// The readings at the start or end of a window, while the workers pause.
struct Edge {
    reading: Reading,
    counts: Counts,
    kernel: Kernel,
    late: Option<u64>,
    taken: Option<Taken>,
    split: Split,
    /// CPU time of this process.
    cpu: Duration,
    at: Instant,
    ticks: u64,
}

impl HostBench {
    /// Sets up the side: hosts, engine, connections.
    pub fn open(config: Config) -> Result<HostBench> {
        let hosts = Hosts::new(&config)?;
        let mut path = Path::open(&config, &hosts)?;
        path.carry();
        let load = open_load(&config, &hosts, std::mem::take(&mut path.queues))?;
        let probe = (config.probes > 0).then(|| Datagrams::probes(&config, &hosts)).transpose()?;
        let counters = Counters::of(&config, &hosts)?;
        let placed = Placed::open(&config, &hosts, &path.threads, load.readers())?;
        let planted = (0..config.adapters)
            .map(|adapter| config.fault.device(&hosts.east, &format!("eth{adapter}")))
            .filter_map(Result::transpose);
        let planted = planted.collect::<Result<_>>()?;
        let bench = HostBench {
            config,
            load,
            probe,
            counters,
            first: None,
            rounds: 0,
            placed,
            path,
            _planted: planted,
            hosts,
            remarks: Remarks::default(),
        };
        bench.rest()?;
        Ok(bench)
    }

    /// Waits until no packet passes any more, and stops the workers.
    fn rest(&self) -> Result<()> {
        let (mut last, mut since) = (self.passed(), Instant::now());
        look_until(QUIET_WAIT, || {
            let now = self.passed();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() >= QUIET
        });
        self.path.rest()
    }

    fn passed(&self) -> u64 {
        let ports = self.path.stats().ports();
        ports.iter().map(|port| port.counts.rx_packets + port.counts.tx_packets).sum()
    }

    fn edge(&mut self) -> Result<Edge> {
        let (reading, counts) = (Reading::of(self.path.stats()), self.load.counts());
        let (kernel, late) = (self.counters.read(&reading)?, self.path.late());
        let taken = self.placed.as_ref().map(Placed::taken);
        let (cpu, at, split) = (cpu_time(), Instant::now(), Split::read(&self.path.threads));
        Ok(Edge { reading, counts, kernel, late, taken, split, cpu, at, ticks: ticks() })
    }

    /// Allocates what the traffic of the next round needs, which lasts `time`.
    fn prepare(&mut self, time: Duration) {
        if let Some(probe) = &mut self.probe {
            probe.prepare(time);
        }
        self.load.prepare(time);
    }

    /// Begins a round, after [`HostBench::prepare`].
    fn go(&mut self, time: Duration) -> Round {
        self.rounds += 1;
        let from = Instant::now();
        let round = Round { number: self.rounds, from, until: from + time };
        if let Some(probe) = &mut self.probe {
            probe.go(round);
        }
        self.load.go(round);
        round
    }

    /// Carries packets until all have arrived; returns the results of the traffic and of the
    /// probes.
    fn settle(&mut self, round: Round) -> Result<(Told, Option<Told>)> {
        self.path.carry();
        let told = self.load.settle(round);
        let probed = self.probe.as_mut().map(|probe| probe.settle(round)).transpose();
        // Stop the workers even if the traffic or the probes failed.
        self.rest()?;
        Ok((told?, probed?))
    }
}

impl Bench for HostBench {
    fn window(&mut self, time: Duration) -> Result<Window> {
        self.window_until(time, &mut || ())
    }

    fn window_until(&mut self, time: Duration, end: &mut dyn FnMut()) -> Result<Window> {
        self.prepare(time);
        let before = self.edge()?;
        self.first.get_or_insert(before.kernel);
        // Start the workers first: they are idle until the traffic begins.
        self.path.begin(Instant::now() + time);
        let round = self.go(time);
        let times = self.path.measured(round.until);
        let after = self.edge();
        end();
        let settled = self.settle(round);
        // A worker that failed is the cause of traffic that does not arrive, so its error is first.
        let mut window = Window::of(times?);
        let (after, (told, probed)) = (after?, settled?);
        let settled = self.edge()?;
        after.reading.since(&before.reading, &mut window);
        after.reading.by_device(&before.reading, &mut window);
        let sent = |edge: &Edge| edge.reading.sent();
        let (now, then) = (sent(&after), sent(&before));
        window.packets = now.packets.saturating_sub(then.packets);
        window.bytes = Some(now.bytes.saturating_sub(then.bytes));
        window.wakeups = Some(now.wakeups.saturating_sub(then.wakeups));
        let figures = figures(&self.config, &before, &after, &told, probed.as_ref());
        window.figures.extend(figures.into_iter().chain(after.split.since(&before.split)));
        settled.kernel.since(&before.kernel, |name, n| {
            window.figures.insert(name.into(), n);
        });
        if let Some((now, then)) = settled.late.zip(before.late) {
            window.figures.insert("core_late".into(), now.saturating_sub(then) as f64);
        }
        let programs_ns = programs_ns(&self.config, &before, &after, &window, &told);
        window.figures.insert("programs_cpu_ns".into(), programs_ns as f64);
        window.beside_cpu_ns = self.config.processes.then_some(told.cpu_ns);
        if let (Some(now), Some(then)) = (&after.taken, &before.taken) {
            window.figures.extend(now.since(then));
            // NAPI runs in kernel threads, whose CPU time is in no process's.
            let napi_ns = now.napi_ns.saturating_sub(then.napi_ns);
            window.beside_cpu_ns = Some(window.beside_cpu_ns.unwrap_or(0) + napi_ns);
            window.shared_cpus.clone_from(&self.config.roamed);
        }
        if let Some(cpu_ns) = window.cpu_ns {
            let share = cpu_ns as f64 * 100.0 / window.wall_ns.max(1) as f64;
            window.figures.insert("cpu_share".into(), share);
            let wall_ns = after.at.saturating_duration_since(before.at).as_nanos().max(1);
            let ticks = after.ticks.saturating_sub(before.ticks) as f64;
            let ticks = cpu_ns as f64 * ticks / wall_ns as f64;
            window.figures.insert("total_ticks".into(), ticks);
        }
        if self.config.crowded() && !window.shared_cpus.contains(&self.config.traffic) {
            window.shared_cpus.push(self.config.traffic);
        }
        // Loss and lateness of the traffic are results: they are reported and do not invalidate the
        // window.
        self.remarks.note(&self.config, &told, probed.as_ref());
        Ok(window)
    }

    fn cpus(&self) -> Vec<usize> {
        self.config.cpus()
    }

    fn profile(&mut self, time: Duration) -> Result<Vec<Profile>> {
        if self.placed.is_some() || self.config.machine {
            return self.machine(time);
        }
        self.prepare(time);
        let before = self.path.stats().ports();
        self.path.begin_profile(time, PROFILE_HZ)?;
        let round = self.go(time);
        let profiles = self.path.profiled(round.until);
        let after = self.path.stats().ports();
        let settled = self.settle(round);
        let profiles = profiles?;
        settled?;
        let packets = pool_figures::sent(&after).packets - pool_figures::sent(&before).packets;
        let mut all = together(profiles, packets, &self.config);
        all.iter_mut().for_each(|one| check(one, PROFILE_HZ, "the workers"));
        Ok(all.into_iter().collect())
    }

    fn finish(mut self: Box<Self>) -> Result<Finished> {
        let undone = self.placed.take().map_or_else(Vec::new, |placed| placed.notes().to_vec());
        self.path.carry();
        drop(self.probe.take());
        self.load.end();
        // Carry packets a little longer, so that TCP can acknowledge the last data.
        pause(QUIET);
        self.rest()?;
        let kernel = self.edge()?.kernel;
        let retransmitted = kernel.retransmitted();
        let drops = kernel.drops_since(&self.first.unwrap_or(kernel));
        let drops = format!("Drops and errors of both hosts' kernels over all windows: {drops}.");
        let stats = self.path.stats().clone();
        let matrices = free_matrix(&stats.pool().stats().matrix);
        let mut totals = pool_figures::totals(&stats);
        let warnings = stats.warnings().to_vec();
        let stats = self.path.end()?;
        let ledger = stats.ledger();
        totals.extend(pool_figures::outstanding(&stats));
        // All workers and programs have ended, so a packet that is left has leaked.
        let balanced = ledger.is_drained();
        let retransmitted = Some(retransmitted);
        let ledger = Ledger { balanced, retransmitted, ..Ledger::from(&ledger) };
        let tunings = self.hosts.tunings();
        let notes = self.remarks.tell(&self.config).into_iter().chain([drops]).chain(tunings);
        let notes = notes.chain(warnings).chain(undone).collect();
        Ok(Finished { ledger, matrices, totals, notes })
    }
}

/// Computes the figures of a window that the hosts' programs saw.
fn figures(
    config: &Config,
    before: &Edge,
    after: &Edge,
    told: &Told,
    probed: Option<&Told>,
) -> BTreeMap<String, f64> {
    let since = |of: fn(&Edge) -> u64| of(after).saturating_sub(of(before)) as f64;
    let mut figures = BTreeMap::from([
        ("goodput_bytes".to_owned(), since(|edge| edge.counts.goodput_bytes)),
        ("retransmits".to_owned(), since(|edge| edge.kernel.retransmitted())),
        ("due".to_owned(), told.due as f64),
        ("sent".to_owned(), told.sent as f64),
        ("senders_cpu_ns".to_owned(), told.cpu_ns as f64),
    ]);
    if let Some(pct) = offered_pct(told).filter(|_| config.rate.is_some()) {
        figures.insert("offered_pct".into(), pct);
    }
    let mut add = |name: &str, value: f64| figures.insert(name.into(), value);
    let arrived = match config.workload {
        Workload::Stream => since(|edge| edge.counts.goodput_bytes) / config.message as f64,
        Workload::Web | Workload::Rpc | Workload::Load => told.answered as f64,
    };
    if config.rate.is_some() && told.due > 0 {
        add("achieved_pct", arrived * 100.0 / told.due as f64);
    }
    match config.workload {
        Workload::Load => {
            add("reordered", told.reordered as f64);
            add("duplicated", told.duplicated as f64);
            add("lost", told.failed as f64);
        }
        Workload::Stream | Workload::Rpc | Workload::Web => {
            add("reordered", since(|edge| edge.kernel.out_of_order()));
        }
    }
    match config.workload {
        Workload::Web => {
            add("requests", since(|edge| edge.counts.requests));
            add("responses", since(|edge| edge.counts.responses));
            add("failed", told.failed as f64);
        }
        Workload::Rpc => {
            add("requests", told.sent as f64);
            add("responses", told.answered as f64);
            add("failed", told.failed as f64);
        }
        Workload::Stream => {
            figures.insert("starved_connections".into(), after.counts.idle as f64);
        }
        Workload::Load => {}
    }
    match config.workload {
        Workload::Web | Workload::Rpc => told.latencies.tell("request", &mut figures),
        Workload::Load => {
            told.latencies.tell("load", &mut figures);
            told.lateness.quantiles("load_late", &mut figures);
        }
        Workload::Stream => {}
    }
    if let Some(probed) = probed {
        figures.insert("probes".into(), probed.sent as f64);
        figures.insert("probes_lost".into(), probed.failed as f64);
        probed.latencies.tell("receipt", &mut figures);
        probed.lateness.quantiles("probe_late", &mut figures);
    }
    figures
}

/// Returns the CPU time of the hosts' programs: that of this process without its workers, plus that
/// of sender processes.
fn programs_ns(config: &Config, before: &Edge, after: &Edge, window: &Window, told: &Told) -> u64 {
    let ours = after.cpu.saturating_sub(before.cpu).as_nanos() as u64;
    let ours = ours.saturating_sub(window.cpu_ns.unwrap_or(0));
    if config.processes { ours + told.cpu_ns } else { ours }
}

/// Returns the sum of the workers' profiles, over `packets` packets; `None` without profiles.
fn together(profiles: Vec<Profile>, packets: u64, config: &Config) -> Option<Profile> {
    let mut profiles = profiles.into_iter();
    let mut all = profiles.next()?;
    for one in profiles {
        for row in one.rows {
            let same = |known: &&mut Row| {
                known.symbol == row.symbol && known.object == row.object && known.space == row.space
            };
            match all.rows.iter_mut().find(same) {
                Some(known) => known.count += row.count,
                None => all.rows.push(row),
            }
        }
        if let (Some(total), Some(more)) = (&mut all.total, one.total) {
            total.count += more.count;
        }
        all.lost += one.lost;
        let (cpu, more) = (all.conditions.cpu_ns, one.conditions.cpu_ns);
        all.conditions.cpu_ns = cpu.zip(more).map(|(cpu, more)| cpu + more);
        let news = one.remarks.into_iter().filter(|remark| !all.remarks.contains(remark));
        let news: Vec<String> = news.collect();
        all.remarks.extend(news);
    }
    all.rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.symbol.cmp(&b.symbol)));
    all.conditions.packets = Some(packets);
    all.conditions.workload = Some(workload(config, "the workers' threads"));
    Some(all)
}

/// Describes the workload of a profile of `what`.
fn workload(config: &Config, what: &str) -> String {
    let workload = match config.workload {
        Workload::Stream => "bulk TCP",
        Workload::Web => "short responses over TCP",
        Workload::Rpc => "requests and answers over TCP",
        Workload::Load => "datagrams at a rate",
    };
    let port = match config.port {
        Port::Packet => "packet",
        Port::Xdp => "xdp",
        Port::Tap => "tap",
    };
    format!("{workload} through {port} ports: {what}")
}
