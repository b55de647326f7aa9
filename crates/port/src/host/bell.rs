//! The single descriptor of a queue, which is readable only for events for which the queue is
//! armed.
//!
//! ```text
//!  outside ──► epoll ─┬─ the device: readable, writable, in error
//!                     └─ an alarm: what the device will not announce
//! ```
//!
//! The device is watched level-triggered, and for writability only while it is wanted, so that no
//! event is announced twice and an idle queue is silent. An error is always reported;
//! [`Bell::look`] tells it from other events.
//!
//! Watching costs CPU time on the other side: each packet given to the device, and each one freed
//! after it was sent, calls the watcher, awake or not. So a device that has work for us anyway is
//! not watched.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{EventFlags, NO_EVENT, WaitSet};

use super::RETRY;
use crate::queue::Want;

const DEVICE: u64 = 0;
const ALARM: u64 = 1;
/// Number of successive calls with work after which it pays to stop notifications, which takes two
/// syscalls.
const BUSY: u32 = 8;

/// The descriptor of a queue, with the device and timer that it watches.
#[derive(Debug)]
pub struct Bell {
    set: WaitSet,
    interest: EventFlags,
    device: Device,
    /// Number of calls that found work since the device was last watched.
    found: u32,
}

/// The state of the device in the epoll set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Watched,
    /// Not watched, because the device currently has work in every call.
    LeftAlone,
    /// Removed from the set.
    Forgotten,
}

impl Bell {
    /// The events of a device in error.
    pub(crate) const TROUBLE: EventFlags = EventFlags::ERR.union(EventFlags::HUP);

