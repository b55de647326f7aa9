//! One run of a path: start, watch, stop, and what it took.

use std::time::{Duration, Instant};

use linerate::{Builder, Engine, Health, Running, Stats, Stopped};
use linerate_ctl::{ForwardReport, Spent, TSC, Told};
use linerate_prof::count::Counters;
use linerate_prof::{cpu_time, ticks};

use crate::args::{Memory, Run};
use crate::errors::{self, CHECK, Failure, RUNTIME, UNBALANCED, UNVERIFIED};
use crate::preface::preface;
use crate::progress::{Progress, REDRAW};
use crate::screen::Screen;
use crate::signals::{self, Signals};

/// Longest time that packets under way are given to leave.
const DRAIN: Duration = Duration::from_secs(2);
/// How often to look at a path that may end by itself.
const LOOK_OFTEN: Duration = Duration::from_millis(10);
/// How often to look at one that does not: a port in trouble is noticed, an idle machine sleeps.
const LOOK: Duration = Duration::from_secs(1);

/// What is to run.
#[derive(Debug, Default)]
pub struct Path {
    /// Names and texts.
    pub ports: Vec<(String, String)>,
    /// Pairs of names.
    pub wires: Vec<(String, String)>,
    /// When to end at the latest.
    pub time: Option<Duration>,
    /// Packets out after which to end.
    pub count: Option<u64>,
    /// What the options line says about the end: `for 3s`.
    pub until: String,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its sources had, or its time or count was reached.
    Done,
    /// A port failed for good, or a worker ended early.
    Failed,
    /// It was told to.
    Signal(i32),
}

/// What a run gave.
#[derive(Debug)]
pub struct Ran {
    pub report: ForwardReport,
    pub stopped: Stopped,
    pub ended: Ended,
    /// Why cycles and instructions are not known, if they are not.
    uncounted: Option<linerate::Error>,
}

/// Runs a path to its end.
///
/// # Errors
/// Whatever keeps it from running, and a ledger that does not balance.
pub fn run(path: &Path, run: &Run, screen: &Screen) -> Result<Ran, Failure> {
    let mut builder =
        Engine::builder().budget(run.budget.into()).rx_usecs(run.rx_usecs).cpus(&run.cpu);
    for (name, text) in &path.ports {
        builder = builder.port(name, text);
    }
    for (left, right) in &path.wires {
        builder = builder.wire(left, right);
    }
    let engine = with_memory(builder, &run.memory).build()?;
    screen.preface(&preface(&engine, path, run))?;
    for warning in engine.warnings() {
        screen.note(&format!("warning: {warning}\n"));
    }
    let stats = engine.stats();
    let signals = Signals::watch().map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })?;
    // Counters see the threads that are started after them.
    let counters = Counters::start();
    let (cpu, start, tick) = (cpu_time(), Instant::now(), ticks());
    let running = engine.start()?;
    let ended = watch(&running, path, screen, &signals);
    // The rate is that of the run. What is under way then may leave late, or wait for its end in
    // vain: that time is none of it.
    let wall = start.elapsed();
    let stopped = running.stop(DRAIN);
    let cpu = cpu_time().saturating_sub(cpu);
    let ticks_per_second = ticks().wrapping_sub(tick) as f64 / start.elapsed().as_secs_f64();
    let ticks_per_second = Some(ticks_per_second).filter(|rate| rate.is_finite());
    let mut spent = Spent { wall, cpu, ticks_per_second, ..Spent::default() };
    let counted = counters.and_then(Counters::stop);
    if let Ok(counted) = &counted {
        spent.cycles = Some(counted.cycles);
        spent.instructions = Some(counted.instructions);
        spent.scope = Some(counted.scope.as_str());
    } else {
        // The clock that every x86 has: CPU time in its ticks, under its own name.
        spent.cycles = ticks_per_second.map(|rate| (cpu.as_secs_f64() * rate) as u64);
        spent.scope = Some(TSC);
    }
    let mut report = ForwardReport::new(&stopped, &stats, &spent);
    if !report.ledger.balanced {
        return Err(unbalanced(&stopped));
    }
    if report.error.is_none() {
        report.error = unverified(&report);
    }
    Ok(Ran { report, stopped, ended, uncounted: counted.err() })
}

/// Asks for the memory that `memory` says.
fn with_memory(mut builder: Builder, memory: &Memory) -> Builder {
    builder = builder.data(memory.buffers).init(memory.init).return_to(memory.return_to);
    builder = builder.fit_packets(memory.fit).sampling(memory.sample);
    if let Some(frames) = memory.pool_frames {
        builder = builder.pool_frames(frames);
    }
    if let Some(bytes) = memory.frame_size {
        builder = builder.frame_size(bytes);
    }
    if let Some((frames, bytes)) = memory.jumbo {
        builder = builder.jumbo(frames, bytes);
    }
    match memory.hot_list {
        Some(frames) => builder.hot_list_len(frames as usize),
        None => builder,
    }
}

impl Ran {
    /// Says, after the result, what was wrong with the run and what could not be known.
    pub fn notes(&self, screen: &Screen) {
        if let Some(e) = &self.uncounted {
            screen.note(&format!("note: {}: {}; ticks of CPU time instead\n", e.what, e.why));
        }
        if let Some(told) = &self.report.error {
            screen.note(&errors::text(told));
        }
    }

    /// The exit status; what is wrong with the run goes before what ended it.
    pub fn exit(&self) -> u8 {
        match (&self.report.error, self.ended) {
            (Some(told), _) if told.code == UNVERIFIED => CHECK,
            (Some(_), _) | (None, Ended::Failed) => RUNTIME,
            (None, Ended::Signal(signal)) => signals::status(signal),
            (None, Ended::Done) => 0,
        }
    }
}

