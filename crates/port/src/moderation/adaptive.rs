//! The adaptive mode: holds packets for as long as the goal allows, if their senders do not wait
//! for an answer.
//!
//! ```text
//!            8 packets, dense enough             8 hold times gathered what was expected
//!   Free ───────────────────────────► on trial ─────────────────────────────► held
//!    ▲                                 │  less than half: half of the time      │
//!    └─────────────────────────────────┴────────────────────────────────────────┘
//!        too short to gather two: not tried again for a while    thin, or the while is over
//! ```
//!
//! At the same rate a stream gathers while it is held and a peer that waits for each answer does
//! not: it is only slowed down. No rate tells the two apart, so a trial does, and its verdict is
//! kept for a while. A longer hold than the last trial's has a trial of its own: at once if the
//! rate has risen, else at the end of that while.
//!
//! Many peers that wait are slowed down by less than half, so that a trial does not see it. A
//! [`Probe`] at the end of each while does. And a hold behind each burst gathers nothing: at the end
//! of a trial, of a while and of a burst, a [`Gain`] tells whether packets take less work with holds.
//! A [`Saving`](super::saving::Saving) of the thread tells whether they cost CPU time. A goal of
//! CPU time is held all the same.

use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, Window};
use super::gain::{Doing, Gain, SoFar};
use super::gathering::Gathering;
use super::moderated::Why;
use super::slowdown::{Probe, Slowdown};

/// Number of packets that a rate needs; the next constant is the shortest time that it needs.
const EVIDENCE: u32 = 8;
const EVIDENCE_TIME: Duration = Duration::from_micros(50);
/// Number of packets that a hold must gather to begin; holds that gather less than the next
/// constant end.
pub(super) const ENTER: f64 = 2.0;
const EXIT: f64 = 1.5;
/// Number of hold times that a trial takes; the next constant is the number after which a hopeless
/// trial ends.
const TRIAL: u32 = 8;
const HOPELESS: u32 = 2;
/// Number of packets of a full poll, and of time without an empty one.
const FULL_POLL: u32 = 64;
/// Number of empty hold times after which a wake-up counts as the end of a quiet time.
const QUIET: u32 = 4;
/// Time without a trial after the first failed one; the next constant is the limit to which it
/// grows.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The shortest hold: a shorter sleep costs more than handling the packets of that time.
pub(super) const HOLD_MIN: Duration = Duration::from_micros(20);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Free,
    Trial { came: u32, passed: Duration },
    Held,
    Probe(Probe),
}

/// Conditions of a round, apart from the packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// Time for which packets gather beyond the end of a hold.
    pub late: Duration,
    /// True if holds are limited so that they slow no packets down, and end if they save nothing.
    pub spares: bool,
    /// False if nothing may be held.
    pub may_hold: bool,
    /// The queue's work.
    pub so_far: SoFar,
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
    slowdown: Slowdown,
    /// The longest hold of the time before a probe that showed no difference: it needs no trial.
    accepted: Duration,
    /// True if that hold ended because the thread compares its CPU time, or found it to cost some.
    resumes: bool,
    /// True if a trial failed since the last successful one.
    failed: bool,
    /// The time of the next trial, and why there is none before.
    retry: Option<(Instant, Why)>,
    backoff: Duration,
    gain: Gain,
    /// True if the last poll found no packet.
    empty: bool,
    /// The time of the last poll that found packets.
    found_at: Option<Instant>,
    /// True if the last hold was not slept.
    is_forgotten: bool,
    /// The reason why no hold was tried.
    why: Why,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        Adaptive {
            phase: Phase::Free,
            natural: 0.0,
            cap: Duration::MAX,
            hold: Duration::ZERO,
            late: Duration::ZERO,
            slowdown: Slowdown::default(),
            accepted: Duration::ZERO,
            resumes: false,
            failed: false,
            retry: None,
            backoff: BACKOFF_MIN,
            gain: Gain::default(),
            empty: false,
            found_at: None,
            is_forgotten: false,
            why: Why::Thin,
        }
    }
}

