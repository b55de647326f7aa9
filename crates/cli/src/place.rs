//! The option `--place`: searches for better CPUs for the workers and for their devices' interrupts
//! during a run.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate::{Code, Error, Running};
use linerate_ctl::affinity::{InterruptGuard, Was};
use linerate_ctl::placement::{EngineGauge, PlacementReport};
use linerate_sys::netif::{Interface, NetFolder};

use crate::counters::Cycles;
use crate::run::{Path, planned};
use crate::screen::Screen;
use crate::undo::{self, Record};

/// The interrupts that may be moved. Dropping the value restores them, and then removes the record
/// if they are restored.
#[derive(Default)]
pub struct Interrupts {
    guards: Vec<InterruptGuard>,
    record: Record,
}

impl Interrupts {
    /// Finds the interrupts of a path's open ports; first prints which may be moved, and records
    /// them for `doctor --undo`.
    pub fn find(place: Option<&str>, path: &Path, screen: &Screen) -> Interrupts {
        let Some(how @ ("auto" | "napi")) = place else { return Interrupts::default() };
        let plans = path.ports.iter().filter_map(|(_, text)| planned(&path.drivers, text).ok());
        let mut names: Vec<String> =
            plans.filter_map(|plan| plan.interface().map(str::to_owned)).collect();
        names.sort_unstable();
        names.dedup();
        let (mut guards, mut without, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            match InterruptGuard::found(&name) {
                Ok(guard) => {
                    screen.change(&format!(
                        "note: {} may move to other CPUs until the run ends\n",
                        guard.moved()
                    ));
                    changes.extend(guard.was().map(|was| (name.clone(), was.clone())));
                    guards.push(guard);
                }
                Err(e) if how == "napi" && is_without_threads(&name, &e) => {
                    let what = "gets threads until the run ends; they may move to other CPUs";
                    screen.change(&format!("note: NAPI of {name} {what}\n"));
                    changes.push((name.clone(), Was::NotThreaded));
                    without.push(name);
                }
                Err(e) => stays(how, &name, &e, screen),
            }
        }
        let record = undo::record_moves(&changes, screen);
        for name in without {
            match InterruptGuard::of(&name) {
                Ok(guard) => guards.push(guard),
                Err(e) => stays(how, &name, &e, screen),
            }
        }
        for note in guards.iter().flat_map(InterruptGuard::notes) {
            screen.note(&format!("note: {note}\n"));
        }
        Interrupts { guards, record }
    }

    /// Restores the interrupts, and then removes the record; keeps it if they cannot be restored.
    pub fn end(mut self, screen: &Screen) {
        self.restore(|e| screen.change(&format!("note: {}: {}\n", e.what, e.why)));
    }

    fn restore(&mut self, tell: impl Fn(&Error)) {
        let (guards, record) = (mem::take(&mut self.guards), mem::take(&mut self.record));
        let ends = guards.into_iter().map(|guard| guard.end().inspect_err(&tell));
        // Each of them, also after one that cannot be restored.
        if ends.fold(Ok(()), Result::and).is_ok() {
            record.restored();
        }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // The record that stays tells of an error.
        self.restore(|_| {});
    }
}

/// Returns true if an interface was refused because its NAPI has no threads, which can be started.
fn is_without_threads(interface: &str, e: &Error) -> bool {
    let folder = || Interface::open(interface).and_then(|found| NetFolder::open(&found)).ok();
    e.code == Code::Unsupported
        && folder().and_then(|folder| folder.read("threaded")).is_some_and(|now| now == "0")
}

fn stays(how: &str, interface: &str, e: &Error, screen: &Screen) {
    let fix = match how {
        "auto" if is_without_threads(interface, e) => {
            "--place napi starts NAPI threads for it, if its driver supports them"
        }
        _ => &e.fix,
    };
    let what = format!("the interrupts of {interface} stay on their CPUs");
    screen.note(&format!("note: {what}: {} ({fix})\n", e.why));
}

/// A search for CPUs, which runs on its own thread.
#[derive(Debug)]
pub struct Placing {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<linerate::Result<PlacementReport>>>,
}

impl Placing {
    /// Starts the search. `cycles` was started before the workers; without it, the search compares
    /// CPU time.
    pub fn start(running: &Running, cycles: Option<Cycles>, interrupts: &Interrupts) -> Placing {
        let over = Arc::new(AtomicBool::new(false));
        let mut gauge = EngineGauge::new(&running.control(), running.stats(), &over);
        for guard in &interrupts.guards {
            gauge = gauge.interrupts(guard);
        }
        // The counter sees the workers only, and not the kernel's work for interrupts, so it is not
        // used if interrupts move.
        if let Some(mut cycles) = cycles.filter(|_| interrupts.guards.is_empty()) {
            gauge = gauge.meter("cycles", Box::new(move || cycles.read()));
        }
        let search = std::thread::Builder::new().name("placement".into());
        Placing { over, thread: search.spawn(move || gauge.search()).ok() }
    }

    /// Ends the search for a placement, and returns its result.
    ///
    /// # Errors
    /// The reason why the search did not finish.
    pub fn end(mut self) -> linerate::Result<PlacementReport> {
        self.over.store(true, Ordering::Relaxed);
        let done = self.thread.take().map(JoinHandle::join);
        done.and_then(Result::ok).unwrap_or_else(|| {
            let what = "the search for CPUs did not finish";
            Err(Error::new(
                linerate::Code::System,
                what,
                "its thread could not be started, or panicked",
            ))
        })
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Until it has ended, it may move interrupts, which are restored after this.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
