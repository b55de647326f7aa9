//! An engine before it runs: its workers, with open ports.

mod build;
mod builder;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_port::wait::{POLL_FDS_MAX, poll_readable};
use linerate_port::{Queue, Result, Want};
use linerate_skb::Holder;

pub use builder::EngineBuilder;

use crate::napi::Napi;
use crate::notice::Notice;
use crate::running::Running;
use crate::stats::Stats;
use crate::worker::Worker;
use crate::worker_slot::WorkerSlot;

/// Longest wait for one port to come up before all ports are checked again.
const STEP: Duration = Duration::from_millis(10);

/// An engine with open ports, ready to run: on its own threads, or on the program's.
#[derive(Debug)]
pub struct Engine {
    workers: Vec<(Worker, Arc<WorkerSlot>)>,
    /// The queues that the program has not taken yet, with the names of their ports.
    kept: Vec<(String, Vec<Queue>)>,
    notice: Arc<Notice>,
    stats: Stats,
    holders: Vec<Holder>,
    cpus: Vec<usize>,
}

impl Engine {
    /// Returns an empty description of an engine.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// Returns a handle to the engine's statistics, which can also be read while the engine runs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Returns the holders of the pool's frames with the maximum of each; the pool's size is the
    /// sum of the maxima.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Returns a warning for every setting that has another effect than requested: a hot list
    /// shorter than its rings, or one that was shortened.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        self.stats.warnings()
    }

    /// Takes the queues of a port that [`EngineBuilder::keep`] keeps for the program: once;
    /// afterwards, and for any other name, none.
    ///
    /// Shape:  the program owns the queues; dropping one closes it, and the workers see the end of
    ///         a ring as that of a source. What waits in a ring then is dropped as `peer_gone`.
    /// Cost:   no call; each queue has its own hot list in the engine's pool.
    #[must_use = "a queue that is dropped is closed"]
    pub fn take(&mut self, port: &str) -> Vec<Queue> {
        let at = self.kept.iter().position(|(name, _)| name == port);
        at.map_or_else(Vec::new, |at| self.kept.swap_remove(at).1)
    }

    /// Waits until no port that a worker serves is down, or for `timeout`; returns true if none of
    /// them is down then. A port whose peer has not connected yet drops packets sent to it.
    #[must_use]
    pub fn wait_until_up(&mut self, timeout: Duration) -> bool {
        let until = Instant::now().checked_add(timeout);
        loop {
            let napis = self.workers.iter_mut().flat_map(|(worker, _)| &mut worker.napis);
            let mut down: Vec<&mut Napi> = napis.filter(|napi| napi.is_down()).collect();
            let left = until.map_or(STEP, |until| until.saturating_duration_since(Instant::now()));
            if down.is_empty() || left.is_zero() {
                return down.is_empty();
            }
            // Arming a queue also handles pending work of its socket.
            let mut is_news = false;
            down.retain_mut(|napi| {
                let armed = napi.arm(Some(Want::Frames));
                is_news |= !armed && !napi.is_down();
                armed
            });
            if !is_news {
                // Queues that could not be armed are no longer in `down`: they are checked again
                // after the wait.
                let fds: Vec<_> = down.iter().take(POLL_FDS_MAX).map(|napi| napi.as_fd()).collect();
                let _ = poll_readable(&fds, Some(left.min(STEP)));
            }
        }
    }

    /// Runs each worker on a thread of its own, pinned if CPUs are set.
    ///
    /// # Errors
    /// `E-SYSTEM` if a thread cannot be started, `E-CPU` if the process may no longer pin threads.
    /// A CPU that was lost since the engine was built is no error: its worker runs on another one
    /// ([`WorkerStats::strayed`](crate::WorkerStats::strayed)).
    pub fn start(self) -> Result<Running> {
        Running::start(self.workers, self.notice, self.stats, &self.cpus)
    }

    /// Returns the workers, for threads of the program's own. The thread of a worker turns and
    /// parks it as long as the program wants, and drains it at the end ([`Worker::drain`]).
    #[must_use]
    pub fn into_workers(self) -> Vec<Worker> {
        self.workers.into_iter().map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_whose_cpu_is_lost_before_the_start_runs_on_another_one_and_says_so() {
        let engine = Engine::builder().port("a", "gen:,count=1000").port("b", "sink:");
        let mut engine = engine.wire("a", "b").build().unwrap();
        // As if the machine had lost this CPU since the engine was built.
        engine.cpus = vec![1023];
        let running = engine.start().unwrap();
        let said = running.stats().workers()[0].strayed().unwrap();
        assert!(said.what.starts_with("a worker pinned to CPU 1023 runs on CPU "), "{said}");
        assert!(said.why.starts_with("there is no CPU 1023"), "{said}");
        assert_eq!(running.wait(Duration::from_secs(20)), Ok(true));
        let stopped = running.stop(Duration::ZERO);
        stopped.check().unwrap();
        assert_eq!(stopped.ports[1].verified.unwrap().packets, 1000);
    }
}
