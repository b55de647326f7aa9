//! A run's directory: its files during the run and afterwards.
//!
//! ```text
//! DIR/ID/experiment.toml   the experiment's file
//!        request.json      what was asked for, when, on what machine; written last of the first five
//!        pairs.ndjson      a line a pair, before anything is computed from it
//!        cells.ndjson      a line each set-up that has ended: ledgers, profiles, matrices, totals
//!        resumed.ndjson    a line each time that it was gone on with
//!        run.json          the run, once it has ended; renamed into place
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use linerate_prof::conditions::rfc3339;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lines::{self, Contents, Lines, failed};
use super::run::know_set_ups;
use super::{Head, Ledgers, PairRecord, ProfileRecord, Run, Status, Warning};
use crate::analysis::overall;
use crate::experiment::{Cell, Experiment, Plan};
use crate::{Code, Error, Result};

/// The experiment's file in a run's directory.
pub(super) const EXPERIMENT: &str = "experiment.toml";
/// The file of the request.
pub(super) const REQUEST: &str = "request.json";
/// The file of all pairs, in the order in which they ran.
pub(super) const PAIRS: &str = "pairs.ndjson";
/// The file of the results of each set-up of a cell.
pub(super) const CELLS: &str = "cells.ndjson";
/// The file of the times and environments at which the run was resumed.
pub(super) const RESUMED: &str = "resumed.ndjson";
/// The document of the run, written at its end.
pub(super) const RUN: &str = "run.json";

/// Most pairs that a run may have, and most set-ups, each of which may be for one pair.
pub(super) const PAIRS_MAX: usize = 1_000_000;
/// Most times that a run may be resumed.
const RESUMED_MAX: usize = 100_000;

/// The request with its time and environment: `request.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestRecord {
    pub(crate) schema: String,
    pub(crate) id: String,
    pub(crate) started: String,
    pub(crate) seed: u64,
    pub(crate) quick: bool,
    pub(crate) only: Vec<(String, String)>,
    #[serde(default = "attempts")]
    pub(crate) attempts: u32,
    pub(crate) cpus: Vec<usize>,
    pub(crate) traffic_seed: u64,
    pub(crate) argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The full name of each commit that a side is built from, by its name in the experiment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) commits: BTreeMap<String, String>,
    pub(crate) tool: BTreeMap<String, String>,
    pub(crate) env: Value,
}

/// Returns the attempts of runs that were made before there was a choice.
fn attempts() -> u32 {
    Plan::ATTEMPTS
}

/// A line of `pairs.ndjson`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PairLine<P> {
    /// The cell's place in the experiment's grid.
    pub(super) cell: usize,
    /// The pair's number in its cell, from 0.
    pub(super) number: usize,
    pub(super) pair: P,
}

/// A line of `cells.ndjson`: the results of one set-up of a cell, whose benches have ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct CellEnd {
    /// The cell's index in the experiment's grid.
    pub(crate) cell: usize,
    /// False if the cell needs more pairs, was interrupted or could not run here: a continued run
    /// goes on with it.
    pub(crate) finished: bool,
    pub(crate) status: Status,
    /// Number of pairs that the benches ran; [`CellEnd::and`] adds the number of earlier parts.
    pub(crate) pairs: usize,
    pub(crate) ledger: Ledgers,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) profiles: Vec<ProfileRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) matrices: BTreeMap<String, Vec<Vec<u64>>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) totals: BTreeMap<String, Total>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<Warning>,
}

/// A figure of a whole side: the mean over all its set-ups.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Total {
    pub(crate) mean: f64,
    /// The number of lives of the side that reported the value.
    pub(crate) lives: u64,
}

/// A line of `resumed.ndjson`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resumed {
    pub(crate) started: String,
    pub(crate) argv: Vec<String>,
    /// The program that continued the run; empty in runs of older versions.
    #[serde(default)]
    pub(crate) tool: BTreeMap<String, String>,
    pub(crate) env: Value,
}

/// The contents of a run's directory.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) request: RequestRecord,
    pub(crate) toml: String,
    pub(crate) resumed: Vec<Resumed>,
    /// The cells that were started, by their index in the grid.
    pub(crate) cells: BTreeMap<usize, CellState>,
    /// The problems found while the directory was read.
    pub(crate) warnings: Vec<Warning>,
}