/// Waits until the run is to end, and shows it at work.
fn watch(running: &Running, path: &Path, screen: &Screen, signals: &Signals) -> Ended {
    let start = Instant::now();
    let mut progress = (!screen.quiet).then(|| Progress::new(path.time)).flatten();
    let finite = |text: &String| linerate::parse(text).is_ok_and(|s| ends(&s.driver));
    let often = path.count.is_some() || path.ports.iter().any(|(_, text)| finite(text));
    let look = match (&progress, often) {
        (_, true) => LOOK_OFTEN,
        (Some(_), false) => REDRAW,
        (None, false) => LOOK,
    };
    let mut down = Vec::new();
    loop {
        let left = path.time.map_or(look, |time| time.saturating_sub(start.elapsed()));
        if let Some(signal) = signals.wait(left.min(look)) {
            return Ended::Signal(signal);
        }
        let out = packets_out(running.stats());
        if let Some(progress) = &mut progress {
            progress.draw(out);
        }
        // First: when all workers have ended early, there is nothing left that is not finished.
        if running.failed() {
            return Ended::Failed;
        }
        let over = path.time.is_some_and(|time| start.elapsed() >= time);
        if over || path.count.is_some_and(|count| out >= count) || running.finished() {
            return Ended::Done;
        }
        if troubled(running.stats(), &mut down, screen) {
            return Ended::Failed;
        }
    }
}

/// True for drivers whose ports can come to an end without anything being wrong.
fn ends(driver: &str) -> bool {
    matches!(driver, "gen" | "pcap")
}

fn packets_out(stats: &Stats) -> u64 {
    let ports = stats.ports();
    ports.iter().filter(|p| p.driver != "ring").map(|p| p.counts.tx_packets).sum()
}

/// True if a port has failed; says once for each time that one goes down.
fn troubled(stats: &Stats, down: &mut Vec<String>, screen: &Screen) -> bool {
    for port in stats.ports() {
        let was_down = down.contains(&port.name);
        match port.health {
            Health::Failed(_) => return true,
            Health::Down(e) if !was_down => {
                screen.note(&format!("note: port '{}' is down: {e}\n", port.name));
                down.push(port.name);
            }
            Health::Down(_) => {}
            _ => down.retain(|name| *name != port.name),
        }
    }
    false
}

fn unbalanced(stopped: &Stopped) -> Failure {
    let why = format!("{stopped}");
    let fix = "this is a fault of the path itself: report it with the command and this ledger";
    Failure::new(UNBALANCED, "E-LEDGER", "the ledger does not balance; results withheld", why, fix)
}

/// What a sink found wrong with what a generator of this run sent it.
fn unverified(report: &ForwardReport) -> Option<Told> {
    if report.verified() {
        return None;
    }
    let v = report.verify.unwrap_or_default();
    let dropped = report.ledger.dropped_total();
    let mut why = format!(
        "of {} packets {} lost ({dropped} were dropped for a reason), {} reordered, {} duplicated, \
         {} corrupted",
        v.packets, v.lost, v.reordered, v.duplicated, v.corrupted
    );
    if v.late > 0 {
        why += &format!(", {} too late to tell whether twice", v.late);
    }
    let what = "the sink did not find what the generator sent";
    Some(Told { code: UNVERIFIED.into(), what: what.into(), why, fix: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::{Code, Error};
    use linerate_ctl::report::Verify;

    /// A run of ten packets, after which `spoil` may change what is known of it.
    fn ran(spoil: impl FnOnce(&mut Stopped, &mut Option<Verify>), ended: Ended) -> Ran {
        let mut engine = Engine::builder();
        for (name, text) in [("gen", "gen:,count=10"), ("sink", "sink:")] {
            engine = engine.port(name, text);
        }
        let engine = engine.wire("gen", "sink").build().unwrap();
        let (stats, running) = (engine.stats(), engine.start().unwrap());
        assert!(running.wait(Duration::from_secs(20)));
        let mut stopped = running.stop(DRAIN);
        let report = |stopped: &Stopped| ForwardReport::new(stopped, &stats, &Spent::default());
        let mut verify = report(&stopped).verify;
        spoil(&mut stopped, &mut verify);
        let mut report = ForwardReport { verify, ..report(&stopped) };
        if report.error.is_none() {
            report.error = unverified(&report);
        }
        Ran { report, stopped, ended, uncounted: None }
    }

    #[test]
    fn what_failed_while_running_goes_before_what_a_sink_then_missed() {
        let lost = |v: &mut Option<Verify>| v.as_mut().unwrap().lost = 3;
        let broken =
            |s: &mut Stopped| s.failed = Some(Error::new(Code::System, "a worker", "died"));
        assert_eq!(ran(|_, _| (), Ended::Done).exit(), 0);
        assert_eq!(ran(|_, v| lost(v), Ended::Done).exit(), CHECK);
        assert_eq!(ran(|_, v| lost(v), Ended::Signal(2)).exit(), CHECK);
        let both = ran(|s, v| (broken(s), lost(v)).0, Ended::Failed);
        assert_eq!(both.exit(), RUNTIME);
        assert!(!both.report.verified());
        assert_eq!(ran(|_, _| (), Ended::Failed).exit(), RUNTIME);
    }

    #[test]
    fn a_packet_too_late_to_tell_is_a_fault() {
        let ran = ran(|_, v| v.as_mut().unwrap().late = 1, Ended::Done);
        assert_eq!(ran.exit(), CHECK);
        assert!(ran.report.error.unwrap().why.ends_with("1 too late to tell whether twice"));
    }
}
