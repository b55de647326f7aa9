//! Injected faults of a queue, determined by a plan and a seed, with every packet accounted for.
//!
//! ```text
//! plan.rs   what goes wrong, how often, by which numbers
//! side.rs   one way through: what it holds, and when that may go on
//! stats.rs  what happened so far
//!
//!   device ──rx──► Side ──► program          held packets are in flight: `held by faults`
//!   device ◄─xmit─ Side ◄── program
//! ```
//!
//! Owner: the queue owns what it holds; when it is closed, that is dropped as `stopped`. A packet
//! counts as received when the device gave it, so that one lost here was received and dropped as
//! `injected`, and a double was created. Port counters have a packet to send as sent when it is
//! taken, a double as two, and take those back that are dropped at the close.
//!
//! Wake-up: the queue has a descriptor of its own, an epoll set around the device's and an alarm.
//! The alarm rings for what no device announces: a delay or a stall that ends. Whatever is held for
//! the device leaves by the next call, `rx`, `xmit` or `reap`, and the alarm asks for one, whatever
//! the caller waits for.

#[cfg(test)]
mod conservation;
mod plan;
mod side;
mod stats;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Result, Tally};

pub use plan::{Fault, Plan};
pub use stats::{FaultCounts, FaultStats};

use super::{Layer, Wrapped};
use crate::caps::{Caps, Origin};
use crate::host::Bell;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::Counters;
use side::{Now, Side};

/// Ledger entry of the packets that a faulty queue holds.
const HELD: &str = "held by faults";

/// A queue to which a [`Plan`] of faults is applied.
pub type Faulty = Wrapped<Faults>;

impl Faulty {
    /// Wraps a queue so that the faults of `plan` happen to it.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(inner: Box<dyn QueueOps>, plan: &Plan) -> Result<Faulty> {
        let bell = Bell::new(inner.as_fd())?;
        let [rx, tx] = plan.sides().map(Side::new);
        let faults = Faults {
            fresh: Batch::with_capacity(rx.room()),
            bell,
            rx,
            tx,
            stats: Arc::default(),
            turn: 0,
            told_end: false,
            tally: None,
            tallied: 0,
            tx_lost: Moved::default(),
        };
        Ok(Wrapped::around(inner, faults))
    }

    /// Returns the live counters of the faults.
    #[must_use]
    pub fn stats(&self) -> Arc<FaultStats> {
        self.layer.stats.clone()
    }
}

/// The faults of a queue, and the packets held by them.
pub struct Faults {
    bell: Bell,
    rx: Side,
    tx: Side,
    /// Packets from the device, before any fault.
    fresh: Batch,
    stats: Arc<FaultStats>,
    /// Number of calls of `rx`, `xmit` and `reap`.
    turn: u64,
    /// True if `arm` has reported that no packet will be received any more.
    told_end: bool,
    /// The ledger's entry for the held packets.
    tally: Option<Tally>,
    tallied: usize,
    /// Packets that were taken and then dropped, by the device or because the queue was closed.
    tx_lost: Moved,
}

impl Faults {
    /// Begins a call: counts it, and returns its time and number.
    ///
    /// Cost: a clock read a batch.
    fn begin(&mut self) -> Now {
        self.turn += 1;
        Now { turn: self.turn, at: Instant::now() }
    }

    /// Sends the held packets that are due to the device. Those that it drops counted as sent when
    /// they were taken.
    fn flush(&mut self, below: &mut dyn QueueOps, mem: &mut Local, now: Now) {
        self.tx.mature(now);
        let is_stalled = self.tx.is_stalled(now.at);
        let ready = &mut self.tx.ready;
        if ready.is_empty() || is_stalled {
            return;
        }
        let offered = ready.count_first(ready.len());
        let sent = below.xmit(mem, ready);
        let kept = ready.count_first(ready.len());
        // A device that multiplies packets may have sent more than it was given.
        self.tx_lost += Moved {
            packets: offered.packets.saturating_sub(kept.packets + sent.packets),
            bytes: offered.bytes.saturating_sub(kept.bytes + sent.bytes),
        };
    }

    /// Updates the tally of held packets if their number has changed.
    fn tell(&mut self, mem: &Local) {
        let held = self.rx.held() + self.tx.held();
        if held != self.tallied {
            self.tally.get_or_insert_with(|| mem.pool().tally(HELD)).set(held);
            self.tallied = held;
        }
    }

    /// Receives up to `budget` packets from the device, and passes them through the faults.
    fn take(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: Option<&mut Batch>,
        budget: usize,
    ) -> Moved {
        let out = out.unwrap_or(&mut self.fresh);
        let before = out.len();
        let moved = below.rx(mem, out, budget);
        if below.caps().origin == Origin::Device {
            mem.count_received(out.len().saturating_sub(before));
        }
        moved
    }

    fn receive(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
        now: Now,
    ) -> Moved {
        if self.rx.is_plain() {
            return self.take(below, mem, Some(out), budget);
        }
        let budget = budget.min(out.spare());
        if budget == 0 || self.rx.refuses(now, &self.stats) {
            return Moved::default();
        }
        let most = budget.min(self.rx.room()).min(self.fresh.spare());
        if most > 0 {
            self.take(below, mem, None, most);
        }
        while let Some(skb) = self.fresh.pop() {
            self.rx.admit(skb, now, &self.stats);
        }
        self.rx.mature(now);
        let before = out.len();
        self.rx.ready.move_to(out, budget);
        out.count_from(before)
    }

