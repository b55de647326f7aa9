//! Sets of descriptors to wait for together.
//!
//! Source: epoll(7), epoll_pwait2(2) (Linux 5.11).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::{self, Errno};

use super::poll::{Bound, poll_retrying};
use crate::error::{Code, Error, Result, check};

pub use rustix::event::epoll::{Event, EventFlags};

/// An empty event, to fill a buffer before the first [`Epoll::wait`].
pub const NO_EVENT: Event =
    Event { flags: EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// A set of descriptors to wait for together.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// Returns an empty set.
    ///
    /// # Errors
    /// `E-SYSTEM` when the process or the machine is out of descriptors.
    pub fn new() -> Result<Self> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| Error::os(Code::System, "cannot create a wait set", "epoll_create1", e))?;
        Ok(Epoll { fd })
    }

    /// Adds `source`; its events will carry `tag`. The set does not keep `source` open.
    ///
    /// # Errors
    /// EEXIST if it is a member, EPERM if it cannot be waited for (a regular file), ELOOP if sets
    /// would contain each other or nest deeper than five.
    pub fn add(&self, source: impl AsFd, tag: u64, interest: EventFlags) -> io::Result<()> {
        epoll::add(&self.fd, source, epoll::EventData::new_u64(tag), interest)
    }

    /// Changes the tag and interest of a member; rearms a member that was added with `ONESHOT`.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn modify(&self, source: impl AsFd, tag: u64, interest: EventFlags) -> io::Result<()> {
        epoll::modify(&self.fd, source, epoll::EventData::new_u64(tag), interest)
    }

    /// Removes a member. Closing the last descriptor of a source removes the source as well.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn delete(&self, source: impl AsFd) -> io::Result<()> {
        epoll::delete(&self.fd, source)
    }

    /// Waits until a member is ready, and writes the events to the front of `events`.
    ///
    /// Shape:  returns n; `events[..n]` are written, n <= events.len(); 0 means the time is over.
    /// Units:  `timeout`: `None` waits without bound, zero only looks.
    /// Errors: EINVAL for an empty `events`. EINTR is retried with the time left.
    /// Cost:   one syscall; two clock reads if bounded, above zero and interrupted, else one.
    /// Source: epoll_pwait2(2).
    pub fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let bound = Bound::new(timeout);
        let mut left = bound.first;
        loop {
            match epoll::wait(&self.fd, &mut *events, left.as_ref()) {
                Err(Errno::INTR) => left = bound.left(),
                Err(Errno::NOSYS | Errno::PERM) => return self.wait_in_two(events, timeout),
                other => return other,
            }
        }
    }

    /// Waits as [`Epoll::wait`] does, without epoll_pwait2, which some sandboxes lack: old seccomp
    /// profiles, gVisor, valgrind.
    ///
    /// Cost: a syscall, two more for each time that it sleeps, after one that failed.
    ///
    /// Source: epoll_wait(2).
    #[cold]
    pub(super) fn wait_in_two(
        &self,
        events: &mut [Event],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let n = self.look(events)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // An epoll descriptor is readable when a member is ready; the member may no longer be
            // ready when it is read.
            if n > 0 || left == Some(Duration::ZERO) || !self.poll(left)? {
                return Ok(n);
            }
        }
    }

    /// Waits until a member is ready; returns false if the time is over first.
    fn poll(&self, left: Option<Duration>) -> io::Result<bool> {
        let mut set = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll_retrying(&mut set, &Bound::new(left))
    }

    /// Returns the events that are ready now, by epoll_wait.
    fn look(&self, events: &mut [Event]) -> io::Result<usize> {
        let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: `events` has room for `most` entries; the kernel writes at most `most`, and
        // returns the number. Both types are the kernel's epoll_event: 12 bytes, packed, on x86-64,
        // 16 elsewhere, as asserted below.
        let n =
            unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), most, 0) };
        check(n).map(|n| n as usize)
    }
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::epoll_event>());

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
