//! `linerate lab run`.

use std::env;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use linerate_lab::experiment::{Cell, Experiment, at_most, commands};
use linerate_lab::record::{self, Status};
use linerate_lab::runner::{self, Request};
use linerate_lab::scenario::Place;
use linerate_lab::settings::in_file;
use linerate_lab::{Code, Error, Kind, report};

use super::args::Run;
use super::follow::Follower;
use super::runs;
use super::show::document;
use crate::errors::{Failure, INCONCLUSIVE, UNSUPPORTED, USAGE};
use crate::screen::{Screen, one_line};
use crate::signals;

/// Runs an experiment; returns the exit status.
///
/// # Errors
/// Whatever keeps it from giving a result.
pub fn run(asked: &Run, screen: &Screen) -> Result<u8, Failure> {
    let request = request(asked)?;
    let file = asked.experiment.as_deref();
    possible(&request, file, Cell::check)?;
    screen.preface(&preface(&request))?;
    // Only now, when it was said what is started.
    possible(&request, file, Cell::probe)?;
    let mut follower = Follower::new(&request.experiment.id, &request.place.stop, screen)?;
    let run = runner::run(&request, &mut follower);
    let signal = follower.end();
    let run = match (run, signal) {
        // What was being waited for was killed: that is how the run ended, and not why.
        (Err(e), Some(signal)) => {
            screen.note(&format!("{}\n", one_line(&e.to_string())));
            return Ok(signals::status(signal));
        }
        (run, _) => run?,
    };
    let directory = request.dir.join(&run.run.id);
    screen.result(|| told(&run, &directory, &request.dir), || document(&run))?;
    Ok(signal.map_or_else(|| runs::exit([&run], exit(&run)), signals::status))
}

/// Builds the library's request from the arguments.
fn request(asked: &Run) -> Result<Request, Failure> {
    if let Some(name) = &asked.resume {
        return resuming(asked, name);
    }
    // clap sees to its being there.
    let experiment = Experiment::find(asked.experiment.as_deref().unwrap_or_default())?;
    only(&experiment, &asked.only)?;
    let seed = asked.seed.unwrap_or_else(any_seed);
    Ok(Request {
        experiment,
        quick: asked.quick,
        only: asked.only.clone(),
        seed,
        place: Place::of(&asked.cpu, seed)?,
        dir: asked.dir.clone(),
        resume: None,
        argv: env::args().collect(),
        note: asked.note.clone(),
        commit: commit(),
    })
}

/// Builds the request for resuming a run: it uses the run's copy of the experiment, even if the
/// original file has changed.
fn resuming(asked: &Run, name: &str) -> Result<Request, Failure> {
    let begun = Request::resuming(&record::find(&asked.dir, name)?)?;
    let id = &begun.experiment.id;
    match &asked.experiment {
        Some(named) if Experiment::find(named)?.id != *id => {
            let fix = format!("linerate lab run --resume {name}");
            Err(refused(&format!("{name} is a run of {id:?}"), fix))
        }
        _ => {
            let here = Place::of(&begun.place.cpus, begun.place.seed)?;
            Ok(Request { place: here, argv: env::args().collect(), commit: commit(), ..begun })
        }
    }
}

/// The commit that this program was built from, as far as its build knew.
fn commit() -> Option<String> {
    option_env!("LINERATE_COMMIT").map(str::to_owned)
}

/// Refuses factor values that there are not.
fn only(experiment: &Experiment, only: &[(String, String)]) -> Result<(), Failure> {
    for (name, level) in only {
        let Some(factor) = experiment.factors.iter().find(|factor| factor.name == *name) else {
            let names: Vec<&str> = experiment.factors.iter().map(|f| f.name.as_str()).collect();
            let fix = format!("its factors are: {}", names.join(", "));
            return Err(refused(&format!("{:?} has no factor {name:?}", experiment.id), fix));
        };
        if !factor.levels.iter().any(|known| known.name == *level) {
            let names: Vec<&str> = factor.levels.iter().map(|level| level.name.as_str()).collect();
            let fix = format!("its levels are: {}", names.join(", "));
            return Err(refused(&format!("factor {name:?} has no level {level:?}"), fix));
        }
    }
    Ok(())
}

