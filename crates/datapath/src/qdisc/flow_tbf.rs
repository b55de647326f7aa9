//! A token bucket for each flow: a rate for each source, destination or connection.
//!
//! ```text
//!  packet ─number─► table ─► flow: bucket, packets ──► ready ─ one packet each, in turn ─► port
//!                                     ▲                  │
//!                                     └── wheel ◄────────┘ too few tokens: until there are
//! ```
//!
//! The state of a flow is 64 bytes, one cache line. When the table is full, a flow without waiting packets is evicted
//! for a new one.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved};

use super::account::Account;
use super::flow::{Key, Seed};
use super::shelf::{Chain, Held, Link, List, NONE, Shelf};
use super::table::Table;
use super::tbf::{Bucket, Rate};
use super::time::Clock;
use super::wheel::Wheel;
use super::{Limit, Qdisc, QdiscCounts};

/// Greatest number of flows.
const FLOWS_MAX: usize = 1 << 20;
/// Packets whose flows are looked up together, so that their cache misses overlap.
const TOGETHER: usize = 32;
/// Number of flows that are examined to choose one to evict.
const LOOKED_AT: usize = 8;
/// Default for the packets that all flows together may hold.
const PACKETS: usize = 1024;
/// Default for the packets that one flow may hold.
const FLOW_PACKETS: u32 = 64;

/// The state of a flow.
#[derive(Debug)]
#[repr(align(64))]
struct Flow {
    number: u64,
    bucket: Bucket,
    packets: List,
    next: u32,
    /// True if the flow is in the ready list or on the wheel.
    waits: bool,
    /// True if the flow has received another packet since it began, or since its last examination
    /// for eviction.
    is_used: bool,
}

const _: () = assert!(size_of::<Flow>() == 64);

impl Link for Flow {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A rate and a burst for each flow.
///
/// In any time `t` a flow sends no more than `rate * t + burst`. Packets that arrive faster wait, up to a limit for
/// each flow; further packets are dropped as `flow_limit`. A flow holds no more packets, and no more bytes, than all flows
/// together may still take, so a flow alone holds half of the limit for all, and a few floods leave room for others. A packet longer than the burst is dropped as `too_long`,
/// also a superframe: where these arrive, the burst must be 66 KiB at least. Packets of a flow stay in order.
///
/// When the table is full, the discipline evicts a flow without waiting packets. It looks at the next eight flows and
/// evicts the first that was not used since it last looked; if all were used, the first of the eight. So a flood of
/// flows with one packet each evicts mostly flows of the flood. An evicted flow that sends again begins with a full
/// burst.
///
/// ```
/// use linerate_datapath::qdisc::{FlowTbf, Key};
///
/// // 10 Mbit/s a source, bursts of 64 KiB, up to 100,000 sources.
/// let limit = FlowTbf::new(Key::SrcIp, 10_000_000, 65_536, 100_000);
/// ```
#[derive(Debug)]
pub struct FlowTbf {
    key: Key,
    seed: Seed,
    rate: Rate,
    flows: Vec<Flow>,
    flows_max: usize,
    table: Table,
    /// The index of the next flow to examine for eviction.
    hand: usize,
    flow_packets: u32,
    limit: Limit,
    shelf: Shelf,
    ready: Chain,
    wheel: Wheel,
    account: Account,
    clock: Clock,
}

impl FlowTbf {
    /// Creates a rate limit for each of up to `flows` flows, 1 to 1,048,576: `rate_bps` in bits a
    /// second, 1 to 10 Tbit/s, after bursts of up to `burst_bytes`.
    ///
    /// A burst should last for 50 us at least: waiting flows are served every 16 us.
    #[must_use]
    pub fn new(key: Key, rate_bps: u64, burst_bytes: u64, flows: usize) -> FlowTbf {
        let flows_max = flows.clamp(1, FLOWS_MAX);
        FlowTbf {
            key,
            seed: Seed::random(),
            rate: Rate::new(rate_bps, burst_bytes),
            flows: Vec::with_capacity(flows_max),
            flows_max,
            table: Table::new(flows_max),
            hand: 0,
            flow_packets: FLOW_PACKETS,
            limit: Limit::packets(PACKETS),
            shelf: Shelf::new(PACKETS),
            ready: Chain::default(),
            wheel: Wheel::new(),
            account: Account::new(),
            clock: Clock::default(),
        }
    }

