//! The settings of a recording.

use std::fs::File;
use std::io::Read;
use std::time::{Instant, SystemTime};

use linerate_sys::Result;
use linerate_sys::clock::thread_cpu_ns;

use super::attach::{Attached, Setup};
use super::summary::Began;
use super::{Recording, Target, What, calibrate};

/// The settings of a recording, before it starts.
#[derive(Debug, Clone)]
pub struct Recorder {
    pub(super) what: What,
    pub(super) call_chains: bool,
    pub(super) kernel: bool,
    ring_bytes: usize,
    calibrate: bool,
}

/// Outcome of a trial on the calling thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The kernel lets us sample its functions, or nobody asked it.
    pub kernel: bool,
    /// CPU time that one sample takes, in nanoseconds; `None` if it could not be told from 0.
    pub sample_ns: Option<f64>,
}

impl Recorder {
    /// Returns a recorder of `what`: in user and kernel, no call chains, rings of 512 KiB, own cost calibrated.
    ///
    /// Such a ring for each CPU is what the kernel lends to a user without privilege
    /// (kernel.perf_event_mlock_kb).
    #[must_use]
    pub fn new(what: What) -> Recorder {
        Recorder { what, call_chains: false, kernel: true, ring_bytes: 512 << 10, calibrate: true }
    }

    /// Records the chain of callers with each sample, by frame pointers.
    #[must_use]
    pub fn call_chains(mut self, on: bool) -> Recorder {
        self.call_chains = on;
        self
    }

    /// Samples the kernel's functions, too. They are left out, with a remark, if it refuses.
    #[must_use]
    pub fn kernel(mut self, on: bool) -> Recorder {
        self.kernel = on;
        self
    }

    /// Sets the bytes of each ring, rounded up to a power of two pages, 64 MiB at most.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Recorder {
        self.ring_bytes = bytes;
        self
    }

    /// Measures the cost of one sample before the start, which takes about 0.1 s.
    ///
    /// Of a cost that is not known more than 20,000 samples a second are refused.
    #[must_use]
    pub fn calibrate(mut self, on: bool) -> Recorder {
        self.calibrate = on;
        self
    }

    /// Opens the event on the calling thread, measures what a sample takes, and closes it again.
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
    /// `E-PERM` if the kernel does not let us, `E-MEMORY` if it lends no ring of that size,
    /// `E-UNSUPPORTED` if the machine has no such event, the rate or period makes no sense or would
    /// take most of the CPU, or /proc cannot tell of the process; `E-SYSTEM` for what else fails.
    pub fn start(self, target: Target) -> Result<Recording> {
        let cpu_ns = thread_cpu_ns();
        let (setup, sample_ns) = self.prepare()?;
        let (at, wall, kernel) = (Instant::now(), SystemTime::now(), setup.kernel);
        let (mut rings, late) = match target {
            Target::ThisThread => (setup.this_thread()?, 0),
            Target::ThisProcess => {
                let Attached { rings, late } = setup.process()?;
                (rings, late)
            }
        };
        rings.enable().map_err(|e| setup.explain(&e))?;
        let workload = match target {
            Target::ThisThread => format!("one thread of {}", command_line()),
            Target::ThisProcess => command_line(),
        };
        let began = Began { at, wall, workload, sample_ns, kernel, late };
        let cpu_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        Ok(Recording::new(self, rings, began, cpu_ns))
    }

    fn prepare(&self) -> Result<(Setup, Option<f64>)> {
        let setup = Setup::new(&self.what, self.call_chains, self.kernel, self.ring_bytes)?;
        let measure = || calibrate::sample_ns(self.call_chains, setup.kernel);
        let sample_ns = self.calibrate.then(measure).flatten();
        calibrate::affordable(&self.what, sample_ns)?;
        Ok((setup, sample_ns))
    }
}

/// Returns this process's command line as it was typed, as far as /proc tells.
fn command_line() -> String {
    let mut bytes = Vec::new();
    // What has been read until it failed is as good as any.
    let _ = File::open("/proc/self/cmdline")
        .map(|file| file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes).replace(['\0', '\n'], " ");
    text.trim_end().to_owned()
}

const COMMAND_LINE_BYTES_MAX: u64 = 4096;