/// The stored data of a cell.
#[derive(Debug, Default)]
pub(crate) struct CellState {
    pub(crate) pairs: Vec<PairRecord>,
    pub(crate) end: Option<CellEnd>,
}

impl RunState {
    /// Creates the state of a new run, for a request.
    pub(crate) fn new(request: RequestRecord, toml: &str) -> RunState {
        let (resumed, cells, warnings) = (Vec::new(), BTreeMap::new(), Vec::new());
        RunState { request, toml: toml.into(), resumed, cells, warnings }
    }

    /// Reads a directory; also returns the lengths of the intact parts of the growing files, in
    /// bytes.
    ///
    /// # Errors
    /// `E-FILE` if a file of it is missing; `E-RUN` with file and line for one that is not ours.
    pub(super) fn read(dir: &Path) -> Result<(RunState, [u64; 3])> {
        let mut state = RunState::new(request(dir)?, &text(&dir.join(EXPERIMENT))?);
        let pairs: Contents<PairLine<PairRecord>> =
            lines::read(&dir.join(PAIRS), "pairs", PAIRS_MAX)?;
        let cells: Contents<CellEnd> = lines::read(&dir.join(CELLS), "cells", PAIRS_MAX)?;
        let resumed: Contents<Resumed> = lines::read(&dir.join(RESUMED), "resumed", RESUMED_MAX)?;
        let whole = [pairs.whole_bytes, cells.whole_bytes, resumed.whole_bytes];
        let cut = [(PAIRS, pairs.cut_bytes), (CELLS, cells.cut_bytes)];
        state.warnings.extend(cut.iter().filter_map(|(name, bytes)| cut_off(name, *bytes)));
        for (at, line) in pairs.lines {
            state.in_order(&line).map_err(|why| lines::wrong(&dir.join(PAIRS), at, why))?;
            state.pair(line.cell, line.pair);
        }
        cells.lines.into_iter().for_each(|(_, end)| state.end(end));
        state.resumed = resumed.lines.into_iter().map(|(_, line)| line).collect();
        Ok((state, whole))
    }

    /// Reads only the request in a directory, and the name of its experiment's file.
    pub(crate) fn begun(dir: &Path) -> Result<(RunState, String)> {
        let path = dir.join(EXPERIMENT);
        Ok((RunState::new(request(dir)?, &text(&path)?), path.display().to_string()))
    }

    /// Returns a cell's pairs so far.
    pub(crate) fn pairs(&self, cell: usize) -> &[PairRecord] {
        self.cells.get(&cell).map_or(&[], |cell| &cell.pairs)
    }

    /// Returns true if the cell has no pairs left to run.
    pub(crate) fn is_finished(&self, cell: usize) -> bool {
        let end = self.cells.get(&cell).and_then(|cell| cell.end.as_ref());
        end.is_some_and(|end| end.finished)
    }

    /// Returns a cell's ledgers, added up over the set-ups that have ended.
    pub(crate) fn ledgers(&self, cell: usize) -> Option<&Ledgers> {
        self.cells.get(&cell).and_then(|cell| cell.end.as_ref()).map(|end| &end.ledger)
    }

    /// Adds a pair to its cell.
    pub(crate) fn pair(&mut self, cell: usize, pair: PairRecord) {
        self.cells.entry(cell).or_default().pairs.push(pair);
    }

    /// Merges the end of a cell with its earlier parts.
    pub(crate) fn end(&mut self, end: CellEnd) {
        let cell = self.cells.entry(end.cell).or_default();
        cell.end = Some(match cell.end.take() {
            Some(earlier) => earlier.and(end),
            None => end,
        });
    }

    fn in_order(&self, line: &PairLine<PairRecord>) -> std::result::Result<(), String> {
        let have = self.pairs(line.cell).len();
        if line.number == have {
            return Ok(());
        }
        Err(format!("pair {} of cell {}, which has {have}", line.number, line.cell))
    }
}

/// Reads the request of the run in `dir`.
pub(super) fn request(dir: &Path) -> Result<RequestRecord> {
    let path = dir.join(REQUEST);
    if !path.exists() {
        let why = format!("it has no {REQUEST}: it is not a run, or was killed before it started");
        return Err(Error::new(Code::Run, format!("cannot use {}", dir.display()), why));
    }
    parsed(&path)
}