    /// Sets the limit for all flows together, by default 1024 packets, and the most packets of one
    /// flow, by default 64. A flow alone holds at most half of the limit for all, because other
    /// flows need room.
    #[must_use]
    pub fn limits(mut self, all: Limit, flow_packets: u32) -> FlowTbf {
        self.limit = all.bounded();
        self.shelf = Shelf::new(self.limit.packets);
        self.flow_packets = flow_packets.max(1);
        self
    }

    /// Returns the number of flows in the table.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    #[inline]
    fn find(&self, number: u64) -> u32 {
        self.table.find(number, |i| self.is(i, number)).unwrap_or(NONE)
    }

    #[inline]
    fn is(&self, i: u32, number: u64) -> bool {
        self.flows.get(i as usize).is_some_and(|flow| flow.number == number)
    }

    /// Creates a flow and returns its index; [`NONE`] if the table is full and no flow can be
    /// evicted.
    #[cold]
    fn begin(&mut self, number: u64, now_ns: u64) -> u32 {
        let flow = Flow {
            number,
            bucket: self.rate.bucket(now_ns),
            packets: List::default(),
            next: NONE,
            waits: false,
            is_used: false,
        };
        let i = if self.flows.len() < self.flows_max {
            self.flows.push(flow);
            self.flows.len() - 1
        } else {
            let Some(i) = self.next_idle() else { return NONE };
            let flows = &self.flows;
            self.table.remove(flows[i].number, i as u32, |i| flows[i as usize].number);
            self.account.evict();
            self.flows[i] = flow;
            i
        };
        self.table.insert(number, i as u32);
        i as u32
    }

    /// Returns the index of the flow to evict: among the next flows without packets, the first
    /// unused one, else the first.
    fn next_idle(&mut self) -> Option<usize> {
        let mut first = None;
        for _ in 0..LOOKED_AT.min(self.flows.len()) {
            let i = self.hand;
            self.hand = if i + 1 < self.flows.len() { i + 1 } else { 0 };
            let flow = &mut self.flows[i];
            if !flow.waits {
                if !std::mem::take(&mut flow.is_used) {
                    return Some(i);
                }
                first = first.or(Some(i));
            }
        }
        first
    }

    /// Reads the table entries of the next `n` flows that may be evicted, so that their cache
    /// misses overlap.
    fn warm(&self, n: usize) {
        let next = self.flows[self.hand..].iter().take(n);
        std::hint::black_box(next.fold(0, |sum, flow| sum ^ self.table.first(flow.number)));
    }

    /// Returns true if a flow whose packets wait may have one more: it holds no more packets or bytes than there is room
    /// for. Otherwise a few floods would take all room, and sources within their rate would lose.
    #[inline(never)]
    fn has_room(&self, has: &List) -> bool {
        let (limit, held) = (self.limit, self.account.held());
        has.packets < self.flow_packets
            && has.packets as usize <= limit.packets - held.packets
            && has.bytes <= limit.bytes - held.bytes
    }

