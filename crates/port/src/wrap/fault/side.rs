//! One direction of a faulty queue: the packets that it holds, and when each may continue.
//!
//! ```text
//!  admit ──► line │ in order, each due at a turn or a time │ ──► ready ──► the device, the program
//!        └─► aside │ until enough of the line has passed    │ ──┘
//! ```
//!
//! The line keeps the order: nothing overtakes a packet that is late. Only what was set aside
//! comes out of turn. What the three hold is bounded, and who admits looks at `room` first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Moved, Offload, Skb};

use super::plan::{Dice, Fault, Rule};
use super::stats::FaultStats;
use crate::host::RETRY;
use crate::view::ViewsMut;

/// Number of turns after which a packet that was set aside continues, if no packet overtakes it.
const ASIDE_TURNS: u64 = 16;
/// Most packets that are set aside at once; further ones stay in the line.
const ASIDE_MAX: usize = 64;
/// Length of a delay or a stall that is too long for the clock: a year.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time and the turn of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub turn: u64,
    pub at: Instant,
}

/// The time or turn at which a packet of the line may continue.
#[derive(Debug, Clone, Copy)]
struct Due {
    turn: u64,
    at: Option<Instant>,
}

/// A packet that lets others overtake it.
struct Aside {
    skb: Skb,
    /// The number of the line's packets after which this packet continues; the next field is the
    /// turn at which it continues anyway.
    passed: u64,
    turn: u64,
    /// The time before which it does not continue, if it is delayed.
    at: Option<Instant>,
}

/// The state of a direction: open, or closed for a time or for some calls.
#[derive(Debug, Clone, Copy)]
enum Gate {
    Open,
    /// The device stalls until this moment.
    Until(Instant),
    /// The queue refuses this many further calls.
    Calls(u32),
}

/// One direction of a faulty queue.
pub(super) struct Side {
    rules: Vec<Rule>,
    dice: Dice,
    hold_packets: usize,
    gate: Gate,
    line: VecDeque<(Skb, Due)>,
    aside: Vec<Aside>,
    /// Packets that may continue and have not been taken yet.
    pub ready: Batch,
    /// Number of packets that have continued from the line.
    passed: u64,
}

impl Side {
    pub fn new((rules, dice, hold_packets): (&[Rule], Dice, usize)) -> Side {
        let room = if rules.is_empty() { 0 } else { hold_packets };
        Side {
            rules: rules.to_vec(),
            dice,
            hold_packets,
            gate: Gate::Open,
            line: VecDeque::with_capacity(room),
            aside: Vec::with_capacity(room.min(ASIDE_MAX)),
            ready: Batch::with_capacity(room),
            passed: 0,
        }
    }

