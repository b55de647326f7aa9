//! The command that was started: how it ends if the recording does first, and what its end says.
//!
//! A command that is recorded does not outlive its recording, as with perf: it is asked to end with
//! SIGTERM. After a signal to us it is first given time to end by itself, for it most likely had
//! that signal, too: a terminal sends Ctrl-C to both, and a second one would cut its end short.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use linerate_prof::Result;
use linerate_prof::sample::Recording;
use rustix::process::{Pid, Signal, kill_process};

use crate::errors::SIGNAL;

/// For ending by itself: `linerate forward` sends for up to 2 s what is still under way.
const BY_ITSELF: Duration = Duration::from_secs(3);
/// For ending when it was asked to.
const ASKED: Duration = Duration::from_secs(5);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There was none: a process was sampled.
    None,
    /// By itself.
    Ended(ExitStatus),
    /// Because the recording did.
    Asked,
    /// Not at all: this process still runs.
    Runs(u32),
}

impl Outcome {
    /// Ends the command of a recording that is over, whether it is or `signal` ended it; it is
    /// sampled until its end.
    ///
    /// # Errors
    /// Whatever keeps the recording from going on.
    pub fn of(recording: &mut Recording, signal: Option<i32>) -> Result<Outcome> {
        let Some(child) = recording.child() else { return Ok(Outcome::None) };
        let patience = if signal.is_some() { BY_ITSELF } else { Duration::ZERO };
        if let Some(status) = ended_within(recording, patience)? {
            return Ok(if signal.is_some() { Outcome::Asked } else { Outcome::Ended(status) });
        }
        // Its number cannot be another's: it is not waited for yet.
        if let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
            // One that cannot be asked is found to be running.
            let _ = kill_process(pid, Signal::TERM);
        }
        Ok(match ended_within(recording, ASKED)? {
            Some(_) => Outcome::Asked,
            None => Outcome::Runs(child),
        })
    }

    /// What the profile's reader must know.
    pub fn remark(self) -> Option<String> {
        match self {
            Outcome::Ended(status) if !status.success() => {
                Some(format!("the command failed ({status})"))
            }
            Outcome::Runs(pid) => {
                let waited = ASKED.as_secs();
                Some(format!(
                    "the command did not end within {waited} s of SIGTERM: process {pid} runs on"
                ))
            }
            Outcome::None | Outcome::Ended(_) | Outcome::Asked => None,
        }
    }

    /// The exit status, as shells say it. That we have ended it ourselves is no failure.
    pub fn exit(self) -> u8 {
        let Outcome::Ended(status) = self else { return 0 };
        let by_signal = || status.signal().map(|n| i32::from(SIGNAL) + n);
        // A status is a byte, and so is 128 and the largest signal.
        status.code().or_else(by_signal).and_then(|n| u8::try_from(n).ok()).unwrap_or(u8::MAX)
    }
}

/// The status of the command, if it ends in that time.
fn ended_within(recording: &mut Recording, time: Duration) -> Result<Option<ExitStatus>> {
    let since = Instant::now();
    loop {
        let left = time.saturating_sub(since.elapsed());
        recording.poll(left)?;
        if recording.status().is_some() || left.is_zero() {
            return Ok(recording.status());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_s_status_is_ours_unless_we_ended_it() {
        let ended = |raw| Outcome::Ended(ExitStatus::from_raw(raw));
        assert_eq!((ended(0).exit(), ended(3 << 8).exit(), ended(9).exit()), (0, 3, 137));
        assert_eq!(
            (Outcome::None.exit(), Outcome::Asked.exit(), Outcome::Runs(7).exit()),
            (0, 0, 0)
        );
        assert_eq!(ended(0).remark(), None);
        assert_eq!(ended(3 << 8).remark().unwrap(), "the command failed (exit status: 3)");
        assert!(ended(9).remark().unwrap().contains("SIGKILL"));
        assert!(Outcome::Runs(7).remark().unwrap().contains("process 7 runs on"));
    }
}
