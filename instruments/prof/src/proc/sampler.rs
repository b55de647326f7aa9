//! Sampling of /proc at fixed deadlines.
//!
//! Deadlines are multiples of the period since the first, so that a late sample does not delay the
//! next one. A sample says how late it is; a period that went by without one is counted, and its
//! values are not interpolated.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linerate_sys::clock::{monotonic_ns, thread_cpu_ns};
use linerate_sys::{Code, Error, Result};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;

use super::files::{self, Readings};
use super::series::{Absent, Column, End, Feed, Header, SCHEMA, Sample};
use crate::conditions::Conditions;

named! {
    /// A file of /proc. `Interrupts` is read last, because it has by far the most values.
    pub enum Source {
        /// Soft interrupts by kind and CPU.
        Softirqs = "softirqs",
        /// CPU time, context switches, processes.
        Stat = "stat",
        /// Traffic of the network devices.
        NetDev = "net/dev",
        /// Work of each CPU's receive path.
        SoftnetStat = "net/softnet_stat",
        /// Time running and time waiting to run, by CPU.
        Schedstat = "schedstat",
        /// Interrupts by line and CPU.
        Interrupts = "interrupts",
    }
}

impl Source {
    /// Returns the file's path. The files of `net` are those of our own network namespace.
    fn path(self, root: &Path) -> PathBuf {
        match self {
            Source::NetDev | Source::SoftnetStat => root.join("self").join(self.as_str()),
            _ => root.join(self.as_str()),
        }
    }

    fn parse(self, text: &str, readings: &mut Readings) {
        match self {
            Source::Interrupts => files::interrupts(text, readings),
            Source::Softirqs => files::softirqs(text, readings),
            Source::Stat => files::stat(text, readings),
            Source::NetDev => files::net_dev(text, readings),
            Source::SoftnetStat => files::softnet_stat(text, readings),
            Source::Schedstat => files::schedstat(text, readings),
        }
    }
}

/// The sources to sample, and the period.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time between deadlines; at least [`PERIOD_MIN`].
    pub period: Duration,
    /// The sources to read.
    pub sources: Vec<Source>,
    /// Number of samples; `None` for no limit.
    pub samples: Option<u64>,
    /// Flag that ends the series within a tenth of a second after it is set.
    pub stop: Arc<AtomicBool>,
    /// Directory where /proc is mounted.
    pub root: PathBuf,
}

impl Default for Options {
    /// Returns options that record everything, once a second, until stopped.
    fn default() -> Options {
        Options {
            period: Duration::from_secs(1),
            sources: Source::ALL.to_vec(),
            samples: None,
            stop: Arc::default(),
            root: "/proc".into(),
        }
    }
}

/// Shortest period: reading takes a third of a millisecond on a small machine.
pub const PERIOD_MIN: Duration = Duration::from_millis(1);

/// Longest sleep between checks of the stop flag.
const NAP: Duration = Duration::from_millis(100);

/// Most bytes that are read of a file: /proc/interrupts of 512 CPUs with 1000 interrupts is 6 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// An iterator over samples of this machine.
#[derive(Debug)]
pub struct Sampler {
    header: Header,
    options: Options,
    files: Vec<(Source, PathBuf)>,
    readings: Readings,
    buffer: Vec<u8>,
    deadlines: Deadlines,
    end: End,
}

