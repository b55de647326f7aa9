//! The transmit side of a queue: packets waiting for its transmit ring, and the calls that send
//! them.
//!
//! ```text
//!  dispatch ─► discipline, if one ─► fifo ──────────────► xmit: one call, one doorbell
//!                                      └─► list: a cap's worth ─┘
//! ```
//!
//! The list is post 002's `skb_blist`: there is none until a cap needs it, and it is freed with the
//! queue. What the device has no room for stays where it is, in order, and goes first the next
//! time. The device is never asked for its free slots: it takes what it has room for. If it takes
//! nothing, others are added behind what it refused, up to the cap, because a driver may learn only
//! from them that the device never takes the first one. With a cap of 1 there are none, so the
//! driver has to give that one up after a time.
//!
//! Owner: the worker. A cap is changed between two turns.

use std::time::{Duration, Instant};

use linerate_port::DriverQueue;
use linerate_skb::{Batch, DropReason, Local, Moved};

use crate::qdisc::{BitRate, Qdisc, QdiscCounts};
use crate::tx_batch::{AUTO_BYTES, AUTO_PACKETS, TxBatch};
use crate::waits::Flushes;

/// Limit for the packets sent in one turn; only a fifo with more packets exceeds it. The limit
/// exists because the worker's other queues wait meanwhile.
const TURN: usize = 1024;

/// The packets waiting for one transmit ring.
pub(crate) struct Egress {
    fifo: Batch,
    cap: TxBatch,
    /// Number of packets up to which the whole fifo goes to the device in one call, without a list.
    whole: usize,
    /// The packets of one transmit call, moved here from the fifo; `None` until a cap needs the
    /// list.
    list: Option<Batch>,
    /// Number of packets on the list after the last call that used it.
    listed: usize,
    qdisc: Option<Box<dyn Qdisc>>,
    /// True if wrappers withhold packets that only a call of the device's `xmit` makes them send.
    withholds: bool,
    /// True if every call sends in parts: there is a discipline, or wrappers withhold packets.
    in_parts: bool,
    /// Counts of the transmit calls.
    pub flushes: Flushes,
}

impl Egress {
    /// Creates an empty transmit side; without a discipline it holds at most `backlog` waiting
    /// packets.
    pub fn new(backlog: usize, qdisc: Option<Box<dyn Qdisc>>) -> Egress {
        let in_parts = qdisc.is_some();
        let fifo = Batch::with_capacity(if in_parts { AUTO_PACKETS } else { backlog });
        let mut egress = Egress {
            fifo,
            cap: TxBatch::Auto,
            whole: AUTO_PACKETS,
            list: None,
            listed: 0,
            qdisc,
            withholds: false,
            in_parts,
            flushes: Flushes::default(),
        };
        egress.set_cap(TxBatch::Auto);
        egress
    }

    /// Returns the cap on packets for one transmit call.
    pub fn cap(&self) -> TxBatch {
        self.cap
    }

    /// Changes the cap; the first cap that needs a list allocates it.
    ///
    /// Packets on the list leave before those in the fifo. If they are more than the new cap, they
    /// go back to the front of the fifo, so that no later call exceeds the cap.
    pub fn set_cap(&mut self, cap: TxBatch) {
        self.cap = cap.clamped();
        self.whole = match self.cap {
            TxBatch::Auto => AUTO_PACKETS,
            TxBatch::Packets(packets) => packets as usize,
        };
        if self.listed > self.whole {
            self.unlist();
        }
        let needed = match self.cap {
            TxBatch::Auto => self.fifo.capacity(),
            TxBatch::Packets(packets) => self.fifo.capacity().min(packets as usize),
        };
        // A fifo that never exceeds this length is never split.
        if self.fifo.capacity() > self.whole
            && self.list.as_ref().is_none_or(|list| list.capacity() < needed)
        {
            let mut list = Batch::with_capacity(needed);
            if let Some(old) = &mut self.list {
                old.move_to(&mut list, old.len());
            }
            self.list = Some(list);
        }
    }

    /// Returns the rate of the discipline, if it has one.
    pub fn rate(&self) -> Option<BitRate> {
        self.qdisc.as_ref().and_then(|qdisc| qdisc.rate())
    }

