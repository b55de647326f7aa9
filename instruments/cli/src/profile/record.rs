//! `linerate profile record`: samples with perf(1), and converts its text into a profile.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use linerate_prof::agree::{APART_PCT, Headline, Means, Reading, Tolerance};
use linerate_prof::conditions::{Conditions, rfc3339};
use linerate_prof::profile::{Event, Origin, OwnCost, Profile, Space, Unit};
use linerate_prof::sample::{
    KERNEL_LEFT_OUT, Recorder, Target, Trial, What, cost_remark, size_kernel,
};
use linerate_prof::{Code, pmu, print, read};

use super::args::Record;
use super::file::Draft;
use super::recording::Around;
use super::recording::{Ended, Recording};
use super::recording::{Folder, Perf};
use crate::errors::{Failure, RUNTIME, UNSUPPORTED, USAGE};
use crate::lines::Lines;
use crate::report::thousands;
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Default number of samples for each second of CPU time: a prime, so that no timer that ticks at a
/// part of a millisecond is always, or never, seen.
const RATE: u32 = 997;
/// Default number of the CPU's events for each sample. The number is a prime, so that sampling does
/// not run in step with loops.
const PERIOD: u64 = 10_007;
/// CPU time below which the kernel's account, in hundredths of a second, is too coarse for a
/// comparison.
const CPU_JUDGED: Duration = Duration::from_millis(500);
/// Bytes that no file system stores without room of their own.
const BLOCK_BYTES: usize = 4096;

/// The event to sample, with its names in perf and in the profile.
struct Sampling {
    /// The event in perf's syntax, without the privilege levels.
    perf: String,
    period: u64,
    /// The event for a trial on this thread; time for an event that only perf knows.
    what: What,
    event: Event,
    origin: Origin,
}

impl Sampling {
    /// Returns the samples for each second of CPU time, if time is sampled.
    fn hz(&self) -> Option<f64> {
        self.what.hz().filter(|_| self.origin == Origin::Clock)
    }
}

/// Runs the command; returns the exit status.
pub fn record(args: &Record, screen: &Screen) -> Result<u8, Failure> {
    let (sampling, recorder, trial) = match tried_out(args) {
        Ok(tried_out) => tried_out,
        Err(refusal) => return modelled(args, screen, refusal),
    };
    let is_event = matches!(sampling.what, What::Event { .. });
    if args.all_cpus {
        // Try it here first, because perf's message on a refusal has less information.
        let once = Recorder { calibrate: false, ..recorder.clone() };
        once.start(Target::Machine).map_err(|e| refused(e.into(), is_event))?;
    }
    let perf = Perf::find()?;
    let signals = Signals::watch().map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })?;
    let draft = (!args.json).then(|| Draft::of(&args.output)).transpose()?;
    let folder = Folder::new()?;
    let mode = if args.user || !trial.kernel { ":u" } else { "" };
    let event = format!("{}{mode}", sampling.perf);
    let mut command = perf.record(&event, sampling.period, args.call_chains, &folder);
    if args.all_cpus {
        command.arg("--all-cpus");
    }
    match args.pid {
        Some(pid) => command.arg("--pid").arg(pid.to_string()),
        None if args.command.is_empty() => &mut command,
        None => command.arg("--").args(&args.command),
    };
    if args.json {
        command.stdout(Stdio::from(io::stderr()));
    }
    let (around, started) = (Around::start(args.pid, args.all_cpus), SystemTime::now());
    let workload = workload(args);
    let ended = Recording::start(command, args.pid, !args.command.is_empty())?
        .wait(args, &signals, screen)?;
    let put_around = around.stop();
    // perf creates the file before its rings.
    if fs::metadata(folder.data()).map_or(0, |file| file.len()) == 0 {
        return Err(no_data(&ended, recorder, &folder.data()));
    }
    let found = perf.script(&folder, &event)?;
    let mut profile = profile(found, args, &sampling, trial, &ended);
    profile.conditions = Conditions {
        tool: Some(format!("linerate {}, perf {}", env!("CARGO_PKG_VERSION"), perf.version)),
        workload: Some(workload),
        started: Some(rfc3339(started)),
        ..profile.conditions
    };
    put_around(&mut profile);
    say(&profile, args, sampling.hz(), draft, screen)?;
    Ok(ended.signal.map_or_else(|| ended.exit(!args.command.is_empty()), status))
}

