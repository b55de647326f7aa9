//! Traffic of the machine's memory bus during a recording.
//!
//! The memory controllers have counters of their own, which belong to a socket and not to a thread,
//! and which a virtual machine does not show. If there are none, the cores' events of lines into
//! and out of the L2 give an estimate: lines × 64 bytes is what passed between the cores and what
//! lies behind them, as far as these events see it. That is a proxy and is called one. It is no
//! bound, neither way: what the L3 served never reached the memory bus; what passes by the L2
//! (non-temporal stores, prefetches into the L3, devices) and what an event leaves out (on AMD, the
//! L2's own prefetches) is not in it. So each event's caveat is printed beside the figure.
//!
//! Only lines that leave the L2 for another place count: an event that counts what is dropped in
//! place, too, as Intel's does, is none for this. Nothing here counts the traffic of a PCI bus.

mod sources;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use perf_event::Counter;
use serde::{Deserialize, Serialize};

use self::sources::Source;
use crate::conditions::cpus_on_line;
use crate::pmu::{Family, open};

/// Traffic of the memory bus, or the reason why it is unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bus {
    /// Bytes that the memory controllers counted.
    Memory(Traffic),
    /// Estimate from the cores' counts of lines into and out of the L2.
    Proxy(Traffic),
    /// Unknown traffic.
    NotAvailable {
        /// The reason why the traffic is unknown.
        why: String,
    },
}

/// Bytes that passed in both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the memory to the cores and devices.
    pub read: Way,
    /// To the memory.
    pub written: Way,
    /// Duration of the count, in nanoseconds.
    pub wall_ns: u64,
}

/// Bytes that passed in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Number of bytes.
    pub bytes: u64,
    /// The event that was counted, with its counters.
    pub event: String,
    /// Limits of the event: traffic that it misses, or counts unexpectedly; empty if none are
    /// known.
    pub caveat: String,
}

/// Counters of the bus that are counting.
#[derive(Debug)]
pub struct Counting {
    open: Result<Open, String>,
    started: Instant,
}

#[derive(Debug)]
struct Open {
    is_proxy: bool,
    sources: Vec<Source>,
    /// Counters, with the index of their source.
    counters: Vec<(usize, Counter)>,
}

impl Counting {
    /// Starts the memory controllers' counters, or those of the proxy if there are none. What
    /// cannot be counted becomes the reason in the result.
    #[must_use]
    pub fn start() -> Counting {
        Counting::start_on(Path::new("/sys/bus/event_source/devices"), Family::here())
    }

    /// Starts the counters that the kernel lists in the folder `pmus`, else those of a CPU of
    /// `family`.
    fn start_on(pmus: &Path, family: Family) -> Counting {
        let cpus = cpus_on_line().unwrap_or_default();
        let open = match sources::of_controllers(pmus) {
            Ok(found) => Open::new(false, found),
            Err(none) => sources::of_cores(family, &cpus)
                .and_then(|found| Open::new(true, found))
                .map_err(|why| format!("{none}; lines into and out of the L2: {why}")),
        };
        Counting { open, started: Instant::now() }
    }

    /// Ends the count.
    #[must_use]
    pub fn stop(self) -> Bus {
        let wall_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counted = self.open.and_then(|open| open.stop(wall_ns));
        counted.unwrap_or_else(|why| Bus::NotAvailable { why })
    }
}

impl Open {
    /// Opens each source on its CPUs, and starts all counters.
    fn new(is_proxy: bool, sources: Vec<Source>) -> Result<Open, String> {
        let mut counters = Vec::new();
        for (index, Source { event, cpus, .. }) in sources.iter().enumerate() {
            let refused = |e: std::io::Error| {
                let (_, why, fix) = open::remedy_on_cpus(event, &e);
                let fix = if fix.is_empty() { fix } else { format!("; {fix}") };
                format!("{}: {why}{fix}", event.name)
            };
            let mut builder = open::builder(event);
            // A controller does not know who caused its traffic, so it refuses to exclude any.
            builder.any_pid().exclude_kernel(false).exclude_hv(false);
            for cpu in cpus {
                counters.push((index, builder.one_cpu(*cpu).build().map_err(refused)?));
            }
        }
        for (_, counter) in &mut counters {
            counter.enable().map_err(|e| format!("cannot start the counters: {e}"))?;
        }
        Ok(Open { is_proxy, sources, counters })
    }

    fn stop(self, wall_ns: u64) -> Result<Bus, String> {
        let mut ways = [Way::default(), Way::default()];
        for (index, mut counter) in self.counters {
            let data = counter.read_full().map_err(|e| format!("cannot read a counter: {e}"))?;
            let [enabled, running] = [open::ns(data.time_enabled()), open::ns(data.time_running())];
            if running.saturating_add(enabled / 1000) < enabled {
                let pct = 100.0 * running as f64 / enabled as f64;
                return Err(format!("the counters were ours for {pct:.1} % of the time"));
            }
            let Some(source) = self.sources.get(index) else { continue };
            let way = &mut ways[usize::from(source.is_write)];
            way.bytes = way.bytes.saturating_add((data.count() as f64 * source.bytes) as u64);
        }
        for (way, is_write) in ways.iter_mut().zip([false, true]) {
            let mut sources = self.sources.iter().filter(|source| source.is_write == is_write);
            let Some(first) = sources.next() else { continue };
            (way.event, way.caveat) = (first.event.to_string(), first.caveat.to_owned());
            let more = sources.count();
            if more > 0 {
                let _ = write!(way.event, " and {more} more");
            }
        }
        let [read, written] = ways;
        let traffic = Traffic { read, written, wall_ns };
        Ok(if self.is_proxy { Bus::Proxy(traffic) } else { Bus::Memory(traffic) })
    }
}

impl Bus {
    /// Returns the figures in words; `packets` are those of the recording, if they were counted.
    #[must_use]
    pub fn told(&self, packets: Option<u64>) -> String {
        let text = match self {
            Bus::Memory(traffic) => format!("memory {}", traffic.told(packets)),
            Bus::Proxy(traffic) => {
                let told = traffic.told(packets);
                format!("memory by proxy, neither a lower nor an upper bound: {told}")
            }
            Bus::NotAvailable { why } => format!("memory n/a ({why})"),
        };
        text + "; PCI n/a (not counted)"
    }
}

impl Traffic {
    /// Returns the bytes that passed in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read.bytes.saturating_add(self.written.bytes)
    }

    /// Returns the bytes for each second; `None` for a count without duration.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.bytes() as f64 * 1e9 / self.wall_ns as f64)
    }

    /// Returns the bytes for each of `packets`; `None` if there were none.
    #[must_use]
    pub fn bytes_per_packet(&self, packets: u64) -> Option<f64> {
        (packets > 0).then(|| self.bytes() as f64 / packets as f64)
    }

    fn told(&self, packets: Option<u64>) -> String {
        let mut text = match self.bytes_per_second() {
            Some(rate) => format!("{:.1} MB/s", rate / 1e6),
            None => "n/a MB/s (no time passed)".into(),
        };
        let _ = match packets.map(|packets| self.bytes_per_packet(packets)) {
            Some(Some(bytes)) => write!(text, ", {bytes:.1} bytes/packet"),
            Some(None) => write!(text, ", n/a bytes/packet (no packet passed)"),
            None => write!(text, ", n/a bytes/packet (packets were not counted)"),
        };
        for (what, way) in [("read", &self.read), ("written", &self.written)] {
            let _ = write!(text, "; {} bytes {what} by {}", way.bytes, way.event);
            if !way.caveat.is_empty() {
                let _ = write!(text, " ({})", way.caveat);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
