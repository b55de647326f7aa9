//! The capacity of the counters, determined by trials: how many events they count together, and
//! which generic events count.
//!
//! A CPU's manual says how many counters it has; how many of them a hypervisor passes on, and what
//! the kernel keeps for itself, it does not. Some virtual machines accept one event more than they
//! have counters, and read 0 for it. So: groups of one event that a loop makes happen, each larger
//! by one, until one is refused, reads 0, or ran for less than it was enabled.

use std::fmt;
use std::sync::OnceLock;

use serde::Serialize;

use super::Scope;
use super::event::Event;
use super::open::Opened;

/// The capacity of this machine's counters: how many events they count together, and which generic
/// events count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Number of arbitrary events that can be counted together; 0 without counters.
    pub at_once: usize,
    /// Number of cycles and instructions that have counters of their own, in addition to
    /// [`Capacity::at_once`] others.
    pub beside: usize,
    /// The reason why there are no counters, with the remedy; `None` if there are some.
    pub why_none: Option<String>,
    /// The kernel's generic events, and whether each works.
    pub generic: Vec<Generic>,
}

/// A generic event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Generic {
    /// The event's name in `perf`.
    pub name: &'static str,
    /// True if the event opened, ran, and counted in a loop of a millisecond.
    pub counts: bool,
    /// The reason why the event does not count; `None` if it counts.
    pub why_not: Option<String>,
}

/// Returns the capacity of this machine's counters; the first call measures it on the calling
/// thread, in some milliseconds. Other programs that count events at that time reduce the result.
pub fn capacity() -> &'static Capacity {
    static CAPACITY: OnceLock<Capacity> = OnceLock::new();
    CAPACITY.get_or_init(Capacity::find_out)
}

impl Capacity {
    fn find_out() -> Capacity {
        let generic: Vec<Generic> = GENERIC.iter().map(try_generic).collect();
        let tried = || GENERIC.iter().zip(&generic).map(|((_, config, _), tried)| (*config, tried));
        let counts = |config: &u64| tried().any(|(of, event)| of == *config && event.counts);
        let Some(probe) = PROBES.into_iter().find(counts) else {
            let why = generic.iter().find_map(|event| event.why_not.clone());
            let why_none = why.or_else(|| Some("no generic event counts".into()));
            return Capacity { at_once: 0, beside: 0, why_none, generic };
        };
        let mut group = vec![hardware(probe)];
        while group.len() <= AT_ONCE_MAX && all_count(&group) {
            group.push(hardware(probe));
        }
        group.pop();
        let (at_once, mut beside) = (group.len(), 0);
        // On Intel these two events have counters of their own; on other CPUs the kernel refuses
        // the group.
        for fixed in
            [CYCLES, INSTRUCTIONS].into_iter().filter(|fixed| probe == PROBES[0] && counts(fixed))
        {
            group.push(hardware(fixed));
            beside += usize::from(all_count(&group));
        }
        Capacity { at_once, beside, why_none: None, generic }
    }

    /// Returns true if `events` can be counted together, judging by their number.
    #[must_use]
    pub fn holds(&self, events: &[Event]) -> bool {
        self.first_too_many(events).is_none()
    }

    /// Returns the index of the first event for which no counter is left; `None` if all have one.
    fn first_too_many(&self, events: &[Event]) -> Option<usize> {
        let (mut general, mut beside) = (self.at_once, self.beside);
        events.iter().position(|event| {
            let is_fixed = event.type_ == Event::HARDWARE && event.config < 2;
            let free = if is_fixed && beside > 0 { &mut beside } else { &mut general };
            if event.is_software() {
                return false;
            }
            let is_full = *free == 0;
            *free = free.saturating_sub(1);
            is_full
        })
    }

