//! Queueing disciplines: decide in which order, and when, packets are sent by a port.
//!
//! ```text
//!  dispatch ──enqueue──► discipline: holds, orders, delays, drops ──dequeue──► fifo ──xmit──► device ring
//! ```
//!
//! Owner: the worker or program that has the port, one thread at a time. A discipline takes every
//! packet that it is given, and drops by limits of its own: only a queue that is allowed to grow
//! can be ordered, shaped or managed. Each drop has a reason, and `enqueued = dequeued + dropped +
//! queued` holds between any two calls. It allocates when it is made and never again; time comes in
//! with each batch, and it reads no clock.
//!
//! Sources: Linux net/sched (pfifo_fast, tbf, fq_codel) for names and defaults, RFC 8289 and RFC
//! 8290 for CoDel and FQ-CoDel. docs/adr/0002-backpressure.md says when which queue drops.

mod account;
mod bit_rate;
mod codel;
mod cut;
mod fifo;
mod flow;
mod flow_tbf;
mod flows;
mod fq_codel;
mod prio;
mod shaped;
mod shelf;
mod table;
mod tbf;
mod text;
mod time;
mod wheel;

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use crate::tx_batch::AUTO_PACKETS;

pub use bit_rate::BitRate;
pub use fifo::Fifo;
pub use flow::Key;
pub use flow_tbf::FlowTbf;
pub use fq_codel::{FqCodel, FqCodelConfig};
pub use prio::PfifoFast;
pub use shaped::Shaped;
pub use tbf::{RATE_MAX_BPS, Tbf};
pub use text::Setup;

/// A queueing discipline: a queue in front of a port that decides which packet leaves next, and
/// when.
///
/// A program can bring its own. Calls come from one thread at a time; none of them may block.
pub trait Qdisc: Send {
    /// Takes the first `n` packets of `batch`; drops those that exceed its limits.
    ///
    /// Shape:  batch[0..n) -> the discipline, which holds or drops each of them; batch[n..) stays
    ///         the caller's.
    /// Errors: none; a drop is counted in `mem`'s ledger, with its reason.
    /// Cost:   no allocation, lock or clock; dropped packets are freed in bulk.
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local);

    /// Moves packets that are due to the end of `out`; returns their number and bytes.
    ///
    /// Shape:  the discipline -> out[len..len+k), k <= `most.packets`, k <= the room in `out`; it
    ///         stops behind the packet with which they have `most.bytes`.
    /// Errors: none; a discipline that drops here, as CoDel does, counts it in `mem`'s ledger.
    /// Cost:   as [`Qdisc::enqueue`].
    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, mem: &mut Local) -> Moved;

    /// Returns the earliest time at which a packet may be sent, which may have passed; `None` if
    /// the discipline holds none.
    fn deadline(&self) -> Option<Instant>;

    /// Returns the time up to which the packets behind [`Qdisc::deadline`] may gather, so that one
    /// wake-up sends several of them; the rate must not fall by it. Without such a time it is the
    /// deadline itself.
    fn latest(&self) -> Option<Instant> {
        self.deadline()
    }

    /// Returns true if `skb`, or each full segment of it, would be dropped for lack of room, so that a
    /// rate in front of the discipline does not cut it into segments. A discipline that drops others
    /// in its place, as [`FqCodel`] does, returns false: whole, it would delay the packets of other
    /// flows.
    fn is_full_for(&self, skb: &Skb) -> bool {
        let _ = skb;
        false
    }

    /// Returns the rate to which the discipline limits all packets together; `None` if it limits
    /// none.
    fn rate(&self) -> Option<BitRate> {
        None
    }

    /// Changes the rate of [`Qdisc::rate`] while packets wait, which stay in order; returns false,
    /// and changes nothing, if there is none.
    fn change_rate(&mut self, rate: BitRate, now: Instant) -> bool {
        let _ = (rate, now);
        false
    }

    /// Returns the discipline's counts since it was made.
    fn counts(&self) -> QdiscCounts;

    /// Drops all packets that the discipline holds, for `reason`.
    fn purge(&mut self, reason: DropReason, mem: &mut Local);
}

/// Counts of a discipline: `enqueued = dequeued + dropped + queued`. A superframe that is cut
/// ([`Tbf`], [`FlowTbf`]) counts as its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QdiscCounts {
    /// Packets enqueued so far.
    pub enqueued: Moved,
    /// Packets dequeued for the port so far.
    pub dequeued: Moved,
    /// Packets dropped, for any reason.
    pub dropped: Moved,
    /// Packets that wait now.
    pub queued: Moved,
    /// Packets marked with ECN as having experienced congestion, instead of being dropped.
    pub marked: u64,
    /// Flows evicted to make room for others.
    pub evicted: u64,
}

impl std::ops::AddAssign for QdiscCounts {
    fn add_assign(&mut self, more: QdiscCounts) {
        self.enqueued += more.enqueued;
        self.dequeued += more.dequeued;
        self.dropped += more.dropped;
        self.queued += more.queued;
        self.marked += more.marked;
        self.evicted += more.evicted;
    }
}

/// Most packets that a discipline can hold.
const PACKETS_MAX: usize = 1 << 20;

/// A limit on the packets and bytes that a discipline may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Most packets; a discipline reduces it to 2²⁰.
    pub packets: usize,
    /// Most bytes.
    pub bytes: u64,
}

impl Limit {
    /// Returns a limit of `packets`, at least one, without a limit of bytes.
    #[must_use]
    pub const fn packets(packets: usize) -> Limit {
        let packets = if packets == 0 { 1 } else { packets };
        Limit { packets, bytes: u64::MAX }
    }

    /// Adds a limit of bytes.
    #[must_use]
    pub const fn and_bytes(self, bytes: u64) -> Limit {
        Limit { bytes, ..self }
    }

    /// Returns the limit that a discipline can have: its memory is allocated for all packets at
    /// once.
    fn bounded(self) -> Limit {
        Limit { packets: self.packets.clamp(1, PACKETS_MAX), ..self }
    }

    /// Returns true if `held` exceeds the limit.
    const fn is_exceeded_by(self, held: Moved) -> bool {
        held.packets > self.packets || held.bytes > self.bytes
    }
}

/// Returns the least room in bytes for a packet, or for a full segment of a superframe, which is
/// longer than its payload; a shorter last segment alone is not worth a cut.
fn least_bytes(skb: &Skb) -> u64 {
    let offload = skb.offload();
    if offload.is_gso() { u64::from(offload.gso_size) + 1 } else { skb.len() as u64 }
}

/// Returns the number and bytes of the shortest part of the first `n` packets of `batch` that
/// reaches `bytes`; of all `n` if they have fewer bytes.
pub(crate) fn first_with(batch: &Batch, n: usize, bytes: u64) -> Moved {
    // A few packets most often fit together, and their sum takes less than a walk. Of many that
    // wait, those that are not taken are not read.
    let n = n.min(batch.len());
    if n <= AUTO_PACKETS || bytes == u64::MAX {
        let all = batch.count_first(n);
        if all.bytes <= bytes {
            return all;
        }
    }
    let mut first = Moved::default();
    for skb in batch.iter().take(n) {
        if first.bytes >= bytes {
            break;
        }
        first += Moved { packets: 1, bytes: skb.len() as u64 };
    }
    first
}

#[cfg(test)]
mod tests;
