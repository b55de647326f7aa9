//! The number of events that count at once, and the generic ones that count at all: found by counting.
//!
//! A CPU's manual says how many counters it has; how many of them a hypervisor passes on, and what
//! the kernel keeps for itself, it does not. Some virtual machines accept one event more than they
//! have counters, and read 0 for it. So: groups of one event that a loop makes happen, each larger
//! by one, until one is refused, reads 0, or ran for less than it was enabled.

use std::fmt;
use std::sync::OnceLock;

use serde::Serialize;

use super::Scope;
use super::event::{Event, TYPE_HARDWARE};
use super::open::{Opened, Refused};

/// No CPU of the table has more counters.
const AT_ONCE_MAX: usize = 32;

/// The capacity of this machine's counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Events that count at once, whichever they are; 0 without counters.
    pub at_once: usize,
    /// Number of cycles and instructions that count beside [`Capacity::at_once`] others, on counters of
    /// their own.
    pub beside: usize,
    /// Why there are none, with the remedy; `None` if there are.
    pub why_none: Option<String>,
    /// The kernel's generic events, and whether they count here.
    pub generic: Vec<Generic>,
}

/// A generic event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Generic {
    /// As `perf` calls it.
    pub name: &'static str,
    /// True if it opened, ran, and counted something in a loop of a millisecond.
    pub counts: bool,
    /// Why not.
    pub why_not: Option<String>,
}

/// Returns the capacity of this machine's counters; the first call measures it, in some milliseconds.
///
/// Others who count at that time take from it.
pub fn capacity() -> &'static Capacity {
    static CAPACITY: OnceLock<Capacity> = OnceLock::new();
    CAPACITY.get_or_init(Capacity::find_out)
}

impl Capacity {
    /// Finds out by counting, on the calling thread.
    #[must_use]
    pub fn find_out() -> Capacity {
        let generic = GENERIC.map(try_generic).to_vec();
        let probe = PROBES.iter().find(|(name, _)| counts(&generic, name));
        let Some(&(name, config)) = probe else {
            let why = generic.iter().find_map(|event| event.why_not.clone());
            let why_none = why.or_else(|| Some("no generic event counts".into()));
            return Capacity { at_once: 0, beside: 0, why_none, generic };
        };
        let probe = generic_event(name, config);
        let at_once = grow(AT_ONCE_MAX, |n| all_count(&vec![probe.clone(); n]));
        let full = vec![probe; at_once];
        let mut beside = 0;
        if name == PROBES[0].0 {
            // On Intel these two have counters of their own; elsewhere the group is refused.
            let fixed = GENERIC[..2].iter().filter(|(name, _)| counts(&generic, name));
            let mut more = full;
            for &(name, config) in fixed {
                more.push(generic_event(name, config));
                beside += usize::from(all_count(&more));
            }
        }
        Capacity { at_once, beside, why_none: None, generic }
    }

    /// Returns true if `events` count at once, as far as numbers tell.
    #[must_use]
    pub fn holds(&self, events: &[Event]) -> bool {
        self.first_too_many(events).is_none()
    }

    /// Returns the index of the first of `events` that does not fit.
    fn first_too_many(&self, events: &[Event]) -> Option<usize> {
        let (mut general, mut beside) = (0, 0);
        for (index, event) in events.iter().enumerate().filter(|(_, event)| !event.is_software()) {
            let is_fixed = event.type_ == TYPE_HARDWARE && event.config < 2;
            if is_fixed && beside < self.beside {
                beside += 1;
            } else if general < self.at_once {
                general += 1;
            } else {
                return Some(index);
            }
        }
        None
    }

    /// The same events in as few runs as their order allows, each of which counts at once.
    #[must_use]
    pub fn runs<'a>(&self, mut events: &'a [Event]) -> Vec<&'a [Event]> {
        let mut runs = Vec::new();
        while let Some(at) = self.first_too_many(events).filter(|&at| at > 0) {
            let (run, rest) = events.split_at(at);
            runs.push(run);
            events = rest;
        }
        if !events.is_empty() {
            runs.push(events);
        }
        runs
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.why_none, self.beside) {
            (Some(why), _) => write!(f, "no events at once: {why}"),
            (None, 0) => write!(f, "{} events at once", self.at_once),
            (None, beside) => {
                write!(f, "{} events at once, and {beside} more of cycles and instructions", {
                    self.at_once
                })
            }
        }
    }
}

/// Name and `config`. Source: `enum perf_hw_id`, linux/perf_event.h.
const GENERIC: [(&str, u64); 7] = [
    ("cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branches", 4),
    ("branch-misses", 5),
    ("ref-cycles", 9),
];

/// Events put on every counter to find the number of counters: first an event that has no counter of its
/// own on any CPU.
const PROBES: [(&str, u64); 3] = [("branches", 4), ("instructions", 1), ("cycles", 0)];

