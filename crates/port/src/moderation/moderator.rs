//! The moderation of one queue: from the results of polls it decides when to poll again.

use std::time::{Duration, Instant};

use super::adaptive::{Adaptive, ENTER, Facts, HOLD_MIN};
use super::arrivals::{Arrivals, Window};
use super::cost::{Cost, Usage, decay_and_add};
use super::dim::Dim;
use super::gain::SoFar;
use super::gathering::{Gathering, RING_LEN};
use super::mode::{Goal, Moderation};
use super::moderated::{Cut, Holds, Moderated, Why};
use super::saving::Holding;
use crate::caps::Gathers;

/// Shortest ring for which the CPU waits busily: a peer that makes a shorter ring must not cost CPU
/// time.
const RING_LEN_MIN: u32 = 64;
/// The shortest sleep that is worth its wake-up (docs/adr/0011), unless the ring or the goal
/// requires a shorter one.
pub const SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest hold of any mode.
const HOLD_MAX: Duration = Duration::from_millis(10);
/// Part of a hold that may be left at its end, because an alarm that was set beforehand ended it.
const LEFT: u32 = 4;
/// Part of a hold by which an alarm that was set beforehand may end it late: a sixteenth
/// (docs/adr/0014). A limit of delay includes that time.
const LATEST: u64 = 16;
/// Part of a hold that is at most left out because timers are late.
const LATE_PART: u32 = 4;
/// Smallest lateness of a timer that is used at its first occurrence.
const LATE_MIN: Duration = Duration::from_micros(10);
/// The longest time for which a quiet queue stays unpolled, and packets that wait for their time
/// gather, in a mode without such a limit.
const GAP_MAX: Duration = Duration::from_micros(250);
/// Number of holds after which a time without a hold is quiet: nothing would have gathered, and the
/// rate before is not that of the packets that come then.
const QUIET: u32 = 2;
/// Rate for which a ring bounds the first hold after a quiet time, in packets a nanosecond: a
/// million a second.
const RATE_AFTER_QUIET: f64 = 1e-3;
/// Share of CPU time that wake-ups may take before a longer hold pays: a tenth.
pub(super) const WAKING: f64 = 0.1;
/// Number of packets for which a hold is long enough, whatever a wake-up costs: half a budget.
const ENOUGH: f64 = 32.0;

/// When to poll a queue again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Poll immediately: there may be more packets.
    Look,
    /// Poll at a given time; until then the device is not touched.
    Hold {
        /// The time at which the hold ends.
        until: Instant,
        /// True if a sleep would end too late, and the wait is short enough for a busy wait.
        spin: bool,
    },
    /// Poll when the device signals an event through its descriptor.
    Device,
}

/// Packets that a queue delivered since the last decision.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    packets: u32,
    bytes: u64,
    /// True if a poll returned as many packets as its budget.
    more: bool,
    /// True if the queue was not polled, because there is no room for its packets.
    blocked: bool,
}

