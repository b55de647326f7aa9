//! The probe whether holds slow packets down: those of peers that wait for answers come faster if
//! holds are shorter.
//!
//! ```text
//!  hold    full ──────────────► full    quarter   full    quarter
//!  time       20 ms, later 2 s  ├───────┼─────────┼───────┼───────┤    the probe: 8, 4, 8 and 4 ms, or more
//!  packets                        200       130      202      128      slowed down: limit the next holds to half
//! ```
//!
//! A trial compares rates with and without holds, too, but its eight rounds see only a difference
//! of half. The limit doubles each second, and the next probe, soon after that, checks it. A pause
//! of the packets interrupts a probe, which goes on in the next burst.

use std::time::{Duration, Instant};

use super::adaptive::HOLD_MIN;
use super::arrivals::Window;
use super::gathering::Gathering;

/// Time of holds until the first probe, and after a change of the limit; the next constants are the
/// factor by which it grows with each probe that sees no difference, and its longest value.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
const INTERVAL_MORE: u32 = 8;
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Age at which an interrupted probe is forgotten.
const INTERRUPTED_MAX: Duration = Duration::from_secs(2);
/// Number of stretches of a probe: full holds, shorter ones, and both again.
const STRETCHES: usize = 4;
/// Shortest time of a stretch of shorter holds; the next constants are the number of packets for
/// which it is longer, the limit of that, and the number of full holds in that time at least. Full
/// holds cost nothing, so their stretches are twice as long.
const STRETCH_MIN: Duration = Duration::from_millis(4);
const STRETCH_PACKETS: f64 = 128.0;
const STRETCH_MAX: Duration = Duration::from_millis(8);
const STRETCH_HOLDS: u32 = 4;
/// Part of a hold that the shorter ones have.
const PART: u32 = 4;
/// Share of the rate with shorter holds below which the rate with full ones is slowed down.
const SLOWED: f64 = 0.9;
/// Number of standard deviations by which the numbers of packets must differ.
const CHANCE: f64 = 2.0;
/// Time after which the limit doubles; a limit above the next constant is none.
const LIMIT_TIME: Duration = Duration::from_secs(1);
const LIMIT_MAX: Duration = Duration::from_millis(10);

/// The knowledge about how long a hold may be.
#[derive(Debug)]
pub(super) struct Slowdown {
    /// Time of holds until the next probe; the next field is that time after a probe.
    left: Duration,
    interval: Duration,
    /// The longest hold that slowed nothing down, and when it was set or doubled; `None` without a
    /// limit.
    limit: Option<(Duration, Instant)>,
    /// A probe that a pause interrupted, and when.
    interrupted: Option<(Probe, Instant)>,
}

impl Default for Slowdown {
    fn default() -> Slowdown {
        Slowdown { left: INTERVAL_MIN, interval: INTERVAL_MIN, limit: None, interrupted: None }
    }
}

impl Slowdown {
    /// Doubles the limit for each of its times that has passed at `now`; returns true if it did.
    pub fn raise(&mut self, now: Instant) -> bool {
        let before = self.limit();
        while let Some((limit, since)) = self.limit {
            // A clock that goes back begins the time anew.
            let Some(passed) = now.checked_duration_since(since) else {
                self.limit = Some((limit, now));
                break;
            };
            if passed < LIMIT_TIME {
                break;
            }
            let longer = (2 * limit).max(HOLD_MIN);
            self.limit = (longer < LIMIT_MAX).then_some((longer, since + LIMIT_TIME));
            self.begin_anew();
        }
        self.limit() > before
    }

    /// Returns the longest hold.
    pub fn limit(&self) -> Duration {
        self.limit.map_or(Duration::MAX, |(limit, _)| limit)
    }

    /// Counts `passed` as time of holds; returns true if a probe is due.
    pub fn count_down(&mut self, passed: Duration) -> bool {
        self.left = self.left.saturating_sub(passed);
        self.left.is_zero()
    }

    /// Postpones the next probe by the longest time, because the present holds cannot be probed.
    pub fn postpone(&mut self) {
        self.left = INTERVAL_MAX;
    }

