//! A driver's queue for all callers of the library: prepares, counts and moderates packets in one
//! place.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use linerate_skb::{Batch, Local, Moved, Pool, Result};

use crate::caps::{Caps, Copies, Origin};
use crate::moderation::{Cost, HoldControl, Moderation, Moderator};
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::{Counters, QueueStats};
use crate::txprep::{TxPrep, Waits};

/// A driver's queue with transmit preparation in front of it, for all callers of the library.
pub struct DriverQueue {
    prep: TxPrep,
    ops: Box<dyn QueueOps>,
    stats: Arc<QueueStats>,
    origin: Origin,
    /// Packets that were counted as sent and lost, as far as they are taken back from the counters.
    tx_lost: Moved,
    moderator: Moderator,
    /// A batch without packets.
    none: Batch,
}

impl DriverQueue {
    /// Creates the queue, with the transmit preparation that the driver's caps require.
    #[must_use]
    pub fn new(mut ops: Box<dyn QueueOps>) -> DriverQueue {
        let caps = ops.caps();
        let (prep, origin) = (TxPrep::new(&caps), caps.origin);
        let from_outside = matches!(origin, Origin::Device | Origin::Counted);
        let gathers = from_outside && ops.counters().pace.is_none();
        let mut moderator = Moderator::new(Moderation::default(), gathers);
        moderator.set_ring_len(caps.rx_ring_len);
        moderator.set_gathers(caps.rx_gathers);
        let (stats, tx_lost, none) = (Arc::default(), Moved::default(), Batch::with_capacity(0));
        DriverQueue { prep, ops, stats, origin, tx_lost, moderator, none }
    }

    /// Wraps the driver's queue in `wrap`, below the transmit preparation, which keeps the packets
    /// that wait in it.
    pub(crate) fn wrap(
        self,
        wrap: impl FnOnce(Box<dyn QueueOps>) -> Result<Box<dyn QueueOps>>,
    ) -> Result<DriverQueue> {
        let DriverQueue { prep, ops, stats, tx_lost, moderator, .. } = self;
        let mut queue = DriverQueue { stats, tx_lost, ..DriverQueue::new(wrap(ops)?) };
        queue.prep = prep.for_caps(&queue.ops.caps());
        queue.moderator.set_mode(moderator.mode());
        Ok(queue)
    }

    /// Makes the queue copy packets of other pools into `pool`'s frames before they are sent, if
    /// the driver passes frames on. Callers use the queue only with hot lists of `pool`.
    pub fn keep_to(&mut self, pool: &Pool) {
        if self.ops.caps().copies == Copies::Never {
            self.prep.keep_to(pool);
        }
    }

    /// Receives up to `budget` packets and counts them.
    #[inline]
    pub fn rx(&mut self, mem: &mut Local, batch: &mut Batch, budget: usize) -> usize {
        if self.prep.is_busy() {
            self.go_on(mem);
        }
        let budget = budget.min(batch.spare());
        let before = batch.len();
        let moved = self.ops.rx(mem, batch, budget);
        // Count the packets in the batch, not the number that the driver returned: the ledger
        // counts packets.
        let n = batch.len().saturating_sub(before);
        debug_assert_eq!(moved.bytes, batch.count_from(before).bytes, "as the driver counts them");
        if n > 0 && self.origin == Origin::Device {
            mem.count_received(n);
        }
        self.stats.count_rx(n as u64, moved.bytes);
        self.moderator.received(n, moved.bytes, budget);
        n
    }

    /// Counts the end of a sleep that this queue caused, by its device or, if `by_timer`, by the
    /// timer of a hold. See [`QueueOps::irq`].
    pub fn irq(&mut self, by_timer: bool) {
        if by_timer {
            self.stats.count_hold_end();
        } else {
            self.stats.count_wakeup();
        }
        self.moderator.irq();
        self.ops.irq();
    }

    /// Returns the queue's moderation state, which includes the packets received.
    pub fn moderator(&mut self) -> &mut Moderator {
        &mut self.moderator
    }

    /// Passes the cost of a wake-up and of a packet that was learned at `now` to the moderation.
    pub fn learned(&mut self, cost: Option<Cost>, now: Instant) {
        // A device that was down and is up again may have a ring of another length.
        let rx_ring_len = self.ops.caps().rx_ring_len;
        self.moderator.set_ring_len(rx_ring_len);
        if let Some(cost) = cost {
            self.moderator.learned(cost, now);
        }
    }

    /// Makes the descriptor readable at `at`, without arming the device. See [`QueueOps::hold`].
    pub fn hold(&mut self, at: Instant) -> bool {
        self.ops.hold(at)
    }