impl Sampler {
    /// Determines which files can be read. The first deadline is now.
    ///
    /// # Errors
    /// `E-FILE` if nothing that was asked for can be read, `E-UNSUPPORTED` for a period below
    /// [`PERIOD_MIN`].
    pub fn start(options: Options) -> Result<Sampler> {
        let what = "cannot sample /proc";
        if options.period < PERIOD_MIN {
            let why = format!("a period of {:?} is shorter than {PERIOD_MIN:?}", options.period);
            return Err(Error::new(Code::Unsupported, what, why).fix("ask for a longer period"));
        }
        let (mut files, mut absent) = (Vec::new(), Vec::new());
        for &source in &options.sources {
            let path = source.path(&options.root);
            // Opening is not enough: the kernel refuses some files on reading.
            match File::open(&path).and_then(|mut file| file.read(&mut [0; 64])) {
                Ok(_) => files.push((source, path)),
                Err(e) => {
                    absent.push(Absent { path: path.display().to_string(), why: e.to_string() });
                }
            }
        }
        // Read the interrupts last: if there are too many columns, only interrupts are left out.
        files.sort_by_key(|(source, _)| *source == Source::Interrupts);
        if files.is_empty() {
            let why = absent.first().map_or("nothing was asked for".into(), |first| {
                format!("{}: {}", first.path, first.why)
            });
            return Err(Error::new(Code::File, what, why).fix("mount -t proc proc /proc"));
        }
        let period_ns = u64::try_from(options.period.as_nanos()).unwrap_or(u64::MAX);
        let conditions = Conditions::here();
        Ok(Sampler {
            header: Header { schema: SCHEMA.into(), period_ns, conditions, absent },
            deadlines: Deadlines { start_ns: monotonic_ns(), period_ns, next: 0 },
            options,
            files,
            readings: Readings::default(),
            buffer: Vec::new(),
            end: End::default(),
        })
    }

    /// Reads every file of the sample. A file that has become unreadable (a process ended) has no
    /// values.
    fn read(&mut self) {
        self.readings.begin();
        for (source, path) in &self.files {
            self.buffer.clear();
            let Ok(file) = File::open(path) else { continue };
            let Ok(length) = file.take(FILE_BYTES_MAX).read_to_end(&mut self.buffer) else {
                continue;
            };
            let mut text = String::from_utf8_lossy(&self.buffer);
            if length as u64 == FILE_BYTES_MAX {
                // The file was cut at the limit: drop the last line, which is incomplete.
                let whole = text.rfind('\n').map_or(0, |at| at + 1);
                text = text[..whole].to_owned().into();
                self.readings.unread += 1;
            }
            source.parse(&text, &mut self.readings);
        }
    }

    /// Sleeps until the next deadline; returns false if stopped.
    fn sleep(&self) -> bool {
        sleep_until(self.deadlines.at_ns(), || !self.options.stop.load(Ordering::Relaxed))
    }
}

impl Feed for Sampler {
    fn header(&self) -> &Header {
        &self.header
    }

    fn columns(&self) -> &[Column] {
        self.readings.columns()
    }

    fn next(&mut self, sample: &mut Sample) -> Result<bool> {
        if self.options.samples.is_some_and(|most| self.end.samples >= most) || !self.sleep() {
            return Ok(false);
        }
        let cpu = thread_cpu_ns();
        (sample.t_ns, sample.late_ns, sample.missed) = self.deadlines.meet(monotonic_ns());
        self.read();
        sample.values.clear();
        sample.values.extend_from_slice(self.readings.values());
        sample.own_ns = thread_cpu_ns().saturating_sub(cpu);
        self.end.count(sample, self.header.period_ns);
        Ok(true)
    }

    fn end(&self) -> Option<End> {
        Some(End { unread: self.readings.unread, refused: self.readings.refused, ..self.end })
    }
}

/// The deadlines of the samples.
#[derive(Debug)]
struct Deadlines {
    start_ns: u64,
    period_ns: u64,
    /// Number of the next deadline.
    next: u64,
}

impl Deadlines {
    /// Returns the time of the next deadline.
    fn at_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.next.saturating_mul(self.period_ns))
    }

    /// Selects the last deadline that is not after `now_ns`; earlier ones were missed. Returns the
    /// time since the first deadline, the lateness, and the number of missed deadlines.
    fn meet(&mut self, now_ns: u64) -> (u64, u64, u64) {
        let t_ns = now_ns.saturating_sub(self.start_ns);
        let met = (t_ns / self.period_ns).max(self.next);
        let missed = met - self.next;
        self.next = met + 1;
        (t_ns, t_ns.saturating_sub(met.saturating_mul(self.period_ns)), missed)
    }
}