/// Returns when the last pair was written: the end time of an interrupted run.
pub(super) fn last_written(dir: &Path) -> String {
    let time = fs::metadata(dir.join(PAIRS)).and_then(|about| about.modified());
    rfc3339(time.unwrap_or(UNIX_EPOCH).min(SystemTime::now()))
}

/// Reads a document, after checking its schema.
///
/// # Errors
/// `E-FILE` if it cannot be read; `E-RUN` for another schema, and with its line for what is wrong.
pub(super) fn parsed<T: DeserializeOwned>(path: &Path) -> Result<T> {
    #[derive(Deserialize)]
    struct Schema {
        schema: String,
    }
    let text = text(path)?;
    let schema: Schema = serde_json::from_str(&text).map_err(|e| broken(path, &e))?;
    lines::is_ours(path, &schema.schema)?;
    serde_json::from_str(&text).map_err(|e| broken(path, &e))
}

/// Builds the error for a bad document. If the pairs of the run are present, the error names the
/// command that computes the document from them again.
pub(super) fn broken(path: &Path, e: &serde_json::Error) -> Error {
    let wrong = lines::wrong(path, e.line(), e);
    let Some(dir) = path.parent().filter(|dir| path.ends_with(RUN) && dir.join(PAIRS).exists())
    else {
        return wrong;
    };
    let (path, dir) = (path.display(), dir.display());
    wrong.fix(format!("mv {path} {path}.broken && linerate lab report {dir}"))
}

fn text(path: &Path) -> Result<String> {
    lines::size(path)?;
    let io = |e: std::io::Error| lines::failed("read", path, &e);
    match path.extension() {
        Some(packed) if packed == "gz" => unpacked(path).map_err(io),
        _ => fs::read_to_string(path).map_err(io),
    }
}