    /// Appends one packet to its flow; `found` is the flow's index when the batch was looked up, or
    /// `NONE`.
    fn enter(&mut self, held: Held, number: u64, found: u32, mem: &mut Local) {
        let (bytes, at_ns) = (u64::from(held.bytes), held.at_ns);
        self.account.take(Moved { packets: 1, bytes });
        if bytes > self.rate.burst_bytes() {
            return self.account.drop(held.skb, bytes, DropReason::TOO_LONG, mem);
        }
        if self.limit.is_exceeded_by(self.account.held()) {
            return self.account.drop(held.skb, bytes, DropReason::QUEUE_LIMIT, mem);
        }
        // An earlier packet of the batch may have created this flow, or evicted it.
        let found = if self.is(found, number) { found } else { self.find(number) };
        let is_used = found != NONE;
        let i = if is_used { found } else { self.begin(number, at_ns) };
        // An empty flow, the frequent case, has room, because the limit of all is not exceeded.
        let has_room = |flow: &Flow| flow.packets.packets == 0 || self.has_room(&flow.packets);
        if !self.flows.get(i as usize).is_some_and(has_room) {
            return self.account.drop(held.skb, bytes, DropReason::FLOW_LIMIT, mem);
        }
        let flow = &mut self.flows[i as usize];
        flow.is_used = is_used;
        let waits = std::mem::replace(&mut flow.waits, true);
        if let Err(skb) = self.shelf.push(&mut flow.packets, held) {
            // Unreachable: the limit on packets equals the number of the shelf's cells.
            flow.waits = waits;
            return self.account.drop(skb, bytes, DropReason::QUEUE_LIMIT, mem);
        }
        if !waits {
            self.ready.push(&mut self.flows, i);
        }
    }
}

impl Qdisc for FlowTbf {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        let at_ns = self.clock.read(now);
        let mut left = n.min(batch.len());
        while left > 0 {
            let together = left.min(TOGETHER);
            let (mut numbers, mut found) = ([0; TOGETHER], [NONE; TOGETHER]);
            for (number, skb) in numbers.iter_mut().zip(batch.iter().take(together)) {
                *number = self.seed.flow(self.key, skb);
            }
            for (found, number) in found.iter_mut().zip(&numbers[..together]) {
                *found = self.find(*number);
            }
            if self.flows.len() == self.flows_max {
                self.warm(found[..together].iter().filter(|found| **found == NONE).count());
            }
            for (number, found) in numbers.iter().zip(&found).take(together) {
                let Some(skb) = batch.pop() else { break };
                let held = Held { bytes: skb.len() as u32, skb, at_ns };
                self.enter(held, *number, *found, mem);
            }
            left -= together;
        }
        self.account.settle(mem);
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, _mem: &mut Local) -> Moved {
        let now_ns = self.clock.read(now);
        let ready = &mut self.ready;
        self.wheel.advance(&mut self.flows, now_ns, |flows, i| ready.push(flows, i));
        let mut moved = Moved::default();
        let packets = most.packets.min(out.spare());
        while moved.packets < packets && moved.bytes < most.bytes {
            let Some(i) = self.ready.pop(&mut self.flows) else { break };
            let flow = &mut self.flows[i as usize];
            flow.bucket.refill(&self.rate, now_ns);
            let Some(bytes) = self.shelf.peek(&flow.packets).map(u64::from) else {
                flow.waits = false;
                continue;
            };
            if !flow.bucket.take(bytes) {
                let due_ns = flow.bucket.due_ns(&self.rate, bytes);
                self.wheel.add(&mut self.flows, i, due_ns);
                continue;
            }
            if let Some(held) = self.shelf.pop(&mut flow.packets) {
                moved += Moved { packets: 1, bytes };
                // Never refused: `packets` is at most the room in `out`.
                let _ = out.push(held.skb);
            }
            flow.waits = flow.packets.packets > 0;
            if flow.waits {
                self.ready.push(&mut self.flows, i);
            }
        }
        self.account.leave(moved);
        moved
    }

    fn deadline(&self) -> Option<Instant> {
        if self.ready.is_empty() {
            self.wheel.due_ns().and_then(|ns| self.clock.instant(ns))
        } else {
            self.clock.last()
        }
    }

    fn counts(&self) -> QdiscCounts {
        self.account.counts()
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        for flow in &mut self.flows {
            flow.waits = false;
            while let Some(held) = self.shelf.pop(&mut flow.packets) {
                self.account.drop(held.skb, held.bytes.into(), reason, mem);
            }
        }
        self.account.settle(mem);
        self.ready = Chain::default();
        self.wheel.clear();
    }
}
