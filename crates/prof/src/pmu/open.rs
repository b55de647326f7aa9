//! Opening counters of the calling thread, and what it means when the kernel refuses.
//!
//! Source: perf_event_open(2), `ERRORS`.

use std::io;

use linerate_sys::{Code, Error};
use perf_event::events::Software;
use perf_event::{Builder, Counter, Group, GroupData};

use super::event::{Event, TYPE_HARDWARE, TYPE_SOFTWARE};
use crate::count::Scope;

/// Counters of the calling thread that the kernel switches on, off and reads as one.
#[derive(Debug)]
pub(super) struct Opened {
    leader: Counter,
    counters: Vec<Counter>,
}

/// Why a group was not opened.
#[derive(Debug)]
pub(super) struct Refused {
    /// Which of the events the kernel refused; as many as there are if it was none of them.
    pub index: usize,
    pub error: io::Error,
}

/// What a group says at one moment, since it was enabled.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    pub counts: Vec<u64>,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

impl Opened {
    /// Opens all of `events` or none, and switches them on.
    pub(super) fn of_this_thread(events: &[Event], scope: Scope) -> Result<Opened, Refused> {
        let none = |error| Refused { index: events.len(), error };
        // The leader counts nothing: it is what the others are read by.
        let mut leader = of_thread(&mut Group::builder(), scope).build().map_err(none)?;
        let mut counters = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let mut builder = builder(event);
            let counter = of_thread(&mut builder, scope).build_with_group(&mut leader);
            counters.push(counter.map_err(|error| Refused { index, error })?);
        }
        leader.enable_group().map_err(none)?;
        Ok(Opened { leader, counters })
    }

    /// Reads all of them at once. Cost: one read(2).
    pub(super) fn read(&mut self) -> io::Result<Reading> {
        let data = self.leader.read_group()?;
        let counts = self.counters.iter().map(|counter| value(&data, counter)).collect();
        let ns = |time: Option<std::time::Duration>| {
            time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        Ok(Reading {
            counts,
            enabled_ns: ns(data.time_enabled()),
            running_ns: ns(data.time_running()),
        })
    }
}

fn value(data: &GroupData, counter: &Counter) -> u64 {
    // Every member of the group is in what the group reads.
    data.get(counter).map_or(0, |entry| entry.value())
}

fn builder(event: &Event) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    let attrs = builder.attrs_mut();
    (attrs.type_, attrs.config) = event.attr();
    builder
}

/// The calling thread alone, on any CPU.
fn of_thread<'a>(builder: &'a mut Builder<'static>, scope: Scope) -> &'a mut Builder<'static> {
    builder.observe_self().any_cpu().exclude_hv(true).exclude_kernel(scope == Scope::User)
}

/// Whether the CPU's counters are there for us at all: the one event that every CPU has opens.
pub(super) fn has_pmu() -> bool {
    let cycles = [Event {
        name: "cycles".into(),
        type_: TYPE_HARDWARE,
        config: 0,
        raw: None,
        quantity: None,
    }];
    Opened::of_this_thread(&cycles, Scope::User).is_ok()
}

/// The error for `event`, alone or among others, with its remedy and what there is instead.
pub(super) fn explain(event: Option<&Event>, e: &io::Error) -> Error {
    let what = event.map_or("cannot count".into(), |event| format!("cannot count {event}"));
    let instead = event.map_or(String::new(), |event| format!("; instead: {}", event.fallback()));
    let why = format!("perf_event_open: {e}");
    match e.kind() {
        // EACCES, EPERM.
        io::ErrorKind::PermissionDenied => {
            // 2 leaves us our own doings, 1 the kernel's on our behalf too.
            let level = if event.is_some_and(is_of_the_kernel) { 1 } else { 2 };
            let fix = format!("sysctl kernel.perf_event_paranoid={level}, or run with CAP_PERFMON");
            Error::new(Code::Permission, what, why).fix(format!("{fix}{instead}"))
        }
        // ENOENT, ENODEV, EOPNOTSUPP, EINVAL: of an event that needs a counter, and of one that
        // this CPU's driver does not know.
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => {
            if event.is_some_and(|event| !event.is_software()) && !has_pmu() {
                let why = format!("this machine shows no performance counters ({why})");
                let fix = "run on hardware, or give the virtual machine a PMU";
                return Error::new(Code::Unsupported, what, why).fix(format!("{fix}{instead}"));
            }
            let why = format!("this CPU or kernel does not have it ({why})");
            let fix = "linerate profile events lists what it has";
            Error::new(Code::Unsupported, what, why).fix(format!("{fix}{instead}"))
        }
        _ => match e.raw_os_error() {
            Some(EMFILE) => Error::new(Code::System, what, why).fix("ulimit -n 4096"),
            _ => Error::new(Code::System, what, why),
        },
    }
}

const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Whether the kernel's own doings are what `event` counts: without them it reads 0.
///
/// Source: `perf_swevent_event` is told the registers of the kernel, and `exclude_kernel` drops it.
pub(super) fn is_of_the_kernel(event: &Event) -> bool {
    const CONTEXT_SWITCHES: u64 = 3;
    const MIGRATIONS: u64 = 4;
    event.type_ == TYPE_SOFTWARE && matches!(event.config, CONTEXT_SWITCHES | MIGRATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_event_remedy_and_fallback() {
        let event = Event::parse("cycles").unwrap();
        let denied = explain(Some(&event), &io::Error::from_raw_os_error(13));
        assert_eq!(denied.code, Code::Permission);
        assert!(denied.what.contains("cycles"), "{denied}");
        assert!(denied.fix.contains("perf_event_paranoid"), "{denied}");
        assert!(denied.fix.contains("CPU time in ticks"), "{denied}");
    }

    #[test]
    fn without_the_kernels_share_its_own_events_read_zero() {
        let switches = [Event::parse("context-switches").unwrap()];
        let count = |scope| {
            let mut opened = Opened::of_this_thread(&switches, scope).ok()?;
            std::thread::sleep(std::time::Duration::from_millis(1));
            opened.read().unwrap().counts.first().copied()
        };
        assert_eq!(count(Scope::User).unwrap_or(0), 0);
        match count(Scope::UserAndKernel) {
            Some(count) => assert!(count > 0),
            None => println!("skipped: the kernel does not let us see its share"),
        }
    }

    #[test]
    fn an_event_that_the_kernel_does_not_know_is_unsupported() {
        let event = Event::parse("page-faults").unwrap();
        let absent = explain(Some(&event), &io::Error::from_raw_os_error(2));
        assert_eq!(absent.code, Code::Unsupported);
        assert!(absent.why.contains("does not have it"), "{absent}");
    }
}
