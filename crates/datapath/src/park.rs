//! The sleep of a worker: the moderation of its queues decides when the sleep ends. No other call
//! of a worker blocks, except that `arm` waits busily for a hold that is too short for a sleep.
//!
//! ```text
//!   rest of every queue ─► Look    another turn
//!                          Hold    until the earliest time, no held queue armed; one sleep a round
//!                          Device  everything armed, asleep on the descriptor
//! ```

use std::io;
use std::time::{Duration, Instant};

use linerate_port::moderation::{Cost, CpuReading, Rest};
use linerate_port::wait::{Event, EventFlags, NO_EVENT, TimerPair};
use linerate_port::{QueueCounts, Want, clock};
use linerate_skb::Verdict;

use crate::napi::Napi;
use crate::worker::{Turned, Worker};
use std::os::fd::AsFd;

/// The bell's tag in epoll; the tag of a queue is its index.
pub(crate) const BELL: u64 = u64::MAX;
/// The tag of the timer.
pub(crate) const TIMER: u64 = u64::MAX - 1;
/// Weight that earlier samples of wake-ups keep when a sample is added: as those of their cost do.
const DECAY: f64 = 0.96;
/// Most events of a worker: one of each queue, of the bell and of two alarms that have rung.
const EVENTS_MAX: usize = Verdict::OUTPUTS_MAX + 3;

impl Worker {
    /// Decides when to poll next. Keeps the decision under load: a queue that used its whole budget
    /// is polled again.
    #[inline]
    pub(crate) fn decide(&mut self, now: Instant, received: bool, goes_on: bool) {
        if !goes_on || self.holds || self.rest != Rest::Look {
            self.compare_holds(now);
            self.rest = self.rest(now, received);
        }
    }

    /// Compares the worker's CPU time with holds and without from time to time, and ends holds for a
    /// while if they cost any.
    fn compare_holds(&mut self, now: Instant) {
        let Worker { napis, saving, holds, .. } = self;
        let is_held = *holds && napis.iter_mut().any(Napi::holds_for_goal);
        let read = || {
            let counts = napis.iter().map(Napi::counts);
            let sum =
                |sum: [u64; 2], one: QueueCounts| [sum[0] + one.rx_packets, sum[1] + one.rx_bytes];
            let [packets, bytes] = counts.fold([0; 2], sum);
            CpuReading { cpu_ns: clock::thread_cpu_ns(), packets, bytes }
        };
        if let Some(holding) = saving.decide(now, is_held, read) {
            napis.iter_mut().for_each(|napi| napi.set_holding(holding));
        }
    }

    /// Determines when to poll next: at the earliest end of a hold, or when a quiet queue must be
    /// polled again. If packets wait for room, a device that signals room is armed instead of held;
    /// for other devices the hold is shortened to the next check for room.
    fn rest(&mut self, now: Instant, received: bool) -> Rest {
        let (mut look, mut earliest) = (false, None::<(Instant, bool)>);
        for napi in &mut self.napis {
            match napi.rest(now) {
                Rest::Look => look = true,
                Rest::Hold { until, spin } if earliest.is_none_or(|(at, _)| until < at) => {
                    earliest = Some((until, spin));
                }
                Rest::Hold { .. } | Rest::Device => {}
            }
        }
        self.holds = earliest.is_some();
        let Some((mut until, spin)) = earliest else {
            return if look { Rest::Look } else { Rest::Device };
        };
        if look {
            self.forget_holds();
            return Rest::Look;
        }
        if self.napis.iter().any(Napi::awaits_tx_space) {
            self.forget_holds();
            return if received { Rest::Look } else { Rest::Device };
        }
        let mut most = Duration::MAX;
        for napi in &mut self.napis {
            if napi.backlog() > 0 {
                most = most.min(napi.room_interval(now));
            }
            most = most.min(napi.patience().unwrap_or(most));
        }
        until = now.checked_add(most).map_or(until, |at| at.min(until));
        until = self.next_due().map_or(until, |due| due.min(until));
        Rest::Hold { until, spin }
    }

