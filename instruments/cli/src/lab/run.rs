//! `linerate lab run`, with its progress on stderr.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use linerate_lab::experiment::{Cell, Experiment, at_most, commands, lasting};
use linerate_lab::record::{self, Effect, Status};
use linerate_lab::runner::{self, Built, Observer, Progress, Request};
use linerate_lab::scenario::Place;
use linerate_lab::settings::in_file;
use linerate_lab::{Code, Error, Kind, report};

use super::args::Run;
use super::report::document;
use crate::errors::{Failure, INCONCLUSIVE, RUNTIME, UNSUPPORTED, USAGE};
use crate::progress::Line;
use crate::screen::{Screen, one_line};
use crate::signals;
use crate::signals::Signals;

/// Runs an experiment; returns the exit status.
pub fn run(asked: &Run, screen: &Screen) -> Result<u8, Failure> {
    let request = request(asked)?;
    let file = asked.experiment.as_deref();
    possible(&request, file, Cell::check)?;
    screen.preface(&preface(&request))?;
    // Probe only after the options are printed, because probing starts the programs of both sides.
    possible(&request, file, Cell::probe)?;
    let mut follower = Follower::new(&request.experiment.id, &request.place.stop, screen)?;
    let start = Instant::now();
    let run = runner::run(&request, &mut follower);
    let signal = follower.end();
    let run = match (run, signal) {
        // The signal also killed a child process, which caused this error. The signal is the reason
        // for the end.
        (Err(e), Some(signal)) => {
            return Err(Failure { exit: signals::status(signal), ..Failure::from(e) });
        }
        (run, _) => run?,
    };
    let directory = request.resume.clone().unwrap_or_else(|| request.dir.join(&run.run.id));
    // A resumed run has pairs of earlier parts, which are not in the time of this part.
    let took = request.resume.is_none().then(|| start.elapsed());
    screen.result(|| told(&run, &directory, &request.dir, took), || document(&run))?;
    Ok(signal.map_or_else(|| super::report::exit([&run], exit(&run)), signals::status))
}

/// Builds the library's request from the arguments.
fn request(asked: &Run) -> Result<Request, Failure> {
    if let Some(name) = &asked.resume {
        return resuming(asked, name);
    }
    // clap requires the argument if there is no `--resume`.
    let experiment = Experiment::find(asked.experiment.as_deref().unwrap_or_default())?;
    only(&experiment, &asked.only)?;
    let seed = asked.seed.unwrap_or_else(any_seed);
    Ok(Request {
        experiment,
        quick: asked.quick,
        only: asked.only.clone(),
        attempts: asked.attempts,
        seed,
        place: Place::of(&asked.cpu, seed)?,
        dir: asked.dir.clone(),
        resume: None,
        argv: argv(),
        note: asked.note.clone(),
        built: built(),
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
            Ok(Request { place: here, argv: argv(), built: built(), ..begun })
        }
    }
}

/// Returns the command line; bytes that are not UTF-8 are replaced.
fn argv() -> Vec<String> {
    env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the commit and compiler of this program, as far as its build recorded them.
fn built() -> Built {
    let [commit, rustc] = [option_env!("LINERATE_COMMIT"), option_env!("LINERATE_RUSTC")];
    Built { commit: commit.map(str::to_owned), rustc: rustc.map(str::to_owned) }
}

/// Refuses factor values that the experiment does not have.
pub(super) fn only(experiment: &Experiment, only: &[(String, String)]) -> Result<(), Failure> {
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

/// Refuses requests that cannot run: no cell matches, this machine can run none of them, or the
/// scenario does not know a setting.
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
            let why =
                if request.quick { "no quick cell has these factor values" } else { "no cell is" };
            let fix = format!("linerate lab show {}", request.experiment.id);
            Err(refused(why, fix))
        }
        _ => Ok(()),
    }
}

