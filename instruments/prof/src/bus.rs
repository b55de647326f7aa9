//! Traffic on the memory bus, estimated from counts of cache lines where the CPU has the events.
//!
//! The bus has counters of its own, which belong to a socket and not to a thread, and which a
//! virtual machine does not show. What a thread's core does show is lines into and out of its L2:
//! (in + out) × 64 bytes is what passed between the core and what lies behind it, as far as these
//! events see it. That is a proxy and is called one. It is no bound, neither way: what the L3 served
//! never reached the memory bus; what passes by the L2 (non-temporal stores, prefetches into the
//! L3, devices) and what an event leaves out (on AMD, the L2's own prefetches) is not in it. So each
//! event's caveat is printed beside the figure.
//!
//! Only lines that leave the L2 for another place count: an event that counts what is dropped
//! in place, too, as Intel's does, is none for this.

use std::fmt;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use crate::pmu::table::{self, Entry};
use crate::pmu::{Counts, Event, Fallback, Family, Quantity};

/// Bus traffic of a thread, or the reason why it is unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bus {
    /// Estimate from the counts of lines into and out of the L2.
    Proxy(Proxy),
    /// Unknown traffic.
    NotAvailable {
        /// The reason why the traffic is unknown.
        why: String,
        /// The measurement to use instead.
        fallback: Fallback,
    },
}

/// Cache lines that passed between a core's L2 and the memory outside it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proxy {
    /// Lines into the L2.
    pub lines_in: Lines,
    /// Lines out of the L2 that go to memory or another cache.
    pub lines_out: Lines,
    /// Wall time of the measurement, in nanoseconds.
    pub wall_ns: u64,
    /// Packets handled during the measurement, if they were counted.
    pub packets: Option<u64>,
}

/// Lines that passed in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// Number of cache lines.
    pub lines: u64,
    /// The event that counted the lines, with its raw code.
    pub event: String,
    /// Limits of the event: traffic that it misses, or counts unexpectedly; empty if none are
    /// known.
    pub caveat: &'static str,
}

/// Returns the events to count for [`Bus::of`], in one window: lines in, lines out.
///
/// # Errors
/// `E-UNSUPPORTED` on a CPU that lacks one of them, with the reason.
pub fn events() -> Result<[Event; 2]> {
    wanted(Family::here())
        .map(|wanted| wanted.map(Entry::event))
        .map_err(|why| Error::new(Code::Unsupported, "cannot count the use of the bus", why))
}

impl Bus {
    /// Returns the use of the bus in a window in which [`events`] were counted.
    #[must_use]
    pub fn of(counts: &Counts, packets: Option<u64>) -> Bus {
        Bus::of_on(Family::here(), counts, packets)
    }

    /// Returns the use of the bus, for counts from a machine of `family`.
    fn of_on(family: Family, counts: &Counts, packets: Option<u64>) -> Bus {
        if !counts.is_whole() {
            let pct = counts.running_pct();
            return Bus::not_available(format!(
                "the counters were ours for {pct:.1} % of the time"
            ));
        }
        let lines = match wanted(family) {
            Ok(wanted) => wanted.map(|entry| lines(entry, counts)),
            Err(why) => return Bus::not_available(why.into()),
        };
        let [Some(lines_in), Some(lines_out)] = lines else {
            return Bus::not_available("lines into and out of the L2 were not counted".into());
        };
        Bus::Proxy(Proxy { lines_in, lines_out, wall_ns: counts.wall_ns, packets })
    }

    fn not_available(why: String) -> Bus {
        // The model of caches is no fallback: it has no clock, and so it cannot give a rate.
        Bus::NotAvailable { why, fallback: Fallback::Nothing }
    }
}

