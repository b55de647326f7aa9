//! Two ends and a pool, which send and receive packets and check at the end that all packets are
//! accounted for.

use std::time::Duration;

use linerate_skb::{Batch, DropReason, Pool, Skb};

use crate::caps::Origin;
use crate::queue::Want;

use super::end::{BATCH, End, Passed};
use super::rig::{Ends, Later, Limits};
use super::traffic::{Arrivals, Packet};

/// The direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the near end to the far one.
    Forth,
    /// From the far end to the near one.
    Back,
}

pub(super) struct Bench {
    pub pool: Pool,
    pub limits: Limits,
    ends: Vec<End>,
    sender: usize,
    receiver: usize,
    /// True if the receiver gets the packets of the sender.
    joined: bool,
    later: Option<Later>,
    /// Counts of packets of the ends that are already closed.
    closed: Passed,
    closed_internal: bool,
    /// Drops counted before the first end was closed: all drops, and those made by the case itself.
    dropped_before: Option<(u64, u64)>,
    /// True if one of the closed ends copied packets.
    closed_copied: bool,
    built: u64,
    discarded: u64,
    /// Packets that the ports created themselves; the next field has those that a device received.
    made: u64,
    came: u64,
}

impl Bench {
    pub fn new(ends: Ends, way: Way, pool: Pool, limits: Limits) -> Bench {
        let (opened, joined, later) = match ends {
            Ends::Pair(near, far) => (vec![near, far], true, None),
            Ends::Loop(end) => (vec![end], true, None),
            Ends::Apart(end) => (vec![end], false, None),
            Ends::Stored(near, later) => (vec![near], true, Some(later)),
        };
        let ends: Vec<_> = opened.into_iter().map(|opened| End::new(opened, &pool)).collect();
        let far = ends.len() - 1;
        let (sender, receiver) = if way == Way::Forth { (0, far) } else { (far, 0) };
        Bench {
            joined: joined && (way == Way::Forth || far > 0),
            later,
            ends,
            sender,
            receiver,
            pool,
            limits,
            closed: Passed::default(),
            closed_internal: false,
            dropped_before: None,
            closed_copied: false,
            built: 0,
            discarded: 0,
            made: 0,
            came: 0,
        }
    }

    /// Returns true if packets can pass in this direction.
    pub fn carries(&self) -> bool {
        let receives = self.is_stored() || self.ends[self.receiver].receives();
        self.joined && self.ends[self.sender].sends() && receives
    }

    /// Returns true if sent packets can be read only after their sender is closed.
    pub fn is_stored(&self) -> bool {
        self.later.is_some()
    }

    /// Returns true if the bench has two ends that are open at the same time.
    pub fn is_pair(&self) -> bool {
        self.ends.len() == 2
    }

    pub fn ends(&mut self) -> &mut [End] {
        &mut self.ends
    }

    pub fn sender(&mut self) -> &mut End {
        &mut self.ends[self.sender]
    }

    pub fn receiver(&mut self) -> &mut End {
        &mut self.ends[self.receiver]
    }

    /// Returns both ends of a pair, the sender first.
    pub fn split(&mut self) -> Option<(&mut End, &mut End)> {
        let [near, far] = &mut self.ends[..] else { return None };
        Some(if self.sender == 0 { (near, far) } else { (far, near) })
    }

    pub fn patience(&self) -> Duration {
        self.limits.patience
    }

    pub fn arrivals(&self, packets: &[Packet]) -> Arrivals {
        Arrivals::of(packets)
    }

    /// Returns the length in bytes of the longest packet that can pass.
    pub fn longest(&self) -> usize {
        let said = self.ends.iter().map(|end| end.obtained().packet_max_bytes).min().unwrap_or(0);
        let longest = said.min(self.pool.packet_max_bytes());
        self.limits.longest_bytes.map_or(longest, |bytes| bytes.min(longest))
    }

    /// Returns a packet of `bytes` in frames of `piece` bytes each; `None` if the pool has too few
    /// frames.
    pub fn build(&mut self, bytes: &[u8], piece: usize) -> Option<Skb> {
        let mem = self.ends[self.sender].mem();
        let (first, rest) = bytes.split_at(piece.min(bytes.len()));
        let mut skb = mem.alloc_copy(first)?;
        for piece in rest.chunks(piece) {
            let fragment = mem.alloc_copy(piece)?;
            assert!(skb.append(fragment).is_ok(), "fragments of one pool make a chain");
        }
        self.built += 1;
        Some(skb)
    }

    /// Returns a batch of `packets`, or of the first of them for which the pool has frames.
    pub fn batch(&mut self, packets: &[Packet]) -> Batch {
        let mut batch = Batch::with_capacity(packets.len().max(1));
        for packet in packets {
            let Some(skb) = self.build(&packet.bytes(), packet.piece) else { break };
            assert!(batch.push(skb).is_ok(), "the batch has room for each");
        }
        batch
    }

    /// Drops the packets of `batch` that were not sent.
    pub fn discard(&mut self, mut batch: Batch) {
        self.discarded += batch.len() as u64;
        batch.discard(DropReason::UNSENT);
    }