fn cells(request: &Request) -> impl Iterator<Item = &Cell> {
    let all = request.experiment.cells(request.quick).map(|(_, cell)| cell);
    all.filter(|cell| request.selects(cell))
}

/// Formats the options of the run.
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
        None => {
            let planned = experiment.planned_for(self::cells(request), *quick);
            text += &format!("time     {}\n", at_most(planned));
        }
    }
    for command in commands(self::cells(request), place) {
        text += &format!("runs     {command}\n");
    }
    text + "\n"
}

/// Returns the text with the result, and with the commands that print more of it; `took` is the
/// time of all pairs, if it is known.
fn told(run: &record::Run, directory: &Path, dir: &Path, took: Option<Duration>) -> String {
    let mut text = report::text(run);
    let pairs = || run.cells.iter().flat_map(|cell| &cell.pairs);
    let disturbed = pairs().filter(|pair| pair.reject_reason.is_some()).count();
    if disturbed > 0 {
        let took = took.map_or_else(String::new, |took| format!("took {} for ", lasting(took)));
        let all = pairs().count();
        let costs = pairs().filter(|pair| pair.cost_accepted).count();
        let rates = pairs().filter(|pair| pair.accepted).count();
        text += &format!(
            "\n{took}{all} pairs, of which {disturbed} were disturbed: costs come from {costs} pairs, \
             rates from {rates}\n"
        );
    }
    let id = &run.run.id;
    let name = match directory == dir.join(id) {
        true if dir == Path::new("lab") => id.clone(),
        true => format!("{id} --dir {}", dir.display()),
        // A run that was renamed or copied is found by its path.
        false => directory.display().to_string(),
    };
    text += &format!("\nkept in {}\n", directory.display());
    if !run.run.complete {
        text += &format!("resume: linerate lab run --resume {name}\n");
    }
    text + &format!("plots:  linerate lab report {name} --html {id}.html\n")
}

/// Returns the exit status for the result of a finished run.
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

/// Returns a seed from the clock. It is printed and stored, so it is small enough for every reader
/// of JSON.
fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos() ^ since.as_secs() as u32)
}

/// Width of the progress line: a longer one would not be overwritten completely.
const WIDTH: usize = 79;

/// An observer that prints the progress of a run.
#[derive(Debug)]
pub struct Follower<'a> {
    experiment: &'a str,
    screen: &'a Screen,
    signals: Signals,
    /// The signal received, if any.
    signal: std::cell::Cell<Option<i32>>,
    line: Option<Line>,
}

impl<'a> Follower<'a> {
    /// Follows a run of `experiment` from now on.
    pub fn new(
        experiment: &'a str,
        stop: &Arc<AtomicBool>,
        screen: &'a Screen,
    ) -> Result<Follower<'a>, Failure> {
        let signals = Signals::telling(stop).map_err(|e| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
        })?;
        let line = if screen.quiet || screen.json { None } else { Line::new() };
        Ok(Follower { experiment, screen, signals, signal: std::cell::Cell::new(None), line })
    }

    /// Ends the progress: erases the line, and returns the signal.
    pub fn end(self) -> Option<i32> {
        self.interrupted();
        self.signal.get()
    }
}

impl Observer for Follower<'_> {
    fn progress(&mut self, progress: &Progress<'_>) {
        if let Some(line) = &mut self.line {
            line.draw(|| drawn(self.experiment, progress));
        }
    }

    fn note(&mut self, text: &str) {
        if let Some(line) = &mut self.line {
            line.clear();
        }
        if !self.screen.quiet {
            self.screen.note(&format!("{}\n", one_line(text)));
        }
    }

    fn interrupted(&self) -> bool {
        if self.signal.get().is_none() {
            self.signal.set(self.signals.wait(Duration::ZERO));
        }
        self.signal.get().is_some()
    }
}

