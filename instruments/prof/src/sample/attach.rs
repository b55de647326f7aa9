//! Opens the events of a target: which threads, which CPUs, and what to make of a refusal.

use std::collections::BTreeSet;
use std::io;

use linerate_sys::{Code, Error, Result};
use perf_event::events::{Raw, Software};
use perf_event::{Builder, ReadFormat, SampleFlag};
use rustix::process::{Resource, getrlimit};

use super::rings::{Refusal, Rings};
use super::{What, threads};

/// An event as it is to be opened, and what the kernel did not grant of it.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    builder: Builder<'static>,
    what: String,
    pub(super) ring_bytes: usize,
    /// The kernel's functions are sampled.
    pub(super) kernel: bool,
}

/// The open events of this process.
pub(super) struct Attached {
    pub(super) rings: Rings,
    /// Threads that started while we looked and may be sampled twice.
    pub(super) late: usize,
}

impl Setup {
    /// Tries the events on the calling thread: without the kernel if it refuses.
    ///
    /// # Errors
    /// `E-PERM` or `E-UNSUPPORTED`.
    pub(super) fn new(
        what: &What,
        call_chains: bool,
        kernel: bool,
        ring_bytes: usize,
    ) -> Result<Setup> {
        let (builder, name) = event(what)?;
        let ring_bytes = ring_bytes.clamp(page_bytes(), RING_BYTES_MAX).next_power_of_two();
        let mut setup =
            Setup { builder, what: format!("cannot sample {name}"), ring_bytes, kernel };
        let flags = SampleFlag::IP | SampleFlag::TID;
        setup
            .builder
            .sample(if call_chains { flags | SampleFlag::CALLCHAIN } else { flags })
            .sample_id_all(true)
            .wakeup_watermark(ring_bytes / 2)
            .exclude_kernel(!kernel)
            .read_format(READ_FORMAT | ReadFormat::LOST);
        setup.grant()?;
        Ok(setup)
    }

    /// Gives up what this kernel lacks or refuses, until it opens the event.
    fn grant(&mut self) -> Result<()> {
        let mut tells_lost = true;
        loop {
            match self.builder.build() {
                Ok(_) => return Ok(()),
                Err(e) if refused(&e) && self.kernel => {
                    self.kernel = false;
                    self.builder.exclude_kernel(true);
                }
                // PERF_FORMAT_LOST is of Linux 6.0.
                Err(e) if e.raw_os_error() == Some(EINVAL) && tells_lost => {
                    tells_lost = false;
                    self.builder.read_format(READ_FORMAT);
                }
                Err(e) => return Err(self.explain(&e)),
            }
        }
    }

    /// The calling thread, and no thread that it starts.
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

