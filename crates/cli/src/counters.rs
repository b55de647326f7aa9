//! Counters of cycles and instructions of this process: of the calling thread, and of all threads
//! started by it or its descendants later.
//!
//! Two separate counters, because the kernel cannot read a group of inherited counters at once. The
//! kernel adds a thread's count to ours when the thread ends, and reads it from the thread while
//! that runs. Source: perf_event_open(2), `inherit` and `read_format`.

use std::fmt;
use std::io;
use std::time::Duration;

use linerate_sys::{Code, Error, Result};
use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter, CounterData};

const WHAT: &str = "cannot count cycles and instructions";

/// The running counters of cycles and instructions.
#[derive(Debug)]
pub struct Counters {
    cycles: Counter,
    instructions: Counter,
    scope: Scope,
}

impl Counters {
    /// Starts the counters, including the kernel's work if that is permitted.
    ///
    /// Start the counters before the threads to be counted; threads that already run are not
    /// counted.
    ///
    /// # Errors
    /// `E-PERM` if the kernel does not permit it, `E-UNSUPPORTED` if the machine has no counters.
    pub fn start() -> Result<Counters> {
        let mut counters = permitted(Counters::open)?;
        counters.cycles.enable().map_err(|e| explain(&e))?;
        counters.instructions.enable().map_err(|e| explain(&e))?;
        Ok(counters)
    }

    fn open(scope: Scope) -> io::Result<Counters> {
        let cycles = counter(Hardware::CPU_CYCLES, scope)?;
        let instructions = counter(Hardware::INSTRUCTIONS, scope)?;
        Ok(Counters { cycles, instructions, scope })
    }

    /// Stops the counters and returns the counts.
    ///
    /// # Errors
    /// `E-SYSTEM` if the counters cannot be read, `E-BUSY` if others used them for part of the
    /// time: the counts would be extrapolations.
    pub fn stop(mut self) -> Result<Counted> {
        let system = |e: io::Error| Error::new(Code::System, WHAT, e.to_string());
        self.cycles.disable().map_err(system)?;
        self.instructions.disable().map_err(system)?;
        let cycles = whole(&self.cycles.read_full().map_err(system)?)?;
        let instructions = whole(&self.instructions.read_full().map_err(system)?)?;
        Ok(Counted { cycles, instructions, scope: self.scope })
    }
}

/// A running counter of cycles alone, which takes one of the CPU's few counters.
#[derive(Debug)]
pub struct Cycles(Counter);

impl Cycles {
    /// Starts the counter, as [`Counters::start`] does.
    ///
    /// # Errors
    /// As there.
    pub fn start() -> Result<Cycles> {
        let mut cycles = permitted(|scope| counter(Hardware::CPU_CYCLES, scope))?;
        cycles.enable().map_err(|e| explain(&e))?;
        Ok(Cycles(cycles))
    }

    /// Returns the cycles so far; NaN if they are not known, or were counted for a part of the
    /// time only.
    pub fn read(&mut self) -> f64 {
        let cycles = self.0.read_full().ok().and_then(|data| whole(&data).ok());
        cycles.map_or(f64::NAN, |cycles| cycles as f64)
    }
}

/// Counts of cycles and instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Cycles of the core's clock, whose rate varies.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// The privilege levels at which events were counted.
    pub scope: Scope,
}

/// The privilege levels at which events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The program, and the kernel on its behalf.
    UserAndKernel,
    /// The program only, because the kernel does not permit more.
    User,
}

