//! A descriptor to sleep on: it is readable when a member is ready, or after a set time.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io;

use super::{Epoll, TimerFd, TimerPair};
use crate::error::{Code, Error, Result};

/// An [`Epoll`] whose first member is an alarm, with the time to which it is set.
#[derive(Debug)]
pub struct WaitSet {
    set: Epoll,
    timer: TimerFd,
    alarm: Option<Instant>,
    tag: u64,
    /// The alarms of [`WaitSet::near`], once there are some, and true while they are set.
    pair: Option<TimerPair>,
    is_near: bool,
}

impl WaitSet {
    /// Creates a set without other members, whose alarm is off; the alarm's events carry `tag`.
    ///
    /// # Errors
    /// `E-SYSTEM` when the process or the machine is out of descriptors.
    pub fn new(tag: u64) -> Result<WaitSet> {
        let (set, timer) = (Epoll::new()?, TimerFd::new()?);
        set.add(&timer, tag, EventFlags::IN)
            .map_err(|e| Error::os(Code::System, "cannot watch a timer", "epoll_ctl", e))?;
        Ok(WaitSet { set, timer, alarm: None, tag, pair: None, is_near: false })
    }

    /// Sets the alarm to `at`, or turns it off. Once it rings, it rings until it is set again. A time
    /// that has passed rings a moment later, also if it has rung before, because an edge-triggered
    /// poller has seen that already.
    ///
    /// # Errors
    /// None that a valid descriptor can give.
    ///
    /// Cost: a syscall if the time changed, or has passed; a clock read if it is the same.
    pub fn alarm(&mut self, at: Option<Instant>) -> io::Result<()> {
        if std::mem::take(&mut self.is_near) {
            self.pair.iter_mut().for_each(TimerPair::turn_off);
            self.alarm = None;
        }
        if at != self.alarm || at.is_some_and(|at| at <= Instant::now()) {
            self.timer.set_at(at)?;
            self.alarm = at;
        }
        Ok(())
    }

    /// Sets an alarm near `until` for a sleep that begins at `now`, in place of that of
    /// [`WaitSet::alarm`]; returns its time: at most a quarter of the sleep before `until`, or a
    /// sixteenth after it. [`TimerPair`] says what a thread that sleeps often saves by this.
    ///
    /// # Errors
    /// None that a valid descriptor can give.
    ///
    /// Cost: a syscall; one or two more if no alarm that is set already suits, and each time in a
    ///       process without descriptors.
    pub fn near(&mut self, now: Instant, until: Instant) -> io::Result<Instant> {
        if !self.is_near {
            self.alarm(None)?;
            self.is_near = self.watch_pair();
        }
        let alarm = self.pair.as_mut().filter(|_| self.is_near);
        match alarm.and_then(|pair| pair.set(now, until)) {
            Some((_, at)) => {
                self.alarm = Some(at);
                Ok(at)
            }
            None => self.alarm(Some(until)).map(|()| until),
        }
    }

    /// Makes the pair of alarms members of the set; returns false without descriptors or memory.
    fn watch_pair(&mut self) -> bool {
        if self.pair.is_none() {
            let mut pair = TimerPair::default();
            let is_watched = pair.open().is_ok_and(|timers| {
                timers.iter().all(|timer| self.set.add(timer, self.tag, EventFlags::IN).is_ok())
            });
            self.pair = is_watched.then_some(pair);
        }
        self.pair.is_some()
    }

    /// Sets the alarm to `at`, unless it is set to an earlier time that has not come; returns true
    /// if the alarm will ring at `at` or earlier. An alarm that has rung is set anew, because an
    /// edge-triggered poller has seen it already.
    ///
    /// Cost: a syscall if the time changed or has passed; a clock read if the alarm is set.
    pub fn no_later(&mut self, at: Instant) -> bool {
        if self.alarm.is_none_or(|alarm| at < alarm || alarm <= Instant::now()) {
            // After an error the alarm keeps its old time, at which it may have rung already.
            return self.alarm(Some(at)).is_ok();
        }
        self.is_due(at)
    }

    /// Returns true if the alarm has rung at `now`.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.alarm.is_some_and(|at| at <= now)
    }
}

impl Deref for WaitSet {
    type Target = Epoll;

    fn deref(&self) -> &Epoll {
        &self.set
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EventFd, NO_EVENT, poll_readable};
    use super::*;
    use std::time::Duration;

    const TAG: u64 = 7;

