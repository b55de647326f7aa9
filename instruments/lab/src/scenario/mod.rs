//! Scenarios: code that runs one side of an experiment, a window at a time.
//!
//! A scenario is opened once for each side of a cell, and once more for the control. All of them
//! are there at once and one of them runs: between its windows a bench takes no CPU.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_prof::agree::{Checked, Headline, Means, Reading, Tolerance};
use linerate_prof::profile::Profile;
use linerate_skb::{Data, Pages, Pool};
use serde::{Deserialize, Serialize};

use crate::knobs::Knob;
use crate::settings::Settings;
use crate::window::Window;
use crate::{Code, Error, Result};

mod churn;
mod command;
mod crew;
mod engine;
mod host;
mod missing;
pub(crate) mod pause;
mod pool_figures;

pub(crate) use host::RECEIVER_COUNTERS;
pub use host::play;
#[doc(hidden)]
pub use missing::is_missing_here;

/// All scenarios of this crate.
pub static SCENARIOS: [&dyn Scenario; 4] =
    [&engine::Engine, &churn::Churn, &host::Host, &command::Program];

/// Returns the scenario of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name() == name).copied()
}

/// A scenario to measure.
pub trait Scenario: Sync {
    /// Returns the scenario's name in files.
    fn name(&self) -> &'static str;

    /// Describes the scenario, in sentences: `lab show` prints it.
    fn about(&self) -> &'static str;

    /// Returns the settings that the scenario accepts.
    fn knobs(&self) -> &'static [Knob];

    /// Returns the figures of the scenario's windows, in addition to the
    /// [common](crate::window::COMMON) figures.
    ///
    /// A `command` scenario's are named by its file; it says so by an empty list.
    fn figures(&self) -> &'static [Figure];

    /// Checks that `settings` are valid for a side, and that it can run on this machine. Starts no
    /// program.
    fn check(&self, settings: &Settings, place: &Place) -> Result<()>;

    /// Returns the commands in a side's `settings`, with their arguments: first that of
    /// [`Scenario::probe`], then that of a window. Programs that the scenario always starts, as
    /// `ip`, are left out.
    fn commands(&self, _settings: &Settings, _place: &Place) -> Vec<String> {
        Vec::new()
    }

    /// Returns the commit that a side's `settings` name, and its full name in the repository around
    /// the working directory; `None` if they name none, or one that is unknown here.
    fn commit(&self, _settings: &Settings, _place: &Place) -> Option<(String, String)> {
        None
    }

    /// Starts the program in a side's `settings` to test whether it can run here.
    fn probe(&self, _settings: &Settings, _place: &Place) -> Result<()> {
        Ok(())
    }

    /// Returns true if a window of a side with `settings` takes about as long as requested. If not,
    /// the duration of a run is unknown in advance.
    fn keeps_time(&self, _settings: &Settings) -> bool {
        true
    }

    /// Returns true if every window is a set-up of its own, for instance because it is a separate
    /// process.
    fn sets_up_each_window(&self) -> bool {
        false
    }

    /// Sets up one side, without running it.
    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>>;
}

/// One side, ready to run.
pub trait Bench {
    /// Runs the side for about `time`; returns its figures.
    fn window(&mut self, time: Duration) -> Result<Window>;

    /// Runs the side as [`Bench::window`] does, and calls `end` once when the window is over.
    ///
    /// A bench that then waits for packets that are under way calls it before that: the longer it
    /// waits, the more of other programs' CPU time would count against the window.
    fn window_until(&mut self, time: Duration, end: &mut dyn FnMut()) -> Result<Window> {
        let window = self.window(time)?;
        end();
        Ok(window)
    }

