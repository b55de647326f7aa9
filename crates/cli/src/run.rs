//! One run of a path: starts it, waits for its end, stops it, and measures its cost.

mod ran;
mod watch;

use std::time::{Duration, Instant};

use linerate::{DeviceHold, Engine, EngineBuilder, Plan, Registry};
use linerate_ctl::tune::Listening;
use linerate_ctl::{ForwardReport, Spent, TSC, driver_text};
use linerate_sys::clock::cpu_time;
use linerate_sys::tsc::ticks;

use crate::args::{Memory, Run};
use crate::counters::{Counters, Cycles};
use crate::errors::{Failure, RUNTIME};
use crate::far;
use crate::phases::{self, Phases};
use crate::place::{Interrupts, Placing};
use crate::preface::preface;
use crate::screen::Screen;
use crate::signals::{self, Signals};
use crate::undo::{self, Record};
use ran::{complete, last_lost, never_met, none_sent, unbalanced, unverified};
use watch::watch;

pub use ran::{Ended, PACKETS_MIN, Ran, has_costs};

/// Longest time for packets in flight to be sent at the end.
const DRAIN: Duration = Duration::from_secs(2);
/// Longest wait for a port's peer, which may exist but not have answered yet.
const MEET: Duration = Duration::from_millis(250);

/// The path of a run.
#[derive(Debug, Default)]
pub struct Path {
    /// The ports' names and texts.
    pub ports: Vec<(String, String)>,
    /// The wires, as pairs of port names.
    pub wires: Vec<(String, String)>,
    /// Longest time of the run.
    pub time: Option<Duration>,
    /// Number of sent packets after which the run ends.
    pub count: Option<u64>,
    /// The end of the run as the line of options prints it: `for 3s`.
    pub until: String,
    /// Duration of the paced phase, and the id of the process that receives the packets. Packets of
    /// the paced phase are reported separately from later ones, with the CPU time of both
    /// processes.
    pub paced: Option<(Duration, u32)>,
    /// The drivers that the texts of its ports can name.
    pub drivers: Registry,
    /// True for the second process of a self-test, which reports when its ports are open, and ends
    /// at the end of its standard input.
    pub beside: bool,
}

/// Runs a path to its end.
///
/// # Errors
/// The failure because of which the path cannot run; a ledger that does not balance.
pub fn run(path: &Path, run: &Run, screen: &Screen) -> Result<Ran, Failure> {
    let ports = || path.ports.iter().map(|(_, text)| text.as_str());
    // First of all: a signal must not end this process while a device is changed.
    let signals = watched(path)?;
    let record = undo::begin(ports, &path.drivers, screen);
    let listening = run.control.as_deref().map(Listening::at).transpose()?;
    let mut engine = open(path, run).map_err(|mut failure| {
        // A signal that came meanwhile ends the run, whatever the failure.
        if let Some(signal) = signals.wait(Duration::ZERO) {
            failure.exit = signals::status(signal);
        }
        failure
    })?;
    if !path.beside {
        // The result is ignored: a port without a peer reports that itself, and drops packets sent
        // to it.
        let _ = engine.wait_until_up(MEET);
    }
    run_with(signals, listening, engine, path, run, screen, &record)
}

/// Parses a port's text into the plan of its driver, as an engine does.
///
/// # Errors
/// `E-PORT-SYNTAX`, with what would be right.
pub fn planned(drivers: &Registry, text: &str) -> linerate::Result<Box<dyn Plan>> {
    drivers.plan(&driver_text(drivers, text)?)
}

/// Opens the ports of a path and connects them by wires.
///
/// # Errors
/// Errors of opening the ports, and of packet memory.
pub fn open(path: &Path, run: &Run) -> Result<Engine, Failure> {
    let builder = Engine::builder().budget(run.budget as usize);
    let mut builder = builder.moderation(run.moderation).tx_batch(run.tx_batch).cpus(&run.cpu);
    for driver in path.drivers.drivers() {
        builder = builder.driver(*driver);
    }
    for (name, text) in &path.ports {
        builder = builder.port(name, text);
    }
    for (left, right) in &path.wires {
        builder = builder.wire(left, right);
    }
    Ok(with_memory(builder, &run.memory).build()?)
}

/// Runs a path with open ports to its end.
///
/// # Errors
/// As [`run`].
pub fn run_opened(engine: Engine, path: &Path, run: &Run, screen: &Screen) -> Result<Ran, Failure> {
    let listening = run.control.as_deref().map(Listening::at).transpose()?;
    run_with(watched(path)?, listening, engine, path, run, screen, &Record::default())
}

