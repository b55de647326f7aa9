//! The scenario `churn`: packets allocated on one CPU and freed on the same or on another; post 004
//! without a network.

mod config;
mod figures;
mod role;
mod stopwatch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linerate_skb::{Pool, PoolStats};
use linerate_sys::tsc::rate_hz;

use crate::knobs::Knob;
use crate::scenario::crew::Crew;
use crate::scenario::pause::pause;
use crate::scenario::{
    Bench, Figure, Finished, LEAD_IN, Ledger, Place, Scenario, free_matrix, pages,
};
use crate::settings::Settings;
use crate::window::Window;
use crate::{Code, Error, Result};
use config::{Config, Free, KNOBS, NAME};
use figures::{Each, FIGURES};
use role::{Both, Counts, Timing, across};
use stopwatch::Probe;
use stopwatch::Stopwatch;

/// The scenario `churn` itself.
#[derive(Debug)]
pub(super) struct Churn;

impl Scenario for Churn {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "Packets are allocated in bulk, their metadata is touched, and they are freed in bulk: on one \
         CPU, or allocated on the first and freed on the second, with a queue between them. \
         Unprivileged; no device and no kernel takes part: micro. Each bulk call is timed by the time \
         stamp counter, without the time waited for the queue; a settled call waits until its stores \
         are in the cache, so that whoever writes a line that another CPU has pays for it, and what \
         timing costs is measured and taken off. At the end of each window three short loops over a \
         pool of their own tell what initialisation is by itself, on lines that the CPU has and on \
         lines that the other one wrote, and what is the allocator's: the rest are missed caches. \
         Under at_free the words that allocation writes all the same count as the allocator's. \
         Threads never sleep in a window: cost_ns has the waiting and the timing in it."
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn figures(&self) -> &'static [Figure] {
        FIGURES
    }

    fn check(&self, settings: &Settings, place: &Place) -> Result<()> {
        cpus(&Config::of(settings)?, place).map(drop)
    }

    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>> {
        let config = Config::of(settings)?;
        let cpus = cpus(&config, place)?;
        Ok(Box::new(Side::open(&config, &cpus)?))
    }
}

/// Returns the CPUs for the side.
fn cpus(config: &Config, place: &Place) -> Result<Vec<usize>> {
    let wanted = config.cpus();
    let mut cpus = place.cpus.clone();
    cpus.truncate(wanted);
    if cpus.len() == wanted && (wanted < 2 || cpus[0] != cpus[1]) {
        return Ok(cpus);
    }
    let (what, have) = ("cannot free packets where they were not allocated", place.cpus.len());
    let why = format!("it needs {wanted} different CPUs, and may use {have}");
    Err(Error::new(Code::Unsupported, what, why)
        .fix("free = \"local\", or a machine with two CPUs"))
}

/// A side that is set up.
struct Side {
    crew: Crew<Arc<AtomicBool>, (Counts, Stopwatch)>,
    pool: Pool,
    /// The pool of the probe, whose packets are counted separately.
    apart: Pool,
    /// The counts of each thread in all windows.
    each: Each,
}

impl Side {
    fn open(config: &Config, cpus: &[usize]) -> Result<Side> {
        let pool = config.pool(config.pool_frames)?;
        let (apart, probe) = Probe::new(config)?;
        let (settled, batch) = (config.settled, config.batch);
        let hz = ticks_hz();
        let mut crew = Crew::new();
        match (config.free, cpus) {
            (Free::Remote, &[near, far, ..]) => {
                let (allocates, frees) = across(config, &pool, probe);
                crew.hire("alloc", near, true, Timing::boxed(allocates, settled, batch, hz))?;
                crew.hire("free", far, true, Timing::boxed(frees, settled, batch, hz))?;
            }
            (_, cpus) => {
                let both = Timing::boxed(Both::new(config, &pool, probe), settled, batch, hz);
                crew.hire("alloc and free", cpus.first().copied().unwrap_or(0), true, both)?;
            }
        }
        Ok(Side { crew, pool, apart, each: Vec::new() })
    }

