//! Waits for several descriptors at once, without a set, and the bound of a wait.
//!
//! Source: ppoll(2).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Most descriptors for which [`poll_readable`] needs no allocation.
pub const POLL_FDS_MAX: usize = 64;

/// Waits until one of `fds` can be read, or has an error that reading would report.
///
/// Shape:  true if one is ready, false if the time is over first.
/// Units:  `timeout`: `None` waits without bound, zero only looks.
/// Errors: EINTR is retried with the time left.
/// Cost:   one syscall; two clock reads if bounded, above zero and interrupted, else one. An
///         allocation for more than [`POLL_FDS_MAX`] descriptors.
/// Source: ppoll(2).
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    poll_each(fds, timeout, |_| {})
}

/// Returns true if `fd` can be written to now; false also if it cannot be asked.
///
/// Cost:   one syscall.
/// Source: ppoll(2).
#[must_use]
pub fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut set = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let asked = poll_retrying(&mut set, &Bound::new(Some(Duration::ZERO)));
    asked.is_ok() && set[0].revents().contains(PollFlags::OUT)
}

/// Waits as [`poll_readable`] does, and calls `ready` with the index of each descriptor that is
/// ready.
///
/// Shape, units, errors, cost and source: as [`poll_readable`].
#[inline]
pub fn poll_each(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    mut ready: impl FnMut(usize),
) -> io::Result<bool> {
    let mut tell = |set: &[PollFd<'_>]| {
        let is_ready = |(_, fd): &(usize, &PollFd<'_>)| !fd.revents().is_empty();
        set.iter().enumerate().filter(is_ready).for_each(|(i, _)| ready(i));
    };
    let bound = Bound::new(timeout);
    if fds.len() > POLL_FDS_MAX {
        let mut set: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let is_ready = poll_retrying(&mut set, &bound)?;
        tell(&set);
        return Ok(is_ready);
    }
    let Some(&first) = fds.first() else {
        return Ok(poll_retrying(&mut [], &bound)?);
    };
    // The array is on the stack; entries from fds.len() on are copies of the first, and are cut off
    // below.
    let mut set: [PollFd<'_>; POLL_FDS_MAX] = std::array::from_fn(|i| {
        PollFd::from_borrowed_fd(fds.get(i).copied().unwrap_or(first), PollFlags::IN)
    });
    let is_ready = poll_retrying(&mut set[..fds.len()], &bound)?;
    tell(&set[..fds.len()]);
    Ok(is_ready)
}

pub(super) fn poll_retrying(set: &mut [PollFd<'_>], bound: &Bound) -> rustix::io::Result<bool> {
    let mut left = bound.first;
    loop {
        match rustix::event::poll(set, left.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => left = bound.left(),
            Err(e) => return Err(e),
        }
    }
}

/// The deadline of a wait, from which an interrupted wait computes the remaining time.
pub(super) struct Bound {
    pub first: Option<Timespec>,
    deadline: Option<Instant>,
}

impl Bound {
    pub fn new(timeout: Option<Duration>) -> Self {
        // A deadline that overflows the clock is later than any uptime: it means no limit.
        let deadline = match timeout {
            None | Some(Duration::ZERO) => None,
            Some(t) => Instant::now().checked_add(t),
        };
        Bound { first: timeout.map(timespec), deadline }
    }

    pub fn left(&self) -> Option<Timespec> {
        match self.deadline {
            Some(at) => Some(timespec(at.saturating_duration_since(Instant::now()))),
            None => self.first,
        }
    }
}

pub(super) fn timespec(d: Duration) -> Timespec {
    // The kernel caps seconds at i64::MAX nanoseconds itself (KTIME_SEC_MAX).
    Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}
