//! Waiting for descriptors: epoll, eventfd, timerfd, ppoll.
//!
//! Every wait takes a bound, which it passes to the kernel in nanoseconds. An interrupting signal
//! (EINTR) is retried with the time that is left, so a wait returns early for readiness only; but a
//! [`TimerPair`], and [`WaitSet::near`], may end it somewhat earlier or later, to save CPU time. A
//! caller that wants a signal to end an unbounded wait signals an [`EventFd`]. An
//! [`Epoll`] is itself a descriptor that reads as ready when a member is, so they nest.
//!
//! Source: epoll(7), epoll_pwait2(2) (Linux 5.11), eventfd(2), timerfd_create(2), ppoll(2).

use std::os::fd::OwnedFd;

use rustix::io;

mod epoll;
mod event_fd;
mod poll;
mod set;
mod timer_fd;
mod timer_pair;

pub use epoll::{Epoll, Event, EventFlags, NO_EVENT};
pub use event_fd::EventFd;
pub use poll::{POLL_FDS_MAX, is_writable, poll_each, poll_readable};
pub use set::WaitSet;
pub use timer_fd::TimerFd;
pub use timer_pair::TimerPair;

/// Reads the eight bytes of an eventfd or a timerfd; returns false if there was nothing to read.
fn read_counter(fd: &OwnedFd) -> bool {
    let mut counter = [0; 8];
    io::read(fd, &mut counter).is_ok_and(|n| n == counter.len())
}

#[cfg(test)]
mod tests;
