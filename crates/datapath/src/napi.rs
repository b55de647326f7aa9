//! One device queue of a worker: the packets it receives, and the queue before its transmit ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_port::moderation::{Cost, Holding, Rest, SLEEP_MIN};
use linerate_port::{
    Direction, DriverQueue, HealthKind, Moderation, Origin, QueueCounts, QueueOps, QueueStats, Want,
};
use linerate_skb::{Batch, DropReason, Local, Pool, Tally};

use crate::egress::Egress;
use crate::qdisc::BitRate;
use crate::queue_slot::QueueSlot;
use crate::stage::PortId;
use crate::tx_batch::TxBatch;
use crate::worker_slot::QueueOf;

/// Note on a moderation that has no effect.
pub(crate) const NOT_QUEUED: &str = "n/a: no device queues its packets";
/// Shortest and longest time between two calls of a queue that is not polled, while its device has
/// packets to send.
const SENDS_MIN: Duration = Duration::from_millis(1);
const SENDS_MAX: Duration = Duration::from_secs(1);
/// Shortest and longest time between two checks for room during a hold. The first is memif's
/// shortest wait for room, so that the time does not depend on the length of a ring.
const ROOM_MIN: Duration = SLEEP_MIN;
const ROOM_MAX: Duration = Duration::from_millis(10);

/// The packets that a device has to send, of a queue that is not polled.
#[derive(Debug, Clone, Copy)]
struct Sends {
    /// The time since which the device has had as many, without new ones.
    since: Instant,
    /// The time of the next look.
    at: Instant,
    /// Packets given to the queue so far.
    given: u64,
    /// Packets that the device had at the last look.
    left: usize,
}

/// A device queue that is polled until it is empty, and then armed.
pub(crate) struct Napi {
    ops: DriverQueue,
    slot: Arc<QueueSlot>,
    direction: Direction,
    /// The origin of the packets that the queue receives; a queue keeps it for life.
    origin: Origin,
    /// True if the queue is of a network interface, which may go down while nothing is sent.
    is_interface: bool,
    /// The queue's port, identified by its first queue.
    pub port: PortId,
    /// The index of the napi at the other end of the wire.
    pub peer: Option<usize>,
    /// The index of the queue's packet memory in the worker.
    pub mem: usize,
    /// True if a thread of the program has the other end of the queue's ring.
    pub from_program: bool,
    /// The counters below the wrappers of a ring's end; `None` if it has no wrapper.
    pub meter: Option<Arc<QueueStats>>,
    /// Further outputs of a division, whose room the queue also waits for.
    pub fan: Vec<usize>,
    /// Packets waiting to be sent.
    egress: Egress,
    /// Packets given to the queue to be sent.
    given: u64,
    /// The ledger's count of the waiting packets, updated after each turn.
    tally: Tally,
    tallied: usize,
    /// True if the worker's epoll set watches the queue.
    watched: bool,
    /// True if the moderation holds the queue: packets gather in its ring.
    held: bool,
    /// The packets that the device had when it was called while the queue was not polled.
    sends: Option<Sends>,
    /// Packets sent at the last check for room during a hold, and the time since which there are so
    /// many.
    room_look: Option<(u64, Instant)>,
    /// The last published state, to notice a change.
    published: HealthKind,
}

impl Napi {
    /// Wraps a queue; `egress` holds the packets before its transmit ring, and `tally` counts them.
    pub fn new(
        ops: Box<dyn QueueOps>,
        direction: Direction,
        port: PortId,
        egress: Egress,
        tally: Tally,
    ) -> Napi {
        let (mut ops, slot) = (DriverQueue::new(ops), Arc::<QueueSlot>::default());
        let gathers = ops.moderator().gathers() && direction != Direction::Sink;
        slot.settings.set_moderation(ops.moderator().mode(), gathers);
        slot.settings.set_tx_batch(egress.cap());
        slot.settings.set_shape(egress.rate());
        let caps = ops.caps();
        slot.settings.set_rx_ring_len(caps.rx_ring_len);
        Napi {
            ops,
            slot,
            direction,
            origin: caps.origin,
            is_interface: caps.is_interface,
            port,
            peer: None,
            mem: 0,
            from_program: false,
            meter: None,
            fan: Vec::new(),
            egress,
            given: 0,
            tally,
            tallied: 0,
            watched: true,
            held: false,
            sends: None,
            room_look: None,
            published: HealthKind::Up,
        }
    }

