//! Counts of one thread in a window of time.
//!
//! The counters run from when they are opened; an edge of a window reads them, all in one read(2),
//! and a window is the difference of two readings. So between its edges runs no code of ours, and
//! what is measured is what would have run anyway. An edge costs a system call, about 2900 ticks of
//! a 2.6 GHz time stamp counter on one machine with a PMU in a guest. Set edges around a batch or a
//! run, never around a packet.
//!
//! A figure is the event's own count or none: counters that others had for part of the time give
//! an extrapolation, which [`Counting::read`] refuses and [`Counting::read_shared`] marks.

use std::io;
use std::time::Instant;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::Scope;
use super::capacity::{Capacity, capacity};
use super::event::{Event, Quantity};
use super::open::{Opened, Reading, Refused, is_of_the_kernel};

/// Events of one thread that are being counted.
#[derive(Debug)]
pub struct Counting {
    opened: Opened,
    events: Vec<Event>,
    scope: Scope,
    base: Reading,
    started: Instant,
}

/// Counts of a thread in a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Counts {
    /// The events' counts, in the order of the request.
    pub counted: Vec<Count>,
    /// Wall time from the start of the window to its reading, in nanoseconds.
    pub wall_ns: u64,
    /// Time that the thread ran with its counters enabled, in nanoseconds.
    pub enabled_ns: u64,
    /// Part of that time in which the events had counters, in nanoseconds.
    pub running_ns: u64,
    /// Privilege levels counted: `user+kernel` or `user`.
    pub scope: &'static str,
}

/// An event and its number of occurrences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The counted event.
    pub event: Event,
    /// Number of its occurrences.
    pub count: u64,
}

impl Counting {
    /// Opens `events` as one group for the calling thread, and starts a window. Opens no event if
    /// one is refused.
    ///
    /// The kernel's share is counted too, if it lets us.
    ///
    /// # Errors
    /// `E-PERM` if the kernel does not let us, `E-UNSUPPORTED` without counters, for an event that
    /// this CPU does not have, and for more events than count at once; each with what to do.
    pub fn of_this_thread(events: &[Event]) -> Result<Counting> {
        if events.is_empty() {
            return Err(Error::new(Code::Unsupported, "cannot count", "no event is named")
                .fix("linerate profile events lists what there is"));
        }
        let hardware = events.iter().filter(|event| !event.is_software()).count();
        // The kernel refuses a single event that has no counter, but may accept a group that is too
        // large, whose events then read 0.
        if hardware > 1 && capacity().at_once > 0 && !capacity().holds(events) {
            return Err(too_many(events, capacity()));
        }
        let (opened, scope) = open(events)?;
        let base = Reading { counts: vec![0; events.len()], ..Reading::default() };
        let events = events.to_vec();
        let mut counting = Counting { opened, events, scope, base, started: Instant::now() };
        counting.start()?;
        Ok(counting)
    }

    /// Starts a window now. Cost: one read(2).
    ///
    /// # Errors
    /// `E-SYSTEM` if the counters cannot be read.
    pub fn start(&mut self) -> Result<()> {
        self.base = self.opened.read().map_err(|e| system(&e))?;
        self.started = Instant::now();
        Ok(())
    }

    /// Returns the counts since the window started, and leaves the window open. Cost: one read(2).
    ///
    /// # Errors
    /// `E-BUSY` if the counters were others' for part of the time, `E-SYSTEM` if they cannot be
    /// read.
    pub fn read(&mut self) -> Result<Counts> {
        let counts = self.read_shared()?;
        if counts.is_whole() {
            return Ok(counts);
        }
        let why = format!("the counters were ours for {:.1} % of the time", counts.running_pct());
        let fix = "end the other users of the counters (perf), or count fewer events";
        Err(Error::new(Code::Busy, "cannot count the whole window", why).fix(fix))
    }

    /// Returns the counts without extrapolation, even if the events lacked counters for part of the
    /// time.
    ///
    /// # Errors
    /// `E-SYSTEM` if the counters cannot be read.
    pub fn read_shared(&mut self) -> Result<Counts> {
        let now = self.opened.read().map_err(|e| system(&e))?;
        let wall_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counted = self.events.iter().zip(now.counts.iter().zip(&self.base.counts));
        let counted = counted
            // The kernel's counters are 64 bits wide and never decrease.
            .map(|(event, (now, base))| Count {
                event: event.clone(),
                count: now.wrapping_sub(*base),
            })
            .collect();
        Ok(Counts {
            counted,
            wall_ns,
            enabled_ns: now.enabled_ns.saturating_sub(self.base.enabled_ns),
            running_ns: now.running_ns.saturating_sub(self.base.running_ns),
            scope: self.scope.as_str(),
        })
    }

