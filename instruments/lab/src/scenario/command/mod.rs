//! The scenario `command`, a program as a side: each window is one run of it, and its output has
//! the figures.
//!
//! The program says what it did, as JSON on its standard output; the experiment's file says where
//! in that each figure stands. A program that measures itself is right about what it measures, so
//! this is for peers with a clock of their own. What is measured from outside is the wall, and the
//! CPU time of the program with all that it waited for; its start is in both.

mod probe;
mod process;
mod version;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_sys::thread::allowed_cpus;
use serde_json::Value;

use crate::knobs::{Knob, Reading, Values};
use crate::scenario::{Bench, Figure, Finished, Place, Scenario};
use crate::settings::{Settings, wrong};
use crate::window::Window;
use crate::{Code, Error, Result};

/// The scenario that runs a program.
#[derive(Debug)]
pub(super) struct Program;

/// Built-in scripts for sides that need more than one command; bash runs them, and settings name
/// them like programs.
const SCRIPTS: [(&str, &str); 1] = [("forward.sh", include_str!("../../../peers/forward.sh"))];

/// Programs of this project that are looked for beside this one first, each with its package.
const OURS: [(&str, &str); 3] =
    [("linerate", "linerate-cli"), ("receive", "linerate-tests"), ("stream", "linerate-tests")];

static KNOBS: [Knob; 9] = [
    Knob {
        name: "program",
        values: Values::Other("a name or a path, \"self\" or \"forward.sh\""),
        default: "none",
        about: "What is run: a program on the PATH, this one, or one by its path, which is from the \
                directory that linerate is started in if it does not begin with /; or our script that \
                puts packets through a program.",
    },
    Knob {
        name: "commit",
        values: Values::Other("a commit, tag or branch"),
        default: "none: the program as it is",
        about: "In place of a program, or as {built} in the arguments of our script: `linerate` of this \
                commit of the repository around the directory that linerate is started in, built from a \
                worktree in target/lab-versions, once.",
    },
    Knob {
        name: "args",
        values: Values::Other("a list of texts"),
        default: "[]",
        about: "Its arguments, in which {cpu0}, {cpu1}, {seed}, {seconds}, {self}, this program's path, \
                and {built}, that of the commit's program, are replaced; without {seconds} it runs as \
                long as it likes.",
    },
    Knob {
        name: "more",
        values: Values::Other("a list of texts"),
        default: "[]",
        about: "Arguments behind these, so that two factors can each set some.",
    },
    Knob {
        name: "probe",
        values: Values::Other("a list of texts"),
        default: "none",
        about: "Arguments with which it says by its exit status whether it can be run here.",
    },
    Knob {
        name: "json",
        values: Values::Other("a list of \"NAME=/pointer\""),
        default: "[]",
        about: "Figures and where they stand in what it prints (RFC 6901): in the last line if that \
                is JSON, else in all of it. What is null there is not known.",
    },
    Knob {
        name: "packets",
        values: Values::Other("a pointer"),
        default: "none: 0",
        about: "Where the number of packets stands that went through.",
    },
    Knob {
        name: "disturbed",
        values: Values::Other("a pointer"),
        default: "none",
        about: "Where a text stands if none of its figures is to be believed, and null if they are.",
    },
    Knob {
        name: "timeout_s",
        values: Values::Count(1, 3600),
        default: "60",
        about: "Seconds after which it is killed, and the run ends with an error.",
    },
];

