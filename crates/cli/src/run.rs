//! One run of a path: starts it, waits for its end, stops it, and measures its cost.

use std::io;
use std::time::{Duration, Instant};

use linerate::{
    DropReason, Engine, EngineBuilder, Health, PortStats, Registry, Running, Stats, Stopped,
    Verified,
};
use linerate_ctl::poor_use::poorly_used;
use linerate_ctl::report::FarReport;
use linerate_ctl::tune::Listening;
use linerate_ctl::{ErrorReport, ForwardReport, Spent, TSC};
use linerate_sys::clock::cpu_time;
use linerate_sys::netif::Interface;
use linerate_sys::text::thousands;
use linerate_sys::tsc::ticks;

use crate::args::{Memory, Run};
use crate::counters::Counters;
use crate::errors::{self, CHECK, Failure, RUNTIME, UNBALANCED, UNVERIFIED};
use crate::far;
use crate::phases::{self, Phases};
use crate::place::{Interrupts, Placing};
use crate::preface::preface;
use crate::progress::{Progress, REDRAW};
use crate::screen::Screen;
use crate::signals::{self, Signals};
use crate::undo;

/// Fewest packets for costs of each packet: with fewer, start and end of the run are most of the costs.
pub const PACKETS_MIN: u64 = 1000;
/// Length of an Ethernet header, which the MTU does not include.
const ETHERNET_BYTES: u32 = 14;
/// Longest time for packets in flight to be sent at the end.
const DRAIN: Duration = Duration::from_secs(2);
/// Remedy for a ledger that does not balance.
const FAULT: &str = "this is a bug in linerate: report it with the command and this ledger";
/// Shortest time between two looks at a run that may end by itself.
const SOONEST: Duration = Duration::from_micros(100);
/// Interval of checks for a path that may end by itself.
const LOOK_OFTEN: Duration = Duration::from_millis(10);
/// Interval of checks for a path that does not end by itself: short enough to notice a port in
/// trouble, long enough to let an idle machine sleep. With the wake-ups of two xdp ports, the
/// process wakes less than twice a second.
const LOOK: Duration = Duration::from_secs(2);

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

/// The cause of a run's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The sources ended, or the time or count was reached.
    Done,
    /// A port failed for good, or a worker ended early.
    Failed,
    /// A signal arrived, or the standard input ended.
    Signal(i32),
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    pub report: ForwardReport,
    pub stopped: Stopped,
    pub ended: Ended,
    /// The error because of which cycles and instructions are unknown, if they are.
    uncounted: Option<linerate::Error>,
}

/// Runs a path to its end.
///
/// # Errors
/// The failure because of which the path cannot run; a ledger that does not balance.
pub fn run(path: &Path, run: &Run, screen: &Screen) -> Result<Ran, Failure> {
    let ports = path.ports.iter().map(|(_, text)| text.as_str());
    for left in undo::pending() {
        screen.note(&format!("note: {left}; to restore it: {}\n", undo::UNDO));
    }
    let _until_the_end = undo::record(ports, &path.drivers, screen);
    // Before ports are opened: a signal must not end this process while a device is changed.
    let signals = watched()?;
    let mut engine = open(path, run)?;
    if !path.beside {
        // The result is ignored: a port without a peer reports that itself, and drops packets sent
        // to it.
        let _ = engine.wait_until_up(MEET);
    }
    run_with(signals, engine, path, run, screen)
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
    run_with(watched()?, engine, path, run, screen)
}

