//! The state of a queue's moderation as a line for reports, and the rule for poor use of the CPU.

use std::fmt;
use std::time::Duration;

use super::adaptive::HOLD_MIN;
use super::cost::Cost;
use super::mode::{Goal, Moderation};
use super::moderator::{Moderator, WAKING};

/// The reason why packets are held or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Why {
    /// Packets are too rare to be held.
    #[default]
    Thin,
    /// A trial gathered no packets, because a peer waits for each answer.
    Waited,
    /// Packets come in bursts, behind which a hold gathers nothing.
    Bursts,
    /// Holds cost CPU time.
    Costly,
    /// Only holds that are too short to gain anything do not slow packets down.
    Limited,
    /// The goal allows only holds that are too short for a sleep.
    Short,
    /// The device gathers as many packets by itself.
    Device,
    /// Packets are held.
    Held,
}

/// The holds of a queue so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Holds {
    pub time_ns: u64,
    pub count: u64,
    /// Number of holds that the ring's length ended, and the last of them.
    pub cut_count: u64,
    pub cut: Cut,
}

/// A hold that the ring's length ends before the mode does.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Cut {
    /// The hold that the mode would choose for a ring without end.
    pub wanted: Duration,
    /// Packets a nanosecond, by which the ring limits the hold; the next field is true if they are
    /// not measured, but may come after a quiet time.
    pub rate: f64,
    pub is_rate_assumed: bool,
    pub ring_len: u32,
}

/// A reading of a queue's moderation. Displays as one line: `8.2 packets an irq, wake-ups took 61 %
/// of the CPU time: holding 180 us`. A hold that the ring ends is displayed with the arithmetic,
/// and a goal that is not met with what is met instead.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Moderated {
    /// The moderation mode.
    pub mode: Moderation,
    /// The time for which the device is not polled; `None` if packets are not held.
    pub hold: Option<Duration>,
    /// False if moderation does not apply, because no device holds the packets.
    pub gathers: bool,
    /// Recent number of packets an irq; infinite if packets arrived without an irq.
    pub packets_per_irq: f64,
    /// Share of CPU time that went into wake-ups, by the measured costs.
    pub waking_percent: f64,
    /// True if the ring's length ends the holds before the mode does.
    pub is_short_by_ring: bool,
    /// True if the goal is missed by more than an eighth, the difference for which a hold is not
    /// changed.
    pub unmet: bool,
    /// The hold that the ring ends, if [`Moderated::is_short_by_ring`].
    pub(super) cut: Cut,
    /// The longest time for which the device itself gathers packets.
    pub(super) device_hold: Duration,
    /// Usual lateness of the ends of holds.
    pub(super) late: Duration,
    /// Share of a CPU that the queue takes by the measured costs: recently, and since the first
    /// measurement.
    pub(super) share: f64,
    pub(super) share_of_all: f64,
    pub(super) holds: Holds,
    /// Packets and irqs before the last change of the mode.
    pub(super) before: [u64; 2],
    pub(super) cost: Cost,
    pub(super) why: Why,
}

impl Moderated {
    /// Returns the summary of a whole run of `packets` and `irqs`, instead of the recent state: of
    /// the time since the last change of the mode. Its hold is the mean hold, if most irqs ended a
    /// hold.
    #[must_use]
    pub fn over(mut self, packets: u64, irqs: u64) -> Moderated {
        let [packets_before, irqs_before] = self.before;
        let packets = packets.saturating_sub(packets_before);
        let irqs = irqs.saturating_sub(irqs_before);
        // Without irqs there were no wake-ups, so that the ratio has no bound.
        self.share = self.share_of_all;
        self.packets_per_irq = if irqs > 0 { packets as f64 / irqs as f64 } else { f64::INFINITY };
        self.waking_percent = self.cost.waking_percent(self.packets_per_irq);
        let Holds { time_ns, count, cut_count, cut } = self.holds;
        if 2 * count > irqs {
            self.hold = time_ns.checked_div(count).map(Duration::from_nanos);
            self.is_short_by_ring = 2 * cut_count > count;
            if self.is_short_by_ring {
                self.cut = cut;
            }
        }
        self.unmet = self.misses();
        self
    }

    /// Returns true if the goal is missed by more than an eighth.
    pub(super) fn misses(&self) -> bool {
        match self.mode {
            _ if !self.gathers => false,
            Moderation::Adaptive(Goal::Latency { p99_usecs }) => self.hold.is_some_and(|hold| {
                8 * (hold + self.late) > 9 * Duration::from_micros(p99_usecs.into())
            }),
            Moderation::Adaptive(Goal::Cpu { percent }) => {
                800.0 * self.share > 9.0 * f64::from(percent)
            }
            _ => false,
        }
    }

