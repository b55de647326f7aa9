//! `linerate profile record`.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linerate_prof::agree::{Headline, Means, Reading, Tolerance};
use linerate_prof::profile::Profile;
use linerate_prof::sample::{Progress, Recorder, Recording, Target, What};
use linerate_prof::{pmu, print, read};

use super::args::Record;
use super::around::Around;
use super::child::Outcome;
use super::file::Draft;
use crate::errors::{Failure, RUNTIME, USAGE};
use crate::report::thousands;
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Samples for each second of CPU time, unless told.
const RATE: u32 = 1000;
/// Events of the CPU for each sample, unless told. A prime, so that it falls out of step with loops.
const PERIOD: u64 = 10_007;
/// Time between two looks at the kernel's rings and at the signals.
const LOOK: Duration = Duration::from_millis(100);
/// Two instruments that are further apart than this do not measure the same thing.
const APART_PCT: f64 = 5.0;
/// Of fewer, a twentieth may be chance: each thread's first sample comes at any moment of a period.
const SAMPLES_JUDGED: u64 = 100;

/// Runs the command; returns the exit status.
///
/// # Errors
/// Whatever keeps it from giving a profile.
pub fn record(args: &Record, screen: &Screen) -> Result<u8, Failure> {
    let what = what(args)?;
    let hz = what.hz();
    let is_event = matches!(what, What::Event { .. });
    let recorder = Recorder::new(what).call_chains(args.call_chains).kernel(!args.user);
    let target = target(args)?;
    let signals = Signals::watch().map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })?;
    let draft = (!args.json).then(|| Draft::of(&args.output)).transpose()?;
    let around = Around::start(args.pid);
    let mut recording = recorder.start(target).map_err(|e| refused(e.into(), is_event))?;
    let signal = watch(&mut recording, args, &signals)?;
    let outcome = Outcome::of(&mut recording, signal)?;
    let around = around.stop();
    let mut profile = recording.finish()?;
    around.put(&mut profile);
    profile.remarks.extend(outcome.remark());
    profile.remarks.extend(nothing(&profile, hz));
    if args.packets.is_some() {
        profile.conditions.packets = args.packets;
    }
    say(&profile, args, hz, draft, screen)?;
    Ok(signal.map_or_else(|| outcome.exit(), status))
}

/// What is sampled, as the library wants it.
fn what(args: &Record) -> Result<What, Failure> {
    let refuse = |what: &str, why: &str, fix: &str| {
        Err(Failure::new(USAGE, "E-USAGE", what, why.into(), fix))
    };
    match (args.event.to_ascii_lowercase().as_str(), args.rate, args.period) {
        ("time" | "cpu-clock" | "task-clock", rate, None) => {
            Ok(What::Time { hz: rate.unwrap_or(RATE) })
        }
        ("time" | "cpu-clock" | "task-clock", _, Some(_)) => {
            let why = "--period is for events; time is sampled by --rate";
            refuse("cannot sample time", why, "--rate 1000, or --event page-faults --period 100")
        }
        ("tick", None, None) => Ok(What::Tick),
        ("tick", ..) => {
            let why = "the kernel ticks at a rate of its own";
            refuse("cannot sample the tick", why, "leave --rate and --period out")
        }
        (event, Some(_), _) => {
            let why = "--rate is for time; events are sampled by --period";
            refuse(&format!("cannot sample {event}"), why, "--period 10007, or leave --event out")
        }
        (_, None, period) => {
            let event = pmu::Event::parse(&args.event)?;
            // What the kernel counts is rare: a page fault is worth a sample of its own.
            let usual = if event.is_software() { 1 } else { PERIOD };
            Ok(What::Event { trigger: (&event).into(), period: period.unwrap_or(usual) })
        }
    }
}

