//! Opening of the events on a target's threads and CPUs, and handling of refusals.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use linerate_sys::{Code, Error, Result};
use perf_event::{Builder, ReadFormat, SampleFlag};
use rustix::process::{Resource, getrlimit};

use super::What;
use super::rings::{Refusal, Rings};
use crate::conditions::cpus_on_line;
use crate::pmu::{Event, Fallback, open};

/// An event to be opened, and the parts of it that the kernel did not grant.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    builder: Builder<'static>,
    event: Event,
    what: String,
    ring_bytes: usize,
    /// True if the kernel's functions are sampled.
    pub(super) kernel: bool,
}

impl Setup {
    /// Tries the events on the calling thread; leaves the kernel's functions out if the kernel
    /// refuses them.
    ///
    /// # Errors
    /// `E-PERM` or `E-UNSUPPORTED`.
    pub(super) fn new(
        what: &What,
        call_chains: bool,
        kernel: bool,
        ring_bytes: usize,
    ) -> Result<Setup> {
        let (event, period, name) = asked(what)?;
        let page_bytes = rustix::param::page_size();
        let ring_bytes = ring_bytes.clamp(page_bytes, RING_BYTES_MAX).next_power_of_two();
        let (builder, what) = (open::builder(&event), format!("cannot sample {name}"));
        let mut setup = Setup { builder, event, what, ring_bytes, kernel };
        let flags = SampleFlag::IP | SampleFlag::TID;
        setup
            .builder
            .sample_period(period)
            .sample(if call_chains { flags | SampleFlag::CALLCHAIN } else { flags })
            .sample_id_all(true)
            .wakeup_watermark(ring_bytes / 2)
            .exclude_kernel(!kernel)
            .read_format(READ_FORMAT | ReadFormat::LOST);
        setup.grant()?;
        Ok(setup)
    }

    /// Drops options that this kernel lacks or refuses, one by one, until the kernel opens the
    /// event.
    fn grant(&mut self) -> Result<()> {
        let mut tells_lost = true;
        loop {
            match self.builder.build() {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied && self.kernel => {
                    self.kernel = false;
                    self.builder.exclude_kernel(true);
                }
                // Kernels before 6.0 refuse PERF_FORMAT_LOST.
                Err(e) if e.raw_os_error() == Some(EINVAL) && tells_lost => {
                    tells_lost = false;
                    self.builder.read_format(READ_FORMAT);
                }
                Err(e) => return Err(self.explain(&e)),
            }
        }
    }

    /// Opens the event for the calling thread, without threads that it starts later.
    ///
    /// # Errors
    /// As [`Setup::explain`].
    pub(super) fn this_thread(&self) -> Result<Rings> {
        let mut rings = Rings::default();
        let mut builder = self.builder.clone();
        builder.observe_self();
        rings.add(&mut builder, &[None], self.ring_bytes).map_err(|e| self.refused(&e, 1))?;
        Ok(rings)
    }

    /// Opens the events for all threads of this process, present and future. Returns also the
    /// number of threads that started during the call and may be sampled twice.
    ///
    /// A thread that shows up while we open events has inherited its starter's, or was started
    /// before its starter had any: we cannot tell. So we begin again until none shows up; if that
    /// does not come to pass, it gets events of its own, and may be sampled twice rather than not.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if /proc cannot tell of them; as [`Setup::explain`].
    pub(super) fn process(&self) -> Result<(Rings, usize)> {
        let cpus = on_line()?;
        let mut builder = self.builder.clone();
        builder.inherit(true).inherit_thread(true);
        for attempt in 1.. {
            let mut rings = Rings::default();
            let known = own_threads()?;
            self.add(&mut rings, &mut builder, &known, &cpus)?;
            let late = &own_threads()? - &known;
            if late.is_empty() || attempt == ATTEMPTS {
                self.add(&mut rings, &mut builder, &late, &cpus)?;
                return Ok((rings, late.len()));
            }
        }
        unreachable!("an attempt is the last")
    }