    /// Returns the counters of the queue, and the slot with its device's health, to be read by
    /// other threads.
    pub fn readings(&self) -> (Arc<QueueStats>, Arc<QueueSlot>) {
        (self.ops.stats().clone(), self.slot.clone())
    }

    /// Returns the counters of the packets in a ring: those of the queue, or those below its
    /// wrappers.
    pub fn in_ring(&self) -> &Arc<QueueStats> {
        self.meter.as_ref().unwrap_or(self.ops.stats())
    }

    /// Returns the queue as other threads see it: queue `number` of `port`.
    pub fn as_queue_of(&self, port: String, number: usize) -> QueueOf {
        QueueOf { port, number, stats: self.ops.stats().clone(), hold: self.ops.hold_control() }
    }

    /// Makes the queue copy packets from pools other than `pool` before it sends them.
    pub fn keep_to(&mut self, pool: &Pool) {
        self.ops.keep_to(pool);
    }

    pub fn id(index: usize) -> PortId {
        PortId(index as u8)
    }

    /// Returns true if the worker receives packets from the queue.
    pub fn reads(&self) -> bool {
        self.direction != Direction::Sink && self.peer.is_some()
    }

    /// Returns true if packets can be sent to the queue.
    pub fn writes(&self) -> bool {
        self.direction != Direction::Source
    }

    /// Returns true if the queue's packets come from outside this engine.
    pub fn external(&self) -> bool {
        self.from_program || self.origin != Origin::Internal
    }

    /// Returns true if the queue is the end of a ring in this process.
    pub fn is_ring(&self) -> bool {
        self.origin == Origin::Internal
    }

    /// Receives up to `budget` packets into `batch`.
    #[inline(always)]
    pub fn rx(&mut self, batch: &mut Batch, mem: &mut Local, budget: usize) -> usize {
        self.ops.rx(mem, batch, budget)
    }

    /// Returns true if the last poll used its whole budget, so that the queue must be polled again.
    pub fn goes_on(&mut self) -> bool {
        self.ops.moderator().goes_on()
    }

    /// Returns how many more packets may wait.
    pub fn room(&self) -> usize {
        self.egress.room()
    }

    /// Returns the number of packets that wait for room in the transmit ring, including packets
    /// that have left the fifo and are in transmit preparation.
    pub fn backlog(&self) -> usize {
        self.egress.ready() + self.ops.waiting()
    }

    /// Returns the time until the next check for room during a hold, while packets wait for room.
    /// It grows while the device takes none, so that one that never does costs few wake-ups.
    pub fn room_interval(&mut self, now: Instant) -> Duration {
        let sent = self.counts().tx_packets;
        let (_, since) = *self.room_look.insert(match self.room_look {
            Some(look) if look.0 == sent => look,
            _ => (sent, now),
        });
        now.saturating_duration_since(since).clamp(ROOM_MIN, ROOM_MAX)
    }

    /// Returns the number of packets that wait for room or for their time.
    pub fn waiting(&self) -> usize {
        self.egress.waiting() + self.ops.waiting()
    }

    /// Returns the number of packets that wrappers of the queue withhold.
    pub fn withheld(&self) -> usize {
        self.ops.withheld()
    }

    /// Returns true if wrappers withhold packets that are still within this engine, because the
    /// queue is the end of a ring between workers.
    pub fn withholds_inside(&self) -> bool {
        !self.external() && self.ops.withheld() > 0
    }

    /// Notes whether wrappers withhold packets that only [`Napi::xmit`] makes them send, because
    /// the queue is not polled at present; returns true if so.
    pub fn note_withheld(&mut self, is_polled: bool) -> bool {
        let withholds = !is_polled && self.ops.withheld() > 0;
        self.egress.set_withholds(withholds);
        withholds
    }

