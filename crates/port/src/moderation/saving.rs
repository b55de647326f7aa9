//! The comparison of a thread's CPU time with holds and without: whether holds cost more than they
//! save.
//!
//! ```text
//!   holds      as the modes want ──► yes  no   no  yes  yes  no   no  yes ──► as the verdict says
//!   time       0.16 to 2 s           4 ms each; 1 ms after a change is not counted
//!   ns a byte                        9.7  8.3  8.2  9.8  9.6  8.4  8.3  9.7    none for a while
//! ```
//!
//! Numbers of wake-ups and of polls do not tell it, because what a wake-up costs depends on the rest
//! of the machine: while packets of many peers that wait for answers are held, the peers' CPU
//! probably becomes idle, and the answers have to wake it up (docs/adr/0014). The queues of a worker
//! share its wake-ups, so they are compared together.

use std::time::{Duration, Instant};

/// Time of holds until the first comparison.
const FIRST: Duration = Duration::from_millis(20);
/// Time for which a first verdict is valid; the next constants are the factor by which it grows
/// with each verdict that is the same, and its longest value.
const VALID_MIN: Duration = Duration::from_millis(160);
const VALID_MORE: u32 = 4;
const VALID_MAX: Duration = Duration::from_secs(2);
/// Time at the beginning of a stretch that is not counted; the next constant is the time that is.
const SETTLE: Duration = Duration::from_millis(1);
const STRETCH: Duration = Duration::from_millis(4);
/// Number of packets for which a stretch is longer, and how many times as long it may become.
const PACKETS_MIN: f64 = 32.0;
const EXTENSIONS_MAX: u32 = 8;
/// Number of pairs of stretches, with holds and without, of a comparison.
const PAIRS: u32 = 4;
/// Number of pairs after which a clear saving ends the comparison, and the factor that is clear; and
/// the factor that is clear after one pair, as for a stream: then the next comparison is later, too.
const PAIRS_MIN: u32 = 2;
const CLEAR: f64 = 1.25;
const CLEAR_AT_ONCE: f64 = 2.0;
/// Part of the CPU time with holds that the time without must reach, of a byte or of a packet. Holds
/// that seem to save nothing go on: packets that were held come in bursts for a while, which take
/// little without holds, too.
const LEAST: f64 = 0.95;

/// Permission for queues to hold packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holding {
    /// As their modes want.
    #[default]
    Allowed,
    /// Not now, because the CPU time without holds is measured.
    Compared,
    /// Not for a while, because holds cost CPU time.
    Costly,
}

/// A reading of a thread's CPU clock, and what its queues have received.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuReading {
    /// The thread's CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Number of packets so far.
    pub packets: u64,
    /// Number of bytes so far.
    pub bytes: u64,
}

/// CPU time, and what it was spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Spent {
    cpu_ns: f64,
    packets: f64,
    bytes: f64,
}

impl Spent {
    fn add(&mut self, other: Spent) {
        self.cpu_ns += other.cpu_ns;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    /// Returns the CPU time of a byte and of a packet. A superframe that grows during a hold is
    /// still one packet; and small packets take as long as large ones.
    fn each(self) -> [f64; 2] {
        [self.bytes, self.packets].map(|n| self.cpu_ns / n.max(1.0))
    }

    /// Returns for a byte and for a packet whether it takes at least `factor` times as long as in
    /// `held`.
    fn exceeds(self, held: Spent, factor: f64) -> [bool; 2] {
        let (free, held) = (self.each(), held.each());
        [0, 1].map(|i| free[i] >= factor * held[i])
    }
}

/// A comparison under way.
#[derive(Debug, Default)]
struct Comparison {
    /// Number of stretches that are over.
    stretches: u32,
    /// The beginning of the part that counts; `None` before it.
    from: Option<(Instant, CpuReading)>,
    extensions: u32,
    /// The first stretch of a pair, and the sums of all stretches with holds and without.
    first: Spent,
    held: Spent,
    free: Spent,
    /// Number of pairs in which holds cost too much, and in which they clearly saved.
    against: u32,
    clear: u32,
}

impl Comparison {
    /// Returns true if the present stretch has holds. Each kind comes first in every other pair, so
    /// that a load that rises or has a period speaks for neither.
    fn has_holds(&self) -> bool {
        matches!(self.stretches % 4, 0 | 3)
    }

