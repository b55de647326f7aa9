//! One trial on a real path: a generator before it, a verifying sink behind it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linerate_datapath::{PortStats, Running, Stopped, WorkerStats};
use linerate_sys::thread::pin_to_cpu;

use super::outcome::Trial;
use super::search::{Prober, Step};
use super::setup::{DRAIN, Setup};
use crate::watch::{self, Watch};
use crate::window::Window;
use crate::{Code, Error, Result};

/// Extra time that packets due at the very end may take to leave. It hides an overload of a
/// thousandth of a trial of 1 s, which is a fifth of the width that is searched for.
const GRACE: Duration = Duration::from_millis(1);
/// The delay of a trial's end after which the trial has hidden more than that.
const LATE: Duration = Duration::from_millis(2);
/// The interval at which a wait checks for a failed worker.
const LOOK: Duration = Duration::from_millis(100);

/// A path, and who follows the trials on it.
pub struct Path<'a> {
    setup: &'a Setup,
    follow: &'a mut dyn FnMut(&Step<'_>) -> bool,
}

impl<'a> Path<'a> {
    /// Creates a path to search; `follow` receives each trial, and ends the search by returning
    /// false.
    pub fn new(setup: &'a Setup, follow: &'a mut dyn FnMut(&Step<'_>) -> bool) -> Path<'a> {
        Path { setup, follow }
    }
}

impl std::fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Path").field("setup", self.setup).finish_non_exhaustive()
    }
}

impl Prober for Path<'_> {
    fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
        let path = self.setup;
        // On a thread of its own, which may be pinned without this one's being so ever after.
        thread::scope(|scope| {
            let body = || {
                if let Some(far) = path.cpus.last() {
                    pin_to_cpu(*far)?;
                }
                one(path, load_pps, seconds)
            };
            let waiting = thread::Builder::new().name("linerate-ndr".into());
            let waiting = waiting.spawn_scoped(scope, body).map_err(|e| lost(e.to_string()))?;
            waiting.join().unwrap_or_else(|_| Err(lost("it panicked")))
        })
    }

    fn go_on(&mut self, step: &Step<'_>) -> bool {
        (self.follow)(step)
    }
}

/// Makes a trial on the calling thread.
///
/// That thread is on the generator's CPU or on none in particular. On the path's it would be what
/// the path's worker waits for.
fn one(setup: &Setup, load_pps: u64, seconds: f64) -> Result<Trial> {
    let offered = ((load_pps as f64 * seconds) as u64).max(1);
    let engine = setup.trial(load_pps, offered)?;
    let asked = Duration::from_secs_f64(seconds) + GRACE;
    let watch = Watch::start(&setup.cpus)?;
    let running = engine.start()?;
    let wall = wait(&running, asked);
    let mut window = Window { wall_ns: wall.as_nanos() as u64, ..Window::default() };
    watch.stop(&mut window)?;
    let stopped = settled(running.stop(DRAIN))?;
    let (forwarded, faults) = verified(&stopped);
    let pace = stopped.ports.iter().find_map(|port| port.pace);
    // What went in at A is what left the generator: there is nothing else on that wire.
    let into = stopped.ports.iter().find(|port| port.name.starts_with('a'));
    let sent = into.map_or(0, |port| port.counts.tx_packets);
    Ok(Trial {
        load_pps,
        asked_s: seconds,
        offered,
        unsent: offered.saturating_sub(sent),
        forwarded: forwarded.min(offered),
        faults,
        late_p99_ns: pace.and_then(|pace| pace.late_p99_ns),
        path_asleep_pct: stopped.workers.first().filter(|_| setup.is_ours()).and_then(asleep_pct),
        disturbed: disturbed(&window, wall.saturating_sub(asked)),
    })
}

/// Returns the disturbance that took CPU time from a trial, if there was one; the trial's result
/// plays no part.
///
/// By the CPUs, not by how long the path's worker waited for its own: one that sleeps between bursts
/// waits a little at every wake-up, about 1 % of a trial that is otherwise undisturbed.
fn disturbed(window: &Window, late: Duration) -> Option<String> {
    if late > LATE {
        return Some(format!("it ended {:.1} ms too late", late.as_secs_f64() * 1e3));
    }
    let admission = watch::admit(&[window]);
    if admission.rate { None } else { admission.reason.or(Some("not admitted".into())) }
}

fn asleep_pct(worker: &WorkerStats) -> Option<f64> {
    Some((100.0 * worker.asleep_ns as f64 / worker.ran_ns?.max(1) as f64).min(100.0))
}

/// Waits for `time`, or until a worker fails; how long it was.
///
/// Not until it has finished, as [`Running::wait`] does: a trial through rings may a moment earlier,
/// and every trial is to be as long.
pub(super) fn wait(running: &Running, time: Duration) -> Duration {
    // A lock that nobody else has, to wait on.
    let (lock, never) = (Mutex::new(()), Condvar::new());
    let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    while start.elapsed() < time && !running.failed() {
        let left = time.saturating_sub(start.elapsed()).min(LOOK);
        guard = never.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    start.elapsed()
}

fn lost(why: impl Into<String>) -> Error {
    Error::new(Code::System, "cannot wait for a trial", why)
}

/// A trial that ended whole; its failure if it did not.
pub(super) fn settled(stopped: Stopped) -> Result<Stopped> {
    stopped.check()?;
    if stopped.ledger.difference() != 0 {
        let what = "packets of a trial are not accounted for";
        return Err(Error::new(Code::Run, what, stopped.ledger.to_string()));
    }
    Ok(stopped)
}

/// Packets that came out whole, each once; and those that were twice, out of order or damaged.
pub(super) fn verified(stopped: &Stopped) -> (u64, u64) {
    let found = |port: &PortStats| port.verified;
    let Some(found) = stopped.ports.iter().find_map(found) else { return (0, 0) };
    let bad = found.corrupted + found.duplicated;
    (found.packets.saturating_sub(bad), bad + found.reordered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(a: &str, b: &str) -> Setup {
        Setup { a: a.into(), b: b.into(), size: 60, flows: 1, cpus: Vec::new() }
    }

    #[test]
    fn a_trial_through_rings_loses_nothing_at_a_rate_that_anything_carries() {
        let setup = setup("ring:a", "ring:b");
        let mut follow = |_: &Step<'_>| true;
        // A busy machine may stall for longer than the grace: it is asked until one trial is whole.
        let mut trials =
            (0..20).map(|_| Path::new(&setup, &mut follow).trial(10_000, 0.05).unwrap());
        let whole = trials.find(|trial| trial.forwarded == 500);
        let whole = whole.expect("one of 20 trials of 50 ms is not stalled for 1 ms");
        assert_eq!(
            (whole.offered, whole.unsent, whole.faults, whole.loss_ratio()),
            (500, 0, 0, 0.0)
        );
    }
}
