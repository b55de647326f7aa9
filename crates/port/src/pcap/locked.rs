//! A capture's file, with the lock that keeps other ports from writing it meanwhile.
//!
//! The lock is released explicitly. A process that another thread has just forked has the file open
//! until it executes its program, and would keep the lock for so long after the port was closed.
//!
//! Source: flock(2).

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Deref;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An open file, which may be locked until this value is dropped.
#[derive(Debug)]
pub(super) struct Locked {
    file: File,
    is_locked: bool,
}

impl Locked {
    /// Creates the value without locking the file.
    pub fn new(file: File) -> Locked {
        Locked { file, is_locked: false }
    }

    /// Locks the file by `operation`, which does not wait; returns false if another port prevents
    /// that. A file system without locks is accepted.
    pub fn lock(&mut self, operation: FlockOperation) -> bool {
        let locked = flock(&self.file, operation);
        self.is_locked = locked.is_ok();
        locked != Err(Errno::WOULDBLOCK)
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Read for Locked {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes)
    }
}

impl Write for Locked {
    /// Waits for room also in a nonblocking file: another process that shares the standard output
    /// may have made it so.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let mut file = [PollFd::new(&self.file, PollFlags::OUT)];
                    match poll(&mut file, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.is_locked {
            // The call does not fail: the file is open and locked.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}
