//! The peers of a queue, each with its way, and the packets and frames on its connection.

use std::collections::VecDeque;

use linerate_skb::{DropReason, Pool};

use super::flight::Flight;
use super::macs::Macs;
use super::requests::Requests;
use super::roster::Joined;

/// A peer.
pub(super) struct Peer<P> {
    pub of: Joined<P>,
    /// The packets on the connection; `None` without one.
    pub flight: Option<Flight>,
    /// The frames that the connection has to fill; `None` without one.
    pub requests: Option<Requests>,
    /// The number of the connection in the numbers of requests.
    pub number: u32,
    /// True if nothing more can be sent to the peer: its connection has failed, or it has gone.
    pub has_failed: bool,
    /// True if the peer has gone; what it sent may still be received.
    pub has_gone: bool,
}

/// The rest of a peer that has gone: its connection is ended before its packets are dropped.
#[derive(Debug)]
pub(super) struct Gone<P> {
    // Dropped in this order: the device uses frames and packets until the way is gone.
    way: P,
    flight: Option<Flight>,
    requests: Option<Requests>,
}

impl<P> Gone<P> {
    pub fn of(peer: Peer<P>) -> Gone<P> {
        Gone { way: peer.of.way, flight: peer.flight, requests: peer.requests }
    }

    /// Ends the connection, and drops the packets that it has not sent for `reason`.
    pub fn end(self, reason: DropReason) {
        let Gone { way, flight, requests } = self;
        drop(way);
        if let Some(mut flight) = flight {
            flight.discard(reason);
        }
        drop(requests);
    }
}

/// All peers of a queue; a peer keeps its place until it goes.
pub(super) struct Peers<P> {
    places: Vec<Option<Peer<P>>>,
    pub macs: Macs,
    len: usize,
    /// Places of the peers that have gone, in the order in which they left, each with the number of
    /// completions after which all of the peer's are taken.
    gone: VecDeque<(usize, u64)>,
    /// The number of the next flight; 0 is that of the datagrams.
    next: u32,
    pool: Pool,
    /// Requests of a receive queue, and of a send queue.
    lens: [u32; 2],
}

impl<P> Peers<P> {
    /// Creates a list without peers, whose connections have receive queues and send queues of these
    /// lengths.
    pub fn new(pool: &Pool, lens: [u32; 2]) -> Peers<P> {
        let (places, macs, gone) = (Vec::new(), Macs::new(), VecDeque::new());
        Peers { places, macs, len: 0, gone, next: 1, pool: pool.clone(), lens }
    }

