//! Samples while they are taken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use linerate_sys::{Code, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, clock_gettime};

use super::Recorder;
use super::child::{self, Started};
use super::note::{Hit, Note, Said};
use super::rings::Rings;
use super::spaces::Spaces;
use super::summary::{self, Taken};
use super::tally::Tally;
use super::tick::Entries;
use crate::profile::{Profile, Space};

/// Samples while they are taken. Dropping it ends the sampling; a child lives on, and if it ends
/// later nobody waits for it: who lives long takes it back with [`Recording::take_child`].
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    rings: Rings,
    /// If the samples are the kernel's ticks.
    entries: Option<Entries>,
    spaces: Spaces,
    watched: Watched,
    began: Began,
    /// Read, but perhaps older records are still to come from another ring.
    pending: Vec<Note>,
    /// When the last drain began. What is older has been read by now.
    drained_ns: u64,
    tally: Tally,
    heard: Heard,
    alive: bool,
    status: Option<ExitStatus>,
    /// Of the recorder, from the start of its calibration.
    cpu_ns: u64,
}

/// How far a recording is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples so far.
    pub samples: u64,
    /// Samples that the kernel could not deliver, as far as it has told yet.
    pub lost: u64,
    /// Whether the target still runs.
    pub target_alive: bool,
}

/// How we learn that the target has ended.
#[derive(Debug)]
pub(super) enum Watched {
    /// It is this process.
    Own,
    Process(OwnedFd),
    Child(Started),
}

/// What is known of a recording at its start.
#[derive(Debug)]
pub(super) struct Began {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
    pub(super) workload: Option<String>,
    pub(super) sample_ns: Option<f64>,
    /// Whether the kernel's functions are sampled.
    pub(super) kernel: bool,
    pub(super) remarks: Vec<String>,
}

/// What the rings told beside samples.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    pub(super) samples: u64,
    pub(super) lost: u64,
    pub(super) throttled: u64,
    /// Records that make no sense.
    pub(super) broken: u64,
}

impl Recording {
    pub(super) fn new(
        recorder: Recorder,
        rings: Rings,
        entries: Option<Entries>,
        spaces: Spaces,
        watched: Watched,
        began: Began,
        cpu_ns: u64,
    ) -> Recording {
        Recording {
            recorder,
            rings,
            entries,
            spaces,
            watched,
            cpu_ns,
            began,
            pending: Vec::new(),
            drained_ns: 0,
            tally: Tally::default(),
            heard: Heard::default(),
            alive: true,
            status: None,
        }
    }

