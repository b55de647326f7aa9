//! The lock of the folder of records, which keeps runs of this user from restoring what another one
//! is about to record.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use linerate::{Code, Error};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::STEP;
use crate::screen::Screen;

/// Longest wait for another process to unlock the folder.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Longest such wait of a thread that serves clients meanwhile. It exceeds the time for which a run
/// that begins waits, with the lock, until programs are detached.
pub(super) const LOCK_WAIT_SERVING: Duration = Duration::from_millis(750);

/// A lock of the folder against other descriptors of it, also of this process. It ends when the
/// value is dropped.
pub(super) struct Lock<'a> {
    folder: &'a OwnedFd,
    is_held: bool,
}

impl<'a> Lock<'a> {
    /// Locks the folder, which another process may unlock within `wait`.
    ///
    /// # Errors
    /// `E-BUSY` if it does not; `E-FILE` if the folder cannot be locked.
    pub fn take(folder: &'a OwnedFd, wait: Duration) -> linerate::Result<Lock<'a>> {
        let until = Instant::now() + wait;
        let what = "the records of runs are not locked";
        loop {
            match flock(folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { folder, is_held: true }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    thread::sleep(STEP);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let why = format!("another process has locked them for {wait:?}");
                    return Err(Error::new(Code::Busy, what, why).fix("see: lslocks"));
                }
                Err(e) => return Err(Error::os(Code::File, what, "flock", e)),
            }
        }
    }

    /// Locks the folder as [`Lock::take`] does; prints a warning, and returns without the lock, if
    /// that is not possible.
    pub fn of(folder: &'a OwnedFd, wait: Duration, screen: &Screen) -> Lock<'a> {
        Lock::take(folder, wait).unwrap_or_else(|Error { what, why, fix, .. }| {
            let see = if fix.is_empty() { fix } else { format!("; {fix}") };
            screen.change(&format!("warning: {what}: {why}{see}\n"));
            Lock { folder, is_held: false }
        })
    }

    /// Returns false if the folder could not be locked.
    pub fn is_held(&self) -> bool {
        self.is_held
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.folder, FlockOperation::Unlock);
    }
}
