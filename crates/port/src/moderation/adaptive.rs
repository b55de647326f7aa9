//! The adaptive mode: holds packets for as long as the goal allows, if their senders do not wait
//! for an answer.
//!
//! ```text
//!            8 packets, dense enough             8 rounds gathered what was expected
//!   Free ───────────────────────────► on trial ─────────────────────────────► held
//!    ▲                                 │  less than half: half of the time      │
//!    └─────────────────────────────────┴────────────────────────────────────────┘
//!        too short to gather two: not tried again for a while    thin, or a second is over
//! ```
//!
//! At the same rate a stream gathers while it is held and a peer that waits for each answer does not: it is
//! only slowed down. No rate tells the two apart, so a trial does, and its verdict is kept for a while. A longer
//! hold than the last trial's has a trial of its own: at once if the rate has risen, else at the end of that while.
//!
//! Many peers that wait are slowed down by less than half, so that a trial does not see it. At the end of each while,
//! holds are therefore a quarter as long for a few milliseconds, the probe. If twice in a row packets come faster then,
//! by a ninth and by more than chance, the next holds are half as long. The while is short at first, and then a second.

use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, Window};

/// Number of packets that a rate needs; the next constant is the shortest time that it needs.
const EVIDENCE: u32 = 8;
const EVIDENCE_TIME: Duration = Duration::from_micros(50);
/// Number of packets that a hold must gather to begin; holds that gather less than the next constant end.
const ENTER: f64 = 2.0;
const EXIT: f64 = 1.5;
/// Rounds of a trial; the next constant is the number after which a hopeless trial ends.
const TRIAL: u32 = 8;
const HOPELESS: u32 = 2;
/// Number of empty hold times after which a wake-up counts as the end of a quiet time.
const QUIET: u32 = 4;
/// Time without a trial after the first failed one; the next constant is the limit to which it grows.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Time for which the first successful trial stays valid, and its shortest length in holds; the next constants are the
/// factor by which it grows, and its limit.
const BELIEVED_MIN: Duration = Duration::from_millis(20);
const BELIEVED_HOLDS: u32 = 32;
const BELIEVED_MORE: u32 = 4;
const BELIEVED_MAX: Duration = Duration::from_secs(1);
/// Time of a probe, and the number of packets up to which it is extended to the next constant.
const PROBE: Duration = Duration::from_millis(4);
const PROBE_PACKETS: u32 = 256;
const PROBE_MAX: Duration = Duration::from_millis(8);
/// Part of the hold that a probe has.
const PROBE_PART: u32 = 4;
/// Share of the rate of a probe below which the rate before it was slowed down.
const SLOWED: f64 = 0.9;
/// Number of standard deviations of a count by which a probe must differ from the time before it.
const CHANCE: f64 = 2.0;
/// The longest hold that may be limited because of peers that wait.
const LIMIT_MAX: Duration = Duration::from_millis(10);
/// The shortest hold: a shorter sleep costs more than handling the packets of that time.
pub(super) const HOLD_MIN: Duration = Duration::from_micros(20);

/// The reason why packets are held or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Why {
    /// Packets are too rare to be held.
    #[default]
    Thin,
    /// A trial gathered no packets, because a peer waits for each answer.
    Waited,
    /// The device gathers as many packets by itself.
    Device,
    /// Packets are held.
    Held,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Free,
    Trial {
        rounds: u32,
        came: u32,
        passed: Duration,
    },
    Held {
        until: Option<Instant>,
        came: u64,
        passed: Duration,
    },
    /// `held` is the rate before the probe, in packets a nanosecond.
    Probe {
        held: f64,
        came: u32,
        passed: Duration,
    },
}

/// The state of the adaptive mode.
#[derive(Debug)]
pub(super) struct Adaptive {
    phase: Phase,
    /// The packet rate before packets were held, in packets a nanosecond.
    natural: f64,
    /// The longest hold that is on trial or was accepted.
    cap: Duration,
    hold: Duration,
    late: Duration,
    /// True if the last probe showed that packets were slowed down.
    slowed: bool,
    /// The longest hold of the time before a probe that showed no difference: it needs no trial.
    accepted: Duration,
    /// The longest hold that did not slow packets down.
    limit: Duration,
    /// Time for which the next successful trial stays valid.
    believed: Duration,
    /// True if a trial failed since the last successful one.
    failed: bool,
    retry_at: Option<Instant>,
    backoff: Duration,
    /// True if the last poll found no packet.
    empty: bool,
    /// True if the last hold was left out because the device gathers as many packets by itself.
    is_left_to_device: bool,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        Adaptive {
            phase: Phase::Free,
            natural: 0.0,
            cap: Duration::MAX,
            hold: Duration::ZERO,
            late: Duration::ZERO,
            slowed: false,
            accepted: Duration::ZERO,
            limit: Duration::MAX,
            believed: BELIEVED_MIN,
            failed: false,
            retry_at: None,
            backoff: BACKOFF_MIN,
            empty: false,
            is_left_to_device: false,
        }
    }
}

