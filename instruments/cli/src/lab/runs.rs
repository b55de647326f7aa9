//! Runs, as they are named on the command line: `last`, a name below the directory, or a path.

use std::path::Path;

use linerate_lab::record::{self, Run};

use crate::errors::{Failure, UNBALANCED};

/// Reads a run.
///
/// # Errors
/// `E-RUN` if there is none, or it cannot be read.
pub fn read(name: &str, dir: &Path) -> Result<Run, Failure> {
    Ok(record::read(&record::find(dir, name)?)?)
}

/// Returns the exit status after `runs` are printed. The results of a cell that has lost packets
/// are withheld, and the status shows that too.
pub fn exit<'a>(runs: impl IntoIterator<Item = &'a Run>, otherwise: u8) -> u8 {
    if runs.into_iter().all(Run::conserved) { otherwise } else { UNBALANCED }
}
