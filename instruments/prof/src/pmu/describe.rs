//! A description, for users, of the events that this machine can count; each event is tried.

use std::fmt;

use linerate_sys::Error;
use serde::Serialize;

use super::event::{Event, Quantity, SOFTWARE};
use super::table::{self, Entry};
use super::{Capacity, Counting, Fallback, Family, Standing, capacity};
use crate::text::wrapped;

/// The events that this machine can count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Described {
    family: Family,
    events: Vec<DescribedEvent>,
    capacity: Capacity,
}

/// An event, and whether this machine counts it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct DescribedEvent {
    name: &'static str,
    /// The CPU's own code; `None` for an event of the kernel, or if this CPU has no such event.
    raw: Option<String>,
    /// Evidence for the event's meaning; `None` if this CPU has no such event.
    standing: Option<Standing>,
    /// Meaning of the event; empty if this CPU has no such event.
    meaning: &'static str,
    source: &'static str,
    caveat: &'static str,
    /// The reason why the event cannot be counted here; `None` if a trial counted it.
    refused: Option<Refusal>,
}

/// The reason why an event cannot be counted, and the alternative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Refusal {
    code: &'static str,
    why: String,
    fix: String,
    fallback: Fallback,
}

/// Tries every event of the table and of the kernel, on the calling thread. Takes some
/// milliseconds.
#[must_use]
pub fn describe() -> Described {
    let family = Family::here();
    let hardware = Quantity::ALL.iter().map(|quantity| hardware(family, *quantity));
    let events = hardware.chain(SOFTWARE.map(software)).collect();
    Described { family, events, capacity: capacity().clone() }
}

fn hardware(family: Family, quantity: Quantity) -> DescribedEvent {
    let (name, entry) = (quantity.as_str(), table::entry(family, quantity).ok());
    let refused = refusal(Event::parse_on(family, name), Fallback::of(quantity));
    let none = DescribedEvent { name, refused, ..DescribedEvent::default() };
    let Some(entry) = entry else { return none };
    let &Entry { standing, meaning, source, caveat, .. } = entry;
    let (raw, standing) = (entry.event().raw, Some(standing));
    DescribedEvent { raw, standing, meaning, source, caveat, ..none }
}

fn software((name, _, meaning): (&'static str, &str, &'static str)) -> DescribedEvent {
    DescribedEvent {
        name,
        standing: Some(Standing::Documented),
        meaning,
        source: "perf_event_open(2), PERF_TYPE_SOFTWARE",
        refused: refusal(Event::parse(name), Fallback::Nothing),
        ..DescribedEvent::default()
    }
}

fn refusal(event: Result<Event, Error>, fallback: Fallback) -> Option<Refusal> {
    let tried = event.and_then(|event| Counting::of_this_thread(&[event])?.read());
    tried.err().map(|e| {
        // The fallback is printed separately, so it is removed from the end of the error's remedy.
        let fix = e.fix.strip_suffix(&format!("; instead: {fallback}")).unwrap_or(&e.fix);
        Refusal { code: e.code.as_str(), fix: fix.into(), why: e.why, fallback }
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
        // Print each reason once, with all events that cannot be counted for that reason.
        let refused = || self.events.iter().filter_map(|e| Some((e.name, e.refused.as_ref()?)));
        for (at, (_, refusal)) in refused().enumerate() {
            if refused().take(at).any(|(_, told)| told.why == refusal.why) {
                continue;
            }
            writeln!(f, "not counted here: {} [{}]", refusal.why, refusal.code)?;
            writeln!(f, "  fix: {}", refusal.fix)?;
            for (name, same) in refused().filter(|(_, same)| same.why == refusal.why) {
                writeln!(f, "  {name:<22} instead: {}", same.fallback)?;
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
        // The capacity is found out without this list, by trials of its own.
        let (hardware, _) = here.events.split_at(Quantity::ALL.len());
        for event in hardware.iter().filter(|e| capacity().at_once == 0 || e.standing.is_none()) {
            assert!(event.refused.is_some(), "no counter, or no such event: {event:?}");
        }
        println!("{text}");
        let json = serde_json::to_string(&here).unwrap();
        assert!(json.contains("\"name\":\"L2_LINES_OUT\""), "{json}");
        assert!(json.contains("\"at_once\":"), "{json}");
    }
}