impl Turn {
    fn add(&mut self, packets: u32, bytes: u64) {
        self.packets = self.packets.saturating_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// A hold whose end is not known yet.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    hold: Duration,
    /// True if the CPU waits busily for the end.
    spin: bool,
    /// True if the ring ends it before the mode does.
    by_ring: bool,
}

/// The moderation of one queue.
#[derive(Debug)]
pub struct Moderator {
    mode: Moderation,
    /// True if packets wait in a device's ring until they are received, and others determine when
    /// they arrive.
    gathers: bool,
    device: Gathering,
    /// True if the last hold was left out because the device gathers as many packets by itself.
    is_left_to_device: bool,
    turn: Turn,
    /// The polls of this round that used their budget.
    full: Turn,
    arrivals: Arrivals,
    /// Rate of the last window, or that for which the ring bounds a hold after a quiet time, if it
    /// is faster than the smoothed one.
    fastest: f64,
    /// True if the last decision of a mode with one length of holds was to wait for the device.
    is_unheld: bool,
    /// The permission for the adaptive mode with a limit of delay to hold packets.
    holding: Holding,
    adaptive: Adaptive,
    dim: Dim,
    cost: Cost,
    /// The last hold, until it ends; the next field is the smoothed lateness of the ends of sleeps.
    due: Option<Due>,
    late: Duration,
    /// The time for which the last decision would hold packets in a ring without end; `None` if it
    /// was no hold.
    held: Option<Duration>,
    packets: u64,
    /// Number of decisions after polls that found packets.
    polls: u64,
    irqs: u64,
    /// True if the last hold ended early, by another queue's wake-up.
    is_cut: bool,
    /// Packets and irqs at the last update of the cost.
    packets_learned: u64,
    irqs_learned: u64,
    packets_per_irq: f64,
    /// The time of that update.
    learned_at: Option<Instant>,
    /// Use of the CPU in recent updates, which lose weight with age, and in all of them.
    recent: Usage,
    whole: Usage,
    holds: Holds,
    /// Packets and irqs before the last change of the mode.
    before: [u64; 2],
}

impl Moderator {
    /// Creates the moderation of a queue; `gathers` is true if packets wait in a device's ring
    /// until they are received, and others determine when they arrive. Packets of other queues are
    /// never held. [`Moderation::clamped`] bounds the mode's numbers.
    #[must_use]
    pub fn new(mode: Moderation, gathers: bool) -> Moderator {
        Moderator {
            mode: mode.clamped(),
            gathers,
            device: Gathering::new(Gathers::NOTHING),
            is_left_to_device: false,
            turn: Turn::default(),
            full: Turn::default(),
            arrivals: Arrivals::default(),
            fastest: 0.0,
            is_unheld: true,
            holding: Holding::Allowed,
            adaptive: Adaptive::default(),
            dim: Dim::default(),
            cost: Cost::default(),
            due: None,
            late: Duration::ZERO,
            held: None,
            packets: 0,
            polls: 0,
            irqs: 0,
            is_cut: false,
            packets_learned: 0,
            irqs_learned: 0,
            packets_per_irq: 0.0,
            learned_at: None,
            recent: Usage::default(),
            whole: Usage::default(),
            holds: Holds::default(),
            before: [0; 2],
        }
    }

    /// Returns the mode.
    #[must_use]
    pub fn mode(&self) -> Moderation {
        self.mode
    }

    /// Returns true if packets can be held: they wait in a device's ring until they are received.
    #[must_use]
    pub fn gathers(&self) -> bool {
        self.gathers
    }

    /// Changes the mode, from the next decision on; [`Moderation::clamped`] bounds its numbers.
    pub fn set_mode(&mut self, mode: Moderation) {
        let mode = mode.clamped();
        if mode != self.mode {
            (self.mode, self.full) = (mode, Turn::default());
            (self.adaptive, self.dim) = (Adaptive::default(), Dim::default());
            self.arrivals.forget();
            (self.due, self.held, self.is_left_to_device) = (None, None, false);
            (self.fastest, self.is_unheld) = (0.0, true);
            // Summaries are of the time since the change.
            (self.holds, self.whole, self.learned_at) = (Holds::default(), Usage::default(), None);
            self.before = [self.packets + u64::from(self.turn.packets), self.irqs];
        }
    }

    /// Lets the adaptive mode with a limit of delay hold packets, or not, from the next decision on;
    /// the other modes hold as their settings say.
    pub fn set_holding(&mut self, holding: Holding) {
        self.holding = holding;
    }

    /// Ends what [`Moderator::set_holding`] has set; returns true if it was a restriction.
    pub(crate) fn allow_holds(&mut self) -> bool {
        std::mem::take(&mut self.holding) != Holding::Allowed
    }

    /// Returns true if packets are held now, in the mode that [`Moderator::set_holding`] concerns.
    #[must_use]
    pub fn holds_for_goal(&self) -> bool {
        self.held.is_some() && self.spares() && !self.adaptive.is_forgotten()
    }