    /// Takes back packets that the device has sent, if the queue is not polled at present; returns
    /// when to do it again, if the device still has some, is down or is an interface. Such a queue
    /// is not armed, but its device may have to be called once more: the kernel refused the last
    /// doorbell, say, the device is stuck, or the interface goes down. The interval grows while
    /// nothing is sent, and no new packets come to the device.
    ///
    /// Cost: a look at the device after new packets, and after each interval.
    pub fn reap_unpolled(
        &mut self,
        is_polled: bool,
        now: Instant,
        mem: &mut Local,
    ) -> Option<Instant> {
        if is_polled || !self.writes() {
            self.sends = None;
            return None;
        }
        if let Some(sends) = self.sends.filter(|sends| sends.given == self.given)
            && now < sends.at
        {
            return Some(sends.at);
        }
        let left = self.ops.reap(mem);
        let rests = left == 0 && !self.is_down();
        if rests && !self.is_interface {
            self.sends = None;
            return None;
        }
        let is_same = |sends: &Sends| sends.given == self.given && sends.left == left;
        let since = self.sends.filter(is_same).map_or(now, |sends| sends.since);
        let age = now.saturating_duration_since(since).clamp(SENDS_MIN, SENDS_MAX);
        let at = now + if rests { SENDS_MAX } else { age };
        self.sends = Some(Sends { since, at, given: self.given, left });
        Some(at)
    }

    /// Returns true if a discipline decides which packets are sent, and when.
    pub fn has_qdisc(&self) -> bool {
        self.egress.qdisc_counts().is_some()
    }

    /// Returns the time at which to send next, if a packet waits for its time. The moderation
    /// decides for how long packets gather.
    pub fn due(&mut self, now: Instant) -> Option<Instant> {
        let gap = self.ops.moderator().gap();
        self.egress.due(now, gap)
    }

    /// Returns the cap on packets for one doorbell.
    pub fn tx_batch(&self) -> TxBatch {
        self.egress.cap()
    }

    /// Changes the cap on packets for one doorbell.
    pub fn set_tx_batch(&mut self, cap: TxBatch) {
        self.egress.set_cap(cap);
        self.slot.settings.set_tx_batch(self.egress.cap());
    }

    /// Returns the rate to which the discipline limits packets, if it limits them.
    pub fn shape(&self) -> Option<BitRate> {
        self.egress.rate()
    }

    /// Changes the rate to which the discipline limits packets, if it limits them.
    pub fn set_shape(&mut self, rate: BitRate, now: Instant) {
        self.egress.change_rate(rate, now);
        self.slot.settings.set_shape(self.egress.rate());
    }