fn generic_event(name: &str, config: u64) -> Event {
    Event { name: name.into(), type_: TYPE_HARDWARE, config, raw: None, quantity: None }
}

fn counts(generic: &[Generic], name: &str) -> bool {
    generic.iter().any(|event| event.name == name && event.counts)
}

fn try_generic((name, config): (&'static str, u64)) -> Generic {
    let event = generic_event(name, config);
    let tried = try_one(&event);
    // A loop need not miss a cache or a branch.
    let may_be_none = name.contains("cache") || name.contains("misses");
    match tried {
        Ok(0) if !may_be_none => {
            let why_not = Some("it opens and reads 0".into());
            Generic { name, counts: false, why_not }
        }
        Ok(_) => Generic { name, counts: true, why_not: None },
        Err(why) => Generic { name, counts: false, why_not: Some(why) },
    }
}

/// Returns the count of `event` in the loop, or the reason why it does not count.
pub(super) fn try_one(event: &Event) -> Result<u64, String> {
    let events = std::slice::from_ref(event);
    let why = |refused: Refused| refused.explain(events).why;
    let mut group = Opened::of_this_thread(events, Scope::User).map_err(why)?;
    work();
    let reading = group.read().map_err(|e| e.to_string())?;
    if reading.enabled_ns > 0 && reading.running_ns == 0 {
        return Err("it opens and is never given a counter".into());
    }
    Ok(reading.counts.first().copied().unwrap_or(0))
}

/// Returns true if all of `events` count for as long as they are enabled.
fn all_count(events: &[Event]) -> bool {
    let Ok(mut group) = Opened::of_this_thread(events, Scope::User) else { return false };
    work();
    let Ok(reading) = group.read() else { return false };
    reading.running_ns > 0
        && reading.running_ns >= reading.enabled_ns
        && reading.counts.iter().all(|&count| count > 0)
}

/// The largest number up to `max` that fits, if each number below it does.
fn grow(max: usize, mut fits: impl FnMut(usize) -> bool) -> usize {
    (1..=max).take_while(|&n| fits(n)).last().unwrap_or(0)
}

/// A loop that makes cycles, instructions and branches happen, for a fraction of a millisecond.
fn work() {
    let mut sum = 0u64;
    for turn in 0..200_000u64 {
        sum = std::hint::black_box(sum ^ turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(at_once: usize, beside: usize) -> Capacity {
        Capacity { at_once, beside, why_none: None, generic: Vec::new() }
    }

    fn events(names: &str) -> Vec<Event> {
        names.split(' ').map(|name| Event::parse(name).unwrap()).collect()
    }

    #[test]
    fn growing_stops_at_the_first_group_that_does_not_count() {
        assert_eq!(grow(32, |n| n <= 5), 5);
        // A sixth that reads 0 is the end, whatever a seventh would do.
        assert_eq!(grow(32, |n| n != 6), 5);
        assert_eq!(grow(32, |_| false), 0);
        assert_eq!(grow(32, |_| true), 32);
    }

    #[test]
    fn software_events_take_no_counter() {
        let five = holding(5, 0);
        assert!(five.holds(&events("r1 r2 r3 r4 r5 task-clock page-faults cs")));
        assert!(!five.holds(&events("r1 r2 r3 r4 r5 cs r6")));
        assert!(holding(0, 0).holds(&events("task-clock")));
        assert!(!holding(0, 0).holds(&events("cycles")));
    }

    #[test]
    fn cycles_and_instructions_count_beside_where_they_have_their_own() {
        let names = "cycles instructions r1 r2 r3 r4";
        assert!(holding(4, 2).holds(&events(names)));
        assert!(!holding(4, 1).holds(&events(names)));
        assert!(holding(6, 0).holds(&events(names)));
    }

    #[test]
    fn too_many_are_split_into_runs_in_their_order() {
        let seven = events("cycles r1 r2 r3 task-clock r4 r5");
        let runs = holding(3, 0).runs(&seven);
        let names: Vec<Vec<&str>> =
            runs.iter().map(|run| run.iter().map(|e| e.name.as_str()).collect()).collect();
        assert_eq!(
            names,
            [vec!["cycles", "r0001", "r0002"], vec!["r0003", "task-clock", "r0004", "r0005"]]
        );
        assert_eq!(holding(9, 0).runs(&seven).len(), 1);
        // Nothing fits: one run, which will be refused with the reason.
        assert_eq!(holding(0, 0).runs(&seven).len(), 1);
    }

    #[test]
    fn what_is_found_out_here_has_a_number_or_a_reason() {
        let found = capacity();
        assert_eq!(found.at_once == 0, found.why_none.is_some(), "{found:?}");
        for event in &found.generic {
            assert_eq!(event.counts, event.why_not.is_none(), "{event:?}");
        }
        println!("{found}");
    }
}
