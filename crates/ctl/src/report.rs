//! The report of a run: ports, ledger, cost, verification. An unknown figure is `None`.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_datapath::qdisc::QdiscCounts;
use linerate_datapath::{BatchSizes, PortStats, QueueReading, Stats, Stopped};
use linerate_port::{DriverCounts, DriverFlags, Error, Pace, Verified};

#[cfg(feature = "json")]
use serde::Serialize;

use crate::excess::{Calls, Locks, PerPacket, Waits, awake_ns};
use crate::placement::PlacementReport;
use crate::pool::PoolReport;
use crate::poor_use::{gathers, poorly_used, silent};
use crate::registers::told;

/// A run of `forward`.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct ForwardReport {
    /// Wall time from the start of the workers to the order to drain.
    pub duration_seconds: f64,
    /// Reports of all ports, in the order of their definition.
    pub ports: Vec<PortReport>,
    /// The account of every packet.
    pub ledger: LedgerReport,
    /// CPU time and cycles of the run.
    pub cost: Cost,
    /// Locks that the path took.
    pub locks: Locks,
    /// Calls that allocated, freed and copied packets, and calls of drivers.
    pub calls: Calls,
    /// Waits of the path.
    pub waits: Waits,
    /// The pool of the path's packets, with its cost.
    pub pool: PoolReport,
    /// The combined result of the verifying sinks, including the sink of a second process; `None`
    /// without such a sink.
    pub verify: Option<Verify>,
    /// Phases of the run with different rates, in order; empty if the run has only one.
    pub phases: Vec<PhaseReport>,
    /// The second process, which received the packets, if the run started one.
    pub far: Option<FarReport>,
    /// The search for the workers' CPUs, if one was requested and completed.
    #[cfg_attr(feature = "json", serde(skip_serializing_if = "Option::is_none"))]
    pub placement: Option<PlacementReport>,
    /// Warnings about settings whose effect differs from the request.
    pub warnings: Vec<String>,
    /// The error that ended the run early, or the error of a port.
    pub error: Option<ErrorReport>,
}

/// Packets that passed a port, and the port's troubles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PortReport {
    /// The port's name in the engine.
    pub name: String,
    /// The port's driver.
    pub driver: String,
    /// Flags that hold for every port of that driver.
    #[cfg_attr(feature = "json", serde(skip))]
    pub flags: DriverFlags,
    /// Driver and mode of the opened port.
    pub mode: String,
    /// Features not obtained, each with its reason: `zero-copy: the driver has none`.
    pub refused: Vec<String>,
    /// Packets and bytes received from the port.
    pub rx: Passed,
    /// Packets and bytes sent to the port.
    pub tx: Passed,
    /// Packets that the kernel or the peer counts as lost before the port received them. No ledger
    /// includes them.
    #[cfg_attr(feature = "json", serde(rename = "missed"))]
    pub rx_missed: u64,
    /// Times that the port had packets but the pool had no frame; the packets waited in the device.
    #[cfg_attr(feature = "json", serde(rename = "no_frame"))]
    pub rx_nombuf: u64,
    /// The driver's counters: causes of the packets in `rx_missed` that the driver knows, resets,
    /// protocol violations. [`DriverCounts::named`] has their keys.
    #[cfg_attr(feature = "json", serde(flatten, serialize_with = "named"))]
    pub driver_counts: DriverCounts,
    /// Bytes that the driver copied because it could not send packets in place; `None` if it does
    /// not count them. Copies by drivers that copy every packet are in [`Calls::copied_bytes`].
    pub copied_bytes: Option<u64>,
    /// Times that this port's device ended a worker's sleep.
    pub irqs_by_device: u64,
    /// Times that the timer of a hold for this port ended a worker's sleep.
    pub irqs_by_timer: u64,
    /// Times that a worker, about to sleep, found work on this port.
    pub rechecks: u64,
    /// The moderation of each of the port's queues, with its decisions and their reasons; empty if their packets wait
    /// in no device.
    pub moderation: Vec<String>,
    /// The finding that irqs carry too few packets, with the rule that it violates.
    pub poor_use: Option<String>,
    /// The port's filter, if it let no packet in for 5 s or longer.
    pub silent: Option<String>,
    /// The cap on packets for one transmit call to the device: a number, or auto.
    pub tx_batch: String,
    /// Doorbells of the transmit rings: system calls that sent, or index updates that a peer can
    /// see; `None` for a device without doorbells.
    pub doorbells: Option<u64>,
    /// The port's transmit calls by the packets that the device accepted, in ranges of powers of two.
    pub tx_calls: Vec<TxCalls>,
    /// The counts of the port's queueing discipline.
    pub qdisc: Option<QdiscReport>,
    /// Modelled register accesses of a port with the option `toll=`; empty without the option.
    pub registers: String,
}