/// Sleeps until a moment of the monotonic clock, while `go_on` returns true; returns false if
/// `go_on` ended the sleep.
fn sleep_until(at_ns: u64, go_on: impl Fn() -> bool) -> bool {
    loop {
        if !go_on() {
            return false;
        }
        let now_ns = monotonic_ns();
        if now_ns >= at_ns {
            return true;
        }
        let until_ns = at_ns.min(now_ns.saturating_add(NAP.as_nanos() as u64));
        // An error, such as a signal, only shortens this sleep. The seconds of any u64 of
        // nanoseconds fit into the type.
        let (tv_sec, tv_nsec) =
            ((until_ns / 1_000_000_000) as i64, (until_ns % 1_000_000_000) as _);
        let until = Timespec { tv_sec, tv_nsec };
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_sample_does_not_delay_the_next_and_missed_periods_are_counted() {
        let mut deadlines = Deadlines { start_ns: 1000, period_ns: 100, next: 0 };
        assert_eq!(deadlines.meet(1000), (0, 0, 0));
        assert_eq!(deadlines.meet(1130), (130, 30, 0));
        assert_eq!(deadlines.at_ns(), 1200);
        assert_eq!(deadlines.meet(1555), (555, 55, 3));
        assert_eq!(deadlines.at_ns(), 1600);
        // A clock that is early is not a period earlier.
        assert_eq!(deadlines.meet(1599), (599, 0, 0));
        assert_eq!(deadlines.at_ns(), 1700);
    }

    #[test]
    fn samples_of_this_machine_have_columns_values_and_a_cost() {
        let period = Duration::from_millis(5);
        let options = Options { period, samples: Some(3), ..Options::default() };
        let mut sampler = Sampler::start(options).unwrap();
        let mut sample = Sample::default();
        let mut before = None;
        while sampler.next(&mut sample).unwrap() {
            assert_eq!(sample.values.len(), sampler.columns().len());
            assert!(sample.own_ns > 0);
            // How late it is, is said of a deadline; how late a busy machine makes it, is not
            // tested.
            assert_eq!((sample.t_ns - sample.late_ns) % 5_000_000, 0, "{sample:?}");
            assert!(before.is_none_or(|before| sample.t_ns > before));
            before = Some(sample.t_ns);
        }
        let end = sampler.end().unwrap();
        assert_eq!((end.samples, end.unread, end.refused), (3, 0, 0));
        let names: Vec<&str> = sampler.columns().iter().map(|c| c.name.as_str()).collect();
        for part in ["softirqs/NET_RX/cpu0", "stat/cpu/idle", "net/dev/lo/rx_packets"] {
            assert!(names.contains(&part), "{part} is not in {names:?}");
        }
    }

    #[test]
    fn missing_sources_are_named_and_none_at_all_is_an_error() {
        let nowhere = Options { root: "/nonexistent".into(), ..Options::default() };
        assert_eq!(Sampler::start(nowhere).unwrap_err().code, Code::File);
        let scratch = linerate_testing::Scratch::new();
        scratch.file("stat", "cpu 1 2 3 4\n");
        let root = scratch.0.clone();
        let sources = vec![Source::Stat, Source::Schedstat];
        let half = Options { sources, root: root.clone(), ..Options::default() };
        let sampler = Sampler::start(half).unwrap();
        let absent: Vec<&str> = sampler.header().absent.iter().map(|a| a.path.as_str()).collect();
        assert_eq!(absent, [root.join("schedstat").to_str().unwrap()]);
        let period = Duration::from_micros(10);
        let absurd = Options { period, ..Options::default() };
        assert_eq!(Sampler::start(absurd).unwrap_err().code, Code::Unsupported);
    }

    #[test]
    fn a_series_that_is_told_to_stop_ends() {
        let (period, sources) = (Duration::from_secs(3600), vec![Source::Interrupts, Source::Stat]);
        let options = Options { period, sources, ..Options::default() };
        let stop = Arc::clone(&options.stop);
        let mut sampler = Sampler::start(options).unwrap();
        let mut sample = Sample::default();
        assert!(sampler.next(&mut sample).unwrap());
        // Interrupts are read last, whatever the order.
        assert_eq!(sampler.columns()[0].name, "stat/cpu/user");
        stop.store(true, Ordering::Relaxed);
        assert!(!sampler.next(&mut sample).unwrap());
    }
}
