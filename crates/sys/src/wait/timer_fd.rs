//! Alarms.
//!
//! Source: timerfd_create(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use super::poll::timespec;
use super::read_counter;
use crate::error::{Code, Error, Result};

/// An alarm: a descriptor that is readable after the set time, until it is drained or set again.
#[derive(Debug)]
pub struct TimerFd {
    fd: OwnedFd,
}

impl TimerFd {
    /// Returns an alarm that is not set, on the monotonic clock ([`Instant`]'s).
    ///
    /// # Errors
    /// `E-SYSTEM` when the process or the machine is out of descriptors.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| Error::os(Code::System, "cannot create a timer", "timerfd_create", e))?;
        Ok(TimerFd { fd })
    }

    /// Sets the alarm to `at`, once; a time in the past rings immediately. `None` turns it off.
    ///
    /// Either way an earlier ring that was not drained is forgotten.
    ///
    /// # Errors
    /// None that a valid descriptor can give.
    ///
    /// Cost: one syscall and one clock read.
    pub fn set_at(&self, at: Option<Instant>) -> io::Result<()> {
        // The value of an Instant cannot be read, so the alarm is relative to now, on the same
        // clock. A relative 0 would mean off, hence at least 1 ns.
        let after = at.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let spec = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(after) };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec).map(drop)
    }

    /// Makes the alarm unreadable again; returns true if it had fired.
    ///
    /// Cost: one syscall. Never blocks.
    pub fn drain(&self) -> bool {
        read_counter(&self.fd)
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
