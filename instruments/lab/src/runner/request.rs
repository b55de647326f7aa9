//! The request: the selection of its cells, its stored form, and the check that an interrupted run
//! is the requested one.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use linerate_prof::conditions::rfc3339;
use serde_json::Value;

use crate::experiment::{Cell, Experiment};
use crate::record::{Asked, RunState, SCHEMA, Store};
use crate::runner::{Request, tool};
use crate::scenario::Place;
use crate::settings::wrong;
use crate::{Code, Error, Result};

impl Request {
    /// The request that the interrupted run in `dir` was begun with. Its command, where this
    /// program is, and its commit are for the caller to add.
    ///
    /// # Errors
    /// `E-RUN` if it is no run, or another version's; `E-FILE`.
    pub fn resuming(dir: &Path) -> Result<Request> {
        let (state, name) = RunState::begun(dir)?;
        let asked = state.asked;
        Ok(Request {
            experiment: Experiment::parse(&state.toml, &name)?,
            quick: asked.quick,
            only: asked.only,
            seed: asked.seed,
            place: Place {
                cpus: asked.cpus,
                seed: asked.traffic_seed,
                program: None,
                stop: Arc::default(),
            },
            dir: dir.parent().unwrap_or(Path::new(".")).into(),
            resume: Some(dir.into()),
            argv: Vec::new(),
            note: asked.note,
            commit: None,
        })
    }

    /// Returns the selected cells, in the experiment's order, with their places in the grid.
    ///
    /// # Errors
    /// `E-EXPERIMENT` if it has none, with the values that there are.
    pub(super) fn cells(&self) -> Result<Vec<(usize, &Cell)>> {
        let wanted = |cell: &Cell| self.only.iter().all(|one| cell.at.contains(one));
        let all = self.experiment.cells(self.quick);
        let cells: Vec<(usize, &Cell)> = all.filter(|(_, cell)| wanted(cell)).collect();
        if !cells.is_empty() {
            return Ok(cells);
        }
        let only: Vec<String> = self.only.iter().map(|(name, at)| format!("{name}={at}")).collect();
        let subset = if self.quick { "the quick subset of " } else { "" };
        let why = format!("no cell of {subset}{} has {}", self.experiment.id, only.join(" "));
        Err(wrong(0, why).fix(format!("it has: {}", factors(&self.experiment))))
    }

    /// Begins a run of it, on a machine that is `env`.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be kept.
    pub(super) fn begin(&self, env: Value) -> Result<(Store, RunState)> {
        let started = rfc3339(SystemTime::now());
        let id = started.replace(['-', ':'], "") + "-" + &self.experiment.id;
        let mut asked = Asked {
            schema: SCHEMA.into(),
            id,
            started,
            seed: self.seed,
            quick: self.quick,
            only: self.only.clone(),
            cpus: self.place.cpus.clone(),
            traffic_seed: self.place.seed,
            argv: self.argv.clone(),
            note: self.note.clone(),
            tool: tool::tool(self.commit.as_deref()),
            env,
        };
        let store = Store::create(&self.dir, &self.experiment, &mut asked)?;
        Ok((store, RunState::new(asked, &self.experiment.toml)))
    }

    /// Checks that the run in `dir` was started with this request.
    ///
    /// # Errors
    /// `E-RUN` with what differs.
    pub(super) fn is_of(&self, state: &RunState, dir: &Path) -> Result<()> {
        let asked = &state.asked;
        let differs = [
            ("the experiment's file", self.experiment.toml != state.toml),
            ("the seed", self.seed != asked.seed || self.place.seed != asked.traffic_seed),
            ("--quick", self.quick != asked.quick),
            ("--only", self.only != asked.only),
            ("the CPUs", self.place.cpus != asked.cpus),
        ];
        let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) else { return Ok(()) };
        let why = format!("it was begun otherwise: {what} cannot be changed meanwhile");
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
