//! A token bucket for each flow: a rate for each source, destination or connection.
//!
//! ```text
//!  packet ─number─► table ─► flow: bucket, packets ──► ready ─ one packet each, in turn ─► port
//!                                     ▲                  │
//!                                     └── wheel ◄────────┘ too few tokens: until there are
//! ```

use std::time::Instant;

use linerate_port::segment;
use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::cut::Cuts;
use super::flow::Key;
use super::flows::Flows;
use super::tbf::Rate;
use super::{Limit, Qdisc, QdiscCounts};

/// Greatest number of flows.
pub(super) const FLOWS_MAX: usize = 1 << 20;

/// A rate and a burst for each flow.
///
/// In any time `t` a flow sends no more than `rate * t` and a burst, or `rate * t` and one whole
/// superframe if that is longer than a burst. Packets that arrive faster wait, up to a limit for
/// each flow; further packets are dropped as `flow_limit`. A flow holds no more packets, and no
/// more bytes, than all flows together may still take, so a flow alone holds half of the limit for
/// all, and a few floods leave room for others. A packet longer than the burst that is no
/// superframe is dropped as `too_long`. Packets of a flow stay in order.
///
/// A superframe that takes longer than 1 ms at the rate, or is longer than the burst, is cut into
/// its segments when it is enqueued; limits and counts see the segments, so where superframes of 64
/// KiB arrive, a flow needs more than the 64 packets that it may hold by default. A superframe is
/// dropped uncut if its flow can hold no further packet. It stays whole in the same cases as in a
/// [`Tbf`](super::Tbf), and then takes tokens for the bytes of its segments
/// ([`segment::wire_bytes`]). If these are more than the burst, it leaves once a whole burst is
/// free, and the next packets of its flow wait until the rate has paid for it.
///
/// When the table is full, the discipline evicts a flow without waiting packets. It looks at the
/// next eight flows and evicts the first that was not used since it last looked; if all were used,
/// the first of the eight. If each of them has packets, and fewer packets wait than there are flows,
/// it evicts the first without packets of the next 72. So a flood of flows with one packet each
/// evicts mostly flows of the flood; a superframe that is cut counts as several packets. A flow
/// whose rate has not paid yet for a whole superframe is evicted only if each of the eight is such a
/// flow or has waiting packets. An evicted flow that sends again begins with a full burst.
///
/// ```
/// # use linerate_datapath as linerate;
/// use linerate::qdisc::{FlowTbf, Key};
///
/// // 10 Mbit/s a source, bursts of 64 KiB, up to 100,000 sources.
/// let limit = FlowTbf::new(Key::SrcIp, 10_000_000, 65_536, 100_000);
/// ```
#[derive(Debug)]
pub struct FlowTbf {
    cuts: Cuts,
    /// Packets and superframes that are not cut any more.
    flows: Flows,
}

impl FlowTbf {
    /// Creates a rate limit for each of up to `flows` flows, 1 to 1,048,576: `rate_bps` in bits a
    /// second, 1 to 10 Tbit/s, after bursts of up to `burst_bytes`.
    ///
    /// A burst should last for 50 us at least: waiting flows are served every 16 us. `flows` should
    /// exceed the limit of waiting packets: a flow with waiting packets is not evicted, so otherwise
    /// flows over their rate can keep all places, and packets of others are dropped.
    #[must_use]
    pub fn new(key: Key, rate_bps: u64, burst_bytes: u64, flows: usize) -> FlowTbf {
        let rate = Rate::new(rate_bps, burst_bytes);
        let flows = Flows::new(key, rate, flows.clamp(1, FLOWS_MAX));
        FlowTbf { cuts: Cuts::new(rate.whole_bytes(), rate.burst_bytes()), flows }
    }

    /// Sets the limit for all flows together, by default 1024 packets, and the most packets of one
    /// flow, by default 64. A flow alone holds at most half of the limit for all, because other
    /// flows need room. While packets wait, the limit of packets does not grow, and neither limit
    /// falls below what waits.
    #[must_use]
    pub fn limits(mut self, all: Limit, flow_packets: u32) -> FlowTbf {
        self.flows.set_limits(all, flow_packets);
        self
    }

    /// Returns the number of flows in the table.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Enqueues the first packet of `batch`, a superframe: whole, or as its segments.
    #[inline(never)]
    fn enqueue_superframe(&mut self, batch: &mut Batch, mem: &mut Local) {
        let Some(skb) = batch.iter().next() else { return };
        let headers = segment::wire_bytes(skb).saturating_sub(skb.len() as u64);
        // No full segment would have room.
        if !self.flows.is_full(skb)
            && let Some(segments) = self.cuts.cut_first(batch, mem)
        {
            return self.flows.enqueue(segments, usize::MAX, 0, mem);
        }
        self.flows.enqueue(batch, 1, headers, mem);
    }
}

impl Qdisc for FlowTbf {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        self.flows.set_time(now);
        let mut left = n.min(batch.len());
        while left > 0 {
            let superframe = batch.iter().take(left).position(|skb| skb.offload().is_gso());
            let before = superframe.unwrap_or(left);
            self.flows.enqueue(batch, before, 0, mem);
            left -= before;
            if superframe.is_some() {
                self.enqueue_superframe(batch, mem);
                left -= 1;
            }
        }
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, _mem: &mut Local) -> Moved {
        self.flows.set_time(now);
        self.flows.dequeue(out, most)
    }

    fn deadline(&self) -> Option<Instant> {
        self.flows.deadline()
    }

    fn is_full_for(&self, skb: &Skb) -> bool {
        self.flows.is_full(skb)
    }

    fn counts(&self) -> QdiscCounts {
        self.flows.counts()
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        self.flows.purge(reason, mem);
    }
}