fn run_with(
    signals: Signals,
    engine: Engine,
    path: &Path,
    run: &Run,
    screen: &Screen,
) -> Result<Ran, Failure> {
    screen.preface(&preface(&engine, path, run))?;
    for warning in engine.warnings() {
        screen.note(&format!("warning: {warning}\n"));
    }
    let stats = engine.stats();
    if path.beside {
        signals.watch_stdin().map_err(|e| unwatched(&e))?;
        screen.line(far::READY)?;
    }
    // Start the counters before the workers: they see only threads started after them.
    let counters = Counters::start();
    let placed = run.place.as_ref().map(|_| Counters::start().ok());
    let (cpu, start, tick) = (cpu_time(), Instant::now(), ticks());
    let mut phases = Phases::start(path, &stats);
    let listening = run.control.as_deref().map(Listening::at).transpose()?;
    let running = engine.start()?;
    let serve = |listening: Listening| listening.serve(running.control(), stats.clone());
    let control = listening.map(serve).transpose()?;
    let interrupts = Interrupts::find(run.place.as_deref(), path, screen);
    let placing = placed.map(|counters| Placing::start(&running, counters, &interrupts));
    let ended = watch(&running, path, &mut phases, screen, &signals);
    // Read the time before draining: packets in flight may leave late or never, which must not
    // lower the rate.
    let wall = start.elapsed();
    phases.end(&stats);
    let placed = placing.map(Placing::end).transpose();
    // Close the control socket first, so that no request changes a run that ends.
    drop(control);
    // Restore the interrupts while the port is open: a veth's NAPI, and its setting, go with the
    // port.
    drop(interrupts);
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
        report.error = alone.or_else(|| unverified(&report)).or_else(ended);
    }
    if let Some(error) = &mut report.error {
        error.fix = errors::to_type(&error.fix);
    }
    Ok(Ran { report, stopped, ended, uncounted: counted.err() })
}

/// Watches for the signals that end a run.
fn watched() -> Result<Signals, Failure> {
    Signals::watch().map_err(|e| unwatched(&e))
}

