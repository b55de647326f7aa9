//! The lock of the folder of records, which keeps runs of this user from restoring what another one
//! is about to record.
//!
//! It is a lock of a file in the folder that only this user can open. The folder itself may be
//! readable by others, who could then lock it.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use linerate::{Code, Error};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::record::folder_name;
use super::{STEP, is_own};
use crate::screen::Screen;

/// Longest wait for another process to unlock the records.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Longest such wait of a thread that serves clients meanwhile. It exceeds the time for which a run
/// that begins waits, with the lock, until programs are detached.
pub(super) const LOCK_WAIT_SERVING: Duration = Duration::from_millis(750);
/// Name of the file that is locked. It stays in the folder: if a process removed it, two others
/// could lock two files.
pub(super) const LOCK: &str = "lock";
const NOT_LOCKED: &str = "the records of runs are not locked";

/// A lock of the records against other values, also of this process. It ends when the value is
/// dropped.
pub(super) struct Lock {
    /// The locked file; `None` if it could not be locked.
    file: Option<OwnedFd>,
}

impl Lock {
    /// Locks the records in the folder, which another process may unlock within `wait`.
    ///
    /// # Errors
    /// `E-BUSY` if it does not; `E-FILE` if the file of the lock cannot be opened or locked.
    pub fn take(folder: &OwnedFd, wait: Duration) -> linerate::Result<Lock> {
        let until = Instant::now() + wait;
        let file = opened(folder)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { file: Some(file) }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    thread::sleep(STEP);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let why = format!("another process has locked them for {wait:?}");
                    return Err(Error::new(Code::Busy, NOT_LOCKED, why).fix("see: lslocks"));
                }
                Err(e) => return Err(Error::os(Code::File, NOT_LOCKED, "flock", e)),
            }
        }
    }

    /// Locks the records as [`Lock::take`] does; prints a warning, and returns without the lock, if
    /// that is not possible.
    pub fn of(folder: &OwnedFd, wait: Duration, screen: &Screen) -> Lock {
        Lock::take(folder, wait).unwrap_or_else(|Error { what, why, fix, .. }| {
            let see = if fix.is_empty() { fix } else { format!("; {fix}") };
            screen.change(&format!("warning: {what}: {why}{see}\n"));
            Lock { file: None }
        })
    }

    /// Returns false if the records could not be locked.
    pub fn is_held(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// Opens the file of the lock, which it creates if there is none.
fn opened(folder: &OwnedFd) -> linerate::Result<OwnedFd> {
    let path = format!("{}/{LOCK}", folder_name());
    let see = format!("see: ls -ld {path}");
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, LOCK, flags | OFlags::RDONLY, Mode::RUSR | Mode::WUSR)
        .map_err(|e| Error::os(Code::File, NOT_LOCKED, &path, e).fix(&see))?;
    if !is_own(&file, FileType::RegularFile) {
        let why = format!("{path} must be a file of this user that no other user can write");
        return Err(Error::new(Code::File, NOT_LOCKED, why).fix(see));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use linerate_testing::Scratch;

    use super::*;

    fn folder(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn records_are_locked_until_the_lock_is_dropped() {
        let scratch = Scratch::new();
        let [one, another] = [(); 2].map(|()| folder(&scratch.0));
        let lock = Lock::of(&one, LOCK_WAIT, &Screen::plain(true));
        assert!(lock.is_held());
        let e = Lock::take(&another, Duration::ZERO).err().unwrap();
        assert_eq!((e.code, &*e.fix), (Code::Busy, "see: lslocks"), "{e}");
        drop(lock);
        assert!(Lock::take(&another, Duration::ZERO).is_ok());
        let mode = fs::metadata(scratch.0.join(LOCK)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "no other user can open and lock it");
    }

    #[test]
    fn lock_that_is_a_link_or_that_others_can_write_is_refused() {
        let scratch = Scratch::new();
        let (folder, path) = (folder(&scratch.0), scratch.0.join(LOCK));
        let refused = || Lock::take(&folder, Duration::ZERO).err().unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        let e = refused();
        assert!(e.code == Code::File && e.why.contains("no other user can write"), "{e}");
        fs::remove_file(&path).unwrap();
        symlink("other", &path).unwrap();
        let e = refused();
        assert!(e.code == Code::File && e.fix.starts_with("see: ls -ld "), "{e}");
        assert!(!scratch.0.join("other").exists());
    }
}