    /// Opens the events for all online CPUs, which sample everything that runs on them.
    ///
    /// # Errors
    /// As [`Setup::refused_on_cpus`].
    pub(super) fn machine(&self) -> Result<Rings> {
        let (cpus, mut rings) = (on_line()?, Rings::default());
        let mut builder = self.builder.clone();
        builder.any_pid();
        let mut off_line = None;
        // A call for each CPU gives each an index of its own, so that their times are added up.
        for cpu in &cpus {
            match rings.add(&mut builder, std::slice::from_ref(cpu), self.ring_bytes) {
                // A CPU may have gone offline since the list was read.
                Err(Refusal::Event(e)) if e.raw_os_error() == Some(ENODEV) => {
                    off_line = Some(Refusal::Event(e));
                }
                done => done.map_err(|e| self.refused_on_cpus(&e, cpus.len()))?,
            }
        }
        match off_line.filter(|_| rings.threads() == 0) {
            Some(e) => Err(self.refused_on_cpus(&e, cpus.len())),
            None => Ok(rings),
        }
    }

    fn add(
        &self,
        rings: &mut Rings,
        builder: &mut Builder<'static>,
        threads: &BTreeSet<i32>,
        cpus: &[Option<usize>],
    ) -> Result<()> {
        let needed = (threads.len() + rings.threads()).saturating_mul(cpus.len());
        for &thread in threads {
            match rings.add(builder.observe_pid(thread), cpus, self.ring_bytes) {
                // A thread may have ended since it was listed.
                Err(Refusal::Event(e)) if e.raw_os_error() == Some(ESRCH) => {}
                done => done.map_err(|e| self.refused(&e, needed))?,
            }
        }
        Ok(())
    }

    /// Returns the error for a refusal of one of `needed` events.
    fn refused(&self, refusal: &Refusal, needed: usize) -> Error {
        match refusal {
            Refusal::Event(e) if e.raw_os_error() == Some(EMFILE) => {
                // Only report the limit: raising it would affect the whole process.
                let limit = getrlimit(Resource::Nofile);
                too_many(&self.what, needed, limit.current, limit.maximum)
            }
            Refusal::Event(e) => self.explain(e),
            Refusal::Ring(e) => self.no_ring(e, getrlimit(Resource::Memlock).current),
        }
    }

    /// Returns the error for a ring that the kernel refused to a process with this limit of locked
    /// memory, in bytes.
    ///
    /// Source: Linux kernel/events/core.c, `perf_mmap`: EPERM says that both limits are exceeded.
    fn no_ring(&self, e: &io::Error, limit: Option<u64>) -> Error {
        let why = format!("the kernel lends no ring of {} bytes ({e})", self.ring_bytes);
        let error = |why: String| Error::new(Code::Memory, self.what.as_str(), why);
        if e.raw_os_error() != Some(EPERM) {
            return error(why).fix("smaller rings, or free memory");
        }
        let limit =
            limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
        error(format!(
            "{why}: what this user's programs lock exceeds kernel.perf_event_mlock_kb for each \
             CPU, and RLIMIT_MEMLOCK of this process, {limit}, too"
        ))
        .fix(
            "ulimit -l unlimited, or CAP_IPC_LOCK, or raise sysctl kernel.perf_event_mlock_kb, or \
             smaller rings",
        )
    }

    /// Returns the error for a refusal of one of `needed` events of whole CPUs, which need more
    /// permission than events of threads.
    fn refused_on_cpus(&self, refusal: &Refusal, needed: usize) -> Error {
        let error = self.refused(refusal, needed);
        match refusal {
            Refusal::Event(e) if error.code == Code::Permission => {
                let (_, _, fix) = open::remedy_on_cpus(&self.event, e);
                error.fix(fix)
            }
            _ => error,
        }
    }

    /// Returns the error with the cause and the remedy.
    pub(super) fn explain(&self, e: &io::Error) -> Error {
        let (code, why, mut fix) = open::remedy(Some(&self.event), e);
        if matches!(e.raw_os_error(), Some(ENOENT | ENODEV | EINVAL | EOPNOTSUPP)) {
            fix = "sample by time, which needs no counter of the CPU; Linux 5.13 or later".into();
            if self.event.fallback() != Fallback::Nothing {
                fix = format!("{fix}; instead: {}", self.event.fallback());
            }
        }
        Error::new(code, self.what.as_str(), why).fix(fix)
    }
}