    /// Adds a stretch; returns false if holds cost CPU time, and true if not,
    /// if that is known now.
    fn add(&mut self, spent: Spent) -> Option<bool> {
        let has_holds = self.has_holds();
        (self.stretches, self.from, self.extensions) = (self.stretches + 1, None, 0);
        if has_holds {
            self.held.add(spent)
        } else {
            self.free.add(spent)
        }
        if !self.stretches.is_multiple_of(2) {
            self.first = spent;
            return None;
        }
        let (held, free) = if has_holds { (spent, self.first) } else { (self.first, spent) };
        self.against += u32::from(free.exceeds(held, LEAST) == [false; 2]);
        self.clear += u32::from(free.exceeds(held, CLEAR) == [true; 2]);
        let pairs = self.stretches / 2;
        let is_clear = match pairs {
            1 => free.exceeds(held, CLEAR_AT_ONCE) == [true; 2],
            _ => pairs >= PAIRS_MIN && self.clear == pairs,
        };
        if is_clear {
            return Some(true);
        }
        let is_kept = self.free.exceeds(self.held, LEAST) != [false; 2] || self.against < PAIRS - 1;
        (pairs == PAIRS).then_some(is_kept)
    }
}

/// The knowledge of a thread whether holds cost it CPU time.
#[derive(Debug, Default)]
pub struct Saving {
    holding: Holding,
    /// The time of the next step; `None` while nothing is held.
    at: Option<Instant>,
    /// True if a queue was held since the last step.
    was_held: bool,
    comparison: Option<Comparison>,
    /// The last verdict, and for how long it is valid.
    verdict: Option<(bool, Duration)>,
}

impl Saving {
    /// Notes a decision at `now`, before which a queue of the thread was held if `is_held`; returns
    /// whether queues may hold packets, if that has changed.
    ///
    /// Cost: a comparison; `read`, which has a syscall, some 16 times in a comparison.
    #[inline]
    pub fn decide(
        &mut self,
        now: Instant,
        is_held: bool,
        read: impl FnOnce() -> CpuReading,
    ) -> Option<Holding> {
        self.was_held |= is_held;
        match self.at {
            // A clock that goes back ends the wait.
            Some(at) if now < at && at.duration_since(now) <= VALID_MAX => None,
            None if !is_held => None,
            _ => self.step(now, read),
        }
    }

    #[cold]
    fn step(&mut self, now: Instant, read: impl FnOnce() -> CpuReading) -> Option<Holding> {
        let was_held = std::mem::take(&mut self.was_held);
        if self.at.is_none() {
            self.next(now, FIRST);
            return None;
        }
        let Some(comparison) = &mut self.comparison else {
            return self.begin(now, was_held, read);
        };
        let reading = read();
        let Some((since, from)) = comparison.from else {
            comparison.from = Some((now, reading));
            self.next(now, STRETCH);
            return None;
        };
        let spent = spent(from, reading, now.saturating_duration_since(since));
        match spent.filter(|_| was_held || !comparison.has_holds()) {
            Some(spent) if spent.packets >= PACKETS_MIN => {
                if let Some(is_kept) = comparison.add(spent) {
                    let is_at_once = comparison.stretches == 2;
                    return self.conclude(is_kept, is_at_once, now);
                }
                let holding =
                    if comparison.has_holds() { Holding::Allowed } else { Holding::Compared };
                if holding == self.holding {
                    comparison.from = Some((now, reading));
                    self.was_held = was_held;
                    self.next(now, STRETCH);
                } else {
                    self.next(now, SETTLE);
                }
                self.change(holding)
            }
            Some(_) if comparison.extensions < EXTENSIONS_MAX => {
                comparison.extensions += 1;
                self.was_held = was_held;
                self.next(now, STRETCH);
                None
            }
            _ => self.give_up(now),
        }
    }

