//! `--place auto`: CPUs for the workers are searched beside the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate::Running;
use linerate_ctl::placement::{EngineGauge, PlacementReport};

use crate::counters::Counters;

/// A search for CPUs that runs on its own thread.
#[derive(Debug)]
pub struct Placing {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<linerate::Result<PlacementReport>>>,
}

impl Placing {
    /// Starts the search. `counters` were started before the workers; without counters, the search
    /// compares CPU time.
    pub fn start(running: &Running, counters: Option<Counters>) -> Placing {
        let over = Arc::new(AtomicBool::new(false));
        let mut gauge = EngineGauge::new(&running.control(), running.stats(), &over);
        if let Some(mut counters) = counters {
            gauge = gauge.meter("cycles", Box::new(move || counters.cycles()));
        }
        let search = std::thread::Builder::new().name("placement".into());
        Placing { over, thread: search.spawn(move || gauge.search()).ok() }
    }

    /// Ends the search for a placement, and returns its result.
    ///
    /// # Errors
    /// Why it did not come to its end.
    pub fn end(mut self) -> linerate::Result<PlacementReport> {
        self.over.store(true, Ordering::Relaxed);
        let done = self.thread.take().map(JoinHandle::join);
        done.and_then(Result::ok).unwrap_or_else(|| {
            let what = "the search for places came to no end";
            Err(linerate::Error::new(
                linerate::Code::System,
                what,
                "it had no thread, or that panicked",
            ))
        })
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