/// Returns the event of `what`, its period, and its name for errors.
fn asked(what: &What) -> Result<(Event, u64, String)> {
    let refuse = |name: &str, why: String, fix: &str| {
        Err(Error::new(Code::Unsupported, format!("cannot sample {name}"), why).fix(fix))
    };
    match what {
        What::Time { hz } if (1..=HZ_MAX).contains(hz) => {
            let clock = Event::new("cpu-clock", Event::SOFTWARE, 0);
            Ok((clock, 1_000_000_000 / u64::from(*hz), "by time".to_owned()))
        }
        What::Time { hz } => {
            let why = format!("{hz} samples a second are outside of 1 to {HZ_MAX}");
            refuse("by time", why, "997 a second are usual")
        }
        What::Event { event, period: 0 } => {
            refuse(&event.name, "a period of 0 events".into(), "give the events for each sample")
        }
        What::Event { event, period } if event.is_clock() && *period < CLOCK_PERIOD_NS_MIN => {
            let why = format!(
                "its events are nanoseconds, and a period of {period} ns is below the least of \
                 {CLOCK_PERIOD_NS_MIN} ns"
            );
            let fix = "sample by time, 997 times a second, or give a longer period";
            refuse(&event.name, why, fix)
        }
        What::Event { event, period } => Ok((event.clone(), *period, event.name.clone())),
    }
}

/// Returns the error for a limit that is too low, with the command that raises it sufficiently.
fn too_many(what: &str, needed: usize, soft: Option<u64>, hard: Option<u64>) -> Error {
    let shown = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let why = format!(
        "threads x CPUs = {needed} descriptors are needed, soft limit {}, hard limit {}",
        shown(soft),
        shown(hard)
    );
    let wanted = needed as u64 + soft.unwrap_or(0).min(DESCRIPTORS_BESIDE);
    let fix = if hard.is_none_or(|hard| wanted <= hard) {
        format!("ulimit -n {wanted}")
    } else {
        format!("as root: prlimit --pid $$ --nofile={wanted}:{wanted}")
    };
    Error::new(Code::System, what, why).fix(fix)
}

/// Returns the online CPUs, in the form for opening events.
fn on_line() -> Result<Vec<Option<usize>>> {
    let cpus = cpus_on_line().ok_or_else(|| {
        let why = "/sys/devices/system/cpu/online does not say";
        Error::new(Code::System, "cannot tell which CPUs there are", why)
    })?;
    Ok(cpus.into_iter().map(Some).collect())
}

/// Returns the numbers of this process's current threads.
///
/// # Errors
/// `E-UNSUPPORTED` if /proc is missing or of another PID namespace, where our threads have other
/// numbers.
fn own_threads() -> Result<BTreeSet<i32>> {
    let is_ours = |name: &Path| *name == *std::process::id().to_string();
    let ours = fs::read_link("/proc/self").is_ok_and(|name| is_ours(&name));
    let tasks = fs::read_dir("/proc/self/task").ok().filter(|_| ours).ok_or_else(|| {
        let why = "/proc is missing or of another PID namespace, where threads have other numbers";
        Error::new(Code::Unsupported, "cannot sample this process", why).fix(
            "mount -t proc proc /proc, in a mount namespace of one's own: unshare --mount-proc",
        )
    })?;
    // A directory entry that cannot be read belongs to a thread that has just ended.
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(tasks.flatten().filter_map(number).collect())
}

const READ_FORMAT: ReadFormat =
    ReadFormat::TOTAL_TIME_ENABLED.union(ReadFormat::TOTAL_TIME_RUNNING);
/// Highest rate of samples: the kernel's timer has no period below 10 us
/// (`perf_swevent_start_hrtimer`).
const HZ_MAX: u32 = 100_000;
/// Shortest period of a clock: a sample may take 20 to 30 us in a virtual machine while the timer
/// continues, so that with 10 us nothing else would run.
const CLOCK_PERIOD_NS_MIN: u64 = 100_000;
const DESCRIPTORS_BESIDE: u64 = 1024;
const RING_BYTES_MAX: usize = 64 << 20;
const ATTEMPTS: u32 = 10;