impl Adaptive {
    /// Returns the hold after a poll at `now` that emptied the device; `None` if a hold would gain
    /// nothing. `target` returns the longest hold that the goal allows at a rate, and `pays` returns true if a hold
    /// gathers more at a rate than the device does by itself; packets gather for `late` longer than the hold.
    /// `spares` is true if holds are limited so that they do not slow packets down.
    pub fn round(
        &mut self,
        now: Instant,
        (late, spares): (Duration, bool),
        arrivals: &mut Arrivals,
        target: impl Fn(f64) -> Duration,
        pays: impl Fn(Duration, f64) -> bool + Copy,
    ) -> Option<Duration> {
        let Some(window) = arrivals.so_far(now) else {
            arrivals.restart(now);
            return None;
        };
        self.late = late;
        let packets = window.packets;
        let was_empty = std::mem::replace(&mut self.empty, packets == 0);
        if self.phase != Phase::Free && was_empty && window.passed > QUIET * self.hold {
            self.release(arrivals, now);
            return None;
        }
        match self.phase {
            Phase::Free => self.free(now, window, arrivals, target, pays),
            Phase::Trial { rounds, came, passed } => {
                arrivals.close(now);
                let (rounds, came) = (rounds + 1, came.saturating_add(packets));
                let passed = passed + window.passed;
                self.phase = Phase::Trial { rounds, came, passed };
                let expected = self.natural * passed.as_nanos() as f64;
                let gathered = f64::from(came);
                if rounds >= HOPELESS && 4.0 * gathered < expected
                    || rounds >= TRIAL && 2.0 * gathered < expected
                {
                    return self.fail(now, arrivals, pays);
                }
                if rounds >= TRIAL {
                    self.failed = false;
                    if self.limit == Duration::MAX {
                        self.backoff = BACKOFF_MIN;
                    }
                    let time = if spares { self.believed } else { BELIEVED_MAX };
                    let until = now.checked_add(time.max(BELIEVED_HOLDS * self.hold));
                    self.phase = Phase::Held { until, came: 0, passed: Duration::ZERO };
                }
                (packets > 0).then_some(self.hold)
            }
            Phase::Held { until, came, passed } => {
                arrivals.close(now);
                let (came, passed) = (came + u64::from(packets), passed + window.passed);
                self.phase = Phase::Held { until, came, passed };
                let rate = arrivals.rate();
                let is_thin = rate * nanos(self.hold + late) < EXIT;
                let is_over = until.is_none_or(|at| now >= at);
                if is_over && spares && !is_thin {
                    let held = came as f64 / nanos(passed).max(1.0);
                    self.phase = Phase::Probe { held, came: 0, passed: Duration::ZERO };
                    return (packets > 0).then_some(self.hold / PROBE_PART);
                }
                if is_over || is_thin || !pays(self.hold, rate) {
                    self.release(arrivals, now);
                    return None;
                }
                self.held(packets > 0, rate, target(rate).min(self.limit), pays)
            }
            Phase::Probe { held, came, passed } => {
                arrivals.close(now);
                let (came, passed) = (came.saturating_add(packets), passed + window.passed);
                self.phase = Phase::Probe { held, came, passed };
                if passed < PROBE || came < PROBE_PACKETS && passed < PROBE_MAX {
                    return (packets > 0).then_some(self.hold / PROBE_PART);
                }
                self.judge(held, came.into(), passed);
                self.release(arrivals, now);
                None
            }
        }
    }

    /// Begins a trial once the rate of packets that are not held is known.
    fn free(
        &mut self,
        now: Instant,
        window: Window,
        arrivals: &mut Arrivals,
        target: impl Fn(f64) -> Duration,
        pays: impl Fn(Duration, f64) -> bool,
    ) -> Option<Duration> {
        let rate = window.rate();
        let longest = target(rate);
        // A trial that failed may have expected the rate within a burst: then measure for the time of a hold, so that the
        // pauses between bursts count.
        let time = EVIDENCE_TIME.max(if self.failed { longest } else { Duration::ZERO });
        if window.packets >= EVIDENCE && window.passed >= time {
            arrivals.forget_rate();
            arrivals.close(now);
            let may = self.retry_at.is_none_or(|at| now >= at);
            return if may { self.enter_limited(now, rate, longest, pays) } else { None };
        }
        // The packets are too rare for a rate: begin a new count.
        if window.passed > QUIET * longest.max(EVIDENCE_TIME) {
            self.is_left_to_device = false;
            arrivals.restart(now);
        }
        None
    }

