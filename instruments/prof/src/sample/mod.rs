//! Samples of a running program: in which function an event, or the clock, found it.
//!
//! A [`Recorder`] says what is sampled and how, [`Recorder::start`] whose threads are. The
//! [`Recording`] that comes of it is to be polled while it runs: [`Recording::poll`] empties the
//! kernel's rings and adds up what it finds, so that an hour takes no more memory than a second.
//! [`Recording::finish`] names the functions and hands over a [`Profile`](crate::profile::Profile).
//!
//! ```no_run
//! use std::time::Duration;
//! use linerate_prof::sample::{Recorder, Target, What};
//!
//! let mut recording = Recorder::new(What::Time { hz: 1000 }).start(Target::Pid(4711))?;
//! recording.run(Duration::from_secs(10))?;
//! for row in recording.finish()?.rows {
//!     println!("{:>8} {}", row.count, row.symbol);
//! }
//! # Ok::<(), linerate_prof::Error>(())
//! ```
//!
//! ```text
//! thread x CPU: event --+
//! thread x CPU: event --+--> ring of the CPU --> note --> in order of time --> tally --> names
//! started later: event -+    (512 KiB)           (maps of each process)       (bounded)  (finish)
//! ```
//!
//! One event for each thread and each CPU, and one ring for each CPU: the kernel gives no ring to an
//! event that is inherited by later threads and not bound to a CPU, and a ring for each thread
//! would be memory that it locks for nothing. A CPU that comes on line during a recording is not
//! sampled.
//! Source: Linux kernel/events/core.c, `perf_mmap` and `perf_event_set_output`.

mod attach;
mod calibrate;
mod child;
mod copy;
mod elf;
mod functions;
mod identity;
mod kallsyms;
mod lookup;
mod maps;
mod note;
mod objects;
mod recorder;
mod recording;
mod remarks;
mod rings;
mod spaces;
mod summary;
mod symbols;
mod tally;
mod threads;
mod tick;

use std::process::Command;

pub use recorder::Recorder;
pub use recording::{Progress, Recording};

/// What a sample is taken of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Time that the target has a CPU: so many samples for each second of it.
    ///
    /// The kernel's `cpu-clock`, a timer that runs while the thread does: it needs no counter of the
    /// CPU, works in a virtual machine, and what sleeps is not sampled. `task-clock` would tick at
    /// the same moments; this is the name under which perf shows such profiles. Each thread begins a
    /// period of its own, so that one which lives shorter than a period gives no sample.
    Time {
        /// Samples for each second of CPU time, from 1 to 100,000; no more than 20,000 where it is not
        /// calibrated what one takes, and no more than take half of the target's CPU time.
        hz: u32,
    },
    /// The kernel's own tick: where it finds the target on a CPU, 100 to 1,000 times in a second as
    /// the kernel was built; [`What::hz`] tells.
    ///
    /// No timer is started for it. Where the interrupts of a timer are dear, as in a virtual
    /// machine, that is nearly the whole cost of a sample. But work that goes in step with the tick
    /// is seen too often or never: timers start at it, and it is at the tick that the scheduler takes
    /// the CPU from a thread. It needs x86-64, the right to see the kernel, and its tracepoints.
    Tick,
    /// An event: one sample for every so many of it.
    Event {
        /// Which.
        trigger: Trigger,
        /// Events for each sample. A prime keeps it out of step with loops. Of `cpu-clock` and
        /// `task-clock`, whose events are nanoseconds, 100,000 at least.
        period: u64,
    },
}

/// An event as the kernel is asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// As one asks for it, and as the profile names it: `L2_LINES_OUT`.
    pub name: String,
    /// `perf_event_attr.type`: 0 hardware, 1 software, 4 raw, or a PMU's own.
    pub type_: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// `perf_event_attr.config1`.
    pub config1: u64,
    /// `perf_event_attr.config2`.
    pub config2: u64,
    /// Its raw code as printed: `r1643`.
    pub raw: Option<String>,
}

/// Whose samples are taken.
#[derive(Debug)]
pub enum Target {
    /// The thread that calls [`Recorder::start`], and no other.
    ThisThread,
    /// Every thread of this process, and those that it will start; also the one that polls.
    ThisProcess,
    /// Every thread of that process, and those that it will start; not the processes that it starts.
    /// Refused where /proc is of another PID namespace.
    Pid(u32),
    /// A program that is started for it, from its first instruction, and all processes that it
    /// starts in turn. The thread that starts it ends at once: the command must not ask to be killed
    /// with it (`PR_SET_PDEATHSIG`). The kernel ends the sampling of what runs a set-user-ID program.
    Child(Command),
}

impl What {
    /// Samples for each second of CPU time; `None` of an event, and of a tick of which the kernel
    /// does not tell.
    #[must_use]
    pub fn hz(&self) -> Option<f64> {
        match self {
            What::Time { hz } => Some(f64::from(*hz)),
            What::Tick => tick::hz(),
            What::Event { .. } => None,
        }
    }
}

impl Trigger {
    /// `PERF_TYPE_HARDWARE`.
    pub const HARDWARE: u32 = 0;
    /// `PERF_TYPE_SOFTWARE`: counted by the kernel, not by the CPU.
    pub const SOFTWARE: u32 = 1;
    /// `PERF_TYPE_RAW`.
    pub const RAW: u32 = 4;

    /// An event of the kernel or of the CPU by its numbers.
    #[must_use]
    pub fn new(name: impl Into<String>, type_: u32, config: u64) -> Trigger {
        let raw = (type_ == Trigger::RAW).then(|| format!("r{config:04x}"));
        Trigger { name: name.into(), type_, config, config1: 0, config2: 0, raw }
    }

    /// The CPU's cycles.
    #[must_use]
    pub fn cycles() -> Trigger {
        Trigger::new("cycles", Trigger::HARDWARE, 0)
    }

    /// Page faults, which any machine counts.
    #[must_use]
    pub fn page_faults() -> Trigger {
        Trigger::new("page-faults", Trigger::SOFTWARE, 2)
    }

    /// Context switches, which any machine counts.
    #[must_use]
    pub fn context_switches() -> Trigger {
        Trigger::new("context-switches", Trigger::SOFTWARE, 3)
    }

    /// Whether it is `cpu-clock` or `task-clock`, whose events are nanoseconds.
    pub(crate) fn is_clock(&self) -> bool {
        self.type_ == Trigger::SOFTWARE && self.config <= 1
    }

    pub(crate) fn of_the_kernel(&self) -> bool {
        self.type_ == Trigger::SOFTWARE
    }
}
