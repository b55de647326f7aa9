//! The lock of the folder of records, which keeps runs of this user from restoring what another one
//! is about to record.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::STEP;
use crate::screen::Screen;

/// Longest wait for another process to unlock the folder.
const UNLOCKED: Duration = Duration::from_secs(2);

/// A lock of the folder against other descriptors of it, also of this process. It ends when the
/// value is dropped.
pub(super) struct Lock<'a> {
    folder: &'a OwnedFd,
    is_held: bool,
}

impl<'a> Lock<'a> {
    /// Locks the folder; prints a warning, and returns without the lock, if that is not possible in
    /// time.
    pub fn of(folder: &'a OwnedFd, screen: &Screen) -> Lock<'a> {
        let until = Instant::now() + UNLOCKED;
        loop {
            match flock(folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Lock { folder, is_held: true },
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    thread::sleep(STEP);
                }
                Err(e) => {
                    let why = match e {
                        Errno::WOULDBLOCK => {
                            format!(
                                "another process has locked them for {UNLOCKED:?}; see: lslocks"
                            )
                        }
                        e => e.to_string(),
                    };
                    let what = "warning: the records of runs are not locked";
                    screen.change(&format!("{what}: {why}\n"));
                    return Lock { folder, is_held: false };
                }
            }
        }
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