    /// Takes the first `n` packets of `batch`; drops those without room.
    pub fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        if !self.writes() {
            return batch.discard_first(n, DropReason::UNSUPPORTED, mem);
        }
        self.given += n as u64;
        self.egress.enqueue(batch, n, now, mem);
    }

    /// Returns the number of packets given to the queue so far, sent or not. A superframe counts as
    /// one, also if the discipline cuts it.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Sends waiting packets that are due; returns true if any was sent.
    pub fn xmit(&mut self, now: Instant, mem: &mut Local) -> bool {
        let moved = self.egress.xmit(&mut self.ops, now, mem);
        if moved && self.sends.is_some() && self.has_qdisc() {
            // These packets came to the device now, and not when they were given to the queue.
            self.sends = None;
        }
        let waits = self.waiting();
        if waits != self.tallied {
            self.tally.set(waits);
            self.tallied = waits;
        }
        moved
    }

    /// Takes back packets that the device has sent; returns true if the device still has packets to
    /// send.
    pub fn sending(&mut self, mem: &mut Local) -> bool {
        self.writes() && self.ops.reap(mem) > 0
    }

    /// Drops the waiting packets.
    pub fn purge(&mut self, mem: &mut Local) {
        self.egress.purge(mem);
    }

    /// Arms the queue for `want`; returns false if the wanted event has occurred already. With
    /// `None` the device is not called and keeps its state; the worker does not watch the queue
    /// then.
    pub fn arm(&mut self, want: Option<Want>) -> bool {
        let armed = want.is_none_or(|want| self.ops.arm(want));
        if !armed {
            self.ops.stats().count_recheck();
        }
        armed
    }

    /// Records whether the worker's epoll set must watch this queue; returns true if this differs
    /// from before.
    pub fn watch_changed(&mut self, watched: bool) -> bool {
        std::mem::replace(&mut self.watched, watched) != watched
    }

    /// Counts a wake-up by this queue.
    pub fn woken(&mut self) {
        self.ops.irq(false);
    }

    /// Counts the end of a hold, if the queue was in one; returns true if so.
    pub fn hold_ended(&mut self) -> bool {
        if self.held {
            self.ops.irq(true);
        }
        self.held
    }

    /// Forgets a hold that the worker does not sleep for, so that its end is not compared with a
    /// timer's.
    pub fn forget_hold(&mut self) {
        self.ops.moderator().forget_hold();
    }

    /// Returns true if the next decision would compare its time, `now`, with the end of a hold.
    #[cfg(test)]
    pub fn measures_hold(&mut self, now: Instant) -> bool {
        self.ops.moderator().hold_ended(now)
    }

    /// Notes that the queue was not polled in this turn, because there is no room for its packets.
    pub fn left_alone(&mut self) {
        if self.reads() {
            self.ops.moderator().left_alone();
        }
    }

    /// Decides when the queue is polled again.
    pub fn rest(&mut self, now: Instant) -> Rest {
        if !self.reads() {
            return Rest::Device;
        }
        let rest = self.ops.moderator().rest(now);
        self.held = matches!(rest, Rest::Hold { .. });
        rest
    }

    /// Returns true if the queue is held so that a goal of delay is met.
    pub fn holds_for_goal(&mut self) -> bool {
        self.ops.moderator().holds_for_goal()
    }

    /// Lets the queue hold packets for a goal of delay, or not.
    pub fn set_holding(&mut self, holding: Holding) {
        self.ops.moderator().set_holding(holding);
    }

    /// Returns for how long the queue may stay unpolled while another queue is held; `None` if it
    /// may not, or if packets are not read from it.
    pub fn patience(&mut self) -> Option<Duration> {
        if self.held || !self.reads() { None } else { self.ops.moderator().patience() }
    }

    /// Returns true if the queue must be polled or armed while another queue is held.
    pub fn is_impatient(&mut self) -> bool {
        !self.held && self.reads() && self.ops.moderator().patience().is_none()
    }

    /// Changes the queue's moderation, each number to the nearest that its knob allows; returns the
    /// reason if it has no effect, or less than requested.
    pub fn set_moderation(&mut self, mode: Moderation) -> Option<String> {
        let mode = mode.clamped();
        let rx_ring_len = self.ops.caps().rx_ring_len;
        let moderator = self.ops.moderator();
        moderator.set_mode(mode);
        let gathers = moderator.gathers() && self.direction != Direction::Sink;
        self.slot.settings.set_moderation(mode, gathers);
        if gathers {
            return mode.warning(rx_ring_len?);
        }
        Some(NOT_QUEUED.into())
    }

    /// Stores the cost of a wake-up and of a packet that was learned at `now`.
    pub fn learned(&mut self, cost: Option<Cost>, now: Instant) {
        self.ops.learned(cost, now);
    }

    /// Returns the queue's counters.
    pub fn counts(&self) -> QueueCounts {
        self.ops.stats().counts()
    }

    /// Publishes the device's health if it has changed since the last call that published it.
    /// Returns `None` if not, and otherwise whether it is published now: if a reader has the lock,
    /// a later call publishes it.
    pub fn publish_change(&mut self) -> Option<bool> {
        let now = self.ops.health_kind();
        if now == self.published {
            return None;
        }
        let published = self.slot.publish(&mut self.ops, &self.egress);
        if published {
            self.published = now;
        }
        Some(published)
    }

    /// Publishes the statistics that only the queue's owner can read from the device.
    ///
    /// Cost: whatever the device's answers cost: a syscall for some, a histogram for others.
    #[must_use = "false: a reader has the lock, so a later call has to publish them"]
    pub fn publish(&mut self) -> bool {
        self.slot.publish(&mut self.ops, &self.egress)
    }

    /// Closes the device, which may wait until `until`, and publishes its last figures; waits if a
    /// reader has the lock. With `None` the device is not closed. Used when the worker ends.
    pub fn conclude(&mut self, until: Option<Instant>) {
        self.slot.conclude(&mut self.ops, &self.egress, until);
    }

    /// Returns true if packets wait for room that the device will signal.
    pub fn awaits_tx_space(&self) -> bool {
        self.backlog() > 0 && self.ops.caps().notifies_tx_space
    }

    /// Returns true while the device is down but may recover.
    pub fn is_down(&self) -> bool {
        self.ops.health_kind() == HealthKind::Down
    }

    /// Returns true if the device has failed for good.
    pub fn failed(&self) -> bool {
        self.ops.health_kind() == HealthKind::Failed
    }

    /// Returns true if the queue will never deliver a packet again.
    pub fn ended(&self) -> bool {
        self.ops.health_kind().ended()
    }
}

impl AsFd for Napi {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ops.as_fd()
    }
}
