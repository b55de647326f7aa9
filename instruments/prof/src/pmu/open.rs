//! Opening of counters for the calling thread, and the meaning of the kernel's refusals.
//!
//! Source: perf_event_open(2), `ERRORS`.

use std::io;
use std::time::Duration;

use linerate_sys::{Code, Error};
use perf_event::events::Software;
use perf_event::{Builder, Counter, Group};
use rustix::io::Errno;

use super::Scope;
use super::event::Event;

/// A group of counters of the calling thread, enabled, disabled and read together.
#[derive(Debug)]
pub(super) struct Opened {
    leader: Counter,
    counters: Vec<Counter>,
}

/// The reason why a group was not opened.
#[derive(Debug)]
pub(super) struct Refused {
    /// Index of the event that the kernel refused; the number of events if it refused another step.
    pub index: usize,
    pub error: io::Error,
}

impl Refused {
    /// Returns the error for a refusal of `events`.
    ///
    /// The group as a whole is refused before any event of it is tried. Then the remedy is that of
    /// the event which asks for most.
    pub(super) fn explain(&self, events: &[Event]) -> Error {
        let of_the_kernel = || events.iter().find(|event| is_of_the_kernel(event));
        let event = events.get(self.index).or_else(of_the_kernel).or(events.first());
        let what = event.map_or("cannot count".into(), |event| format!("cannot count {event}"));
        let (code, why, fix) = remedy(event, &self.error);
        match event {
            _ if fix.is_empty() => Error::new(code, what, why),
            None => Error::new(code, what, why).fix(fix),
            Some(event) => {
                Error::new(code, what, why).fix(format!("{fix}; instead: {}", event.fallback()))
            }
        }
    }
}

/// The counts of a group since the group was enabled.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    pub counts: Vec<u64>,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

impl Opened {
    /// Opens all of `events` or none, and enables them.
    pub(super) fn of_this_thread(events: &[Event], scope: Scope) -> Result<Opened, Refused> {
        let none = |error| Refused { index: events.len(), error };
        // The group's leader counts nothing; it exists because a group is read through its leader.
        let mut leader = of_thread(&mut Group::builder(), scope).build().map_err(none)?;
        let mut counters = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let counter = of_thread(&mut builder(event), scope).build_with_group(&mut leader);
            counters.push(counter.map_err(|error| Refused { index, error })?);
        }
        leader.enable_group().map_err(none)?;
        Ok(Opened { leader, counters })
    }

    /// Reads all counters together. Cost: one read(2).
    pub(super) fn read(&mut self) -> io::Result<Reading> {
        let data = self.leader.read_group()?;
        // A read of the group returns all of its members, so the 0 for a missing one is never used.
        let value = |counter: &Counter| data.get(counter).map_or(0, |entry| entry.value());
        Ok(Reading {
            counts: self.counters.iter().map(value).collect(),
            enabled_ns: ns(data.time_enabled()),
            running_ns: ns(data.time_running()),
        })
    }
}

/// Returns a time from the kernel in nanoseconds.
pub(crate) fn ns(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns a builder for `event`, to which the caller adds the target.
pub(crate) fn builder(event: &Event) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    let attrs = builder.attrs_mut();
    (attrs.type_, attrs.config) = (event.type_, event.config);
    builder
}

/// Sets the builder's target: the calling thread alone, on any CPU.
fn of_thread<'a>(builder: &'a mut Builder<'static>, scope: Scope) -> &'a mut Builder<'static> {
    builder.observe_self().any_cpu().exclude_hv(true).exclude_kernel(scope == Scope::User)
}

/// Returns the code, reason and remedy of a refusal of `event` for a thread; the remedy is empty if
/// there is none.
pub(crate) fn remedy(event: Option<&Event>, e: &io::Error) -> (Code, String, String) {
    // Level 2 allows a process to count its own code, level 1 also the kernel's work for the
    // process.
    let level = if event.is_some_and(is_of_the_kernel) { 1 } else { 2 };
    remedy_at(level, event, e)
}

