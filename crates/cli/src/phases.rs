//! Phases of a run with different rates: the packets sent in each, and their cost.

use std::time::{Duration, Instant};

use linerate::{Pace, Stats};
use linerate_ctl::report::{Passed, PhaseReport};
use linerate_sys::clock::cpu_time;

use crate::far;
use crate::run::Path;

/// CPU share of post 000's system at the rate of the paced phase, with its own buffers.
///
/// Source: post 000, system CPU at the adapter's full rate.
const POST_CPU_PCT: f64 = 27.5;

/// The phases of one run: first at a fixed rate, then at full speed.
#[derive(Debug)]
pub struct Phases {
    /// End of the paced phase, and the id of the process that receives the packets; `None` for a
    /// run without phases.
    paced: Option<(Duration, u32)>,
    /// Readings at the start, at the change of phase, and at the end.
    readings: Vec<Reading>,
}

/// A reading of the run at one moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    sent: Passed,
    cpu: Duration,
    far_cpu: Option<Duration>,
}

impl Phases {
    /// Returns the phases of a run of `path` that starts now.
    pub fn start(path: &Path, stats: &Stats) -> Phases {
        let mut phases = Phases { paced: path.paced, readings: Vec::new() };
        phases.read(stats);
        phases
    }

    /// Returns the time left in the paced phase, or the longest possible time if there is none or
    /// it is over.
    pub fn left(&self) -> Duration {
        match (self.paced, &self.readings[..]) {
            (Some((paced, _)), [first]) => paced.saturating_sub(first.at.elapsed()),
            _ => Duration::MAX,
        }
    }

    /// Takes a reading once the paced phase is over.
    pub fn look(&mut self, stats: &Stats) {
        if self.left().is_zero() {
            self.read(stats);
        }
    }

    /// Takes the last reading, at the end of the run.
    pub fn end(&mut self, stats: &Stats) {
        self.read(stats);
    }

    /// Returns the reports of the phases; `pace` is the pace of the paced phase.
    pub fn reports(&self, pace: Option<Pace>) -> Vec<PhaseReport> {
        let pairs = self.readings.iter().zip(self.readings.iter().skip(1));
        let parts = pairs.zip(["paced", "flat out"]);
        let mut parts: Vec<_> = parts.map(|((from, to), name)| from.until(to, name)).collect();
        if let Some(paced) = parts.first_mut() {
            paced.post_cpu_pct = Some(POST_CPU_PCT);
            paced.late_p50_ns = pace.and_then(|pace| pace.late_p50_ns);
            paced.late_p99_ns = pace.and_then(|pace| pace.late_p99_ns);
        }
        parts
    }

    fn read(&mut self, stats: &Stats) {
        let Some((_, process)) = self.paced else { return };
        let (sent, at) = (sent(stats), Instant::now());
        let (cpu, far_cpu) = (cpu_time(), far::cpu_time(process));
        self.readings.push(Reading { at, sent, cpu, far_cpu });
    }
}

impl Reading {
    fn until(&self, end: &Reading, name: &'static str) -> PhaseReport {
        let far = end.far_cpu.zip(self.far_cpu);
        PhaseReport {
            name,
            seconds: (end.at - self.at).as_secs_f64(),
            sent: Passed {
                packets: end.sent.packets.saturating_sub(self.sent.packets),
                bytes: end.sent.bytes.saturating_sub(self.sent.bytes),
            },
            cpu_seconds: end.cpu.saturating_sub(self.cpu).as_secs_f64(),
            far_cpu_seconds: far.map(|(end, start)| end.saturating_sub(start).as_secs_f64()),
            post_cpu_pct: None,
            late_p50_ns: None,
            late_p99_ns: None,
        }
    }
}

/// Returns the packets and bytes sent by ports other than rings.
pub fn sent(stats: &Stats) -> Passed {
    let ports = stats.ports();
    let outside = ports.iter().filter(|port| !port.flags.paired);
    outside.fold(Passed::default(), |sum, port| Passed {
        packets: sum.packets + port.counts.tx_packets,
        bytes: sum.bytes + port.counts.tx_bytes,
    })
}