    /// Cancels the holds of the last decision, because the worker does not sleep.
    fn forget_holds(&mut self) {
        self.napis.iter_mut().for_each(Napi::forget_hold);
    }

    /// Makes the worker's descriptor readable when there is work, or near the time in
    /// [`Turned::Until`]; returns false if there is work already. If that time is too short for a
    /// sleep, this waits for it busily, for up to 25 µs, and returns false.
    ///
    /// Cost: a syscall to drain the bell, at least one for each queue that is armed, and up to
    ///       three for a time.
    ///
    /// # Errors
    /// Whatever epoll_ctl(2) says.
    pub fn arm(&mut self) -> io::Result<bool> {
        // The sender stores an order before it rings the bell. So an order whose ring is drained
        // here is seen below, and a later ring makes the descriptor readable.
        self.slot.bell().drain();
        if self.slot.changed(self.executed) {
            return Ok(false);
        }
        let armed = if let Rest::Hold { until, spin } = self.rest {
            if until <= Instant::now() {
                self.forget_holds();
                return Ok(false);
            }
            if spin {
                wait_busily(until);
                return Ok(false);
            }
            if !self.arm_impatient()? {
                return Ok(false);
            }
            let until = self.set_alarm(Instant::now(), until)?;
            self.rest = Rest::Hold { until, spin };
            true
        } else {
            // A packet or a stage whose time has come is work, as a received packet is.
            let times = [self.unpolled_due, self.publish_due()];
            let due = self.next_due().into_iter().chain(times.into_iter().flatten()).min();
            if due.is_some_and(|due| due <= Instant::now()) {
                return Ok(false);
            }
            self.epoll.alarm(due)?;
            self.arm_all()?
        };
        self.is_armed = armed;
        if armed {
            self.meter.falls_asleep(Instant::now(), clock::thread_cpu_ns);
        }
        Ok(armed)
    }

