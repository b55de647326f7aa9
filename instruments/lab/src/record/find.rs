//! Runs, found and read.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::experiment::Experiment;
use crate::record::state::{self, EXPERIMENT, RUN, RunState};
use crate::record::{Head, Run, lines};
use crate::{Code, Error, Result};

/// Directories that are looked at for runs.
const LISTED_MAX: usize = 100_000;

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

/// The runs in a directory that can be read, with their heads, the oldest first.
pub(crate) fn runs(dir: &Path) -> Result<Vec<(Head, PathBuf)>> {
    let io = |e: std::io::Error| lines::failed("read", dir, &e);
    let entries = fs::read_dir(dir).map_err(io)?.take(LISTED_MAX);
    let dirs: Vec<PathBuf> =
        entries.map(|entry| Ok(entry.map_err(io)?.path())).collect::<Result<_>>()?;
    let mut runs: Vec<(Head, PathBuf)> =
        dirs.into_iter().filter_map(|dir| Some((head(&dir).ok()?, dir))).collect();
    runs.sort_by(|(a, one), (b, other)| (&a.started, one).cmp(&(&b.started, other)));
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
        let latest = runs(dir)?.pop().map(|(_, dir)| dir);
        return latest.ok_or_else(|| missing(format!("there is no run in {}", dir.display())));
    }
    [PathBuf::from(name), dir.join(name)]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| missing(format!("neither a path, nor in {}", dir.display())))
}

/// The head of the run in `dir`: its document's, or what it was begun with if there is none yet or it
/// is broken.
pub(super) fn head(dir: &Path) -> Result<Head> {
    #[derive(Deserialize)]
    struct Document {
        run: Head,
    }
    if let Ok(document) = state::parsed::<Document>(&dir.join(RUN)) {
        return Ok(document.run);
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