impl Adaptive {
    /// Returns the hold after a poll at `now` that emptied the device; `None` if a hold would gain
    /// nothing. `target` returns the longest hold that the goal allows at a rate.
    pub fn round(
        &mut self,
        now: Instant,
        facts: Facts,
        arrivals: &mut Arrivals,
        target: impl Fn(f64) -> Duration,
        device: &Gathering,
    ) -> Option<Duration> {
        let Facts { late, spares, so_far, .. } = facts;
        self.gain.add(so_far, self.doing());
        let Some(window) = arrivals.so_far(now) else {
            arrivals.restart(now);
            return None;
        };
        self.late = late;
        let is_forgotten = std::mem::take(&mut self.is_forgotten);
        let was_empty = std::mem::replace(&mut self.empty, window.packets == 0);
        let found = window.packets > 0;
        if found {
            self.end_silence(now, window);
        }
        if self.phase == Phase::Free {
            return self.free(now, window, arrivals, facts, target, device);
        }
        if !facts.may_hold {
            if self.phase == Phase::Held {
                // Holds that were accepted go on without a trial when they may.
                (self.accepted, self.resumes) = (self.cap, true);
            }
            return self.release(arrivals, now);
        }
        if is_forgotten {
            // The window was no hold, so it says nothing about holds, and a trial must begin anew.
            if let Phase::Trial { .. } = self.phase {
                return self.release(arrivals, now);
            }
            arrivals.close(now);
            return self.blocked().filter(|_| found);
        }
        if was_empty && window.passed > QUIET * self.hold {
            let gains = !spares || self.gain.is_there();
            return match gains {
                true => self.release(arrivals, now),
                false => self.pause(now, arrivals, Why::Bursts),
            };
        }
        arrivals.close(now);
        match self.phase {
            Phase::Trial { came, passed } => {
                // Time counts and not the number of rounds: another descriptor may end a hold
                // early.
                let (came, passed) = (came.saturating_add(window.packets), passed + window.passed);
                self.phase = Phase::Trial { came, passed };
                self.tried(now, found, arrivals, spares, device)
            }
            Phase::Probe(probe) => {
                let longest = target(arrivals.rate());
                self.probed(now, (probe, window), found, arrivals, longest)
            }
            _ => {
                let rate = arrivals.rate();
                if rate * nanos(self.hold + late) < EXIT || !device.pays(self.hold, rate) {
                    return self.release(arrivals, now);
                }
                if self.slowdown.count_down(window.passed) {
                    if spares && !self.gain.is_there() {
                        return self.pause(now, arrivals, Why::Bursts);
                    }
                    return self.end_while(now, arrivals, spares, device).filter(|_| found);
                }
                if self.slowdown.raise(now) {
                    // The doubled limit has a trial, and soon a probe.
                    return self.release(arrivals, now);
                }
                let longest = target(rate).min(self.slowdown.limit());
                self.held(found, rate, longest, spares, device)
            }
        }
    }

    /// Returns what the queue has done since the last round.
    fn doing(&self) -> Doing {
        match self.phase {
            Phase::Free => Doing::Free,
            Phase::Trial { .. } | Phase::Held => Doing::Held,
            Phase::Probe(_) => Doing::Probe,
        }
    }

    /// Ends the belief in former probes if the packets of `window` ended a time without packets.
    fn end_silence(&mut self, now: Instant, window: Window) {
        let Some(at) = self.found_at.replace(now) else { return };
        // Without an empty poll for that long the queue was not silent but busy.
        let silence = now.saturating_duration_since(at) / (1 + window.packets / FULL_POLL);
        if self.slowdown.note_silence(silence) {
            (self.accepted, self.resumes) = (Duration::ZERO, false);
        }
    }

    /// Begins a trial once the rate of packets that are not held is known.
    fn free(
        &mut self,
        now: Instant,
        window: Window,
        arrivals: &mut Arrivals,
        facts: Facts,
        target: impl Fn(f64) -> Duration,
        device: &Gathering,
    ) -> Option<Duration> {
        let rate = window.rate();
        let longest = target(rate);
        // A trial that failed may have expected the rate within a burst: then measure for the time
        // of a hold, so that the pauses between bursts count.
        let time = EVIDENCE_TIME.max(if self.failed { longest } else { Duration::ZERO });
        if window.packets >= EVIDENCE && window.passed >= time {
            arrivals.forget_rate();
            arrivals.close(now);
            let may = facts.may_hold && self.retry.is_none_or(|(at, _)| now >= at);
            let spares = facts.spares;
            return if may { self.enter_limited(now, rate, longest, spares, device) } else { None };
        }
        // The packets are too rare for a rate: begin a new count.
        if window.passed > QUIET * longest.max(EVIDENCE_TIME) {
            self.why = Why::Thin;
            self.retry = self.retry.filter(|(at, _)| now < *at);
            arrivals.restart(now);
        }
        None
    }

