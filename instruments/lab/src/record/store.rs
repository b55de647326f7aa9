//! A run's directory, while it is written.
//!
//! ```text
//! DIR/ID/experiment.toml   the experiment's file
//!        request.json      what was asked for, when, on what machine; written last of the first five
//!        pairs.ndjson      a line a pair, before anything is computed from it
//!        cells.ndjson      a line a cell that has ended: ledgers, profiles, matrices, totals
//!        resumed.ndjson    a line each time that it was gone on with
//!        run.json          the run, once it has ended; renamed into place
//! ```

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::experiment::Experiment;
use crate::record::lines::{Lines, failed};
use crate::record::state::{CELLS, EXPERIMENT, PAIRS, PairLine, REQUEST, RESUMED, RUN};
use crate::record::{Asked, CellEnd, PairRecord, Resumed, Run, RunState};
use crate::{Code, Error, Result};

/// Runs of one experiment that may begin in the same second.
const SAME_SECOND_MAX: u32 = 1000;

/// A run's directory that is being written. A lock keeps other writers out.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    pairs: Lines,
    cells: Lines,
    resumed: Lines,
}

impl Store {
    /// Creates a new directory in `dir`, never an existing one, and stores the run's name in
    /// `asked`.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be written.
    pub(crate) fn create(dir: &Path, experiment: &Experiment, asked: &mut Asked) -> Result<Store> {
        fs::create_dir_all(dir).map_err(|e| failed("make", dir, &e))?;
        let dir = unused(dir, asked)?;
        let io = |name: &str, e: &std::io::Error| failed("write", &dir.join(name), e);
        fs::write(dir.join(EXPERIMENT), &experiment.toml).map_err(|e| io(EXPERIMENT, &e))?;
        let store = Store {
            pairs: Lines::create(&dir.join(PAIRS), "pairs")?,
            cells: Lines::create(&dir.join(CELLS), "cells")?,
            resumed: Lines::create(&dir.join(RESUMED), "resumed")?,
            dir: dir.clone(),
        };
        put(&dir.join(REQUEST), asked)?;
        Ok(store)
    }

    /// Opens an existing directory to continue its run, and reads its contents. The interrupted
    /// run's result stays until the run is known to continue: [`Store::resumed`] removes it.
    ///
    /// # Errors
    /// `E-RUN` if it is complete, or is no run; `E-BUSY` if somebody else writes it; `E-FILE`.
    pub(crate) fn resume(dir: &Path) -> Result<(Store, RunState)> {
        // What is no run is said to be none, before anything is opened for writing.
        super::state::asked(dir)?;
        let mut store = Store {
            pairs: Lines::open(&dir.join(PAIRS))?,
            cells: Lines::open(&dir.join(CELLS))?,
            resumed: Lines::open(&dir.join(RESUMED))?,
            dir: dir.into(),
        };
        if dir.join(RUN).exists() && super::find::head(dir)?.complete {
            let fix = format!("linerate lab report {}", dir.display());
            let what = format!("cannot go on with {}", dir.display());
            return Err(Error::new(Code::Run, what, "it is complete").fix(fix));
        }
        let (state, whole) = RunState::read(dir)?;
        store.pairs.go_on("pairs", whole.pairs)?;
        store.cells.go_on("cells", whole.cells)?;
        store.resumed.go_on("resumed", whole.resumed)?;
        Ok((store, state))
    }

    /// Records that the run is continued. As the last step it removes the interrupted run's result,
    /// which can be computed from the rest.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be written; as below.
    pub(crate) fn resumed(&mut self, line: &Resumed) -> Result<()> {
        self.resumed.append(line).map_err(|e| self.kept(e))?;
        let path = self.dir.join(RUN);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", &path, &e)),
            _ => Ok(()),
        }
    }

    /// Keeps a pair. It is handed to the kernel, and to the disk when its cell ends.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be written. What ends a run says by [`Store::kept`] how to go on with it,
    /// once for whatever it was.
    pub(crate) fn pair(&mut self, cell: usize, number: usize, pair: &PairRecord) -> Result<()> {
        self.pairs.append(&PairLine { cell, number, pair })
    }

    /// Appends the results of a cell.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn cell(&mut self, end: &CellEnd) -> Result<()> {
        self.cells.append(end)?;
        self.pairs.sync()?;
        self.cells.sync()
    }

    /// Writes the result of the run, atomically.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be written, with how to go on once it can.
    pub(crate) fn finish(&self, run: &Run) -> Result<()> {
        put(&self.dir.join(RUN), run).map_err(|e| self.kept(e))
    }

    /// An error that ends the run, with where its pairs are and how to go on with them.
    pub(crate) fn kept(&self, mut error: Error) -> Error {
        let dir = self.dir.display();
        let go_on = format!("linerate lab run --resume {dir}");
        let first = if error.fix.is_empty() { String::new() } else { format!("{}\n", error.fix) };
        error.why = format!("{}; the pairs so far are in {dir}", error.why);
        error.fix(format!("{first}{go_on}"))
    }
}

/// Makes the first of `ID`, `ID-2`, `ID-3` that is not there.
fn unused(dir: &Path, asked: &mut Asked) -> Result<PathBuf> {
    let id = asked.id.clone();
    for number in 1..=SAME_SECOND_MAX {
        if number > 1 {
            asked.id = format!("{id}-{number}");
        }
        let path = dir.join(&asked.id);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("make", &path, &e)),
        }
    }
    let why = format!("there are {SAME_SECOND_MAX} of this second already");
    Err(Error::new(Code::File, format!("cannot make {}", dir.join(&id).display()), why))
}

/// Writes a document, so that at any moment there is all of it or none.
fn put(path: &Path, document: &impl serde::Serialize) -> Result<()> {
    let part = path.with_extension("json.part");
    let io = |e: std::io::Error| failed("write", path, &e);
    let mut text = serde_json::to_vec(document).map_err(|e| io(e.into()))?;
    text.push(b'\n');
    let mut file = File::create(&part).map_err(io)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(io)?;
    fs::rename(&part, path).map_err(io)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)
}
