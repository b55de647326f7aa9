//! Use of the memory bus, where it can be counted: by a proxy.
//!
//! The bus has counters of its own, which belong to a socket and not to a thread, and which a
//! virtual machine does not show. What a thread's core does show is lines into and out of its L2:
//! (in + out) × 64 bytes is what passed between the core and all that lies behind it. That is a
//! proxy and is called one: what the L3 served never reached the memory bus, so that the bus saw at
//! most this; and neither what devices wrote nor what other cores did is in it.

use std::fmt;

use linerate_sys::{Error, Result};
use serde::Serialize;

use crate::pmu::model::LINE_BYTES;
use crate::pmu::{Counts, Event, Fallback, Quantity};

/// What a thread used of the bus, or why that is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bus {
    /// By lines into and out of the L2.
    Proxy(Proxy),
    /// Not known.
    NotAvailable {
        /// Why.
        why: String,
        /// What there is instead.
        fallback: Fallback,
    },
}

/// What passed between a core's L2 and what lies behind it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proxy {
    /// Lines into the L2.
    pub lines_in: u64,
    /// Lines out of the L2.
    pub lines_out: u64,
    /// Wall time in which they passed, in nanoseconds.
    pub wall_ns: u64,
    /// Packets that were handled meanwhile, if somebody counted them.
    pub packets: Option<u64>,
    /// The events by which it was counted, with their raw codes.
    pub events: Vec<String>,
}

/// The events to count for [`Bus::of`], in one window.
///
/// # Errors
/// `E-UNSUPPORTED` on a CPU that lacks one of them, with the reason.
pub fn events() -> Result<[Event; 2]> {
    Ok([Event::of(Quantity::L2LinesIn)?, Event::of(Quantity::L2LinesOut)?])
}

impl Bus {
    /// Use of the bus in a window in which [`events`] were counted.
    #[must_use]
    pub fn of(counts: &Counts, packets: Option<u64>) -> Bus {
        if !counts.is_whole() {
            let pct = counts.running_pct();
            return Bus::not_available(format!(
                "the counters were ours for {pct:.1} % of the time"
            ));
        }
        let lines = (counts.of(Quantity::L2LinesIn), counts.of(Quantity::L2LinesOut));
        let (Some(lines_in), Some(lines_out)) = lines else {
            return Bus::not_available("lines into and out of the L2 were not counted".into());
        };
        let is_line = |quantity| matches!(quantity, Quantity::L2LinesIn | Quantity::L2LinesOut);
        let counted = counts.counted.iter().map(|count| &count.event);
        let events = counted
            .filter(|event| event.quantity.is_some_and(is_line))
            .map(ToString::to_string)
            .collect();
        Bus::Proxy(Proxy { lines_in, lines_out, wall_ns: counts.wall_ns, packets, events })
    }

    fn not_available(why: String) -> Bus {
        Bus::NotAvailable { why, fallback: Fallback::of(Quantity::L2LinesIn) }
    }
}

/// For a window that could not be counted.
impl From<&Error> for Bus {
    fn from(e: &Error) -> Bus {
        Bus::not_available(format!("{}: {}", e.what, e.why))
    }
}

impl Proxy {
    /// Bytes that passed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lines_in.saturating_add(self.lines_out).saturating_mul(LINE_BYTES)
    }

    /// Bytes for each second of the window; `None` for a window without length.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.bytes() as f64 * 1e9 / self.wall_ns as f64)
    }

    /// Bytes for each packet; `None` without packets.
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
        write!(f, "bus use by proxy, at most: ")?;
        match self.bytes_per_second() {
            Some(rate) => write!(f, "{:.1} MB/s", rate / 1e6)?,
            None => write!(f, "n/a MB/s (no time passed)")?,
        }
        match (self.bytes_per_packet(), self.packets) {
            (Some(bytes), Some(packets)) => {
                write!(f, ", {bytes:.1} bytes/packet ({packets} packets)")?;
            }
            (_, Some(_)) => write!(f, ", n/a bytes/packet (no packet passed)")?,
            (_, None) => write!(f, ", n/a bytes/packet (packets were not counted)")?,
        }
        let (lines_in, lines_out) = (self.lines_in, self.lines_out);
        write!(
            f,
            "; {lines_in} lines in, {lines_out} lines out of L2 by {}",
            self.events.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::{Count, Family};

    fn counts(lines_in: u64, lines_out: u64) -> Counts {
        let on =
            |name, count| Count { event: Event::parse_on(Family::Amd1Ah, name).unwrap(), count };
        Counts {
            counted: vec![on("L2_LINES_IN", lines_in), on("L2_LINES_OUT", lines_out)],
            wall_ns: 500_000_000,
            enabled_ns: 400_000_000,
            running_ns: 400_000_000,
            scope: "user",
        }
    }

    #[test]
    fn the_proxy_is_lines_times_64_by_second_and_by_packet_and_says_so() {
        let bus = Bus::of(&counts(1_000_000, 500_000), Some(1_000_000));
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
    fn what_was_not_counted_is_not_available_and_not_zero() {
        let mut without = counts(1, 1);
        without.counted.pop();
        let text = Bus::of(&without, None).to_string();
        assert!(text.contains("n/a") && text.contains("cache model"), "{text}");
        let mut shared = counts(1, 1);
        shared.running_ns /= 2;
        let text = Bus::of(&shared, None).to_string();
        assert!(text.contains("n/a") && text.contains("50.0 %"), "{text}");
        let text = Bus::of(&counts(1, 1), None).to_string();
        assert!(text.contains("n/a bytes/packet (packets were not counted)"), "{text}");
        let text = Bus::of(&counts(1, 1), Some(0)).to_string();
        assert!(text.contains("no packet passed"), "{text}");
    }

    #[test]
    fn a_machine_that_cannot_count_says_why() {
        let e = Event::parse_on(Family::Amd19h, "L2_LINES_OUT").unwrap_err();
        let text = Bus::from(&e).to_string();
        assert!(text.contains("AMD documents no event"), "{text}");
    }
}