    /// Makes the next probe come as soon as the first one, if nothing came for a time of `silence`:
    /// the next packets may be others'. Returns true if so.
    pub fn note_silence(&mut self, silence: Duration) -> bool {
        let is_silent = silence > INTERVAL_MIN;
        if is_silent {
            self.begin_anew();
        }
        is_silent
    }

    fn begin_anew(&mut self) {
        self.interval = INTERVAL_MIN;
        self.left = self.left.min(INTERVAL_MIN);
    }

    /// Limits the next holds to half of `hold`, because a probe showed that it slows packets down.
    pub fn slows(&mut self, hold: Duration, now: Instant) {
        (self.interval, self.left) = (INTERVAL_MIN, INTERVAL_MIN);
        self.limit = Some((hold / 2, now));
    }

    /// Waits longer until the next probe, because one showed no difference.
    pub fn slows_not(&mut self) {
        self.interval = (INTERVAL_MORE * self.interval).min(INTERVAL_MAX);
        self.left = self.interval;
    }

    /// Waits somewhat longer until the next probe, because the present one says nothing.
    pub fn give_up(&mut self) {
        self.interval = (2 * self.interval).min(INTERVAL_MAX);
        self.left = self.interval;
    }

    /// Keeps a probe until packets are held again.
    pub fn interrupt(&mut self, probe: Probe, now: Instant) {
        self.interrupted = Some((probe, now));
    }

    /// Begins a probe as [`Probe::begin`] does, or goes on with the interrupted one, if it is of
    /// almost the same hold.
    pub fn probe(
        &mut self,
        hold: Duration,
        rate: f64,
        device: &Gathering,
        now: Instant,
    ) -> Option<Probe> {
        let probe = Probe::begin(hold, rate, device)?;
        let is_same = |(former, at): &(Probe, Instant)| {
            former.full.abs_diff(probe.full) <= probe.full / 8
                && now.saturating_duration_since(*at) < INTERRUPTED_MAX
        };
        Some(self.interrupted.take().filter(is_same).map_or(probe, |(former, _)| former))
    }
}

/// A probe under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probe {
    full: Duration,
    stretch: Duration,
    /// Index of the present stretch, and the packets and the time of each.
    at: usize,
    windows: [Window; STRETCHES],
    spread: Spread,
}

/// The spread of the numbers of packets of full holds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Spread {
    holds: f64,
    packets: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, packets: u32) {
        let packets = f64::from(packets);
        self.holds += 1.0;
        self.packets += packets;
        self.squares += packets * packets;
    }

    /// Returns the variance by the mean: 1 for packets that come at random, more for bursts.
    fn dispersion(&self) -> f64 {
        let mean = self.packets / self.holds.max(1.0);
        let variance = self.squares / self.holds.max(1.0) - mean * mean;
        (variance / mean.max(1e-9)).max(1.0)
    }
}

impl Probe {
    /// Begins a probe of holds of `hold` at a rate of packets a nanosecond; `None` if the shorter
    /// holds would be too short for a sleep, or shorter than the device's own.
    pub fn begin(hold: Duration, rate: f64, device: &Gathering) -> Option<Probe> {
        let (full, is_spun) = device.bound(hold, rate);
        let short = full / PART;
        if is_spun || short < HOLD_MIN / 2 || !device.pays(short, rate) {
            return None;
        }
        let enough = Duration::from_nanos((STRETCH_PACKETS / rate) as u64);
        let stretch = enough.clamp(STRETCH_MIN, STRETCH_MAX).max(STRETCH_HOLDS * full);
        Some(Probe {
            full,
            stretch,
            at: 0,
            windows: [Window::default(); STRETCHES],
            spread: Spread::default(),
        })
    }

    /// Returns the present hold.
    pub fn hold(&self) -> Duration {
        if self.is_full() { self.full } else { (self.full / PART).max(HOLD_MIN) }
    }

    fn is_full(&self) -> bool {
        self.at.is_multiple_of(2)
    }

    /// Returns the hold that is probed.
    pub fn full(&self) -> Duration {
        self.full
    }

