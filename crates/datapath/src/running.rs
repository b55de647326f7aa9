//! A running engine with its own threads.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Health, Result};
use linerate_skb::{Ledger, PoolStats};

use crate::control::Control;
use crate::notice::Notice;
use crate::stats::{PortStats, Stats};
use crate::turns::all_at_rest;
use crate::waits::WorkerStats;
use crate::watch::Watch;
use crate::worker::{CLOSE_MAX, Worker};
use crate::worker_slot::{Phase, WorkerSlot};

/// Longest time for a halted worker to return from a device's call, and to close its devices.
/// It is much longer than [`CLOSE_MAX`], because parts of a close have no deadline.
const GRACE: Duration = Duration::from_secs(3);
/// Longest wait for a thread of the program, such as one that serves a kept port, that was
/// interrupted between two counts, which looks as if packets were lost.
const COUNTS: Duration = Duration::from_millis(100);
const _: () = assert!(
    CLOSE_MAX.as_millis() + 1000 < GRACE.as_millis(),
    "a halt must outlast the close of devices"
);
/// Remedy for a thread that was left behind.
const LEFT_BEHIND: &str =
    "end the process, which frees its devices, and report the driver whose call does not return";

/// A handle that ends waits for an engine: see [`Running::waker`].
#[derive(Debug, Clone)]
pub struct RunningWaker {
    notice: Arc<Notice>,
}

impl RunningWaker {
    /// Ends one wait, the present or the next [`Running::wait`], which returns `Ok(false)`. Several
    /// calls before that count as one. A signal's handler must not call it.
    ///
    /// Cost: a short lock.
    pub fn wake(&self) {
        self.notice.wake();
    }
}

/// A running engine. Dropping the handle stops the engine without waiting for queued packets.
#[derive(Debug)]
#[must_use = "dropping it stops the engine"]
pub struct Running {
    threads: Vec<JoinHandle<()>>,
    slots: Vec<Arc<WorkerSlot>>,
    notice: Arc<Notice>,
    stats: Stats,
}

impl Running {
    pub(crate) fn start(
        workers: Vec<(Worker, Arc<WorkerSlot>)>,
        notice: Arc<Notice>,
        stats: Stats,
        cpus: &[usize],
    ) -> Result<Running> {
        let mut running = Running { threads: Vec::new(), slots: Vec::new(), notice, stats };
        // Dropped before `running`, which waits for the threads.
        let mut gates = Vec::new();
        for (i, (mut worker, slot)) in workers.into_iter().enumerate() {
            let cpu = cpus.get(i).copied();
            let (pinned, outcome) = std::sync::mpsc::sync_channel(1);
            let (gate, opened) = std::sync::mpsc::sync_channel(1);
            gates.push(gate);
            let (notice, own) = (running.notice.clone(), slot.clone());
            let body = move || {
                // After a panic, too, the thread must report that it is over: a halt waits for
                // that.
                let start = || cpu.map_or(Ok(()), |cpu| worker.start_on(cpu));
                let pin = catch_unwind(AssertUnwindSafe(start));
                let pin = pin.unwrap_or_else(|_| Err(unreported(i)));
                let is_pinned = pin.is_ok();
                let _ = pinned.send(pin);
                // No worker runs before all can, because a run changes files and counts.
                let go = is_pinned && opened.recv().is_ok();
                // Send the notice only after `run` has dropped the worker, so that the ledger
                // includes its packets.
                let failed = go.then(|| run(i, worker)).flatten();
                own.set_over();
                notice.tell_over(failed);
            };
            let name = format!("linerate-{i}");
            let thread = std::thread::Builder::new().name(name).spawn(body).map_err(|e| {
                Error::new(Code::System, format!("cannot start worker {i}"), e.to_string())
                    .fix("allow the process more threads: ulimit -u, pids.max of its cgroup")
            })?;
            running.threads.push(thread);
            running.slots.push(slot);
            // If this returns an error, `running` is dropped, which ends the threads started
            // before.
            outcome.recv().unwrap_or_else(|_| Err(unreported(i)))?;
        }
        for gate in gates {
            // The thread of a worker waits for this; if it has ended, its notice says so.
            let _ = gate.send(());
        }
        Ok(running)
    }