/// Reads from the arguments what to sample, and tries it for a moment on this thread.
fn tried_out(args: &Record) -> Result<(Sampling, Recorder, Trial), Failure> {
    let sampling = sampling(args)?;
    check_target(args)?;
    let recorder = Recorder {
        call_chains: args.call_chains,
        kernel: !args.user,
        ..Recorder::new(sampling.what.clone())
    };
    let is_event = matches!(sampling.what, What::Event { .. });
    let trial = recorder.try_out().map_err(|e| refused(e.into(), is_event))?;
    Ok((sampling, recorder, trial))
}

/// Runs the command under the model of caches if no counter here counts the event and the event is
/// one of cache lines; returns `refusal` in all other cases.
fn modelled(args: &Record, screen: &Screen, refusal: Failure) -> Result<u8, Failure> {
    let is_command = args.pid.is_none() && !args.all_cpus && !args.command.is_empty();
    let is_counter_missing = refusal.error.code == "E-UNSUPPORTED";
    let lines = Lines {
        event: args.event.clone(),
        l2: None,
        packets: args.packets,
        marked: false,
        without: None,
        output: (!args.json).then(|| args.output.clone()),
        top: args.top,
        plugin: None,
        read: None,
        kallsyms: None,
        json: args.json,
        command: args.command.clone(),
    };
    if !(is_command && is_counter_missing && lines.is_possible()) {
        return Err(refusal);
    }
    let why = &refusal.error.why;
    screen.note(&format!(
        "MODEL: {why}; the figures do not come from a counter: the command runs in an emulator with a cache model, \
         tens of times slower (linerate lines)\n"
    ));
    for ignored in ignored(args) {
        screen.note(&format!("MODEL: {ignored}\n"));
    }
    lines.run(screen)
}

/// Returns a sentence on each given option that the model does not have. `--user` is not among
/// them, because the model follows only the program's own functions.
fn ignored(args: &Record) -> Vec<&'static str> {
    let all = [
        (args.time.is_some(), "--for is ignored: the command runs until it ends"),
        (args.period.is_some(), "--period is ignored: every event is counted"),
        (args.call_chains, "--call-chains is ignored: the model records no callers"),
    ];
    all.into_iter().filter(|(given, _)| *given).map(|(_, said)| said).collect()
}

/// Reads from the arguments the event to sample and its rate or period.
fn sampling(args: &Record) -> Result<Sampling, Failure> {
    let refuse = |what: &str, why: &str, fix: &str| {
        Err(Failure::new(USAGE, "E-USAGE", what, why.into(), fix))
    };
    let event =
        |name: &str, period, raw| Event { name: name.to_owned(), unit: Unit::Samples, period, raw };
    match (args.event.to_ascii_lowercase().as_str(), args.rate, args.period) {
        ("time" | "cpu-clock" | "task-clock", rate, None) => {
            let hz = rate.unwrap_or(RATE);
            let period = 1_000_000_000 / u64::from(hz);
            Ok(Sampling {
                perf: "cpu-clock".to_owned(),
                period,
                what: What::Time { hz },
                event: event("cpu-clock", Some(period), None),
                origin: Origin::Clock,
            })
        }
        ("time" | "cpu-clock" | "task-clock", _, Some(_)) => {
            let why = "--period is for events; time is sampled by --rate";
            refuse("cannot sample time", why, "--rate 997, or --event page-faults --period 100")
        }
        (name, Some(_), _) => {
            let why = "--rate is for time; events are sampled by --period";
            refuse(&format!("cannot sample {name}"), why, "--period 10007, or leave --event out")
        }
        (name, None, period) if is_perf_s(name) => {
            // A tracepoint has a colon. Its occurrences are counted by the kernel and rare, so each
            // gives a sample.
            let tracepoint = name.contains(':') && !name.contains('/');
            let period = period.unwrap_or(if tracepoint { 1 } else { PERIOD });
            Ok(Sampling {
                perf: args.event.clone(),
                period,
                // This event cannot be tried here. Try samples of time, whose cost is the same.
                what: What::Time { hz: RATE },
                event: event(&args.event, Some(period), None),
                origin: if tracepoint { Origin::Kernel } else { Origin::Counter },
            })
        }
        (_, None, period) => {
            let known = pmu::Event::parse(&args.event)?;
            // Events that the kernel counts are rare: each page fault may take a sample.
            let usual = if known.is_software() { 1 } else { PERIOD };
            let period = period.unwrap_or(usual);
            Ok(Sampling {
                perf: known.perf_name(),
                period,
                what: What::Event { event: known.clone(), period },
                event: event(&known.name, Some(period), known.raw.clone()),
                origin: if known.is_software() { Origin::Kernel } else { Origin::Counter },
            })
        }
    }
}