impl Scenario for Program {
    fn name(&self) -> &'static str {
        "command"
    }

    fn about(&self) -> &'static str {
        "Runs a program once a window, and reads its figures from the JSON that it prints."
    }

    fn knobs(&self) -> &'static [Knob] {
        &KNOBS
    }

    fn figures(&self) -> &'static [Figure] {
        &[]
    }

    fn check(&self, settings: &Settings, place: &Place) -> Result<()> {
        let config = Config::read(settings)?;
        let needs: &[&str] = if config.commit.is_some() { &["git", "cargo"] } else { &[] };
        let program = config.is_run().then_some(config.program.as_str());
        needs.iter().copied().chain(program).try_for_each(|one| find(one, place).map(drop))
    }

    fn commands(&self, settings: &Settings, place: &Place) -> Vec<String> {
        let Ok(config) = Config::read(settings) else { return Vec::new() };
        let builds = config.commit.as_deref().map(version::commands);
        let path = match &config.commit {
            Some(commit) if !config.is_run() => version::command(commit).into(),
            _ => find(&config.program, place).unwrap_or_else(|_| config.program.clone().into()),
        };
        let name = config.script().map_or(path.to_string_lossy(), |(name, _)| name.into());
        let line = |args: &Vec<String>| {
            let built = config.commit.as_deref().map(version::command);
            typed(&name, args).replace("{built}", built.as_deref().unwrap_or("{built}"))
        };
        let lines = config.probe.iter().chain([&config.args]).map(line);
        builds.into_iter().flatten().chain(lines).collect()
    }

    fn commit(&self, settings: &Settings, place: &Place) -> Option<(String, String)> {
        let name = Config::read(settings).ok()?.commit?;
        let whole = version::whole(&name, place).ok()?;
        Some((name, whole))
    }

    fn probe(&self, settings: &Settings, place: &Place) -> Result<()> {
        let config = Config::read(settings)?;
        let program = config.find(place)?;
        let path = &program.path;
        let Some(probe) = &config.probe else { return Ok(()) };
        let args = config.line(probe, &program, place, Duration::ZERO);
        probe::once(path, &args, || {
            let ran = process::run_telling(path, &args, config.timeout, &place.stop, 2);
            ran.map(drop).map_err(|e| {
                let own = if config.program == "self" { "linerate" } else { &config.program };
                let what = format!("cannot run `{}` here", typed(own, probe));
                // This project's programs end an error with a line `fix: …`, which becomes this
                // error's remedy.
                let (why, fix) = e.why.split_once("\n  fix: ").unwrap_or((&e.why, &e.fix));
                Error::new(Code::Unsupported, what, why.replace(": why: ", ": ")).fix(fix)
            })
        })
    }

    fn keeps_time(&self, settings: &Settings) -> bool {
        Config::read(settings)
            .is_ok_and(|config| config.args.iter().any(|a| a.contains("{seconds}")))
    }

    fn sets_up_each_window(&self) -> bool {
        true
    }

    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>> {
        self.probe(settings, place)?;
        let config = Config::read(settings)?;
        let program = config.find(place)?;
        Ok(Box::new(Side { config, program, place: place.clone() }))
    }
}

/// The settings of the scenario.
#[derive(Debug, Clone, PartialEq)]
struct Config {
    program: String,
    /// The commit whose command is built and run, instead of a program.
    commit: Option<String>,
    args: Vec<String>,
    probe: Option<Vec<String>>,
    /// The figures' names, with JSON pointers into the output.
    figures: Vec<(String, String)>,
    packets: Option<String>,
    disturbed: Option<String>,
    timeout: Duration,
}

impl Config {
    fn read(settings: &Settings) -> Result<Config> {
        let reading = Reading::new(settings, "command", &KNOBS)?;
        let program = reading.text("program")?;
        let mut args = reading.texts("args")?.unwrap_or_default();
        args.extend(reading.texts("more")?.unwrap_or_default());
        let probe = reading.texts("probe")?;
        let figures = reading.texts("json")?.unwrap_or_default();
        let packets = reading.text("packets")?;
        let disturbed = reading.text("disturbed")?;
        let timeout_s = reading.count("timeout_s")?;
        let line = settings.get("json").map_or(0, |setting| setting.line);
        let figures = figures.iter().map(|text| named(text, line)).collect::<Result<_>>()?;
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let commit = filled(reading.text("commit")?);
        let program = match (filled(program), &commit) {
            (Some(program), Some(_)) if SCRIPTS.iter().all(|(name, _)| *name != program) => {
                let line = settings.get("commit").map_or(0, |setting| setting.line);
                let why =
                    "commit selects a version of linerate, and program selects another program";
                return Err(wrong(line, why).fix("say one of them"));
            }
            (program, commit) => program.or(commit.as_ref().map(|_| "linerate".to_owned())),
        };
        let is_script = |program: &String| SCRIPTS.iter().any(|(name, _)| name == program);
        let runs_commit = commit.is_some() && program.as_ref().is_some_and(is_script);
        if args.iter().any(|arg| arg.contains("{built}")) != runs_commit {
            let line = settings.get("args").map_or(0, |setting| setting.line);
            let why = "{built} is the program of a commit in the arguments of our script";
            return Err(wrong(line, why).fix("give program, commit and {built}, or no {built}"));
        }
        let program = program.ok_or_else(|| {
            wrong(0, "scenario \"command\" has no program").fix("program = \"…\" for each side")
        })?;
        let timeout = Duration::from_secs(timeout_s);
        Ok(Config { program, commit, args, probe, figures, packets, disturbed, timeout })
    }