    /// Adds the packets of a hold; returns true if the probe is over.
    pub fn add(&mut self, window: Window) -> bool {
        let mut stretch = self.stretch;
        if self.is_full() {
            self.spread.add(window.packets);
            stretch *= 2;
        }
        let Some(sum) = self.windows.get_mut(self.at) else { return true };
        sum.packets = sum.packets.saturating_add(window.packets);
        sum.passed += window.passed;
        self.at += usize::from(sum.passed >= stretch);
        self.at == STRETCHES
    }

    /// Returns true if packets came faster in both stretches of shorter holds, by a ninth and by
    /// more than chance, which the spread of full holds tells.
    pub fn is_slowed(&self) -> bool {
        let [full, short, full_again, short_again] = self.windows;
        let slowest = short.rate().min(short_again.rate());
        let fastest = full.rate().max(full_again.rate());
        let sum = |one: Window, other: Window| Window {
            packets: one.packets.saturating_add(other.packets),
            passed: one.passed + other.passed,
        };
        let (full, short) = (sum(full, full_again), sum(short, short_again));
        // The number of packets with full holds, for as long a time as the shorter ones took.
        let part = short.passed.as_secs_f64() / full.passed.as_secs_f64().max(1e-9);
        let (with_full, with_short) = (part * f64::from(full.packets), f64::from(short.packets));
        let deviation = (self.spread.dispersion() * (with_short + part * with_full)).sqrt();
        slowest > fastest
            && with_full < SLOWED * with_short
            && with_short - with_full > CHANCE * deviation
    }
}

#[cfg(test)]
mod tests {
    use super::super::gathering::Gathering;
    use super::*;
    use crate::caps::Gathers;

    const HOLD: Duration = Duration::from_micros(250);

    fn ring(len: u32) -> Gathering {
        let mut ring = Gathering::new(Gathers::NOTHING);
        ring.set_ring_len(len);
        ring
    }

    /// Probes with so many packets in each hold of a stretch; returns the verdict.
    fn probed(packets: [u32; STRETCHES]) -> bool {
        let mut probe = Probe::begin(HOLD, 1e-4, &ring(1024)).unwrap();
        for _ in 0..1000 {
            let (packets, passed) = (packets[probe.at], probe.hold());
            if probe.add(Window { packets, passed }) {
                return probe.is_slowed();
            }
        }
        panic!("{probe:?}");
    }

    #[test]
    fn packets_that_come_faster_with_shorter_holds_are_slowed_down_by_full_ones() {
        // A quarter of 40 packets is 10 in each shorter hold.
        assert!(!probed([40, 10, 40, 10]));
        assert!(probed([40, 13, 40, 13]));
        assert!(!probed([40, 13, 40, 10]), "faster only once");
        assert!(!probed([40, 13, 60, 15]), "the rate rose meanwhile");
        assert!(!probed([40, 9, 40, 9]), "slower with shorter holds");
        assert!(!probed([0; STRETCHES]));
    }

    #[test]
    fn bursts_that_happen_to_come_with_shorter_holds_are_no_slowdown() {
        // 80 packets in every other full hold, and 52 in each fourth of the shorter ones: 30 %
        // more.
        let probed = |burst: bool| {
            let mut probe = Probe::begin(HOLD, 1e-4, &ring(1024)).unwrap();
            for i in 0_u32.. {
                let (full, short) = match burst {
                    true => (80 * (i % 2), 52 * u32::from(i % 4 == 0)),
                    false => (40, 13),
                };
                let packets = if probe.is_full() { full } else { short };
                if probe.add(Window { packets, passed: probe.hold() }) {
                    break;
                }
            }
            probe.is_slowed()
        };
        assert!(probed(false) && !probed(true));
    }

