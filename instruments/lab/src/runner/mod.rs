//! Runs an experiment as requested: cell by cell, pair by pair, until the pairs suffice or it is
//! interrupted.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use cell::Pace;
use linerate_prof::conditions::rfc3339;
use serde_json::Value;
use unit::{Machine, World};

use crate::experiment::{Cell, Experiment};
use crate::record::{Effect, RequestRecord, Resumed, Run, RunState, SCHEMA, Store};
use crate::scenario::{Place, named};
use crate::settings::wrong;
use crate::{Code, Error, Result};

mod cell;
mod unit;

/// A run to be made.
#[derive(Debug, Clone)]
pub struct Request {
    /// The experiment to run.
    pub experiment: Experiment,
    /// True for the quick subset only, in at most 60 s.
    pub quick: bool,
    /// Factor values of the cells to run; any one of several values of a factor.
    pub only: Vec<(String, String)>,
    /// Most pairs of a cell, as a multiple of the pairs that must be undisturbed:
    /// [`Plan::ATTEMPTS`](crate::experiment::Plan::ATTEMPTS) unless asked otherwise.
    pub attempts: u32,
    /// The seed of the order of sides, and of the traffic.
    pub seed: u64,
    /// The place of the run: CPUs and this program.
    pub place: Place,
    /// The directory for runs.
    pub dir: PathBuf,
    /// The directory of an interrupted run to continue.
    pub resume: Option<PathBuf>,
    /// The command, for the record.
    pub argv: Vec<String>,
    /// The user's note on the run.
    pub note: Option<String>,
    /// Sources and compiler of this program, for the record.
    pub built: Built,
}

/// The origin of a program, as far as its build recorded it.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// The commit of the program.
    pub commit: Option<String>,
    /// The compiler's version, as the compiler prints it.
    pub rustc: Option<String>,
}

/// The progress of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress<'a> {
    /// The running cell, such as `change=both rate=fixed`.
    pub cell: &'a str,
    /// The cell's number, from 1, and the number of cells.
    pub cell_number: usize,
    /// Number of cells in this run.
    pub cells: usize,
    /// Number of pairs accepted for the headline's clock.
    pub accepted: usize,
    /// Number of pairs tried.
    pub attempted: usize,
    /// The headline's effect so far.
    pub effect: Option<&'a Effect>,
    /// Upper bound of the time left at the current pace; a cell may end earlier.
    pub left: Option<Duration>,
}

/// An observer of a run.
pub trait Observer {
    /// Reports that a pair or a cell is done.
    fn progress(&mut self, progress: &Progress<'_>);

    /// Receives a remark, such as the reason why a cell cannot run here.
    fn note(&mut self, text: &str);

    /// Returns true once the run is to end early; finished pairs are kept.
    fn interrupted(&self) -> bool;
}

/// Runs the experiment and stores the run. An interrupted run is returned too, incomplete.
///
/// # Errors
/// `E-EXPERIMENT`, `E-RUN`, `E-FILE` if it cannot be kept, and what a scenario fails with. The
/// pairs so far stay in the run's directory, and [`Request::resume`] goes on with them.
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
    /// Numbers of pairs at which the run checks whether they suffice.
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
            state.know_set_ups(&request.experiment);
            let (started, argv) = (rfc3339(SystemTime::now()), request.argv.clone());
            let resumed = Resumed { started, argv, tool: tool(&request.built), env };
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

impl Request {
    /// Returns the request of the interrupted run in `dir`. The caller adds the command, the path
    /// of this program, and its commit.
    ///
    /// # Errors
    /// `E-RUN` if it is no run, or another version's; `E-FILE`.
    pub fn resuming(dir: &Path) -> Result<Request> {
        let (state, name) = RunState::begun(dir)?;
        let request = state.request;
        Ok(Request {
            experiment: Experiment::parse(&state.toml, &name)?,
            quick: request.quick,
            only: request.only,
            attempts: request.attempts,
            seed: request.seed,
            place: Place {
                cpus: request.cpus,
                seed: request.traffic_seed,
                program: None,
                stop: Arc::default(),
            },
            dir: beside(dir).into(),
            resume: Some(dir.into()),
            argv: Vec::new(),
            note: request.note,
            built: Built::default(),
        })
    }

    /// Returns true if `cell` has the requested value of each factor that was named, or one of
    /// them.
    #[must_use]
    pub fn selects(&self, cell: &Cell) -> bool {
        self.only.iter().all(|(factor, _)| {
            let of_factor = self.only.iter().filter(|(name, _)| name == factor);
            of_factor.into_iter().any(|one| cell.at.contains(one))
        })
    }

    /// Returns the selected cells, in the experiment's order, with their indices in the grid.
    pub(super) fn cells(&self) -> Result<Vec<(usize, &Cell)>> {
        let all = self.experiment.cells(self.quick);
        let cells: Vec<(usize, &Cell)> = all.filter(|(_, cell)| self.selects(cell)).collect();
        if !cells.is_empty() {
            return Ok(cells);
        }
        let only: Vec<String> = self.only.iter().map(|(name, at)| format!("{name}={at}")).collect();
        let subset = if self.quick { "the quick subset of " } else { "" };
        let why = format!("no cell of {subset}{} has {}", self.experiment.id, only.join(" "));
        Err(wrong(0, why).fix(format!("it has: {}", factors(&self.experiment))))
    }

