//! How samples are to be taken.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Instant, SystemTime};

use linerate_sys::{Code, Error, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::attach::{Attached, Setup, Spawned};
use super::child::Started;
use super::recording::{Began, Watched, readable, thread_cpu_ns};
use super::spaces::Spaces;
use super::{Recording, Target, What, calibrate, threads};

/// How samples are to be taken, before they are.
#[derive(Debug, Clone)]
pub struct Recorder {
    pub(super) what: What,
    pub(super) call_chains: bool,
    pub(super) kernel: bool,
    ring_bytes: usize,
    calibrate: bool,
}

impl Recorder {
    /// Samples of `what`: in user and kernel, no call chains, rings of 512 KiB, own cost calibrated.
    ///
    /// Such a ring for each CPU is what the kernel lends to a user without privilege
    /// (kernel.perf_event_mlock_kb).
    #[must_use]
    pub fn new(what: What) -> Recorder {
        Recorder { what, call_chains: false, kernel: true, ring_bytes: 512 << 10, calibrate: true }
    }

    /// Whether the chain of callers is recorded with each sample, by frame pointers.
    #[must_use]
    pub fn call_chains(mut self, on: bool) -> Recorder {
        self.call_chains = on;
        self
    }

    /// Whether the kernel's functions are sampled. They are left out, with a remark, if it refuses.
    #[must_use]
    pub fn kernel(mut self, on: bool) -> Recorder {
        self.kernel = on;
        self
    }

    /// Bytes of each ring, rounded up to a power of two pages, 64 MiB at most.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Recorder {
        self.ring_bytes = bytes;
        self
    }

    /// Whether the cost of one sample is measured before the start, which takes about 0.1 s.
    ///
    /// Of a cost that is not known more than 20,000 samples a second are refused.
    #[must_use]
    pub fn calibrate(mut self, on: bool) -> Recorder {
        self.calibrate = on;
        self
    }

    /// Starts to sample `target`.
    ///
    /// # Errors
    /// `E-SYSTEM` if there is no such process, `E-FILE` if the program cannot be started, `E-PERM`
    /// if the kernel does not let us, `E-MEMORY` if it lends no ring of that size, `E-UNSUPPORTED` if
    /// the machine has no such event, the rate or period makes no sense or would take most of the
    /// CPU, or /proc cannot tell of the process. A program is started last: after an error none runs.
    pub fn start(self, target: Target) -> Result<Recording> {
        let (cpu_ns, mut starter_cpu_ns) = (thread_cpu_ns(), 0);
        let setup = Setup::new(&self.what, self.call_chains, self.kernel, self.ring_bytes)?;
        // Ticks come too seldom for that, and cost too little.
        let calibrate = self.calibrate && self.what != What::Tick;
        let measure = || calibrate::sample_ns(self.call_chains, setup.kernel);
        let sample_ns = calibrate.then(measure).flatten();
        calibrate::affordable(&self.what, sample_ns)?;
        let mut began = Began {
            at: Instant::now(),
            wall: SystemTime::now(),
            workload: None,
            sample_ns,
            kernel: setup.kernel,
            remarks: Vec::new(),
        };
        let mut spaces = Spaces::new();
        let own = std::process::id();
        let (rings, watched) = match target {
            Target::ThisThread => {
                let mut rings = setup.this_thread()?;
                rings.enable().map_err(|e| setup.explain(&e))?;
                spaces.read(own);
                began.workload = Some(format!("one thread of {}", command_line(own)));
                (rings, Watched::Own)
            }
            Target::ThisProcess => {
                let rings = running(&setup, own, &mut spaces, &mut began)?;
                (rings, Watched::Own)
            }
            Target::Pid(pid) => {
                // A descriptor stays with the process; its number may go to another one.
                let fd = descriptor(pid)?;
                let rings = running(&setup, pid, &mut spaces, &mut began)?;
                // Threads are found by number: was it still the same process's?
                if readable(fd.as_fd()) {
                    return Err(threads::no_such_process(pid, "it has ended meanwhile"));
                }
                (rings, Watched::Process(fd))
            }
            Target::Child(command) => {
                began.workload = Some(words(&command));
                if !threads::proc_is_ours() {
                    began.remarks.push(format!("{}; {CHILD_UNSEEN}", threads::FOREIGN));
                }
                let Spawned { rings, child, cpu_ns } = setup.child(command)?;
                starter_cpu_ns = cpu_ns;
                // Nothing from here on may fail: the program runs.
                (rings, Watched::Child(Started::new(child)))
            }
        };
        let cpu_ns = thread_cpu_ns().saturating_sub(cpu_ns).saturating_add(starter_cpu_ns);
        let entries = setup.tick.map(|tick| tick.entries);
        Ok(Recording::new(self, rings, entries, spaces, watched, began, cpu_ns))
    }
}

fn running(
    setup: &Setup,
    pid: u32,
    spaces: &mut Spaces,
    began: &mut Began,
) -> Result<super::rings::Rings> {
    let Attached { mut rings, late } = setup.process(pid)?;
    rings.enable().map_err(|e| setup.explain(&e))?;
    // Only now: what is mapped from here on comes as a record.
    spaces.read(pid);
    began.workload = Some(command_line(pid));
    if late > 0 {
        began.remarks.push(format!(
            "{late} threads started while the recorder attached to the process; their samples may \
             count twice"
        ));
    }
    Ok(rings)
}

fn descriptor(pid: u32) -> Result<OwnedFd> {
    let gone = |why: &str| threads::no_such_process(pid, why);
    let raw = i32::try_from(pid).map_err(|_| gone("no number of a process is so large"))?;
    let raw = Pid::from_raw(raw).ok_or_else(|| gone("0 is no process"))?;
    pidfd_open(raw, PidfdFlags::empty()).map_err(|e| match e {
        rustix::io::Errno::SRCH => gone("no such process"),
        // Of a thread that is not its process's first, the kernel says EINVAL or ENOENT.
        rustix::io::Errno::INVAL | rustix::io::Errno::NOENT => {
            gone("it is a thread; give the number of its process")
        }
        e => Error::os(Code::System, format!("cannot sample process {pid}"), "pidfd_open", e).fix(
            "use Linux 5.3 or later; in a container, a seccomp profile that allows pidfd_open",
        ),
    })
}

/// As it was typed, as far as /proc tells; its short name for a thread of the kernel.
fn command_line(pid: u32) -> String {
    let read = |name: &str| {
        let mut bytes = Vec::new();
        let file = threads::directory(pid).and_then(|of| fs::File::open(format!("{of}/{name}")));
        // What has been read until it failed is as good as any.
        let _ = file.map(|file| file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut bytes));
        bytes
    };
    let mut bytes = read("cmdline");
    if bytes.is_empty() {
        bytes = read("comm");
    }
    let text = String::from_utf8_lossy(&bytes).replace(['\0', '\n'], " ");
    text.trim_end().to_owned()
}

fn words(command: &std::process::Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

const COMMAND_LINE_BYTES_MAX: u64 = 4096;
const CHILD_UNSEEN: &str = "what the program maps is known from the recording alone, and code whose \
                            record was lost has no name";
