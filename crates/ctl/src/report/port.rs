//! The report of one port: its packets, its troubles and its driver's counters.

use std::time::Duration;

use linerate_datapath::qdisc::QdiscCounts;
use linerate_datapath::{BatchSizes, PortStats, QueueReading};
use linerate_port::{DriverCounts, DriverFlags, QueueCounts, Registers};

#[cfg(feature = "json")]
use serde::Serialize;

use super::{ErrorReport, Passed};
use crate::poor_use::{gathers, poorly_used, silent};
use crate::registers::register_line;

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
    /// Name of the opened object: an interface, or the path of a socket or a file.
    pub device: String,
    /// Driver and mode of the opened port.
    pub mode: String,
    /// Features not obtained, each with its reason: `zero-copy: the driver has none`.
    pub refused: Vec<String>,
    /// Packets and bytes received from the port.
    pub rx: Passed,
    /// Packets and bytes sent to the port.
    pub tx: Passed,
    /// Packets and bytes of each of the port's queues, in the order of their numbers.
    pub queues: Vec<QueuePassed>,
    /// Packets that the kernel or the peer counts as lost before the port received them, or that a
    /// queue had not read when its ring was closed. No ledger includes them.
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
    /// not count them. Copies by drivers that copy every packet are in
    /// [`Calls::copied_bytes`](crate::Calls::copied_bytes).
    pub copied_bytes: Option<u64>,
    /// Times that this port's device ended a worker's sleep.
    pub irqs_by_device: u64,
    /// Times that the timer of a hold for this port ended a worker's sleep.
    pub irqs_by_timer: u64,
    /// Times that a worker, about to sleep, found work on this port.
    pub rechecks: u64,
    /// The moderation of each of the port's queues, with its decisions and their reasons; empty if
    /// their packets wait in no device.
    pub moderation: Vec<String>,
    /// The finding that irqs carry too few packets, with the rule that it violates.
    pub poor_use: Option<String>,
    /// The port's filter, if it let no packet in for 5 s or longer.
    pub silent: Option<String>,
    /// The trouble that the port's device has when the report is made; `None` if it has none.
    pub trouble: Option<ErrorReport>,
    /// The cap on packets for one transmit call to the device: a number, or auto.
    pub tx_batch: String,
    /// Doorbells of the transmit rings: system calls that sent, or index updates that a peer can
    /// see; `None` for a device without doorbells.
    pub doorbells: Option<u64>,
    /// The port's transmit calls by the packets that the device accepted, in ranges of powers of
    /// two.
    pub tx_calls: Vec<TxCalls>,
    /// The counts of the port's queueing discipline.
    pub qdisc: Option<QdiscReport>,
    /// Modelled register accesses of a port with the option `toll=`; empty without the option.
    pub registers: String,
    /// The same accesses as numbers; `None` without the option.
    pub register_accesses: Option<Registers>,
}

/// Packets that passed one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct QueuePassed {
    /// Packets and bytes received from the queue.
    pub rx: Passed,
    /// Packets and bytes sent to the queue.
    pub tx: Passed,
}

/// Transmit calls in one range of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct TxCalls {
    /// Lower end of the range; the upper end is below twice this. 0: the device took no packet.
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
            device: port.obtained.device.clone(),
            mode: port.obtained.mode.clone(),
            refused: port.obtained.refused.clone(),
            rx: received(c),
            tx: sent(c),
            queues: port.queues.iter().map(passed).collect(),
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
            trouble: port.health.clone().check().as_ref().err().map(ErrorReport::from),
            tx_batch: port.tx_batch.to_string(),
            doorbells: d.doorbells,
            tx_calls: tx_calls(&port.flushes.sizes),
            qdisc: port.qdisc.as_ref().map(QdiscReport::from),
            registers: d.registers.map_or(String::new(), |taken| register_line(taken, c, time)),
            register_accesses: d.registers,
        }
    }
}

fn received(counts: &QueueCounts) -> Passed {
    Passed { packets: counts.rx_packets, bytes: counts.rx_bytes }
}

fn sent(counts: &QueueCounts) -> Passed {
    Passed { packets: counts.tx_packets, bytes: counts.tx_bytes }
}

fn passed(queue: &QueueReading) -> QueuePassed {
    QueuePassed { rx: received(&queue.counts), tx: sent(&queue.counts) }
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
        let all = [counts.enqueued, counts.dequeued, counts.dropped, counts.queued];
        let [taken, left, dropped, held] =
            all.map(|n| Passed { packets: n.packets as u64, bytes: n.bytes });
        QdiscReport { taken, left, dropped, held, marked: counts.marked }
    }
}