/// Refuses requests that cannot run, as `check` finds: no cell, none that this machine can run, or
/// a setting that its scenario does not know.
fn possible(
    request: &Request,
    file: Option<&str>,
    check: fn(&Cell, &Place) -> linerate_lab::Result<()>,
) -> Result<(), Failure> {
    let mut first = None;
    let mut can = 0;
    for cell in cells(request) {
        match check(cell, &request.place) {
            Ok(()) => can += 1,
            Err(e) if e.kind() == Kind::Unsupported => first = first.or(Some(e)),
            Err(e) => return Err(in_file(e, file.unwrap_or(&request.experiment.id)).into()),
        }
    }
    match (can, first) {
        (0, Some(e)) => Err(e.into()),
        (0, None) => {
            let why = if request.quick { "no quick cell is like that" } else { "no cell is" };
            let fix = format!("linerate lab show {}", request.experiment.id);
            Err(refused(why, fix))
        }
        _ => Ok(()),
    }
}

fn cells(request: &Request) -> impl Iterator<Item = &Cell> {
    let chosen = |cell: &&Cell| request.only.iter().all(|one| cell.at.contains(one));
    request.experiment.cells(request.quick).map(|(_, cell)| cell).filter(chosen)
}

/// The options in effect.
fn preface(request: &Request) -> String {
    let Request { experiment, quick, seed, place, dir, .. } = request;
    let cells = cells(request).count();
    let cpus: Vec<String> = place.cpus.iter().map(usize::to_string).collect();
    let looks: Vec<String> = experiment.plan.looks(*quick).iter().map(u32::to_string).collect();
    let mut text = format!("{}: {}\n", experiment.id, experiment.title);
    text += &format!(
        "options  {}{cells} of {} cells, {} pairs, seed {seed}, CPU {}, kept in {}\n",
        if *quick { "quick, " } else { "" },
        experiment.cells.len(),
        looks.join(", "),
        cpus.join(","),
        dir.display(),
    );
    match &request.resume {
        Some(run) => text += &format!("resumes  {}\n", run.display()),
        None if request.only.is_empty() => {
            text += &format!("time     {}\n", at_most(experiment.planned(*quick)));
        }
        None => {}
    }
    for command in commands(self::cells(request), place) {
        text += &format!("runs     {command}\n");
    }
    text + "\n"
}

/// The result, and how to see more of it.
fn told(run: &record::Run, directory: &Path, dir: &Path) -> String {
    let mut text = report::text(run);
    let below = match dir == Path::new("lab") {
        true => String::new(),
        false => format!(" --dir {}", dir.display()),
    };
    let id = &run.run.id;
    text += &format!("\nkept in {}\n", directory.display());
    if !run.run.complete {
        text += &format!("go on:  linerate lab run --resume {id}{below}\n");
    }
    text + &format!("plots:  linerate lab report {id}{below} --html {id}.html\n")
}

/// Returns the exit status that tells the result of a finished run.
fn exit(run: &record::Run) -> u8 {
    let all = |status| !run.cells.is_empty() && run.cells.iter().all(|cell| cell.status == status);
    match run.verdict.as_str() {
        _ if all(Status::Unsupported) => UNSUPPORTED,
        "inconclusive" => INCONCLUSIVE,
        _ => 0,
    }
}

fn refused(why: &str, fix: String) -> Failure {
    let e = Error::new(Code::Experiment, "cannot run the experiment", why).fix(fix);
    Failure { exit: USAGE, ..Failure::from(e) }
}

/// Returns a seed from the clock. It is printed and kept, and small enough for every reader of JSON.
fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos() ^ since.as_secs() as u32)
}
