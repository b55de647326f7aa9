//! Sending: chains of messages, a doorbell each, on the ways that their packets take.
//!
//! ```text
//!   batch   a a b g g a     a, b: peers; g: a group
//!   chains  [a a] [b] [g g] [a]        in the batch's order
//! ```
//!
//! A packet goes by the connection with its peer if there is one, otherwise as a datagram; to a
//! group of Ethernet, as a datagram to the group of the fabric if the port has one, otherwise to
//! each peer. The next packet that takes another way ends the chain, so packets leave in their
//! order.
//!
//! The driver does not ask the core for free slots; each flight counts its own.

mod reap;

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Tally};
use linerate_sys::verbs::Send as Message;
use linerate_wire::Mac;

use super::flight::Flight;
use super::nic::{Nic, To};
use super::peers::{Gone, Peers};
use super::roster::Reports;
use crate::host::{Retry, copy_out};

/// Most messages of a chain.
const CHAIN: usize = 32;
/// Length of the shortest packet: its header.
const ETHERNET_BYTES: usize = 14;
/// The number of the datagrams' flight.
const DATAGRAMS: u32 = 0;

/// The way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Datagram(usize),
    Connection(usize),
    Group,
    /// To each peer.
    All,
    /// To no peer, for this reason.
    Nowhere(DropReason),
}

/// Transmit state.
pub(super) struct Tx {
    pool: Pool,
    datagrams: Flight,
    /// Longest datagram to the group; `None` if the port has no group.
    group_bytes: Option<usize>,
    done: Batch,
    tally: Tally,
    /// Frames for copies of packets that the device cannot read in place, and for further
    /// receivers.
    copies: Local,
    scratch: Vec<u8>,
    /// Time until which there was no frame for a copy, so that nothing can be sent.
    starved: Retry,
    /// Number of packets that the device has.
    sending: usize,
    /// True if completions of a peer that has gone may be left.
    is_stale: bool,
    /// Start of the time in which the device has had packets and returned none.
    waits_since: Option<Instant>,
    pub copied_bytes: u64,
    pub doorbells: u64,
    /// An empty batch for copies that go to all, once there was one.
    one: Option<Batch>,
    /// Packets that were accepted, and not sent.
    pub lost: Moved,
    /// Why nothing more can be sent.
    pub failed: Option<String>,
}

impl Tx {
    /// Creates the state of a queue that sends from `pool` with `len` requests on each way.
    pub fn new(pool: &Pool, len: u32, group_bytes: Option<usize>) -> Tx {
        Tx {
            pool: pool.clone(),
            datagrams: Flight::new(len, 0),
            group_bytes,
            done: Batch::with_capacity(CHAIN),
            tally: pool.tally("verbs tx"),
            copies: pool.local_named("verbs copies", 0),
            scratch: Vec::new(),
            starved: Retry::default(),
            sending: 0,
            is_stale: false,
            waits_since: None,
            copied_bytes: 0,
            doorbells: 0,
            one: None,
            lost: Moved::default(),
            failed: None,
        }
    }

    /// Sends from the front of `batch`.
    ///
    /// Shape:  batch[0..n) -> send queues; each is freed, as sent, when the device is done with it.
    ///         What can never be sent is dropped with its reason; the rest stays, in order.
    /// Cost:   a doorbell for a run of packets that take one way, of up to 32; a copy of packets
    ///         that are not in the device's memory, and for each further receiver of one that goes
    ///         to all.
    pub fn send<N: Nic>(
        &mut self,
        nic: &mut N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        batch: &mut Batch,
        reports: &mut Reports<Gone<N::Peer>>,
    ) -> Moved {
        let mut moved = Moved::default();
        self.starved = Retry::default();
        while let Some(skb) = batch.iter().next() {
            let way = self.way(skb, peers);
            match way {
                Way::Nowhere(reason) => batch.discard_first(1, reason, mem),
                Way::All => match self.flood(nic, peers, mem, batch, reports) {
                    Some(sent) => moved += sent,
                    None => break,
                },
                way => match self.chain(way, nic, peers, mem, batch, reports) {
                    Some(sent) => moved += sent,
                    None => break,
                },
            }
        }
        self.tally.set(self.sending);
        moved
    }

