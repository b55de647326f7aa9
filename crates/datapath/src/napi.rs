//! One device queue on a worker: what it receives, and the queue in front of its transmit ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_port::moderation::{Cost, Rest};
use linerate_port::{
    Direction, DriverQueue, Health, Moderation, Origin, QueueCounts, QueueOps, QueueStats, Want,
};
use linerate_skb::{Batch, DropReason, Local, Pool, Tally};

use crate::egress::Egress;
use crate::stage::PortId;
use crate::stats::{Slot, rank};
use crate::tx_batch::TxBatch;

/// A queue of a device, polled for packets until it is empty, then armed.
pub(crate) struct Napi {
    ops: DriverQueue,
    slot: Arc<Slot>,
    direction: Direction,
    /// Its port, by the port's first queue.
    pub port: PortId,
    /// The other end of its wire, as the worker counts its napis.
    pub peer: Option<usize>,
    /// Its packet memory, of those of the worker.
    pub mem: usize,
    /// Outputs that it is divided among beside, whose room it waits for.
    pub fan: Vec<usize>,
    /// Packets on their way out.
    egress: Egress,
    /// The ledger's count of them: how many a turn left behind.
    tally: Tally,
    told: usize,
    /// True if the worker's epoll watches it.
    watched: bool,
    /// True if it is held: packets gather in its ring.
    held: bool,
    /// The health that was last looked at, as a number.
    rank: u8,
}

impl Napi {
    /// Wraps a queue; `egress` is in front of its transmit ring, and `tally` tells of the packets there.
    pub fn new(
        ops: Box<dyn QueueOps>,
        direction: Direction,
        port: PortId,
        egress: Egress,
        tally: Tally,
    ) -> Napi {
        Napi {
            ops: DriverQueue::new(ops),
            slot: Arc::default(),
            direction,
            port,
            peer: None,
            mem: 0,
            fan: Vec::new(),
            egress,
            tally,
            told: 0,
            watched: true,
            held: false,
            rank: rank(&Health::Up),
        }
    }

    /// Returns the shared counters of the queue, and the slot with its device's health.
    pub fn readings(&self) -> (Arc<QueueStats>, Arc<Slot>) {
        (self.ops.stats().clone(), self.slot.clone())
    }

    /// Has packets of other pools than `pool` copied before they leave.
    pub fn keep_to(&mut self, pool: &Pool) {
        self.ops.keep_to(pool);
    }

    pub fn id(index: usize) -> PortId {
        PortId(index as u8)
    }

    /// Returns true if packets are to be read from it at all.
    pub fn reads(&self) -> bool {
        self.direction != Direction::Sink && self.peer.is_some()
    }

    /// Returns true if packets can be written to it.
    pub fn writes(&self) -> bool {
        self.direction != Direction::Source
    }

    /// Returns true if what it gives comes from elsewhere than this engine.
    pub fn external(&self) -> bool {
        self.ops.caps().origin != Origin::Internal
    }

    /// Receives up to `budget` packets into `batch`.
    pub fn rx(&mut self, batch: &mut Batch, mem: &mut Local, budget: usize) -> usize {
        self.ops.rx(mem, batch, budget)
    }

    /// Returns true if it gave all that it was asked for, and is to be looked at again for it.
    pub fn goes_on(&mut self) -> bool {
        self.ops.moderator().goes_on()
    }

    /// Returns the room for packets on their way out.
    pub fn room(&self) -> usize {
        self.egress.room()
    }

    /// Returns the number of packets waiting for room in the transmit ring; those that are prepared for it have
    /// left the fifo.
    pub fn backlog(&self) -> usize {
        self.egress.ready() + self.ops.waiting()
    }

    /// Returns the number of packets waiting for room, or for their time.
    pub fn waiting(&self) -> usize {
        self.egress.waiting() + self.ops.waiting()
    }

    /// Returns true if a discipline decides what leaves, and when.
    pub fn has_qdisc(&self) -> bool {
        self.egress.qdisc_counts().is_some()
    }

    /// Returns the time from which a packet that waits for it may leave.
    pub fn due(&self) -> Option<Instant> {
        self.egress.deadline()
    }

    /// Returns the most packets that one doorbell announces.
    pub fn tx_batch(&self) -> TxBatch {
        self.egress.cap()
    }

    /// Changes the most packets that one doorbell announces.
    pub fn set_tx_batch(&mut self, cap: TxBatch) {
        self.egress.set_cap(cap);
    }