    fn send(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        batch: &mut Batch,
        now: Now,
    ) -> Moved {
        if self.tx.is_plain() {
            return below.xmit(mem, batch);
        }
        let refuses = !batch.is_empty() && self.tx.refuses(now, &self.stats);
        self.flush(below, mem, now);
        let mut moved = Moved::default();
        // Take packets only while the device accepts them: those that it refuses are held, and the
        // rest of the batch stays with the caller.
        while !refuses && self.tx.ready.is_empty() && !batch.is_empty() && self.tx.room() > 0 {
            while self.tx.room() > 0
                && let Some(skb) = batch.pop()
            {
                moved += self.tx.admit(skb, now, &self.stats);
            }
            self.flush(below, mem, now);
        }
        moved
    }

    /// Returns true if the device has ended and all its packets were delivered.
    fn has_ended(&self, below: &dyn QueueOps) -> bool {
        self.rx.held() == 0 && below.health_kind().ended()
    }

    /// Returns true if a wanted event has occurred.
    fn is_here(&mut self, want: Want, now: Now) -> bool {
        self.rx.mature(now);
        self.tx.mature(now);
        let frames = !self.rx.ready.is_empty() && !self.rx.is_shut(now.at);
        let takes = !self.tx.is_plain() && self.tx.ready.is_empty() && self.tx.room() > 0;
        let room = takes && !self.tx.is_shut(now.at);
        (want.frames() && frames) || (want.room() && room)
    }

    /// Returns the events for which to arm the device. They include room while packets are held, so
    /// that the caller wakes and sends them.
    fn wanted(&self, want: Want, now: Instant) -> Option<Want> {
        let open = self.rx.is_plain() || (!self.rx.is_shut(now) && self.rx.room() > 0);
        let waits = !self.tx.ready.is_empty() && !self.tx.is_stalled(now);
        match (want.frames() && open, waits || (self.tx.is_plain() && want.room())) {
            (true, true) => Some(Want::Both),
            (true, false) => Some(Want::Frames),
            (false, true) => Some(Want::Room),
            (false, false) => None,
        }
    }
}

impl Layer for Faults {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let now = self.begin();
        self.flush(below, mem, now);
        let moved = self.receive(below, mem, out, budget, now);
        self.tell(mem);
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let now = self.begin();
        let moved = self.send(below, mem, batch, now);
        self.tell(mem);
        moved
    }

    fn arm(&mut self, below: &mut dyn QueueOps, want: Want) -> bool {
        let now = Now { turn: self.turn, at: Instant::now() };
        if self.is_here(want, now) {
            return false;
        }
        let wanted = self.wanted(want, now.at);
        let here = wanted.is_some_and(|wanted| !below.arm(wanted));
        // Report the end here as well, because the device reports it only once, perhaps while
        // packets were held.
        let news = self.has_ended(below) && !std::mem::replace(&mut self.told_end, true);
        if here || news {
            return false;
        }
        let rx = self.rx.alarm(now.at, true).filter(|_| want.frames());
        let alarm = rx.into_iter().chain(self.tx.alarm(now.at, want.room())).min();
        self.bell.watch(below.as_fd(), wanted.map(|_| Want::Frames), alarm);
        true
    }

    fn alarm(&mut self, _: &mut dyn QueueOps, at: Instant) -> bool {
        self.bell.no_later(at)
    }

    // Refuse a hold: the bell watches the device's descriptor, and faults need their own timers.
    fn hold(&mut self, _: &mut dyn QueueOps, _: Instant) -> bool {
        false
    }

    /// Sends what is due to the device; counts the packets held for it among those that it has to
    /// send.
    fn reap(&mut self, below: &mut dyn QueueOps, mem: &mut Local) -> usize {
        let now = self.begin();
        self.flush(below, mem, now);
        self.tell(mem);
        below.reap(mem) + self.tx.held()
    }

    /// Drops the held packets first, because no call sends them after the close.
    fn close(&mut self, below: &mut dyn QueueOps, until: Instant) {
        self.rx.discard(DropReason::STOPPED);
        self.tx_lost += self.tx.discard(DropReason::STOPPED);
        (self.tally, self.tallied) = (None, 0);
        below.close(until);
    }

    fn counters(&mut self, below: &mut dyn QueueOps) -> Counters {
        let mut counters = below.counters();
        counters.tx_lost += self.tx_lost;
        counters
    }

    fn withheld(&self, below: &dyn QueueOps) -> usize {
        self.rx.held() + self.tx.held() + below.withheld()
    }

    fn as_fd<'a>(&'a self, _: &'a dyn QueueOps) -> BorrowedFd<'a> {
        self.bell.as_fd()
    }

    fn health(&self, below: &dyn QueueOps) -> Health {
        match below.health() {
            // The ended device has no more packets, but held packets are still to be received.
            health if health.ended() && self.rx.held() > 0 => Health::Up,
            health => health,
        }
    }

    fn health_kind(&self, below: &dyn QueueOps) -> HealthKind {
        match below.health_kind() {
            kind if kind.ended() && self.rx.held() > 0 => HealthKind::Up,
            kind => kind,
        }
    }

    fn caps(&self, below: &dyn QueueOps) -> Caps {
        let caps = below.caps();
        match caps.origin {
            Origin::Device => Caps { origin: Origin::Counted, ..caps },
            _ => caps,
        }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.rx.discard(DropReason::STOPPED);
        self.tx.discard(DropReason::STOPPED);
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").field("stats", &self.stats).finish_non_exhaustive()
    }
}
