//! Runs an experiment: cell by cell, pair by pair, until enough is known or it is interrupted.

mod cell;
mod request;
#[cfg(test)]
mod tests;
mod unit;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use linerate_prof::conditions::rfc3339;

use crate::Result;
use crate::experiment::Experiment;
use crate::record::{Effect, Resumed, Run, RunState, Store};
use crate::scenario::Place;
use cell::Pace;
use unit::{Machine, World};

/// A run to be made.
#[derive(Debug, Clone)]
pub struct Request {
    /// The experiment to run.
    pub experiment: Experiment,
    /// Only the quick subset, in at most 60 s.
    pub quick: bool,
    /// Only cells that have all of these factor values.
    pub only: Vec<(String, String)>,
    /// The seed of the order of sides, and of the traffic.
    pub seed: u64,
    /// The place of the run: CPUs and this program.
    pub place: Place,
    /// The directory that runs are kept in.
    pub dir: PathBuf,
    /// The directory of an interrupted run to continue.
    pub resume: Option<PathBuf>,
    /// The command, for the record.
    pub argv: Vec<String>,
    /// The user's note on the run.
    pub note: Option<String>,
    /// What this program was built from and by, for the record.
    pub built: Built,
}

/// The origin of a program, as far as its build knew.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// The commit.
    pub commit: Option<String>,
    /// The compiler's version, as it prints it.
    pub rustc: Option<String>,
}

/// The progress of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress<'a> {
    /// The cell that runs, as `change=both rate=fixed`.
    pub cell: &'a str,
    /// The cell's number, from 1, and the number of cells.
    pub cell_number: usize,
    /// Cells of this run.
    pub cells: usize,
    /// Pairs accepted, for the headline's clock.
    pub accepted: usize,
    /// Pairs tried.
    pub attempted: usize,
    /// The headline's effect so far.
    pub effect: Option<&'a Effect>,
    /// The time left at the current pace; at most, as a cell may end early.
    pub left: Option<Duration>,
}

/// An observer of a run.
pub trait Observer {
    /// A pair is done, or a cell.
    fn progress(&mut self, progress: &Progress<'_>);

    /// Receives a remark, as the reason that a cell cannot run here.
    fn note(&mut self, text: &str);

    /// True once the run is to end early; what there is is kept.
    fn interrupted(&self) -> bool;
}

/// Runs it, and keeps it. An interrupted run is returned too, incomplete.
///
/// # Errors
/// `E-EXPERIMENT`, `E-RUN`, `E-FILE` if it cannot be kept, and what a scenario fails with. The pairs
/// so far stay in the run's directory, and [`Request::resume`] goes on with them.
pub fn run(request: &Request, observer: &mut dyn Observer) -> Result<Run> {
    run_in(&Machine, request, observer)
}

/// A run in progress.
struct Running<'a> {
    world: &'a dyn World,
    request: &'a Request,
    observer: &'a mut dyn Observer,
    /// The directory that the results go to.
    store: Store,
    /// The results so far.
    state: RunState,
    pace: Pace,
    /// Pairs at which it is looked whether they are enough.
    looks: Vec<u32>,
}

fn run_in(world: &dyn World, request: &Request, observer: &mut dyn Observer) -> Result<Run> {
    let cells = request.cells()?;
    let env = world.here(&request.place);
    let (store, state) = match &request.resume {
        None => request.begin(env)?,
        Some(dir) => {
            let (mut store, mut state) = Store::resume(dir)?;
            request.is_of(&state, dir)?;
            let (started, argv) = (rfc3339(SystemTime::now()), request.argv.clone());
            let resumed = Resumed { started, argv, tool: request::tool(&request.built), env };
            store.resumed(&resumed)?;
            state.resumed.push(resumed);
            (store, state)
        }
    };
    for warning in &state.warnings {
        observer.note(&format!("{}: {}", warning.code, warning.text));
    }
    let looks = request.experiment.plan.looks(request.quick);
    let pace = Pace::of(&cells, request, &looks);
    let mut running = Running { world, request, observer, store, state, pace, looks };
    let complete = running.cells(&cells).map_err(|e| running.store.kept(e))?;
    let after = world.here(&request.place);
    let now = rfc3339(SystemTime::now());
    let run = running.state.run(&request.experiment, now, Some(&after), complete)?;
    running.store.finish(&run)?;
    Ok(run)
}