/// Returns true if only perf knows the event. An event of ours with a mode after it (`cycles:u`) is
/// refused: on a machine without counters, perf would sample time instead, without a message.
fn is_perf_s(name: &str) -> bool {
    let base = name.split_once(':').map_or(name, |(base, _)| base);
    name.contains([':', '/', '.']) && pmu::Event::parse(base).is_err()
}

/// Refuses a target that does not exist, before anything is started.
fn check_target(args: &Record) -> Result<(), Failure> {
    if let Some(pid) = args.pid {
        if Path::new(&format!("/proc/{pid}/task/{pid}")).exists() {
            return Ok(());
        }
        let (what, fix) = (format!("cannot sample process {pid}"), "pgrep -a NAME finds a process");
        return Err(Failure::new(RUNTIME, "E-SYSTEM", &what, "there is none".into(), fix));
    }
    let Some(program) = args.command.first() else {
        if args.all_cpus {
            return Ok(());
        }
        let why = "neither a process nor a command is named".to_owned();
        let fix = "linerate profile record --pid PID, or linerate profile record -- COMMAND";
        return Err(Failure::new(USAGE, "E-USAGE", "there is nothing to record", why, fix));
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match program.contains('/') {
        true => is_program(Path::new(program)),
        false => std::env::split_paths(&path).any(|folder| is_program(&folder.join(program))),
    };
    if found {
        return Ok(());
    }
    let why = "there is no such file that may be executed".to_owned();
    let fix = "check its path and its execute permission";
    Err(Failure::new(RUNTIME, "E-FILE", &format!("cannot start {program}"), why, fix))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Adds a remedy to the refusal of an event: options that the user can type.
fn refused(mut failure: Failure, is_event: bool) -> Failure {
    if is_event && failure.error.code == "E-UNSUPPORTED" {
        let model = match failure.error.fix.contains("linerate lines") {
            true => "`linerate lines -- COMMAND` ranks functions by a model of caches; ",
            false => "",
        };
        failure.error.fix = format!(
            "{model}leave --event out to sample by time; `linerate profile events` lists the \
             events of this machine, and substitutes for the others"
        );
    }
    failure
}

/// Returns the failure of a perf that produced no data.
///
/// perf has printed on stderr why it opened no event. It is silent, because of `--quiet`, if the
/// kernel refused its rings or its file `data` had no room. So ask for rings of the same size here,
/// and write to the file.
fn no_data(ended: &Ended, recorder: Recorder, data: &Path) -> Failure {
    let rings = Recorder { calibrate: false, ..recorder }.start(Target::ThisProcess);
    if let Err(e) = rings.map(drop)
        && e.code == Code::Memory
    {
        return e.into();
    }
    if let Err(e) = fs::write(data, [0; BLOCK_BYTES]) {
        let what = format!("cannot record into {}", data.display());
        let fix = format!(
            "df -h {}; make room there, or set TMPDIR to a folder with room",
            std::env::temp_dir().display()
        );
        return Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), &fix);
    }
    let why =
        format!("perf record ended with {} and no data; see its messages above", ended.status);
    let fix = format!(
        "perf list shows the events that it knows; if it has printed no message, it had no room, \
         for its rings (ulimit -l unlimited) or in its file (df {})",
        std::env::temp_dir().display()
    );
    Failure::new(UNSUPPORTED, "E-UNSUPPORTED", "cannot record", why, &fix)
}

