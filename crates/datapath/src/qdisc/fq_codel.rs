//! Fair queueing with CoDel: flows take turns, and no flow has a standing queue.
//!
//! ```text
//!  packet ─hash─► flow ──┬─ new flows ─► ──┐
//!                        └─ old flows ─► ──┴─ a quantum of bytes each, in turn ─CoDel─► port
//! ```
//!
//! A flow that sends less than its share always counts as new, and new flows are served first; so
//! it never waits behind a bulk stream.
//!
//! CoDel drops nothing while all flows together have no more bytes than a packet of the device's
//! MTU. A bound on the bytes of one flow would leave a standing queue of many flows with a packet
//! each. The quantum is no such bound: it may be a fraction of a packet or many of them.
//!
//! Source: RFC 8290; batch drops and marks as in Linux net/sched/sch_fq_codel.c;
//! `sch->qstats.backlog` and `cparams.mtu` there, and `codel_should_drop` of
//! include/net/codel_impl.h, for the bound.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};
use linerate_wire::mark_ce;

use super::account::Account;
use super::codel::{Codel, INTERVAL_MAX_NS, Params, Source};
use super::flow::{Key, Seed};
use super::shelf::{Chain, Held, Link, List, NONE, Shelf};
use super::time::Clock;
use super::{Limit, Qdisc, QdiscCounts};

/// Least quantum. A flow is passed over once for each quantum of its last packet, which takes time:
/// 44 times for a superframe of 65,550 bytes by the default, 257 times by this one.
///
/// Source: Linux net/sched/sch_fq_codel.c `fq_codel_change`.
pub(super) const QUANTUM_MIN: u32 = 256;
/// Most packets dropped after one search when all flows together exceed the limit.
const DROP_BATCH: usize = 64;
/// The link type of Ethernet.
const ETHERNET: u16 = 1;
/// Bytes in which a packet is marked: Ethernet with two tags, and an IPv4 header without options.
const HEAD_BYTES: usize = 14 + 2 * 4 + 20;
/// Part of all packets that may be dropped after one search, if the longest flow has fewer.
const DROP_PART: usize = 64;

/// Settings of [`FqCodel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FqCodelConfig {
    /// The limit for all flows together.
    pub limit: Limit,
    /// Number of queues to which flows are hashed, 1 to 65536. More than 16 for each packet of the
    /// limit make a flood of flows expensive: a search through all queues can precede each drop.
    pub flows: usize,
    /// Number of bytes that a flow may send in a turn, at least 256. A superframe counts with its
    /// own bytes, without the headers that its segments get.
    pub quantum_bytes: u32,
    /// Length in bytes of the longest packet that the device sends uncut. CoDel drops nothing while
    /// no more bytes wait.
    pub mtu_bytes: u32,
    /// CoDel's target: the delay that is always acceptable.
    pub target: Duration,
    /// CoDel's interval: the time for which the delay may exceed the target before a packet is
    /// dropped; at most 4.29 s. An interval shorter than the target drops packets of short bursts.
    pub interval: Duration,
    /// True if packets with ECN are marked instead of dropped.
    pub ecn: bool,
}

/// Returns Linux's defaults, for an Ethernet device with an MTU of 1500.
impl Default for FqCodelConfig {
    fn default() -> FqCodelConfig {
        FqCodelConfig {
            limit: Limit::packets(10_240).and_bytes(32 << 20),
            flows: 1024,
            quantum_bytes: 1514,
            mtu_bytes: 1514,
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: true,
        }
    }
}

/// The queue of a flow.
#[derive(Debug)]
struct Flow {
    packets: List,
    /// Bytes that the flow may still send in this turn.
    deficit: i64,
    codel: Codel,
    next: u32,
    /// True if the flow is in the list of new flows or of old flows.
    listed: bool,
}

