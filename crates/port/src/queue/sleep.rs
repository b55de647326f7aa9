//! Sleep of a queue's owner: arming the queue, waiting for an event, and wakers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, Error, Result};
use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::wait::{TimerPair, poll_each, poll_readable};

use super::Queue;
use crate::health::Health;
use crate::moderation::{CpuReading, Moderation, Rest, Saving};
use crate::waker::{WakeBell, WakeEnd, Waker};
use crate::want::Want;

/// The kind of sleep for which the queue is armed, until its owner polls again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sleep {
    /// The queue is not armed.
    #[default]
    Awake,
    /// A sleep that ends when the device signals an event.
    Device,
    /// A sleep that ends at a given time.
    Timer,
}

impl Queue {
    /// Makes the descriptor readable when `want` occurs; returns false if it has occurred already,
    /// so that the caller polls now.
    ///
    /// After true it is safe to sleep on the descriptor, with any poller: packets that came in the
    /// meantime make it readable at once, or at the end of the time for which its
    /// [moderation](Queue::set_moderation) lets them gather. If that time is too short for a sleep,
    /// this waits for it busily, for up to 25 µs, and returns false.
    #[must_use = "false: poll now; a caller that sleeps all the same may sleep for ever"]
    pub fn arm(&mut self, want: Want) -> bool {
        if want == Want::Frames && self.is_held() {
            // The caller has worked for another source, which is no cost of this queue's wake-up.
            self.meter.stay_awake();
            return true;
        }
        // Only waits compare holds, so a verdict of theirs would have no end here.
        if self.ops.moderator().allow_holds() {
            self.saving = Saving::default();
        }
        if let Some((until, spin)) = self.hold(want) {
            if spin {
                self.spin_hold(until);
                return false;
            }
            if until <= Instant::now() {
                self.stay_awake();
                return false;
            }
            if self.ops.hold(until) {
                self.sleep = Sleep::Timer;
                return true;
            }
            self.ops.moderator().refuse_hold();
        }
        self.arm_device(want)
    }

    /// Returns true if the descriptor rings at the end of a hold that was armed before, and cannot
    /// have rung yet: the caller has armed again without receiving, because another source ended
    /// its sleep.
    fn is_held(&mut self) -> bool {
        self.sleep == Sleep::Timer
            && self.ops.waiting() == 0
            && !self.ops.health_kind().ended()
            && self.ops.moderator().holds_on(Instant::now())
    }

    /// Arms the device, and records the kind of sleep.
    fn arm_device(&mut self, want: Want) -> bool {
        // A caller that polls without sleeping sleeps only when nothing can come any more.
        let sleeps = !self.is_busy() || self.ops.health().ended();
        let armed = sleeps && self.ops.arm(want);
        if armed {
            self.sleep = Sleep::Device;
        } else {
            self.ops.stats().count_recheck();
            self.stay_awake();
        }
        armed
    }

    /// Returns the time at which the hold of received packets ends, and true if the caller must
    /// wait for it busily; `None` if there is no hold, or if the caller waits for another event as
    /// well. A device that has ended is not held, because its last packets must be reported before
    /// its end.
    fn hold(&mut self, want: Want) -> Option<(Instant, bool)> {
        if want != Want::Frames || self.ops.waiting() > 0 || self.ops.health_kind().ended() {
            self.meter.stay_awake();
            return None;
        }
        let now = Instant::now();
        if self.is_busy() {
            self.meter.stay_awake();
        } else {
            self.meter.falls_asleep(now, thread_cpu_ns);
        }
        match self.ops.moderator().rest(now) {
            Rest::Hold { until, spin } => Some((until, spin)),
            Rest::Look | Rest::Device => None,
        }
    }

    /// Compares the thread's CPU time with holds and without from time to time, and ends holds for a
    /// while if they cost any. Only in waits: a poller of the program's own may have other queues,
    /// and an executor other threads.
    fn compare_holds(&mut self, now: Instant) {
        let is_held = self.ops.moderator().holds_for_goal();
        let stats = self.ops.stats();
        let read = || {
            let counts = stats.counts();
            CpuReading {
                cpu_ns: thread_cpu_ns(),
                packets: counts.rx_packets,
                bytes: counts.rx_bytes,
            }
        };
        if let Some(holding) = self.saving.decide(now, is_held, read) {
            self.ops.moderator().set_holding(holding);
        }
    }

    /// Measures the cost of a wake-up and of a packet, and passes it to the moderator.
    ///
    /// Cost: a syscall, 50 times a second.
    #[cold]
    fn learn(&mut self) {
        let counts = self.ops.stats().counts();
        let now = Instant::now();
        let cost = self.meter.woke(now, thread_cpu_ns(), counts.irqs(), counts.rx_packets);
        self.ops.learned(cost, now);
    }