/// Returns the workload: the command as typed, or the command line of the process.
fn workload(args: &Record) -> String {
    let Some(pid) = args.pid else {
        let machine = if args.all_cpus { "the whole machine" } else { "" };
        let beside = if args.all_cpus && !args.command.is_empty() { ", beside " } else { "" };
        return format!("{machine}{beside}{}", args.command.join(" "));
    };
    let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let words = match read("cmdline") {
        words if words.is_empty() => read("comm"),
        words => words,
    };
    let text: String = String::from_utf8_lossy(&words).chars().take(4096).collect();
    text.replace(['\0', '\n'], " ").trim_end().to_owned()
}

/// Completes the profile from perf with the requested event and the target's CPU time.
fn profile(
    found: Option<Profile>,
    args: &Record,
    sampling: &Sampling,
    trial: Trial,
    ended: &Ended,
) -> Profile {
    let mut profile =
        found.unwrap_or_else(|| Profile::new(sampling.event.clone(), sampling.origin));
    (profile.event, profile.origin) = (sampling.event.clone(), sampling.origin);
    profile.sort();
    // For the whole machine, every CPU is sampled during the whole recording.
    let cpus = || Conditions::here().cpus.map_or(1, u64::from);
    let sampled_ns = match args.all_cpus {
        true => u64::try_from(ended.wall.as_nanos()).ok().map(|ns| ns.saturating_mul(cpus())),
        false => ended.cpu_ns,
    };
    let cost = sampled_ns.map(|target_cpu_ns| OwnCost {
        recorder_cpu_ns: ended.perf_cpu_ns,
        sample_ns: trial.sample_ns,
        target_cpu_ns,
        samples: profile.counted(),
    });
    profile.own_cost = cost;
    let measures = match sampling.hz() {
        Some(hz) => format!("where threads are, {hz} times in each second of CPU time"),
        None => {
            format!("where threads are, once in every {} {}", sampling.period, sampling.event.name)
        }
    };
    profile.conditions = Conditions {
        measures: Some(measures),
        wall_ns: u64::try_from(ended.wall.as_nanos()).ok(),
        cpu_ns: ended.cpu_ns.filter(|_| !args.all_cpus),
        packets: args.packets,
        whole_machine: args.all_cpus,
        ..Conditions::here()
    };
    if !args.user && !trial.kernel {
        profile.remarks.push(KERNEL_LEFT_OUT.to_owned());
    }
    if args.all_cpus {
        size_kernel(&mut profile);
    }
    profile.remarks.extend(ended.remark(!args.command.is_empty()));
    profile.remarks.extend(cost.and_then(|cost| cost_remark(&sampling.what, &cost)));
    profile.remarks.extend(nameless(&profile));
    profile.remarks.extend(shallow(&profile));
    profile.remarks.extend(nothing(&profile, sampling.hz()));
    profile
}

/// Returns a remark on samples in functions that perf could not name.
fn nameless(profile: &Profile) -> Option<String> {
    let rows: Vec<_> = profile.rows.iter().filter(|row| row.symbol == "[unknown]").collect();
    let samples = rows.iter().map(|row| row.count).sum::<u64>();
    let object = |row: &&&linerate_prof::profile::Row| {
        row.object.clone().unwrap_or_else(|| "[unknown]".into())
    };
    let named = rows.iter().take(3).map(|row| format!("{} in {}", row.count, object(&row)));
    let named = named.collect::<Vec<_>>().join(", ");
    let hidden = match rows.iter().any(|row| row.space == Space::Kernel) {
        true => "; the kernel hides its names unless sysctl kernel.kptr_restrict=0 or CAP_SYSLOG",
        false => "",
    };
    (samples > 0).then(|| {
        format!(
            "{samples} of {} samples have no function symbol ({named}); for a stripped file, install \
             its debuginfo or build it unstripped{hidden}",
            profile.counted()
        )
    })
}