impl Link for Flow {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Flow {
    /// Returns the length by which queues are compared: that in bytes, and in packets for queues
    /// without bytes.
    fn length(&self) -> (u64, u32) {
        (self.packets.bytes, self.packets.packets)
    }
}

/// The length of a queue, its place in the search, and its index. Of queues with the same length,
/// the first one found is the greatest.
type Length = ((u64, u32), Reverse<usize>, usize);

/// The longest queues, from which packets are dropped.
#[derive(Debug)]
struct Longest {
    /// Those found so far, from which a longer one displaces the shortest.
    found: BinaryHeap<Reverse<Length>>,
    /// Those of the last search, and those that a packet above the limit was added to since. A
    /// length may be old: compare it before use.
    queues: BinaryHeap<Length>,
    /// The index of the queue at which the next search begins: so that queues of the same length
    /// take turns.
    from: usize,
    /// Number of packets that may be dropped before the next search.
    left: usize,
    #[cfg(test)]
    searches: usize,
}

impl Longest {
    fn new() -> Longest {
        Longest {
            found: BinaryHeap::with_capacity(DROP_BATCH),
            // At least one packet is dropped for each queue that is added.
            queues: BinaryHeap::with_capacity(2 * DROP_BATCH),
            from: 0,
            left: 0,
            #[cfg(test)]
            searches: 0,
        }
    }

    /// Finds the longest queues of `flows`, as many as packets are dropped at most.
    fn find(&mut self, flows: &[Flow]) {
        for (place, i) in (self.from..flows.len()).chain(0..self.from).enumerate() {
            let length = flows[i].length();
            let queue = Reverse((length, Reverse(place), i));
            if self.found.len() < DROP_BATCH {
                self.found.push(queue);
            } else if let Some(mut shortest) = self.found.peek_mut()
                && length > shortest.0.0
            {
                *shortest = queue;
            }
        }
        self.queues.clear();
        self.queues.extend(self.found.drain().map(|Reverse(queue)| queue));
        #[cfg(test)]
        {
            self.searches += 1;
        }
    }
}

/// Fair queueing of flows, with CoDel for each flow.
#[derive(Debug)]
pub struct FqCodel {
    flows: Box<[Flow]>,
    new: Chain,
    old: Chain,
    shelf: Shelf,
    seed: Seed,
    params: Params,
    quantum: i64,
    limit: Limit,
    ecn: bool,
    longest: Longest,
    account: Account,
    clock: Clock,
}

impl FqCodel {
    /// Creates empty queues with these settings. A setting outside its range is changed to the
    /// nearest limit.
    #[must_use]
    pub fn new(config: FqCodelConfig) -> FqCodel {
        let limit = config.limit.bounded();
        let flow = |_| Flow {
            packets: List::default(),
            deficit: 0,
            codel: Codel::default(),
            next: NONE,
            listed: false,
        };
        let nanos = |time: Duration| time.as_nanos().min(INTERVAL_MAX_NS.into()) as u64;
        FqCodel {
            flows: (0..config.flows.clamp(1, 1 << 16)).map(flow).collect(),
            new: Chain::default(),
            old: Chain::default(),
            // One more than the limit: the packet that exceeds the limit is queued before another
            // one is dropped.
            shelf: Shelf::new(limit.packets + 1),
            seed: Seed::random(),
            params: Params {
                target_ns: nanos(config.target),
                interval_ns: nanos(config.interval).max(1),
                mtu_bytes: config.mtu_bytes.into(),
            },
            quantum: i64::from(config.quantum_bytes.max(QUANTUM_MIN)),
            limit,
            ecn: config.ecn,
            longest: Longest::new(),
            account: Account::new(),
            clock: Clock::default(),
        }
    }

    /// Returns the index of a packet's queue, from the packet's hash if it has one.
    fn queue_of(&self, skb: &Skb) -> u32 {
        let hash = skb.hash().unwrap_or_else(|| self.seed.flow(Key::Connection, skb) as u32);
        ((u64::from(hash) * self.flows.len() as u64) >> 32) as u32
    }