/// Transmit calls in one range of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct TxCalls {
    /// Lower end of the range; the upper end is below twice this. 0: the device was full.
    pub packets: u64,
    /// Number of calls in the range.
    pub calls: u64,
}

/// A discipline's counts, for which `taken = left + dropped + held`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct QdiscReport {
    /// Packets enqueued.
    pub taken: Passed,
    /// Packets dequeued for the device.
    pub left: Passed,
    /// Packets dropped.
    pub dropped: Passed,
    /// Packets still held at the end.
    pub held: Passed,
    /// Packets marked instead of dropped.
    pub marked: u64,
}

/// A number of packets, and their bytes from the destination MAC, without FCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Passed {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The account of all packets: `received + created = sent + consumed + dropped + in_flight`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct LedgerReport {
    /// Packets received from a device.
    pub received: u64,
    /// Packets made by the program.
    pub created: u64,
    /// Packets accepted by a device.
    pub sent: u64,
    /// Packets that the program consumed.
    pub consumed: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Packets still in flight on the path.
    pub in_flight: u64,
    /// True if the two sides are equal.
    pub balanced: bool,
}

/// Cost of a run. The packets counted are those sent by ports other than rings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Cost {
    /// Cycles for each packet, of the clock named by `scope`. With the scope [`TSC`] they are
    /// `cpu_ns_per_packet` in another unit, and not an independent measurement.
    pub cycles_per_packet: Option<f64>,
    /// Instructions for each packet.
    pub instructions_per_packet: Option<f64>,
    /// Packets for each wake-up of a worker by a device; `None` without wake-ups. The ends of holds
    /// do not count as wake-ups, unlike in `packets_per_irq`.
    pub packets_per_wakeup: Option<f64>,
    /// Packets for each irq; an irq is the end of a worker's sleep by a device or by a timer.
    /// `None` if no worker slept.
    pub packets_per_irq: Option<f64>,
    /// CPU time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// Scope of `cycles_per_packet`: `user+kernel` or `user` for cycles of the core; [`TSC`] for
    /// CPU time in ticks.
    pub scope: Option<&'static str>,
    /// CPU time of the whole process for each packet, by the kernel's accounting.
    pub cpu_ns_per_packet: Option<f64>,
    /// Time that the workers were awake for each packet, by their own clocks, as a check of `cpu_ns_per_packet`.
    /// Unlike that figure it includes preemption, which is part of [`Waits::run_delay_ns`]. It excludes the time for
    /// going to sleep and waking up, and the work of other threads. `None` if a worker has not reported.
    pub awake_ns_per_packet: Option<f64>,
}

/// The scope of figures that are CPU time in ticks of the time stamp counter, used if the core's
/// cycles cannot be counted.
pub const TSC: &str = "tsc";

/// CPU time and cycles of the process, as measured around a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// Wall time from the start of the workers to the order to drain.
    pub wall: Duration,
    /// CPU time of the process.
    pub cpu: Duration,
    /// Cycles, if they can be counted.
    pub cycles: Option<u64>,
    /// Instructions, if they can be counted.
    pub instructions: Option<u64>,
    /// Scope of cycles and instructions, or [`TSC`].
    pub scope: Option<&'static str>,
    /// Ticks a second of the clock that times locks, if known.
    pub ticks_per_second: Option<f64>,
}

/// Result of verifying sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Verify {
    /// Stamped packets received.
    pub packets: u64,
    /// Sequence numbers that never arrived, below the highest received.
    pub lost: u64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Packets that arrived more than once.
    pub duplicated: u64,
    /// Packets so late that they cannot be checked for duplicates.
    pub late: u64,
    /// Packets with a changed byte.
    pub corrupted: u64,
    /// Packets without a stamp, which cannot be verified.
    pub foreign: u64,
}