    /// Returns true if the plan has no fault here, so that no packet is ever held.
    pub fn is_plain(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the number of packets that are held.
    pub fn held(&self) -> usize {
        self.line.len() + self.aside.len() + self.ready.len()
    }

    /// Returns the number of packets that may be admitted, if each of them were duplicated.
    pub fn room(&self) -> usize {
        (self.hold_packets - self.held()) / 2
    }

    /// Returns true if this call is refused or stalled, and counts the refusal; may also begin a
    /// new stall or refusal.
    pub fn refuses(&mut self, now: Now, stats: &FaultStats) -> bool {
        match self.gate {
            Gate::Until(end) if now.at < end => return true,
            Gate::Calls(left) if left > 0 => {
                self.gate = Gate::Calls(left - 1);
                return true;
            }
            Gate::Open => {}
            // The stall or refusal is over, and this call must succeed: without that, the device
            // would appear to have failed.
            Gate::Until(_) | Gate::Calls(_) => {
                self.gate = Gate::Open;
                return false;
            }
        }
        for &Rule { fault, one_in } in &self.rules {
            self.gate = match fault {
                Fault::Stall(time) if self.dice.one_in(one_in) => {
                    stats.stalled.count();
                    after(now.at, time).map_or(Gate::Open, Gate::Until)
                }
                Fault::Refuse { calls } if calls > 0 && self.dice.one_in(one_in) => {
                    stats.refused.count();
                    Gate::Calls(calls - 1)
                }
                _ => continue,
            };
            return true;
        }
        false
    }

    /// Returns true while the next call would be refused or stalled.
    pub fn is_shut(&self, now: Instant) -> bool {
        match self.gate {
            Gate::Open => false,
            Gate::Until(end) => now < end,
            Gate::Calls(left) => left > 0,
        }
    }

    /// Returns true while an injected stall lasts, in which the device does nothing.
    pub fn is_stalled(&self, now: Instant) -> bool {
        matches!(self.gate, Gate::Until(end) if now < end)
    }

    /// Applies faults to a packet and holds the result; returns what it holds then: a doubled
    /// packet counts as two.
    ///
    /// Shape:  skb -> held here, or dropped with its reason; for each, `room` was at least 1.
    pub fn admit(&mut self, mut skb: Skb, now: Now, stats: &FaultStats) -> Moved {
        let mut due = Due { turn: now.turn, at: None };
        let (mut behind, mut twice) = (None, false);
        for &Rule { fault, one_in } in &self.rules {
            if matches!(fault, Fault::Stall(_) | Fault::Refuse { .. }) || !self.dice.one_in(one_in)
            {
                continue;
            }
            match fault {
                Fault::Drop => {
                    stats.dropped.count();
                    skb.discard(DropReason::INJECTED);
                    return Moved::default();
                }
                Fault::Duplicate => twice = true,
                Fault::Reorder { behind: n } => behind = Some(n),
                Fault::Delay(time) => due.at = after(now.at, time).max(due.at),
                Fault::DelayTurns(turns) => due.turn = due.turn.max(now.turn + u64::from(turns)),
                Fault::Corrupt if corrupt(&mut skb, &mut self.dice) => stats.corrupted.count(),
                Fault::Short if shorten(&mut skb, &mut self.dice) => stats.shortened.count(),
                // The packet cannot be written, because a peer can write it too or the pool is
                // empty: leave it unchanged.
                Fault::Corrupt | Fault::Short | Fault::Stall(_) | Fault::Refuse { .. } => {}
            }
        }
        if due.at.is_some() || due.turn > now.turn {
            stats.delayed.count();
        }
        let mut moved = Moved { packets: 1, bytes: skb.len() as u64 };
        if twice {
            stats.duplicated.count();
            moved = Moved { packets: 2, bytes: 2 * moved.bytes };
            let double = skb.share().into_unique();
            self.enter(skb, due, behind, now, stats);
            self.line.push_back((double, due));
        } else {
            self.enter(skb, due, behind, now, stats);
        }
        moved
    }

    fn enter(&mut self, skb: Skb, due: Due, behind: Option<u32>, now: Now, stats: &FaultStats) {
        let Some(behind) = behind.filter(|_| self.aside.len() < ASIDE_MAX) else {
            return self.line.push_back((skb, due));
        };
        stats.reordered.count();
        // The packets that are in the line now continue before it, and do not count as overtaking.
        let passed = self.passed + self.line.len() as u64 + u64::from(behind);
        let turn = due.turn.max(now.turn) + ASIDE_TURNS;
        self.aside.push(Aside { skb, passed, turn, at: due.at });
    }

    /// Moves the packets whose time or turn has come to `ready`.
    pub fn mature(&mut self, now: Now) {
        self.release_aside(now);
        while let Some((_, due)) = self.line.front()
            && due.turn <= now.turn
            && due.at.is_none_or(|at| at <= now.at)
            && let Some((skb, _)) = self.line.pop_front()
        {
            self.passed += 1;
            self.pass(skb);
            self.release_aside(now);
        }
    }

    fn release_aside(&mut self, now: Now) {
        let passed = self.passed;
        let may_go = |a: &Aside| {
            (a.passed <= passed || a.turn <= now.turn) && a.at.is_none_or(|at| at <= now.at)
        };
        while let Some(i) = self.aside.iter().position(may_go) {
            let skb = self.aside.remove(i).skb;
            self.pass(skb);
        }
    }

    fn pass(&mut self, skb: Skb) {
        // `push` cannot fail: `ready` has room for all packets that this direction may hold.
        let _ = self.ready.push(skb);
    }

    /// Returns the time of the next check for events that no device signals: the end of a stall or
    /// refusal, if the caller waits for it, and packets that become due.
    pub fn alarm(&self, now: Instant, wanted: bool) -> Option<Instant> {
        let soon = now.checked_add(RETRY);
        let gate = match self.gate {
            Gate::Until(end) if now < end => Some(end).filter(|_| wanted || self.held() > 0),
            Gate::Calls(left) if left > 0 => soon.filter(|_| wanted),
            _ => None,
        };
        // Packets that wait for turns need calls: wake the caller soon.
        let next = |at: Option<Instant>| at.filter(|at| *at > now).or(soon);
        let line = self.line.front().and_then(|(_, due)| next(due.at));
        let aside = self.aside.iter().filter_map(|aside| next(aside.at)).min();
        [gate, line, aside].into_iter().flatten().min()
    }

    /// Drops all held packets, for `reason`; returns what it dropped.
    pub fn discard(&mut self, reason: DropReason) -> Moved {
        let mut dropped = self.ready.count_from(0);
        self.ready.discard(reason);
        let line = self.line.drain(..).map(|(skb, _)| skb);
        for skb in line.chain(self.aside.drain(..).map(|aside| aside.skb)) {
            dropped += Moved { packets: 1, bytes: skb.len() as u64 };
            skb.discard(reason);
        }
        dropped
    }
}

/// Returns the moment that is `time` after `at`, or a year after it if the clock does not reach
/// that far.
fn after(at: Instant, time: Duration) -> Option<Instant> {
    at.checked_add(time).or_else(|| at.checked_add(FAR))
}

/// Flips one bit of the first frame; returns false if the frame cannot be written, or for a
/// superframe, whose segments would get checksums that cover the damage.
///
/// A checksum that is left to a device is computed before: afterwards it would cover the damage,
/// too. The packet no longer counts as verified.
fn corrupt(skb: &mut Skb, dice: &mut Dice) -> bool {
    if skb.offload().is_gso() || skb.complete_checksum().is_err() {
        return false;
    }
    let bytes = skb.data_mut();
    let bit = dice.below(8 * bytes.len().max(1));
    let Some(byte) = bytes.get_mut(bit / 8) else { return false };
    *byte ^= 1 << (bit % 8);
    let offload = skb.offload();
    skb.set_offload(Offload { flags: offload.flags & !Offload::VERIFIED, ..offload });
    true
}

/// Cuts a packet to one byte or more; returns false if it has fewer than two bytes, or fragments.
fn shorten(skb: &mut Skb, dice: &mut Dice) -> bool {
    let len = skb.len();
    len > 1 && skb.is_linear() && skb.trim(1 + dice.below(len - 1))
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::*;

    #[test]
    fn packets_in_a_delay_or_set_aside_are_returned_as_dropped() {
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let (mut mem, stats) = (pool.local(), FaultStats::default());
        for fault in [Fault::Delay(Duration::from_secs(9)), Fault::Reorder { behind: 3 }] {
            let plan = Plan::new(1).tx(fault, 1);
            let [_, tx] = plan.sides();
            let (mut side, now) = (Side::new(tx), Now { turn: 0, at: Instant::now() });
            side.admit(mem.alloc_copy(&[7; 100]).unwrap(), now, &stats);
            let dropped = side.discard(DropReason::STOPPED);
            assert_eq!((dropped.packets, dropped.bytes), (1, 100));
        }
    }
}
