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
pub(super) struct Lock<'a>(&'a OwnedFd);

impl<'a> Lock<'a> {
    /// Locks the folder; prints a warning, and returns without the lock, if that is not possible in
    /// time.
    pub fn of(folder: &'a OwnedFd, screen: &Screen) -> Lock<'a> {
        let until = Instant::now() + UNLOCKED;
        loop {
            match flock(folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
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
                    break;
                }
            }
        }
        Lock(folder)
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}