impl Proxy {
    /// Returns the bytes that passed in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lines_in.lines.saturating_add(self.lines_out.lines).saturating_mul(LINE_BYTES)
    }

    /// Returns the bytes for each second of the window; `None` for a window without length.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.bytes() as f64 * 1e9 / self.wall_ns as f64)
    }

    /// Returns the bytes for each packet; `None` if packets were not counted.
    #[must_use]
    pub fn bytes_per_packet(&self) -> Option<f64> {
        let packets = self.packets.filter(|&packets| packets > 0)?;
        Some(self.bytes() as f64 / packets as f64)
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bus::Proxy(proxy) => proxy.fmt(f),
            Bus::NotAvailable { why, fallback } => {
                write!(f, "bus use: n/a ({why}; instead: {fallback})")
            }
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bus use by proxy, neither a lower nor an upper bound: ")?;
        match self.bytes_per_second() {
            Some(rate) => write!(f, "{:.1} MB/s", rate / 1e6)?,
            None => write!(f, "n/a MB/s (no time passed)")?,
        }
        match self.bytes_per_packet().zip(self.packets) {
            Some((bytes, n)) => write!(f, ", {bytes:.1} bytes/packet ({n} packets)")?,
            None if self.packets.is_some() => write!(f, ", n/a bytes/packet (no packet passed)")?,
            None => write!(f, ", n/a bytes/packet (packets were not counted)")?,
        }
        for (way, Lines { lines, event, caveat }) in
            [("into", &self.lines_in), ("out of", &self.lines_out)]
        {
            write!(f, "; {lines} lines {way} L2 by {event}")?;
            if !caveat.is_empty() {
                write!(f, " ({caveat})")?;
            }
        }
        Ok(())
    }
}

/// Returns the lines that the event of `entry` counted; `None` if this event was not counted.
fn lines(entry: &'static Entry, counts: &Counts) -> Option<Lines> {
    let lines = counts.of(entry.quantity)?;
    Some(Lines { lines, event: entry.event().to_string(), caveat: entry.caveat })
}

/// Returns the events for lines in and lines out on a machine of `family`, or the reason why there
/// are none.
fn wanted(family: Family) -> std::result::Result<[&'static Entry; 2], &'static str> {
    let of = |quantity| table::entry(family, quantity);
    Ok([of(Quantity::L2LinesIn)?, of(Quantity::L2LinesOut)?])
}

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::Count;

    /// Returns a window of half a second in which the needed events were counted.
    fn amd(lines_in: u64, lines_out: u64) -> Counts {
        let events = wanted(Family::Amd1Ah).unwrap().map(Entry::event);
        let lines = [lines_in, lines_out];
        let counted =
            events.into_iter().zip(lines).map(|(event, count)| Count { event, count }).collect();
        Counts {
            counted,
            wall_ns: 500_000_000,
            enabled_ns: 400_000_000,
            running_ns: 400_000_000,
            scope: "user",
        }
    }

    fn on_amd(counts: &Counts, packets: Option<u64>) -> Bus {
        Bus::of_on(Family::Amd1Ah, counts, packets)
    }

    #[test]
    fn the_proxy_is_lines_times_64_by_second_and_by_packet_and_says_so() {
        let bus = on_amd(&amd(1_000_000, 500_000), Some(1_000_000));
        let Bus::Proxy(proxy) = &bus else { panic!("{bus}") };
        assert_eq!(proxy.bytes(), 96_000_000);
        assert_eq!(proxy.bytes_per_second(), Some(192e6));
        assert_eq!(proxy.bytes_per_packet(), Some(96.0));
        let text = bus.to_string();
        for part in ["proxy", "192.0 MB/s", "96.0 bytes/packet (1000000 packets)", "rff66", "r0864"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_an_event_does_not_see_is_said_beside_the_figure_and_no_bound_is_claimed() {
        let text = on_amd(&amd(7, 5), None).to_string();
        for wanted in wanted(Family::Amd1Ah).unwrap() {
            assert!(text.contains(wanted.caveat), "{text}");
            assert!(text.contains(&wanted.event().to_string()), "{text}");
        }
        assert!(!text.contains("at most"), "{text}");
        assert!(text.contains("neither a lower nor an upper bound"), "{text}");
        assert!(text.contains("not in it: lines that the L2's prefetcher fetched"), "{text}");
    }

    #[test]
    fn what_was_not_counted_is_not_available_and_not_zero() {
        let mut without = amd(1, 1);
        without.counted.pop();
        let text = on_amd(&without, None).to_string();
        assert!(text.contains("n/a") && text.contains("instead: none"), "{text}");
        let mut shared = amd(1, 1);
        shared.running_ns /= 2;
        let text = on_amd(&shared, None).to_string();
        assert!(text.contains("n/a") && text.contains("50.0 %"), "{text}");
        let text = on_amd(&amd(1, 1), None).to_string();
        assert!(text.contains("n/a bytes/packet (packets were not counted)"), "{text}");
        let text = on_amd(&amd(1, 1), Some(0)).to_string();
        assert!(text.contains("no packet passed"), "{text}");
    }

    #[test]
    fn a_machine_that_cannot_count_says_why() {
        let text = Bus::of_on(Family::Unknown, &amd(1, 1), None).to_string();
        assert!(text.contains("no code of this CPU was tried"), "{text}");
    }
}