    /// Opens the events of all threads of this process, and of those that they will start.
    ///
    /// A thread that shows up while we open events has inherited its starter's, or was started
    /// before its starter had any: we cannot tell. So we begin again until none shows up; if that
    /// does not come to pass, it gets events of its own, and may be sampled twice rather than not.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if /proc cannot tell of them; as [`Setup::explain`].
    pub(super) fn process(&self) -> Result<Attached> {
        let cpus: Vec<_> = threads::cpus_on_line()?.into_iter().map(Some).collect();
        let mut builder = self.builder.clone();
        builder.inherit(true).inherit_thread(true);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut rings = Rings::default();
            let known = threads::own()?;
            self.add(&mut rings, &mut builder, &known, &cpus)?;
            let late = &threads::own()? - &known;
            if !late.is_empty() && attempts < ATTEMPTS {
                continue;
            }
            self.add(&mut rings, &mut builder, &late, &cpus)?;
            return Ok(Attached { rings, late: late.len() });
        }
    }

    fn add(
        &self,
        rings: &mut Rings,
        builder: &mut Builder<'static>,
        threads: &BTreeSet<u32>,
        cpus: &[Option<usize>],
    ) -> Result<()> {
        let all = threads.len().saturating_add(rings.threads() as usize);
        let needed = all.saturating_mul(cpus.len());
        for &thread in threads {
            let Ok(pid) = i32::try_from(thread) else { continue };
            match rings.add(builder.observe_pid(pid), cpus, self.ring_bytes) {
                Ok(()) => {}
                // The thread has ended meanwhile.
                Err(Refusal::Event(e)) if e.raw_os_error() == Some(ESRCH) => {}
                Err(e) => return Err(self.refused(&e, needed)),
            }
        }
        Ok(())
    }

    /// Returns the error for a refusal of one of `needed` events.
    fn refused(&self, refusal: &Refusal, needed: usize) -> Error {
        let ring_bytes = self.ring_bytes;
        match refusal {
            Refusal::Event(e) if e.raw_os_error() == Some(EMFILE) => self.too_many(needed),
            Refusal::Event(e) => self.explain(e),
            Refusal::Ring(e) => {
                let why = format!("the kernel lends no ring of {ring_bytes} bytes ({e})");
                Error::new(Code::Memory, self.what.as_str(), why)
                    .fix("smaller rings, or raise sysctl kernel.perf_event_mlock_kb")
            }
        }
    }

    /// The library leaves the limit as it is: it is the whole process's.
    fn too_many(&self, needed: usize) -> Error {
        let limit = getrlimit(Resource::Nofile);
        too_many(&self.what, needed, limit.current, limit.maximum)
    }

    /// Returns the error with the cause and the remedy.
    pub(super) fn explain(&self, e: &io::Error) -> Error {
        let error = |code, why: &str| Error::new(code, self.what.as_str(), format!("{why} ({e})"));
        match e.raw_os_error() {
            _ if refused(e) => error(Code::Permission, "the kernel does not let us").fix(
                "run with CAP_PERFMON, or as the process's own user with sysctl \
                     kernel.perf_event_paranoid=2; in a container also with a seccomp profile that \
                     allows perf_event_open",
            ),
            Some(ENOSYS) => error(Code::Unsupported, "there is no such system call here").fix(
                "in a container, a seccomp profile that allows perf_event_open; else a kernel with \
                     CONFIG_PERF_EVENTS",
            ),
            Some(ENOENT | ENODEV | EOPNOTSUPP) => {
                error(Code::Unsupported, "this machine does not count that event")
                    .fix("sample by time: that needs no counter of the CPU")
            }
            Some(EMFILE) => self.too_many(1),
            Some(ENFILE) => error(Code::System, "all processes together have too many files open")
                .fix("as root: raise sysctl fs.file-max"),
            Some(EINVAL) => error(Code::Unsupported, "the kernel does not know these options")
                .fix("check the event's code, and use Linux 5.13 or later"),
            _ => error(Code::System, "perf_event_open or mmap failed"),
        }
    }
}

fn event(what: &What) -> Result<(Builder<'static>, String)> {
    let refuse =
        |what: &str, why: String, fix: &str| Err(Error::new(Code::Unsupported, what, why).fix(fix));
    match what {
        What::Time { hz } if (1..=HZ_MAX).contains(hz) => {
            let mut builder = Builder::new(Software::CPU_CLOCK);
            builder.sample_period(1_000_000_000 / u64::from(*hz));
            Ok((builder, "by time".to_owned()))
        }
        What::Time { hz } => {
            let why = format!("{hz} samples a second are outside of 1 to {HZ_MAX}");
            refuse("cannot sample by time", why, "1000 a second are usual")
        }
        What::Event { trigger, period: 0 } => {
            let what = format!("cannot sample {}", trigger.name);
            refuse(&what, "a period of 0 events".into(), "give the events for each sample")
        }
        What::Event { trigger, period } if trigger.is_clock() && *period < CLOCK_PERIOD_NS_MIN => {
            let what = format!("cannot sample {}", trigger.name);
            let why = format!(
                "its events are nanoseconds, and a period of {period} ns is below the least of \
                 {CLOCK_PERIOD_NS_MIN} ns"
            );
            refuse(&what, why, "sample by time, 1000 times a second, or give a longer period")
        }
        What::Event { trigger, period } => {
            let mut builder = Builder::new(Raw::new(trigger.config));
            builder.attrs_mut().type_ = trigger.type_;
            builder.sample_period(*period);
            Ok((builder, trigger.name.clone()))
        }
    }
}

/// The limits as they are, and a command that gives what is needed and what the program may use beside.
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