    /// Creates a bell that watches `device` for frames. It rings once immediately, for callers that
    /// wait before they arm.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(device: impl AsFd) -> Result<Bell> {
        let (mut set, interest) = (WaitSet::new(ALARM)?, EventFlags::IN);
        let fail = |e| Error::os(Code::System, "cannot wait for a device", "epoll_ctl", e);
        set.add(device, DEVICE, interest).map_err(fail)?;
        set.alarm(Some(Instant::now())).map_err(fail)?;
        Ok(Bell { set, interest, device: Device::Watched, found: 0 })
    }

    /// Watches `device` for `want`, or for no event if that is `None`, and also rings at `alarm`. A
    /// device that cannot be watched (the kernel has no memory, or the user has no watch left)
    /// rings soon instead, so that the caller looks at it.
    ///
    /// Cost: a syscall for each of the two that changed, and one if it was not watched; an alarm that
    ///       has rung counts as changed.
    pub fn watch(&mut self, device: impl AsFd, want: Option<Want>, alarm: Option<Instant>) {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, want.is_some_and(Want::frames));
        interest.set(EventFlags::OUT, want.is_some_and(Want::room));
        self.found = 0;
        let is_watched = match self.device {
            Device::Watched if interest == self.interest => true,
            Device::Watched => self.set.modify(device, DEVICE, interest).is_ok(),
            // An event that is already pending is reported when the device is added.
            Device::LeftAlone => self.set.add(device, DEVICE, interest).is_ok(),
            Device::Forgotten => false,
        };
        if is_watched {
            (self.device, self.interest) = (Device::Watched, interest);
        }
        let is_deaf = !is_watched && self.device != Device::Forgotten;
        let soon = if is_deaf { Instant::now().checked_add(RETRY) } else { None };
        self.alarm(alarm.into_iter().chain(soon).min());
    }

    /// Watches `device` for errors, if it was left alone. What the bell rings for stays as it is.
    ///
    /// Cost: a syscall, if it was left alone.
    pub(crate) fn watch_errors(&mut self, device: impl AsFd) {
        let none = EventFlags::empty();
        if self.device == Device::LeftAlone && self.set.add(device, DEVICE, none).is_ok() {
            (self.device, self.interest, self.found) = (Device::Watched, none, 0);
        }
    }

    /// Records that `device` received or sent packets although no caller waits; after several such
    /// calls the device is no longer watched.
    ///
    /// Cost: a syscall, once between two calls of [`Bell::watch`].
    pub fn busy(&mut self, device: impl AsFd) {
        self.found = self.found.saturating_add(1);
        let enough = self.found == BUSY && self.device == Device::Watched;
        if enough && self.set.delete(device).is_ok() {
            self.device = Device::LeftAlone;
        }
    }

    /// Rings at `alarm` only, until the device is watched again: not for its errors or its end
    /// either.
    ///
    /// Cost: a syscall for each of the two that changed.
    pub(crate) fn leave(&mut self, device: impl AsFd, alarm: Option<Instant>) {
        if self.device == Device::Watched && self.set.delete(device).is_ok() {
            self.device = Device::LeftAlone;
        }
        self.alarm(alarm);
    }

    /// Rings at `at`, independent of the device.
    ///
    /// Cost: a syscall if it changed.
    pub fn alarm(&mut self, at: Option<Instant>) {
        // Setting the alarm cannot fail, because its descriptor is a timer.
        let _ = self.set.alarm(at);
    }

    /// Makes the bell ring at `at` or earlier; returns true if it will.
    ///
    /// Cost: a syscall, unless it rings before.
    pub fn no_later(&mut self, at: Instant) -> bool {
        self.set.no_later(at)
    }

    /// Rings near `at`, at most a quarter of the time until then earlier or a sixteenth later, and
    /// does not watch `device` until it is watched again; returns true if the bell will ring.
    ///
    /// Cost: a syscall; more for the first of several in a row.
    pub fn hold(&mut self, device: impl AsFd, at: Instant) -> bool {
        let none = EventFlags::empty();
        let watched = self.device == Device::Watched && self.interest != none;
        if watched && self.set.modify(device, DEVICE, none).is_ok() {
            self.interest = none;
        }
        self.set.near(Instant::now(), at).is_ok()
    }

    /// Stops watching a removed device, because its descriptor would report an error without end.
    pub fn forget(&mut self, device: impl AsFd) {
        // The call fails if the device is not in the set, which is harmless.
        let _ = self.set.delete(device);
        self.device = Device::Forgotten;
    }

    /// Watches `device` in place of a closed one.
    ///
    /// # Errors
    /// The system's own, without memory.
    pub fn replace(&mut self, device: impl AsFd) -> std::io::Result<()> {
        self.set.add(device, DEVICE, self.interest)?;
        self.device = Device::Watched;
        Ok(())
    }

    /// Returns true if the device is in error.
    ///
    /// Cost: a syscall.
    #[must_use]
    pub fn look(&self) -> bool {
        self.pending().intersects(Self::TROUBLE)
    }

    /// Returns the device's events: errors, and those for which it is watched.
    ///
    /// Cost: a syscall.
    pub(crate) fn pending(&self) -> EventFlags {
        // The device, and two alarms that have rung.
        let mut events = [NO_EVENT; 3];
        let n = self.set.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
        // Copy the fields, because the kernel's structure is packed.
        let device = events[..n].iter().find(|&&e| { e.data }.u64() == DEVICE);
        device.map_or(EventFlags::empty(), |&e| e.flags)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_sys::wait::{EventFd, poll_readable};

    fn rings(bell: &Bell) -> bool {
        poll_readable(&[bell.as_fd()], Some(Duration::ZERO)).unwrap()
    }

    /// Returns a bell that watches a device which is readable already.
    fn rung() -> (Bell, EventFd) {
        let device = EventFd::new().unwrap();
        let mut bell = Bell::new(&device).unwrap();
        // Its timer has expired, which the kernel may notice a moment later.
        let soon = poll_readable(&[bell.as_fd()], Some(Duration::from_secs(20))).unwrap();
        assert!(soon, "for callers that wait before they arm");
        bell.watch(&device, Some(Want::Frames), None);
        assert!(!rings(&bell));
        device.signal();
        assert!(rings(&bell));
        (bell, device)
    }

    #[test]
    fn a_device_with_work_anyway_is_left_alone_until_it_is_waited_for() {
        let (mut bell, device) = rung();
        for call in 1..BUSY {
            bell.busy(&device);
            assert!(rings(&bell), "watched for at call {call}");
        }
        bell.busy(&device);
        assert!(!rings(&bell), "left alone");
        bell.busy(&device);
        bell.watch(&device, Some(Want::Frames), None);
        assert!(rings(&bell), "what came meanwhile is noticed");
        bell.busy(&device);
        assert!(rings(&bell), "counted anew");
    }

    #[test]
    fn a_busy_device_is_watched_only_for_an_event_that_is_wanted() {
        let (mut bell, device) = rung();
        (0..BUSY).for_each(|_| bell.busy(&device));
        bell.watch(&device, None, None);
        assert!(!rings(&bell));
        bell.watch(&device, Some(Want::Frames), None);
        assert!(rings(&bell));
    }

    #[test]
    fn a_bell_that_watches_for_errors_too_rings_as_before() {
        for busy in [0, BUSY] {
            let device = EventFd::new().unwrap();
            let mut bell = Bell::new(&device).unwrap();
            (0..busy).for_each(|_| bell.busy(&device));
            bell.watch_errors(&device);
            let soon = Some(Duration::from_secs(20));
            assert!(poll_readable(&[bell.as_fd()], soon).unwrap(), "it was never armed");
            bell.watch(&device, Some(Want::Frames), None);
            (0..busy).for_each(|_| bell.busy(&device));
            let later = |time: Duration| Instant::now() + time;
            assert!(bell.hold(&device, later(Duration::from_secs(100))));
            bell.watch_errors(&device);
            device.signal();
            assert!(!rings(&bell), "it is held");
            assert!(bell.hold(&device, later(Duration::from_millis(5))));
            bell.watch_errors(&device);
            assert!(poll_readable(&[bell.as_fd()], soon).unwrap(), "the hold ends");
        }
    }

    #[test]
    fn a_held_device_rings_for_the_time_alone_until_it_is_watched_again() {
        for busy in [0, BUSY] {
            let (mut bell, device) = rung();
            (0..busy).for_each(|_| bell.busy(&device));
            let later = Instant::now() + Duration::from_millis(5);
            assert!(bell.hold(&device, later) && !rings(&bell));
            let in_time = Some(Duration::from_secs(5));
            assert!(poll_readable(&[bell.as_fd()], in_time).unwrap() && Instant::now() >= later);
            assert!(bell.hold(&device, later + Duration::from_secs(100)) && !rings(&bell));
            bell.watch(&device, Some(Want::Frames), None);
            assert!(rings(&bell), "what came meanwhile is noticed");
        }
    }

    #[test]
    fn a_device_that_cannot_be_watched_is_looked_at_soon() {
        let (mut bell, device) = rung();
        (0..BUSY).for_each(|_| bell.busy(&device));
        // epoll refuses a regular file, as it refuses every device without memory.
        let refused = std::fs::File::open("/proc/self/exe").unwrap();
        let late = Instant::now() + Duration::from_secs(100);
        for alarm in [None, Some(late)] {
            bell.watch(&refused, Some(Want::Frames), alarm);
            assert!(poll_readable(&[bell.as_fd()], Some(Duration::from_secs(5))).unwrap());
        }
        bell.watch(&device, Some(Want::Frames), None);
        assert!(rings(&bell), "watched again");
    }

    #[test]
    fn a_device_that_is_gone_is_never_watched_again() {
        for busy in [0, BUSY] {
            let (mut bell, device) = rung();
            (0..busy).for_each(|_| bell.busy(&device));
            bell.forget(&device);
            bell.watch(&device, Some(Want::Frames), None);
            assert!(!rings(&bell));
            let other = EventFd::new().unwrap();
            other.signal();
            bell.replace(&other).unwrap();
            bell.watch(&other, Some(Want::Frames), None);
            assert!(rings(&bell));
        }
    }
}