/// Returns a remark if most call chains end after one caller.
fn shallow(profile: &Profile) -> Option<String> {
    let all: u64 = profile.stacks.iter().map(|stack| stack.count).sum();
    let short = profile.stacks.iter().filter(|stack| stack.frames.len() <= 2);
    let short: u64 = short.map(|stack| stack.count).sum();
    (short * 2 > all).then(|| {
        format!(
            "{short} of {all} call chains end after one caller: code without frame pointers (build \
             with -C force-frame-pointers=yes, or -fno-omit-frame-pointer)"
        )
    })
}

/// Returns a remark with the reason why there is no sample, if there is none and none was lost.
fn nothing(profile: &Profile, hz: Option<f64>) -> Option<String> {
    let is_none = profile.counted() == 0 && profile.lost == 0;
    let cpu_ns = profile.conditions.cpu_ns.filter(|_| is_none)?;
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
    let mut document = Vec::new();
    let written = read::json::write(profile, &mut document);
    let Some(draft) = draft else {
        written?;
        let text = || String::from_utf8_lossy(document.trim_ascii_end()).into_owned();
        return screen.result(String::new, text);
    };
    // If the profile cannot be saved, for instance on a full disk, it is printed nevertheless.
    let save = |()| draft.save(|f| f.write_all(&document));
    let kept = written.map_err(Failure::from).and_then(save);
    let table = print::Table::new(profile).top(Some(args.top));
    let clocks = hz.filter(|_| !args.user).and_then(|hz| agreement(profile, hz));
    let clocks = clocks.map_or_else(String::new, |said| format!("\n{said}\n"));
    screen.result(|| format!("\n{table}{clocks}"), String::new)?;
    screen.note(&saved(args, kept?.as_deref()));
    Ok(())
}

/// Formats the path of the saved profile, and commands that use it.
fn saved(args: &Record, kept: Option<&Path>) -> String {
    let file = args.output.display();
    let old =
        kept.map_or_else(String::new, |old| format!("; the former file is {}", old.display()));
    let next = if args.call_chains { " --flame flame.svg" } else { "" };
    format!("\nsaved to {file}{old}\nprint it again: linerate profile list {file}{next}\n")
}

/// Compares the samples of time with the kernel's account of CPU time; returns `None` if the time
/// in the kernel's functions gave no samples.
fn agreement(profile: &Profile, hz: f64) -> Option<String> {
    if profile.remarks.iter().any(|remark| remark == KERNEL_LEFT_OUT) {
        return None;
    }
    let wall_ns = profile.conditions.wall_ns.filter(|ns| *ns > 0)? as f64;
    let cpu_ns = profile.conditions.cpu_ns? as f64;
    let sampled = Reading::of_samples(profile.counted(), hz, 100.0 / wall_ns);
    let took = format!("{} of CPU time in {} of wall time", seconds(cpu_ns), seconds(wall_ns));
    let kernel = match cpu_ns < CPU_JUDGED.as_nanos() as f64 {
        true => {
            let too_short = format!("{took}: the kernel accounts it in hundredths of a second");
            Reading::missing("kernel", Means::CpuTime, too_short)
        }
        false => Reading::new("kernel", Means::CpuTime, 100.0 * cpu_ns / wall_ns, took),
    };
    let headline = Headline::new("CPU time over wall time", "%", 1).by(sampled).by(kernel);
    Some(headline.judge(Tolerance::pct(APART_PCT)).to_string())
}

fn seconds(ns: f64) -> String {
    format!("{:.3} s", ns / 1e9)
}

#[cfg(test)]
mod tests;