    /// Goes on with a trial, or ends it; returns the next hold if the last one `found` packets.
    fn tried(
        &mut self,
        now: Instant,
        found: bool,
        arrivals: &mut Arrivals,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        let Phase::Trial { came, passed } = self.phase else { return None };
        let (expected, gathered) = (self.natural * nanos(passed), f64::from(came));
        let is_over = passed >= TRIAL * self.hold;
        if passed >= HOPELESS * self.hold && 4.0 * gathered < expected
            || is_over && 2.0 * gathered < expected
        {
            return self.fail(now, arrivals, spares, device);
        }
        if is_over && spares && !self.gain.is_there() {
            return self.pause(now, arrivals, Why::Bursts);
        }
        if is_over {
            (self.failed, self.backoff, self.phase) = (false, BACKOFF_MIN, Phase::Held);
        }
        found.then_some(self.hold)
    }

    /// Goes on with a probe after a hold with these packets, or ends it; returns the next hold if
    /// the last one `found` packets.
    fn probed(
        &mut self,
        now: Instant,
        (mut probe, window): (Probe, Window),
        found: bool,
        arrivals: &mut Arrivals,
        longest: Duration,
    ) -> Option<Duration> {
        if longest < probe.full() / 2 {
            // The rate has risen, and the probe says nothing about it.
            self.slowdown.give_up();
            return self.leave(arrivals, now);
        }
        if probe.add(window) {
            return self.conclude(probe, arrivals, now);
        }
        self.phase = Phase::Probe(probe);
        // Where no packet is expected in a shorter hold, each packet would cost a sleep of its own
        // and one that found nothing.
        let is_empty = arrivals.rate() * nanos(probe.hold()) < 1.0;
        (found && !is_empty).then_some(probe.hold())
    }

    /// Returns the next hold of packets that are held, after one that gathered packets or none.
    fn held(
        &mut self,
        gathered: bool,
        rate: f64,
        longest: Duration,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        // Holding cannot raise the rate of peers that wait, so a longer hold is tried at once.
        if gathered && rate > self.natural && longest > self.cap + self.cap / 8 {
            return self.enter(rate, longest, spares, device);
        }
        self.adjust(longest.min(self.cap));
        gathered.then_some(self.hold)
    }

    /// Begins a probe at the end of the time for which holds are not questioned, and returns its
    /// first hold; `None` if there is none, and a trial must follow.
    fn end_while(
        &mut self,
        now: Instant,
        arrivals: &mut Arrivals,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        let rate = arrivals.rate();
        let probe = if spares { self.slowdown.probe(self.hold, rate, device, now) } else { None };
        let Some(probe) = probe else {
            self.slowdown.postpone();
            return self.release(arrivals, now);
        };
        self.phase = Phase::Probe(probe);
        Some(probe.hold())
    }

    /// Limits or accepts the holds that were probed, and stops holding, so that a trial follows.
    fn conclude(
        &mut self,
        probe: Probe,
        arrivals: &mut Arrivals,
        now: Instant,
    ) -> Option<Duration> {
        if probe.is_slowed() {
            self.slowdown.slows(probe.full(), now);
        } else {
            self.slowdown.slows_not();
            self.accepted = self.cap;
        }
        self.gain.forget_held();
        self.leave(arrivals, now)
    }

