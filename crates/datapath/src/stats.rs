//! Statistics of a running engine, read without disturbing its workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_port::{
    Copies, DriverCounts, DriverFlags, Health, Moderated, Obtained, Pace, QueueCounts, QueueStats,
    Verified,
};
use linerate_skb::{Error, Ledger, Pool, PoolStats};

use crate::qdisc::QdiscCounts;
use crate::queue_slot::QueueSlot;
use crate::settings::QueueSettings;
use crate::tx_batch::TxBatch;
use crate::waits::{Flushes, Waits, WorkerStats};

/// One port of an engine, with its queues' slots.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub name: String,
    pub driver: String,
    pub flags: DriverFlags,
    pub obtained: Obtained,
    pub queues: Vec<(Arc<QueueStats>, Arc<QueueSlot>)>,
    /// The ways of rings between workers that lead to the port; none for other ports.
    pub rings: Vec<Way>,
}

/// One direction of a ring between workers.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// Counters of the end that sends.
    pub from: Arc<QueueStats>,
    /// Counters of the end that receives.
    pub to: Arc<QueueStats>,
    /// The worker that receives.
    pub reader: usize,
}

/// A handle for reading the statistics of a running engine. A reading costs the workers nothing.
#[derive(Debug, Clone)]
pub struct Stats {
    pub(crate) ports: Arc<Vec<Entry>>,
    pub(crate) workers: Arc<[Arc<Waits>]>,
    pub(crate) pools: Arc<[Pool]>,
    pub(crate) warnings: Arc<[String]>,
}

/// Statistics of one port.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortStats {
    /// The port's name in the engine.
    pub name: String,
    /// The port's driver.
    pub driver: String,
    /// Flags that hold for every port of that driver.
    pub flags: DriverFlags,
    /// The settings that the device granted.
    pub obtained: Obtained,
    /// Packets and bytes that passed, over all queues.
    pub counts: QueueCounts,
    /// The packets that the driver copies: none, all or some; some if the queues differ.
    pub copies: Copies,
    /// Counters of the driver other than packets, over all queues, updated as often as `flushes`.
    /// The sum of the causes is at most [`QueueCounts::rx_missed`]; the rest has no known cause.
    pub driver_counts: DriverCounts,
    /// The port's transmit calls, as of its worker's last report. Workers report from time to time
    /// when they are not busy, and at the end.
    pub flushes: Flushes,
    /// The port's health: that of the first queue in trouble, if there is one.
    pub health: Health,
    /// The result of a sink that verifies packets; of its first queue, if it has several.
    pub verified: Option<Verified>,
    /// The pace of a source that sends at a fixed rate; of its first queue, if it has several.
    pub pace: Option<Pace>,
    /// A reading of each queue of the port, in the order of their numbers.
    pub queues: Vec<QueueReading>,
    /// The most packets that go to the device of the port's first queue with one doorbell.
    pub tx_batch: TxBatch,
    /// The counts of the port's queueing discipline, over all queues, if it has one.
    pub qdisc: Option<QdiscCounts>,
}

/// A reading of one queue of a port.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct QueueReading {
    /// Packets and bytes that passed the queue.
    pub counts: QueueCounts,
    /// The queue's moderation with its recent decisions; displays as a line.
    pub moderation: Moderated,
    /// The queue's present settings.
    pub settings: QueueSettings,
}

impl Stats {
    /// Returns the statistics of every port that a worker serves, in the order of their definition.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStats> {
        self.ports.iter().map(PortStats::read).collect()
    }

    /// Returns a reading of each worker's time.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStats> {
        self.workers.iter().map(|waits| waits.read()).collect()
    }

    /// Returns the error of the first port that is down.
    #[must_use]
    pub fn down(&self) -> Option<Error> {
        self.ports().into_iter().find_map(|port| match port.health {
            Health::Down(e) => Some(e),
            _ => None,
        })
    }

    /// Returns the ledger of every packet, over all pools.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let others = self.pools.iter().skip(1).map(Pool::ledger);
        others.fold(self.pool().ledger(), |sum, ledger| sum.plus(&ledger))
    }

    /// Returns the engine's pool: the first one, if it has [several](Stats::pools).
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pools[0]
    }

    /// Returns the engine's pools: one, unless a peer can write the packets of some wires, and
    /// there are other wires. Then the first pool is for the other wires, and each further one for
    /// the wires to one peer.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Returns the summed statistics of the engine's pools.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        let others = self.pools.iter().skip(1).map(Pool::stats);
        others.fold(self.pool().stats(), |sum, stats| sum.plus(&stats))
    }

    /// Returns the warnings that the engine gave when it was built.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Stats {
    /// Returns the number of packets in rings on the way to the workers for which `reads` returns
    /// true, computed from the counters of both ends.
    pub(crate) fn in_rings(&self, reads: impl Fn(usize) -> bool) -> u64 {
        let ways = self.ports.iter().flat_map(|port| &port.rings).filter(|way| reads(way.reader));
        ways.fold(0, |n: u64, way| {
            let (sent, received) = (way.from.counts().tx_packets, way.to.counts().rx_packets);
            n.wrapping_add(sent).wrapping_sub(received)
        })
    }
}

impl PortStats {
    fn read(entry: &Entry) -> PortStats {
        let mut stats = PortStats {
            name: entry.name.clone(),
            driver: entry.driver.clone(),
            flags: entry.flags,
            obtained: entry.obtained.clone(),
            counts: QueueCounts::default(),
            copies: Copies::default(),
            driver_counts: DriverCounts::default(),
            flushes: Flushes::default(),
            health: Health::Finished,
            verified: None,
            pace: None,
            queues: Vec::with_capacity(entry.queues.len()),
            tx_batch: TxBatch::Auto,
            qdisc: None,
        };
        for (i, (live, slot)) in entry.queues.iter().enumerate() {
            // Read the counts and the report before `rx_missed`: this is the order in which they
            // are written. The live counts have neither `rx_missed` nor `rx_nombuf`.
            let (mut counts, report) = (live.counts(), slot.report());
            counts.rx_missed = slot.rx_missed.load(Ordering::Relaxed);
            counts.rx_nombuf = slot.rx_nombuf.load(Ordering::Relaxed);
            stats.counts += counts;
            let is_same = i == 0 || report.copies == stats.copies;
            stats.copies = if is_same { report.copies } else { Copies::Sometimes };
            stats.driver_counts += report.counts;
            stats.flushes += slot.flushes.read();
            if report.health.kind() < stats.health.kind() {
                stats.health = report.health;
            }
            stats.verified = stats.verified.or(report.verified);
            stats.pace = stats.pace.or(report.pace);
            let (moderation, settings) = (report.moderation, slot.settings.read());
            stats.queues.push(QueueReading { counts, moderation, settings });
            if i == 0 {
                stats.tx_batch = stats.queues[0].settings.tx_batch;
            }
            if let Some(counts) = report.qdisc {
                *stats.qdisc.get_or_insert_default() += counts;
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests;