fn unwatched(e: &io::Error) -> Failure {
    Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
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

impl Ran {
    /// Adds the result of the second process, which received the packets.
    ///
    /// # Errors
    /// Packets that were sent and did not arrive there, because no ledger includes them.
    pub fn add_far(&mut self, found: Result<(FarReport, Verified), String>) -> Result<(), Failure> {
        let (far, verify) = match found {
            Ok(found) => found,
            Err(why) => {
                let what = "the second process returned no result".into();
                let error = ErrorReport { code: "E-SYSTEM".into(), what, why, fix: String::new() };
                self.report.error.get_or_insert(error);
                return Ok(());
            }
        };
        let (sent, came) = (self.report.ledger.sent, far.received.packets);
        if sent != came || !far.whole {
            let what = "the ledgers of the two processes differ; results withheld";
            let books = if far.whole { "" } else { ", whose own ledger does not balance" };
            let why = format!(
                "this process sent {sent} packets, the second process received {came}{books}"
            );
            return Err(Failure::new(UNBALANCED, "E-LEDGER", what, why, FAULT));
        }
        self.report.verify = Some(verify);
        if self.report.error.is_none() {
            self.report.error = unverified(&self.report);
        }
        self.report.far = Some(far);
        Ok(())
    }

    /// Prints the run's errors and the reasons for unknown figures, after the result.
    pub fn notes(&self, screen: &Screen) {
        let is_told = !screen.quiet && has_costs(&self.report);
        if let Some(e) = self.uncounted.as_ref().filter(|_| is_told) {
            screen.note(&format!("note: {}: {}; ticks of CPU time instead\n", e.what, e.why));
        }
        if let Some(placement) = &self.report.placement {
            screen.note(&placement.to_string());
        }
        for e in self.stopped.workers.iter().filter_map(linerate::WorkerStats::strayed) {
            screen.note(&format!("warning: {}: {} ({})\n", e.what, e.why, e.fix));
        }
        if let Some(error) = &self.report.error {
            screen.note(&errors::text(error));
        }
    }

    /// Returns the exit status; an error of the run takes precedence over the cause of its end.
    pub fn exit(&self) -> u8 {
        match (&self.report.error, self.ended) {
            (Some(error), _) if error.code == UNVERIFIED => CHECK,
            (Some(_), _) | (None, Ended::Failed) => RUNTIME,
            (None, Ended::Signal(signal)) => signals::status(signal),
            (None, Ended::Done) => 0,
        }
    }
}

/// Waits until the run must end, and shows its progress.
fn watch(
    running: &Running,
    path: &Path,
    phases: &mut Phases,
    screen: &Screen,
    signals: &Signals,
) -> Ended {
    let start = Instant::now();
    let mut progress = (!screen.quiet).then(|| Progress::new(path.time)).flatten();
    let ends = running.stats().ports().iter().any(|port| port.flags.ends);
    let often = path.count.is_some() || ends;
    let look = match (&progress, often) {
        (_, true) => LOOK_OFTEN,
        (Some(_), false) => REDRAW,
        (None, false) => LOOK,
    };
    let (mut down, mut poor) = (Vec::new(), Vec::new());
    loop {
        let left = path.time.map_or(look, |time| time.saturating_sub(start.elapsed()));
        // The end of a short run is found within a sixteenth of its time: rates are by that time.
        let soon = if often { (start.elapsed() / 16).max(SOONEST) } else { look };
        match signals.wait(left.min(look).min(soon).min(phases.left())) {
            Some(signals::HANGUP) => return Ended::Done,
            Some(signal) => return Ended::Signal(signal),
            None => phases.look(running.stats()),
        }
        let out = packets_out(running.stats());
        if let Some(progress) = &mut progress {
            progress.draw(out);
        }
        // Check this first: if all workers ended early, `finished` would also return true.
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
        newly_poor(&running.stats().ports(), start.elapsed(), &mut poor)
            .iter()
            .for_each(|note| screen.note(note));
    }
}

fn packets_out(stats: &Stats) -> u64 {
    phases::sent(stats).packets
}

/// Returns true if a port has failed; prints a message each time that a port goes down.
fn troubled(stats: &Stats, down: &mut Vec<String>, screen: &Screen) -> bool {
    for port in stats.ports() {
        let was_down = down.contains(&port.name);
        match port.health {
            Health::Failed(_) => return true,
            Health::Down(e) if !was_down => {
                let e = errors::to_type(&e.to_string());
                screen.note(&format!("note: port '{}' is down: {e}\n", port.name));
                down.push(port.name);
            }
            Health::Down(_) => {}
            _ => down.retain(|name| *name != port.name),
        }
    }
    false
}

/// Returns the error of a port that is down at the end of a run and has passed no packet.
fn never_met(ports: &[PortStats]) -> Option<ErrorReport> {
    ports.iter().find_map(|port| {
        let Health::Down(e) = &port.health else { return None };
        let passed = port.counts.rx_packets + port.counts.tx_packets + port.driver_counts.resets;
        if passed > 0 {
            return None;
        }
        let mut error = ErrorReport::from(e);
        error.why += &format!("; nothing came or left by port '{}' in the whole run", port.name);
        Some(error)
    })
}

/// Returns true if enough packets left the run to report the costs of each packet.
pub fn has_costs(report: &ForwardReport) -> bool {
    report.packets_out() >= PACKETS_MIN
}

/// Returns the failure if every packet of a generator was dropped.
fn none_sent(report: &ForwardReport, ports: &[PortStats]) -> Option<ErrorReport> {
    let ledger = &report.ledger;
    let generates = report.ports.iter().any(|port| port.flags.generates);
    if !generates || ledger.dropped_total() == 0 || ledger.sent + ledger.consumed > 0 {
        return None;
    }
    let reasons = ledger.dropped.iter().map(|(reason, n)| format!("{} {reason}", thousands(*n)));
    let mut why = format!("every packet was dropped: {}", reasons.collect::<Vec<_>>().join(", "));
    let mut fix = String::new();
    let mut interfaces = ports.iter().filter(|port| port.flags.interface);
    if ledger.dropped.contains_key(DropReason::TOO_LONG.name())
        && let Some(to) = interfaces.find_map(|port| Interface::open(&port.obtained.device).ok())
        && let (name, Ok(mtu)) = (to.name(), to.mtu_bytes())
    {
        let longest = mtu + ETHERNET_BYTES;
        why += &format!("; {name} has the MTU {mtu} and sends packets of up to {longest} bytes");
        fix = format!("a size of at most {longest} bytes, or a larger MTU");
    }
    let what = "no packet was sent".into();
    Some(ErrorReport { code: UNVERIFIED.into(), what, why, fix })
}

/// Returns notes on ports whose irqs carry too few packets, one for each port; `said` has the ports already noted.
fn newly_poor(ports: &[PortStats], time: Duration, said: &mut Vec<String>) -> Vec<String> {
    let mut notes = Vec::new();
    // Figures of the first second are not representative.
    for port in ports.iter().filter(|_| time >= Duration::from_secs(1)) {
        if !said.contains(&port.name)
            && let Some(why) = poorly_used(port, time)
        {
            notes.push(format!("note: port '{}': {why}\n", port.name));
            said.push(port.name.clone());
        }
    }
    notes
}

fn unbalanced(stopped: &Stopped) -> Failure {
    let why = format!("{stopped}");
    let what = "the ledger does not balance; results withheld";
    Failure::new(UNBALANCED, "E-LEDGER", what, why, FAULT)
}

/// Returns the failure if a sink found a generator's packets of this run lost or changed.
fn unverified(report: &ForwardReport) -> Option<ErrorReport> {
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
        why += &format!(", {} too late to check for duplicates", v.late);
    }
    let what = "the packets at the sink differ from those that the generator sent";
    Some(ErrorReport { code: UNVERIFIED.into(), what: what.into(), why, fix: String::new() })
}