fn run_with(
    signals: Signals,
    listening: Option<Listening>,
    engine: Engine,
    path: &Path,
    run: &Run,
    screen: &Screen,
    record: &Record,
) -> Result<Ran, Failure> {
    screen.preface(&preface(&engine, path, run))?;
    for warning in engine.warnings() {
        screen.note(&format!("warning: {warning}\n"));
    }
    let stats = engine.stats();
    if path.beside {
        screen.line(far::READY)?;
    }
    // Start the counters before the workers: they see only threads started after them.
    let counters = Counters::start();
    let placed = run.place.as_ref().map(|_| Cycles::start().ok());
    let (cpu, start, tick) = (cpu_time(), Instant::now(), ticks());
    let mut phases = Phases::start(path, &stats);
    let running = engine.start()?;
    let serve = |listening: Listening| {
        let before_hold = recording(record, screen);
        listening.serve_recording(running.control(), stats.clone(), before_hold)
    };
    let control = listening.map(serve).transpose()?;
    let interrupts = Interrupts::find(run.place.as_deref(), path, screen);
    let placing = placed.map(|cycles| Placing::start(&running, cycles, &interrupts));
    let ended = watch(&running, path, &mut phases, screen, &signals);
    // Read the time before draining: packets in flight may leave late or never, which must not
    // lower the rate.
    let wall = start.elapsed();
    let sent = Some(phases::sent(&stats).packets);
    phases.end(&stats);
    let placed = placing.map(Placing::end).transpose();
    // Close the control socket first, so that no request changes a run that ends.
    drop(control);
    // Restore the interrupts while the port is open: a veth's NAPI, and its setting, go with the
    // port.
    interrupts.end(screen);
    let stopped = running.stop(DRAIN);
    let cpu = cpu_time().saturating_sub(cpu);
    let ticks_per_second = ticks().wrapping_sub(tick) as f64 / start.elapsed().as_secs_f64();
    let ticks_per_second = Some(ticks_per_second).filter(|rate| rate.is_finite());
    let mut spent = Spent { wall, sent, cpu, ticks_per_second, ..Spent::default() };
    let counted = counters.and_then(Counters::stop);
    if let Ok(counted) = &counted {
        spent.cycles = Some(counted.cycles);
        spent.instructions = Some(counted.instructions);
        spent.scope = Some(counted.scope.as_str());
    } else {
        // Without counters use CPU time in ticks of the time stamp counter, which every x86 has;
        // the scope names it.
        spent.cycles = ticks_per_second.map(|rate| (cpu.as_secs_f64() * rate) as u64);
        spent.scope = Some(TSC);
    }
    let mut report = ForwardReport::new(&stopped, &stats, &spent);
    let strayed = stopped.workers.iter().filter_map(linerate::WorkerStats::strayed);
    report.warnings.extend(strayed.map(|e| format!("{}: {} ({})", e.what, e.why, e.fix)));
    match placed {
        Ok(placement) => report.placement = placement,
        Err(e) => {
            let warning = format!("{}: {}: placement is unchanged ({})", e.what, e.why, e.fix);
            screen.note(&format!("warning: {warning}\n"));
            report.warnings.push(warning);
        }
    }
    report.phases = phases.reports(stopped.ports.iter().find_map(|port| port.pace));
    if !report.ledger.balanced {
        return Err(unbalanced(&stopped));
    }
    if report.error.is_none() {
        let bounded = ended == Ended::Done && !path.beside;
        let alone = bounded.then(|| never_met(&stopped.ports)).flatten();
        let ended = || bounded.then(|| none_sent(&report, &stopped.ports)).flatten();
        report.error =
            alone.or_else(|| unverified(&report)).or_else(ended).or_else(|| last_lost(&report));
    }
    if let Some(error) = &mut report.error {
        complete(error, &stopped, path);
    }
    Ok(Ran { report, stopped, ended, uncounted: counted.err(), _signals: Some(signals) })
}

/// Returns a function that records the change of an interface's hold.
fn recording(record: &Record, screen: &Screen) -> impl Fn(u32, DeviceHold) + Send + use<> {
    let (record, screen) = (record.clone(), *screen);
    move |index: u32, hold: DeviceHold| record.hold(index, hold.time, &screen)
}

/// Starts to watch for what ends the run.
fn watched(path: &Path) -> Result<Signals, Failure> {
    let signals = if path.beside { Signals::beside() } else { Signals::watch() };
    signals.map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })
}

/// Passes the memory options to the builder.
fn with_memory(mut builder: EngineBuilder, memory: &Memory) -> EngineBuilder {
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

#[cfg(test)]
mod live;
#[cfg(test)]
mod tests;