    /// Returns the earliest time at which a packet is due or a stage is called.
    fn next_due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.stage_alarms.next).min()
    }

    /// Returns the time at which to publish the devices' figures, if packets have passed since the
    /// last time: no later turn may do so for long.
    fn publish_due(&self) -> Option<Instant> {
        self.ask_at.filter(|_| self.passed() != self.published)
    }

    /// Sets the alarm for the end of a hold, at about `until`, or exactly then if a packet is due
    /// or a stage is called; returns its time.
    fn set_alarm(&mut self, now: Instant, until: Instant) -> io::Result<Instant> {
        if self.may_be_late(now, until) {
            return Ok(self.epoll.near(now, until)?);
        }
        self.epoll.alarm(Some(until))?;
        Ok(until)
    }

    /// Returns true if a hold from `now` on may end somewhat after `until`: no packet is due then,
    /// and no stage is called.
    fn may_be_late(&self, now: Instant, until: Instant) -> bool {
        let late = TimerPair::late(until.saturating_duration_since(now));
        self.next_due().is_none_or(|due| due > until + late)
    }

    /// Arms every queue; returns false if a queue has work.
    fn arm_all(&mut self) -> io::Result<bool> {
        for i in 0..self.napis.len() {
            if !self.arm_queue(i)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Arms the queues that may not stay unpolled during a hold, and stops watching the others.
    fn arm_impatient(&mut self) -> io::Result<bool> {
        for i in 0..self.napis.len() {
            if self.napis[i].is_impatient() {
                if !self.arm_queue(i)? {
                    return Ok(false);
                }
            } else {
                self.watch(i, false)?;
            }
        }
        Ok(true)
    }

    /// Arms queue `i` for packets or for room, as the worker needs; returns false if the event has
    /// occurred already.
    fn arm_queue(&mut self, i: usize) -> io::Result<bool> {
        let frames = self.admits(i) > 0;
        let room = self.napis[i].backlog() > 0;
        let want = match (frames, room) {
            (true, true) => Some(Want::Both),
            (true, false) => Some(Want::Frames),
            (false, true) => Some(Want::Room),
            (false, false) => None,
        };
        self.watch(i, want.is_some())?;
        Ok(self.napis[i].arm(want))
    }

    /// Starts or stops watching queue `i` with the descriptor.
    fn watch(&mut self, i: usize, watched: bool) -> io::Result<()> {
        let napi = &mut self.napis[i];
        if napi.watch_changed(watched) {
            let interest = if watched { EventFlags::IN } else { EventFlags::empty() };
            self.epoll.modify(napi.as_fd(), i as u64, interest)?;
        }
        Ok(())
    }

    /// Sleeps until there is work, until the time in [`Turned::Until`], or for `timeout`; returns
    /// immediately after [`Turned::Again`].
    ///
    /// # Errors
    /// Whatever epoll says.
    pub fn park(&mut self, turned: Turned, timeout: Option<Duration>) -> io::Result<()> {
        match turned {
            Turned::Again => return Ok(()),
            Turned::Until(until) => return self.hold(until, timeout),
            Turned::Idle | Turned::Ended => {}
        }
        if !self.arm()? {
            return Ok(());
        }
        self.is_armed = false;
        self.slot.wake_waiters();
        let since = Instant::now();
        self.sleep(timeout)?;
        self.slot.waits().slept(since.elapsed());
        self.learn();
        Ok(())
    }

    /// Sleeps on the descriptor, for up to `timeout`, and counts the cause of the wake-up; returns
    /// true if it was a queue.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut events: [Event; 16] = [NO_EVENT; 16];
        let n = self.epoll.wait(&mut events, timeout)?;
        if n == events.len() {
            return self.woken_by_many();
        }
        Ok(self.count_wakeups(&events[..n]))
    }

    /// Counts the causes of a wake-up that had more events than a sleep has room for; returns true
    /// if one was a queue.
    ///
    /// Cost: a syscall. It reads all events again: each stays until the turn has dealt with it.
    #[cold]
    fn woken_by_many(&mut self) -> io::Result<bool> {
        let mut events: [Event; EVENTS_MAX] = [NO_EVENT; EVENTS_MAX];
        let n = self.epoll.wait(&mut events, Some(Duration::ZERO))?;
        Ok(self.count_wakeups(&events[..n]))
    }

    /// Counts a wake-up for each queue among the events; returns true if there is one.
    fn count_wakeups(&mut self, events: &[Event]) -> bool {
        let mut by_queue = false;
        for event in events {
            let tag = { event.data }.u64();
            if let Some(napi) = self.napis.get_mut(tag as usize) {
                napi.woken();
                by_queue = true;
            }
        }
        self.wakes.count(by_queue);
        by_queue
    }

    /// Counts the end of each queue's hold, all of which are one wake-up.
    fn count_hold_ends(&mut self) {
        let ended = self.napis.iter_mut().fold(false, |any, napi| napi.hold_ended() | any);
        self.wakes.count(ended);
    }

    /// Leaves the devices alone until the time `until`, so that packets gather.
    ///
    /// Only queues that may not stay unpolled are armed meanwhile, so other senders do not pay for
    /// a wake-up of this worker. There is no hold while an order waits. The bell ends the hold,
    /// unless the hold is so short that the worker waits busily.
    fn hold(&mut self, mut until: Instant, timeout: Option<Duration>) -> io::Result<()> {
        let mut since = Instant::now();
        let left = until.saturating_duration_since(since);
        let time = timeout.map_or(left, |timeout| left.min(timeout));
        if time.is_zero() {
            // The turn took as long as the hold, or the caller does not wait, so there was no
            // sleep.
            self.forget_holds();
            return Ok(());
        }
        if self.slot.changed(self.executed) {
            // An order waits, perhaps one whose bell was drained before a turn that did not get the
            // list. Draining loses no order: the next turn reads the mailbox's word after this.
            self.slot.bell().drain();
            self.forget_holds();
            return Ok(());
        }
        self.slot.wake_waiters();
        if matches!(self.rest, Rest::Hold { spin: true, .. }) {
            wait_busily(since + time);
            return Ok(());
        }
        let is_impatient = self.napis.iter_mut().any(Napi::is_impatient);
        if is_impatient && !self.arm_impatient()? {
            return Ok(());
        }
        let is_exact = timeout.is_some_and(|timeout| timeout < left + TimerPair::late(left))
            || !self.may_be_late(since, until);
        self.meter.falls_asleep(since, clock::thread_cpu_ns);
        let by_queue = if is_impatient {
            until = self.set_alarm(since, until)?;
            // The time for arming is no sleep.
            since = Instant::now();
            let by_queue = self.sleep(timeout)?;
            self.slot.bell().drain();
            by_queue
        } else {
            let bell = self.slot.bell();
            let fd = Some(bell.as_fd());
            let is_rung = if is_exact {
                self.alarms.sleep_exactly(fd, since, since + time)?
            } else {
                let (at, is_rung) = self.alarms.sleep(fd, since, until)?;
                until = at;
                is_rung
            };
            if is_rung {
                // Draining loses no order: the next turn reads the mailbox's word after this.
                bell.drain();
            }
            false
        };
        let woke = Instant::now();
        let slept = woke.saturating_duration_since(since);
        match by_queue {
            true => self.slot.waits().slept(slept),
            false => self.slot.waits().held_off(slept),
        }
        // The bell or the caller's timeout may have ended the sleep before the hold.
        if !by_queue && woke >= until {
            self.count_hold_ends();
        }
        self.learn();
        Ok(())
    }

    /// Counts the end of a sleep outside [`Worker::park`], in which a program slept on the worker's
    /// descriptor.
    ///
    /// The look at the descriptor finds its cause. It takes no event away: each stays until the
    /// turn has dealt with it.
    ///
    /// Cost: a syscall.
    #[cold]
    pub(crate) fn woken_outside(&mut self) {
        self.is_armed = false;
        // A valid descriptor gives no error; without the cause, the wake-up is not counted.
        let by_queue = self.sleep(Some(Duration::ZERO)).unwrap_or_default();
        if !by_queue && matches!(self.rest, Rest::Hold { until, .. } if until <= Instant::now()) {
            self.count_hold_ends();
        }
        self.learn();
    }

    /// Measures the cost of a wake-up and of a packet from time to time, and passes the costs to
    /// the queues. A wake-up that ended the sleep of several queues is charged to them in equal
    /// parts.
    ///
    /// Cost: a clock; a syscall, 50 times a second.
    fn learn(&mut self) {
        if !self.meter.is_sample() {
            return;
        }
        let sum = |sum: [u64; 2], napi: &Napi| {
            let counts = napi.counts();
            [sum[0] + counts.irqs(), sum[1] + counts.rx_packets]
        };
        let [irqs, packets] = self.napis.iter().fold([0; 2], sum);
        let wakes = self.wakes.number.max(self.slot.waits().read().sleeps);
        let part = self.wakes.part(irqs);
        let now = Instant::now();
        let cost = self.meter.woke(now, clock::thread_cpu_ns(), wakes, packets);
        let cost = cost.map(|cost| Cost { wake_ns: part * cost.wake_ns, ..cost });
        self.napis.iter_mut().for_each(|napi| napi.learned(cost, now));
    }
}

/// Waits for a moment without a sleep. The CPU time of this wait counts as that of packets.
fn wait_busily(until: Instant) {
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// The wake-ups of a worker. One wake-up may end the sleep of several queues, and each of these
/// counts it as an irq.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// Number of wake-ups that ended the sleep of a queue.
    number: u64,
    /// Wake-ups and irqs up to the last sample, and those of recent samples, of which older ones
    /// weigh less.
    seen: [u64; 2],
    recent: [f64; 2],
}

impl Wakes {
    /// Counts a wake-up, if it ended the sleep of a queue.
    fn count(&mut self, by_queue: bool) {
        self.number += u64::from(by_queue);
    }

    /// Takes a sample, when all queues have counted `irqs`; returns the number of wake-ups for each
    /// irq, at most 1.
    fn part(&mut self, irqs: u64) -> f64 {
        let now = [self.number, irqs];
        for ((recent, now), seen) in self.recent.iter_mut().zip(now).zip(self.seen) {
            *recent = DECAY * *recent + now.saturating_sub(seen) as f64;
        }
        self.seen = now;
        let [wakes, irqs] = self.recent;
        if wakes > 0.0 && irqs > 0.0 { (wakes / irqs).min(1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