    /// Returns true if the mode holds packets only if that slows nothing down and costs no CPU time.
    fn spares(&self) -> bool {
        matches!(self.mode, Moderation::Adaptive(Goal::Latency { .. }))
    }

    /// Sets the length of the device's ring, if it is known; below 64 it counts as 64. A hold ends
    /// before half of the ring is full, or after 50 µs if less than three quarters arrive in that
    /// time.
    pub fn set_ring_len(&mut self, packets: Option<u32>) {
        self.device.set_ring_len(packets.unwrap_or(RING_LEN).max(RING_LEN_MIN));
    }

    /// Sets which packets the device gathers by itself before it signals them. Holds that gather no
    /// more are left out: they would often find nothing, and cost a wake-up more.
    pub fn set_gathers(&mut self, device: Gathers) {
        self.device.set_device(device);
    }

    /// Cancels the last hold, which was not slept: its end is not compared with a timer's, and
    /// the time until the next decision is no round of the adaptive mode.
    pub fn forget_hold(&mut self) {
        if let Some(due) = self.due.take() {
            self.holds.time_ns -= due.hold.as_nanos() as u64;
            self.holds.count -= 1;
            self.holds.cut_count -= u64::from(due.by_ring);
            self.adaptive.forget_hold();
        }
    }

    /// Cancels the last hold as [`Moderator::forget_hold`] does, because the device cannot be held.
    pub fn refuse_hold(&mut self) {
        self.forget_hold();
        self.held = None;
    }

    /// Returns true if the last hold goes on at `now` for so long that its alarm, which may ring a
    /// quarter of its time early, cannot have rung.
    #[must_use]
    pub fn holds_on(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due.at.saturating_duration_since(now) > due.hold / LEFT)
    }

    /// Records that a poll for up to `budget` packets returned `packets`, so that the queue is not
    /// blocked any more.
    ///
    /// Cost: a few additions; no clock.
    #[inline]
    pub fn received(&mut self, packets: usize, bytes: u64, budget: usize) {
        self.turn.add(packets as u32, bytes);
        (self.turn.more, self.turn.blocked) = (packets == budget, false);
    }

