//! Statistics of a running engine, read without disturbing its workers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use linerate_port::wait::EventFd;
use linerate_port::{
    Copies, Counters, DriverCounts, DriverFlags, DriverQueue, Health, Moderated, Obtained, Pace,
    QueueCounts, QueueStats, Result, Verified,
};
use linerate_skb::{Error, Ledger, Pool, PoolStats};

use crate::control::Order;
use crate::egress::Egress;
use crate::mailbox::{Mailbox, Word};
use crate::notice::Notice;
use crate::qdisc::QdiscCounts;
use crate::settings::{QueueSettings, SettingsPage};
use crate::tx_batch::TxBatch;
use crate::waits::{FlushPage, Flushes, Waits, WorkerStats};

/// The phase in which a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Phase {
    /// The worker receives and sends.
    Run,
    /// The worker receives no more packets from outside, and sends waiting ones.
    Drain,
    /// The worker's thread returns.
    Halt,
}

impl Phase {
    /// Returns the phase that a mailbox's word contains.
    fn of(word: Word) -> Phase {
        match word.phase() {
            0 => Phase::Run,
            1 => Phase::Drain,
            _ => Phase::Halt,
        }
    }
}

/// State that a worker shares with the rest of the program: counters, orders, and a bell. No other
/// worker writes its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct WorkerSlot {
    /// The mailbox with the phase and the orders.
    mailbox: Mailbox<Order>,
    /// The mailbox's word at the beginning of the last turn. Only the worker writes it.
    seen: AtomicU32,
    /// For each queue: the name of its port, its number in the port, and its counters.
    queues: Vec<(String, usize, Arc<QueueStats>)>,
    /// Twice the completed turns, plus one during a turn.
    turns: AtomicU64,
    /// True if the last turn moved no packet and left none waiting.
    quiet: AtomicBool,
    ended: AtomicBool,
    waits: Arc<Waits>,
    bell: EventFd,
    notice: Arc<Notice>,
}

impl WorkerSlot {
    /// Creates the slot of a worker that has not ended. `notice` is the engine's; `queues` has, for
    /// each queue, the name of its port, its number there, and its counters.
    pub fn new(
        notice: &Arc<Notice>,
        queues: Vec<(String, usize, Arc<QueueStats>)>,
    ) -> Result<Arc<WorkerSlot>> {
        notice.unended();
        Ok(Arc::new(WorkerSlot {
            mailbox: Mailbox::new(),
            seen: AtomicU32::new(0),
            queues,
            turns: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waits: Arc::default(),
            bell: EventFd::new()?,
            notice: notice.clone(),
        }))
    }

    pub fn phase(&self) -> Phase {
        Phase::of(self.mailbox.word())
    }

    /// Changes the phase, and wakes the worker.
    pub fn set_phase(&self, phase: Phase) {
        self.mailbox.set_phase(phase as u32);
        self.bell.signal();
    }

    /// Adds an order, and wakes the worker.
    ///
    /// # Errors
    /// Returns the order if too many orders wait already.
    pub fn order(&self, order: Order) -> std::result::Result<(), Order> {
        self.mailbox.post(order)?;
        self.bell.signal();
        Ok(())
    }

    /// Takes all orders; returns `None` if another thread is adding one. Only the worker calls it.
    pub fn take_orders(&self) -> Option<Vec<Order>> {
        self.mailbox.take()
    }

    /// Returns the present word of the mailbox.
    pub fn word(&self) -> Word {
        self.mailbox.word()
    }

    /// Returns the names of the ports of the worker's queues, without repetition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let is_first = |i: &usize| *i == 0 || self.queues[i - 1].0 != self.queues[*i].0;
        (0..self.queues.len()).filter(is_first).map(|i| &*self.queues[i].0)
    }

    /// Returns the numbers of a port's queues that this worker serves.
    pub fn numbers_of(&self, port: &str) -> impl Iterator<Item = usize> {
        self.queues.iter().filter(move |(name, ..)| name == port).map(|(_, number, _)| *number)
    }

    /// Returns the indices of a port's queues in the worker, or the index of one of them; they are
    /// consecutive.
    pub fn queues_of(&self, port: &str, number: Option<usize>) -> Range<usize> {
        let is_meant = |(name, its, _): &(String, usize, _)| {
            name == port && number.is_none_or(|number| number == *its)
        };
        let first = self.queues.iter().position(is_meant).unwrap_or_default();
        first..first + self.queues[first..].iter().take_while(|queue| is_meant(queue)).count()
    }

    /// Returns the number of packets received by these queues of the worker.
    pub fn packets(&self, queues: Range<usize>) -> u64 {
        self.queues[queues].iter().map(|(.., stats)| stats.counts().rx_packets).sum()
    }

    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// Returns the page on which the worker counts its waits.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Marks the beginning of a turn; returns the mailbox's word. Only the worker calls it.
    pub fn begin(&self) -> Word {
        let word = self.mailbox.word();
        self.seen.store(word.bits(), Ordering::Relaxed);
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
        word
    }

    /// Marks the end of a turn; `quiet` is true if the turn moved no packet and left none waiting.
    pub fn end(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Returns true if orders arrived since the last turn began, or since the word `obeyed` was
    /// read.
    pub fn changed(&self, obeyed: Word) -> bool {
        let word = self.mailbox.word();
        word.bits() != self.seen.load(Ordering::Relaxed) || word.has_orders_since(obeyed)
    }

    /// Returns a number that changes with every turn. Returns `None` if the worker is in a turn or
    /// has work, or if `draining` and it has not seen the order to drain.
    pub fn rest(&self, draining: bool) -> Option<u64> {
        let turns = self.turns.load(Ordering::Acquire);
        let quiet = turns.is_multiple_of(2) && self.quiet.load(Ordering::Relaxed);
        let seen = Word::from_bits(self.seen.load(Ordering::Relaxed));
        let knows = !draining || Phase::of(seen) != Phase::Run;
        (quiet && knows).then_some(turns)
    }

    /// Publishes whether the worker's work is done; called by the worker only.
    pub fn publish(&self, ended: bool) {
        if self.ended.load(Ordering::Relaxed) == ended {
            return;
        }
        self.ended.store(ended, Ordering::Release);
        if ended { self.notice.ended() } else { self.notice.unended() }
    }

    /// Wakes the threads that wait for the end, because the worker is about to sleep. Only the
    /// worker calls it.
    ///
    /// Every worker calls this, so the last one wakes the threads. A working engine takes no lock
    /// here, because one of its sources has not ended and no worker drains.
    pub fn rests(&self) {
        let may_be_last = self.phase() != Phase::Run || self.notice.all_ended();
        if may_be_last && self.quiet.load(Ordering::Relaxed) {
            self.notice.tell();
        }
    }

    /// Returns the notice through which the engine's workers report.
    pub fn notice(&self) -> &Arc<Notice> {
        &self.notice
    }

    /// Returns true if every source of the worker has ended and no packet waits to be sent.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Figures that only a queue's owner can read from the device; the worker updates them when it has
/// time.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    rx_missed: AtomicU64,
    rx_nombuf: AtomicU64,
    flushes: FlushPage,
    /// The queue's settings; the worker writes them when one changes.
    pub settings: SettingsPage,
    report: Mutex<DeviceReport>,
}