    /// Returns the hold of a queue that was not polled, because there is no room for its packets.
    pub fn blocked(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Free => None,
            Phase::Probe(probe) => Some(probe.hold()),
            _ => Some(self.hold),
        }
    }

    /// Takes back the last hold, which was not slept.
    pub fn forget_hold(&mut self) {
        self.is_forgotten = true;
    }

    /// Returns true if the last hold was not slept.
    pub fn is_forgotten(&self) -> bool {
        self.is_forgotten
    }

    /// Ends the hold of a queue that was not polled for a long time.
    pub fn lose(&mut self, arrivals: &mut Arrivals) {
        (self.phase, self.why) = (Phase::Free, Why::Thin);
        arrivals.forget();
    }

    /// Returns the hold, and the reason for it or against it.
    pub fn state(&self) -> (Option<Duration>, Why) {
        if self.phase != Phase::Free && !self.empty {
            (Some(self.hold), Why::Held)
        } else {
            (None, self.retry.map_or(self.why, |(_, why)| why))
        }
    }

    /// Begins a trial of `longest`, or of the limit if it is shorter.
    fn enter_limited(
        &mut self,
        now: Instant,
        rate: f64,
        longest: Duration,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        self.slowdown.raise(now);
        let limit = if spares { self.slowdown.limit() } else { Duration::MAX };
        let accepted = std::mem::take(&mut self.accepted).min(limit);
        let hold = self.enter(rate, longest.min(limit), spares, device);
        let resumes = std::mem::take(&mut self.resumes);
        if hold.is_some() {
            self.cap = self.cap.max(accepted);
            if resumes && accepted >= self.hold {
                self.phase = Phase::Held;
            }
        } else if limit < longest && self.gains(rate, longest, device) {
            self.why = Why::Limited;
        }
        hold
    }

    /// Returns true if a hold would gather packets, and more than the device does.
    fn gains(&self, rate: f64, hold: Duration, device: &Gathering) -> bool {
        hold >= HOLD_MIN && rate * nanos(hold + self.late) >= ENTER && device.pays(hold, rate)
    }

    /// Begins a trial of `longest`, if it would gather packets.
    fn enter(
        &mut self,
        rate: f64,
        longest: Duration,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        self.retry = None;
        self.why = match longest {
            _ if longest < HOLD_MIN && spares => Why::Short,
            _ if longest < HOLD_MIN || rate * nanos(longest + self.late) < ENTER => Why::Thin,
            _ if !device.pays(longest, rate) => Why::Device,
            _ => Why::Held,
        };
        if self.why != Why::Held {
            return None;
        }
        (self.natural, self.cap, self.hold) = (rate, longest, longest);
        self.phase = Phase::Trial { came: 0, passed: Duration::ZERO };
        Some(longest)
    }

    /// Halves a hold that gathered too few packets; if the half is too short, allows no trial for a
    /// time, which doubles.
    fn fail(
        &mut self,
        now: Instant,
        arrivals: &mut Arrivals,
        spares: bool,
        device: &Gathering,
    ) -> Option<Duration> {
        let half = self.enter(self.natural, self.hold / 2, spares, device);
        // Forget the rate, because it was measured with the longer hold.
        arrivals.forget_rate();
        self.failed = true;
        if half.is_none() { self.pause(now, arrivals, Why::Waited) } else { half }
    }

    /// Stops holding because of `why`, and allows no trial for a time, which doubles.
    fn pause(&mut self, now: Instant, arrivals: &mut Arrivals, why: Why) -> Option<Duration> {
        self.release(arrivals, now);
        self.gain.forget_held();
        self.failed = true;
        self.retry = now.checked_add(self.backoff).map(|at| (at, why));
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
        None
    }

    /// Stops holding, so that the caller waits for the descriptor, and restarts the counts; returns
    /// no hold. A probe goes on when packets are held again.
    fn release(&mut self, arrivals: &mut Arrivals, now: Instant) -> Option<Duration> {
        if let Phase::Probe(probe) = self.phase {
            self.slowdown.interrupt(probe, now);
        }
        self.leave(arrivals, now)
    }

    /// Stops holding as [`Adaptive::release`] does; a probe is over.
    fn leave(&mut self, arrivals: &mut Arrivals, now: Instant) -> Option<Duration> {
        (self.phase, self.cap, self.why) = (Phase::Free, Duration::MAX, Why::Thin);
        self.gain.begin_free();
        arrivals.restart(now);
        None
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::Gathers;

    const US: Duration = Duration::from_micros(1);

    fn device() -> Gathering {
        Gathering::new(Gathers::NOTHING)
    }

    #[test]
    fn full_poll_after_a_long_time_ends_no_silence() {
        let start = Instant::now();
        let mut adaptive = Adaptive { accepted: 100 * US, ..Adaptive::default() };
        let mut found = |ms: u64, packets| {
            let window = Window { packets, passed: US };
            adaptive.end_silence(start + Duration::from_millis(ms), window);
            adaptive.accepted
        };
        // Half of 30 ms is less than a silence, and a third of 50 ms, too.
        assert_eq!([found(0, 1), found(30, 64), found(80, 128)], [100 * US; 3]);
        assert_eq!(found(110, 63), Duration::ZERO);
    }

    #[test]
    fn probe_goes_on_while_the_goal_allows_half_of_its_hold() {
        for (target, goes_on) in [(125 * US, true), (124 * US, false)] {
            let mut now = Instant::now();
            let probe = Probe::begin(250 * US, 1e-4, &device()).unwrap();
            let mut adaptive = Adaptive { phase: Phase::Probe(probe), ..Adaptive::default() };
            let mut arrivals = Arrivals::default();
            arrivals.restart(now);
            arrivals.add(25);
            now += 250 * US;
            let hold = adaptive.round(
                now,
                Facts { spares: true, may_hold: true, ..Facts::default() },
                &mut arrivals,
                |_| target,
                &device(),
            );
            assert_eq!(hold, goes_on.then_some(250 * US));
            assert_eq!(adaptive.phase != Phase::Free, goes_on);
        }
    }
}
