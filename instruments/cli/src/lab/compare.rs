//! `linerate lab compare`.

use linerate_lab::compare::{self, Comparison, FailOn};
use linerate_lab::record::Run;

use super::args::Compare;
use super::runs;
use super::show::document;
use crate::errors::{CHECK, Failure, INCONCLUSIVE};
use crate::screen::Screen;

/// Compares runs with the first; returns the exit status.
///
/// # Errors
/// Runs that cannot be read, or have nothing to compare; a condition that makes no sense.
pub fn compare(asked: &Compare, screen: &Screen) -> Result<u8, Failure> {
    let fail_on = asked.fail_on.iter().map(|text| FailOn::parse(text));
    let fail_on: Vec<FailOn> = fail_on.collect::<Result<_, _>>()?;
    let baseline = runs::read(&asked.baseline, &asked.kept.dir)?;
    let runs = asked.runs.iter().map(|name| runs::read(name, &asked.kept.dir));
    let runs: Vec<Run> = runs.collect::<Result<_, _>>()?;
    let all = runs.iter().map(|run| compare::compare(&baseline, run, &fail_on, asked.allow_env));
    let all: Vec<Comparison> = all.collect::<Result<_, _>>()?;
    let texts = || all.iter().map(Comparison::to_string).collect::<Vec<_>>().join("\n");
    screen.result(texts, || match all.as_slice() {
        [one] => document(one),
        all => document(&all),
    })?;
    let exit = match () {
        () if all.iter().any(|one| !one.failed.is_empty()) => CHECK,
        () if all.iter().any(|one| !one.undecided.is_empty()) => INCONCLUSIVE,
        () => 0,
    };
    Ok(runs::exit(runs.iter().chain([&baseline]), exit))
}
