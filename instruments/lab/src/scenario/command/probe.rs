//! Check that a program can run on this machine, by starting it once.
//!
//! Every cell of an experiment asks the same, for each of its sides, and again when they are set
//! up. What a program said is remembered for as long as this process lives. If it is no longer
//! true, the first window says so.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Result;

/// Most answers that are cached; with more, a program is started again.
const KEPT_MAX: usize = 256;

/// A program with its arguments and its answer.
struct Answer {
    path: PathBuf,
    args: Vec<OsString>,
    said: Result<()>,
}

static ANSWERS: Mutex<Vec<Answer>> = Mutex::new(Vec::new());

/// Returns the program's answer to `args`: the cached answer of the first call, or that of `ask`.
///
/// # Errors
/// What `ask` fails with, or did.
pub(super) fn once(path: &Path, args: &[OsString], ask: impl FnOnce() -> Result<()>) -> Result<()> {
    // A poisoned lock is safe to use: an answer is added in one step, so a panic cannot leave half
    // of it.
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = answers.iter().find(|one| one.path == path && one.args == args) {
        return known.said.clone();
    }
    let said = ask();
    if answers.len() < KEPT_MAX {
        answers.push(Answer { path: path.into(), args: args.into(), said: said.clone() });
    }
    said
}