    /// Returns a handle with which any thread ends the queue's waits: see
    /// [`Port::waker`](crate::Port::waker).
    ///
    /// # Errors
    /// `E-SYSTEM` if the process is out of descriptors.
    pub fn waker(&mut self) -> Result<Waker> {
        Ok(Waker::of(std::iter::once(self.wake_bell()?)))
    }

    pub(crate) fn wake_bell(&mut self) -> Result<Arc<WakeBell>> {
        let end = match self.waker.take() {
            Some(end) => end,
            None => WakeEnd::new()?,
        };
        Ok(self.waker.insert(end).bell())
    }

    /// Returns true if a waker was used since the last call that returned true.
    pub(crate) fn waker_used(&mut self) -> bool {
        self.waker.as_mut().is_some_and(WakeEnd::take)
    }

    /// Returns true if a waker was used; called after poll(2) found a descriptor readable.
    pub(crate) fn waker_used_polled(&mut self) -> bool {
        self.waker.as_mut().is_some_and(WakeEnd::take_polled)
    }

    /// Returns the descriptor that a waker makes readable, if there is one.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(WakeEnd::as_fd)
    }

    /// Sleeps until there are packets to receive, or for `timeout`; returns false after the timeout
    /// or if a [waker](Queue::waker) was used.
    ///
    /// Without a timeout and without a waker, false means that the source has ended and every packet
    /// was received: `while queue.wait(None)? { … }` ends then. A signal does not end the wait: use a
    /// waker in its handler.
    ///
    /// # Errors
    /// Those of a device that has failed for good, each time, and those of poll(2). A device that
    /// goes down may come back: true, so that the program looks at [`Queue::health`]. While it is
    /// down, each check whether it is up again, about ten a second, may end this call with true,
    /// too, though there are no packets.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(Want::Frames, timeout)
    }

    /// Sleeps until `want` occurs, or for `timeout`; returns false after the timeout or if a waker
    /// was used. Works as [`Queue::wait`], except that a wait for room does not return when the
    /// device has finished.
    ///
    /// # Errors
    /// As [`Queue::wait`]. A device that has failed drops all that it is given, so room in it means
    /// nothing: a wait for [`Want::Room`] returns its error at once, one for [`Want::Both`] once
    /// everything was received.
    pub fn wait_for(&mut self, want: Want, timeout: Option<Duration>) -> Result<bool> {
        if self.waker_used() {
            return Ok(false);
        }
        let start = Instant::now();
        let mut left = timeout;
        self.compare_holds(start);
        if let Some((until, spin)) = self.hold(want) {
            let hold = until.saturating_duration_since(start);
            let time = timeout.map_or(hold, |timeout| hold.min(timeout));
            if spin {
                self.spin_hold(start + time);
            } else if !time.is_zero() {
                self.sleep = Sleep::Timer;
                let may_be_late = timeout.is_none_or(|t| t >= hold + TimerPair::late(hold));
                let is_rung = match may_be_late {
                    true => self.sleep_until(start, until)?,
                    false => self.sleep_for(start, time)?,
                };
                self.woken(!is_rung && time == hold);
                if is_rung {
                    return Ok(false);
                }
            } else {
                self.ops.moderator().forget_hold();
            }
            left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        }
        if self.is_busy() {
            return self.spin(want, timeout);
        }
        // Read the health before `arm`, so that `arm` reports a packet that arrived before the end.
        let health = self.ops.health();
        let want = possible(&health, want)?;
        if !self.arm_device(want) {
            return Ok(true);
        }
        let is_over = over(health, want, timeout);
        if is_over != Ok(false) {
            self.stay_awake();
            return is_over.map(|_| false);
        }
        let readable = self.sleep_on_device(start, timeout, left)?;
        self.woken(readable);
        Ok(readable)
    }

    /// Sleeps from `start` until about `until`, the end of a hold; returns true if a waker ended
    /// the sleep.
    fn sleep_until(&mut self, start: Instant, until: Instant) -> Result<bool> {
        let bell = self.waker.as_ref().map(WakeEnd::as_fd);
        let (at, is_rung) = self.alarms.sleep(bell, start, until).map_err(cannot_wait)?;
        if !is_rung || self.waker_used_polled() {
            return Ok(is_rung);
        }
        // The doorbell rang late: an earlier wait has returned for this use of the waker.
        let now = Instant::now();
        self.sleep_for(now, at.saturating_duration_since(now))
    }

    /// Sleeps for `time` from `start` on; returns true if a waker ended the sleep.
    fn sleep_for(&mut self, start: Instant, time: Duration) -> Result<bool> {
        let mut left = time;
        loop {
            let bell = self.wake_fd();
            if !poll_readable(bell.as_slice(), Some(left)).map_err(cannot_wait)? {
                return Ok(false);
            }
            if self.waker_used_polled() {
                return Ok(true);
            }
            // The doorbell rang late: an earlier wait has returned for this use of the waker.
            left = time.saturating_sub(start.elapsed());
        }
    }

    /// Sleeps for what is `left` of the `timeout` from `start` on; returns true if the device ended
    /// the sleep.
    fn sleep_on_device(
        &mut self,
        start: Instant,
        timeout: Option<Duration>,
        mut left: Option<Duration>,
    ) -> Result<bool> {
        loop {
            let device = self.ops.as_fd();
            let Some(waker) = self.wake_fd() else {
                return poll_readable(&[device], left).map_err(cannot_wait);
            };
            let mut by = [false; 2];
            poll_each(&[device, waker], left, |i| by[i] = true).map_err(cannot_wait)?;
            let [is_readable, is_rung] = by;
            if is_rung && self.waker_used_polled() {
                return Ok(false);
            }
            if is_readable || !is_rung {
                return Ok(is_readable);
            }
            // The doorbell rang late: an earlier wait has returned for this use of the waker.
            left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        }
    }

    /// Returns true if the queue is polled without sleeping.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.ops.moderator().mode() == Moderation::Busy
    }

    /// Returns true if `want` has occurred.
    pub(crate) fn has(&mut self, want: Want) -> bool {
        !self.ops.arm(want)
    }

    /// Records that the owner does not sleep although the queue is armed, so that no end of a sleep
    /// is counted, and its cost is not measured.
    pub(crate) fn stay_awake(&mut self) {
        self.sleep = Sleep::Awake;
        self.meter.stay_awake();
        self.ops.moderator().forget_hold();
    }

    /// Waits busily for the end of a hold, or until the caller's timeout is over. The CPU time of
    /// this wait counts as that of packets, as a worker's does.
    fn spin_hold(&mut self, until: Instant) {
        self.sleep = Sleep::Awake;
        self.meter.stay_awake();
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        self.ops.moderator().hold_ended(until);
    }

    /// Polls for `want` without sleeping, for up to `timeout`.
    fn spin(&mut self, want: Want, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        loop {
            let health = self.ops.health();
            if self.has(possible(&health, want)?) {
                return Ok(true);
            }
            let is_late = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
            if over(health, want, timeout)? || is_late || self.waker_used() {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Receives as [`Queue::rx`] does, after a sleep for which the queue was armed. Counts the end
    /// of the sleep if this queue ended it: its hold is over, or its device has packets.
    pub(super) fn rx_after_sleep(&mut self, batch: &mut Batch) -> usize {
        let is_by_device = self.sleep == Sleep::Device;
        // Call this before packets are received, because their cost is no part of the wake-up's.
        self.woken(!is_by_device);
        let n = self.rx(batch);
        if is_by_device && n > 0 {
            self.ops.irq(false);
        }
        n
    }

    /// Counts the end of a sleep, if `by` is true: this queue ended it. A hold counts only if at
    /// most a quarter of its time is left.
    pub(crate) fn woken(&mut self, by: bool) {
        match std::mem::take(&mut self.sleep) {
            Sleep::Device if by => self.ops.irq(false),
            Sleep::Timer => {
                let is_over = self.ops.moderator().hold_ended(Instant::now());
                if by && is_over {
                    self.ops.irq(true);
                }
            }
            Sleep::Device | Sleep::Awake => {}
        }
        if self.meter.is_sample() {
            self.learn();
        }
    }
}

/// Returns the part of `want` for which it makes sense to wait: a device that has failed may still
/// have packets, but drops all that it is given, so that it always has room.
///
/// # Errors
/// That of a device that has failed for good, if only room is wanted.
pub(crate) fn possible(health: &Health, want: Want) -> Result<Want> {
    match health {
        Health::Failed(error) if want == Want::Room => Err(error.clone()),
        Health::Failed(_) => Ok(Want::Frames),
        _ => Ok(want),
    }
}

/// Returns true if sleeping for `want` is pointless: it can never occur, and there is no timeout.
///
/// # Errors
/// That of a device that has failed for good.
pub(crate) fn over(health: Health, want: Want, timeout: Option<Duration>) -> Result<bool> {
    match health {
        Health::Failed(error) => Err(error),
        // With a timeout, sleep even if the device has finished; otherwise a loop around this call
        // would spin.
        health => Ok(health == Health::Finished && want == Want::Frames && timeout.is_none()),
    }
}

/// Returns the error of a failed poll(2).
pub(crate) fn cannot_wait(error: impl Into<io::Error>) -> Error {
    Error::os(Code::System, "cannot wait for packets", "poll", error)
        .fix("allow more open files (ulimit -n), or free some memory")
}

#[cfg(test)]
mod tests;