/// Returns the code, reason and remedy of a refusal of `event` for all that runs on a CPU, which
/// level 0 allows; the remedy is empty if there is none.
pub(crate) fn remedy_on_cpus(event: &Event, e: &io::Error) -> (Code, String, String) {
    remedy_at(0, Some(event), e)
}

/// Returns the code, reason and remedy of a refusal of `event`, which needs at most `level` of
/// kernel.perf_event_paranoid.
fn remedy_at(level: u8, event: Option<&Event>, e: &io::Error) -> (Code, String, String) {
    let why = format!("perf_event_open: {e}");
    match Errno::from_io_error(e) {
        Some(errno @ (Errno::ACCESS | Errno::PERM)) => {
            let mut fix =
                format!("sysctl kernel.perf_event_paranoid={level}, or run with CAP_PERFMON");
            // perf_event_paranoid refuses with EACCES, a container's seccomp filter with EPERM.
            if errno == Errno::PERM {
                fix = format!("{fix}; in a container: {SECCOMP}");
            }
            (Code::Permission, why, fix)
        }
        Some(Errno::NOSYS) => {
            let why = format!("{why}: a seccomp filter hides the call, or the kernel lacks it");
            let fix = format!("in a container: {SECCOMP}; else a kernel with CONFIG_PERF_EVENTS");
            (Code::Unsupported, why, fix)
        }
        // These errors come from a machine without counters, or from a driver that does not know
        // the event.
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::INVAL) => {
            if event.is_some_and(|event| !event.is_software()) && !has_pmu() {
                let why = format!("{NO_COUNTERS} ({why})");
                let fix = "run on hardware, or give the virtual machine a PMU";
                return (Code::Unsupported, why, fix.into());
            }
            let why = format!("this CPU or kernel does not have it ({why})");
            (Code::Unsupported, why, "linerate profile events lists what it has".into())
        }
        Some(Errno::MFILE) => (Code::System, why, "ulimit -n 4096".into()),
        Some(Errno::NFILE) => (Code::System, why, "as root: raise sysctl fs.file-max".into()),
        _ => (Code::System, why, String::new()),
    }
}

const NO_COUNTERS: &str = "this machine shows no performance counters";

/// The words of the reasons where the kernel, or a filter of system calls, refuses events to this
/// process, and where the machine has no counters.
const REFUSALS: [&str; 5] = [
    "perf_event_open: Operation not permitted",
    "perf_event_open: Permission denied",
    "perf_event_open: Function not implemented",
    "perf_event_open: No such device",
    NO_COUNTERS,
];

/// Returns true if the reason of an `E-PERM` or `E-UNSUPPORTED`, or a text that contains it, is one
/// of those.
pub(crate) fn is_refusal(why: &str) -> bool {
    REFUSALS.iter().any(|words| why.contains(words))
}

/// Returns true if `e` says that the kernel, or a filter of system calls, refuses events to this
/// process, that the machine has no counters, or that this user may lock too little memory for the
/// rings of a recording. Tests skip by it.
#[doc(hidden)]
#[must_use]
pub fn is_refused(e: &Error) -> bool {
    match e.code {
        Code::Permission | Code::Unsupported => is_refusal(&e.why),
        Code::Memory => e.why.contains("kernel.perf_event_mlock_kb"),
        _ => false,
    }
}

/// Returns true if this process may use the CPU's counters: tries the one event that every CPU has.
fn has_pmu() -> bool {
    Opened::of_this_thread(&[Event::new("cycles", Event::HARDWARE, 0)], Scope::User).is_ok()
}

/// The remedy for a container's filter that refuses the call.
const SECCOMP: &str = "docker run --cap-add PERFMON, or a seccomp profile that allows \
     perf_event_open";