    /// Fills the caches before a window: runs for 2 ms, without counting.
    ///
    /// Windows of a unit follow each other closely, and one that follows another of its own side
    /// would find its lines where it left them. Nothing to do for windows so long that it is no
    /// matter, or each of a new process.
    fn lead_in(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns all CPUs of the side, without repetition: first the measured ones, then those of the
    /// traffic.
    ///
    /// What others take from them is held against its windows. None: those that its windows'
    /// threads are pinned to are all there are.
    fn cpus(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the page size of the packets' memory, such as `2 MiB`; `None` if the side has no
    /// memory of its own.
    fn pages(&self) -> Option<String> {
        None
    }

    /// Runs the side for about `time` more, and returns its profile.
    fn profile(&mut self, _time: Duration) -> Result<Vec<Profile>> {
        Ok(Vec::new())
    }

    /// Ends the side, and returns the fate of every packet of all its windows.
    fn finish(self: Box<Self>) -> Result<Finished>;
}

/// Length of the lead-in: half of it suffices to refill a cache of 2 MiB.
///
/// Source: measured, docs/adr/0009.
const LEAD_IN: Duration = Duration::from_millis(2);

/// Returns the page size of a pool's frames; `None` for the allocator's blocks.
fn pages(pool: &Pool) -> Option<String> {
    (pool.data_from() == Data::Frames).then(|| match pool.pages() {
        Pages::Huge2M => "2 MiB".to_owned(),
        Pages::Base => "the machine's ordinary size".to_owned(),
        _ => "another size".to_owned(),
    })
}

/// Adds the CPU time of a profile's threads by its samples, of which there were `hz` for each
/// second, and by the scheduler's clock, from which the profile's conditions have it. `of` names
/// the threads.
fn check(profile: &mut Profile, hz: u32, of: &str) {
    let known = profile.conditions.cpu_ns.zip(profile.conditions.packets);
    let samples = profile.counted();
    profile.checked = known.map(|(cpu_ns, packets)| checked(of, (samples, hz), cpu_ns, packets));
}

/// Returns the CPU time for each packet by `samples` and by the scheduler's clock, which run
/// independently of each other.
fn checked(of: &str, (samples, hz): (u64, u32), cpu_ns: u64, packets: u64) -> Checked {
    let took = format!("{:.3} s of CPU time, {packets} packets", cpu_ns as f64 / 1e9);
    let cpu = Reading::new("scheduler", Means::CpuTime, cpu_ns as f64 / packets as f64, took);
    let headline = Headline::new(format!("CPU time of {of}"), "ns/packet", 0)
        .by(Reading::of_samples(samples, hz.into(), 1.0 / packets as f64))
        .by(cpu);
    Checked { headline, tolerance: Tolerance::of_samples(samples) }
}

/// A value that a scenario counts.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// The figure's name in formulas.
    pub name: &'static str,
    /// The figure's unit.
    pub unit: &'static str,
    /// A description of the figure, in a sentence.
    pub about: &'static str,
}

/// Declares figures, each with its name, its unit and its meaning.
macro_rules! figures {
    ($($name:literal $unit:literal $about:literal;)*) => {
        &[$(Figure { name: $name, unit: $unit, about: $about }),*]
    };
}
use figures;

/// Concatenates both lists of figures; `N` is their total length.
const fn joined<const N: usize>(one: &[Figure], other: &[Figure]) -> [Figure; N] {
    let mut all = [one[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < one.len() { one[i] } else { other[i - one.len()] };
        i += 1;
    }
    all
}

/// The CPUs, seed and program with which a side runs.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The CPUs to run on: first the measured CPU, second the CPU of its peer or generator.
    pub cpus: Vec<usize>,
    /// The seed of the traffic.
    pub seed: u64,
    /// The path of this program, for child processes; `None` if unknown.
    pub program: Option<PathBuf>,
    /// True once a run must end: a window that waits for another process then ends with an error.
    pub stop: Arc<AtomicBool>,
}

impl Place {
    /// Creates a place for this program on `cpus`. If `cpus` is empty, it takes the last two
    /// allowed CPUs, because kernels send interrupts to the first CPUs by default.
    ///
    /// # Errors
    /// `E-CPU` for a CPU that it may not use, or that is named twice.
    pub fn of(cpus: &[usize], seed: u64) -> Result<Place> {
        let allowed = linerate_sys::thread::allowed_cpus()?;
        for (i, cpu) in cpus.iter().enumerate() {
            let why = match () {
                () if !allowed.contains(cpu) => format!("this process may use {allowed:?}"),
                () if cpus.iter().take(i).any(|other| other == cpu) => "it is named twice".into(),
                () => continue,
            };
            return Err(Error::new(Code::Cpu, format!("cannot run on CPU {cpu}"), why));
        }
        let cpus = match cpus {
            [] => allowed.into_iter().rev().take(2).collect(),
            cpus => cpus.to_vec(),
        };
        // An unknown path of this program is no error here: only a scenario that starts this
        // program as a child reports it.
        Ok(Place { cpus, seed, program: std::env::current_exe().ok(), stop: Arc::default() })
    }
}

/// The result of a side that has ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Finished {
    /// The ledger of all packets.
    pub ledger: Ledger,
    /// Matrices by name, such as `free_matrix[alloc CPU][free CPU]`.
    pub matrices: BTreeMap<String, Vec<Vec<u64>>>,
    /// Figures of the whole side instead of a window, by name: memory held, packets outstanding at
    /// each holder. For a side that is set up several times the run stores their means.
    pub totals: BTreeMap<String, f64>,
    /// Remarks that readers must know, in sentences.
    pub notes: Vec<String>,
}

/// The equation `received + created = sent + consumed + dropped + in_flight`, over all windows of a
/// side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Packets requested from a generator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<u64>,
    /// Offered packets that did not leave the generator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Packets received from a device.
    pub received: u64,
    /// Packets created by the program.
    pub created: u64,
    /// Packets accepted by a device.
    pub sent: u64,
    /// Packets consumed by the program.
    pub consumed: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Packets in flight on the path.
    pub in_flight: u64,
    /// Packets received out of the order of their flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    /// Packets received twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicated: Option<u64>,
    /// Segments sent again by TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmitted: Option<u64>,
    /// True if the two sides of the equation are equal.
    pub balanced: bool,
}

/// Returns the drops of a pool's ledger, by the names of their reasons.
fn dropped(ledger: &linerate_skb::Ledger) -> BTreeMap<String, u64> {
    ledger.dropped.iter().map(|(reason, n)| (reason.name().to_owned(), *n)).collect()
}

/// Returns `free_matrix[CPU that allocated][CPU that freed]`, in the order of the CPUs' numbers.
fn free_matrix(matrix: &linerate_skb::FreeMatrix) -> BTreeMap<String, Vec<Vec<u64>>> {
    let row = |from: &usize| matrix.cpus().iter().map(|to| matrix.frees(*from, *to)).collect();
    [("free_matrix".to_owned(), matrix.cpus().iter().map(row).collect())].into()
}

impl From<&linerate_skb::Ledger> for Ledger {
    fn from(ledger: &linerate_skb::Ledger) -> Ledger {
        Ledger {
            received: ledger.received,
            created: ledger.created,
            sent: ledger.sent,
            consumed: ledger.consumed,
            dropped: dropped(ledger),
            in_flight: ledger.in_flight,
            balanced: ledger.balanced(),
            ..Ledger::default()
        }
    }
}

impl Default for Ledger {
    /// Returns an empty ledger, which is balanced.
    fn default() -> Ledger {
        Ledger {
            offered: None,
            unsent: None,
            received: 0,
            created: 0,
            sent: 0,
            consumed: 0,
            dropped: BTreeMap::new(),
            in_flight: 0,
            reordered: None,
            duplicated: None,
            retransmitted: None,
            balanced: true,
        }
    }
}