    /// Returns a handle with which any thread reads the engine's counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns a handle with which any thread orders changes.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { first: 0, slots: self.slots.clone().into() }
    }

    /// Returns true once every source has ended and every packet has left the engine. Packets that
    /// a device, or a wrapper in front of one, was given and has still to send have left it; those
    /// that a wrapper of a ring between workers withholds have not.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.slots.iter().all(|slot| slot.ended()) && self.at_rest(false)
    }

    /// Returns true if a worker has ended without an order; [`Running::wait`] and
    /// [`Stopped::check`] return its error.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.notice.over() > 0
    }

    /// Returns a reader of changes of the ports' health, for use on any thread.
    ///
    /// While the engine is stopped, ports of rings (`ring:`, and those of
    /// [`Port::pair`](linerate_port::Port::pair)) are reported as [`Health::Finished`], because
    /// their other ends are closed: this is no failure.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.stats.clone(), self.notice.clone())
    }

    /// Returns a handle with which any thread ends [`Running::wait`]: one that waits for a signal,
    /// say.
    #[must_use]
    pub fn waker(&self) -> RunningWaker {
        RunningWaker { notice: self.notice.clone() }
    }

    /// Waits until the engine has finished, or for `timeout`, or until a
    /// [waker](Running::waker) is used; returns true if the engine has finished.
    /// [`Duration::MAX`] waits without limit. A port that goes down but may recover does
    /// not end the wait: [`Running::watch`] reports such a port.
    ///
    /// # Errors
    /// The error of a worker that ended early, or of a port that failed for good. The rest of the
    /// engine goes on until it is stopped.
    ///
    /// Cost:   asleep throughout; the workers wake it when something has come to its end.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let ended = || match self.failure() {
            Some(e) => Some(Err(e)),
            None if self.finished() => Some(Ok(true)),
            None => self.notice.take_woken().then_some(Ok(false)),
        };
        self.notice.wait(after(timeout), ended).unwrap_or(Ok(false))
    }

    /// Stops the engine: receives nothing more, sends waiting packets for up to `timeout`, and
    /// drops the rest as `stopped` (or, in a ring whose reader has failed, as `peer_gone`). If a
    /// worker has failed, the others still send theirs.
    ///
    /// In this time it also waits for devices and wrappers to send the packets that they were
    /// given. If the ledger does not balance afterwards, it is read again for up to 100 ms, because
    /// a thread of the program may have been interrupted between two counts.
    pub fn stop(mut self, timeout: Duration) -> Stopped {
        let memory_bytes = self.stats.pool_stats().memory_bytes();
        self.all(Phase::Drain);
        let drained = || self.at_rest(true).then_some(());
        let _ = self.notice.wait(after(timeout), drained);
        let pool = self.stats.pool_stats();
        let failed = self.halt();
        let ledger = look_until(COUNTS, || self.stats.ledger(), Ledger::balanced);
        let ports = self.stats.ports();
        let workers = self.stats.workers();
        Stopped { ledger, ports, workers, pool, memory_bytes, failed }
    }

    /// Returns the error of the first worker that failed, else of the first port.
    fn failure(&self) -> Option<Error> {
        let port =
            || self.notice.port_failed().then(|| port_failure(&self.stats.ports())).flatten();
        self.notice.failed().or_else(port)
    }

    /// Returns true if no packet is in flight: no worker is in a turn or has packets waiting, and
    /// no ring between workers holds one. If `draining`, workers that are over and the rings that
    /// they read count as empty.
    fn at_rest(&self, draining: bool) -> bool {
        let turns = || self.slots.iter().map(|slot| slot.quiet_turns(draining));
        let reads =
            |worker: usize| !draining || self.slots.get(worker).is_none_or(|slot| !slot.is_over());
        all_at_rest(turns, || self.stats.in_rings(reads) == 0)
    }

    fn all(&self, phase: Phase) {
        self.slots.iter().for_each(|slot| slot.set_phase(phase));
    }

    /// Ends the threads; returns the first failure, if there was one.
    ///
    /// A thread that stays in a device's call longer than [`GRACE`] is not joined: it ends when the
    /// call returns.
    fn halt(&mut self) -> Option<Error> {
        self.all(Phase::Halt);
        let threads = std::mem::take(&mut self.threads);
        let all_over = || (self.notice.over() >= threads.len()).then_some(());
        let all_over = self.notice.wait(after(GRACE), all_over).is_some();
        let mut failed = self.notice.failed();
        for (i, thread) in threads.into_iter().enumerate() {
            if all_over || thread.is_finished() {
                // The worker has already reported how it ended.
                let _ = thread.join();
                continue;
            }
            let why = "a device's call does not return; the thread was left behind";
            let what = format!("worker {i} did not end");
            failed.get_or_insert(Error::new(Code::System, what, why).fix(LEFT_BEHIND));
        }
        failed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.halt();
    }
}

/// The result of a stopped engine. Displays as its ledger, followed by the packets that ports
/// missed, and by FAILED with the cause if the run failed.
#[derive(Debug, Clone)]
#[must_use = "the run may have failed: see `check`"]
#[non_exhaustive]
pub struct Stopped {
    /// The account of every packet.
    pub ledger: Ledger,
    /// Statistics of each port that a worker served, in the order of their definition.
    pub ports: Vec<PortStats>,
    /// Statistics of each worker's time, up to its end.
    pub workers: Vec<WorkerStats>,
    /// Statistics of the pools, by core, when all packets had left or the time for that was over.
    /// The workers had not ended yet, so each still had its hot list.
    pub pool: PoolStats,
    /// Memory that the pools held for packets at the time of the stop.
    pub memory_bytes: u64,
    /// The error of a worker that ended before the stop, if one did.
    pub failed: Option<Error>,
}

