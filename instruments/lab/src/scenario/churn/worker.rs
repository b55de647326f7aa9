//! A thread on a CPU of its own, which sleeps between windows.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_sys::thread::{pin_to_cpu, set_name};

use super::role::{Counts, Role};
use super::stopwatch::Stopwatch;
use crate::meter::Meter;
use crate::window::ThreadTime;
use crate::{Code, Error, Result};

/// A thread that runs its role on request.
pub(super) struct Worker {
    role: &'static str,
    /// `None` once it is to end.
    windows: Option<SyncSender<Arc<AtomicBool>>>,
    reports: Receiver<Result<Report>>,
    thread: Option<JoinHandle<()>>,
    /// The stopwatch, calibrated on the worker's CPU.
    pub watch: Stopwatch,
}

/// The report of a thread after a window.
pub(super) struct Report {
    pub time: ThreadTime,
    pub counts: Counts,
}

impl Worker {
    /// Starts a thread on `cpu`; it is pinned and calibrated when this returns, and sleeps.
    ///
    /// # Errors
    /// `E-CPU` if it cannot run there, `E-SYSTEM` if it cannot be made.
    pub fn start(
        role: &'static str,
        cpu: usize,
        calibrate: impl FnOnce() -> Stopwatch + Send + 'static,
        work: impl Role,
    ) -> Result<Worker> {
        let (windows, told) = sync_channel(1);
        let (reporter, reports) = sync_channel(1);
        let (ready, begun) = sync_channel(1);
        let body = move || {
            set_name(role);
            let watch = pin_to_cpu(cpu).map(|()| calibrate());
            let result = watch.as_ref().map(|watch| *watch).map_err(Error::clone);
            // Whoever started it waits for this.
            let _ = ready.send(result);
            if let Ok(watch) = watch {
                serve(role, cpu, &watch, work, &told, &reporter);
            }
        };
        let thread = std::thread::Builder::new().name(role.into()).spawn(body);
        let thread =
            thread.map_err(|e| Error::new(Code::System, "cannot start a thread", e.to_string()))?;
        let watch = begun.recv().map_err(|_| gone(role))??;
        Ok(Worker { role, windows: Some(windows), reports, thread: Some(thread), watch })
    }

    /// Begins a window, which lasts until `stop`.
    pub fn begin(&self, stop: &Arc<AtomicBool>) -> Result<()> {
        let windows = self.windows.as_ref().ok_or_else(|| gone(self.role))?;
        windows.send(stop.clone()).map_err(|_| gone(self.role))
    }

    /// Sleeps for `time`, or until the thread is gone.
    pub fn watch_for(&self, time: Duration) -> Result<()> {
        match self.reports.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            // It reports once it is told to stop, and nobody has.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Err(gone(self.role)),
        }
    }

    /// Waits for the thread's report on the window.
    pub fn report(&self) -> Result<Report> {
        self.reports.recv().map_err(|_| gone(self.role))?
    }

    /// Tells it to end. Ask all, and wait for each afterwards: they end together.
    pub fn dismiss(&mut self) {
        self.windows = None;
    }

    /// Waits until a thread that was dismissed has ended.
    pub fn wait(mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(gone(self.role)),
            _ => Ok(()),
        }
    }
}

/// Runs the thread: window by window, until no requester is left.
fn serve(
    role: &str,
    cpu: usize,
    watch: &Stopwatch,
    mut work: impl Role,
    windows: &Receiver<Arc<AtomicBool>>,
    reports: &SyncSender<Result<Report>>,
) {
    let mut meter = Meter::of_this_thread(role, Some(cpu), true);
    while let Ok(stop) = windows.recv() {
        let begun = meter.start();
        // Whether it can be measured or not: the other CPU counts on it.
        let counts = work.turn(&stop, watch);
        let time = begun.and_then(|()| meter.stop());
        if reports.send(time.map(|time| Report { time, counts })).is_err() {
            break;
        }
    }
    work.end();
}

fn gone(role: &str) -> Error {
    Error::new(Code::System, format!("cannot run {role}"), "its thread has ended unexpectedly")
}