/// A phase of a run, with its own rate.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PhaseReport {
    /// The rate requested in the phase: `paced` or `flat out`.
    pub name: &'static str,
    /// Wall time of the phase.
    pub seconds: f64,
    /// Packets and bytes sent in the phase by ports other than rings.
    pub sent: Passed,
    /// CPU time of the whole process.
    pub cpu_seconds: f64,
    /// CPU time of the second process; `None` without one, or if the kernel does not report it.
    pub far_cpu_seconds: Option<f64>,
    /// Share of a CPU, in per cent, that the system of post 000 used at this rate; `None` for other
    /// rates.
    pub post_cpu_pct: Option<f64>,
    /// Median lateness of packets against their intended times; `None` without a rate, or with too
    /// few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of the lateness.
    pub late_p99_ns: Option<u64>,
}

/// Result of a second process that maps this process's packet memory.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct FarReport {
    /// The process's id.
    pub process: u32,
    /// Packets and bytes that the process received from the shared memory.
    pub received: Passed,
    /// True if the process's ledger balances with no packet dropped and none in flight.
    pub whole: bool,
    /// Packets that the process's sink verified.
    pub verified: u64,
    /// Bytes that the process's port copied from the shared memory; `None` if unknown.
    pub copied_bytes: Option<u64>,
    /// CPU time of the process, from the start of its workers to their end.
    pub cpu_seconds: f64,
}

/// An error in four parts: code, what, why and fix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct ErrorReport {
    /// The stable error code.
    pub code: String,
    /// The action that failed, or the event.
    pub what: String,
    /// The cause.
    pub why: String,
    /// The remedy; empty if none is known.
    pub fix: String,
}

/// The report of `gen`: the report of its path, and the generator's pace.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct GenReport {
    /// The generator's pace: packets requested, and packets sent.
    pub pace: PaceReport,
    /// The report of the path from the generator.
    #[cfg_attr(feature = "json", serde(flatten))]
    pub path: ForwardReport,
}

/// A generator's pace: packets requested, and packets sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PaceReport {
    /// Number of requested packets; `None` if the request does not limit it.
    pub asked: Option<u64>,
    /// Packets that left the generator.
    pub sent: u64,
    /// Requested packets that were not sent; `None` without a requested number.
    pub unsent: Option<u64>,
    /// Median lateness against the intended time; `None` without a rate, or with too few packets.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of the lateness.
    pub late_p99_ns: Option<u64>,
}

impl ForwardReport {
    /// Builds the report from an engine's result, statistics and cost.
    #[must_use]
    pub fn new(stopped: &Stopped, stats: &Stats, spent: &Spent) -> ForwardReport {
        let error = stopped.check().err().as_ref().map(ErrorReport::from);
        let locks = Locks::of(stopped, spent);
        ForwardReport {
            duration_seconds: spent.wall.as_secs_f64(),
            ports: stopped.ports.iter().map(|port| PortReport::of(port, spent.wall)).collect(),
            ledger: LedgerReport::of(stopped),
            cost: Cost::of(spent, stopped),
            locks,
            calls: Calls::of(stopped),
            waits: Waits::of(stopped, &locks),
            pool: PoolReport::of(stopped, stats),
            verify: Verify::sum(&stopped.ports),
            phases: Vec::new(),
            placement: None,
            far: None,
            warnings: stats.warnings().to_vec(),
            error,
        }
    }

    /// Returns the number of packets sent by ports other than rings: the divisor of `cost`.
    #[must_use]
    pub fn packets_out(&self) -> u64 {
        let outside = self.ports.iter().filter(|p| !p.flags.paired);
        outside.map(|p| p.tx.packets).sum()
    }

    /// Returns false if a sink of this run found a fault in packets from a generator of this run.
    #[must_use]
    pub fn verified(&self) -> bool {
        let generated = self.ports.iter().any(|p| p.flags.generates);
        !generated || self.verify.is_none_or(|v| v.faults() == 0)
    }
}