// Values of errno in Linux, on all architectures: include/uapi/asm-generic/errno-base.h and
// errno.h.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const EOPNOTSUPP: i32 = 95;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the success; `None`, with a message, if the kernel allows no sampling here.
    fn unless_refused<T>(tried: Result<T>) -> Option<T> {
        linerate_testing::unless(tried, open::is_refused)
    }

    fn setup() -> Option<Setup> {
        unless_refused(Setup::new(&What::Time { hz: 100 }, false, true, 4096))
    }

    #[test]
    fn every_refusal_has_its_code_and_a_remedy() {
        let Some(setup) = setup() else { return };
        for (errno, code, fix) in [
            (1, Code::Permission, "CAP_PERFMON"),
            (1, Code::Permission, "seccomp"),
            (13, Code::Permission, "perf_event_paranoid"),
            (ENOENT, Code::Unsupported, "by time"),
            (EOPNOTSUPP, Code::Unsupported, "by time"),
            (EINVAL, Code::Unsupported, "5.13"),
            (EMFILE, Code::System, "limit"),
            (23, Code::System, "fs.file-max"),
            (38, Code::Unsupported, "seccomp"),
        ] {
            let e = setup.refused(&Refusal::Event(io::Error::from_raw_os_error(errno)), 1);
            assert_eq!(e.code, code, "{e}");
            assert!(e.fix.contains(fix), "{e}");
        }
        for errno in [1, 13] {
            let refusal = Refusal::Event(io::Error::from_raw_os_error(errno));
            let e = setup.refused_on_cpus(&refusal, 1);
            assert!(e.code == Code::Permission && e.fix.contains("perf_event_paranoid=0"), "{e}");
        }
        let no_ring = |errno| setup.no_ring(&io::Error::from_raw_os_error(errno), Some(64 << 10));
        let (limited, exhausted) = (no_ring(EPERM), no_ring(12));
        assert_eq!((limited.code, exhausted.code), (Code::Memory, Code::Memory));
        assert!(limited.why.contains("RLIMIT_MEMLOCK of this process, 64 KiB"), "{limited}");
        assert!(limited.fix.contains("perf_event_mlock_kb"), "{limited}");
        assert!(!exhausted.to_string().contains("mlock"), "no limit is exceeded: {exhausted}");
    }

    #[test]
    fn a_rate_or_a_period_that_cannot_be_is_refused() {
        for hz in [0, HZ_MAX + 1] {
            assert!(asked(&What::Time { hz }).unwrap_err().why.contains("1 to 100000"));
        }
        let of = |config, period| {
            asked(&What::Event { event: Event::new("x", Event::SOFTWARE, config), period })
        };
        assert!(of(2, 0).unwrap_err().why.contains("period of 0") && of(2, 1).is_ok());
        for clock in [0, 1] {
            let e = of(clock, CLOCK_PERIOD_NS_MIN - 1).unwrap_err();
            assert!(e.why.contains("99999 ns") && e.fix.contains("by time"), "{e}");
            assert!(of(clock, CLOCK_PERIOD_NS_MIN).is_ok());
        }
    }

    #[test]
    fn a_limit_of_descriptors_is_told_with_a_command_that_can_raise_it() {
        let e = too_many("x", 4096, Some(1024), Some(8192));
        assert!(e.why.contains("4096 descriptors are needed, soft limit 1024, hard limit 8192"));
        assert_eq!(e.fix, "ulimit -n 5120");
        let e = too_many("x", 8192, Some(1024), Some(8192));
        assert_eq!(e.fix, "as root: prlimit --pid $$ --nofile=9216:9216");
        let e = too_many("x", 8192, Some(1024), None);
        assert!(e.why.contains("hard limit none") && e.fix == "ulimit -n 9216", "{e}");
    }

    #[test]
    fn every_cpu_of_the_machine_has_an_index_of_its_own() {
        let Some(setup) = setup() else { return };
        let Some(rings) = unless_refused(setup.machine()) else { return };
        assert_eq!(rings.threads(), cpus_on_line().unwrap().len(), "{rings:?}");
    }

    #[test]
    fn threads_of_a_process_share_one_ring_for_each_cpu() {
        let Some(setup) = setup() else { return };
        let (_hold, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        for _ in 0..3 {
            let held = held.clone();
            std::thread::spawn(move || held.lock().map(|held| held.recv().is_ok()).ok());
        }
        let (rings, _) = setup.process().unwrap();
        assert!(rings.threads() >= 4, "{rings:?}");
        let cpus: Vec<_> = cpus_on_line().unwrap().into_iter().map(Some).collect();
        assert!(format!("{rings:?}").contains(&format!("cpus: {cpus:?}")), "{rings:?}");
    }
}
