//! Waiting for descriptors: epoll, eventfd, timerfd, ppoll.
//!
//! Every wait takes a bound and keeps it to the nanosecond the kernel counts in. An interrupting
//! signal (EINTR) is retried with the time that is left, so a wait returns early for readiness
//! only and never late; a caller that wants a signal to end an unbounded wait signals an [`EventFd`].
//! An [`Epoll`] is itself a descriptor that reads as ready when a member is, so they nest.
//!
//! Source: epoll(7), epoll_pwait2(2) (Linux 5.11), eventfd(2), timerfd_create(2), ppoll(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::io::{self, Errno};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::error::{Code, Error, Result};

mod set;

pub use rustix::event::epoll::{Event, EventFlags};
pub use set::WaitSet;

/// An empty event, to fill a buffer before the first [`Epoll::wait`].
pub const NO_EVENT: Event =
    Event { flags: EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// Most descriptors for which [`poll_readable`] needs no allocation.
pub const POLL_FDS_MAX: usize = 64;

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
    fn wait_in_two(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let n = self.look(events)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // An epoll descriptor is readable when a member is ready; the member may no longer be
            // ready when it is read.
            if n > 0 || left == Some(Duration::ZERO) || !poll_readable(&[self.as_fd()], left)? {
                return Ok(n);
            }
        }
    }

    /// Returns the events that are ready now, by epoll_wait.
    fn look(&self, events: &mut [Event]) -> io::Result<usize> {
        let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: `events` has room for `most` entries; the kernel writes at most `most`, and returns
        // the number. Both types are the kernel's epoll_event: 12 bytes, packed, on x86-64, 16
        // elsewhere, as asserted below.
        let n =
            unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), most, 0) };
        usize::try_from(n).map_err(|_| {
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
        })
    }
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::epoll_event>());

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

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

    /// Creates the value from an existing doorbell's descriptor, such as one that a peer sent. The
    /// descriptor must be nonblocking, see [`EventFd::drain`].
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
    /// Cost: one syscall. Never blocks, never fails: a counter at its maximum is already readable.
    pub fn signal(&self) {
        let _ = io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Rings a doorbell that a peer has, too, without blocking. A peer shares the open file, so it
    /// can fill the counter and make the file blocking; that delays no thread that calls this.
    ///
    /// Cost: one syscall. Where the kernel has no asynchronous requests ([`EventFd::can_signal_shared`]) two, and
    /// the second one blocks if the peer fills the counter between them.
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

    /// Returns true if [`EventFd::signal_shared`] never blocks on this machine. It rings the doorbell.
    #[must_use]
    pub fn can_signal_shared(&self) -> bool {
        crate::aio::signal(self.fd.as_fd())
    }

    /// Makes the doorbell unreadable again; returns true if it had been rung.
    ///
    /// Cost: one syscall. Never blocks.
    pub fn drain(&self) -> bool {
        read_counter(&self.fd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

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

/// Waits until one of `fds` can be read, or has an error that reading would report.
///
/// Shape:  true if one is ready, false if the time is over first.
/// Units:  `timeout`: `None` waits without bound, zero only looks.
/// Errors: EINTR is retried with the time left.
/// Cost:   one syscall; two clock reads if bounded, above zero and interrupted, else one. An allocation
///         for more than [`POLL_FDS_MAX`] descriptors.
/// Source: ppoll(2).
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    poll_each(fds, timeout, |_| {})
}

/// Waits as [`poll_readable`] does, and calls `ready` with the index of each descriptor that is ready.
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
        return poll_retrying(&mut [], &bound);
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

fn poll_retrying(set: &mut [PollFd<'_>], bound: &Bound) -> io::Result<bool> {
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
struct Bound {
    first: Option<Timespec>,
    deadline: Option<Instant>,
}

impl Bound {
    fn new(timeout: Option<Duration>) -> Self {
        // A deadline that overflows the clock is later than any uptime: it means no limit.
        let deadline = match timeout {
            None | Some(Duration::ZERO) => None,
            Some(t) => Instant::now().checked_add(t),
        };
        Bound { first: timeout.map(timespec), deadline }
    }

    fn left(&self) -> Option<Timespec> {
        match self.deadline {
            Some(at) => Some(timespec(at.saturating_duration_since(Instant::now()))),
            None => self.first,
        }
    }
}

fn timespec(d: Duration) -> Timespec {
    // The kernel caps seconds at i64::MAX nanoseconds itself (KTIME_SEC_MAX).
    Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

/// Reads the eight bytes of an eventfd or a timerfd; returns false if there was nothing to read.
fn read_counter(fd: &OwnedFd) -> bool {
    let mut counter = [0; 8];
    io::read(fd, &mut counter).is_ok_and(|n| n == counter.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(5);

    #[test]
    fn a_doorbell_is_readable_from_signal_to_drain() {
        let bell = EventFd::new().unwrap();
        assert!(!bell.drain());
        bell.signal();
        bell.signal();
        assert_eq!(poll_readable(&[bell.as_fd()], Some(LONG)), Ok(true));
        assert!(bell.drain());
        assert!(!bell.drain());
        assert_eq!(poll_readable(&[bell.as_fd()], Some(Duration::ZERO)), Ok(false));
    }

    #[test]
    fn a_doorbell_at_its_maximum_is_still_rung_without_blocking() {
        let bell = EventFd::new().unwrap();
        io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.signal();
        assert!(bell.drain());
    }

    #[test]
    fn doorbell_filled_by_a_peer_blocks_no_thread() {
        let bell = EventFd::new().unwrap();
        bell.signal_shared();
        assert!(bell.drain());
        io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        io::ioctl_fionbio(&bell.fd, false).unwrap();
        bell.signal_shared();
        assert!(bell.drain());
    }

    #[test]
    fn a_peers_blocking_doorbell_is_made_nonblocking() {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let bell = EventFd::from_fd(fd).unwrap();
        assert!(!bell.drain());
    }

    #[test]
    fn where_the_call_is_not_known_another_one_finds_the_same() {
        let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        set.add(&bell, 7, EventFlags::IN).unwrap();
        let mut events = [NO_EVENT; 4];
        assert_eq!(set.wait_in_two(&mut events, Some(Duration::ZERO)), Ok(0));
        let start = Instant::now();
        assert_eq!(set.wait_in_two(&mut events, Some(Duration::from_millis(2))), Ok(0));
        assert!(start.elapsed() >= Duration::from_millis(2));
        bell.signal();
        assert_eq!(set.wait_in_two(&mut events, None), Ok(1));
        assert_eq!({ events[0].data }.u64(), 7);
        assert_eq!(set.wait_in_two(&mut [], Some(Duration::ZERO)), Err(Errno::INVAL));
    }

    #[test]
    fn an_epoll_inside_an_epoll_is_readable_when_a_member_of_it_is() {
        let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let bell = EventFd::new().unwrap();
        inner.add(&bell, 7, EventFlags::IN).unwrap();
        outer.add(&inner, 9, EventFlags::IN).unwrap();
        let mut events = [NO_EVENT; 4];
        assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)), Ok(0));
        bell.signal();
        assert_eq!(outer.wait(&mut events, Some(LONG)), Ok(1));
        assert_eq!({ events[0].data }.u64(), 9);
        assert_eq!(poll_readable(&[outer.as_fd()], Some(Duration::ZERO)), Ok(true));
        assert_eq!(inner.wait(&mut events, Some(LONG)), Ok(1));
        assert_eq!({ events[0].data }.u64(), 7);
        bell.drain();
        assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)), Ok(0));
    }

    #[test]
    fn a_member_can_be_changed_and_removed() {
        let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        bell.signal();
        set.add(&bell, 1, EventFlags::IN).unwrap();
        assert_eq!(set.add(&bell, 1, EventFlags::IN), Err(Errno::EXIST));
        set.modify(&bell, 2, EventFlags::IN).unwrap();
        let mut events = [NO_EVENT; 1];
        assert_eq!(set.wait(&mut events, Some(LONG)), Ok(1));
        assert_eq!({ events[0].data }.u64(), 2);
        set.delete(&bell).unwrap();
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)), Ok(0));
        assert_eq!(set.delete(&bell), Err(Errno::NOENT));
    }

    #[test]
    fn an_alarm_rings_at_its_time_and_not_before() {
        let alarm = TimerFd::new().unwrap();
        let at = Instant::now() + Duration::from_millis(3);
        alarm.set_at(Some(at)).unwrap();
        assert!(!alarm.drain());
        assert_eq!(poll_readable(&[alarm.as_fd()], Some(LONG)), Ok(true));
        assert!(Instant::now() >= at);
        assert!(alarm.drain());
        assert!(!alarm.drain());
    }

    #[test]
    fn an_alarm_in_the_past_rings_now_and_one_turned_off_never() {
        let alarm = TimerFd::new().unwrap();
        alarm.set_at(Some(Instant::now() - Duration::from_millis(1))).unwrap();
        assert_eq!(poll_readable(&[alarm.as_fd()], Some(LONG)), Ok(true));
        alarm.set_at(None).unwrap();
        assert_eq!(poll_readable(&[alarm.as_fd()], Some(Duration::from_millis(2))), Ok(false));
        assert!(!alarm.drain());
    }

    #[test]
    fn a_bounded_wait_lasts_its_bound_and_less_than_a_millisecond_is_not_rounded_up() {
        let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        let bound = Duration::from_micros(50);
        let mut events = [NO_EVENT; 1];
        let waits: [&mut dyn FnMut() -> bool; 2] =
            [&mut || poll_readable(&[bell.as_fd()], Some(bound)).unwrap(), &mut || {
                set.wait(&mut events, Some(bound)).unwrap() > 0
            }];
        for wait in waits {
            // The best of many: a busy machine makes single waits long, never short.
            let best = (0..50)
                .map(|_| {
                    let start = Instant::now();
                    assert!(!wait());
                    start.elapsed()
                })
                .min()
                .unwrap();
            assert!(best >= bound && best < Duration::from_millis(1), "{best:?}");
        }
    }

    #[test]
    fn an_interrupted_wait_keeps_its_bound() {
        extern "C" fn ignore(_: std::ffi::c_int) {}
        // SAFETY: the action is zeroed but for a handler that does nothing, which is async-signal
        // safe; SIGURG is otherwise unused here and ignored by default.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(std::ffi::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
        }
        let (bell, set) = (EventFd::new().unwrap(), Epoll::new().unwrap());
        // SAFETY: no obligation; it names the calling thread, which outlives the scope below.
        let waiter = unsafe { libc::pthread_self() };
        let stop = std::sync::atomic::AtomicBool::new(false);
        let bound = Duration::from_millis(20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // SAFETY: the scope joins this thread before the waiter can end.
                    unsafe { libc::pthread_kill(waiter, libc::SIGURG) };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let start = Instant::now();
            assert_eq!(poll_readable(&[bell.as_fd()], Some(bound)), Ok(false));
            let polled = start.elapsed();
            let start = Instant::now();
            assert_eq!(set.wait(&mut [NO_EVENT; 1], Some(bound)), Ok(0));
            let waited = start.elapsed();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(polled >= bound && polled < LONG, "{polled:?}");
            assert!(waited >= bound && waited < LONG, "{waited:?}");
        });
    }

    #[test]
    fn many_descriptors_are_polled_and_none_is_a_sleep() {
        let (bell, rung) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        rung.signal();
        let mut fds = [bell.as_fd(); POLL_FDS_MAX + 1];
        assert_eq!(poll_readable(&fds, Some(Duration::ZERO)), Ok(false));
        fds[POLL_FDS_MAX] = rung.as_fd();
        assert_eq!(poll_readable(&fds, None), Ok(true));
        fds[POLL_FDS_MAX] = bell.as_fd();
        assert_eq!(poll_readable(&fds[1..], Some(Duration::ZERO)), Ok(false));
        assert_eq!(poll_readable(&[], Some(Duration::from_micros(1))), Ok(false));
    }
}
