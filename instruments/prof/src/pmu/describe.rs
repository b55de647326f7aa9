//! A description of the events that this machine can count, for a person: the table, tried out.

use std::fmt;

use linerate_sys::Error;
use serde::Serialize;

use super::event::{Event, Quantity, SOFTWARE};
use super::{Capacity, Counting, Fallback, Family, Standing, capacity, family, table};
use crate::print::wrapped;

/// The events that this machine can count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Described {
    /// Family of its CPU.
    pub family: Family,
    /// Every event that has a name.
    pub events: Vec<DescribedEvent>,
    /// Number of events that count at once.
    pub capacity: Capacity,
}

/// An event, and whether it counts here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedEvent {
    /// As one asks for it.
    pub name: &'static str,
    /// The CPU's own code; `None` for an event of the kernel's and where there is none.
    pub raw: Option<String>,
    /// Evidence for the event's meaning; `None` if there is no event.
    pub standing: Option<Standing>,
    /// Meaning of the event; empty if there is none.
    pub meaning: &'static str,
    /// The vendor's name for it, or what was measured.
    pub source: &'static str,
    /// Limits of the event: what it misses or counts by surprise.
    pub caveat: &'static str,
    /// Why it cannot be counted here; `None` if it was, when tried.
    pub refused: Option<Refusal>,
}

/// Why an event cannot be counted, and what there is instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Stable identifier: `E-PERM`.
    pub code: String,
    /// Why.
    pub why: String,
    /// The remedy.
    pub fix: String,
    /// The measurement to use instead.
    pub fallback: Fallback,
}

/// Tries every event of the table and of the kernel, on the calling thread. Takes some
/// milliseconds.
#[must_use]
pub fn describe() -> Described {
    let family = family::here();
    let hardware = Quantity::ALL.into_iter().map(|quantity| hardware(family, quantity));
    let software = SOFTWARE.into_iter().map(|(name, ..)| software(name));
    let events = hardware.chain(software).collect();
    Described { family, events, capacity: capacity().clone() }
}

fn hardware(family: Family, quantity: Quantity) -> DescribedEvent {
    let name = quantity.as_str();
    let entry = table::entry(family, quantity).ok();
    DescribedEvent {
        name,
        raw: entry.and_then(|entry| entry.event().raw),
        standing: entry.map(|entry| entry.standing),
        meaning: entry.map_or("", |entry| entry.meaning),
        source: entry.map_or("", |entry| entry.source),
        caveat: entry.map_or("", |entry| entry.caveat),
        refused: refusal(Event::parse_on(family, name), Fallback::of(quantity)),
    }
}

fn software(name: &'static str) -> DescribedEvent {
    let meaning = match name {
        "cpu-clock" => "time, in ns, by the CPU's clock",
        "task-clock" => "time that the thread ran, in ns",
        "page-faults" => "pages that were not mapped when touched",
        "context-switches" => "times that the thread gave up or lost its CPU",
        _ => "times that the thread went to another CPU",
    };
    DescribedEvent {
        name,
        raw: None,
        standing: Some(Standing::Documented),
        meaning,
        source: "perf_event_open(2), PERF_TYPE_SOFTWARE",
        caveat: "",
        refused: refusal(Event::parse(name), Fallback::Nothing),
    }
}

fn refusal(event: Result<Event, Error>, fallback: Fallback) -> Option<Refusal> {
    let tried = event.and_then(|event| Counting::of_this_thread(&[event])?.read());
    tried.err().map(|e| {
        // An error has its fallback in its remedy; here it is a value of its own.
        let fix = e.fix.strip_suffix(&format!("; instead: {fallback}")).unwrap_or(&e.fix);
        Refusal { code: e.code.as_str().into(), fix: fix.into(), why: e.why, fallback }
    })
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CPU: {}; {}", self.family, self.capacity)?;
        writeln!(f, "{:<22} {:<12} {:<11} {:<7} what it counts", "event", "raw", "known", "here")?;
        for event in &self.events {
            let raw = event.raw.as_deref().unwrap_or("-");
            let standing = event.standing.map_or("-", Standing::as_str);
            let here = if event.refused.is_none() { "counts" } else { "no" };
            let meaning = if event.meaning.is_empty() { "n/a" } else { event.meaning };
            writeln!(f, "{:<22} {raw:<12} {standing:<11} {here:<7} {meaning}", event.name)?;
            if !event.caveat.is_empty() {
                f.write_str(&wrapped("    ", event.caveat))?;
            }
        }
        self.write_refusals(f)
    }
}

impl Described {
    /// Each reason once, with all the events that it keeps from being counted.
    fn write_refusals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told: Vec<&str> = Vec::new();
        for refusal in self.events.iter().filter_map(|event| event.refused.as_ref()) {
            if told.contains(&refusal.why.as_str()) {
                continue;
            }
            told.push(&refusal.why);
            writeln!(f, "not counted here: {} [{}]", refusal.why, refusal.code)?;
            writeln!(f, "  fix: {}", refusal.fix)?;
            for event in &self.events {
                let Some(same) = event.refused.as_ref().filter(|r| r.why == refusal.why) else {
                    continue;
                };
                writeln!(f, "  {:<22} instead: {}", event.name, same.fallback)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_counts_here_or_says_why_not_and_what_instead() {
        let here = describe();
        assert_eq!(here.events.len(), Quantity::ALL.len() + SOFTWARE.len());
        let text = here.to_string();
        for event in &here.events {
            assert!(text.contains(event.name), "{text}");
            if let Some(refusal) = &event.refused {
                assert!(!refusal.why.is_empty() && !refusal.fix.is_empty(), "{refusal:?}");
                assert!(!refusal.fix.contains("instead"), "{refusal:?}");
                assert!(text.contains(refusal.fallback.as_str()), "{text}");
            }
        }
        println!("{text}");
    }

    #[test]
    fn the_description_is_readable_by_programs() {
        let json = serde_json::to_string(&describe()).unwrap();
        assert!(json.contains("\"name\":\"L2_LINES_OUT\""), "{json}");
        assert!(json.contains("\"at_once\":"), "{json}");
    }
}