impl GenReport {
    /// Adds the pace to the path's report; `asked` is the number of requested packets.
    #[must_use]
    pub fn new(path: ForwardReport, asked: Option<u64>, pace: Option<Pace>) -> GenReport {
        let sources = path.ports.iter().filter(|port| port.flags.generates);
        let sent = sources.map(|port| port.rx.packets).sum();
        let pace = PaceReport {
            asked,
            sent,
            unsent: asked.map(|asked| asked.saturating_sub(sent)),
            late_p50_ns: pace.and_then(|p| p.late_p50_ns),
            late_p99_ns: pace.and_then(|p| p.late_p99_ns),
        };
        GenReport { pace, path }
    }
}

impl LedgerReport {
    fn of(stopped: &Stopped) -> LedgerReport {
        let ledger = &stopped.ledger;
        let mut dropped = BTreeMap::new();
        for (reason, n) in &ledger.dropped {
            *dropped.entry(reason.name()).or_default() += n;
        }
        LedgerReport {
            received: ledger.received,
            created: ledger.created,
            sent: ledger.sent,
            consumed: ledger.consumed,
            dropped,
            in_flight: ledger.in_flight,
            // The workers have ended: no packet moves, so every difference is an error.
            balanced: ledger.difference() == 0,
        }
    }

    /// Returns the number of packets dropped, over all reasons.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

impl Cost {
    fn of(spent: &Spent, stopped: &Stopped) -> Cost {
        let wakeups: u64 = stopped.ports.iter().map(|p| p.counts.wakeups).sum();
        let irqs: u64 = stopped.workers.iter().map(|worker| worker.sleeps).sum();
        let each = PerPacket::leaving(&stopped.ports);
        let of_known = |n: Option<u64>| n.and_then(|n| each.of(n));
        Cost {
            cycles_per_packet: of_known(spent.cycles),
            instructions_per_packet: of_known(spent.instructions),
            packets_per_wakeup: (wakeups > 0).then(|| each.0 as f64 / wakeups as f64),
            packets_per_irq: (irqs > 0).then(|| each.0 as f64 / irqs as f64),
            cpu_seconds: spent.cpu.as_secs_f64(),
            scope: spent.scope,
            cpu_ns_per_packet: of_known(u64::try_from(spent.cpu.as_nanos()).ok()),
            awake_ns_per_packet: of_known(awake_ns(&stopped.workers)),
        }
    }
}

impl Verify {
    fn sum(ports: &[PortStats]) -> Option<Verify> {
        ports.iter().filter_map(|p| p.verified).map(Verify::from).reduce(Verify::plus)
    }

    fn plus(self, more: Verify) -> Verify {
        Verify {
            packets: self.packets + more.packets,
            // Saturate: a frame from an untrusted sender can carry any sequence number.
            lost: self.lost.saturating_add(more.lost),
            reordered: self.reordered + more.reordered,
            duplicated: self.duplicated + more.duplicated,
            late: self.late + more.late,
            corrupted: self.corrupted + more.corrupted,
            foreign: self.foreign + more.foreign,
        }
    }

    /// Returns the number of packets lost, reordered, duplicated (as far as known) or corrupted.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.lost.saturating_add(self.reordered + self.duplicated + self.late + self.corrupted)
    }
}

impl From<Verified> for Verify {
    fn from(found: Verified) -> Verify {
        Verify {
            packets: found.packets,
            lost: found.lost,
            reordered: found.reordered,
            duplicated: found.duplicated,
            late: found.late,
            corrupted: found.corrupted,
            foreign: found.foreign,
        }
    }
}

impl PortReport {
    /// Creates the report of a port that has run for `time`; the port may still run.
    pub(crate) fn of(port: &PortStats, time: Duration) -> PortReport {
        // Of a port that is not read, the kernel counts every packet of the interface as lost.
        let (c, d, is_read) = (&port.counts, &port.driver_counts, port.counts.polls > 0);
        let gathers = is_read && gathers(port);
        PortReport {
            name: port.name.clone(),
            driver: port.driver.clone(),
            flags: port.flags,
            mode: port.obtained.mode.clone(),
            refused: port.obtained.refused.clone(),
            rx: Passed { packets: c.rx_packets, bytes: c.rx_bytes },
            tx: Passed { packets: c.tx_packets, bytes: c.tx_bytes },
            rx_missed: if is_read { c.rx_missed } else { 0 },
            rx_nombuf: c.rx_nombuf,
            driver_counts: if is_read { *d } else { d.without_missed() },
            copied_bytes: d.copied_bytes,
            irqs_by_device: c.wakeups,
            irqs_by_timer: c.hold_ends,
            rechecks: c.rechecks,
            moderation: port.queues.iter().filter(|_| gathers).map(moderated).collect(),
            poor_use: poorly_used(port, time),
            silent: silent(port, time),
            tx_batch: port.tx_batch.to_string(),
            doorbells: d.doorbells,
            tx_calls: tx_calls(&port.flushes.sizes),
            qdisc: port.qdisc.as_ref().map(QdiscReport::from),
            registers: d.registers.map_or(String::new(), |taken| told(taken, c, time)),
        }
    }
}

