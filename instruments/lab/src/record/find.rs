//! Runs, found and read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::experiment::Experiment;
use crate::record::state::{self, EXPERIMENT, REQUEST, RUN, RunState};
use crate::record::{Head, Run, header, lines};
use crate::{Code, Error, Result};

/// Directories that are looked at for runs.
const LISTED_MAX: usize = 100_000;

/// A run in a directory of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The directory of the run.
    pub dir: PathBuf,
    /// The run's head, or the reason that it cannot be read.
    pub head: Result<Head>,
}

/// Reads a run: its directory, or its `run.json`. One that was killed before it came to that is put
/// together from its pairs, incomplete.
///
/// # Errors
/// `E-FILE`; `E-RUN` for another schema or something else, with file and line.
pub fn read(path: &Path) -> Result<Run> {
    if !path.is_dir() {
        return document(path);
    }
    let whole = path.join(RUN);
    if whole.exists() {
        return document(&whole);
    }
    let (state, _) = RunState::read(path)?;
    let experiment = Experiment::parse(&state.toml, &path.join(EXPERIMENT).display().to_string())?;
    state.run(&experiment, state::last_written(path), None, false)
}

/// The runs in a directory, the oldest first.
///
/// # Errors
/// `E-FILE` if it cannot be read.
pub fn list(dir: &Path) -> Result<Vec<Listed>> {
    let io = |e: std::io::Error| lines::failed("read", dir, &e);
    let mut runs = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)?.take(LISTED_MAX) {
        let dir = entry.map_err(io)?.path();
        if dir.join(RUN).exists() || dir.join(REQUEST).exists() {
            runs.push(Listed { head: head(&dir), dir });
        }
    }
    let started = |run: &Listed| run.head.as_ref().map(|head| head.started.clone()).ok();
    runs.sort_by_cached_key(|run| (started(run), run.dir.clone()));
    Ok(runs)
}

/// The run that is meant by `name`: a path, `last` for the latest in `dir`, or the name of one there.
///
/// # Errors
/// `E-RUN` if there is none.
pub fn find(dir: &Path, name: &str) -> Result<PathBuf> {
    let missing = |why: String| {
        Error::new(Code::Run, format!("cannot find run {name}"), why)
            .fix(format!("ls {}", dir.display()))
    };
    if name == "last" {
        let latest = list(dir)?.into_iter().rev().find(|run| run.head.is_ok());
        return latest
            .map(|run| run.dir)
            .ok_or_else(|| missing(format!("there is no run in {}", dir.display())));
    }
    [PathBuf::from(name), dir.join(name)]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| missing(format!("neither a path, nor in {}", dir.display())))
}

/// The head of the run in `dir`: of a run that has ended, no more is read than that.
pub(super) fn head(dir: &Path) -> Result<Head> {
    let path = dir.join(RUN);
    if path.exists() {
        return header::head(&path);
    }
    let asked = state::asked(dir)?;
    Ok(Head {
        id: asked.id,
        started: asked.started,
        finished: state::last_written(dir),
        tool: asked.tool,
        argv: asked.argv,
        seed: asked.seed,
        complete: false,
        note: asked.note,
        config_toml: None,
    })
}

fn document(path: &Path) -> Result<Run> {
    let run: Run = state::parsed(path)?;
    let pairs: usize = run.cells.iter().map(|cell| cell.pairs.len()).sum();
    if pairs <= state::PAIRS_MAX {
        return Ok(run);
    }
    let why = format!("{pairs} pairs, more than {}", state::PAIRS_MAX);
    Err(Error::new(Code::Run, format!("cannot read {}", path.display()), why))
}