    /// Returns the events split in order into as few groups as possible, each of which can be
    /// counted together.
    pub(super) fn runs<'a>(&self, mut events: &'a [Event]) -> Vec<&'a [Event]> {
        let mut runs = Vec::new();
        while let Some(at) = self.first_too_many(events).filter(|&at| at > 0) {
            let (run, rest) = events.split_at(at);
            runs.push(run);
            events = rest;
        }
        runs.push(events);
        runs
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capacity { at_once, beside, why_none, .. } = self;
        match (why_none, beside) {
            (Some(why), _) => write!(f, "no events at once: {why}"),
            (None, 0) => write!(f, "{at_once} events at once"),
            (None, beside) => {
                write!(f, "{at_once} events at once, and {beside} more of cycles and instructions")
            }
        }
    }
}

/// Name and `config` of each generic event, and whether a loop certainly causes it. Source: `enum
/// perf_hw_id`, linux/perf_event.h.
const GENERIC: [(&str, u64, bool); 7] = [
    ("cycles", CYCLES, true),
    ("instructions", INSTRUCTIONS, true),
    ("cache-references", 2, false),
    ("cache-misses", 3, false),
    ("branches", BRANCHES, true),
    ("branch-misses", 5, false),
    ("ref-cycles", 9, true),
];
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
const BRANCHES: u64 = 4;

/// Events for determining the number of counters. The first is an event that has no counter of its
/// own on any CPU.
const PROBES: [u64; 3] = [BRANCHES, INSTRUCTIONS, CYCLES];

/// Upper bound of the number of counters: no CPU has more.
const AT_ONCE_MAX: usize = 32;

fn hardware(config: u64) -> Event {
    Event::new("generic", Event::HARDWARE, config)
}

fn try_generic(&(name, config, is_sure): &(&'static str, u64, bool)) -> Generic {
    let why_not = match try_one(&Event::new(name, Event::HARDWARE, config)) {
        Ok(0) if is_sure => Some("it opens and reads 0".into()),
        tried => tried.err(),
    };
    Generic { name, counts: why_not.is_none(), why_not }
}

/// Returns the count of `event` in the loop, or the reason why it does not count.
fn try_one(event: &Event) -> Result<u64, String> {
    let events = std::slice::from_ref(event);
    let mut group = Opened::of_this_thread(events, Scope::User)
        .map_err(|refused| refused.explain(events).why)?;
    work();
    let reading = group.read().map_err(|e| e.to_string())?;
    if reading.enabled_ns > 0 && reading.running_ns == 0 {
        return Err("it opens and is never given a counter".into());
    }
    Ok(reading.counts.first().copied().unwrap_or(0))
}

/// Returns true if all of `events` count during the whole time that they are enabled.
fn all_count(events: &[Event]) -> bool {
    let Ok(mut group) = Opened::of_this_thread(events, Scope::User) else { return false };
    work();
    group.read().is_ok_and(|reading| {
        reading.running_ns > 0
            && reading.running_ns >= reading.enabled_ns
            && reading.counts.iter().all(|&count| count > 0)
    })
}

/// Makes cycles, instructions and branches happen in a loop, for a fraction of a millisecond.
fn work() {
    std::hint::black_box((0..200_000u64).fold(0, |sum, turn| std::hint::black_box(sum ^ turn)));
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
    fn software_events_take_no_counter_and_cycles_and_instructions_their_own_where_they_have_one() {
        let holds = |at_once, beside, names| holding(at_once, beside).holds(&events(names));
        assert!(
            holds(5, 0, "r1 r2 r3 r4 r5 task-clock page-faults cs") && holds(0, 0, "task-clock")
        );
        assert!(!holds(5, 0, "r1 r2 r3 r4 r5 cs r6") && !holds(0, 0, "cycles"));
        let six = "cycles instructions r1 r2 r3 r4";
        assert!(holds(4, 2, six) && !holds(4, 1, six) && holds(6, 0, six));
    }

    #[test]
    fn too_many_are_split_into_runs_in_their_order() {
        let seven = events("cycles r1 r2 r3 task-clock r4 r5");
        let runs = holding(3, 0).runs(&seven);
        assert_eq!(runs, [&seven[..3], &seven[3..]]);
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