/// Formats the line of a queue's moderation over a whole run.
fn moderated(queue: &QueueReading) -> String {
    queue.moderation.over(queue.counts.rx_packets, queue.counts.irqs()).to_string()
}

#[cfg(feature = "json")]
fn named<S: serde::Serializer>(counts: &DriverCounts, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.named().into_iter().map(|(key, _, n)| (key, n)))
}

/// Returns the ranges that contain calls.
fn tx_calls(sizes: &BatchSizes) -> Vec<TxCalls> {
    let range =
        |(i, calls): (usize, &u64)| TxCalls { packets: BatchSizes::least(i), calls: *calls };
    sizes.calls.iter().enumerate().map(range).filter(|range| range.calls > 0).collect()
}

impl From<&QdiscCounts> for QdiscReport {
    fn from(counts: &QdiscCounts) -> QdiscReport {
        let all = [counts.taken, counts.left, counts.dropped, counts.held];
        let [taken, left, dropped, held] =
            all.map(|n| Passed { packets: n.packets as u64, bytes: n.bytes });
        QdiscReport { taken, left, dropped, held, marked: counts.marked }
    }
}

impl From<&Error> for ErrorReport {
    fn from(e: &Error) -> ErrorReport {
        ErrorReport {
            code: e.code.as_str().into(),
            what: e.what.clone(),
            why: e.why.clone(),
            fix: e.fix.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_datapath::Engine;

    /// Runs `gen → ring → sink` with 1000 packets, and returns the result and its statistics.
    fn stopped() -> (Stopped, Stats) {
        let engine = Engine::builder()
            .port("gen", "gen:,count=1000")
            .port("r0", "ring:r")
            .port("r1", "ring:r")
            .port("sink", "sink:")
            .wire("gen", "r0")
            .wire("r1", "sink")
            .build()
            .unwrap();
        let stats = engine.stats();
        let running = engine.start().unwrap();
        assert!(running.wait(Duration::from_secs(20)).unwrap());
        (running.stop(Duration::from_secs(20)), stats)
    }

    fn report(spent: &Spent) -> ForwardReport {
        let (stopped, stats) = stopped();
        ForwardReport::new(&stopped, &stats, spent)
    }

    #[test]
    fn packets_that_cross_a_ring_are_counted_once() {
        let cpu = Duration::from_micros(20);
        let spent = Spent { cycles: Some(50_000), cpu, ..Spent::default() };
        let report = report(&spent);
        assert_eq!(report.packets_out(), 1000);
        assert_eq!(report.cost.cycles_per_packet, Some(50.0));
        assert_eq!(report.cost.instructions_per_packet, None);
        assert_eq!(report.cost.cpu_ns_per_packet, Some(20.0));
        assert!(report.cost.awake_ns_per_packet.is_some());
        assert!(report.ledger.balanced && report.verified());
        assert_eq!(report.verify.map(|v| (v.packets, v.faults())), Some((1000, 0)));
    }

    #[test]
    fn a_sink_that_finds_a_fault_fails_the_run_that_generated() {
        let mut report = report(&Spent::default());
        report.verify = Some(Verify { corrupted: 1, ..Verify::default() });
        assert!(!report.verified());
        report.ports.remove(0);
        assert!(report.verified(), "packets of elsewhere are not ours to answer for");
    }

    #[test]
    fn requested_packets_that_did_not_leave_are_unsent() {
        let path = report(&Spent::default());
        let report = GenReport::new(path.clone(), Some(1200), None);
        assert_eq!(report.pace.sent, 1000);
        assert_eq!(report.pace.unsent, Some(200));
        assert_eq!(GenReport::new(path, None, None).pace.unsent, None);
    }
}