/// Returns true if `event` counts the kernel's work only, so that it reads 0 when the kernel is
/// excluded.
///
/// Source: `perf_swevent_event` gets the registers of the kernel, and `exclude_kernel` drops it.
pub(super) fn is_of_the_kernel(event: &Event) -> bool {
    const CONTEXT_SWITCHES: u64 = 3;
    const MIGRATIONS: u64 = 4;
    event.type_ == Event::SOFTWARE && matches!(event.config, CONTEXT_SWITCHES | MIGRATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(names: &[&str], index: usize, errno: Errno) -> Error {
        let events: Vec<Event> = names.iter().map(|name| Event::parse(name).unwrap()).collect();
        Refused { index, error: errno.into() }.explain(&events)
    }

    #[test]
    fn without_the_kernels_share_its_own_events_read_zero() {
        let switches = [Event::parse("context-switches").unwrap()];
        let count = |scope| {
            let mut opened = match Opened::of_this_thread(&switches, scope) {
                Ok(opened) => opened,
                Err(refused) => {
                    let e = refused.explain(&switches);
                    assert!(is_refused(&e), "{e}");
                    return None;
                }
            };
            std::thread::sleep(Duration::from_millis(1));
            opened.read().unwrap().counts.first().copied()
        };
        assert_eq!(count(Scope::User).unwrap_or(0), 0);
        match count(Scope::UserAndKernel) {
            Some(count) => assert!(count > 0),
            None => println!("skipped: the kernel does not let us see its share"),
        }
    }

    #[test]
    fn a_refusal_names_event_remedy_and_fallback_and_a_filter_of_a_container() {
        let refused = |errno| explained(&["cycles"], 0, errno);
        let (denied, hidden) = (refused(Errno::PERM), refused(Errno::NOSYS));
        assert_eq!((denied.code, hidden.code), (Code::Permission, Code::Unsupported));
        for e in [&denied, &hidden] {
            assert!(e.what.contains("cycles") && e.fix.contains("seccomp profile"), "{e}");
            assert!(e.fix.contains("--cap-add PERFMON"), "{e}");
            assert!(e.fix.contains("; instead: CPU time in ticks"), "{e}");
        }
        assert!(denied.fix.contains("perf_event_paranoid=2"), "{denied}");
        assert!(hidden.fix.contains("CONFIG_PERF_EVENTS"), "{hidden}");
        // The kernel's own refusal is no filter's.
        let own = refused(Errno::ACCESS);
        assert!(own.code == Code::Permission && !own.fix.contains("seccomp"), "{own}");
        let absent = explained(&["page-faults"], 0, Errno::NOENT);
        assert_eq!(absent.code, Code::Unsupported);
        assert!([&denied, &hidden, &own].into_iter().all(is_refused) && !is_refused(&absent));
        assert!(absent.why.contains("does not have it"), "{absent}");
    }

    #[test]
    fn events_of_whole_cpus_need_a_lower_level() {
        let cycles = Event::parse("cycles").unwrap();
        let (code, _, fix) = remedy_on_cpus(&cycles, &Errno::ACCESS.into());
        assert_eq!(code, Code::Permission);
        assert_eq!(fix, "sysctl kernel.perf_event_paranoid=0, or run with CAP_PERFMON");
    }

    #[test]
    fn a_group_that_is_refused_as_a_whole_is_explained_by_what_asks_for_most() {
        let both = ["task-clock", "context-switches"];
        let e = explained(&both, 2, Errno::ACCESS);
        assert!(e.what.contains("context-switches"), "{e}");
        assert!(e.fix.contains("perf_event_paranoid=1"), "{e}");
        let e = explained(&both, 0, Errno::ACCESS);
        assert!(e.fix.contains("perf_event_paranoid=2"), "{e}");
        let e = explained(&both[..1], 1, Errno::ACCESS);
        assert!(e.what.contains("task-clock") && e.fix.contains("instead: "), "{e}");
    }
}