    /// Returns the locations of packets that were allocated and not freed, computed from the
    /// threads' counts.
    fn outstanding(&self) -> [(&'static str, u64); 3] {
        let sum =
            |of: fn(&Counts) -> u64| self.each.iter().map(|(counts, _)| of(counts)).sum::<u64>();
        let (allocs, frees) = (sum(|c| c.alloc.all()), sum(|c| c.free.all()));
        let (handed, taken) = (sum(|c| c.handed), sum(|c| c.taken));
        [
            ("where they were allocated", allocs.saturating_sub(handed.max(frees))),
            ("the queue", handed.saturating_sub(taken)),
            ("where they are freed", taken.saturating_sub(frees)),
        ]
    }
}

impl Bench for Side {
    fn window(&mut self, time: Duration) -> Result<Window> {
        let stop = Arc::new(AtomicBool::new(false));
        self.crew.order(&stop);
        pause(time);
        stop.store(true, Ordering::Relaxed);
        let (times, now) = self.crew.collect()?;
        self.each.resize_with(now.len(), || (Counts::default(), now[0].1));
        for ((sum, watch), (counts, own)) in self.each.iter_mut().zip(&now) {
            (*sum, *watch) = (sum.plus(counts), *own);
        }
        let packets = now.iter().map(|(counts, _)| counts.free.all()).sum();
        let window = Window::of(times);
        Ok(Window { packets, figures: figures::of(&now), ..window })
    }

    fn lead_in(&mut self) -> Result<()> {
        self.window(LEAD_IN).map(drop)
    }

    fn pages(&self) -> Option<String> {
        pages(&self.pool)
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        let (outstanding, found) = (self.outstanding(), self.pool.ledger().in_flight);
        self.crew.dismiss()?;
        let (stats, ledger, apart) = (self.pool.stats(), self.pool.ledger(), self.apart.ledger());
        let explained: u64 = outstanding.iter().map(|(_, packets)| packets).sum();
        let ours = apart.balanced() && apart.in_flight == 0;
        let balanced = ledger.balanced() && ledger.in_flight == 0 && explained == found && ours;
        let mut totals = totals(&self.each, &stats);
        totals.insert("outstanding".into(), found as f64);
        for (holder, packets) in outstanding {
            totals.insert(format!("outstanding: {holder}"), packets as f64);
        }
        Ok(Finished {
            ledger: Ledger { balanced, ..Ledger::from(&ledger) },
            matrices: free_matrix(&stats.matrix),
            totals,
            notes: notes(found, &stats),
        })
    }
}

/// Returns the figures of all windows, including those for warming up.
fn totals(each: &Each, stats: &PoolStats) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    let mut add = |name: &str, value: Option<f64>| {
        totals.extend(value.map(|value| (name.to_owned(), value)));
    };
    for (i, (counts, watch)) in each.iter().enumerate() {
        add(&format!("allocs_w{i}"), Some(counts.alloc.all() as f64));
        add(&format!("frees_w{i}"), Some(counts.free.all() as f64));
        add(&format!("ticks_per_alloc_w{i}"), watch.per_packet(&counts.alloc));
        add(&format!("ticks_per_free_w{i}"), watch.per_packet(&counts.free));
        add(&format!("timer_ticks_w{i}"), Some(watch.cost_ticks as f64));
    }
    add("skb_ticks_by_call", figures::by_call(each));
    add("skb_ticks_by_cpu", figures::by_cpu(each));
    let (hits, misses, discards) = stats.hot_lists();
    add("hits", Some(hits as f64));
    add("misses", Some(misses as f64));
    add("discards", Some(discards as f64));
    add("locks", Some(stats.locks.taken as f64));
    add("contended", Some(stats.locks.contended as f64));
    add("memory_bytes", Some(stats.memory_bytes() as f64));
    add("remote_share_pct", stats.matrix.remote_share().map(|share| share * 100.0));
    totals
}

fn notes(outstanding: u64, stats: &PoolStats) -> Vec<String> {
    let cpus: Vec<String> = stats.matrix.cpus().iter().map(usize::to_string).collect();
    let mut notes = vec![format!("rows and columns of free_matrix: CPU {}", cpus.join(", "))];
    if outstanding > 0 {
        notes.push(
            "packets that were outstanding when the last window ended were freed after it"
                .to_owned(),
        );
    }
    notes
}

/// Returns the clock's ticks a second, measured once in a process: a rough value suffices, because
/// only the limit for interruptions uses it.
fn ticks_hz() -> f64 {
    static HZ: OnceLock<f64> = OnceLock::new();
    *HZ.get_or_init(|| rate_hz(Duration::from_millis(5)))
}

#[cfg(test)]
mod tests;