    /// Returns true if the last poll returned its whole budget, so that the queue must be polled
    /// again.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.turn.more && self.mode != Moderation::Interrupt
    }

    /// Records that the queue was not polled, because there is no room for its packets.
    pub fn left_alone(&mut self) {
        self.turn.blocked = true;
    }

    /// Counts the end of a sleep, by the device or by a timer.
    pub fn irq(&mut self) {
        self.irqs += 1;
    }

    /// Updates the costs of a wake-up and of a packet at `now`, and the CPU time that the queue
    /// takes by them.
    pub fn learned(&mut self, cost: Cost, now: Instant) {
        self.cost = cost;
        let packets = (self.packets - self.packets_learned) as f64;
        let irqs = (self.irqs - self.irqs_learned) as f64;
        (self.packets_learned, self.irqs_learned) = (self.packets, self.irqs);
        if irqs > 0.0 {
            self.packets_per_irq = packets / irqs;
        }
        let Some(since) = self.learned_at.replace(now) else { return };
        let passed_ns = now.saturating_duration_since(since).as_nanos() as f64;
        let used_ns = irqs * cost.wake_ns + packets * cost.packet_ns;
        decay_and_add(&mut self.recent.used_ns, used_ns);
        decay_and_add(&mut self.recent.passed_ns, passed_ns);
        self.whole.used_ns += used_ns;
        self.whole.passed_ns += passed_ns;
    }

    /// Returns the time for which a quiet queue may stay unpolled, because another queue of the
    /// same thread is held; `None` if it must be armed instead.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        let longest = match self.mode {
            Moderation::Interrupt | Moderation::Napi | Moderation::Busy => Duration::ZERO,
            // It may hold the other queue for long: a timer that ends each hold for a quiet queue
            // would take more than the limit.
            Moderation::Adaptive(Goal::Cpu { .. }) => Duration::ZERO,
            Moderation::Dim => GAP_MAX,
            Moderation::Fixed { usecs, .. } => Duration::from_micros(usecs.into()),
            Moderation::Adaptive(Goal::Latency { p99_usecs }) => longest(p99_usecs),
        };
        // A mode that never holds must not cut the holds of others to its time. Packets of a ring
        // would wake the worker one by one, because nothing gathers them.
        match longest >= HOLD_MIN {
            true => Some(longest),
            false => (!self.gathers).then_some(GAP_MAX),
        }
    }

    /// Returns the time for which packets that wait for their time to be sent may gather: no longer
    /// than the mode holds packets, and no longer than necessary to limit wake-ups to a tenth of
    /// the CPU time.
    #[must_use]
    pub fn gap(&self) -> Duration {
        let most = match self.mode {
            Moderation::Interrupt | Moderation::Napi | Moderation::Busy => return Duration::ZERO,
            Moderation::Fixed { usecs, .. } => Duration::from_micros(usecs.into()),
            Moderation::Adaptive(Goal::Latency { p99_usecs }) => longest(p99_usecs),
            Moderation::Dim | Moderation::Adaptive(_) => GAP_MAX,
        };
        from_nanos(self.cost.wake_ns / WAKING).min(most)
    }

    /// Decides when to poll again, from the polls since the last decision.
    pub fn rest(&mut self, now: Instant) -> Rest {
        let turn = std::mem::take(&mut self.turn);
        let look = if turn.packets > 0 || turn.more { Rest::Look } else { Rest::Device };
        if !self.gathers {
            return if self.mode == Moderation::Busy { Rest::Look } else { look };
        }
        self.packets += u64::from(turn.packets);
        self.polls += u64::from(turn.packets > 0);
        self.hold_ended(now);
        self.held = None;
        match self.mode {
            Moderation::Interrupt => Rest::Device,
            Moderation::Napi => look,
            Moderation::Busy => Rest::Look,
            _ if turn.more && !turn.blocked => {
                self.arrivals.add(turn.packets);
                self.full.add(turn.packets, turn.bytes);
                Rest::Look
            }
            _ => match self.hold(now, turn) {
                Some(hold) => self.begin(now, hold),
                // A hold that found no packet counts as the poll.
                None => look,
            },
        }
    }

    /// Returns the mode's hold after a poll that emptied the device.
    fn hold(&mut self, now: Instant, turn: Turn) -> Option<Duration> {
        self.arrivals.add(turn.packets);
        if turn.blocked {
            return self.hold_blocked(now);
        }
        let mut round = std::mem::take(&mut self.full);
        round.add(turn.packets, turn.bytes);
        self.device.add(round.packets, round.bytes);
        let (usecs, frames) = match self.mode {
            Moderation::Adaptive(goal) => {
                let (cost, late) = (self.cost, self.late);
                let target = |rate: f64| target(goal, rate, cost, late);
                let is_cut = std::mem::take(&mut self.is_cut);
                let Moderator { packets, irqs, polls, .. } = *self;
                let so_far = SoFar { packets, irqs, polls, is_cut };
                let spares = self.spares();
                let may_hold = !spares || self.holding == Holding::Allowed;
                let facts = Facts { late, spares, may_hold, so_far };
                let (arrivals, device) = (&mut self.arrivals, &self.device);
                return self.adaptive.round(now, facts, arrivals, target, device);
            }
            Moderation::Fixed { usecs, frames } => (usecs, frames),
            _ => {
                if round.packets > 0 {
                    self.dim.irq(now, round.packets.into(), round.bytes);
                }
                self.dim.profile()
            }
        };
        let hold = Duration::from_micros(usecs.into());
        self.close_window(now, hold);
        let rate = self.arrivals.rate();
        let enough = if rate > 0.0 { f64::from(frames) / rate } else { f64::MAX };
        let hold = hold.min(from_nanos(enough));
        self.is_unheld = true;
        if round.packets == 0 || hold < HOLD_MIN {
            return None;
        }
        self.is_left_to_device = !self.device.pays(hold, rate.max(self.fastest));
        self.is_unheld = self.is_left_to_device;
        (!self.is_unheld).then_some(hold)
    }

    /// Ends the window of arrivals at `now`, and sets the rate for which the ring bounds the next
    /// hold. A quiet time, for which the queue waited for its device, is no window: packets that
    /// come after it may come at any rate.
    fn close_window(&mut self, now: Instant, hold: Duration) {
        let window = self.arrivals.so_far(now);
        let is_quiet = |window: Window| window.passed > QUIET * hold.max(SLEEP_MIN);
        if self.is_unheld && window.is_none_or(is_quiet) {
            self.arrivals.forget_rate();
            self.arrivals.restart(now);
            self.fastest = RATE_AFTER_QUIET;
        } else {
            self.fastest = window.map_or(0.0, Window::rate);
            self.arrivals.close(now);
        }
    }

    /// Continues to hold a queue that has no room for its packets, unless it was not polled for a
    /// long time.
    fn hold_blocked(&mut self, now: Instant) -> Option<Duration> {
        let hold = match self.mode {
            Moderation::Adaptive(_) => self.adaptive.blocked(),
            _ => self.patience(),
        }?;
        let known = self.arrivals.so_far(now)?;
        if known.passed > 5 * hold.max(SLEEP_MIN) {
            self.adaptive.lose(&mut self.arrivals);
            // What comes next may come at any rate, as after a quiet time.
            self.is_unheld = true;
            return None;
        }
        Some(hold)
    }

    /// Returns by what the ring would end a hold of `wanted`.
    fn cut(&self, wanted: Duration) -> Cut {
        let (measured, ring_len) = (self.arrivals.rate(), self.device.ring_len());
        // `close_window` has forgotten the measured rate after a quiet time.
        let is_rate_assumed = measured <= 0.0;
        Cut { wanted, rate: measured.max(self.fastest), is_rate_assumed, ring_len }
    }

    /// Begins a hold, no longer than [`Gathering::bound`] allows for the ring.
    fn begin(&mut self, now: Instant, wanted: Duration) -> Rest {
        self.held = Some(wanted);
        let cut = self.cut(wanted);
        let (hold, spin) = self.device.bound(wanted, cut.rate);
        self.holds.time_ns += hold.as_nanos() as u64;
        self.holds.count += 1;
        let by_ring = hold < wanted;
        if by_ring {
            (self.holds.cut_count, self.holds.cut) = (self.holds.cut_count + 1, cut);
        }
        let Some(until) = now.checked_add(hold) else { return Rest::Look };
        self.due = Some(Due { at: until, hold, spin, by_ring });
        Rest::Hold { until, spin }
    }

    /// Ends the hold at `now`, and measures how late its sleep ended; returns true if the hold was
    /// over, of which a quarter may be left. An end that is much later than usual has little weight.
    ///
    /// Call it directly after the sleep: otherwise the next decision counts all time until then as
    /// lateness.
    pub fn hold_ended(&mut self, now: Instant) -> bool {
        let Some(due) = self.due.take() else { return false };
        let left = due.at.saturating_duration_since(now).min(due.hold);
        self.holds.time_ns -= left.as_nanos() as u64;
        self.is_cut = left > due.hold / LEFT;
        if self.is_cut {
            return false;
        }
        if !due.spin {
            let late = now.saturating_duration_since(due.at);
            self.late = (7 * self.late + late.min(2 * self.late + LATE_MIN)) / 8;
        }
        true
    }

    /// Returns the present state of the moderation and the reason for it, displayed as one line.
    #[must_use]
    pub fn moderated(&self) -> Moderated {
        let (wanted, why) = match self.mode {
            Moderation::Adaptive(_) if self.spares() && self.holding == Holding::Costly => {
                (None, Why::Costly)
            }
            Moderation::Adaptive(_) => self.adaptive.state(),
            _ if self.is_left_to_device => (self.held, Why::Device),
            _ => (self.held, Why::Thin),
        };
        let wanted = wanted.filter(|_| self.gathers);
        // As `begin` bounds the hold.
        let cut = self.cut(wanted.unwrap_or_default());
        let hold = wanted.map(|wanted| self.device.bound(wanted, cut.rate).0);
        // Nothing is learned of a queue that is never idle, which has no irq, or that always waits
        // for room, too; a decision does not follow each of its polls.
        let seen = self.packets + u64::from(self.turn.packets);
        let packets_per_irq = match self.irqs_learned {
            0 if seen > 0 => seen as f64 / self.irqs as f64,
            _ => self.packets_per_irq,
        };
        let moderated = Moderated {
            mode: self.mode,
            hold,
            gathers: self.gathers,
            packets_per_irq,
            waking_percent: self.cost.waking_percent(packets_per_irq),
            is_short_by_ring: hold < wanted,
            unmet: false,
            cut,
            device_hold: self.device.time(),
            late: self.late,
            share: self.recent.share(),
            share_of_all: self.whole.share(),
            holds: self.holds,
            before: self.before,
            cost: self.cost,
            why,
        };
        Moderated { unmet: moderated.misses(), ..moderated }
    }
}