fn target(args: &Record) -> Result<Target, Failure> {
    if let Some(pid) = args.pid {
        return Ok(Target::Pid(pid));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        let why = "neither a process nor a command is named".to_owned();
        let fix = "linerate profile record --pid PID, or linerate profile record -- COMMAND";
        return Err(Failure::new(USAGE, "E-USAGE", "cannot record nothing", why, fix));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.json {
        command.stdout(Stdio::from(io::stderr()));
    }
    Ok(Target::Child(command))
}

/// An event that is not counted here has a remedy that can be typed.
fn refused(mut failure: Failure, is_event: bool) -> Failure {
    if is_event && failure.told.code == "E-UNSUPPORTED" {
        failure.told.fix = "leave --event out to sample by time; `linerate profile events` says \
                            what this machine counts, and what stands in for the rest"
            .into();
    }
    failure
}

/// Records until the target ends, the time is over, or a signal comes, which is returned.
fn watch(
    recording: &mut Recording,
    args: &Record,
    signals: &Signals,
) -> Result<Option<i32>, Failure> {
    let started = Instant::now();
    let line = Line::new(args);
    loop {
        let left = args.time.map(|time| time.saturating_sub(started.elapsed()));
        let progress = recording.poll(left.unwrap_or(LOOK).min(LOOK))?;
        if let Some(signal) = signals.wait(Duration::ZERO) {
            return Ok(Some(signal));
        }
        if !progress.target_alive {
            // Of a signal to both, a terminal's, the command may have heard first.
            let failed = recording.status().is_some_and(|status| !status.success());
            return Ok(signals.wait(if failed { LOOK } else { Duration::ZERO }));
        }
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        line.draw(started.elapsed(), progress);
    }
}

/// Why there is no sample, if there is none.
fn nothing(profile: &Profile, hz: Option<f64>) -> Option<String> {
    let cpu_ns = profile.conditions.cpu_ns.filter(|_| profile.counted() == 0)?;
    let each = match (hz, profile.event.period) {
        (Some(hz), _) => format!("{:.3} ms of it", 1e3 / hz),
        (None, Some(period)) => format!("{} {}", thousands(period), profile.event.name),
        (None, None) => "tick".into(),
    };
    let had = cpu_ns as f64 / 1e6;
    Some(format!("no sample: the target had {had:.3} ms of CPU time; one is taken every {each}"))
}

/// Saves and prints the profile, or prints the document.
fn say(
    profile: &Profile,
    args: &Record,
    hz: Option<f64>,
    draft: Option<Draft>,
    screen: &Screen,
) -> Result<(), Failure> {
    let Some(draft) = draft else {
        let mut document = Vec::new();
        read::json::write(profile, &mut document)?;
        let text = || String::from_utf8_lossy(document.trim_ascii_end()).into_owned();
        return screen.result(String::new, text);
    };
    // A full disk keeps it from being saved, and not from being seen.
    let kept = draft.save(|f| read::json::write(profile, f).map_err(|e| io::Error::other(e.why)));
    let table = print::Table::new(profile).top(Some(args.top));
    let clocks = hz.filter(|_| !args.user).and_then(|hz| agreement(profile, hz));
    let clocks = clocks.map_or_else(String::new, |said| format!("\n{said}\n"));
    screen.result(|| format!("\n{table}{clocks}"), String::new)?;
    screen.note(&saved(args, kept?.as_deref()));
    Ok(())
}

/// Where it is, and what can be done with it.
fn saved(args: &Record, kept: Option<&Path>) -> String {
    let file = args.output.display();
    let old = kept.map_or_else(String::new, |old| format!("; what was there is {}", old.display()));
    let next = if args.call_chains { " --flame flame.svg" } else { "" };
    format!("\nsaved to {file}{old}\nprint it again: linerate profile list {file}{next}\n")
}

/// Samples of time say how long the target had a CPU, and so does the kernel.
fn agreement(profile: &Profile, hz: f64) -> Option<String> {
    let wall_ns = profile.conditions.wall_ns.filter(|ns| *ns > 0)? as f64;
    let cpu_ns = profile.conditions.cpu_ns? as f64;
    let counted = profile.counted();
    let took = format!("{} x {:.3} ms of a clock", thousands(counted), 1e3 / hz);
    let sampled = if counted < SAMPLES_JUDGED {
        let too_few = format!("{took}: fewer than {SAMPLES_JUDGED} samples may be chance");
        Reading::missing("samples", Means::ClockSamples, too_few)
    } else {
        let pct = 100.0 * counted as f64 * 1e9 / hz / wall_ns;
        Reading::new("samples", Means::ClockSamples, pct, took)
    };
    let took = format!("{} of CPU time in {} of wall time", seconds(cpu_ns), seconds(wall_ns));
    let kernel = Reading::new("kernel", Means::CpuTime, 100.0 * cpu_ns / wall_ns, took);
    let headline = Headline::new("CPU time over wall time", "%", 1).by(sampled).by(kernel);
    Some(headline.judge(Tolerance::pct(APART_PCT)).to_string())
}

fn seconds(ns: f64) -> String {
    format!("{:.3} s", ns / 1e9)
}

/// The line on stderr that shows a recording at work, if a person is looking. A command has the
/// terminal to itself.
struct Line {
    total: Option<Duration>,
    seen: bool,
}

impl Line {
    fn new(args: &Record) -> Line {
        Line { total: args.time, seen: args.pid.is_some() && io::stderr().is_terminal() }
    }

    fn draw(&self, elapsed: Duration, progress: Progress) {
        if !self.seen {
            return;
        }
        let seconds = |d: Duration| format!("{:.1} s", d.as_secs_f64());
        let of = self.total.map_or_else(String::new, |total| format!(" of {}", seconds(total)));
        let (samples, lost) = (thousands(progress.samples), thousands(progress.lost));
        let line = format!("sampling  {}{of}  {samples} samples  {lost} lost", seconds(elapsed));
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.seen {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