    /// Waits for samples and takes them in: until a ring is half full, the target ends or the time
    /// is over, and never longer than 0.1 s, for the kernel does not wake us for every ring.
    ///
    /// # Panics
    /// If the kernel writes a record that is shorter than its header, or longer than what it has
    /// written: perf-event2 asserts it and shows us no header before. [`Recording::finish`] likewise.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not let us wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<Progress> {
        let began = thread_cpu_ns();
        let system = |e: std::io::Error| Error::new(Code::System, WHAT, format!("poll: {e}"));
        let timeout = timeout.min(LONGEST_WAIT);
        let also = self.watched.descriptor().filter(|_| self.alive);
        self.rings.wait(also, &timespec(timeout)).map_err(system)?;
        self.drain();
        self.look_after_target().map_err(system)?;
        self.cpu_ns += thread_cpu_ns().saturating_sub(began);
        Ok(Progress {
            samples: self.heard.samples,
            lost: self.heard.lost,
            target_alive: self.alive,
        })
    }

    /// Polls until the target ends, or so much time is over.
    ///
    /// # Errors
    /// As [`Recording::poll`].
    pub fn run(&mut self, time: Duration) -> Result<Progress> {
        let begin = Instant::now();
        loop {
            let progress = self.poll(time.saturating_sub(begin.elapsed()))?;
            if !progress.target_alive || begin.elapsed() >= time {
                return Ok(progress);
            }
        }
    }

    /// Polls until the child ends, and says how it did; `None` at once if the target is no child.
    ///
    /// # Errors
    /// As [`Recording::poll`].
    pub fn wait(&mut self) -> Result<Option<ExitStatus>> {
        while self.child().is_some() && self.alive {
            self.poll(LONGEST_WAIT)?;
        }
        Ok(self.status)
    }

    /// The child's process id, if the target is one.
    #[must_use]
    pub fn child(&self) -> Option<u32> {
        match &self.watched {
            Watched::Child(child) => Some(child.id()),
            Watched::Own | Watched::Process(..) => None,
        }
    }

    /// How the child ended, if it is one and has.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Hands over the child, if the target is one: to wait for it, or to end it, after the recording.
    /// The sampling goes on. From now on [`Recording::child`] and [`Recording::status`] are `None`,
    /// and whether it lives is known if the kernel gave a descriptor of the process (Linux 5.3).
    pub fn take_child(&mut self) -> Option<Child> {
        match std::mem::replace(&mut self.watched, Watched::Own) {
            Watched::Child(child) => {
                let (child, descriptor) = child.into_parts();
                self.watched = descriptor.map_or(Watched::Own, Watched::Process);
                self.status = None;
                Some(child)
            }
            other => {
                self.watched = other;
                None
            }
        }
    }

    /// Stops, names the functions and sorts them by falling count. A child that has ended has been
    /// waited for; one that still runs is left running, and [`Recording::take_child`] is the way to
    /// keep it.
    ///
    /// # Errors
    /// `E-SYSTEM` if the events cannot be stopped or read.
    pub fn finish(mut self) -> Result<Profile> {
        let began = thread_cpu_ns();
        let system = |e: std::io::Error| Error::new(Code::System, WHAT, e.to_string());
        self.rings.disable().map_err(system)?;
        let wall_ns = u64::try_from(self.began.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.drain();
        self.settle(u64::MAX);
        self.look_after_target().map_err(system)?;
        let counted = self.rings.counted().map_err(system)?;
        let gone = matches!(self.watched, Watched::Process(..)) && !self.alive;
        self.remark(counted.cpu_ns);
        let mut profile = summary::profile(&Taken {
            what: &self.recorder.what,
            call_chains: self.recorder.call_chains,
            kernel_wanted: self.recorder.kernel,
            began: &self.began,
            spaces: &self.spaces,
            tally: &self.tally,
            heard: self.heard,
            counted,
            gone,
            wall_ns,
        });
        let cpu_ns = self.cpu_ns + thread_cpu_ns().saturating_sub(began);
        if let Some(cost) = &mut profile.own_cost {
            cost.recorder_cpu_ns = cpu_ns;
        }
        Ok(profile)
    }

    /// What only the recording knows, for the profile's remarks.
    fn remark(&mut self, counted_ns: u64) {
        let remarks = &mut self.began.remarks;
        remarks.extend(self.spaces.remarks());
        if let Watched::Child(child) = &mut self.watched {
            if self.alive {
                child.look_at_cpu_time();
            }
            let had_ns = child.cpu_ns();
            remarks.extend(had_ns.and_then(|had_ns| child::out_of_sight(had_ns, counted_ns)));
        }
    }

    /// Reads the rings. What was made before the drain before this one began has been read from
    /// all of them by now, and is taken in, in order: a sample after the map that it falls in.
    fn drain(&mut self) {
        let now_ns = monotonic_ns();
        let Recording { rings, pending, heard, .. } = self;
        rings.drain(|note| match note {
            Some(note) => heard.hear(note, pending),
            None => heard.broken += 1,
        });
        let before_ns = std::mem::replace(&mut self.drained_ns, now_ns);
        self.settle(before_ns);
    }

    /// Takes in what is older than that.
    fn settle(&mut self, before_ns: u64) {
        self.spaces.begin();
        self.pending.sort_by_key(|note| note.time_ns);
        let ready = self.pending.partition_point(|note| note.time_ns < before_ns);
        let Recorder { call_chains, kernel, .. } = self.recorder;
        for note in self.pending.drain(..ready) {
            match (note.said, &self.entries) {
                (Said::Sample(tick), Some(entries)) => {
                    let hit = entries.interrupted(&tick);
                    let chain = if call_chains { hit.chain } else { Box::default() };
                    if kernel || hit.space != Space::Kernel {
                        self.tally.add(&Hit { chain, ..hit }, &mut self.spaces);
                    }
                }
                (Said::Sample(hit), None) => self.tally.add(&hit, &mut self.spaces),
                (said, _) => self.spaces.follow(said),
            }
        }
    }

    fn look_after_target(&mut self) -> std::io::Result<()> {
        if !self.alive {
            return Ok(());
        }
        self.alive = match &mut self.watched {
            Watched::Own => true,
            Watched::Process(fd) => !readable(fd.as_fd()),
            Watched::Child(child) => {
                self.status = child.ended()?;
                self.status.is_none()
            }
        };
        Ok(())
    }
}

impl Heard {
    fn hear(&mut self, note: Note, pending: &mut Vec<Note>) {
        match note.said {
            Said::Lost(lost) => self.lost = self.lost.saturating_add(lost),
            Said::Throttled => self.throttled += 1,
            Said::Other => {}
            Said::Sample(_) => {
                self.samples += 1;
                pending.push(note);
            }
            Said::Map { .. } | Said::Exec { .. } | Said::Fork { .. } | Said::End { .. } => {
                pending.push(note);
            }
        }
    }
}

impl Watched {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Watched::Own => None,
            Watched::Process(fd) => Some(fd.as_fd()),
            Watched::Child(child) => child.descriptor(),
        }
    }
}

/// Whether the process of the descriptor has ended.
pub(super) fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO)));
    matches!(ready, Ok(1..))
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn monotonic_ns() -> u64 {
    ns(clock_gettime(ClockId::Monotonic))
}

pub(super) fn thread_cpu_ns() -> u64 {
    ns(clock_gettime(ClockId::ThreadCPUTime))
}

fn ns(time: Timespec) -> u64 {
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(rest.unwrap_or(0))
}

const WHAT: &str = "cannot go on sampling";
const LONGEST_WAIT: Duration = Duration::from_millis(100);