    /// Returns the control of the device's own hold. See [`QueueOps::hold_control`].
    #[must_use]
    pub fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        self.ops.hold_control()
    }

    /// Prepares and sends packets from the front of `batch`, and counts them; returns how many
    /// packets the device accepted. A call with an empty batch sends those that wait in the
    /// preparation, and lets wrappers send those that they withhold.
    #[inline]
    pub fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> usize {
        if batch.is_empty() && !self.prep.is_busy() && self.ops.withheld() == 0 {
            return 0;
        }
        let moved = self.prep.xmit(self.ops.as_mut(), mem, batch);
        self.stats.count_tx(moved.packets as u64, moved.bytes);
        moved.packets
    }

    /// Returns the device without the transmit preparation, for calls with parts of `batch`; `None`
    /// if one of the packets needs preparation, or if packets wait in it.
    ///
    /// Cost: a look at each packet. A call of the result costs what the driver's does, and its
    /// packets are counted once, when it is dropped.
    #[inline]
    pub fn unprepared(&mut self, batch: &Batch) -> Option<Unprepared<'_>> {
        let DriverQueue { prep, ops, stats, .. } = self;
        let sent = Moved::default();
        prep.has_none_of(batch).then(|| Unprepared { ops: ops.as_mut(), stats, sent })
    }

    /// Returns the number of packets in the preparation: they have left their batch, and wait for
    /// room or for a frame.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.prep.waiting()
    }

    /// Returns the number of packets that wrappers withhold. See [`QueueOps::withheld`].
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.ops.withheld()
    }

    /// Arms the descriptor for `want`, and for the room or frame that packets in the preparation
    /// wait for; returns false if one of them is already available. See [`QueueOps::arm`].
    pub fn arm(&mut self, want: Want) -> bool {
        match self.prep.waits() {
            None => self.ops.arm(want),
            Some(Waits::Room) if want.frames() => self.ops.arm(Want::Both),
            Some(Waits::Room) => self.ops.arm(want),
            Some(Waits::Frame(at)) if at <= Instant::now() => false,
            // The waiting packet needs a frame before it can use room, so do not arm for room.
            Some(Waits::Frame(at)) if want.frames() => {
                self.ops.arm(Want::Frames) && self.ops.alarm(at)
            }
            // Packets that arrive meanwhile must not wake the caller.
            Some(Waits::Frame(at)) => {
                self.ops.hold(at) || {
                    // Packets that are there already end no wait for room.
                    let _ = self.ops.arm(Want::Frames);
                    self.ops.alarm(at)
                }
            }
        }
    }

    /// Frees the packets that the device has sent; returns how many the device and the preparation
    /// still hold.
    pub fn reap(&mut self, mem: &mut Local) -> usize {
        if self.prep.is_busy() {
            self.go_on(mem);
        }
        self.ops.reap(mem) + self.prep.waiting()
    }

    /// Closes the device, so that [`DriverQueue::counters`] then counts what the device lost. See
    /// [`QueueOps::close`].
    pub fn close(&mut self, until: Instant) {
        self.ops.close(until);
    }

    /// Tries again to send the packets that wait in the preparation.
    #[cold]
    fn go_on(&mut self, mem: &mut Local) {
        let moved = self.prep.xmit(self.ops.as_mut(), mem, &mut self.none);
        self.stats.count_tx(moved.packets as u64, moved.bytes);
    }

    /// Returns the state of the device.
    #[must_use]
    pub fn health(&self) -> Health {
        self.ops.health()
    }

    /// Returns the state of the device, without its error. See [`QueueOps::health_kind`].
    #[must_use]
    pub fn health_kind(&self) -> HealthKind {
        self.ops.health_kind()
    }

    /// Returns the driver's counters; the copied bytes include those of segments and of packets of
    /// other pools. Packets that the device has lost since the last call no longer count as sent.
    pub fn counters(&mut self) -> Counters {
        let mut counters = self.ops.counters();
        let (lost, before) = (counters.tx_lost, self.tx_lost);
        if lost != before {
            let packets = lost.packets.saturating_sub(before.packets);
            self.stats.take_back_tx(packets as u64, lost.bytes.saturating_sub(before.bytes));
            self.tx_lost = lost;
        }
        let (prepared, by_driver) = (self.prep.copied_bytes(), &mut counters.driver.copied_bytes);
        // A driver that copies nothing reports `None`; count from 0 then, because the preparation
        // copies.
        *by_driver = by_driver.or(self.prep.has_border().then_some(0)).map(|n| n + prepared);
        counters
    }

    /// Returns the current capabilities of the queue.
    #[must_use]
    pub fn caps(&self) -> Caps {
        let caps = self.ops.caps();
        if self.prep.has_border() { Caps { copies: Copies::Sometimes, ..caps } } else { caps }
    }

    /// Returns the queue's live counters.
    #[must_use]
    pub fn stats(&self) -> &Arc<QueueStats> {
        &self.stats
    }
}

/// A device for packets that need no preparation; counts what it sent when it is dropped.
pub struct Unprepared<'a> {
    ops: &'a mut dyn QueueOps,
    stats: &'a QueueStats,
    sent: Moved,
}

impl Unprepared<'_> {
    /// Sends packets from the front of `batch`, which [`DriverQueue::unprepared`] has seen; returns
    /// how many the device accepted.
    #[inline]
    pub fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> usize {
        let moved = self.ops.xmit(mem, batch);
        self.sent += moved;
        moved.packets
    }
}

impl Drop for Unprepared<'_> {
    fn drop(&mut self) {
        self.stats.count_tx(self.sent.packets as u64, self.sent.bytes);
    }
}

impl AsFd for DriverQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ops.as_fd()
    }
}
