//! A run's directory.

use std::path::Path;

use crate::record::Run;
use crate::{Code, Error, Result};

/// A run's directory, while it is written.
#[derive(Debug)]
pub struct Store {}

/// Reads a run: its directory, or its `run.json`.
///
/// # Errors
/// `E-FILE`; `E-RUN` for another schema or something else.
pub fn read(path: &Path) -> Result<Run> {
    Err(Error::new(Code::Run, format!("cannot read {}", path.display()), "not yet"))
}
