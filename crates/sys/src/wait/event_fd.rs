//! Doorbells between threads or processes.
//!
//! Source: eventfd(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io;

use super::read_counter;
use crate::error::{Code, Error, Result};

/// A doorbell between threads or processes: readable from the first signal until it is drained.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates a doorbell that has not been rung.
    ///
    /// # Errors
    /// `E-SYSTEM` when the process or the machine is out of descriptors.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os(Code::System, "cannot create a doorbell", "eventfd", e))?;
        Ok(EventFd { fd })
    }

    /// Creates the value from an existing doorbell's descriptor, such as one that a peer sent. This
    /// makes the open file nonblocking; a peer that has the file, too, can make it blocking again,
    /// see [`EventFd::drain`].
    ///
    /// # Errors
    /// `E-SYSTEM` if it cannot be made nonblocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        io::ioctl_fionbio(&fd, true)
            .map_err(|e| Error::os(Code::System, "cannot use a peer's doorbell", "FIONBIO", e))?;
        Ok(EventFd { fd })
    }

    /// Rings the doorbell. Any number of rings before a drain count as one.
    ///
    /// Cost: one syscall. Never blocks, unless a peer has the open file: see
    /// [`EventFd::signal_shared`]. Never fails: a counter at its maximum is already readable.
    pub fn signal(&self) {
        let _ = io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Rings a doorbell that a peer has, too, without blocking. A peer shares the open file, so it
    /// can fill the counter and make the file blocking; that delays no thread that calls this.
    ///
    /// Cost: one syscall. In a thread without asynchronous requests
    /// ([`EventFd::can_signal_shared`]) two, and the second one blocks if the peer fills the
    /// counter between them.
    pub fn signal_shared(&self) {
        if crate::aio::signal(self.fd.as_fd()) {
            return;
        }
        if cfg!(miri) {
            // Miri supports neither poll(2) nor other processes.
            return self.signal();
        }
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n == 1)
            && fds[0].revents().contains(PollFlags::OUT)
        {
            self.signal();
        }
    }

    /// Returns true if [`EventFd::signal_shared`] does not block in the calling thread. It rings
    /// the doorbell.
    ///
    /// Each thread needs a context of its own for asynchronous requests, and the machine has
    /// a limited number of them (fs.aio-max-nr): where one thread has its context, another may find
    /// none left. That thread tries again after some signals.
    #[must_use]
    pub fn can_signal_shared(&self) -> bool {
        crate::aio::signal(self.fd.as_fd())
    }

    /// Makes the doorbell unreadable again; returns true if it had been rung.
    ///
    /// Cost: one syscall. Blocks only if a peer that has the open file ([`EventFd::from_fd`]) has
    /// made the file blocking and the doorbell has not been rung. A caller that must not block
    /// drains a readable doorbell only; that peer can still drain the doorbell between both calls.
    pub fn drain(&self) -> bool {
        read_counter(&self.fd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
