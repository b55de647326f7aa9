//! Samples of our own threads: the functions that ran when an event occurred or a clock ticked.
//!
//! A [`Recorder`] says what is sampled and how; [`Recorder::start`] takes the threads that are
//! sampled. The [`Recording`] that it returns must be polled while it runs: [`Recording::poll`]
//! empties the kernel's rings and adds up what it finds, so that an hour takes no more memory than
//! a second.
//! [`Recording::finish`] names the functions and hands over a [`Profile`](crate::profile::Profile).
//!
//! Other processes are perf's: [`read`](crate::read) makes a profile of what `perf script` prints.
//!
//! ```no_run
//! use std::time::Duration;
//! use linerate_prof::sample::{Recorder, Target, What};
//!
//! let mut recording = Recorder::new(What::Time { hz: 997 }).start(Target::ThisProcess)?;
//! std::thread::sleep(Duration::from_millis(100));
//! recording.poll(Duration::ZERO)?;
//! for row in recording.finish()?.rows {
//!     println!("{:>8} {}", row.count, row.symbol);
//! }
//! # Ok::<(), linerate_prof::Error>(())
//! ```
//!
//! ```text
//! thread x CPU: event --+
//! thread x CPU: event --+--> ring of the CPU --> tally --> names
//! started later: event -+    (512 KiB)          (bounded)  (finish)
//! ```
//!
//! One event for each thread and each CPU, and one ring for each CPU: the kernel gives no ring to
//! an event that is inherited by later threads and not bound to a CPU, and a ring for each thread
//! would be memory that it locks for nothing. A CPU that comes on line during a recording is not
//! sampled.
//! Source: Linux kernel/events/core.c, `perf_mmap` and `perf_event_set_output`.

mod attach;
mod calibrate;
pub(crate) mod kallsyms;
mod recorder;
mod remarks;
mod rings;
mod summary;
mod symbols;
mod tally;

use crate::pmu::Event;

pub use kallsyms::size_kernel;
pub use recorder::{Recorder, Recording, Trial};
pub use remarks::{KERNEL_LEFT_OUT, cost_remark};

/// The condition for taking a sample: time or an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// CPU time of the target: this many samples a second.
    ///
    /// The kernel's `cpu-clock`, a timer that runs while the thread does: it needs no counter of
    /// the CPU, works in a virtual machine, and what sleeps is not sampled. `task-clock` would tick
    /// at the same moments; this is the name under which perf shows such profiles. Each thread
    /// begins a period of its own, so that one which lives shorter than a period gives no sample.
    Time {
        /// Samples for each second of CPU time, from 1 to 100,000; at most 20,000 without
        /// calibration. The samples may take at most half of the target's CPU time.
        hz: u32,
    },
    /// An event: one sample for each `period` occurrences.
    Event {
        /// The event to sample by.
        event: Event,
        /// Events for each sample. A prime avoids sampling in step with loops. At least 100,000 for
        /// `cpu-clock` and `task-clock`, whose events are nanoseconds.
        period: u64,
    },
}

/// Threads that are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The thread that calls [`Recorder::start`] only.
    ThisThread,
    /// Every thread of this process, present and future, including the one that polls.
    ThisProcess,
    /// Everything that runs on any CPU: programs, the kernel's threads, interrupts, and the idle
    /// task. Functions of other programs are one row, `USER`, as in the posts. Requires
    /// CAP_PERFMON.
    Machine,
}

impl What {
    /// Returns the samples for each second of CPU time; `None` for an event.
    #[must_use]
    pub fn hz(&self) -> Option<f64> {
        match self {
            What::Time { hz } => Some(f64::from(*hz)),
            What::Event { .. } => None,
        }
    }
}