    /// Changes the rate of the discipline, if it has one.
    pub fn change_rate(&mut self, rate: BitRate, now: Instant) {
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.change_rate(rate, now);
        }
    }

    /// Sets whether wrappers withhold packets that only a call of the device's `xmit` makes them
    /// send.
    pub fn set_withholds(&mut self, withholds: bool) {
        self.withholds = withholds;
        self.in_parts = withholds || self.qdisc.is_some();
    }

    /// Moves the packets on the list to the front of the fifo.
    #[cold]
    fn unlist(&mut self) {
        let Some(list) = &mut self.list else { return };
        // List and fifo together have at most as many packets as fit in the fifo: see `spare`.
        let mut fifo = Batch::with_capacity(self.fifo.capacity());
        for batch in [list, &mut self.fifo] {
            batch.move_to(&mut fifo, batch.len());
        }
        self.fifo = fifo;
        self.listed = 0;
    }

    /// Returns how many more packets may wait.
    pub fn room(&self) -> usize {
        if self.qdisc.is_some() { usize::MAX } else { self.spare() }
    }

    /// Returns how many more packets the fifo takes. Those on the list count, too: the pool has
    /// frames for as many packets as fit in the fifo.
    fn spare(&self) -> usize {
        self.fifo.spare().saturating_sub(self.listed)
    }

    /// Returns the number of packets in the fifo and the list, which wait for room in the device.
    pub fn ready(&self) -> usize {
        self.fifo.len() + self.list_len()
    }

    /// Returns the number of all waiting packets: for room in the device, or for their time in the
    /// discipline.
    pub fn waiting(&self) -> usize {
        let held = self.qdisc.as_ref().map_or(0, |qdisc| qdisc.counts().queued.packets);
        self.ready() + held
    }

    fn list_len(&self) -> usize {
        self.list.as_ref().map_or(0, Batch::len)
    }

    /// Returns the time from which the discipline has a packet to send; `None` if it has none, or
    /// if packets in the fifo or the list wait for room.
    pub fn deadline(&self) -> Option<Instant> {
        let qdisc = self.qdisc.as_ref().filter(|_| self.ready() == 0)?;
        qdisc.deadline()
    }

    /// Returns the time at which to send next: the deadline, or up to `gap` from now if more
    /// packets become due until then and the rate does not fall.
    pub fn due(&self, now: Instant, gap: Duration) -> Option<Instant> {
        let due = self.deadline()?;
        let latest = self.qdisc.as_ref().and_then(|qdisc| qdisc.latest());
        match latest.zip(now.checked_add(gap)) {
            Some((latest, gathered)) if due > now => Some(due.max(latest.min(gathered))),
            _ => Some(due),
        }
    }

    /// Returns the discipline's counts, if there is one.
    pub fn qdisc_counts(&self) -> Option<QdiscCounts> {
        self.qdisc.as_ref().map(|qdisc| qdisc.counts())
    }

    /// Takes the first `n` packets of `batch`; without a discipline, drops packets that do not fit
    /// as `tx_full`.
    pub fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        if let Some(qdisc) = &mut self.qdisc {
            return qdisc.enqueue(batch, n, now, mem);
        }
        let fits = if self.listed == 0 { n } else { n.min(self.spare()) };
        let took = batch.move_to(&mut self.fifo, fits);
        if took < n {
            batch.discard_first(n - took, DropReason::TX_FULL, mem);
        }
    }

    /// Sends waiting packets, with one doorbell for each `cap` packets; returns true if any was
    /// sent.
    #[inline]
    pub fn xmit(&mut self, ops: &mut DriverQueue, now: Instant, mem: &mut Local) -> bool {
        if self.in_parts || self.fifo.len() > self.whole || self.listed > 0 {
            return self.xmit_divided(ops, now, mem);
        }
        if self.fifo.is_empty() && ops.waiting() == 0 {
            return false;
        }
        flush(&mut self.flushes, ops, mem, &mut self.fifo)
    }

    /// Sends waiting packets with more than one doorbell.
    #[inline(never)]
    fn xmit_divided(&mut self, ops: &mut DriverQueue, now: Instant, mem: &mut Local) -> bool {
        let moved = match self.xmit_by_cap(ops, now, mem) {
            Some(moved) => moved,
            None => self.xmit_parts(ops, now, mem),
        };
        self.listed = self.list_len();
        moved
    }

    /// Sends the fifo with a doorbell for each `cap` packets, until the device is full: as
    /// [`Egress::xmit_parts`], with one look at all packets where that looks at those of each call.
    /// Returns `None`, and sends nothing, if there is more to do: packets on the list, a discipline,
    /// a cap of bytes, or preparation.
    // With a cap of 1 it takes 70 instructions a packet less (`cargo xtask count`, null_cap_1).
    fn xmit_by_cap(
        &mut self,
        ops: &mut DriverQueue,
        now: Instant,
        mem: &mut Local,
    ) -> Option<bool> {
        if self.in_parts || self.listed > 0 || self.cap == TxBatch::Auto {
            return None;
        }
        let (list, mut moved) = (self.list.as_mut()?, false);
        let mut device = ops.unprepared(&self.fifo)?;
        while !self.fifo.is_empty() {
            let mut part = &mut self.fifo;
            if part.len() > self.whole {
                part.move_to(list, self.whole);
                part = &mut *list;
            }
            let before = part.len();
            let begun = self.flushes.begin();
            let sent = device.xmit(mem, part);
            self.flushes.end(begun, sent);
            let left = part.len();
            moved |= sent > 0 || left < before;
            if left > 0 {
                if left == before {
                    self.top_up(now, mem);
                }
                break;
            }
        }
        Some(moved)
    }

    /// Sends the list and the fifo in parts, then the discipline's packets, until the device is
    /// full.
    fn xmit_parts(&mut self, ops: &mut DriverQueue, now: Instant, mem: &mut Local) -> bool {
        let (mut moved, mut left) = (false, TURN.max(self.ready()));
        loop {
            if self.ready() == 0
                && let Some(qdisc) = &mut self.qdisc
            {
                let most = Moved { packets: left.min(self.fifo.capacity()), bytes: u64::MAX };
                qdisc.dequeue(&mut self.fifo, most, now, mem);
            }
            let part = match &mut self.list {
                Some(list) if !list.is_empty() => list,
                Some(list) if self.fifo.len() > self.whole => {
                    let len = part_len(self.cap, &self.fifo);
                    if len < self.fifo.len() {
                        self.fifo.move_to(list, len);
                        list
                    } else {
                        &mut self.fifo
                    }
                }
                _ => &mut self.fifo,
            };
            let before = part.len();
            if before == 0 && ops.waiting() == 0 {
                return moved || (self.withholds && release(&mut self.flushes, ops, mem, part));
            }
            moved |= flush(&mut self.flushes, ops, mem, part);
            left = left.saturating_sub(before);
            let (after, is_full) = (part.len(), !part.is_empty() || ops.waiting() > 0);
            if after > 0 && after == before {
                self.top_up(now, mem);
            }
            if is_full || left == 0 {
                return moved;
            }
        }
    }

    /// Adds packets behind those that the device has refused, for the next call: from the fifo to
    /// the list, up to the cap, and from the discipline to the fifo.
    #[cold]
    fn top_up(&mut self, now: Instant, mem: &mut Local) {
        if let Some(list) = self.list.as_mut().filter(|list| !list.is_empty()) {
            self.fifo.move_to(list, self.whole.saturating_sub(list.len()));
        }
        self.listed = self.list_len();
        let most = Moved { packets: self.spare(), bytes: u64::MAX };
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.dequeue(&mut self.fifo, most, now, mem);
        }
    }

    /// Drops all packets that wait.
    pub fn purge(&mut self, mem: &mut Local) {
        if let Some(qdisc) = &mut self.qdisc {
            qdisc.purge(DropReason::STOPPED, mem);
        }
        for batch in self.list.iter_mut().chain([&mut self.fifo]) {
            batch.discard_first(batch.len(), DropReason::STOPPED, mem);
        }
        self.listed = 0;
    }
}

