//! The result of a run: its report, its error and its exit status.

use linerate::{DropReason, Health, PortStats, Stopped, Verified};
use linerate_ctl::report::{FarReport, PortReport};
use linerate_ctl::{ErrorReport, ForwardReport};
use linerate_sys::netif::Interface;
use linerate_sys::text::thousands;

use crate::errors::{self, CHECK, Failure, RUNTIME, UNBALANCED, UNVERIFIED};
use crate::run::{Path, planned};
use crate::screen::Screen;
use crate::signals::{self, Signals};

/// Fewest packets for costs of each packet: with fewer, start and end of the run are most of the
/// costs.
pub const PACKETS_MIN: u64 = 1000;
/// Length of an Ethernet header, which the MTU does not include.
const ETHERNET_BYTES: u32 = 14;
/// Remedy for a ledger that does not balance.
const FAULT: &str = "this is a bug in linerate: report it with the command and this ledger";

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
    pub(super) uncounted: Option<linerate::Error>,
    /// The watch for signals, so that the first one does not end the process before the result is
    /// written.
    pub(super) _signals: Option<Signals>,
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
            self.report.error = unverified(&self.report).or_else(|| last_lost(&self.report));
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

    /// Returns the exit status of a run whose result was `written`, or could not be: the run's own
    /// failure takes precedence over that of its output, which is then only printed.
    ///
    /// # Errors
    /// Returns the failure of the output, if the run itself has succeeded.
    pub fn status(&self, written: Result<(), Failure>, screen: &Screen) -> Result<u8, Failure> {
        let Err(unwritten) = written else { return Ok(self.exit()) };
        if self.exit() == 0 {
            return Err(unwritten);
        }
        // The document that was not written has the run's error; without --json the notes have it.
        if let Some(error) = self.report.error.as_ref().filter(|_| screen.json) {
            screen.failure(error);
        }
        screen.failure(&unwritten.error);
        Ok(self.exit())
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

/// Returns the error of a port that is down at the end of a run and has passed no packet.
pub(super) fn never_met(ports: &[PortStats]) -> Option<ErrorReport> {
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

/// Completes a run's error for the user: with the network namespace to which the interface of the
/// port that failed has moved, and with the command to type.
pub(super) fn complete(error: &mut ErrorReport, stopped: &Stopped, path: &Path) {
    if let Some((port, e)) = stopped.trouble()
        && (&*error.code, &error.why) == (e.code.as_str(), &e.why)
        && let Some((_, text)) = path.ports.iter().find(|(name, _)| name == port)
        && let Ok(plan) = planned(&path.drivers, text)
        && let Some(interface) = plan.interface()
    {
        let found = Interface::locate(interface, e.clone());
        (error.why, error.fix) = (found.why, found.fix);
    }
    error.fix = errors::to_type(&error.fix);
}

/// Returns true if enough packets left the run to report the costs of each packet.
pub fn has_costs(report: &ForwardReport) -> bool {
    report.packets_out() >= PACKETS_MIN
}

/// Returns the failure if every packet of a generator was dropped.
pub(super) fn none_sent(report: &ForwardReport, ports: &[PortStats]) -> Option<ErrorReport> {
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

pub(super) fn unbalanced(stopped: &Stopped) -> Failure {
    let why = format!("{stopped}");
    let what = "the ledger does not balance; results withheld";
    Failure::new(UNBALANCED, "E-LEDGER", what, why, FAULT)
}

/// Returns the failure if packets from a generator to a sink were dropped, and the sink found none
/// lost: they were the last of their flows, so that no later number told of them.
pub(super) fn last_lost(report: &ForwardReport) -> Option<ErrorReport> {
    let from_outside = |port: &&PortReport| !port.flags.generates && !port.flags.paired;
    let foreign: u64 = report.ports.iter().filter(from_outside).map(|p| p.rx.packets).sum();
    let generated: u64 =
        report.ports.iter().filter(|p| p.flags.generates).map(|p| p.rx.packets).sum();
    // Packets that waited when the run was ended are no loss on the path.
    let dropped =
        report.ledger.dropped.iter().filter(|(why, _)| **why != DropReason::STOPPED.name());
    let reasons: Vec<_> = dropped.map(|(why, n)| format!("{} {why}", thousands(*n))).collect();
    if report.verify.is_none() || generated == 0 || foreign > 0 || reasons.is_empty() {
        return None;
    }
    let why = format!(
        "of {} packets the last were dropped: {}; no later one reached the sink, so that it found none lost",
        thousands(generated),
        reasons.join(", ")
    );
    let what = "the sink received fewer packets than the generator sent".into();
    let fix = "a lower rate of the generator, as gen:,rate=100kpps, or a higher limit where they were dropped".into();
    Some(ErrorReport { code: UNVERIFIED.into(), what, why, fix })
}

/// Returns the failure if a sink found damaged packets, or a generator's packets of this run lost.
pub(super) fn unverified(report: &ForwardReport) -> Option<ErrorReport> {
    if report.verified() {
        return None;
    }
    let v = report.verify.unwrap_or_default();
    if !report.ports.iter().any(|port| port.flags.generates) {
        let what = "the sink received damaged packets".into();
        let why = format!(
            "{} corrupted, beside {} whole ones",
            thousands(v.corrupted),
            thousands(v.packets)
        );
        let fix =
            "look for the device or program that changes them between the generator and this host"
                .into();
        return Some(ErrorReport { code: UNVERIFIED.into(), what, why, fix });
    }
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