/// Returns the drawn line: `pool 3/6 change=both rate=max pairs 15/17 -12.1 % [-12.6, -11.4] ETA 2
/// min 5 s`
fn drawn(experiment: &str, progress: &Progress<'_>) -> String {
    let Progress { cell_number, cells, accepted, attempted, .. } = progress;
    let front = format!("{experiment} {cell_number}/{cells} ");
    let mut behind = format!("  pairs {accepted}/{attempted}");
    behind += &progress.effect.map(change).unwrap_or_default();
    behind += &progress.left.map(|left| format!("  ETA {}", lasting(left))).unwrap_or_default();
    let room = WIDTH.saturating_sub(front.chars().count() + behind.chars().count());
    let cell: String = progress.cell.chars().take(room).collect();
    format!("{front}{cell}{behind}").chars().take(WIDTH).collect()
}

fn change(effect: &Effect) -> String {
    let (from, to) = effect.ci95_pct;
    format!("  {:+.1} % [{from:+.1}, {to:+.1}]", effect.change_pct)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_lab::record::{CellRecord, PairRecord, Verdict};

    fn progress<'a>(cell: &'a str, effect: Option<&'a Effect>) -> Progress<'a> {
        let left = Some(Duration::from_secs(125));
        Progress { cell, cell_number: 3, cells: 6, accepted: 15, attempted: 17, effect, left }
    }

    fn effect() -> Effect {
        Effect {
            unit: "ns/packet".into(),
            a: 100.0,
            b: 88.0,
            change_pct: -12.04,
            ci95_pct: (-12.61, -11.38),
            n_pairs: 15,
            verdict: Verdict::Better,
            ..Effect::default()
        }
    }

    #[test]
    fn the_line_says_where_it_is_what_is_known_and_how_long() {
        let line = drawn("pool", &progress("rate=max", Some(&effect())));
        assert_eq!(line, "pool 3/6 rate=max  pairs 15/17  -12.0 % [-12.6, -11.4]  ETA 2 min 5 s");
        assert_eq!(drawn("pool", &progress("", None)), "pool 3/6   pairs 15/17  ETA 2 min 5 s");
    }

    #[test]
    fn commands_about_a_run_find_it_also_after_it_was_renamed() {
        let mut run = record::Run::default();
        run.run.id = "2026-mine".to_owned();
        for (directory, dir, name) in [
            ("lab/2026-mine", "lab", "2026-mine"),
            ("runs/2026-mine", "runs", "2026-mine --dir runs"),
            ("lab/first", "lab", "lab/first"),
            ("2026-mine", ".", "2026-mine"),
        ] {
            let text = told(&run, Path::new(directory), Path::new(dir), None);
            let end = format!(
                "\nkept in {directory}\nresume: linerate lab run --resume {name}\n\
                 plots:  linerate lab report {name} --html 2026-mine.html\n"
            );
            assert!(text.ends_with(&end), "{text}");
        }
    }

    #[test]
    fn time_is_told_only_if_it_is_that_of_all_pairs() {
        let reject_reason = Some("a neighbour".to_owned());
        let pair = PairRecord { reject_reason, ..PairRecord::default() };
        let cell = CellRecord { pairs: vec![pair; 9], ..CellRecord::default() };
        let run = record::Run { cells: vec![cell], ..record::Run::default() };
        let text = |took| told(&run, Path::new("lab/a"), Path::new("lab"), took);
        let counted = "9 pairs, of which 9 were disturbed: costs come from 0 pairs";
        let whole = text(Some(Duration::from_secs(125)));
        assert!(whole.contains(&format!("\ntook 2 min 5 s for {counted}")), "{whole}");
        let resumed = text(None);
        assert!(resumed.contains(&format!("\n{counted}")), "{resumed}");
    }

    #[test]
    fn a_line_is_never_longer_than_a_screen() {
        let cell = "change=both ".repeat(20);
        let line = drawn("pool", &progress(&cell, Some(&effect())));
        assert_eq!(line.chars().count(), WIDTH);
        assert!(line.ends_with("ETA 2 min 5 s"), "{line}");
    }
}