    /// Returns the way of a packet.
    fn way<P>(&self, skb: &Skb, peers: &Peers<P>) -> Way {
        if skb.len() < ETHERNET_BYTES {
            return Way::Nowhere(DropReason::MALFORMED);
        }
        let only = peers.only();
        if let (Some(place), None) = (only, self.group_bytes) {
            return self.way_to(place, skb.len(), peers);
        }
        let mut mac = Mac([0; 6]);
        skb.copy_to(0, &mut mac.0);
        match (self.group_bytes, peers.macs.peer(mac).or(only)) {
            (Some(most), _) if mac.is_multicast() && skb.len() <= most => Way::Group,
            (_, Some(place)) => self.way_to(place, skb.len(), peers),
            _ if peers.len() == 0 => Way::Nowhere(DropReason::DEVICE_DOWN),
            _ => Way::All,
        }
    }

    /// Returns the way of `bytes` to the peer at `place`.
    fn way_to<P>(&self, place: usize, bytes: usize, peers: &Peers<P>) -> Way {
        let Some(peer) = peers.at(place) else { return Way::Nowhere(DropReason::DEVICE_DOWN) };
        match peer.of.connection_bytes {
            _ if peer.has_failed => Way::Nowhere(DropReason::PEER_GONE),
            Some(most) if bytes <= most => Way::Connection(place),
            None if bytes <= peer.of.datagram_bytes => Way::Datagram(place),
            _ => Way::Nowhere(DropReason::TOO_LONG),
        }
    }

    /// Sends the first packets of `batch`, which take `way`, by one chain; returns what was sent or
    /// dropped, or `None` if the first has to wait.
    fn chain<N: Nic>(
        &mut self,
        way: Way,
        nic: &mut N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        batch: &mut Batch,
        reports: &mut Reports<Gone<N::Peer>>,
    ) -> Option<Moved> {
        let (room, next, number) = {
            let (flight, number) = self.flight(way, peers)?;
            (flight.room(), flight.next(), number)
        };
        if room == 0 {
            return self.full(way, peers, mem, batch);
        }
        let (mut messages, mut n) = ([Message::default(); CHAIN], 0);
        for skb in batch.iter().take(room.min(CHAIN)) {
            if n > 0 && self.way(skb, peers) != way {
                break;
            }
            let Some(message) = self.message(skb) else { break };
            let index = next.wrapping_add(n as u32);
            messages[n] = Message { id: u64::from(number) << 32 | u64::from(index), ..message };
            n += 1;
        }
        if n == 0 {
            return self.copy_first(mem, batch).then(Moved::default);
        }
        let to = match way {
            Way::Datagram(place) => To::Datagram(&peers.at(place)?.of.way),
            Way::Connection(place) => To::Connection(&peers.at(place)?.of.way),
            _ => To::Group,
        };
        // SAFETY: the packets are of the registered pool. The flight has those that are taken until
        // they are completed, or their pair has ended; nothing writes a packet that is in flight.
        let taken = unsafe { nic.post(&messages[..n], to) };
        self.doorbells += 1;
        let sent = batch.count_first(taken);
        let (flight, _) = self.flight(way, peers)?;
        flight.take(batch, taken);
        let is_silent = taken < n && flight.cut_chain(taken);
        self.sending += taken;
        if taken == 0 && is_silent {
            // It takes nothing, and no completion will ever say that there is room.
            self.fail(way, "it takes no request", peers, reports);
        }
        // If the device takes none although its flight has room, and the way has not failed, a
        // packet in flight makes a completion: a call after it sends the rest.
        (taken > 0).then_some(sent)
    }

    /// Decides about the first packet, whose way is full: with one peer it waits; with several it
    /// is dropped, because the others' packets are behind it.
    fn full<P>(
        &self,
        way: Way,
        peers: &Peers<P>,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Option<Moved> {
        if matches!(way, Way::Connection(_)) && peers.len() > 1 {
            batch.discard_first(1, DropReason::TX_FULL, mem);
            return Some(Moved::default());
        }
        None
    }

    /// Returns the flight of a way, with its number.
    fn flight<'a, P>(
        &'a mut self,
        way: Way,
        peers: &'a mut Peers<P>,
    ) -> Option<(&'a mut Flight, u32)> {
        match way {
            Way::Connection(place) => {
                let peer = peers.at_mut(place)?;
                Some((peer.flight.as_mut()?, peer.number))
            }
            _ => Some((&mut self.datagrams, DATAGRAMS)),
        }
    }