    /// Drops packets from the heads of queues, each from the longest of those that the last search
    /// found. The queue with the index `fed` was given the packet above the limit.
    ///
    /// Their number is half the packets of the longest queue (in Linux, as many as have half of its
    /// bytes), or a 64th of all packets if that is more; at most 64. A queue with a single packet
    /// loses it only while the limit is exceeded; the rest of the number is then dropped for later
    /// packets above the limit, without a search. The 64th bounds the work for a packet if the
    /// packets are in as many queues, which any sender with random ports can bring about.
    ///
    /// Cost: a search examines every queue once, and therefore serves several drops.
    #[cold]
    fn drop_from_longest(&mut self, fed: u32, mem: &mut Local) {
        let fed = fed as usize;
        if self.longest.left > 0 {
            let length = self.flows[fed].length();
            self.longest.queues.push((length, Reverse(usize::MAX), fed));
        } else {
            self.longest.find(&self.flows);
            let longest = self.longest.queues.peek();
            let half = longest.map_or(0, |((_, packets), ..)| packets.div_ceil(2) as usize);
            let part = self.account.held().packets / DROP_PART;
            self.longest.left = half.max(part).min(DROP_BATCH);
        }
        let Longest { queues, from, left, .. } = &mut self.longest;
        while *left > 0 {
            let Some(mut longest) = queues.peek_mut() else { break };
            let i = longest.2;
            let flow = &mut self.flows[i];
            if longest.0 != flow.length() {
                longest.0 = flow.length();
                continue;
            }
            if flow.packets.packets <= 1 && !self.limit.is_exceeded_by(self.account.held()) {
                return;
            }
            let Some(held) = self.shelf.pop(&mut flow.packets) else { break };
            longest.0 = flow.length();
            flow.codel.lost();
            *from = if i + 1 < self.flows.len() { i + 1 } else { 0 };
            *left -= 1;
            self.account.drop(held.skb, held.bytes.into(), DropReason::QUEUE_LIMIT, mem);
        }
        *left = 0;
    }

    /// Returns the number of searches for the longest queues.
    #[cfg(test)]
    pub(super) fn searches(&self) -> usize {
        self.longest.searches
    }

    /// Takes the next packet to send; `sent_bytes` have been taken before and are still counted as
    /// held.
    fn next(&mut self, now_ns: u64, sent_bytes: u64, mem: &mut Local) -> Option<Held> {
        loop {
            let (is_new, has_old) = (!self.new.is_empty(), !self.old.is_empty());
            let chain = if is_new { &mut self.new } else { &mut self.old };
            let i = chain.head;
            let flow = self.flows.get_mut(i as usize)?;
            if flow.deficit <= 0 {
                flow.deficit += self.quantum;
                chain.pop(&mut self.flows);
                self.old.push(&mut self.flows, i);
                continue;
            }
            let packets = &mut flow.packets;
            let (shelf, account, ecn) = (&mut self.shelf, &mut self.account, self.ecn);
            let mut queue =
                Queue { packets, shelf, account, ecn, taken_bytes: sent_bytes, mem: &mut *mem };
            if let Some(held) = flow.codel.next(&self.params, now_ns, &mut queue) {
                flow.deficit -= i64::from(held.bytes);
                return Some(held);
            }
            // An empty new flow stays for one round of the old flows: otherwise a flow that sends
            // one packet at a time would be new with each packet, and starve the old flows.
            flow.listed = is_new && has_old;
            let listed = flow.listed;
            chain.pop(&mut self.flows);
            if listed {
                self.old.push(&mut self.flows, i);
            }
        }
    }
}

/// Marks a packet as having experienced congestion; returns false if the packet cannot be marked.
pub(super) fn mark(skb: &mut Skb) -> bool {
    // A capture's packet may begin with another header, whose bytes could look like these.
    if skb.link_type() != ETHERNET {
        return false;
    }
    let bytes = skb.data_mut();
    if bytes.is_empty() { mark_copy(skb) } else { mark_ce(bytes) }
}

/// Marks a packet whose bytes cannot be borrowed, because a peer can write them.
// Not inlined, so that the copy takes no place in the frame of the callers, which pass every
// packet.
#[cold]
#[inline(never)]
fn mark_copy(skb: &mut Skb) -> bool {
    let mut head = [0; HEAD_BYTES];
    let n = skb.copy_to(0, &mut head);
    mark_ce(&mut head[..n]) && skb.copy_from(0, &head[..n]) == n
}

/// A flow's packets, as the queue that CoDel controls.
struct Queue<'a> {
    packets: &'a mut List,
    shelf: &'a mut Shelf,
    account: &'a mut Account,
    ecn: bool,
    /// Bytes of packets that were taken, of this flow and of others, and are still counted as held.
    taken_bytes: u64,
    mem: &'a mut Local,
}

