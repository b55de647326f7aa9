//! `linerate lab list` and `linerate lab show`.

use linerate_lab::Kind;
use linerate_lab::experiment::{self, BUILTIN, Experiment};
use linerate_lab::scenario::Place;
use linerate_lab::settings::in_file;

use super::args::Show;
use crate::errors::Failure;
use crate::screen::Screen;

/// Lists the experiments; returns the exit status.
///
/// # Errors
/// If they cannot be printed.
pub fn list(screen: &Screen) -> Result<u8, Failure> {
    let all = BUILTIN.iter().map(|(id, _)| experiment::builtin(id));
    let experiments: Vec<Experiment> = all.collect::<Result<_, _>>()?;
    let place = Place::of(&[], 0)?;
    let list = experiment::List { experiments: &experiments, place: &place };
    screen.result(|| list.to_string(), || document(&list))?;
    Ok(0)
}

/// Tells one; returns the exit status.
///
/// # Errors
/// If there is none, or something is wrong in its file.
pub fn show(asked: &Show, screen: &Screen) -> Result<u8, Failure> {
    let experiment = Experiment::find(&asked.experiment)?;
    if asked.toml {
        screen.result(|| experiment.toml.clone(), String::new)?;
        return Ok(0);
    }
    let place = Place::of(&[], 0)?;
    for cell in &experiment.cells {
        // What this machine cannot do is part of what is shown; what makes no sense is not.
        if let Some(e) = cell.check(&place).err().filter(|e| e.kind() == Kind::Usage) {
            return Err(in_file(e, &asked.experiment).into());
        }
    }
    let show = experiment::Show { experiment: &experiment, place: &place };
    screen.result(|| show.to_string(), || document(&show))?;
    Ok(0)
}

/// Formats `told` as one JSON document.
pub fn document(told: &impl serde::Serialize) -> String {
    // Only a map with keys that are no text could fail, and none is.
    serde_json::to_string(told).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}