    /// Takes the first `n` packets of `batch`; what there is no room for is dropped.
    pub fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        if !self.writes() {
            return batch.discard_first(n, DropReason::UNSUPPORTED, mem);
        }
        self.egress.enqueue(batch, n, now, mem);
    }

    /// Sends what waits and is due; true if something left.
    pub fn xmit(&mut self, now: Instant, mem: &mut Local) -> bool {
        let moved = self.egress.xmit(&mut self.ops, now, mem);
        let waits = self.waiting();
        if waits != self.told {
            self.tally.set(waits);
            self.told = waits;
        }
        moved
    }

    /// Takes back what the device is done with; true if it still has something to do.
    pub fn sending(&mut self, mem: &mut Local) -> bool {
        self.writes() && self.ops.reap(mem) > 0
    }

    /// Drops what still waits.
    pub fn purge(&mut self, mem: &mut Local) {
        self.egress.purge(mem);
    }

    /// Arms it for `want`; false if that is there already. `None` means: leave me alone.
    pub fn arm(&mut self, want: Option<Want>) -> bool {
        let armed = want.is_none_or(|want| self.ops.arm(want));
        if !armed {
            self.ops.stats().count_recheck();
        }
        armed
    }

    /// Records that the worker's epoll is to watch this queue or not; returns true if that is a
    /// change.
    pub fn watch_changed(&mut self, watched: bool) -> bool {
        std::mem::replace(&mut self.watched, watched) != watched
    }

    /// Counts a wake-up by this queue.
    pub fn woken(&mut self) {
        self.ops.irq(false);
    }

    /// Counts the end of a hold, if it was held.
    pub fn hold_ended(&mut self) {
        if self.held {
            self.ops.irq(true);
        }
    }

    /// Notes that it was not asked in this turn, because there is no room for what it has.
    pub fn left_alone(&mut self) {
        if self.reads() {
            self.ops.moderator().left_alone();
        }
    }

    /// Decides when it is to be looked at again.
    pub fn rest(&mut self, now: Instant) -> Rest {
        if !self.reads() {
            return Rest::Device;
        }
        let rest = self.ops.moderator().rest(now);
        self.held = matches!(rest, Rest::Hold { .. });
        rest
    }

    /// Returns the longest time for which it may be left alone while another queue is held; `None` if it may
    /// not be, or nothing is read from it.
    pub fn patience(&mut self) -> Option<Duration> {
        if self.held || !self.reads() { None } else { self.ops.moderator().patience() }
    }

    /// Returns true if it may not be left alone while another queue is held.
    pub fn is_impatient(&mut self) -> bool {
        !self.held && self.reads() && self.ops.moderator().patience().is_none()
    }

    /// Changes its moderation; returns why that does less than it says, if so.
    pub fn set_moderation(&mut self, mode: Moderation) -> Option<String> {
        let rx_ring_len = self.ops.caps().rx_ring_len;
        let moderator = self.ops.moderator();
        moderator.set_mode(mode);
        if moderator.gathers() {
            return mode.warning(rx_ring_len?);
        }
        Some("n/a: its packets wait in no device".into())
    }

    /// Tells its moderation the slack of the thread's timers.
    pub fn set_timer_slack(&mut self, slack: Duration) {
        self.ops.moderator().set_timer_slack(slack);
    }

    /// Takes over what a wake-up and a packet cost, if that was learned.
    pub fn learned(&mut self, cost: Option<Cost>) {
        // A device that has come back may have another ring.
        let rx_ring_len = self.ops.caps().rx_ring_len;
        let moderator = self.ops.moderator();
        moderator.set_ring_len(rx_ring_len);
        if let Some(cost) = cost {
            moderator.learned(cost);
        }
    }

    /// Returns the queue's counters.
    pub fn counts(&self) -> QueueCounts {
        self.ops.stats().counts()
    }

    /// Returns true once after each change of the device's health.
    pub fn health_changed(&mut self) -> bool {
        let now = rank(&self.ops.health());
        std::mem::replace(&mut self.rank, now) != now
    }

    /// Tells readers of the statistics what only the queue's owner can ask the device.
    ///
    /// Cost: whatever the device's answers cost: a syscall for some, a histogram for others.
    pub fn publish(&mut self) {
        self.slot.publish(&mut self.ops, &self.egress);
    }

    /// Publishes even if a reader has the lock, for which it waits: a change of health, or the end, is not missed.
    pub fn conclude(&mut self) {
        self.slot.conclude(&mut self.ops, &self.egress);
    }

    /// Returns true if packets wait for room, and the device will say when there is some.
    pub fn awaits_tx_space(&self) -> bool {
        self.backlog() > 0 && self.ops.caps().notifies_tx_space
    }

    /// Returns true while the device is down, and may come up.
    pub fn is_down(&self) -> bool {
        matches!(self.ops.health(), Health::Down(_))
    }

    /// Returns true if the device has failed for good.
    pub fn failed(&self) -> bool {
        matches!(self.ops.health(), Health::Failed(_))
    }

    /// Returns true if it will never give a packet again.
    pub fn ended(&self) -> bool {
        match self.ops.health() {
            Health::Up | Health::Down(_) => false,
            health => health.ended(),
        }
    }
}

impl AsFd for Napi {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ops.as_fd()
    }
}
