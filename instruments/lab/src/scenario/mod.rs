//! What can be measured: code that runs one side of an experiment, a window at a time.
//!
//! A scenario is opened once for each side of a cell, and once more for the control. All of them are
//! there at once and one of them runs: between its windows a bench takes no CPU.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_prof::profile::Profile;
use linerate_skb::{Data, Pages, Pool};
use serde::{Deserialize, Serialize};

use crate::knobs::Knob;
use crate::settings::Settings;
use crate::window::Window;
use crate::{Code, Error, Result};

mod churn;
mod command;
mod engine;
mod host;
mod pool_figures;

/// Every scenario.
pub static SCENARIOS: [&dyn Scenario; 4] =
    [&engine::Engine, &churn::Churn, &host::Host, &command::Program];

/// The scenario of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name() == name).copied()
}

/// Something that can be measured.
pub trait Scenario: Sync {
    /// Its name in files.
    fn name(&self) -> &'static str;

    /// What it does, in sentences: `lab show` prints it.
    fn about(&self) -> &'static str;

    /// What it can be told.
    fn knobs(&self) -> &'static [Knob];

    /// What its windows count, beside the [common](crate::window::COMMON) figures.
    ///
    /// A `command` scenario's are named by its file; it says so by an empty list.
    fn figures(&self) -> &'static [Figure];

    /// Checks that a side told `settings` makes sense, and can be run on this machine. It starts nothing.
    ///
    /// # Errors
    /// `E-EXPERIMENT` for settings that it does not have, with their line; an error of
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) where this machine or privilege cannot do it,
    /// with what to do about it.
    fn check(&self, settings: &Settings, place: &Place) -> Result<()>;

    /// Returns the commands that a side told `settings` names, with their arguments: the one that
    /// [`Scenario::probe`] starts, then a window's. What a scenario starts by itself, as `ip`, is left out.
    fn commands(&self, _settings: &Settings, _place: &Place) -> Vec<String> {
        Vec::new()
    }

    /// Asks the program that a side told `settings` names whether it can be run here, by starting it.
    ///
    /// # Errors
    /// As [`Scenario::check`].
    fn probe(&self, _settings: &Settings, _place: &Place) -> Result<()> {
        Ok(())
    }

    /// Whether a window of a side told `settings` takes about as long as it is told to. Otherwise how
    /// long a run takes is not known before it.
    fn keeps_time(&self, _settings: &Settings) -> bool {
        true
    }

    /// Sets up one side. It runs nothing yet.
    ///
    /// # Errors
    /// As [`Scenario::check`], and what goes wrong.
    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>>;
}

/// One side, ready to run.
pub trait Bench {
    /// Runs it for about `time`, and says what it did meanwhile.
    ///
    /// # Errors
    /// Why there is nothing to say; the run ends with it.
    fn window(&mut self, time: Duration) -> Result<Window>;

    /// Makes the caches its own before a window: runs for 2 ms, and nothing is counted.
    ///
    /// Windows of a unit follow each other closely, and one that follows another of its own side
    /// would find its lines where it left them. Nothing to do for windows so long that it is no
    /// matter, or each of a new process.
    ///
    /// # Errors
    /// As [`Bench::window`].
    fn lead_in(&mut self) -> Result<()> {
        Ok(())
    }

    /// The CPUs that all of it runs on: what is measured, then what makes the traffic; each once.
    ///
    /// What others take from them is held against its windows. None: those that its windows' threads
    /// are pinned to are all there are.
    fn cpus(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The pages that its packets' memory was obtained with, as `2 MiB`; `None` if it has none of
    /// its own.
    fn pages(&self) -> Option<String> {
        None
    }

    /// Runs it for about `time` more, and says in which functions the time passed.
    ///
    /// # Errors
    /// Why it cannot be said, which the report tells in the profile's place.
    fn profile(&mut self, _time: Duration) -> Result<Vec<Profile>> {
        Ok(Vec::new())
    }

    /// Ends it, and says what became of every packet of all its windows.
    ///
    /// # Errors
    /// What went wrong while it ended.
    fn finish(self: Box<Self>) -> Result<Finished>;
}

/// A cache of 2 MiB is filled again within half of it.
///
/// Source: measured, docs/adr/0009.
const LEAD_IN: Duration = Duration::from_millis(2);

/// The pages of a pool's frames; the allocator's blocks are none of them.
fn pages(pool: &Pool) -> Option<String> {
    (pool.data_from() == Data::Frames).then(|| match pool.pages() {
        Pages::Huge2M => "2 MiB".to_owned(),
        Pages::Base => "the machine's ordinary size".to_owned(),
    })
}

/// What a scenario counts.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Its name in formulas.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
}

/// Where a side is run.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The CPUs to run on: the first is the measured one, the second its peer's or generator's.
    pub cpus: Vec<usize>,
    /// Of the traffic.
    pub seed: u64,
    /// This program, to be started again as a child; `None` if it is not known.
    pub program: Option<PathBuf>,
    /// True once a run is to end: a window that waits for somebody else ends with an error.
    pub stop: Arc<AtomicBool>,
}

impl Place {
    /// This program on `cpus`, or on the last two CPUs that it may use if none is named: a kernel
    /// sends interrupts to the first, unless told otherwise.
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
        // A scenario that needs a child of ours says so where the program is not known.
        Ok(Place { cpus, seed, program: std::env::current_exe().ok(), stop: Arc::default() })
    }
}

/// What a side leaves when it has ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Finished {
    /// Where every packet went.
    pub ledger: Ledger,
    /// Matrices by name, as `free_matrix[alloc CPU][free CPU]`.
    pub matrices: BTreeMap<String, Vec<Vec<u64>>>,
    /// Figures of the whole side rather than of a window, by name: memory held, packets
    /// outstanding and by whom. Of a side that is set up many times the run keeps their means.
    pub totals: BTreeMap<String, f64>,
    /// What its reader must be told, in sentences.
    pub notes: Vec<String>,
}

/// `received + created = sent + consumed + dropped + in_flight`, over all windows of a side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Packets that a generator was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<u64>,
    /// Of these, those that did not leave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Came in by a device.
    pub received: u64,
    /// Made by the program.
    pub created: u64,
    /// Taken by a device.
    pub sent: u64,
    /// Done with by the program.
    pub consumed: u64,
    /// Dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Still somewhere in the path.
    pub in_flight: u64,
    /// Out of the order of their flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    /// Twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicated: Option<u64>,
    /// Sent again by TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmitted: Option<u64>,
    /// Whether the two sides are equal.
    pub balanced: bool,
}

impl Default for Ledger {
    /// Nothing, which is balanced.
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