    #[test]
    fn probe_lasts_as_long_as_it_has_packets_and_not_at_all_where_it_would_be_no_sleep() {
        let ms = Duration::from_millis;
        let stretch = |hold, rate| Probe::begin(hold, rate, &ring(4096)).map(|one| one.stretch);
        assert_eq!(stretch(HOLD, 1e-4), Some(ms(4)));
        assert_eq!(stretch(HOLD, 25e-6), Some(ms(512) / 100));
        assert_eq!(stretch(HOLD, 1e-7), Some(ms(8)));
        assert_eq!(stretch(HOLD, 0.0), Some(ms(8)));
        assert_eq!(stretch(ms(10), 1e-5), Some(ms(40)));
        assert_eq!(stretch(Duration::from_micros(39), 1e-4), None);
        // Half of a ring of 256 is full after 128 us, or after 13, which are spent on the CPU.
        assert_eq!(Probe::begin(HOLD, 1e-3, &ring(256)).unwrap().full, HOLD.mul_f64(0.512));
        assert_eq!(Probe::begin(HOLD, 1e-2, &ring(256)), None);
        let mut device = Gathering::new(Gathers { time: ms(1), bytes: 1 << 20 });
        device.set_ring_len(4096);
        assert_eq!(Probe::begin(ms(2), 1e-5, &device), None, "a quarter gathers nothing");
        assert!(Probe::begin(ms(5), 1e-5, &device).is_some());
    }

    #[test]
    fn limit_is_half_of_what_slowed_down_and_doubles_each_second() {
        let (mut slowdown, now) = (Slowdown::default(), Instant::now());
        let limit_at = |slowdown: &mut Slowdown, at| {
            slowdown.raise(at);
            slowdown.limit()
        };
        assert_eq!(limit_at(&mut slowdown, now), Duration::MAX);
        slowdown.slows(HOLD, now);
        assert_eq!(limit_at(&mut slowdown, now + LIMIT_TIME / 2), HOLD / 2);
        slowdown.slows_not();
        assert_eq!(slowdown.left, INTERVAL_MORE * INTERVAL_MIN);
        assert_eq!(limit_at(&mut slowdown, now + LIMIT_TIME), HOLD);
        assert_eq!(slowdown.left, INTERVAL_MIN, "a doubled limit is probed soon");
        assert_eq!(limit_at(&mut slowdown, now + 7 * LIMIT_TIME), Duration::MAX);
        // A clock that goes back by an hour delays the doubling by no more than its time.
        slowdown.slows(Duration::ZERO, now + 3600 * LIMIT_TIME);
        assert_eq!(limit_at(&mut slowdown, now), Duration::ZERO);
        assert_eq!(limit_at(&mut slowdown, now + LIMIT_TIME), HOLD_MIN);
    }

    #[test]
    fn time_until_a_probe_grows_and_is_short_again_after_a_quiet_time() {
        let mut slowdown = Slowdown::default();
        for expected in [20, 160, 1280, 2000, 2000] {
            let mut ms = 0;
            while !slowdown.count_down(Duration::from_millis(1)) {
                ms += 1;
            }
            assert_eq!(ms + 1, expected);
            slowdown.slows_not();
        }
        assert!(!slowdown.count_down(Duration::from_millis(1990)));
        assert!(!slowdown.note_silence(INTERVAL_MIN) && slowdown.interval == INTERVAL_MAX);
        assert!(slowdown.note_silence(2 * INTERVAL_MIN) && slowdown.interval == INTERVAL_MIN);
        assert!(slowdown.count_down(Duration::from_millis(10)), "what is left counts on");
    }

    #[test]
    fn interrupted_probe_goes_on_if_it_is_fresh_and_of_the_same_hold() {
        let start = Instant::now();
        let resumed = |hold: Duration, age| {
            let mut slowdown = Slowdown::default();
            let mut former = slowdown.probe(HOLD, 1e-4, &ring(1024), start).unwrap();
            former.add(Window { packets: 25, passed: HOLD });
            slowdown.interrupt(former, start);
            let probe = slowdown.probe(hold, 1e-4, &ring(1024), start + age).unwrap();
            assert_eq!(slowdown.interrupted, None);
            probe == former
        };
        assert!(resumed(HOLD, INTERRUPTED_MAX / 2) && resumed(HOLD - HOLD / 10, Duration::ZERO));
        assert!(!resumed(HOLD, INTERRUPTED_MAX) && !resumed(HOLD / 2, Duration::ZERO));
    }

    #[test]
    fn a_probe_that_was_given_up_is_tried_again_later_each_time() {
        let mut slowdown = Slowdown::default();
        for n in 1..=3 {
            slowdown.give_up();
            assert_eq!(slowdown.left, INTERVAL_MIN * (1 << n));
        }
    }
}