    /// Begins a comparison with a stretch of holds, if there are any.
    fn begin(
        &mut self,
        now: Instant,
        was_held: bool,
        read: impl FnOnce() -> CpuReading,
    ) -> Option<Holding> {
        if self.at.is_some_and(|at| now.saturating_duration_since(at) > VALID_MAX) {
            // The traffic may be another one.
            self.verdict = None;
        }
        if self.holding == Holding::Costly {
            self.comparison = Some(Comparison::default());
            self.next(now, SETTLE);
        } else if was_held {
            let from = Some((now, read()));
            self.comparison = Some(Comparison { from, ..Comparison::default() });
            self.next(now, STRETCH);
        } else {
            self.at = None;
        }
        self.change(Holding::Allowed)
    }

    /// Ends a comparison that shows nothing: the thread held no packets, or received too few, or its
    /// clock jumped. The next one is soon.
    fn give_up(&mut self, now: Instant) -> Option<Holding> {
        self.comparison = None;
        self.next(now, VALID_MIN);
        self.change(Holding::Allowed)
    }

    fn conclude(&mut self, is_kept: bool, is_at_once: bool, now: Instant) -> Option<Holding> {
        let valid = match self.verdict {
            Some((before, valid)) if before == is_kept => (VALID_MORE * valid).min(VALID_MAX),
            _ if is_at_once => VALID_MORE * VALID_MIN,
            _ => VALID_MIN,
        };
        (self.comparison, self.verdict) = (None, Some((is_kept, valid)));
        self.next(now, valid);
        self.change(if is_kept { Holding::Allowed } else { Holding::Costly })
    }

    fn next(&mut self, now: Instant, after: Duration) {
        self.at = now.checked_add(after);
    }