    /// Returns the next hold of packets that are held, after one that gathered packets or none.
    fn held(
        &mut self,
        gathered: bool,
        rate: f64,
        longest: Duration,
        pays: impl Fn(Duration, f64) -> bool,
    ) -> Option<Duration> {
        // Holding cannot raise the rate of peers that wait, so a longer hold is tried at once.
        if gathered && rate > self.natural && longest > self.cap + self.cap / 8 {
            return self.enter(rate, longest, pays);
        }
        self.adjust(longest.min(self.cap));
        gathered.then_some(self.hold)
    }

    /// Returns the hold of a queue that was not polled, because there is no room for its packets.
    pub fn blocked(&self) -> Option<Duration> {
        self.is_held().then_some(self.hold)
    }

    /// Ends the hold of a queue that was not polled for a long time.
    pub fn lose(&mut self, arrivals: &mut Arrivals) {
        self.phase = Phase::Free;
        arrivals.forget();
    }

    /// Returns the hold, and the reason for it or against it.
    pub fn state(&self) -> (Option<Duration>, Why) {
        if self.is_held() && !self.empty {
            (Some(self.hold), Why::Held)
        } else if self.retry_at.is_some() {
            (None, Why::Waited)
        } else if self.is_left_to_device {
            (None, Why::Device)
        } else {
            (None, Why::Thin)
        }
    }

    fn is_held(&self) -> bool {
        self.phase != Phase::Free
    }

    /// Compares the packets that `came` in a probe with those at the rate `held` before it, and limits or lengthens the
    /// next holds.
    fn judge(&mut self, held: f64, came: f64, passed: Duration) {
        let expected = held * nanos(passed);
        let is_slowed = expected < SLOWED * came && came - expected > CHANCE * came.sqrt();
        if !is_slowed {
            (self.slowed, self.backoff, self.accepted) = (false, BACKOFF_MIN, self.cap);
            if self.believed == BELIEVED_MAX && self.limit < Duration::MAX {
                let longer = 2 * self.limit;
                self.limit = if longer < LIMIT_MAX { longer } else { Duration::MAX };
            }
            self.believed = (BELIEVED_MORE * self.believed).min(BELIEVED_MAX);
            return;
        }
        if self.slowed {
            self.limit = self.hold / 2;
        }
        (self.slowed, self.believed) = (!self.slowed, BELIEVED_MIN);
    }

    /// Begins a trial of `longest`, or of the limit if it is shorter. If the limit is too short for a hold, waits, and
    /// then tries twice the time.
    fn enter_limited(
        &mut self,
        now: Instant,
        rate: f64,
        longest: Duration,
        pays: impl Fn(Duration, f64) -> bool,
    ) -> Option<Duration> {
        let accepted = std::mem::take(&mut self.accepted).min(self.limit);
        let hold = self.enter(rate, longest.min(self.limit), pays);
        if hold.is_some() {
            self.cap = self.cap.max(accepted);
        }
        if hold.is_none() && self.limit < longest && !self.is_left_to_device {
            self.limit = 2 * self.limit.max(HOLD_MIN);
            self.back_off(now);
        }
        hold
    }

    /// Allows no trial for a time, which doubles.
    fn back_off(&mut self, now: Instant) {
        self.retry_at = now.checked_add(self.backoff);
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
    }

    /// Begins a trial of `longest`, if it would gather packets.
    fn enter(
        &mut self,
        rate: f64,
        longest: Duration,
        pays: impl Fn(Duration, f64) -> bool,
    ) -> Option<Duration> {
        self.retry_at = None;
        if longest < HOLD_MIN || rate * nanos(longest + self.late) < ENTER {
            return None;
        }
        self.is_left_to_device = !pays(longest, rate);
        if self.is_left_to_device {
            return None;
        }
        (self.natural, self.cap, self.hold) = (rate, longest, longest);
        self.phase = Phase::Trial { rounds: 0, came: 0, passed: Duration::ZERO };
        Some(longest)
    }

    /// Halves a hold that gathered too few packets; gives up if the half is too short.
    fn fail(
        &mut self,
        now: Instant,
        arrivals: &mut Arrivals,
        pays: impl Fn(Duration, f64) -> bool,
    ) -> Option<Duration> {
        self.failed = true;
        let half = self.enter(self.natural, self.hold / 2, pays);
        // Forget the rate, because it was measured with the longer hold.
        arrivals.forget_rate();
        if half.is_none() {
            self.release(arrivals, now);
            self.back_off(now);
        }
        half
    }

    /// Stops holding, so that the caller waits for the descriptor, and restarts the counts.
    fn release(&mut self, arrivals: &mut Arrivals, now: Instant) {
        (self.phase, self.cap) = (Phase::Free, Duration::MAX);
        arrivals.restart(now);
    }

    /// Adopts `target` as the hold if it differs by more than an eighth.
    fn adjust(&mut self, target: Duration) {
        if target.abs_diff(self.hold) > self.hold / 8 {
            self.hold = target;
        }
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}