#[cfg(test)]
mod live;
#[cfg(test)]
mod tests {
    use super::*;
    use linerate::{Code, Error};
    use linerate_ctl::report::Passed;

    /// Returns a run of ten packets, whose results `spoil` may change.
    fn ran(spoil: impl FnOnce(&mut Stopped, &mut Option<Verified>), ended: Ended) -> Ran {
        let mut engine = Engine::builder();
        for (name, text) in [("gen", "gen:,count=10"), ("sink", "sink:")] {
            engine = engine.port(name, text);
        }
        let engine = engine.wire("gen", "sink").build().unwrap();
        let (stats, running) = (engine.stats(), engine.start().unwrap());
        assert!(running.wait(Duration::from_secs(20)).unwrap());
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
    fn few_packets_to_an_irq_are_told_once_while_a_run_goes_on() {
        let mut ports = ran(|_, _| (), Ended::Done).stopped.ports;
        ports[0].queues[0].moderation.gathers = true;
        (ports[0].counts.rx_packets, ports[0].counts.wakeups) = (9000, 8000);
        let (second, mut said) = (Duration::from_secs(1), Vec::new());
        assert!(newly_poor(&ports, second / 2, &mut said).is_empty(), "too early to say");
        let [note] = &newly_poor(&ports, second, &mut said)[..] else { panic!("{said:?}") };
        assert!(note.starts_with("note: port 'gen': poor use of the CPU: 1.1 packets"), "{note}");
        assert!(newly_poor(&ports, second, &mut said).is_empty(), "once");
    }

    #[test]
    fn run_failure_takes_precedence_over_failed_verification() {
        let lost = |v: &mut Option<Verified>| v.as_mut().unwrap().lost = 3;
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
    fn packets_that_miss_the_second_process_are_in_no_ledger() {
        let far = |packets, whole, lost| {
            let received = Passed { packets, bytes: 600 };
            let cpu_seconds = 0.1;
            let far = FarReport {
                process: 1,
                received,
                whole,
                verified: packets,
                copied_bytes: None,
                cpu_seconds,
            };
            let mut verified = Verified::default();
            (verified.packets, verified.lost) = (packets, lost);
            (far, verified)
        };
        let added = |found| {
            let mut ran = ran(|_, _| (), Ended::Done);
            ran.add_far(found).map(|()| ran.exit()).map_err(|failure| failure.exit)
        };
        assert_eq!(added(Ok(far(10, true, 0))), Ok(0));
        assert_eq!(added(Ok(far(10, true, 1))), Ok(CHECK));
        assert_eq!(added(Ok(far(9, true, 1))), Err(UNBALANCED));
        assert_eq!(added(Ok(far(10, false, 0))), Err(UNBALANCED));
        assert_eq!(added(Err("killed".into())), Ok(RUNTIME));
    }

    #[test]
    fn a_packet_too_late_to_tell_is_a_fault() {
        let ran = ran(|_, v| v.as_mut().unwrap().late = 1, Ended::Done);
        assert_eq!(ran.exit(), CHECK);
        assert!(ran.report.error.unwrap().why.ends_with("1 too late to check for duplicates"));
    }
}
