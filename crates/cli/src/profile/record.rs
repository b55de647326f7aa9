//! `linerate profile record`.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linerate_prof::agree::{Headline, Means, Reading, Tolerance};
use linerate_prof::conditions::{Passed, Traffic};
use linerate_prof::proc::{Head, Started};
use linerate_prof::profile::{Origin, Profile};
use linerate_prof::sample::{Progress, Recorder, Recording, Target, What};
use linerate_prof::{Result as Had, pmu, print, read};

use super::args::Record;
use super::file::Draft;
use crate::errors::{Failure, RUNTIME, USAGE};
use crate::report::thousands;
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Events for each sample, unless told. A prime, so that it falls out of step with loops.
const PERIOD: u64 = 10_007;
/// Time between two looks at the kernel's rings and at the signals.
const LOOK: Duration = Duration::from_millis(100);
/// Two instruments that are further apart than this do not measure the same thing.
const APART_PCT: f64 = 5.0;

/// Runs the command; returns the exit status.
///
/// # Errors
/// Whatever keeps it from giving a profile.
pub fn record(args: &Record, screen: &Screen) -> Result<u8, Failure> {
    let recorder = Recorder::new(what(args)?).call_chains(args.call_chains).kernel(!args.user);
    let signals = Signals::watch().map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })?;
    let draft = (!args.json).then(|| Draft::of(&args.output)).transpose()?;
    let around = Around::start(args.pid);
    let recording = recorder.start(target(args))?;
    let (recording, signal) = watch(recording, args, &signals)?;
    let around = around.stop();
    let mut profile = recording.finish()?;
    around.put(&mut profile);
    if args.packets.is_some() {
        profile.conditions.packets = args.packets;
    }
    say(&profile, args, draft, screen)?;
    Ok(signal.map_or(0, status))
}

/// What is sampled, as the library wants it.
fn what(args: &Record) -> Result<What, Failure> {
    if args.event.eq_ignore_ascii_case("time") {
        if args.period.is_some() {
            let why = "--period is for events; time is sampled by --rate".to_owned();
            return Err(Failure::new(USAGE, "E-USAGE", "cannot sample time", why, ""));
        }
        return Ok(What::Time { hz: args.rate });
    }
    let event = pmu::Event::parse(&args.event)?;
    Ok(What::Event { trigger: (&event).into(), period: args.period.unwrap_or(PERIOD) })
}

fn target(args: &Record) -> Target {
    let Some((program, arguments)) = args.command.split_first() else {
        // clap asks for a command where there is no process.
        return Target::Pid(args.pid.unwrap_or_default());
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.json {
        command.stdout(Stdio::from(io::stderr()));
    }
    Target::Child(command)
}

/// What went on around the target. A profile without it is still one, so that what cannot be had is
/// told as a remark.
struct Around {
    head: Had<Started>,
    traffic: Had<Traffic>,
}

impl Around {
    fn start(pid: Option<u32>) -> Around {
        Around { head: Head::start(), traffic: Traffic::start(pid) }
    }

    fn stop(self) -> Ended {
        let head = self.head.and_then(|started| started.stop());
        let passed = self.traffic.and_then(|traffic| traffic.stop());
        Ended { head, passed }
    }
}

/// The same, at its end.
struct Ended {
    head: Had<Head>,
    passed: Had<Passed>,
}

impl Ended {
    fn put(self, profile: &mut Profile) {
        match self.head {
            Ok(head) => profile.head = Some(head),
            Err(e) => profile.remarks.push(format!("no head of top: {}", e.why)),
        }
        match self.passed {
            Ok(passed) => {
                for name in &passed.reset {
                    let remark = format!("what passed {name} is not known: it began to count anew");
                    profile.remarks.push(remark);
                }
                profile.conditions.netdevs = passed.netdevs;
            }
            Err(e) => profile.remarks.push(format!("traffic is not known: {}", e.why)),
        }
    }
}

/// Records until the target ends, the time is over, or a signal comes, which is returned.
fn watch(
    mut recording: Recording,
    args: &Record,
    signals: &Signals,
) -> Result<(Recording, Option<i32>), Failure> {
    let started = Instant::now();
    let line = Line::new(args.time);
    loop {
        let left = args.time.map(|time| time.saturating_sub(started.elapsed()));
        let progress = recording.poll(left.unwrap_or(LOOK).min(LOOK))?;
        if let Some(signal) = signals.wait(Duration::ZERO) {
            return Ok((recording, Some(signal)));
        }
        if !progress.target_alive || left == Some(Duration::ZERO) {
            return Ok((recording, None));
        }
        line.draw(started.elapsed(), progress);
    }
}

/// Saves and prints the profile, or prints the document.
fn say(
    profile: &Profile,
    args: &Record,
    draft: Option<Draft>,
    screen: &Screen,
) -> Result<(), Failure> {
    let Some(draft) = draft else {
        let mut document = Vec::new();
        read::json::write(profile, &mut document)?;
        let text = || String::from_utf8_lossy(document.trim_ascii_end()).into_owned();
        return screen.result(String::new, text);
    };
    let kept = draft.save(|f| read::json::write(profile, f).map_err(|e| io::Error::other(e.why)))?;
    let table = print::Table::new(profile).top(Some(args.top));
    let clocks = agreement(profile, args).map_or_else(String::new, |said| format!("\n{said}"));
    screen.result(|| format!("\n{table}{clocks}"), String::new)?;
    screen.note(&saved(args, kept.as_deref()));
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
fn agreement(profile: &Profile, args: &Record) -> Option<String> {
    let wall_ns = profile.conditions.wall_ns.filter(|ns| *ns > 0)? as f64;
    let cpu_ns = profile.conditions.cpu_ns? as f64;
    if profile.origin != Origin::Clock || profile.event.period.is_some() || args.user {
        return None;
    }
    let sampled_ns = profile.counted() as f64 * 1e9 / f64::from(args.rate);
    let took = format!("{} samples of a clock at {} Hz", thousands(profile.counted()), args.rate);
    let sampled =
        Reading::new("samples", Means::ClockSamples, 100.0 * sampled_ns / wall_ns, took);
    let took = format!("{} of CPU time in {} of wall time", seconds(cpu_ns), seconds(wall_ns));
    let kernel = Reading::new("kernel", Means::CpuTime, 100.0 * cpu_ns / wall_ns, took);
    let headline = Headline::new("CPU time over wall time", "%", 1).by(sampled).by(kernel);
    Some(headline.judge(Tolerance::pct(APART_PCT)).to_string())
}

fn seconds(ns: f64) -> String {
    format!("{:.2} s", ns / 1e9)
}

/// The line on stderr that shows a recording at work, if a person is looking.
struct Line {
    total: Option<Duration>,
    seen: bool,
}

impl Line {
    fn new(total: Option<Duration>) -> Line {
        Line { total, seen: io::stderr().is_terminal() }
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