impl Stopped {
    /// Returns the error of the run, if it failed, for use with `?`.
    ///
    /// The end of a source and an ordered stop are no failures. A port that is down but may recover
    /// is no failure either.
    ///
    /// # Errors
    /// The error of a worker that ended early; else that of the first port that failed for good;
    /// else a ledger that does not balance.
    pub fn check(&self) -> Result<()> {
        if let Some(e) = self.failed.clone().or_else(|| port_failure(&self.ports)) {
            return Err(e);
        }
        if !self.ledger.balanced() {
            let what = "packets of the run are not accounted for";
            return Err(Error::new(Code::System, what, self.ledger.to_string())
                .fix("this is a bug in linerate or in a driver: report it with this ledger"));
        }
        Ok(())
    }

    /// Returns the first port that failed for good, with its error. A port that is down but may
    /// recover does not count.
    #[must_use]
    pub fn trouble(&self) -> Option<(&str, &Error)> {
        trouble(&self.ports)
    }

    /// Writes a line for each port that lost packets before they were received, or that found no
    /// free frame because the program kept packets.
    fn missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.ledger.held().last().map_or(0, |(_, n)| *n);
        for port in &self.ports {
            let (name, counts) = (&port.name, &port.counts);
            if counts.rx_missed > 0 && counts.polls > 0 {
                write!(f, "missed {} before port '{name}', in no ledger", counts.rx_missed)?;
                writeln!(f, "{}", port.driver_counts.missed_why())?;
            }
            if counts.rx_nombuf > 0 && kept > 0 {
                let times = counts.rx_nombuf;
                writeln!(
                    f,
                    "port '{name}' starved {times} times: the program holds {kept} packets"
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.missing(f)?;
        self.ledger.fmt(f)?;
        self.check().or_else(|e| write!(f, "\nFAILED: {e}"))
    }
}

/// Returns the error of a worker whose thread ended before it reported that it could start.
fn unreported(index: usize) -> Error {
    let why = "its thread ended before it reported";
    Error::new(Code::System, format!("cannot start worker {index}"), why)
        .fix("stderr shows the place of a panic: report it as a bug in linerate")
}

/// Runs a worker to its end; returns the error if it failed.
fn run(index: usize, mut worker: Worker) -> Option<Error> {
    let ran = catch_unwind(AssertUnwindSafe(|| worker.run()));
    // Only now, because a driver that panics at its close while another panic unwinds would end the
    // process.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(worker)));
    let ended = match (ran, dropped) {
        (Ok(Ok(())), Err(panic)) | (Err(panic), _) => Err(panic),
        (Ok(ended), _) => Ok(ended),
    };
    let (why, fix) = match ended {
        Ok(Ok(())) => return None,
        Ok(Err(e)) => (e.to_string(), "the sandbox may forbid epoll or timers: allow them"),
        Err(panic) => {
            let why = format!("a stage or driver panicked: {}", message(panic.as_ref()));
            (
                why,
                "stderr shows the place of the panic; a stage must drop packets that it cannot use, with a reason",
            )
        }
    };
    Some(Error::new(Code::System, format!("worker {index} ended early"), why).fix(fix))
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn trouble(ports: &[PortStats]) -> Option<(&str, &Error)> {
    ports.iter().find_map(|p| match &p.health {
        Health::Failed(e) => Some((p.name.as_str(), e)),
        _ => None,
    })
}

fn port_failure(ports: &[PortStats]) -> Option<Error> {
    let (port, e) = trouble(ports)?;
    Some(Error::new(e.code, format!("port '{port}': {}", e.what), &*e.why).fix(&*e.fix))
}

/// Looks each millisecond until `is_final` accepts what it sees, but no longer than `time`; returns
/// the last look.
fn look_until<T>(time: Duration, look: impl Fn() -> T, is_final: impl Fn(&T) -> bool) -> T {
    let until = Instant::now() + time;
    loop {
        let seen = look();
        if is_final(&seen) || Instant::now() >= until {
            return seen;
        }
        let _ = poll_readable(&[], Some(Duration::from_millis(1)));
    }
}

/// Returns the moment `timeout` from now; `None` if the clock cannot represent it.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn ledger_that_balances_later_is_waited_for_and_one_that_never_does_is_returned() {
        let looks = Cell::new(0);
        let look = || looks.replace(looks.get() + 1);
        assert_eq!(look_until(Duration::from_secs(60), look, |n| *n == 3), 3);
        let start = Instant::now();
        let last = look_until(Duration::from_millis(5), look, |_| false);
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(last + 1, looks.get());
    }
}