    /// Returns a warning, with the arithmetic, that the ring ends the holds of a mode whose time the
    /// user has chosen, at the measured rate; `None` if it does not now.
    #[must_use]
    pub fn cut_by_ring(&self) -> Option<String> {
        let is_chosen = matches!(self.mode, Moderation::Fixed { .. });
        let is_cut = is_chosen && self.is_short_by_ring && !self.cut.is_rate_assumed;
        let hold = self.hold.filter(|_| is_cut)?.as_micros();
        Some(format!("{}: holding {hold} us{}", self.mode, self.by_ring()))
    }

    /// Describes the hold that the mode would choose, and the reason why the ring ends it earlier.
    fn by_ring(&self) -> String {
        let Cut { wanted, rate, is_rate_assumed, ring_len } = self.cut;
        // Rounded down, as the hold is.
        let half_us = (f64::from(ring_len / 2) / rate / 1e3) as u64;
        let (wanted, per_second) = (wanted.as_micros(), rate * 1e9);
        let may = if is_rate_assumed { "may come after a quiet time and " } else { "" };
        format!(
            " instead of {wanted}, because {per_second:.0} packets a second {may}fill half of the ring of {ring_len} in {half_us} us"
        )
    }

    /// Writes what is met instead of the goal.
    fn write_unmet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Moderation::Adaptive(Goal::Latency { .. }) => {
                let (late, hold) = (self.late, self.hold.unwrap_or_default());
                let (late, delay) = (late.as_micros(), (hold + late).as_micros());
                write!(f, "; timers are {late} us late, so packets wait for up to {delay} us")?;
            }
            Moderation::Adaptive(Goal::Cpu { percent }) => {
                let packets = self.share * (100.0 - self.waking_percent);
                write!(f, "; takes {:.1} % of a CPU", 100.0 * self.share)?;
                if packets > f64::from(percent) {
                    write!(f, ", {packets:.1} % for the packets alone")?;
                }
            }
            _ => {}
        }
        write!(f, ", more than {}", self.mode)
    }
}

impl Default for Moderated {
    fn default() -> Moderated {
        Moderator::new(Moderation::default(), false).moderated()
    }
}

impl fmt::Display for Moderated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.gathers {
            return write!(f, "{}: n/a, no device queues its packets", self.mode);
        }
        let (packets, waking) = (self.packets_per_irq, self.waking_percent);
        if packets.is_infinite() {
            return f.write_str("no irq: no packet woke a worker");
        }
        if packets == 0.0 {
            return f.write_str("no packets arrived");
        }
        write!(f, "{packets:.1} packets an irq, wake-ups took {waking:.0} % of the CPU time: ")?;
        match (self.hold, self.why, self.mode) {
            (Some(hold), ..) => {
                write!(f, "holding {} us", hold.as_micros())?;
                if self.is_short_by_ring {
                    f.write_str(&self.by_ring())?;
                }
            }
            (None, Why::Waited, _) => f.write_str("not held: a trial collected too few packets")?,
            (None, Why::Bursts, _) => {
                f.write_str("not held: holds after bursts saved little work")?
            }
            (None, Why::Costly, _) => f.write_str("not held: holds cost CPU time")?,
            (None, Why::Limited, _) => f.write_str("not held: short holds slowed packets down")?,
            (None, Why::Short, _) => {
                let us = HOLD_MIN.as_micros();
                write!(f, "not held: {} leaves less than {us} us", self.mode)?;
            }
            (None, _, Moderation::Interrupt | Moderation::Napi | Moderation::Busy) => {
                write!(f, "never held by {}", self.mode)?;
            }
            (None, Why::Device, _) => {
                let us = self.device_hold.as_micros();
                write!(f, "not held: the device itself gathers them for up to {us} us")?;
            }
            (None, ..) if waking < 100.0 * WAKING => {
                f.write_str("not held: wake-ups take little CPU time")?
            }
            (None, ..) => f.write_str("not held: packets arrive too rarely")?,
        }
        if self.unmet {
            self.write_unmet(f)?;
        }
        Ok(())
    }
}

/// Number of irqs a second below which few packets for each irq are no waste.
const IRQS_MIN: f64 = 1000.0;
/// Number of packets for each irq that is too small.
const FEW: f64 = 2.0;

/// Returns a description of a wasteful use of the CPU by `packets` and `irqs` in `time`, with the
/// rule that it violates; `None` if the use is not wasteful.
///
/// Source: post 001, in which the adapter's interrupts carried too few packets each.
#[must_use]
pub fn poor_use(packets: u64, irqs: u64, time: Duration) -> Option<String> {
    let rate = irqs as f64 / time.as_secs_f64();
    let each = packets as f64 / irqs as f64;
    (rate.is_finite() && rate >= IRQS_MIN && each < FEW).then(|| {
        format!(
            "poor use of the CPU: {each:.1} packets an irq at {rate:.0} irqs a second \
             (rule: fewer than {FEW:.0} at {IRQS_MIN:.0} or more)"
        )
    })
}
