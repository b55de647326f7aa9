//! Two alarms that take turns, for a thread that sleeps often and for about the same time.
//!
//! To set an alarm that is earlier than all other timers of its CPU, the kernel must program the
//! CPU's timer. On a virtual machine that is an exit to the host: 5 to 10 µs of CPU time, as much
//! as the rest of the sleep. So the alarm of the next sleep is set while the present one is still
//! to ring: it is not the earliest then, and the interrupt of the earlier one programs the CPU's
//! timer for it, which it does for some timer in any case.
//!
//! ```text
//!   sleep n        set B ──────┐ near the end of sleep n+1, as the last sleeps predict it
//!   A rings        wake        │
//!   sleep n+1      set A ──────│──────┐
//!   B rings        wake ◄──────┘      │
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{TimerFd, poll_each, poll_readable};
use crate::error::Result;

/// Part of a sleep by which an alarm that is set already may end it earlier than wanted; the next
/// constant is the part by which it may end it later.
const EARLY: u32 = 4;
const LATE: u32 = 16;
/// A gap of more sleeps than this between two ends of a sleep is a pause.
const PAUSE: u32 = 4;

/// An alarm, and the time for which it is set.
pub(super) type Alarm<'a> = (BorrowedFd<'a>, Instant);

/// Two alarms that take turns; none is open before the first sleep.
#[derive(Debug, Default)]
pub struct TimerPair {
    timers: Option<[TimerFd; 2]>,
    plan: Plan,
    /// True if the alarm that is not the present sleep's is set or has rung.
    is_other_set: bool,
}

impl TimerPair {
    /// Opens the alarms, unless they are open; returns them.
    ///
    /// # Errors
    /// `E-SYSTEM` when the process or the machine is out of descriptors.
    pub(super) fn open(&mut self) -> Result<&[TimerFd; 2]> {
        if let Some(ref timers) = self.timers {
            return Ok(timers);
        }
        Ok(self.timers.insert([TimerFd::new()?, TimerFd::new()?]))
    }

    /// Sets the alarm of a sleep from `now` until about `until`, and that of the next sleep;
    /// returns this sleep's alarm with its time, or `None` if the alarms are not open. The time is
    /// at most a quarter of the sleep before `until`, or a sixteenth after it.
    ///
    /// Cost: a syscall; one more if the alarm that is set already does not suit.
    pub(super) fn set(&mut self, now: Instant, until: Instant) -> Option<Alarm<'_>> {
        let timers = self.timers.as_ref()?;
        let Step { at, is_set, next } = self.plan.step(now, until);
        let [this, other] = [self.plan.turn, 1 - self.plan.turn].map(|i| &timers[i]);
        let is_other_silent = next.is_none() && !self.is_other_set;
        self.is_other_set = next.is_some();
        let set = |timer: &TimerFd, at| timer.set_at(at).is_ok();
        if (is_set || set(this, Some(at))) && (is_other_silent || set(other, next)) {
            return Some((this.as_fd(), at));
        }
        // A filter of system calls refuses the call: the next sleep must not rely on an alarm.
        self.plan = Plan::default();
        None
    }

    /// Sets the alarm of a sleep until `until`; returns it, or `None` if the alarms are not open.
    fn set_exactly(&mut self, until: Instant) -> Option<BorrowedFd<'_>> {
        let this = &self.timers.as_ref()?[self.plan.turn];
        this.set_at(Some(until)).ok()?;
        self.plan.last = Some(until);
        Some(this.as_fd())
    }

    /// Returns by how much the alarm of [`TimerPair::sleep`] may be later than wanted.
    #[must_use]
    pub fn late(sleep: Duration) -> Duration {
        sleep / LATE
    }

    /// Turns the alarms off.
    ///
    /// Cost: a syscall for each that is set or has rung.
    pub(super) fn turn_off(&mut self) {
        let Some(timers) = &self.timers else { return };
        // A valid descriptor gives no error.
        let _ = timers[self.plan.turn].set_at(None);
        if std::mem::take(&mut self.is_other_set) {
            let _ = timers[1 - self.plan.turn].set_at(None);
        }
        self.plan = Plan::default();
    }

    /// Sleeps from `now` until about `until`, or until `bell` is readable; returns the time of the
    /// alarm, and true if the bell ended the sleep. The alarm is at most a quarter of the sleep
    /// before `until`, or a sixteenth after it.
    ///
    /// The alarm of a next sleep of about the same length is set, too. If no sleep follows, it
    /// rings once without effect. A process without descriptors sleeps until `until`, by a timeout.
    ///
    /// # Errors
    /// Those of poll(2).
    ///
    /// Cost: two syscalls; one more if the alarm that is set already does not suit.
    pub fn sleep(
        &mut self,
        bell: Option<BorrowedFd<'_>>,
        now: Instant,
        until: Instant,
    ) -> io::Result<(Instant, bool)> {
        // Without alarms, `set` returns none.
        let _ = self.open();
        match self.set(now, until) {
            Some((alarm, at)) => Ok((at, wait(Some(alarm), bell, Duration::ZERO)?)),
            None => Ok((until, wait(None, bell, until.saturating_duration_since(now))?)),
        }
    }

    /// Sleeps from `now` until `until`, or until `bell` is readable; returns true if it is.
    ///
    /// # Errors
    /// Those of poll(2).
    ///
    /// Cost: two syscalls, and programming the CPU's timer.
    pub fn sleep_exactly(
        &mut self,
        bell: Option<BorrowedFd<'_>>,
        now: Instant,
        until: Instant,
    ) -> io::Result<bool> {
        let _ = self.open();
        wait(self.set_exactly(until), bell, until.saturating_duration_since(now))
    }
}

