//! The file from which a capture is read: a regular file, or a stream that must not block the
//! caller.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{Epoll, EventFlags, TimerFd, poll_readable};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::config::Place;
use super::denied;
use super::locked::Locked;
use crate::host::Bell;
use crate::queue::Want;

/// A file that never blocks: without bytes to read it returns `WouldBlock`.
pub(super) struct Source {
    file: Locked,
    ready: Ready,
}

/// Descriptor that becomes readable when the file has bytes.
enum Ready {
    /// A regular file, which is always ready; the timer signals the next attempt.
    Always(TimerFd),
    /// A pipe, a socket or a terminal.
    Stream(Bell),
}

impl Source {
    pub fn open(place: &Place) -> Result<Source> {
        let what = || format!("cannot read {place}");
        let failed =
            |call: &str, e: io::Error| Error::new(Code::File, what(), format!("{call}: {e}"));
        let file = match place {
            Place::Standard if io::stdin().is_terminal() => {
                let error = Error::new(Code::File, what(), "the standard input is a terminal");
                return Err(error.fix("pipe a capture into it: tcpdump -w - | …"));
            }
            Place::Standard => {
                let owned = io::stdin().as_fd().try_clone_to_owned();
                File::from(owned.map_err(|e| failed("dup", e))?)
            }
            // Without O_NONBLOCK, opening a FIFO would wait for its writer.
            Place::File(path) => OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .map_err(|e| {
                    let fix = denied(path, &e)
                        .unwrap_or("name an existing file that this user may read: ls -l".into());
                    failed("open", e).fix(fix)
                })?,
        };
        let kind = file.metadata().map_err(|e| failed("fstat", e))?.file_type();
        if kind.is_dir() {
            return Err(
                Error::new(Code::File, what(), "it is a directory").fix("name a file in it")
            );
        }
        let mut file = Locked::new(file);
        // The lock prevents a port that writes this file from truncating it (see write.rs).
        if kind.is_file() && !file.lock(FlockOperation::NonBlockingLockShared) {
            let error = Error::new(Code::Busy, what(), "another port is writing it");
            return Err(error.fix("read it when it is complete"));
        }
        Ok(Source { ready: Ready::of(&file)?, file })
    }

    /// Returns true if the file is a stream, whose bytes arrive over time.
    pub fn is_stream(&self) -> bool {
        matches!(self.ready, Ready::Stream(_))
    }

    /// Makes the descriptor readable at `alarm`, and if `wanted` also when a stream has bytes.
    ///
    /// Cost: a syscall for each of the two that changed.
    pub fn watch(&mut self, wanted: bool, alarm: Option<Instant>) {
        match &mut self.ready {
            // Setting the timer cannot fail.
            Ready::Always(timer) => drop(timer.set_at(alarm)),
            Ready::Stream(bell) if wanted => {
                bell.watch(&*self.file, Some(Want::Frames), alarm);
            }
            // A watched pipe without a writer would ring without end.
            Ready::Stream(bell) => bell.leave(&*self.file, alarm),
        }
    }

    /// Stops watching: the descriptor is never readable again.
    pub fn unwatch(&mut self) {
        self.watch(false, None);
        if let Ready::Stream(bell) = &mut self.ready {
            // Stop watching: the end of the stream would be reported without end.
            bell.forget(&*self.file);
        }
    }
}

impl Ready {
    fn of(file: &File) -> Result<Ready> {
        match Epoll::new()?.add(file, 0, EventFlags::IN) {
            Ok(()) => Ok(Ready::Stream(Bell::new(file)?)),
            // epoll refuses files that never block, such as a regular file or /dev/null.
            Err(Errno::PERM) => {
                let timer = TimerFd::new()?;
                // Start readable, for callers that wait before they arm. Setting the timer cannot
                // fail.
                let _ = timer.set_at(Some(Instant::now()));
                Ok(Ready::Always(timer))
            }
            Err(e) => Err(Error::os(Code::System, "cannot wait for a capture", "epoll_ctl", e)),
        }
    }
}

impl Read for Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // Poll before reading: the standard input may be shared with other processes, so it must
        // not be made nonblocking.
        if self.is_stream() && !poll_readable(&[self.file.as_fd()], Some(Duration::ZERO))? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.file.read(bytes)
    }
}

/// The descriptor that is readable when the file has bytes.
impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.ready {
            Ready::Always(timer) => timer.as_fd(),
            Ready::Stream(bell) => bell.as_fd(),
        }
    }
}
