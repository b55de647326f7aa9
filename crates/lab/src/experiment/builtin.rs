//! The experiments that come with the program.

use crate::Result;
use crate::experiment::Experiment;

/// Name and text of each.
pub static BUILTIN: [(&str, &str); 0] = [];

/// One of them, by its name.
///
/// # Errors
/// `E-EXPERIMENT` if there is none, with those that there are.
pub fn builtin(id: &str) -> Result<Experiment> {
    let (_, text) = BUILTIN
        .iter()
        .find(|(name, _)| *name == id)
        .ok_or_else(|| crate::settings::wrong(0, format!("there is no experiment {id:?}")))?;
    Experiment::parse(text, id)
}
