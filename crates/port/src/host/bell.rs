//! The one descriptor of a queue: readable for whatever the queue is armed for, and only then.
//!
//! ```text
//!  outside ──► epoll ─┬─ the device: readable, writable, in error
//!                     └─ an alarm: what the device will not announce
//! ```
//!
//! The device is watched level-triggered and writability only while it is wanted, so that nothing
//! is announced twice and an idle queue is silent. An error is reported whether it is wanted or
//! not; [`Bell::look`] is how to find out.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{Epoll, EventFlags, NO_EVENT, TimerFd};

use crate::queue::Want;

const DEVICE: u64 = 0;
const ALARM: u64 = 1;

/// The descriptor of a queue, and what it watches.
pub(crate) struct Bell {
    set: Epoll,
    timer: TimerFd,
    interest: EventFlags,
    alarm: Option<Instant>,
}

impl Bell {
    /// Watches `device` for frames; rings once at once, for whoever waits before he arms.
    pub fn new(device: impl AsFd) -> Result<Bell> {
        let (set, timer) = (Epoll::new()?, TimerFd::new()?);
        let interest = EventFlags::IN;
        let fail = |e| Error::os(Code::System, "cannot wait for a device", "epoll_ctl", e);
        set.add(device, DEVICE, interest).map_err(fail)?;
        set.add(&timer, ALARM, EventFlags::IN).map_err(fail)?;
        let now = Some(Instant::now());
        timer.set_at(now).map_err(fail)?;
        Ok(Bell { set, timer, interest, alarm: now })
    }

    /// Watches `device` for what is wanted of it, or for nothing, and rings at `alarm` anyway.
    ///
    /// Cost: a syscall for each of the two that changed.
    pub fn watch(&mut self, device: impl AsFd, want: Option<Want>, alarm: Option<Instant>) {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, want.is_some_and(Want::frames));
        interest.set(EventFlags::OUT, want.is_some_and(Want::room));
        // Fails only for a device that `forget` removed: then there is nothing to watch.
        if interest != self.interest && self.set.modify(device, DEVICE, interest).is_ok() {
            self.interest = interest;
        }
        self.alarm(alarm);
    }

    /// Rings at `at`, whatever the device does.
    ///
    /// Cost: a syscall if it changed.
    pub fn alarm(&mut self, at: Option<Instant>) {
        if at != self.alarm && self.timer.set_at(at).is_ok() {
            self.alarm = at;
        }
    }

    /// Stops watching a device that is gone and would be in error for ever.
    pub fn forget(&self, device: impl AsFd) {
        let _ = self.set.delete(device);
    }

    /// Watches `device` instead of one that was closed.
    ///
    /// # Errors
    /// The system's own, without memory.
    pub fn replace(&mut self, device: impl AsFd) -> std::io::Result<()> {
        self.set.add(device, DEVICE, self.interest)?;
        Ok(())
    }

    /// True if the device is in error.
    ///
    /// Cost: a syscall.
    pub fn look(&self) -> bool {
        let mut events = [NO_EVENT; 2];
        let n = self.set.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
        let trouble = EventFlags::ERR | EventFlags::HUP;
        // Copies, because the kernel's structure is packed.
        events[..n].iter().any(|&e| { e.data }.u64() == DEVICE && { e.flags }.intersects(trouble))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