    /// Finds the program, after building that of the commit.
    fn find(&self, place: &Place) -> Result<Found> {
        let built = self.commit.as_deref().map(|commit| version::built(commit, place));
        let built = built.transpose()?;
        let path = match &built {
            Some((path, _)) if !self.is_run() => path.clone(),
            _ => find(&self.program, place)?,
        };
        Ok(Found { path, built })
    }

    /// Returns true if the program is run itself, and not that of a commit in its place.
    fn is_run(&self) -> bool {
        self.commit.is_none() || self.script().is_some()
    }

    /// Returns the name and the text of the side's script, if it is a built-in one.
    fn script(&self) -> Option<(&'static str, &'static str)> {
        SCRIPTS.into_iter().find(|(name, _)| *name == self.program)
    }

    /// Returns the arguments of the program.
    fn line(
        &self,
        args: &[String],
        program: &Found,
        place: &Place,
        time: Duration,
    ) -> Vec<OsString> {
        let script = self.script().map(|(name, text)| ["-c", text, name]);
        let script = script.into_iter().flatten().map(OsString::from);
        let built = program.built.as_ref().map(|(path, _)| path.as_path());
        script.chain(args.iter().map(|arg| expand(arg, built, place, time))).collect()
    }
}

/// A program that can be run.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    /// The program that was built from the side's commit, and the commit's full name.
    built: Option<(PathBuf, String)>,
}

/// Parses `NAME=/pointer`.
fn named(text: &str, line: usize) -> Result<(String, String)> {
    let refused = || wrong(line, format!("{text:?} is not \"NAME=/pointer\""));
    let (name, pointer) = text.split_once('=').ok_or_else(refused)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(is_name) || !pointer.starts_with('/') {
        return Err(refused());
    }
    Ok((name.into(), pointer.into()))
}

