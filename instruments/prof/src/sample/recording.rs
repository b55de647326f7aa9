//! Samples while they are taken.

use std::time::{Duration, Instant};

use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::{Code, Error, Result};
use rustix::event::Timespec;

use super::note::Note;
use super::rings::Rings;
use super::summary::{self, Began, Heard, Taken};
use super::symbols::Names;
use super::tally::Tally;
use super::{Recorder, remarks};
use crate::profile::Profile;

/// Samples while they are taken. Dropping it ends the sampling.
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    rings: Rings,
    began: Began,
    tally: Tally,
    heard: Heard,
    /// CPU time of the recorder, from the start of its calibration.
    cpu_ns: u64,
}

/// The progress of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples so far.
    pub samples: u64,
    /// Samples that the kernel could not deliver, as far as it has told yet.
    pub lost: u64,
}

impl Recording {
    pub(super) fn new(recorder: Recorder, rings: Rings, began: Began, cpu_ns: u64) -> Recording {
        let (tally, heard) = (Tally::default(), Heard::default());
        Recording { recorder, rings, began, tally, heard, cpu_ns }
    }

    /// Waits for samples and takes them in: until a ring is half full or the time is over, and never
    /// longer than 0.1 s, for the kernel does not wake us for every ring.
    ///
    /// # Panics
    /// If the kernel writes a record that is shorter than its header, or longer than what it has
    /// written: perf-event2 asserts it and shows us no header before. [`Recording::finish`] likewise.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not let us wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<Progress> {
        let began = thread_cpu_ns();
        let timeout = timeout.min(LONGEST_WAIT);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        self.rings.wait(&timeout).map_err(|e| failed(&e))?;
        self.drain();
        self.cpu_ns += thread_cpu_ns().saturating_sub(began);
        Ok(Progress { samples: self.heard.samples, lost: self.heard.lost })
    }

    /// Polls until so much time is over.
    ///
    /// # Errors
    /// As [`Recording::poll`].
    pub fn run(&mut self, time: Duration) -> Result<Progress> {
        let begin = Instant::now();
        loop {
            let progress = self.poll(time.saturating_sub(begin.elapsed()))?;
            if begin.elapsed() >= time {
                return Ok(progress);
            }
        }
    }

    /// Stops, names the functions and sorts them by falling count.
    ///
    /// # Errors
    /// `E-SYSTEM` if the events cannot be stopped or read.
    pub fn finish(mut self) -> Result<Profile> {
        let began = thread_cpu_ns();
        self.rings.disable().map_err(|e| failed(&e))?;
        let wall_ns = u64::try_from(self.began.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.drain();
        let taken = Taken {
            what: &self.recorder.what,
            call_chains: self.recorder.call_chains,
            kernel_wanted: self.recorder.kernel,
            began: &self.began,
            tally: &self.tally,
            heard: self.heard,
            counted: self.rings.counted().map_err(|e| failed(&e))?,
            wall_ns,
        };
        let names = Names::of(taken.tally);
        let (mut profile, stacks_unnamed) = summary::profile(&taken, &names);
        profile.remarks = remarks::of(&taken, profile.own_cost.as_ref(), &names, stacks_unnamed);
        if let Some(cost) = &mut profile.own_cost {
            cost.recorder_cpu_ns = self.cpu_ns + thread_cpu_ns().saturating_sub(began);
        }
        Ok(profile)
    }

    /// Reads the rings.
    fn drain(&mut self) {
        let Recording { rings, tally, heard, .. } = self;
        rings.drain(|note| match note {
            Some(Note::Sample(hit)) => {
                heard.samples += 1;
                tally.add(&hit);
            }
            Some(Note::Lost(lost)) => heard.lost = heard.lost.saturating_add(lost),
            Some(Note::Throttled) => heard.throttled += 1,
            Some(Note::Other) => {}
            None => heard.broken += 1,
        });
    }
}

fn failed(e: &std::io::Error) -> Error {
    Error::new(Code::System, "cannot go on sampling", e.to_string())
}

const LONGEST_WAIT: Duration = Duration::from_millis(100);