impl Scope {
    /// Returns the printed name of the scope: `user+kernel` or `user`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::UserAndKernel => "user+kernel",
            Scope::User => "user",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns a counter for the calling thread and the threads that it starts later, on any CPU; the
/// counter is not enabled yet.
fn counter(event: impl Event, scope: Scope) -> io::Result<Counter> {
    Builder::new(event)
        .observe_self()
        .any_cpu()
        .inherit(true)
        .exclude_hv(true)
        .exclude_kernel(scope == Scope::User)
        .build()
}

/// Opens counters of the kernel's work, too, if that is permitted.
fn permitted<T>(open: impl Fn(Scope) -> io::Result<T>) -> Result<T> {
    let opened = match open(Scope::UserAndKernel) {
        Err(e) if refused(&e) => open(Scope::User),
        other => other,
    };
    opened.map_err(|e| explain(&e))
}

fn refused(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::PermissionDenied
}

fn explain(e: &io::Error) -> Error {
    let why = format!("perf_event_open: {e}");
    if refused(e) {
        return Error::new(Code::Permission, WHAT, why)
            .fix("sysctl kernel.perf_event_paranoid=2, or run with CAP_PERFMON");
    }
    match e.kind() {
        // ENOENT, ENODEV and EOPNOTSUPP are the errors of a machine without a PMU.
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => {
            let errno = e.raw_os_error().unwrap_or(0);
            let why = format!(
                "this machine shows no performance counters (perf_event_open: errno {errno})"
            );
            Error::new(Code::Unsupported, WHAT, why)
                .fix("run on hardware, or give the virtual machine a PMU")
        }
        _ => Error::new(Code::System, WHAT, why),
    }
}

/// Returns the count, or an error if it covers only a part of the time.
fn whole(data: &CounterData) -> Result<u64> {
    let enabled = data.time_enabled().unwrap_or(Duration::ZERO);
    let running = data.time_running().unwrap_or(Duration::ZERO);
    // A counter starts a little after it is enabled: a difference of a tenth of a per cent is not
    // sharing.
    if running + enabled / 1000 >= enabled {
        return Ok(data.count());
    }
    let why = format!("the counters counted for this process in {running:.1?} of {enabled:.1?}");
    Err(Error::new(Code::Busy, WHAT, why).fix("end the other users of the counters (perf)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::unless;

    /// Returns running counters; `None`, with a message, if the kernel permits none, or the machine
    /// has none.
    fn start() -> Option<Counters> {
        unless(Counters::start(), |e| matches!(e.code, Code::Permission | Code::Unsupported))
    }

    /// Stops counters; returns `None`, with a message, if other programs used them meanwhile.
    fn stop(counters: Counters) -> Option<Counted> {
        unless(counters.stop(), |e| e.code == Code::Busy)
    }

    #[test]
    fn twice_the_work_is_twice_the_instructions_on_every_thread() {
        const TURNS: u64 = 20_000_000;
        let work = |n: u64| (0..n).fold(0u64, |a, i| std::hint::black_box(a ^ i));
        let count = |turns| {
            let counters = start()?;
            let thread = std::thread::spawn(move || work(turns));
            work(turns);
            thread.join().unwrap();
            stop(counters)
        };
        let (Some(one), Some(two)) = (count(TURNS), count(2 * TURNS)) else { return };
        let ratio = two.instructions as f64 / one.instructions as f64;
        assert!((ratio - 2.0).abs() < 0.02 && one.cycles > 0, "{one:?} {two:?}");
        assert!(one.instructions > 2 * TURNS, "one thread's only: {one:?}");
    }

    /// Checks counting over threads with a counter of time, which every machine has and which is
    /// read in the same way.
    #[test]
    fn work_of_later_and_of_ended_threads_is_counted() {
        use perf_event::events::Software;
        use rustix::io::Errno;
        use rustix::time::{ClockId, clock_gettime};
        use std::time::Instant;
        let busy_ms = |ms: i64| {
            let now = || clock_gettime(ClockId::ThreadCPUTime);
            let start = now();
            while (now().tv_sec - start.tv_sec) * 1000 + (now().tv_nsec - start.tv_nsec) / 1_000_000
                < ms
            {}
        };
        let mut clock = match counter(Software::TASK_CLOCK, Scope::UserAndKernel) {
            // Every kernel has this clock, but may be built without events.
            Err(e) if refused(&e) || e.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
                return println!("skipped: perf_event_open: {e}");
            }
            clock => clock.unwrap(),
        };
        busy_ms(400);
        clock.enable().unwrap();
        let begun = Instant::now();
        std::thread::spawn(move || busy_ms(40)).join().unwrap();
        clock.disable().unwrap();
        let lasted = begun.elapsed();
        busy_ms(400);
        let counted = Duration::from_nanos(clock.read_full().unwrap().count());
        // A hypervisor may take the CPU: then wall time goes on and a thread's CPU time does not.
        // So the upper bound is the wall time, of which each of the two threads had a part.
        assert!(counted >= Duration::from_millis(39), "{counted:?} for 40 ms");
        assert!(counted <= 2 * lasted, "{counted:?} in {lasted:?} of two threads in turn");
    }

    #[test]
    fn work_before_the_start_is_not_counted() {
        let work = |n: u64| (0..n).fold(0u64, |a, i| std::hint::black_box(a ^ i));
        work(50_000_000);
        let Some(counters) = start() else { return };
        let Some(counted) = stop(counters) else { return };
        assert!(counted.instructions < 5_000_000, "{counted:?}");
    }

    #[test]
    fn a_refusal_has_a_remedy() {
        let denied = explain(&io::Error::from_raw_os_error(13));
        assert_eq!(denied.code, Code::Permission);
        assert!(denied.fix.contains("perf_event_paranoid"));
        let absent = explain(&io::Error::from_raw_os_error(2));
        assert_eq!(absent.code, Code::Unsupported);
        assert!(absent.why.contains("no performance counters"));
    }
}