/// Waits for `alarm`, or for a time `left` without one, or until `bell` is readable; returns true
/// if it is.
fn wait(
    alarm: Option<BorrowedFd<'_>>,
    bell: Option<BorrowedFd<'_>>,
    left: Duration,
) -> io::Result<bool> {
    let Some(alarm) = alarm else { return poll_readable(bell.as_slice(), Some(left)) };
    let mut is_rung = false;
    let fds = [alarm, bell.unwrap_or(alarm)];
    poll_each(&fds[..1 + usize::from(bell.is_some())], None, |i| is_rung |= i > 0)?;
    Ok(is_rung)
}

/// The times of the two alarms.
#[derive(Debug, Default)]
struct Plan {
    /// The alarm of the present sleep.
    turn: usize,
    /// The times of the alarms: of the present or last sleep, and of the next one.
    last: Option<Instant>,
    next: Option<Instant>,
    /// The usual time from the end of a sleep to the wanted end of the next one.
    gap: Duration,
}

/// The choice of an alarm for a sleep.
#[derive(Debug, PartialEq)]
struct Step {
    at: Instant,
    /// True if the alarm is set for that time already.
    is_set: bool,
    /// The time of the other alarm; `None` for the first sleep after a pause, because a second may
    /// not follow.
    next: Option<Instant>,
}

impl Plan {
    /// Chooses the alarm for a sleep from `now` to about `until`, and the time of the next one.
    fn step(&mut self, now: Instant, until: Instant) -> Step {
        let sleep = until.saturating_duration_since(now);
        let (early, late) = (sleep / EARLY, sleep / LATE);
        let suits = |at: &Instant| {
            until.saturating_duration_since(*at) <= early
                && at.saturating_duration_since(until) <= late
        };
        let set = self.next.filter(suits);
        if set.is_some() {
            self.turn = 1 - self.turn;
        }
        let at = set.unwrap_or(until);
        let follows = self.learn(sleep, until);
        self.last = Some(at);
        self.next = at.checked_add(self.gap).filter(|_| follows);
        Step { at, is_set: set.is_some(), next: self.next }
    }

    /// Learns the gap from the last end of a sleep to `until`; returns false after a pause.
    fn learn(&mut self, sleep: Duration, until: Instant) -> bool {
        let gap = self.last.map(|last| until.saturating_duration_since(last));
        let Some(gap) = gap.filter(|gap| *gap / PAUSE <= sleep) else { return false };
        let is_usual = gap.abs_diff(self.gap) <= self.gap / EARLY;
        self.gap = if is_usual { self.gap - self.gap / 4 + gap / 4 } else { gap };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::EventFd;
    use super::*;

    const HOLD: Duration = Duration::from_micros(200);
    const WORK: Duration = Duration::from_micros(40);

    #[test]
    fn second_alarm_of_equal_sleeps_is_set_beforehand() {
        let (mut plan, start) = (Plan::default(), Instant::now());
        let first = plan.step(start, start + HOLD);
        assert_eq!(first, Step { at: start + HOLD, is_set: false, next: None });
        let (mut now, mut reused) = (first.at + WORK, 0);
        for _ in 0..100 {
            let step = plan.step(now, now + HOLD);
            assert!(step.at + HOLD / EARLY >= now + HOLD && step.at <= now + HOLD + HOLD / LATE);
            assert!(step.next.unwrap() > step.at, "the next alarm is not the earlier one");
            reused += usize::from(step.is_set);
            now = step.at + WORK;
        }
        assert!(reused >= 98, "{reused} of 100");
    }

    #[test]
    fn alarm_that_does_not_suit_is_set_anew() {
        let (mut plan, start) = (Plan::default(), Instant::now());
        let first = plan.step(start, start + HOLD);
        // A shorter sleep, a longer one, and one after a pause.
        for (now, hold) in
            [(first.at, HOLD / 2), (first.at + HOLD, 3 * HOLD), (start + 1000 * HOLD, HOLD)]
        {
            let step = plan.step(now, now + hold);
            assert_eq!((step.at, step.is_set), (now + hold, false));
        }
        let now = start + 1001 * HOLD;
        let next = plan.step(now, now + HOLD).next;
        assert_eq!(next, Some(now + 2 * HOLD), "the second sleep after a pause sets the third's");
    }

    #[test]
    fn sleep_of_any_length_is_planned() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.step(now, now + HOLD);
        let Some(far) = now.checked_add(Duration::from_secs(5 << 60)) else { return };
        for until in [far, far, now + HOLD] {
            assert!(!plan.step(now, until).is_set);
        }
    }

    #[test]
    fn each_sleep_ends_at_the_time_that_it_says_or_with_the_bell() {
        let (mut pair, bell) = (TimerPair::default(), EventFd::new().unwrap());
        let hold = Duration::from_millis(2);
        for i in 0..20 {
            let now = Instant::now();
            let bell = (i % 2 == 0).then(|| bell.as_fd());
            let (at, is_rung) = pair.sleep(bell, now, now + hold).unwrap();
            assert!(at + hold / EARLY >= now + hold && at <= now + hold + hold / LATE);
            assert!(Instant::now() >= at && !is_rung);
        }
        let now = Instant::now();
        assert!(!pair.sleep_exactly(Some(bell.as_fd()), now, now + hold).unwrap());
        assert!(now.elapsed() >= hold);
        bell.signal();
        let (now, long) = (Instant::now(), Duration::from_secs(20));
        assert!(pair.sleep(Some(bell.as_fd()), now, now + long).unwrap().1);
        assert!(pair.sleep_exactly(Some(bell.as_fd()), now, now + long).unwrap());
        assert!(now.elapsed() < long / 2);
    }
}