    fn change(&mut self, holding: Holding) -> Option<Holding> {
        (std::mem::replace(&mut self.holding, holding) != holding).then_some(holding)
    }
}

/// Returns what was spent between two readings; `None` if they cannot be of one thread: more CPU
/// time than time, or less than none.
fn spent(from: CpuReading, to: CpuReading, passed: Duration) -> Option<Spent> {
    let cpu_ns = to.cpu_ns.checked_sub(from.cpu_ns)?;
    let packets = to.packets.checked_sub(from.packets)?;
    let bytes = to.bytes.checked_sub(from.bytes)?;
    // The reading comes after the time.
    let most = passed + passed / 8;
    (u128::from(cpu_ns) <= most.as_nanos()).then_some(Spent {
        cpu_ns: cpu_ns as f64,
        packets: packets as f64,
        bytes: bytes as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A thread that receives 100 packets a millisecond and decides ten times, and its clock.
    struct Thread {
        saving: Saving,
        start: Instant,
        steps: u32,
        holding: Holding,
        reading: CpuReading,
        readings: u32,
    }

    impl Thread {
        fn new() -> Thread {
            Thread {
                saving: Saving::default(),
                start: Instant::now(),
                steps: 0,
                holding: Holding::Allowed,
                reading: CpuReading::default(),
                readings: 0,
            }
        }

        /// Runs for so many milliseconds, in which a packet takes so many nanoseconds of CPU time
        /// with holds and without; returns the share of the time in which packets were held, in per cent.
        fn run(&mut self, ms: u32, held_ns: u64, free_ns: u64) -> u32 {
            let mut held = 0;
            for _ in 0..10 * ms {
                let is_held = self.holding == Holding::Allowed;
                held += u32::from(is_held);
                self.reading.packets += 10;
                self.reading.bytes += 10 * 60;
                self.reading.cpu_ns += 10 * if is_held { held_ns } else { free_ns };
                self.steps += 1;
                let (now, reading) = (self.start + self.steps * MS / 10, self.reading);
                let mut readings = 0;
                let read = || {
                    readings += 1;
                    reading
                };
                self.holding = self.saving.decide(now, is_held, read).unwrap_or(self.holding);
                self.readings += readings;
            }
            100 * held / (10 * ms)
        }
    }

    #[test]
    fn holds_that_cost_cpu_time_end_and_others_go_on() {
        for (held_ns, free_ns, share) in [
            (1000, 2000, 99..=100),
            (1000, 1900, 98..=99),
            (1000, 1100, 98..=99),
            (1000, 970, 98..=99),
            (1000, 940, 0..=3),
            (1200, 1000, 0..=3),
        ] {
            let mut thread = Thread::new();
            thread.run(100, held_ns, free_ns);
            let held = thread.run(10_000, held_ns, free_ns);
            assert!(share.contains(&held), "{held_ns} and {free_ns} ns: {held} %");
            assert!(thread.readings < 16 * 9, "{}", thread.readings);
        }
    }

    #[test]
    fn verdict_comes_soon_and_follows_what_packets_cost() {
        let mut thread = Thread::new();
        assert_eq!(thread.run(20, 1200, 1000), 100);
        thread.run(50, 1200, 1000);
        assert_eq!((thread.run(100, 1200, 1000), thread.holding), (0, Holding::Costly));
        thread.run(5000, 1200, 1000);
        thread.run(2100, 1000, 2000);
        assert_eq!(thread.holding, Holding::Allowed);
        assert!(thread.run(1000, 1000, 2000) >= 97);
        thread.run(2100, 1200, 1000);
        assert_eq!(thread.holding, Holding::Costly);
    }

    #[test]
    fn stream_that_takes_twice_as_long_without_holds_is_compared_once_in_its_first_half_second() {
        for (free_ns, readings) in [(2000, 4), (1900, 14)] {
            let mut thread = Thread::new();
            assert!(thread.run(500, 1000, free_ns) >= 96);
            assert_eq!(thread.readings, readings, "{free_ns}");
        }
    }

    #[test]
    fn thread_that_holds_nothing_reads_no_clock() {
        let mut thread = Thread::new();
        thread.holding = Holding::Compared;
        thread.run(1000, 1000, 1000);
        assert_eq!(thread.readings, 0);
        // A comparison that finds no holds ends, and later holds are compared.
        thread.holding = Holding::Allowed;
        thread.run(1, 1000, 1000);
        thread.holding = Holding::Compared;
        thread.run(1000, 1000, 1000);
        assert_eq!((thread.readings, thread.saving.at), (2, None));
        thread.holding = Holding::Allowed;
        thread.run(100, 1000, 2000);
        assert!(thread.readings > 2);
    }

    #[test]
    fn few_packets_and_clocks_that_jump_show_nothing() {
        for jumps in [false, true] {
            let (mut saving, start, mut cpu_ns) = (Saving::default(), Instant::now(), 0);
            let mut held = 0;
            for ms in 0..10_000_u64 {
                // Another thread's clock, or less than two packets in a millisecond.
                cpu_ns += if jumps { 5_000_000 } else { 100_000 };
                let packets = if jumps { 100 * ms } else { ms / 2 };
                let now = start + ms as u32 * MS;
                let read = || CpuReading { cpu_ns, packets, bytes: 60 * packets };
                saving.decide(now, true, read);
                held += u64::from(saving.holding == Holding::Allowed);
            }
            assert_eq!((held, saving.verdict), (10_000, None));
        }
        let mut thread = Thread::new();
        thread.run(200, 1200, 1000);
        // The time goes back by an hour.
        thread.start -= 3_600_000 * MS;
        thread.run(100, 1000, 2000);
        assert_eq!(thread.holding, Holding::Allowed);
    }

    #[test]
    fn single_stretches_that_differ_by_chance_decide_nothing() {
        let (mut thread, mut random, mut held) = (Thread::new(), 7_u64, 0);
        for _ in 0..4000 {
            // Each 5 ms have costs that differ by up to 30 %, and holds save a sixth.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let noise = (random >> 33) % 600;
            held += thread.run(5, 1000 + noise, 1200 + noise) / 4;
        }
        assert!(held > 96_000, "{held}");
    }
}
