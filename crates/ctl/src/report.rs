//! The report of a run: ports, ledger, cost, verification. An unknown figure is `None`.

mod cost;
mod error;
mod far;
mod ledger;
mod pace;
mod phase;
mod port;
mod verify;

use linerate_datapath::{Stats, Stopped};
use linerate_port::Verified;

#[cfg(feature = "json")]
use serde::Serialize;

pub use cost::{Cost, Spent, TSC};
pub use error::ErrorReport;
pub use far::FarReport;
pub use ledger::LedgerReport;
#[cfg(feature = "json")]
pub(crate) use ledger::by_name;
pub use pace::{GenReport, PaceReport};
pub use phase::PhaseReport;
pub use port::{PortReport, QdiscReport, QueuePassed, TxCalls};

use crate::excess::{Calls, Locks, Waits};
use crate::placement::PlacementReport;
use crate::pool::PoolReport;

/// A run of `forward`.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct ForwardReport {
    /// Wall time from the start of the workers to the order to drain.
    pub duration_seconds: f64,
    /// Packets that ports other than rings sent in that time: without those that were drained after
    /// it.
    pub sent_in_duration: u64,
    /// Reports of all ports, in the order of their definition.
    pub ports: Vec<PortReport>,
    /// The account of every packet.
    pub ledger: LedgerReport,
    /// CPU time and cycles of the run.
    pub cost: Cost,
    /// Locks that the path took.
    pub locks: Locks,
    /// Calls that allocated, freed and copied packets, and calls of drivers.
    pub calls: Calls,
    /// Waits of the path.
    pub waits: Waits,
    /// The pool of the path's packets, with its cost.
    pub pool: PoolReport,
    /// The combined result of the verifying sinks, including the sink of a second process; `None`
    /// without such a sink.
    pub verify: Option<Verified>,
    /// Phases of the run with different rates, in order; empty if the run has only one.
    pub phases: Vec<PhaseReport>,
    /// The second process, which received the packets, if the run started one.
    pub far: Option<FarReport>,
    /// The search for the workers' CPUs, if one was requested and completed.
    #[cfg_attr(feature = "json", serde(skip_serializing_if = "Option::is_none"))]
    pub placement: Option<PlacementReport>,
    /// Warnings about settings whose effect differs from the request.
    pub warnings: Vec<String>,
    /// The error that ended the run early, or the error of a port.
    pub error: Option<ErrorReport>,
}

/// A number of packets, and their bytes from the destination MAC, without FCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Passed {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl ForwardReport {
    /// Builds the report from an engine's result, statistics and cost.
    #[must_use]
    pub fn new(stopped: &Stopped, stats: &Stats, spent: &Spent) -> ForwardReport {
        let error = stopped.check().err().as_ref().map(ErrorReport::from);
        let locks = Locks::of(stopped, spent);
        let outside = stopped.ports.iter().filter(|port| !port.flags.paired);
        let sent: u64 = outside.map(|port| port.counts.tx_packets).sum();
        ForwardReport {
            duration_seconds: spent.wall.as_secs_f64(),
            sent_in_duration: spent.sent.unwrap_or(sent),
            ports: stopped.ports.iter().map(|port| PortReport::of(port, spent.wall)).collect(),
            ledger: LedgerReport::of(stopped),
            cost: Cost::of(spent, stopped),
            locks,
            calls: Calls::of(stopped),
            waits: Waits::of(stopped, &locks),
            pool: PoolReport::of(stopped, stats),
            verify: verify::sum(&stopped.ports),
            phases: Vec::new(),
            placement: None,
            far: None,
            warnings: stats.warnings().to_vec(),
            error,
        }
    }

    /// Returns the number of packets sent by ports other than rings: the divisor of `cost`.
    #[must_use]
    pub fn packets_out(&self) -> u64 {
        let outside = self.ports.iter().filter(|p| !p.flags.paired);
        outside.map(|p| p.tx.packets).sum()
    }

    /// Returns false if a sink found a damaged packet, or packets from a generator of this run
    /// lost, reordered, duplicated or late. Of packets that another program generates only the
    /// damaged ones are faults: this run does not know which of the others it should have received.
    #[must_use]
    pub fn verified(&self) -> bool {
        let generated = self.ports.iter().any(|p| p.flags.generates);
        self.verify.is_none_or(|v| if generated { verify::faults(&v) } else { v.corrupted } == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_datapath::Engine;
    use std::time::Duration;

    /// Runs `gen → ring → sink` with 1000 packets, and returns the result and its statistics.
    fn stopped() -> (Stopped, Stats) {
        let engine = Engine::builder()
            .port("gen", "gen:,count=1000")
            .port("r0", "ring:r")
            .port("r1", "ring:r")
            .port("sink", "sink:")
            .wire("gen", "r0")
            .wire("r1", "sink")
            .build()
            .unwrap();
        let stats = engine.stats();
        let running = engine.start().unwrap();
        assert!(running.wait(Duration::from_secs(20)).unwrap());
        (running.stop(Duration::from_secs(20)), stats)
    }

    fn report(spent: &Spent) -> ForwardReport {
        let (stopped, stats) = stopped();
        ForwardReport::new(&stopped, &stats, spent)
    }

    #[test]
    fn packets_that_cross_a_ring_are_counted_once() {
        let cpu = Duration::from_micros(20);
        let spent = Spent { cycles: Some(50_000), cpu, ..Spent::default() };
        let report = report(&spent);
        assert_eq!((report.packets_out(), report.sent_in_duration), (1000, 1000));
        assert_eq!(report.cost.cycles_per_packet, Some(50.0));
        assert_eq!(report.cost.instructions_per_packet, None);
        assert_eq!(report.cost.cpu_ns_per_packet, Some(20.0));
        assert!(report.cost.awake_ns_per_packet.is_some());
        assert!(report.ledger.balanced && report.verified());
        assert_eq!(report.verify.map(|v| (v.packets, verify::faults(&v))), Some((1000, 0)));
    }

    #[test]
    fn sink_that_finds_lost_packets_fails_the_run_that_generated_and_damaged_ones_every_run() {
        let mut report = report(&Spent::default());
        report.verify.as_mut().unwrap().lost = 1;
        assert!(!report.verified());
        report.ports.remove(0);
        assert!(report.verified(), "another program generated the packets");
        report.verify.as_mut().unwrap().corrupted = 1;
        assert!(!report.verified());
    }

    #[test]
    fn requested_packets_that_did_not_leave_are_unsent() {
        let path = report(&Spent::default());
        let report = GenReport::new(path.clone(), Some(1200), None);
        assert_eq!(report.pace.sent, 1000);
        assert_eq!(report.pace.unsent, Some(200));
        assert_eq!(GenReport::new(path, None, None).pace.unsent, None);
    }
}