fn refused(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::PermissionDenied
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

const READ_FORMAT: ReadFormat =
    ReadFormat::TOTAL_TIME_ENABLED.union(ReadFormat::TOTAL_TIME_RUNNING);
/// The kernel's timer makes no period below 10 us (`perf_swevent_start_hrtimer`).
const HZ_MAX: u32 = 100_000;
/// A sample may take 20 to 30 us in a virtual machine, and the timer goes on meanwhile: with a period
/// of 10 us nothing else would run.
const CLOCK_PERIOD_NS_MIN: u64 = 100_000;
const DESCRIPTORS_BESIDE: u64 = 1024;
const RING_BYTES_MAX: usize = 64 << 20;
const ATTEMPTS: u32 = 10;

// Linux, all architectures: include/uapi/asm-generic/errno-base.h and errno.h.
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

#[cfg(test)]
mod tests {
    use super::super::Trigger;
    use super::*;

    fn setup() -> Option<Setup> {
        Setup::new(&What::Time { hz: 100 }, false, true, 4096)
            .inspect_err(|e| println!("skipped: {e}"))
            .ok()
    }

    #[test]
    fn every_refusal_has_its_code_and_a_remedy() {
        let Some(setup) = setup() else { return };
        for (errno, code, fix) in [
            (1, Code::Permission, "CAP_PERFMON"),
            (13, Code::Permission, "perf_event_paranoid"),
            (ENOENT, Code::Unsupported, "by time"),
            (EOPNOTSUPP, Code::Unsupported, "by time"),
            (EMFILE, Code::System, "limit"),
            (ENOSYS, Code::Unsupported, "seccomp"),
            (1, Code::Permission, "seccomp"),
            (ENFILE, Code::System, "fs.file-max"),
            (EINVAL, Code::Unsupported, "5.13"),
        ] {
            let e = setup.explain(&io::Error::from_raw_os_error(errno));
            assert_eq!(e.code, code, "{e}");
            assert!(e.fix.contains(fix), "{e}");
        }
    }

    #[test]
    fn a_ring_that_the_kernel_does_not_lend_is_told_from_a_refused_event() {
        let Some(setup) = setup() else { return };
        let e = setup.refused(&Refusal::Ring(io::Error::from_raw_os_error(1)), 1);
        assert_eq!(e.code, Code::Memory);
        assert!(e.fix.contains("perf_event_mlock_kb"), "{e}");
        let e = setup.refused(&Refusal::Event(io::Error::from_raw_os_error(1)), 1);
        assert_eq!(e.code, Code::Permission);
    }

    #[test]
    fn a_rate_or_a_period_that_cannot_be_is_refused() {
        for hz in [0, HZ_MAX + 1] {
            let e = Setup::new(&What::Time { hz }, false, true, 4096).unwrap_err();
            assert!(e.why.contains("1 to 100000"), "{e}");
        }
        let what =
            What::Event { trigger: Trigger::new("page-faults", Trigger::SOFTWARE, 2), period: 0 };
        assert!(Setup::new(&what, false, true, 4096).unwrap_err().why.contains("period of 0"));
    }

    #[test]
    fn a_clock_given_as_an_event_is_refused_where_its_period_is_too_short_in_ns() {
        for (name, config) in [("cpu-clock", 0), ("task-clock", 1)] {
            let trigger = Trigger::new(name, Trigger::SOFTWARE, config);
            let what = |period| What::Event { trigger: trigger.clone(), period };
            let e = event(&what(CLOCK_PERIOD_NS_MIN - 1)).unwrap_err();
            assert!(e.why.contains("99999 ns") && e.fix.contains("by time"), "{e}");
            assert!(event(&what(CLOCK_PERIOD_NS_MIN)).is_ok());
        }
        // Others have no time in them.
        assert!(
            event(&What::Event {
                trigger: Trigger::new("page-faults", Trigger::SOFTWARE, 2),
                period: 1
            })
            .is_ok()
        );
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
    fn threads_of_a_process_share_one_ring_for_each_cpu() {
        let Some(setup) = setup() else { return };
        let (_hold, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        for _ in 0..3 {
            let held = held.clone();
            std::thread::spawn(move || held.lock().map(|held| held.recv().is_ok()).ok());
        }
        let attached = setup.process().unwrap();
        assert!(attached.rings.threads() >= 4, "{:?}", attached.rings);
        let cpus = threads::cpus_on_line().unwrap();
        let expected = format!("cpus: {:?}", cpus.iter().map(|&n| Some(n)).collect::<Vec<_>>());
        assert!(format!("{:?}", attached.rings).contains(&expected), "{:?}", attached.rings);
    }
}