    fn rings(set: &WaitSet) -> bool {
        poll_readable(&[set.as_fd()], Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn a_set_is_readable_for_its_alarm_until_that_is_set_anew() {
        let mut set = WaitSet::new(TAG).unwrap();
        let past = Instant::now();
        assert!(!rings(&set) && !set.is_due(past));
        set.alarm(Some(past)).unwrap();
        let mut events = [NO_EVENT; 2];
        assert_eq!(set.wait(&mut events, Some(Duration::from_secs(20))), Ok(1));
        assert_eq!({ events[0].data }.u64(), TAG);
        assert!(set.is_due(past), "it says so itself");
        set.alarm(Some(past)).unwrap();
        let rings_on = poll_readable(&[set.as_fd()], Some(Duration::from_secs(20)));
        assert!(rings_on.unwrap(), "the same time rings on");
        set.alarm(None).unwrap();
        assert!(!rings(&set) && !set.is_due(past));
    }

    #[test]
    fn an_alarm_that_has_rung_wakes_an_edge_triggered_poller_again_when_it_is_set_again() {
        let (mut set, poller) = (WaitSet::new(TAG).unwrap(), Epoll::new().unwrap());
        poller.add(&set, 1, EventFlags::IN | EventFlags::ET).unwrap();
        let past = Some(Instant::now());
        let (mut events, time) = ([NO_EVENT; 2], Some(Duration::from_secs(20)));
        for _ in 0..3 {
            set.alarm(past).unwrap();
            assert_eq!(poller.wait(&mut events, time), Ok(1));
            assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)), Ok(0), "seen");
        }
    }

    #[test]
    fn a_set_is_readable_for_a_member_whatever_its_alarm() {
        let (mut set, bell) = (WaitSet::new(TAG).unwrap(), EventFd::new().unwrap());
        set.add(&bell, 1, EventFlags::IN).unwrap();
        set.alarm(Some(Instant::now() + Duration::from_secs(100))).unwrap();
        assert!(!rings(&set));
        bell.signal();
        assert!(rings(&set));
    }

    #[test]
    fn near_alarms_ring_one_after_the_other_and_none_after_they_are_turned_off() {
        let (mut set, outer) = (WaitSet::new(TAG).unwrap(), Epoll::new().unwrap());
        outer.add(&set, 1, EventFlags::IN | EventFlags::ET).unwrap();
        let (mut events, hold) = ([NO_EVENT; 4], Duration::from_millis(4));
        for sleeps in [1, 2, 10] {
            for _ in 0..sleeps {
                let now = Instant::now();
                let at = set.near(now, now + hold).unwrap();
                assert!(at + hold / 4 >= now + hold && at <= now + hold + hold / 16);
                // A thread that is late finds this alarm, and perhaps the next one.
                assert_eq!(outer.wait(&mut events, Some(Duration::from_secs(20))), Ok(1));
                assert!(Instant::now() >= at && set.is_due(at) && rings(&set));
            }
            set.alarm(None).unwrap();
            assert!(!rings(&set) && !set.is_due(Instant::now()), "{sleeps}");
            std::thread::sleep(2 * hold);
            assert!(!rings(&set), "the alarm of a next sleep rang after {sleeps}");
        }
        let now = Instant::now();
        let at = set.near(now, now + Duration::from_secs(50)).unwrap();
        assert!(set.no_later(at + hold) && !set.is_due(now) && set.is_due(at), "it is earlier");
        assert!(set.no_later(now) && rings_soon(&set), "and gives way to one that is earlier");
    }

    fn rings_soon(set: &WaitSet) -> bool {
        poll_readable(&[set.as_fd()], Some(Duration::from_secs(20))).unwrap()
    }

    #[test]
    fn an_alarm_that_rings_no_later_keeps_an_earlier_time() {
        let mut set = WaitSet::new(TAG).unwrap();
        let [early, middle, late] =
            [10, 100, 1000].map(|s| Instant::now() + Duration::from_secs(s));
        assert!(set.no_later(middle), "of no alarm before");
        assert!(set.no_later(late));
        assert!(!set.is_due(early) && set.is_due(middle), "the earlier one stays");
        assert!(set.no_later(early));
        assert!(set.is_due(early), "and gives way to one that is earlier still");
    }

    #[test]
    fn alarm_that_has_rung_rings_anew_for_an_edge_triggered_poller() {
        let (mut set, outer) = (WaitSet::new(0).unwrap(), Epoll::new().unwrap());
        outer.add(&set, 1, EventFlags::IN | EventFlags::ET).unwrap();
        let (mut events, long) = ([NO_EVENT; 2], Some(Duration::from_secs(1)));
        assert!(set.no_later(Instant::now()) || set.is_due(Instant::now()));
        assert_eq!(outer.wait(&mut events, long).unwrap(), 1);
        assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0, "it was seen");
        assert!(set.no_later(Instant::now() + Duration::from_millis(5)));
        assert_eq!(outer.wait(&mut events, long).unwrap(), 1);
    }
}
