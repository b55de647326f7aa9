//! An engine at work on threads of its own, until it is stopped.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_port::{Code, Error, Health, Result, thread};
use linerate_skb::{Ledger, PoolStats};

use crate::stats::{Phase, PortStats, Stats, WorkerSlot};
use crate::waits::WorkerStats;
use crate::worker::Worker;

/// How often it is looked at whether something has come to its end.
const LOOK: Duration = Duration::from_micros(500);
/// How long a halted worker may take to come back from a device's call.
const GRACE: Duration = Duration::from_secs(2);

/// A running engine. Dropping it stops it, without waiting for what is still queued.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<std::io::Result<()>>>,
    slots: Vec<Arc<WorkerSlot>>,
    stats: Stats,
}

impl Running {
    pub(crate) fn start(
        workers: Vec<(Worker, Arc<WorkerSlot>)>,
        stats: Stats,
        cpus: &[usize],
    ) -> Result<Running> {
        let mut running = Running { threads: Vec::new(), slots: Vec::new(), stats };
        for (i, (worker, slot)) in workers.into_iter().enumerate() {
            let cpu = cpus.get(i).copied();
            let (pinned, outcome) = std::sync::mpsc::sync_channel(1);
            let body = move || {
                let pin = cpu.map_or(Ok(()), thread::pin_to_cpu);
                let go = pin.is_ok();
                let _ = pinned.send(pin);
                if go { worker.run() } else { Ok(()) }
            };
            let name = format!("linerate-{i}");
            let thread = std::thread::Builder::new().name(name).spawn(body).map_err(|e| {
                Error::new(Code::System, format!("cannot start worker {i}"), e.to_string())
            })?;
            running.threads.push(thread);
            running.slots.push(slot);
            // An early return drops `running`, which stops what has started.
            outcome.recv().unwrap_or(Ok(()))?;
        }
        Ok(running)
    }

    /// A handle to read it by.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// True once every source has ended and everything has left.
    #[must_use]
    pub fn finished(&self) -> bool {
        let all_ended = self.slots.iter().all(|slot| slot.ended());
        (all_ended && self.at_rest(false)) || self.threads.iter().all(JoinHandle::is_finished)
    }

    /// True if a worker has ended although nobody told it to: [`Running::stop`] says why.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits until it has finished, or for `timeout`; true if it has.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.look_until(timeout, || self.finished())
    }

    /// Stops it: takes nothing in any more, sends what is there for up to `timeout`, and drops the
    /// rest as `stopped` (or, in a ring whose reader has failed, as `peer_gone`).
    #[must_use]
    pub fn stop(mut self, timeout: Duration) -> Stopped {
        let memory_bytes = self.stats.pool.stats().memory_bytes();
        self.all(Phase::Drain);
        self.look_until(timeout, || self.failed() || self.at_rest(true));
        let pool = self.stats.pool.stats();
        let failed = self.halt();
        let (ledger, ports) = (self.stats.ledger(), self.stats.ports());
        let workers = self.stats.workers();
        Stopped { ledger, ports, workers, pool, memory_bytes, failed }
    }

    /// True if nothing is under way: no worker is in a turn or has anything waiting, and no ring
    /// between them holds a packet.
    ///
    /// The rings are looked at between two looks at the workers. A worker that turned meanwhile
    /// shows by its number; one that sleeps while a packet waits for it, by the ring.
    fn at_rest(&self, draining: bool) -> bool {
        let rest = || self.slots.iter().map(|slot| slot.rest(draining));
        let before: Vec<_> = rest().collect();
        let quiet = before.iter().all(Option::is_some);
        quiet && self.stats.in_rings() == 0 && rest().eq(before)
    }

    /// Looks every [`LOOK`] whether `done`, for up to `timeout`; true if it was.
    fn look_until(&self, timeout: Duration, done: impl Fn() -> bool) -> bool {
        let until = Instant::now().checked_add(timeout);
        // A lock that nobody else has, to wait on: the caller's own park token is not ours to take.
        let (lock, never) = (Mutex::new(()), Condvar::new());
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !done() {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let woken = never.wait_timeout(guard, left.min(LOOK));
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn all(&self, phase: Phase) {
        self.slots.iter().for_each(|slot| slot.set_phase(phase));
    }

    /// Ends the threads; what made the first of them fail, if anything did.
    ///
    /// A thread that a device's call holds longer than [`GRACE`] is left behind: it ends when the
    /// call does.
    fn halt(&mut self) -> Option<Error> {
        self.all(Phase::Halt);
        let threads = std::mem::take(&mut self.threads);
        self.look_until(GRACE, || threads.iter().all(JoinHandle::is_finished));
        let mut failed = None;
        for (i, thread) in threads.into_iter().enumerate() {
            let why = match thread.is_finished().then(|| thread.join()) {
                Some(Ok(Ok(()))) => continue,
                Some(Ok(Err(e))) => e.to_string(),
                Some(Err(_)) => "a stage or driver panicked".into(),
                None => "a device's call does not return; the thread was left behind".into(),
            };
            failed.get_or_insert(Error::new(Code::System, format!("worker {i} did not end"), why));
        }
        failed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.halt();
    }
}

/// What a stopped engine did. Displays as its ledger.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stopped {
    /// Where every packet went.
    pub ledger: Ledger,
    /// What passed each port, in the order in which they were named.
    pub ports: Vec<PortStats>,
    /// How each worker passed its time, to its end.
    pub workers: Vec<WorkerStats>,
    /// What its pool had cost when all had left, core by core.
    pub pool: PoolStats,
    /// Memory that the pool held for packets when it was told to stop.
    pub memory_bytes: u64,
    /// Why a worker ended before it was told to, if one did.
    pub failed: Option<Error>,
}

impl Stopped {
    /// The first port that failed for good, and what it says. One that is down may come back: that
    /// is no failure of the run.
    #[must_use]
    pub fn trouble(&self) -> Option<(&str, &Error)> {
        self.ports.iter().find_map(|p| match &p.health {
            Health::Failed(e) => Some((p.name.as_str(), e)),
            _ => None,
        })
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}