/// Returns the text of a file compressed with `gzip`, by running that program: only stored
/// documents are compressed.
fn unpacked(path: &Path) -> std::io::Result<String> {
    let mut gzip = Command::new("gzip");
    let mut gzip = gzip.arg("-dc").stdin(File::open(path)?).stdout(Stdio::piped());
    gzip = gzip.stderr(Stdio::null());
    let mut child = gzip.spawn().map_err(|e| io::Error::new(e.kind(), format!("gzip: {e}")))?;
    let mut text = String::new();
    let output = child.stdout.take().map(|out| out.take(lines::FILE_MAX_BYTES + 1));
    let read = output.map_or(Ok(0), |mut out| out.read_to_string(&mut text));
    // Longer output is not read to its end: gzip then ends because its output pipe is closed.
    if child.wait()?.success() && read? as u64 <= lines::FILE_MAX_BYTES {
        return Ok(text);
    }
    let why = format!("not packed by gzip, or more than {} bytes", lines::FILE_MAX_BYTES);
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn cut_off(name: &str, bytes: u64) -> Option<Warning> {
    (bytes > 0).then(|| Warning {
        code: "W-CUT".into(),
        text: format!("the last line of {name} was cut off and is dropped: {bytes} bytes"),
        fix: None,
    })
}

/// Most runs of one experiment that begin in the same second.
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
    /// Creates a new directory in `dir`, and stores the run's name in `request`.
    pub(crate) fn create(
        dir: &Path,
        experiment: &Experiment,
        request: &mut RequestRecord,
    ) -> Result<Store> {
        fs::create_dir_all(dir).map_err(|e| failed("make", dir, &e))?;
        let dir = unused(dir, request)?;
        let io = |name: &str, e: &std::io::Error| failed("write", &dir.join(name), e);
        fs::write(dir.join(EXPERIMENT), &experiment.toml).map_err(|e| io(EXPERIMENT, &e))?;
        let store = Store {
            pairs: Lines::create(&dir.join(PAIRS), "pairs")?,
            cells: Lines::create(&dir.join(CELLS), "cells")?,
            resumed: Lines::create(&dir.join(RESUMED), "resumed")?,
            dir: dir.clone(),
        };
        put(&dir.join(REQUEST), request)?;
        Ok(store)
    }

    /// Opens an existing directory to continue its run, and reads its contents. The interrupted
    /// run's result stays until the run is known to continue: [`Store::resumed`] removes it.
    ///
    /// # Errors
    /// `E-RUN` if it is complete, or is no run; `E-BUSY` if another process writes it; `E-FILE`.
    pub(crate) fn resume(dir: &Path) -> Result<(Store, RunState)> {
        // Check that the directory is a run before anything is opened for writing, so that the
        // error is `E-RUN`.
        request(dir)?;
        let mut store = Store {
            pairs: Lines::open(&dir.join(PAIRS))?,
            cells: Lines::open(&dir.join(CELLS))?,
            resumed: Lines::open(&dir.join(RESUMED))?,
            dir: dir.into(),
        };
        if dir.join(RUN).exists() && head(dir)?.complete {
            let fix = format!("linerate lab report {}", dir.display());
            let what = format!("cannot go on with {}", dir.display());
            return Err(Error::new(Code::Run, what, "it is complete").fix(fix));
        }
        let (state, [pairs, cells, resumed]) = RunState::read(dir)?;
        store.pairs.go_on("pairs", pairs)?;
        store.cells.go_on("cells", cells)?;
        store.resumed.go_on("resumed", resumed)?;
        Ok((store, state))
    }

    /// Records that the run is continued; then removes the interrupted run's result, which can be
    /// computed again from the other files.
    pub(crate) fn resumed(&mut self, line: &Resumed) -> Result<()> {
        self.resumed.append(line).map_err(|e| self.kept(e))?;
        let path = self.dir.join(RUN);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", &path, &e)),
            _ => Ok(()),
        }
    }

    /// Writes a pair to the run's file: to the kernel immediately, and to the disk by
    /// [`Store::sync`].
    pub(crate) fn pair(&mut self, cell: usize, number: usize, pair: &PairRecord) -> Result<()> {
        self.pairs.append(&PairLine { cell, number, pair })
    }

    /// Appends the results of a set-up of a cell, as [`Store::pair`] does.
    pub(crate) fn cell(&mut self, end: &CellEnd) -> Result<()> {
        self.cells.append(end)
    }

    /// Makes the kernel write pairs and results to the disk.
    ///
    /// Cost: waits for the disk. Not between the windows of a cell, where it would disturb them.
    pub(crate) fn sync(&self) -> Result<()> {
        self.pairs.sync()?;
        self.cells.sync()
    }

    /// Writes the result of the run, atomically.
    pub(crate) fn finish(&self, run: &Run) -> Result<()> {
        put(&self.dir.join(RUN), run).map_err(|e| self.kept(e))
    }

    /// Returns an error that ends the run, with the location of its pairs and the command that
    /// continues it.
    pub(crate) fn kept(&self, mut error: Error) -> Error {
        let dir = self.dir.display();
        let go_on = format!("linerate lab run --resume {dir}");
        let first = if error.fix.is_empty() { String::new() } else { format!("{}\n", error.fix) };
        error.why = format!("{}; the pairs so far are in {dir}", error.why);
        error.fix(format!("{first}{go_on}"))
    }
}

/// Creates the first of `ID`, `ID-2`, `ID-3` that does not exist.
fn unused(dir: &Path, request: &mut RequestRecord) -> Result<PathBuf> {
    let id = request.id.clone();
    for number in 1..=SAME_SECOND_MAX {
        if number > 1 {
            request.id = format!("{id}-{number}");
        }
        let path = dir.join(&request.id);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("make", &path, &e)),
        }
    }
    let why = format!("there are {SAME_SECOND_MAX} of this second already");
    Err(Error::new(Code::File, format!("cannot make {}", dir.join(&id).display()), why))
}

/// Writes a document atomically: other processes see all of it or none.
fn put(path: &Path, document: &impl serde::Serialize) -> Result<()> {
    let part = path.with_extension("json.part");
    let io = |e: std::io::Error| failed("write", path, &e);
    let mut text = serde_json::to_vec(document).map_err(|e| io(e.into()))?;
    text.push(b'\n');
    let mut file = fresh(&part).map_err(io)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(io)?;
    fs::rename(&part, path).map_err(io)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)
}

/// Creates a new file. What has its name is removed first, because it is the rest of a killed run,
/// or a link to another file.
fn fresh(path: &Path) -> std::io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => OpenOptions::new().write(true).create_new(true).open(path),
    }
}

/// Most directories that are searched for runs.
const LISTED_MAX: usize = 100_000;

/// Reads a run from its directory or from its `run.json`, which may be compressed (`.json.gz`). A
/// run that was killed before it wrote that document is rebuilt from its pairs, as incomplete.
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
    state.run(&experiment, last_written(path), None, false)
}