/// Returns the path of the program.
///
/// # Errors
/// `E-UNSUPPORTED` if it is nowhere.
pub(super) fn find(program: &str, place: &Place) -> Result<PathBuf> {
    let absent = |why: String| {
        let fix = format!("install {program}, or name it by its path");
        Error::new(Code::Unsupported, format!("cannot run {program}"), why).fix(fix)
    };
    let program = if SCRIPTS.iter().any(|(name, _)| *name == program) { "bash" } else { program };
    if program == "self" {
        let unknown = || absent("the path of this program is unknown".into());
        return place.program.clone().ok_or_else(unknown);
    }
    // Prefer our program in the folder of this one, which is of the same build, to one on the PATH.
    let ours = OURS.iter().find(|(name, _)| *name == program);
    let beside = place.program.as_deref().map(|own| own.with_file_name(program));
    if let Some(beside) = beside.as_ref().filter(|file| ours.is_some() && file.is_file()) {
        return Ok(beside.clone());
    }
    if program.contains('/') {
        let path = Path::new(program);
        let there = path.is_file().then(|| path.to_owned());
        return there.ok_or_else(|| absent("there is no such file".into()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file());
    found.ok_or_else(|| match (ours, beside) {
        (Some((_, package)), Some(beside)) => {
            let (beside, what) = (beside.display(), format!("cannot run {program}"));
            let why = format!("it is neither {beside} nor on the PATH");
            let fix = format!(
                "cargo build --release -p {package} --bin {program} in linerate's repository, and copy \
                 target/release/{program} to {beside}"
            );
            Error::new(Code::Unsupported, what, why).fix(fix)
        }
        _ => absent("it is not on the PATH".into()),
    })
}

/// Formats a command line, with quotes around words with special characters, and control characters
/// escaped.
fn typed(program: &str, args: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%{}".contains(c);
    let words = std::iter::once(program).chain(args.iter().map(String::as_str));
    let word = |word: &str| match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("{word:?}"),
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

fn expand(arg: &str, built: Option<&Path>, place: &Place, time: Duration) -> OsString {
    let shown = |path: Option<&Path>| path.unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let cpu = |at: usize| place.cpus.get(at).map_or_else(String::new, usize::to_string);
    arg.replace("{cpu0}", &cpu(0))
        .replace("{cpu1}", &cpu(1))
        .replace("{seed}", &place.seed.to_string())
        .replace("{seconds}", &time.as_secs_f64().to_string())
        .replace("{self}", &shown(place.program.as_deref()))
        .replace("{built}", &shown(built))
        .into()
}

/// One side, ready to run.
#[derive(Debug)]
struct Side {
    config: Config,
    program: Found,
    place: Place,
}

impl Bench for Side {
    fn window(&mut self, time: Duration) -> Result<Window> {
        let args = self.config.line(&self.config.args, &self.program, &self.place, time);
        let ran = process::run(&self.program.path, &args, self.config.timeout, &self.place.stop)?;
        let said = document(&ran.stdout).ok_or_else(|| self.wrong("it printed no JSON"))?;
        let mut window = Window {
            wall_ns: ran.wall_ns,
            run_delay_ns: ran.run_delay_ns,
            cpu_ns: Some(ran.cpu_ns),
            ..Window::default()
        };
        for (name, pointer) in &self.config.figures {
            let value = self.at(&said, pointer)?;
            if value.is_null() {
                continue;
            }
            let number = value.as_f64().ok_or_else(|| self.is_no(pointer, "number"))?;
            window.figures.insert(name.clone(), number);
        }
        if let Some(pointer) = &self.config.packets {
            let value = self.at(&said, pointer)?;
            window.packets = value.as_u64().ok_or_else(|| self.is_no(pointer, "whole number"))?;
        }
        if let Some(pointer) = &self.config.disturbed {
            let value = self.at(&said, pointer)?;
            let text = value.as_str().map(str::to_owned);
            if text.is_none() && !value.is_null() {
                return Err(self.is_no(pointer, "text"));
            }
            window.void = text;
        }
        Ok(window)
    }

    fn cpus(&self) -> Vec<usize> {
        let is_named = |name: &str| self.config.args.iter().any(|arg| arg.contains(name));
        let cpus = self.place.cpus.iter().zip(["{cpu0}", "{cpu1}"]);
        let named: Vec<usize> =
            cpus.filter(|(_, name)| is_named(name)).map(|(cpu, _)| *cpu).collect();
        if named.is_empty() {
            // A program without CPUs in its arguments may run on every CPU of this process; if
            // these are unknown, the list stays empty.
            return allowed_cpus().unwrap_or_default();
        }
        named
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        let commit = self.config.commit.as_deref().zip(self.program.built.as_ref());
        let note = commit.map(|(name, (_, whole))| format!("{name} is commit {whole}"));
        Ok(Finished { notes: note.into_iter().collect(), ..Finished::default() })
    }
}

impl Side {
    fn at<'a>(&self, said: &'a Value, pointer: &str) -> Result<&'a Value> {
        let absent = || self.wrong(format!("it printed no {pointer}"));
        said.pointer(pointer).ok_or_else(absent)
    }

    fn is_no(&self, pointer: &str, kind: &str) -> Error {
        self.wrong(format!("its {pointer} is no {kind}"))
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        let what = format!("cannot read what {} printed", self.config.program);
        let args = self.config.args.join(" ");
        Error::new(Code::System, what, why).fix(format!("{} {args}", self.program.path.display()))
    }
}

/// Returns the last line of the output if it is a JSON document; else the whole output.
fn document(stdout: &[u8]) -> Option<Value> {
    let text = stdout.trim_ascii();
    let last = text.rsplit(|&byte| byte == b'\n').next().unwrap_or(text);
    let object = |bytes| serde_json::from_slice(bytes).ok().filter(Value::is_object);
    object(last).or_else(|| object(text))
}

#[cfg(test)]
mod tests;