    /// Returns the number of peers that have not gone.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a peer.
    pub fn add(&mut self, joined: Joined<P>) {
        let number = self.next;
        // Skip 0, which is taken. After four thousand million peers a number comes again.
        self.next = self.next.wrapping_add(1).max(1);
        let [rx_len, tx_len] = self.lens;
        let flight = joined.connection.map(|_| Flight::new(tx_len, 0));
        let requests = joined.connection.map(|_| Requests::new(&self.pool, rx_len));
        let (has_failed, has_gone) = (false, false);
        let peer = Peer { of: joined, flight, requests, number, has_failed, has_gone };
        self.len += 1;
        match self.places.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(peer),
            None => self.places.push(Some(peer)),
        }
    }

    /// Marks the peer `id` as gone, and forgets its addresses. It keeps its place for what it sent,
    /// of which nothing is left after `last` completions.
    pub fn leave(&mut self, id: u64, last: u64) {
        let Some(at) = self.find(|peer| peer.of.id == id && !peer.has_gone) else { return };
        self.macs.forget(at);
        self.len -= 1;
        if let Some(peer) = &mut self.places[at] {
            (peer.has_failed, peer.has_gone) = (true, true);
        }
        self.gone.push_back((at, last));
    }

    /// Removes the peer that left first, if `taken` completions include all of its.
    pub fn take_gone(&mut self, taken: u64) -> Option<Peer<P>> {
        let &(at, _) = self.gone.front().filter(|(_, last)| *last <= taken)?;
        self.gone.pop_front();
        self.places[at].take()
    }

    /// Returns the number of peers that have gone and keep a place.
    pub fn gone(&self) -> usize {
        self.gone.len()
    }

    /// Returns the number of peers to which a packet to all goes as a datagram.
    pub fn datagrams(&self) -> usize {
        let takes = |peer: &&Peer<P>| peer.flight.is_none() && !peer.has_gone;
        self.places.iter().flatten().filter(takes).count()
    }

    /// Removes any peer.
    pub fn pop(&mut self) -> Option<Peer<P>> {
        self.places.pop().flatten().or_else(|| self.places.iter_mut().find_map(Option::take))
    }

    /// Returns the peer at a place.
    #[inline]
    pub fn at(&self, place: usize) -> Option<&Peer<P>> {
        self.places.get(place)?.as_ref()
    }

    /// Returns the peer at a place.
    #[inline]
    pub fn at_mut(&mut self, place: usize) -> Option<&mut Peer<P>> {
        self.places.get_mut(place)?.as_mut()
    }

    /// Returns the only peer's place; `None` if there are several, or none.
    #[inline]
    pub fn only(&self) -> Option<usize> {
        (self.len == 1).then(|| self.find(|peer| !peer.has_gone))?
    }

    /// Returns all places; there may be no peer at one.
    pub fn places(&self) -> std::ops::Range<usize> {
        0..self.places.len()
    }

    /// Returns the place of the peer whose flight has this number.
    pub fn of_flight(&self, number: u32) -> Option<usize> {
        self.find(|peer| peer.number == number)
    }

    /// Returns the place of the peer of which a UD queue pair, `pair`, has sent a datagram, from
    /// `gid` if that is known: the numbers of pairs are those of a device, and two devices may have
    /// the same.
    pub fn of_datagram(&self, pair: u32, gid: Option<[u8; 16]>) -> Option<usize> {
        let is_from = |peer: &Peer<P>| gid.is_none_or(|gid| gid == peer.of.gid);
        self.find(|peer| peer.of.pairs.contains(&pair) && !peer.has_gone && is_from(peer))
    }

    fn find(&self, is_it: impl Fn(&Peer<P>) -> bool) -> Option<usize> {
        self.places.iter().position(|place| place.as_ref().is_some_and(&is_it))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use linerate_skb::Batch;
    use linerate_wire::Mac;

    use super::super::requests::Shape;
    use super::*;

    /// A way that notes, at its end, how many packets and frames its connection has.
    struct Noted(Pool, Arc<Mutex<Vec<[u64; 2]>>>);

    impl Drop for Noted {
        fn drop(&mut self) {
            let ledger = self.0.ledger();
            let lent = ledger.holders().iter().find(|(name, _)| *name == "device rings");
            self.1.lock().unwrap().push([ledger.in_flight, lent.map_or(0, |(_, n)| *n)]);
        }
    }

    #[test]
    fn connection_of_a_peer_that_has_gone_ends_before_its_packets_and_frames_go_back() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, mut peers, seen) = (pool.local(), Peers::new(&pool, [8, 8]), Arc::default());
        let Joined { id, datagram_bytes, gid, pairs, .. } = joined(1, 17, 1);
        peers.add(Joined {
            id,
            way: Noted(pool.clone(), Arc::clone(&seen)),
            datagram_bytes,
            connection_bytes: Some(1518),
            gid,
            pairs,
            connection: Some(18),
        });
        let peer = peers.at_mut(0).unwrap();
        let shape = Shape { from: 192, len: 1856 };
        // SAFETY: there is no device, and so none writes.
        unsafe { peer.requests.as_mut().unwrap().refill(1, shape, &mut mem, |some| some.len()) };
        let mut batch = Batch::with_capacity(3);
        mem.alloc(&mut batch, 3);
        peer.flight.as_mut().unwrap().take(&mut batch, 3);
        peers.leave(1, 0);
        Gone::of(peers.take_gone(0).unwrap()).end(DropReason::DEVICE_DOWN);
        assert_eq!(*seen.lock().unwrap(), [[3, 8]]);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 3);
        drop(mem);
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
    }

    fn joined(id: u64, pair: u32, gid: u8) -> Joined<()> {
        Joined {
            id,
            way: (),
            datagram_bytes: 1000,
            connection_bytes: None,
            gid: [gid; 16],
            pairs: [pair, pair + 100].into(),
            connection: None,
        }
    }

    #[test]
    fn two_devices_may_have_pairs_of_one_number() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut peers = Peers::new(&pool, [32, 32]);
        peers.add(joined(1, 17, 1));
        peers.add(joined(2, 17, 2));
        assert_eq!(peers.of_datagram(17, Some([1; 16])), Some(0));
        assert_eq!(peers.of_datagram(17, Some([2; 16])), Some(1));
        assert_eq!(
            (peers.of_datagram(17, Some([3; 16])), peers.of_datagram(18, None)),
            (None, None)
        );
        assert_eq!(peers.of_datagram(117, Some([2; 16])), Some(1), "of another queue of the peer");
        let macs = [7, 8].map(|n| Mac([2, 0, 0, 0, 0, n]));
        macs.into_iter().zip(0..).for_each(|(mac, place)| peers.macs.saw(mac, place));
        peers.leave(1, 0);
        assert_eq!(macs.map(|mac| peers.macs.peer(mac)), [None, Some(1)]);
        assert_eq!(peers.at(0).map(|peer| peer.has_failed), Some(true), "nothing is sent to it");
        assert_eq!((peers.len(), peers.only(), peers.of_datagram(17, None)), (1, Some(1), Some(1)));
        assert_eq!(peers.take_gone(0).map(|peer| peer.of.id), Some(1));
        assert!(peers.take_gone(u64::MAX).is_none());
        peers.add(joined(3, 19, 1));
        assert_eq!(peers.of_datagram(19, None), Some(0), "its place is free");
    }

    #[test]
    fn the_peer_that_left_first_is_removed_first_and_after_its_completions() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut peers = Peers::new(&pool, [32, 32]);
        (1..=3).for_each(|id| peers.add(joined(id, 16 + id as u32, 1)));
        peers.leave(3, 100);
        peers.leave(1, 90);
        assert_eq!((peers.len(), peers.gone(), peers.datagrams()), (1, 2, 1));
        assert!(peers.take_gone(99).is_none());
        assert_eq!(peers.take_gone(100).map(|peer| peer.of.id), Some(3));
        assert_eq!(peers.take_gone(100).map(|peer| peer.of.id), Some(1));
        assert_eq!((peers.len(), peers.gone()), (1, 0));
    }
}