/// The figures that a device reports of itself.
#[derive(Debug, Default, Clone)]
struct DeviceReport {
    health: Health,
    copies: Copies,
    counts: DriverCounts,
    verified: Option<Verified>,
    pace: Option<Pace>,
    moderation: Moderated,
    qdisc: Option<QdiscCounts>,
}

impl DeviceReport {
    fn of(ops: &mut DriverQueue, counters: &Counters, egress: &Egress) -> DeviceReport {
        let Counters { driver, verified, pace, .. } = *counters;
        let (health, copies) = (ops.health(), ops.caps().copies);
        let moderation = ops.moderator().moderated();
        let qdisc = egress.qdisc_counts();
        DeviceReport { health, copies, counts: driver, verified, pace, moderation, qdisc }
    }
}

impl Slot {
    /// Stores the device's counts so far, and those of the transmit side.
    fn count(&self, counters: &Counters, egress: &Egress) {
        self.flushes.set(&egress.flushes);
        self.rx_missed.store(counters.rx_missed, Ordering::Relaxed);
        self.rx_nombuf.store(counters.rx_nombuf, Ordering::Relaxed);
    }

    /// Reads a device's figures and publishes them. Never waits: returns false if a reader has the
    /// lock, and the next call publishes them.
    pub fn publish(&self, ops: &mut DriverQueue, egress: &Egress) -> bool {
        let mut known = match self.report.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let counters = ops.counters();
        *known = DeviceReport::of(ops, &counters, egress);
        self.count(&counters, egress);
        self.settings.set_rx_ring_len(ops.caps().rx_ring_len);
        true
    }

    /// Publishes the last figures of a queue whose worker ends; waits if a reader has the lock.
    pub fn conclude(&self, ops: &mut DriverQueue, egress: &Egress) {
        let counters = ops.counters();
        let report = DeviceReport::of(ops, &counters, egress);
        self.count(&counters, egress);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn report(&self) -> DeviceReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One port of an engine, with its queues' slots.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub name: String,
    pub driver: String,
    pub flags: DriverFlags,
    pub obtained: Obtained,
    pub queues: Vec<(Arc<QueueStats>, Arc<Slot>)>,
    /// Counters of the pair to which the port belongs; empty for other drivers.
    pub rings: Vec<Arc<QueueStats>>,
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
    /// The packets that the driver copies: none, all or some.
    pub copies: Copies,
    /// Counters of the driver other than packets, over all queues, updated as often as `flushes`.
    /// The sum of the causes is at most [`QueueCounts::rx_missed`]; the rest has no known cause.
    pub driver_counts: DriverCounts,
    /// The port's transmit calls, as of its worker's last report. Workers report from time to time
    /// when they are not busy, and at the end.
    pub flushes: Flushes,
    /// The port's health: that of the first queue in trouble, if there is one.
    pub health: Health,
    /// The result of a sink that verifies packets.
    pub verified: Option<Verified>,
    /// The pace of a source that sends at a fixed rate.
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
    /// Returns the statistics of every port, in the order of their definition.
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
    /// Returns the number of packets in rings between workers, computed from the counters of both
    /// ends.
    pub(crate) fn in_rings(&self) -> u64 {
        let counts = self.ports.iter().flat_map(|port| &port.rings).map(|end| end.counts());
        counts.fold(0, |n: u64, c| n.wrapping_add(c.tx_packets).wrapping_sub(c.rx_packets))
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
            // are written.
            let (c, report) = (live.counts(), slot.report());
            stats.counts += c;
            stats.copies = report.copies;
            stats.driver_counts += report.counts;
            stats.flushes += slot.flushes.read();
            stats.counts.rx_missed += slot.rx_missed.load(Ordering::Relaxed);
            stats.counts.rx_nombuf += slot.rx_nombuf.load(Ordering::Relaxed);
            if report.health.kind() < stats.health.kind() {
                stats.health = report.health;
            }
            stats.verified = stats.verified.or(report.verified);
            stats.pace = stats.pace.or(report.pace);
            let (moderation, settings) = (report.moderation, slot.settings.read());
            stats.queues.push(QueueReading { counts: c, moderation, settings });
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