impl Source for Queue<'_> {
    type Packet = Held;

    fn take(&mut self) -> Option<(Held, u64)> {
        let held = self.shelf.pop(self.packets)?;
        self.taken_bytes += u64::from(held.bytes);
        let at_ns = held.note;
        Some((held, at_ns))
    }

    fn bytes(&self) -> u64 {
        self.account.held().bytes - self.taken_bytes
    }

    fn mark(&mut self, held: &mut Held) -> bool {
        let marked = self.ecn && mark(&mut held.skb);
        if marked {
            self.account.mark();
        }
        marked
    }

    fn drop(&mut self, held: Held) {
        self.taken_bytes -= u64::from(held.bytes);
        self.account.drop(held.skb, held.bytes.into(), DropReason::CONGESTED, self.mem);
    }
}

impl Qdisc for FqCodel {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        let (at_ns, before) = (self.clock.read(now), self.account.counts().dropped.packets);
        for _ in 0..n {
            let Some(skb) = batch.pop() else { break };
            let (i, bytes) = (self.queue_of(&skb), skb.len() as u32);
            self.account.take(Moved { packets: 1, bytes: bytes.into() });
            let flow = &mut self.flows[i as usize];
            if let Err(skb) = self.shelf.push(&mut flow.packets, Held { skb, bytes, note: at_ns }) {
                self.account.drop(skb, bytes.into(), DropReason::QUEUE_LIMIT, mem);
            } else if !flow.listed {
                flow.listed = true;
                flow.deficit = self.quantum;
                self.new.push(&mut self.flows, i);
            }
            while self.limit.is_exceeded_by(self.account.held()) {
                self.drop_from_longest(i, mem);
            }
        }
        // A search does not know of packets that came below the limit: it serves as many drops
        // less.
        let dropped = self.account.counts().dropped.packets - before;
        self.longest.left = self.longest.left.saturating_sub(n.saturating_sub(dropped));
        self.account.settle(mem);
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, mem: &mut Local) -> Moved {
        let now_ns = self.clock.read(now);
        let mut moved = Moved::default();
        let packets = most.packets.min(out.spare());
        while moved.packets < packets && moved.bytes < most.bytes {
            let Some(held) = self.next(now_ns, moved.bytes, mem) else { break };
            moved += Moved { packets: 1, bytes: held.bytes.into() };
            // Never refused: `packets` is at most the room in `out`.
            let _ = out.push(held.skb);
        }
        self.account.leave(moved);
        self.account.settle(mem);
        moved
    }

    fn deadline(&self) -> Option<Instant> {
        if self.account.held().packets == 0 { None } else { self.clock.last() }
    }

    fn counts(&self) -> QdiscCounts {
        self.account.counts()
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        for flow in &mut self.flows {
            while let Some(held) = self.shelf.pop(&mut flow.packets) {
                self.account.drop(held.skb, held.bytes.into(), reason, mem);
            }
        }
        self.account.settle(mem);
    }
}