    /// Returns the events counted.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Counts {
    /// Returns the count of `quantity`; `None` if it was not counted.
    #[must_use]
    pub fn of(&self, quantity: Quantity) -> Option<u64> {
        let is = |count: &&Count| count.event.quantity == Some(quantity);
        self.counted.iter().find(is).map(|count| count.count)
    }

    /// Returns the count of the event of that name; `None` if it was not counted.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u64> {
        self.counted.iter().find(|count| count.event.name == name).map(|count| count.count)
    }

    /// Returns true if the events had counters during the whole window.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // The kernel starts the counters a little after it enables the group, so a thousandth is
        // tolerated. A window without CPU time counts as whole.
        self.running_ns.saturating_add(self.enabled_ns / 1000) >= self.enabled_ns
    }

    /// Returns the share of the time in which the events had counters, in per cent.
    #[must_use]
    pub fn running_pct(&self) -> f64 {
        if self.enabled_ns == 0 {
            return 100.0;
        }
        100.0 * self.running_ns as f64 / self.enabled_ns as f64
    }
}

fn open(events: &[Event]) -> Result<(Opened, Scope)> {
    let mut scope = Scope::UserAndKernel;
    let mut opened = Opened::of_this_thread(events, scope);
    // If the kernel refuses to count its own work, count user space alone. Events that only the
    // kernel causes would then always read 0, so for them return the error.
    if let Err(Refused { error, .. }) = &opened
        && error.kind() == io::ErrorKind::PermissionDenied
        && !events.iter().any(is_of_the_kernel)
    {
        scope = Scope::User;
        opened = Opened::of_this_thread(events, scope);
    }
    let opened = opened.map_err(|refused| {
        let Refused { index, error } = &refused;
        // If the refused event can be counted alone, the group is too large. A group may be too
        // large below the number of counters, because not every counter counts every event.
        let alone = events.get(*index..=*index).filter(|_| *index > 0);
        if error.kind() == io::ErrorKind::InvalidInput
            && alone.is_some_and(|event| Opened::of_this_thread(event, Scope::User).is_ok())
        {
            let (run, rest) = events.split_at(*index);
            let why = format!("this machine counts the first {index} of them at once");
            return in_runs(events, why, &[run, rest]);
        }
        refused.explain(events)
    })?;
    Ok((opened, scope))
}

fn too_many(events: &[Event], capacity: &Capacity) -> Error {
    in_runs(events, format!("this machine counts {capacity}"), &capacity.runs(events))
}

fn in_runs(events: &[Event], why: String, runs: &[&[Event]]) -> Error {
    let hardware = events.iter().filter(|event| !event.is_software()).count();
    let what = format!("cannot count {hardware} events at once");
    let names = |run: &&[Event]| run.iter().map(|e| e.name.as_str()).collect::<Vec<_>>().join(",");
    let names = runs.iter().map(names).collect::<Vec<_>>().join(" then ");
    Error::new(Code::Unsupported, what, why)
        .fix(format!("count them in {} runs: {names}", runs.len()))
}

fn system(e: &io::Error) -> Error {
    Error::new(Code::System, "cannot read the counters", e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(enabled_ns: u64, running_ns: u64) -> Counts {
        let event = Event::parse("task-clock").unwrap();
        Counts {
            counted: vec![Count { event, count: 7 }],
            wall_ns: enabled_ns,
            enabled_ns,
            running_ns,
            scope: "user",
        }
    }

    #[test]
    fn counters_that_were_shared_are_marked_with_their_share() {
        let half = counts(1_000_000, 500_000);
        assert!(!half.is_whole());
        assert_eq!(half.running_pct(), 50.0);
        let whole = counts(1_000_000, 999_500);
        assert!(whole.is_whole());
        assert!(counts(0, 0).is_whole());
    }

    #[test]
    fn too_many_events_are_told_how_many_fit_and_in_which_runs() {
        let events: Vec<Event> =
            ["r1", "r2", "r3"].iter().map(|name| Event::parse(name).unwrap()).collect();
        let two = Capacity { at_once: 2, beside: 0, why_none: None, generic: Vec::new() };
        let e = too_many(&events, &two);
        assert!(e.what.contains("3 events"), "{e}");
        assert!(e.why.contains("2 events at once"), "{e}");
        assert!(e.fix.contains("2 runs: r0001,r0002 then r0003"), "{e}");
        assert_eq!(Counting::of_this_thread(&[]).unwrap_err().code, Code::Unsupported);
    }
}