    /// Returns the full name of each commit that a side of a selected cell names, by that name;
    /// commits that are unknown here are left out.
    fn commits(&self) -> BTreeMap<String, String> {
        let cells = self.experiment.cells(self.quick).filter(|(_, cell)| self.selects(cell));
        let sides = cells.flat_map(|(_, cell)| [(cell, &cell.a), (cell, &cell.b)]);
        sides.filter_map(|(cell, side)| named(&cell.scenario)?.commit(side, &self.place)).collect()
    }

    /// Begins a new run of the request, on a machine described by `env`.
    pub(super) fn begin(&self, env: Value) -> Result<(Store, RunState)> {
        let started = rfc3339(SystemTime::now());
        let id = started.replace(['-', ':'], "") + "-" + &self.experiment.id;
        let mut request = RequestRecord {
            schema: SCHEMA.into(),
            id,
            started,
            seed: self.seed,
            quick: self.quick,
            only: self.only.clone(),
            attempts: self.attempts,
            cpus: self.place.cpus.clone(),
            traffic_seed: self.place.seed,
            argv: self.argv.clone(),
            note: self.note.clone(),
            commits: self.commits(),
            tool: tool(&self.built),
            env,
        };
        let store = Store::create(&self.dir, &self.experiment, &mut request)?;
        Ok((store, RunState::new(request, &self.experiment.toml)))
    }

    /// Checks that the run in `dir` was started with this request.
    pub(super) fn is_of(&self, state: &RunState, dir: &Path) -> Result<()> {
        let request = &state.request;
        let commits = self.commits();
        let is_other = |(name, whole): &(&String, &String)| {
            commits.get(*name).is_some_and(|now| now != *whole)
        };
        let commit = request.commits.iter().find(is_other);
        let of_commit = commit.map_or(String::new(), |(name, _)| format!("the commit of {name}"));
        let differs = [
            ("the experiment's file", self.experiment.toml != state.toml),
            ("the seed", self.seed != request.seed || self.place.seed != request.traffic_seed),
            ("--quick", self.quick != request.quick),
            ("--only", self.only != request.only),
            ("the CPUs", self.place.cpus != request.cpus),
            ("--attempts", self.attempts != request.attempts),
            (of_commit.as_str(), commit.is_some()),
        ];
        let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) else { return Ok(()) };
        let why = format!("a resumed run keeps its settings: {what} cannot be changed");
        Err(Error::new(Code::Run, format!("cannot go on with {}", dir.display()), why)
            .fix("start another run"))
    }
}

fn factors(experiment: &Experiment) -> String {
    let each: Vec<String> = experiment
        .factors
        .iter()
        .map(|factor| {
            let levels: Vec<&str> = factor.levels.iter().map(|level| level.name.as_str()).collect();
            format!("{} = {}", factor.name, levels.join(" | "))
        })
        .collect();
    if each.is_empty() { "no factors".into() } else { each.join("; ") }
}

/// Returns the version, commit, `build_id`, rustc and `target_cpu` of the program; `unknown` for
/// each that is unknown.
///
/// The commit and the compiler are the caller's to say: only the program's build knows what it is
/// built from and by. The build ID is a sum over the program's file.
///
/// Cost: reads the program's file once in a process.
pub(super) fn tool(built: &Built) -> BTreeMap<String, String> {
    static BUILD_ID: LazyLock<Option<String>> = LazyLock::new(|| {
        let program = std::fs::read("/proc/self/exe").ok()?;
        let mut hasher = DefaultHasher::new();
        program.hash(&mut hasher);
        Some(format!("{:016x}", hasher.finish()))
    });
    let said = |value: Option<&String>| value.cloned().unwrap_or_else(|| "unknown".into());
    BTreeMap::from([
        ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ("commit".into(), said(built.commit.as_ref())),
        ("build_id".into(), said(BUILD_ID.as_ref())),
        ("rustc".into(), said(built.rustc.as_ref())),
        ("target_cpu".into(), target_cpu()),
    ])
}

/// Returns the architecture, with the extensions that the compiler was allowed to use.
fn target_cpu() -> String {
    let features = [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("lse", cfg!(target_feature = "lse")),
        ("sve", cfg!(target_feature = "sve")),
    ];
    let used: Vec<&str> =
        features.iter().filter(|(_, used)| *used).map(|(name, _)| *name).collect();
    let used = if used.is_empty() { "baseline".into() } else { used.join(" ") };
    format!("{} {used}", std::env::consts::ARCH)
}

/// Returns the directory that contains the run in `dir`.
fn beside(dir: &Path) -> &Path {
    // The parent of a name alone is empty.
    dir.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