    /// Sends all packets of `batch`, and receives meanwhile.
    pub fn send(&mut self, mut batch: Batch, arrivals: &mut Arrivals) {
        let (sender, receiver, patience) = (self.sender, self.receiver, self.limits.patience);
        while !batch.is_empty() {
            let before = batch.len();
            self.ends[sender].xmit(&mut batch);
            if batch.is_empty() || batch.len() < before {
                continue;
            }
            if self.later.is_none() && self.ends[receiver].take(arrivals, BATCH) > 0 {
                continue;
            }
            let woken = self.ends[sender].wait(Want::Room, patience);
            assert!(woken, "{} packets are not taken, and no room is announced", batch.len());
        }
    }

    /// Sends `packets` and receives all of them.
    pub fn exchange(&mut self, packets: &[Packet]) {
        let mut arrivals = self.arrivals(packets);
        let mut sent = 0;
        while sent < packets.len() {
            let n = self.window(&packets[sent..]);
            let batch = self.batch(&packets[sent..sent + n]);
            assert_eq!(batch.len(), n, "the pool lost frames on the way here");
            self.send(batch, &mut arrivals);
            sent += n;
            if !self.is_stored() {
                self.collect(&mut arrivals, sent);
            }
        }
        self.turn_over();
        self.collect(&mut arrivals, sent);
        // A packet that arrives twice would be received here.
        self.ends[self.receiver].take(&mut arrivals, BATCH);
    }

    /// Receives until `count` packets have arrived.
    pub fn collect(&mut self, arrivals: &mut Arrivals, count: usize) {
        let patience = self.limits.patience;
        self.ends[self.receiver].collect(arrivals, count, patience);
    }

    /// Returns how many of `packets` may be in flight at once, so that the copies at both ends fit
    /// the pool.
    fn window(&self, packets: &[Packet]) -> usize {
        let mut frames = 0;
        let fit = packets.iter().take(self.limits.window_packets).take_while(|packet| {
            frames += packet.len.div_ceil(packet.piece.min(self.pool.data_room())).max(1);
            frames <= self.pool.frames() / 8
        });
        fit.count().max(1)
    }

    /// Closes an end that stores packets, and opens the stored packets for reading.
    fn turn_over(&mut self) {
        if let Some(open) = self.later.take() {
            self.close_end(0);
            let opened = open(&self.pool);
            let opened = opened.unwrap_or_else(|e| panic!("what was stored cannot be opened: {e}"));
            self.ends = vec![End::new(opened, &self.pool)];
        }
    }

    /// Closes the sender's end only.
    pub fn close_sender(&mut self) {
        self.close_end(self.sender);
        (self.sender, self.receiver) = (0, 0);
    }

    /// Closes the receiver's end only.
    pub fn close_receiver(&mut self) {
        self.close_end(self.receiver);
        (self.sender, self.receiver) = (0, 0);
    }

    fn close_end(&mut self, which: usize) {
        let dropped = self.pool.ledger().dropped_total();
        self.dropped_before.get_or_insert((dropped, self.discarded));
        let mut end = self.ends.remove(which);
        self.closed_copied |= end.copied();
        end.check_descriptors();
        let passed = end.passed;
        match end.origin() {
            Origin::Device | Origin::Counted => self.came += passed.received,
            Origin::Created => self.made += passed.received,
            Origin::Internal => self.closed_internal = true,
        }
        self.closed.taken += passed.taken;
        self.closed.sent += passed.sent;
        self.closed.received += passed.received;
        self.closed.consumed += passed.consumed;
    }

    /// Closes the ends and checks that every packet and every frame is accounted for.
    pub fn close(mut self) {
        while !self.ends.is_empty() {
            self.close_end(0);
        }
        let ledger = self.pool.ledger();
        let held = ledger.in_flight;
        assert_eq!(held, 0, "packets still held when the port is closed: {ledger}");
        assert_eq!(ledger.difference(), 0, "packets that the ledger lost: {ledger}");
        let lent = ledger.holders().iter().find(|(name, _)| *name == "device rings");
        assert_eq!(lent.map_or(0, |(_, n)| *n), 0, "frames still lent to the device: {ledger}");
        let Passed { taken, sent, consumed, .. } = self.closed;
        // A driver that copies a packet creates one packet and frees one.
        let copies = if self.closed_copied { ledger.consumed.saturating_sub(consumed) } else { 0 };
        assert_eq!(
            ledger.consumed,
            consumed + copies,
            "packets freed without a reason, and those that were received: {ledger}"
        );
        assert_eq!(
            ledger.created,
            self.built + self.made + copies,
            "packets created, and those that were asked for: {ledger}"
        );
        // Packets that `rx` dropped, which it counts as received.
        let refused = ledger.received.checked_sub(self.came);
        let refused = refused.unwrap_or_else(|| panic!("more was received than counted: {ledger}"));
        if self.closed_internal {
            return;
        }
        assert_eq!(
            ledger.sent + ledger.dropped_total(),
            taken + refused + self.discarded,
            "packets sent or dropped, and packets that were taken: {ledger}"
        );
        // An end whose other end is closed may drop packets that it had reported as sent.
        let (dropped, discarded) = self.dropped_before.unwrap_or_default();
        let dropped_in_closing = ledger.dropped_total() - dropped - (self.discarded - discarded);
        assert!(
            ledger.sent <= sent && sent <= ledger.sent + dropped_in_closing,
            "xmit() says that it sent {sent} packets: {ledger}"
        );
    }
}
