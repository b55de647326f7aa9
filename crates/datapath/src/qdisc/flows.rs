//! The flows of a token bucket for each flow, and their waiting packets.
//!
//! The state of a flow is 64 bytes, one cache line. When the table is full, a flow without waiting
//! packets is evicted for a new one.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::account::Account;
use super::flow::{Key, Seed};
use super::shelf::{Chain, Held, Link, List, NONE, Shelf};
use super::table::Table;
use super::tbf::{Bucket, Rate};
use super::time::Clock;
use super::wheel::Wheel;
use super::{Limit, QdiscCounts, least_bytes};

/// Packets whose flows are looked up together, so that their cache misses overlap.
const TOGETHER: usize = 32;
/// Number of flows that are examined to choose one to evict; the next constant is the number of
/// further ones if all of them have packets.
const LOOKED_AT: usize = 8;
const PASSED: usize = 72;
/// Default for the packets that all flows together may hold.
pub(super) const PACKETS: usize = 1024;
/// Default for the packets that one flow may hold.
pub(super) const FLOW_PACKETS: u32 = 64;

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

/// The flows and their waiting packets.
#[derive(Debug)]
pub(super) struct Flows {
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

impl Flows {
    pub fn new(key: Key, rate: Rate, flows_max: usize) -> Flows {
        Flows {
            key,
            seed: Seed::random(),
            rate,
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

    /// Sets the limit for all flows together and the most packets of one flow. While packets wait,
    /// the limit of packets does not grow, and no limit falls below what waits.
    pub fn set_limits(&mut self, all: Limit, flow_packets: u32) {
        let (all, held) = (all.bounded(), self.account.held());
        self.flow_packets = flow_packets.max(1);
        if held.packets == 0 {
            self.limit = all;
            self.shelf = Shelf::new(all.packets);
        } else {
            let packets = all.packets.min(self.limit.packets).max(held.packets);
            self.limit = Limit { packets, bytes: all.bytes.max(held.bytes) };
        }
    }

    /// Sets the time for the next calls.
    pub fn set_time(&mut self, now: Instant) {
        self.clock.read(now);
    }

    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the counts of all flows together.
    pub fn counts(&self) -> QdiscCounts {
        self.account.counts()
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
    fn begin(&mut self, number: u64) -> u32 {
        let flow = Flow {
            number,
            bucket: self.rate.bucket(self.clock.last_ns()),
            packets: List::default(),
            next: NONE,
            waits: false,
            is_used: false,
        };
        let i = if self.flows.len() < self.flows_max {
            self.flows.push(flow);
            self.flows.len() - 1
        } else {
            let i = match self.next_idle() {
                Some(i) => i,
                None => match self.behind_waiting() {
                    Some(i) => i,
                    None => return NONE,
                },
            };
            let flows = &self.flows;
            self.table.remove(flows[i].number, i as u32, |i| flows[i as usize].number);
            self.account.evict();
            self.flows[i] = flow;
            i
        };
        self.table.insert(number, i as u32);
        i as u32
    }

    /// Returns the index of the flow to evict: among the next eight flows, the first unused one
    /// without packets, else the first without packets.
    fn next_idle(&mut self) -> Option<usize> {
        let (mut first, mut in_debt) = (None, None);
        for _ in 0..LOOKED_AT.min(self.flows.len()) {
            let i = self.hand;
            self.hand = if i + 1 < self.flows.len() { i + 1 } else { 0 };
            let flow = &mut self.flows[i];
            if flow.waits {
                continue;
            }
            if flow.bucket.is_in_debt(self.clock.last_ns()) {
                in_debt = in_debt.or(Some(i));
            } else if std::mem::take(&mut flow.is_used) {
                first = first.or(Some(i));
            } else {
                return Some(i);
            }
        }
        first.or(in_debt)
    }

    /// Returns the index of the first flow without packets among the next 72; `None` if as many
    /// packets wait as there are flows, so that perhaps each flow has one.
    #[cold]
    #[inline(never)]
    fn behind_waiting(&mut self) -> Option<usize> {
        // Without the packet that arrives.
        let waiting = self.account.held().packets.saturating_sub(1);
        let most = if waiting < self.flows.len() { PASSED } else { 0 };
        for _ in 0..most {
            let i = self.hand;
            self.hand = if i + 1 < self.flows.len() { i + 1 } else { 0 };
            if !self.flows[i].waits {
                return Some(i);
            }
        }
        None
    }

    /// Reads the table entries of the next `n` flows, which may be evicted, so that their cache misses
    /// overlap.
    fn warm(&self, n: usize) {
        let next = self.flows[self.hand..].iter().take(n);
        std::hint::black_box(next.fold(0, |sum, flow| sum ^ self.table.first(flow.number)));
    }

    /// Returns true if a flow whose packets wait may have one more: it holds no more packets or
    /// bytes than there is room for. Otherwise a few floods would take all room, and sources within
    /// their rate would lose.
    #[inline(never)]
    fn has_room(&self, has: &List) -> bool {
        let (limit, held) = (self.limit, self.account.held());
        has.packets < self.flow_packets
            && has.packets as usize <= limit.packets - held.packets
            && has.bytes <= limit.bytes - held.bytes
    }

    /// Returns true if a packet would be dropped: all flows together, or its own flow, which has
    /// packets, can hold no further one.
    pub fn is_full(&self, skb: &Skb) -> bool {
        let (limit, held) = (self.limit, self.account.held());
        if held.packets >= limit.packets || limit.bytes - held.bytes < least_bytes(skb) {
            return true;
        }
        let flow = self.flows.get(self.find(self.seed.flow(self.key, skb)) as usize);
        flow.is_some_and(|flow| flow.packets.packets > 0 && !self.has_room(&flow.packets))
    }

    /// Enqueues the first `n` packets of `batch`, or all if there are fewer. Each is sent with
    /// `headers` bytes more than it has: those of the further segments of a superframe.
    pub fn enqueue(&mut self, batch: &mut Batch, n: usize, headers: u64, mem: &mut Local) {
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
                let bytes = skb.len() as u32;
                let held = Held { skb, bytes, note: headers + u64::from(bytes) };
                self.enter(held, *number, *found, mem);
            }
            left -= together;
        }
        self.account.settle(mem);
    }

    /// Appends one packet to its flow; `found` is the flow's index when the batch was looked up, or
    /// `NONE`.
    fn enter(&mut self, held: Held, number: u64, found: u32, mem: &mut Local) {
        let bytes = u64::from(held.bytes);
        self.account.take(Moved { packets: 1, bytes });
        if bytes > self.rate.burst_bytes() && !held.skb.offload().is_gso() {
            return self.account.drop(held.skb, bytes, DropReason::TOO_LONG, mem);
        }
        if self.limit.is_exceeded_by(self.account.held()) {
            return self.account.drop(held.skb, bytes, DropReason::QUEUE_LIMIT, mem);
        }
        // An earlier packet of the batch may have created this flow, or evicted it.
        let found = if self.is(found, number) { found } else { self.find(number) };
        let is_used = found != NONE;
        let i = if is_used { found } else { self.begin(number) };
        // An empty flow, the frequent case, has room, because the limit of all is not exceeded.
        let has_room = |flow: &Flow| flow.packets.packets == 0 || self.has_room(&flow.packets);
        if !self.flows.get(i as usize).is_some_and(has_room) {
            return self.account.drop(held.skb, bytes, DropReason::FLOW_LIMIT, mem);
        }
        let flow = &mut self.flows[i as usize];
        flow.is_used = is_used;
        let waits = std::mem::replace(&mut flow.waits, true);
        if let Err(skb) = self.shelf.push(&mut flow.packets, held) {
            // Unreachable: the limit on packets is at most the number of the shelf's cells.
            flow.waits = waits;
            return self.account.drop(skb, bytes, DropReason::QUEUE_LIMIT, mem);
        }
        if !waits {
            self.ready.push(&mut self.flows, i);
        }
    }

    /// Takes tokens for more bytes than a burst from flow `i`, if a whole burst is free. Otherwise
    /// returns false, and the flow waits until it has tokens.
    #[inline(never)]
    fn borrows(&mut self, i: u32, wire_bytes: u64) -> bool {
        let flow = &mut self.flows[i as usize];
        let in_debt = flow.bucket.borrowed(&self.rate, wire_bytes);
        match in_debt {
            Some(in_debt) => flow.bucket = in_debt,
            None => {
                let due_ns = flow.bucket.due_ns(&self.rate, wire_bytes);
                self.wheel.add(&mut self.flows, i, due_ns);
            }
        }
        in_debt.is_some()
    }

    /// Moves packets of flows that have tokens for them to `out`, one of each flow in turn.
    #[inline]
    pub fn dequeue(&mut self, out: &mut Batch, most: Moved) -> Moved {
        let now_ns = self.clock.last_ns();
        let ready = &mut self.ready;
        self.wheel.advance(&mut self.flows, now_ns, |flows, i| ready.push(flows, i));
        let mut moved = Moved::default();
        let packets = most.packets.min(out.spare());
        while moved.packets < packets && moved.bytes < most.bytes {
            let Some(i) = self.ready.pop(&mut self.flows) else { break };
            let flow = &mut self.flows[i as usize];
            flow.bucket.refill(&self.rate, now_ns);
            let Some((bytes, wire_bytes)) = self.shelf.peek(&flow.packets) else {
                flow.waits = false;
                continue;
            };
            if !flow.bucket.take(wire_bytes) && !self.borrows(i, wire_bytes) {
                continue;
            }
            let flow = &mut self.flows[i as usize];
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

    /// Returns the time from which a packet can leave, if one waits.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ready.is_empty() {
            self.wheel.due_ns().and_then(|ns| self.clock.instant(ns))
        } else {
            self.clock.last()
        }
    }

    /// Drops all packets.
    pub fn purge(&mut self, reason: DropReason, mem: &mut Local) {
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