    /// Returns the message of a packet's bytes as they lie; `None` if the device cannot read them
    /// there.
    fn message(&self, skb: &Skb) -> Option<Message> {
        if !skb.is_of(&self.pool) {
            return None;
        }
        let (mut message, mut bytes) = (Message::default(), 0);
        for span in skb.spans() {
            *message.parts.get_mut(message.len)? = (span.offset, span.len);
            message.len += 1;
            bytes += span.len as usize;
        }
        (bytes == skb.len()).then_some(message)
    }

    /// Sends a copy of the first packet to each peer; returns the copies that were sent, or `None`
    /// if the packet has to wait. Each copy counts as what becomes of it, and the packet itself as
    /// consumed, unless no copy was made.
    #[cold]
    fn flood<N: Nic>(
        &mut self,
        nic: &mut N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        batch: &mut Batch,
        reports: &mut Reports<Gone<N::Peer>>,
    ) -> Option<Moved> {
        if self.datagrams.room() < peers.datagrams() {
            return None;
        }
        let packet = batch.count_first(1);
        let mut one = self.one.take().unwrap_or_else(|| Batch::with_capacity(1));
        let mut sent = Moved::default();
        let (mut is_copied, mut reason) = (false, DropReason::DEVICE_DOWN);
        for place in peers.places() {
            let way = match self.way_to(place, packet.bytes as usize, peers) {
                Way::Nowhere(why) => {
                    let is_there = peers.at(place).is_some_and(|peer| !peer.has_gone);
                    reason = if is_there { why } else { reason };
                    continue;
                }
                way => way,
            };
            let Some(copy) = self.copy(batch.iter().next()?) else {
                if !is_copied {
                    self.starved = Retry::later();
                    self.one = Some(one);
                    return None;
                }
                // Others have a copy already, so that the packet cannot wait: this peer misses it.
                sent += packet;
                self.lost += packet;
                continue;
            };
            is_copied = true;
            if one.push(copy).is_ok()
                && let Some(copies) = self.chain(way, nic, peers, mem, &mut one, reports)
            {
                sent += copies;
            }
            one.discard_first(one.len(), DropReason::TX_FULL, mem);
        }
        if is_copied {
            batch.move_to(&mut one, 1);
            one.consume(mem);
        } else {
            batch.discard_first(1, reason, mem);
        }
        self.one = Some(one);
        Some(sent)
    }

    /// Returns a copy of a packet in a frame of our own; `None` without a frame.
    fn copy(&mut self, skb: &Skb) -> Option<Skb> {
        let fits = skb.len() <= self.pool.data_room();
        let bytes = copy_out(skb, &mut self.scratch).filter(|_| fits)?;
        let copy = self.copies.alloc_copy(bytes)?;
        self.copied_bytes += bytes.len() as u64;
        Some(copy)
    }

    /// Replaces the first packet by a copy in our own frame, or drops it if it does not fit;
    /// returns false without a free frame.
    #[cold]
    fn copy_first(&mut self, mem: &mut Local, batch: &mut Batch) -> bool {
        let Some(skb) = batch.iter().next() else { return false };
        if skb.len() > self.pool.data_room() {
            batch.discard_first(1, DropReason::TOO_LONG, mem);
            return true;
        }
        match self.copy(skb) {
            None => {
                self.starved = Retry::later();
                false
            }
            Some(copy) => {
                if let Some(skb) = batch.iter_mut().next() {
                    *skb = copy;
                }
                true
            }
        }
    }

    /// Returns the number of packets that the device has.
    pub fn sending(&self) -> usize {
        self.sending
    }

    /// Returns the index of the last datagram that the device has; `None` if it has none.
    pub fn last_datagram(&self) -> Option<u32> {
        (self.datagrams.len() > 0).then(|| self.datagrams.next().wrapping_sub(1))
    }

    /// Returns true if the device has the datagram of `index`.
    pub fn has_datagram(&self, index: u32) -> bool {
        self.datagrams.has(index)
    }

    /// Returns true if the next packet need not wait for room, nor for a frame of its copy.
    ///
    /// Cost: a clock read after the pool had no frame.
    pub fn has_room<P>(&mut self, peers: &Peers<P>) -> bool {
        let flight = peers.only().and_then(|place| peers.at(place)?.flight.as_ref());
        let needed = peers.datagrams().max(1);
        let is_full =
            self.datagrams.room() < needed || flight.is_some_and(|flight| flight.room() == 0);
        !self.starved.is_pending() && !is_full
    }

    /// Returns the time at which there may be a frame for a copy again; `None` unless the pool had
    /// none.
    pub fn starved_until(&self) -> Option<Instant> {
        self.starved.at()
    }
}