/// Returns how many packets of a fifo that is longer than the cap go with the next doorbell.
fn part_len(cap: TxBatch, fifo: &Batch) -> usize {
    match cap {
        TxBatch::Packets(packets) => packets as usize,
        TxBatch::Auto => {
            let bytes = crate::qdisc::first_with(fifo, fifo.len(), AUTO_BYTES);
            bytes.packets.max(AUTO_PACKETS)
        }
    }
}

/// Sends packets to a device, with one doorbell, or several, if superframes are cut in front of the
/// device; returns true if any packet left the batch or was sent.
// The compiler does not inline it by itself: a turn with one packet then takes 28 instructions more.
#[inline(always)]
fn flush(flushes: &mut Flushes, ops: &mut DriverQueue, mem: &mut Local, batch: &mut Batch) -> bool {
    let before = batch.len();
    let begun = flushes.begin();
    let sent = ops.xmit(mem, batch);
    let took = before - batch.len();
    // Not all packets that have left the batch were accepted: a driver drops some, and a superframe
    // may wait for room in the preparation. Its segments leave in later calls, too.
    flushes.end(begun, sent);
    sent > 0 || took > 0
}

/// Makes wrappers send packets that they withhold; returns true if any left them. `empty` is a
/// batch without packets.
///
/// Most calls find that no packet may leave yet, so only one that sends packets counts as a flush.
/// Packets that the wrapper counted as sent when it took them are movement, and no second flush.
#[cold]
fn release(
    flushes: &mut Flushes,
    ops: &mut DriverQueue,
    mem: &mut Local,
    empty: &mut Batch,
) -> bool {
    let before = ops.withheld();
    let sent = ops.xmit(mem, empty);
    if sent > 0 {
        flushes.count(sent);
    }
    sent > 0 || ops.withheld() < before
}

#[cfg(test)]
mod tests;
