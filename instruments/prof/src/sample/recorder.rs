//! A recording: its settings, and its samples while it runs.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime};

use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::{Code, Error, Result};
use rustix::event::Timespec;

use super::attach::Setup;
use super::rings::Rings;
use super::symbols::Names;
use super::tally::Tally;
use super::{Target, What, calibrate, summary};
use crate::profile::Profile;

/// The settings of a recording, before it starts.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// The quantity to sample.
    pub what: What,
    /// Records the chain of callers with each sample, by frame pointers.
    pub call_chains: bool,
    /// True to sample the kernel's functions, too. They are left out, with a remark, if the kernel
    /// refuses them.
    pub kernel: bool,
    /// Length of each ring in bytes, rounded up to a power of two pages, at most 64 MiB.
    pub ring_bytes: usize,
    /// True to measure the cost of one sample before the start, which takes about 0.1 s. Without
    /// it, more than 20,000 samples a second are refused.
    pub calibrate: bool,
}

/// Outcome of trying to sample the calling thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// True if the kernel's functions are sampled, or were not requested.
    pub kernel: bool,
    /// CPU time of one sample, in nanoseconds; `None` if it cannot be distinguished from 0.
    pub sample_ns: Option<f64>,
}

impl Recorder {
    /// Returns a recorder of `what` with the defaults: user and kernel, no call chains, rings of
    /// 512 KiB, calibration.
    ///
    /// Such a ring for each CPU is what the kernel lends to a user without privilege
    /// (kernel.perf_event_mlock_kb).
    #[must_use]
    pub fn new(what: What) -> Recorder {
        Recorder { what, call_chains: false, kernel: true, ring_bytes: 512 << 10, calibrate: true }
    }

    /// Opens the event on the calling thread, measures the cost of a sample, and closes it again.
    ///
    /// # Errors
    /// As [`Recorder::start`].
    pub fn try_out(&self) -> Result<Trial> {
        let (setup, sample_ns) = self.prepare()?;
        Ok(Trial { kernel: setup.kernel || !self.kernel, sample_ns })
    }

    /// Starts to sample `target`.
    ///
    /// # Errors
    /// `E-PERM` if the kernel does not let us, `E-MEMORY` if it lends no ring of that size, with
    /// the limit if that is the reason, `E-UNSUPPORTED` if the machine has no such event, the rate
    /// or period makes no sense or would take most of the CPU, or /proc cannot tell of the process;
    /// `E-SYSTEM` for what else fails.
    pub fn start(self, target: Target) -> Result<Recording> {
        let cpu_ns = thread_cpu_ns();
        let (setup, sample_ns) = self.prepare()?;
        let (mut rings, late) = match target {
            Target::ThisThread => (setup.this_thread()?, 0),
            Target::ThisProcess => setup.process()?,
            Target::Machine => (setup.machine()?, 0),
        };
        rings.enable().map_err(|e| setup.explain(&e))?;
        let (at, wall) = (Instant::now(), SystemTime::now());
        let workload = match target {
            Target::ThisThread => format!("one thread of {}", command_line()),
            Target::ThisProcess => command_line(),
            Target::Machine => format!("the whole machine, beside {}", command_line()),
        };
        let cpu_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        let own = (target == Target::Machine).then(std::process::id);
        let (kernel, tally) = (setup.kernel, Tally { own, ..Tally::default() });
        let recorder = self;
        Ok(Recording {
            recorder,
            target,
            rings,
            at,
            wall,
            workload,
            sample_ns,
            kernel,
            late,
            tally,
            cpu_ns,
        })
    }

    fn prepare(&self) -> Result<(Setup, Option<f64>)> {
        let setup = Setup::new(&self.what, self.call_chains, self.kernel, self.ring_bytes)?;
        let measure = || calibrate::sample_ns(self.call_chains, setup.kernel);
        let sample_ns = self.calibrate.then(measure).flatten();
        calibrate::affordable(&self.what, sample_ns)?;
        Ok((setup, sample_ns))
    }
}

/// Returns this process's command line as typed, from /proc.
fn command_line() -> String {
    let mut bytes = Vec::new();
    // After an error, use the bytes read until then: the command line is only information for the
    // reader.
    let _ = File::open("/proc/self/cmdline").map(|file| file.take(4096).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).replace(['\0', '\n'], " ").trim_end().to_owned()
}

/// A running recording, with its samples. Dropping it ends the sampling.
#[derive(Debug)]
pub struct Recording {
    pub(super) recorder: Recorder,
    pub(super) target: Target,
    rings: Rings,
    at: Instant,
    pub(super) wall: SystemTime,
    pub(super) workload: String,
    pub(super) sample_ns: Option<f64>,
    /// True if the kernel's functions are sampled.
    pub(super) kernel: bool,
    /// Threads that started while the recorder attached and may be sampled twice.
    pub(super) late: usize,
    pub(super) tally: Tally,
    /// CPU time of the recorder, from the start of its calibration.
    cpu_ns: u64,
}

impl Recording {
    /// Waits for samples and stores them. Waits until a ring is half full or the time is over, but
    /// at most 0.1 s, because the kernel does not wake us for every ring.
    ///
    /// # Panics
    /// If the kernel writes a record that is longer than what it has written: perf-event2 asserts
    /// it and shows us no header before. [`Recording::finish`] likewise.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not let us wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<()> {
        let began = thread_cpu_ns();
        let timeout = timeout.min(LONGEST_WAIT);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        self.rings.wait(&timeout).map_err(|e| failed(&e))?;
        self.drain();
        self.cpu_ns += thread_cpu_ns().saturating_sub(began);
        Ok(())
    }

    /// Returns the number of samples so far in any of `threads`, which are numbers of the kernel.
    #[must_use]
    pub fn samples_of(&self, threads: &[i32]) -> u64 {
        let count = |thread: &i32| self.tally.threads.get(&u32::try_from(*thread).ok()?).copied();
        threads.iter().filter_map(count).sum()
    }

    /// Ends the recording, names the functions and sorts them by falling count.
    ///
    /// # Errors
    /// `E-SYSTEM` if the events cannot be stopped or read.
    pub fn finish(mut self) -> Result<Profile> {
        let began = thread_cpu_ns();
        self.rings.disable().map_err(|e| failed(&e))?;
        let wall_ns = u64::try_from(self.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.drain();
        let mut counted = self.rings.counted().map_err(|e| failed(&e))?;
        // The events' count also includes the samples that were lost last, which no record in a
        // ring reports.
        counted.lost = counted.lost.max(self.tally.lost);
        let mut profile = summary::profile(&self, counted, wall_ns, &Names::of(&self.tally));
        if let Some(cost) = &mut profile.own_cost {
            cost.recorder_cpu_ns = self.cpu_ns + thread_cpu_ns().saturating_sub(began);
        }
        Ok(profile)
    }

    fn drain(&mut self) {
        let tally = &mut self.tally;
        self.rings.drain(|space, record| tally.take(space, record));
    }
}

fn failed(e: &std::io::Error) -> Error {
    Error::new(Code::System, "cannot go on sampling", e.to_string())
}

const LONGEST_WAIT: Duration = Duration::from_millis(100);
