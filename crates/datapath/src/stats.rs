//! Readings of a running engine, which its workers do not notice.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_port::wait::EventFd;
use linerate_port::{
    Copies, Counters, DriverCounts, DriverFlags, DriverQueue, Health, Obtained, Pace, QueueCounts,
    QueueStats, Result, Verified,
};
use linerate_skb::{Error, Ledger, Pool};

use crate::notice::Notice;
use crate::waits::{FlushPage, Flushes, Waits, WorkerStats};

/// A worker's phase of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Receives and sends.
    Run,
    /// Take nothing in any more, send what is there.
    Drain,
    /// Return.
    Halt,
}

/// Between one worker and the rest of the program: words to read, a bell to ring.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    phase: AtomicU8,
    /// The phase that the last turn began in.
    seen: AtomicU8,
    /// Twice the turns done, and one more while the worker is in one.
    turns: AtomicU64,
    /// The last turn moved nothing and left nothing waiting.
    quiet: AtomicBool,
    ended: AtomicBool,
    waits: Arc<Waits>,
    bell: EventFd,
    notice: Arc<Notice>,
}

impl WorkerSlot {
    /// A slot of a worker that has not come to its end; `notice` is its engine's.
    pub fn new(notice: &Arc<Notice>) -> Result<Arc<WorkerSlot>> {
        notice.unended();
        Ok(Arc::new(WorkerSlot {
            phase: AtomicU8::new(Phase::Run as u8),
            seen: AtomicU8::new(Phase::Run as u8),
            turns: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waits: Arc::default(),
            bell: EventFd::new()?,
            notice: notice.clone(),
        }))
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Run,
            1 => Phase::Drain,
            _ => Phase::Halt,
        }
    }

    /// Changes the phase, and wakes the worker for it.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
        self.bell.signal();
    }

    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// Returns the page where the worker counts its waits.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Says that a turn begins. Only the worker calls it.
    pub fn begin(&self) {
        self.seen.store(self.phase() as u8, Ordering::Relaxed);
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Says that it is over, and whether it moved nothing and left nothing waiting.
    pub fn end(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// True if the phase has changed since the last turn began.
    pub fn changed(&self) -> bool {
        self.phase.load(Ordering::Acquire) != self.seen.load(Ordering::Relaxed)
    }

    /// A number that changes with every turn, if the worker is between two and has nothing to do;
    /// while `draining`, only if it knows that it is to take nothing in any more.
    pub fn rest(&self, draining: bool) -> Option<u64> {
        let turns = self.turns.load(Ordering::Acquire);
        let quiet = turns.is_multiple_of(2) && self.quiet.load(Ordering::Relaxed);
        let knows = !draining || self.seen.load(Ordering::Relaxed) != Phase::Run as u8;
        (quiet && knows).then_some(turns)
    }

    /// Says whether its work is done; only the worker calls it.
    pub fn publish(&self, ended: bool) {
        if self.ended.load(Ordering::Relaxed) == ended {
            return;
        }
        self.ended.store(ended, Ordering::Release);
        if ended { self.notice.ended() } else { self.notice.unended() }
    }

    /// Wakes the threads that wait for the end, which this may be: the worker is about to sleep.
    /// Only the worker calls it.
    ///
    /// Every worker does, so the last one tells. An engine at work takes no lock here: a source of
    /// its has not ended, and nobody drains.
    pub fn rests(&self) {
        let may_be_last = self.phase() != Phase::Run || self.notice.all_ended();
        if may_be_last && self.quiet.load(Ordering::Relaxed) {
            self.notice.tell();
        }
    }

    /// Returns the notice by which the engine's workers report.
    pub fn notice(&self) -> &Arc<Notice> {
        &self.notice
    }

    /// True once every source of the worker has ended and nothing waits to be sent.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Figures that only a queue's owner can ask the device for; written when the worker has time.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    rx_missed: AtomicU64,
    rx_nombuf: AtomicU64,
    flushes: FlushPage,
    report: Mutex<DeviceReport>,
}

/// A device's own report.
#[derive(Debug, Default, Clone)]
struct DeviceReport {
    health: Health,
    copies: Copies,
    counts: DriverCounts,
    verified: Option<Verified>,
    pace: Option<Pace>,
}

impl DeviceReport {
    fn of(ops: &DriverQueue, counters: &Counters) -> DeviceReport {
        let Counters { driver, verified, pace, .. } = *counters;
        let (health, copies) = (ops.health(), ops.caps().copies);
        DeviceReport { health, copies, counts: driver, verified, pace }
    }
}

impl Slot {
    /// Stores what a device has counted so far; `flushes` are all that there were.
    fn count(&self, counters: &Counters, flushes: &Flushes) {
        self.flushes.set(flushes);
        self.rx_missed.store(counters.rx_missed, Ordering::Relaxed);
        self.rx_nombuf.store(counters.rx_nombuf, Ordering::Relaxed);
    }

    /// Asks a device. Never waits: if a reader has the lock, the news come next time.
    pub fn publish(&self, ops: &mut DriverQueue, flushes: &Flushes) {
        let counters = ops.counters();
        let report = DeviceReport::of(ops, &counters);
        self.count(&counters, flushes);
        if let Ok(mut known) = self.report.try_lock() {
            *known = report;
        }
    }

    /// Asks it for what must not be missed: waits for a reader that has the lock.
    pub fn conclude(&self, ops: &mut DriverQueue, flushes: &Flushes) {
        let counters = ops.counters();
        let report = DeviceReport::of(ops, &counters);
        self.count(&counters, flushes);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn report(&self) -> DeviceReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One port of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub name: String,
    pub driver: String,
    pub flags: DriverFlags,
    pub obtained: Obtained,
    pub queues: Vec<(Arc<QueueStats>, Arc<Slot>)>,
    /// Counters of the pair that it is an end of; none for other drivers.
    pub rings: Vec<Arc<QueueStats>>,
}

/// A handle to read a running engine by. A reading costs the workers nothing.
#[derive(Debug, Clone)]
pub struct Stats {
    pub(crate) ports: Arc<Vec<Entry>>,
    pub(crate) workers: Arc<[Arc<Waits>]>,
    pub(crate) pool: Pool,
    pub(crate) warnings: Arc<[String]>,
}

/// A reading of one port.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortStats {
    /// Its name in the engine.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Flags that hold for every port of that driver.
    pub flags: DriverFlags,
    /// The settings that the device granted.
    pub obtained: Obtained,
    /// Packets and bytes that passed, over all queues.
    pub counts: QueueCounts,
    /// The packets that its driver copies: none, all or some.
    pub copies: Copies,
    /// Events that its driver has counted beside packets, over all queues, reported as often as
    /// `flushes`. The causes come to at most [`QueueCounts::missed`]; the rest has no known cause.
    pub driver_counts: DriverCounts,
    /// Its transmit calls, as of its worker's last report: workers report now and then while they
    /// have time, and at their end.
    pub flushes: Flushes,
    /// Its health: that of the first queue in trouble.
    pub health: Health,
    /// The result of a verifying sink.
    pub verified: Option<Verified>,
    /// The pace that a paced source kept.
    pub pace: Option<Pace>,
}

impl Stats {
    /// Every port, in the order in which they were named.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStats> {
        self.ports.iter().map(PortStats::read).collect()
    }

    /// Returns a reading of each worker's time.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStats> {
        self.workers.iter().map(|waits| waits.read()).collect()
    }

    /// Returns why a port is down, of the first that is.
    #[must_use]
    pub fn down(&self) -> Option<Error> {
        self.ports().into_iter().find_map(|port| match port.health {
            Health::Down(e) => Some(e),
            _ => None,
        })
    }

    /// Returns the account of every packet.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.pool.ledger()
    }

    /// The pool of all its packets.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the warnings that the engine gave when it was built.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Stats {
    /// Packets that are in rings between workers, as the rings' ends have counted them.
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
        };
        for (live, slot) in &entry.queues {
            // What is said before what is missed, as it is written.
            let (c, report) = (live.counts(), slot.report());
            stats.counts += c;
            stats.copies = report.copies;
            stats.driver_counts += report.counts;
            stats.flushes += slot.flushes.read();
            stats.counts.rx_missed += slot.rx_missed.load(Ordering::Relaxed);
            stats.counts.rx_nombuf += slot.rx_nombuf.load(Ordering::Relaxed);
            if rank(&report.health) < rank(&stats.health) {
                stats.health = report.health;
            }
            stats.verified = stats.verified.or(report.verified);
            stats.pace = stats.pace.or(report.pace);
        }
        stats
    }
}

/// Returns the rank of a queue's health; the lowest of its queues speaks for the port: trouble
/// first, the end only if every queue has ended.
pub(crate) fn rank(health: &Health) -> u8 {
    match health {
        Health::Failed(_) => 0,
        Health::Down(_) => 1,
        Health::Finished => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests;
