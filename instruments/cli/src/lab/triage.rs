//! `linerate lab triage`: names the cause of losses and disorder in a run.

use linerate_lab::experiment::Experiment;
use linerate_lab::scenario::Place;
use linerate_lab::triage::{Case, Extra};

use super::args::Triage;
use super::report::{document, read};
use super::run::only;
use crate::errors::{Failure, INCONCLUSIVE, UNBALANCED};
use crate::screen::Screen;

/// Names the cause of a run's losses and disorder; returns the exit status.
pub fn triage(asked: &Triage, screen: &Screen) -> Result<u8, Failure> {
    let run = read(&asked.run, &asked.kept.dir)?;
    // A run without its experiment is refused below.
    if let Some(toml) = &run.run.config_toml {
        let what = format!("cannot triage {}", run.run.id);
        only(&Experiment::parse(toml, &run.run.id)?, &asked.only).map_err(|mut failure| {
            failure.error.what = what;
            failure
        })?;
    }
    let mut case = Case::of(&run, &asked.only)?;
    if asked.extra {
        let place = Place::of(&asked.cpu, 0)?;
        case.look(&Extra::default(), &place, |next| screen.note(&format!("{next}\n")))?;
    }
    let triage = case.answer();
    screen.result(|| triage.to_string(), || document(&triage))?;
    let told = triage.verdict.untold.is_empty() || !triage.verdict.causes.is_empty();
    Ok(match () {
        () if !triage.balanced() => UNBALANCED,
        () if told => 0,
        () => INCONCLUSIVE,
    })
}