/// Returns the longest hold with which packets are delayed by at most `p99_usecs`, if the alarm may
/// ring late and timers are not; no shorter than the shortest hold, if that is within the limit.
fn longest(p99_usecs: u32) -> Duration {
    let limit_ns = 1000 * u64::from(p99_usecs);
    let part_ns = limit_ns * LATEST / (LATEST + 1);
    Duration::from_nanos(part_ns.max(limit_ns.min(HOLD_MIN.as_nanos() as u64)))
}

/// Returns the part of a timer's lateness that holding adds to the delay of packets at a rate of
/// packets a nanosecond.
///
/// A thread whose timers are late gets the CPU late after a device's wake-up as well, so that a
/// packet that wakes it waits for that without a hold, too. The packets that come while a wake-up
/// is handled would find the thread awake.
fn added(late: Duration, rate: f64, cost: Cost) -> Duration {
    let awake = rate * cost.wake_ns;
    late.mul_f64(awake / (1.0 + awake))
}

/// Returns the longest hold that a goal allows at a rate of packets a nanosecond, if timers are
/// `late`.
fn target(goal: Goal, rate: f64, cost: Cost, late: Duration) -> Duration {
    match goal {
        Goal::Latency { p99_usecs } => {
            let limit = Duration::from_micros(p99_usecs.into());
            // The usual lateness contains that of the alarm.
            let by_timers = limit - added(late, rate, cost).min(limit / LATE_PART);
            let longest = longest(p99_usecs).min(by_timers.max(limit.min(HOLD_MIN)));
            // Number of packets a wake-up at which wake-ups take a tenth of the CPU time.
            let enough = cost.wake_ns * (1.0 - WAKING) / (WAKING * cost.packet_ns.max(1.0));
            let enough = enough.max(ENOUGH);
            if rate > 0.0 { longest.min(from_nanos(enough / rate).max(SLEEP_MIN)) } else { longest }
        }
        Goal::Cpu { percent } => {
            // Share of CPU time that is left for wake-ups.
            let left = f64::from(percent) / 100.0 - rate * cost.packet_ns;
            let hold = if left <= 0.0 { f64::INFINITY } else { cost.wake_ns / left };
            // A hold that gathers less than two packets is not begun. If one that gathers more than
            // one is necessary to meet the goal, it is extended to two.
            let least = if rate * hold > 1.0 { (ENTER / rate).ceil() + 1.0 } else { 0.0 };
            from_nanos(hold.max(least))
        }
    }
}

/// Returns a duration of `ns` nanoseconds, at most [`HOLD_MAX`].
pub(super) fn from_nanos(ns: f64) -> Duration {
    Duration::from_nanos((ns.min(HOLD_MAX.as_nanos() as f64)) as u64)
}

#[cfg(test)]
mod tests;