/// Returns the readable runs in a directory with their heads, the oldest first.
pub(crate) fn runs(dir: &Path) -> Result<Vec<(Head, PathBuf)>> {
    let io = |e: std::io::Error| lines::failed("read", dir, &e);
    let entries = fs::read_dir(dir).map_err(io)?.take(LISTED_MAX);
    let dirs: Vec<PathBuf> =
        entries.map(|entry| Ok(entry.map_err(io)?.path())).collect::<Result<_>>()?;
    let mut runs: Vec<(Head, PathBuf)> =
        dirs.into_iter().filter_map(|dir| Some((head(&dir).ok()?, dir))).collect();
    // Runs of the same second are numbered: the tenth comes after the second.
    let order = |(head, path): &(Head, PathBuf)| {
        (head.started.clone(), path.as_os_str().len(), path.clone())
    };
    runs.sort_by_cached_key(order);
    Ok(runs)
}

/// Returns the run that `name` denotes: a path, `last` for the latest in `dir`, or the name of a
/// run in `dir`.
///
/// # Errors
/// `E-RUN` if there is none.
pub fn find(dir: &Path, name: &str) -> Result<PathBuf> {
    let missing = |why: String| {
        Error::new(Code::Run, format!("cannot find run {name}"), why)
            .fix(format!("ls {}", dir.display()))
    };
    if !dir.exists() && (name == "last" || !Path::new(name).exists()) {
        let none = missing(format!("no run is kept yet: there is no folder {}", dir.display()));
        return Err(none.fix("linerate lab run noise --quick makes a run"));
    }
    if name == "last" {
        let latest = runs(dir)?.pop().map(|(_, dir)| dir);
        return latest.ok_or_else(|| missing(format!("there is no run in {}", dir.display())));
    }
    [PathBuf::from(name), dir.join(name)]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| missing(format!("neither a path, nor in {}", dir.display())))
}

/// Returns the head of the run in `dir`: that of its document, or of its request if the document is
/// missing or broken.
pub(super) fn head(dir: &Path) -> Result<Head> {
    #[derive(Deserialize)]
    struct Document {
        run: Head,
    }
    if let Ok(document) = parsed::<Document>(&dir.join(RUN)) {
        return Ok(document.run);
    }
    let request = request(dir)?;
    Ok(Head {
        id: request.id,
        started: request.started,
        finished: last_written(dir),
        tool: request.tool,
        argv: request.argv,
        seed: request.seed,
        complete: false,
        note: request.note,
        config_toml: None,
    })
}

/// Reads a document. Its summary lines over cells are computed again from its cells, because older
/// versions computed the change of a sum from both sides' figures instead of from the changes.
fn document(path: &Path) -> Result<Run> {
    let mut run: Run = parsed(path)?;
    // If the experiment's file can no longer be parsed, the pairs' set-ups stay unknown, and
    // `compare` refuses the run.
    let toml = run.run.config_toml.as_deref();
    if let Some(Ok(experiment)) = toml.map(|toml| Experiment::parse(toml, EXPERIMENT)) {
        for record in &mut run.cells {
            let is =
                |cell: &&Cell| cell.at.iter().cloned().collect::<BTreeMap<_, _>>() == record.at;
            if let Some(cell) = experiment.cells.iter().find(is) {
                know_set_ups(cell, &mut record.pairs);
            }
        }
        run.overall = overall(&experiment, &run.cells);
    }
    let pairs: usize = run.cells.iter().map(|cell| cell.pairs.len()).sum();
    if pairs <= PAIRS_MAX {
        return Ok(run);
    }
    let why = format!("{pairs} pairs, more than {}", PAIRS_MAX);
    Err(Error::new(Code::Run, format!("cannot read {}", path.display()), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_does_not_follow_a_link_that_has_the_name_of_its_part() {
        let dir = std::env::temp_dir().join(format!("linerate-part-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (other, run) = (dir.join("other"), dir.join(RUN));
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, dir.join("run.json.part")).unwrap();
        put(&run, &"the run").unwrap();
        let texts = [&other, &run].map(|file| fs::read_to_string(file).unwrap());
        let is_link = fs::symlink_metadata(&run).unwrap().is_symlink();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(texts, ["precious", "\"the run\"\n"]);
        assert!(!is_link);
    }
}
