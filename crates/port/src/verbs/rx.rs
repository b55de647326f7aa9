//! Receiving: makes packets of the frames that the device has filled, and gives it free ones.
//!
//! ```text
//!   frame   | ... | 40 bytes: the route of a datagram | packet                 |
//!   request       └──────────────── from here to the end of the frame ─────────┘
//! ```
//!
//! A message of a connection begins where the route of a datagram would.

use std::sync::Arc;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span};
use linerate_sys::verbs::Completion;
use linerate_wire::{Mac, checksum};

use super::nic::Nic;
use super::peers::{Gone, Peers};
use super::requests::{Requests, Shape};
use super::roster::Reports;
use crate::host::Retry;

/// Completions that one step handles.
const STRIDE: usize = 64;
/// Bytes in front of a datagram: its route.
pub(super) const ROUTE_BYTES: usize = 40;
/// Length of the shortest packet: its header.
const ETHERNET_BYTES: u32 = 14;
/// The number of the requests of the UD queue pair.
const DATAGRAMS: u32 = 0;

/// Receive state.
pub(super) struct Rx {
    /// The requests of the UD queue pair; none if no datagrams come.
    requests: Requests,
    shape: Shape,
    /// Length of the longest packet that the port delivers.
    longest: u32,
    /// Completions that were taken before the caller went to sleep.
    early: Vec<Completion>,
    /// The senders of the port, if it is in a group: the device may return what they send there.
    own: Option<Own>,
    one: Batch,
    pub starved: Retry,
    /// Receives that the pool ended early.
    pub rx_nombuf: u64,
    /// Messages that the device could not put into a frame, and those of peers that were removed.
    pub missed: u64,
    /// Completions that made no sense.
    pub bad_completions: u64,
    /// Number of completions that were taken.
    pub taken: u64,
    /// The last datagram that the device has not received, if it has received none since.
    trouble: Option<Completion>,
    /// Why nothing more can be received.
    pub failed: Option<String>,
}

/// The UD queue pairs of a port.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub gid: [u8; 16],
    /// The number of each queue's.
    pub pairs: Arc<[u32]>,
}

impl Own {
    fn is_from(&self, pair: u32, gid: Option<[u8; 16]>) -> bool {
        gid == Some(self.gid) && self.pairs.contains(&pair)
    }
}

/// A filled frame.
struct Filled {
    /// The message, with the route in front of a datagram.
    span: Span,
    is_datagram: bool,
}

impl Rx {
    /// Creates the state of a queue with `len` requests for datagrams, 0 if none come, and packets
    /// of up to `longest` bytes. They get frames of `pool`, whose headroom has room for a route.
    pub fn new(pool: &Pool, len: u32, longest: usize, own: Option<Own>) -> Rx {
        let from = pool.headroom().saturating_sub(ROUTE_BYTES);
        Rx {
            requests: Requests::new(pool, len),
            shape: Shape { from: from as u64, len: (pool.frame_size() - from) as u32 },
            longest: longest as u32,
            early: Vec::with_capacity(STRIDE),
            own,
            one: Batch::with_capacity(1),
            starved: Retry::default(),
            rx_nombuf: 0,
            missed: 0,
            bad_completions: 0,
            taken: 0,
            trouble: None,
            failed: None,
        }
    }

    /// Takes up to `budget` packets, and posts as many frames as there is room for; the second
    /// value is true if no message is left.
    ///
    /// Shape:  device -> out[len..len+n], n <= budget, in the device's order. Free frames ->
    ///         device.
    /// Errors: none. A completion that names no request of ours is counted in `bad_completions`.
    /// Cost:   a call of the device's driver for 64 packets, and one for 32 frames.
    pub fn receive<N: Nic>(
        &mut self,
        nic: &mut N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
        reports: &mut Reports<Gone<N::Peer>>,
    ) -> (Moved, bool) {
        let (before, end) = (out.len(), out.len() + budget.min(out.spare()));
        let mut is_dry = false;
        while out.len() < end {
            let mut completions = [Completion::default(); STRIDE];
            let want = (end - out.len()).min(STRIDE);
            let n = self.poll(nic, &mut completions[..want]);
            if n == 0 {
                is_dry = true;
                break;
            }
            self.taken += n as u64;
            for done in completions[..n].iter().filter(|done| !done.is_ok()) {
                self.fail(done, nic, peers, reports);
            }
            self.adopt(&completions[..n], peers, mem, out);
        }
        self.refill(nic, peers, mem);
        (out.count_from(before), is_dry)
    }

    /// Takes completions: first those that were taken early.
    fn poll<N: Nic>(&mut self, nic: &mut N, out: &mut [Completion]) -> usize {
        if !self.early.is_empty() {
            let n = self.early.len().min(out.len());
            out[..n].copy_from_slice(&self.early[..n]);
            self.early.drain(..n);
            return n;
        }
        nic.received(out).unwrap_or_else(|e| {
            self.failed.get_or_insert(format!("its completion queue failed: {e}"));
            0
        })
    }

    /// Returns true if a message has come; it is kept for the next receive.
    pub fn look<N: Nic>(&mut self, nic: &mut N) -> bool {
        if self.early.is_empty() {
            let mut completions = [Completion::default(); STRIDE];
            let n = self.poll(nic, &mut completions);
            self.early.extend_from_slice(&completions[..n]);
        }
        !self.early.is_empty()
    }

    /// Returns the number of completions after which those of all requests that the device has now
    /// are taken.
    pub fn last<P>(&self, peers: &Peers<P>) -> u64 {
        let of = |place| peers.at(place)?.requests.as_ref().map(Requests::posted);
        let posted = peers.places().filter_map(of).sum::<usize>() + self.requests.posted();
        self.taken + posted as u64
    }

    /// Reports that a queue pair receives nothing more. A connection has failed with each
    /// completion that is not ok; the pair of datagrams, to which anyone may send one that is too
    /// long, only when the device gives its other requests back.
    #[cold]
    fn fail<N: Nic>(
        &mut self,
        done: &Completion,
        nic: &N,
        peers: &mut Peers<N::Peer>,
        reports: &mut Reports<Gone<N::Peer>>,
    ) {
        match (done.id >> 32) as u32 {
            DATAGRAMS if done.status == Completion::FLUSHED => {
                let cause = self.trouble.take().unwrap_or(*done);
                self.failed.get_or_insert_with(|| nic.text(&cause));
            }
            DATAGRAMS => self.trouble = Some(*done),
            number => {
                let place = peers.of_flight(number);
                if let Some(peer) = place.and_then(|place| peers.at_mut(place))
                    && !std::mem::replace(&mut peer.has_failed, true)
                {
                    reports.failed.push((peer.of.id, nic.text(done)));
                }
            }
        }
    }

    /// Makes packets of filled frames; `out` has room for one packet of each.
    fn adopt<P>(
        &mut self,
        completions: &[Completion],
        peers: &mut Peers<P>,
        mem: &mut Local,
        out: &mut Batch,
    ) {
        if self.own.is_some() || peers.len() > 1 {
            return completions.iter().for_each(|done| self.add(done, peers, mem, out));
        }
        let (mut spans, mut n) = ([Span::default(); STRIDE], 0);
        for done in completions {
            if let Some(Filled { span, is_datagram }) = self.filled(done, peers, mem) {
                let front = if is_datagram { ROUTE_BYTES as u32 } else { 0 };
                spans[n] = Span { offset: span.offset + u64::from(front), len: span.len - front };
                n += 1;
            }
        }
        // SAFETY: each of these frames was lent to the device by `refill` and came back now, once:
        // `filled` says so; `out` has room.
        unsafe { mem.receive(&spans[..n], out) };
    }

    /// Makes a packet of one filled frame, and learns from where it came; drops what the port
    /// itself has sent to its group.
    fn add<P>(
        &mut self,
        done: &Completion,
        peers: &mut Peers<P>,
        mem: &mut Local,
        out: &mut Batch,
    ) {
        let Some(Filled { span, is_datagram }) = self.filled(done, peers, mem) else { return };
        // SAFETY: as in `adopt`; `one` is empty.
        unsafe { mem.receive(&[span], &mut self.one) };
        let Some(mut skb) = self.one.pop() else { return };
        let place = if is_datagram {
            let from = source(&mut skb).filter(|_| done.flags & Completion::HAS_ROUTE != 0);
            if self.own.as_ref().is_some_and(|own| own.is_from(done.sender, from)) {
                // It was counted when it was sent.
                let _ = self.one.push(skb);
                return self.one.truncate_to(0, mem);
            }
            peers.of_datagram(done.sender, from)
        } else {
            peers.of_flight((done.id >> 32) as u32)
        };
        let is_there = |place: &usize| peers.at(*place).is_some_and(|peer| !peer.has_gone);
        if let Some(place) = place.filter(is_there) {
            let mut mac = Mac([0; 6]);
            skb.copy_to(6, &mut mac.0);
            peers.macs.saw(mac, place);
        }
        // As many packets as completions, and there is room for these.
        let _ = out.push(skb);
    }

    /// Takes back the frame of a completed request; returns the place of its message, if that is a
    /// packet.
    fn filled<P>(
        &mut self,
        done: &Completion,
        peers: &mut Peers<P>,
        mem: &mut Local,
    ) -> Option<Filled> {
        let (number, id) = ((done.id >> 32) as u32, done.id as u32);
        let is_datagram = number == DATAGRAMS;
        let requests = if is_datagram {
            &mut self.requests
        } else {
            let Some(place) = peers.of_flight(number) else {
                // Of a peer that was removed, whose frames went back with its connection.
                self.missed += u64::from(done.is_ok());
                return None;
            };
            peers.at_mut(place)?.requests.as_mut()?
        };
        let Some(frame) = requests.take(id) else {
            self.bad_completions += 1;
            return None;
        };
        let front = if is_datagram { ROUTE_BYTES as u32 } else { 0 };
        let is_possible = (front + ETHERNET_BYTES..=self.shape.len).contains(&done.bytes);
        let offset = frame + self.shape.from;
        if is_datagram && done.is_ok() {
            self.trouble = None;
        }
        if done.is_ok() && is_possible && done.bytes <= front + self.longest {
            return Some(Filled { span: Span { offset, len: done.bytes }, is_datagram });
        }
        if done.is_ok() {
            mem.count_received(1);
            // SAFETY: it was lent by `refill` and came back now, once; `one` is empty.
            unsafe { mem.receive(&[Span { offset, len: 0 }], &mut self.one) };
            // The requests reach to the end of a frame, and a peer may send more than it was told.
            let reason = if is_possible { DropReason::TOO_LONG } else { DropReason::MALFORMED };
            self.one.discard(reason);
        } else {
            self.missed += u64::from(done.status != Completion::FLUSHED);
            // SAFETY: as above.
            unsafe { mem.reclaim(&[frame]) };
        }
        None
    }

    /// Posts free frames until the device has all requests, or the pool is empty.
    ///
    /// Shape:  hot list -> device.
    pub fn refill<N: Nic>(&mut self, nic: &mut N, peers: &mut Peers<N::Peer>, mem: &mut Local) {
        self.starved = Retry::default();
        let mut is_empty = false;
        // What is posted to a pair that has failed comes back at once, for ever.
        if self.failed.is_none() {
            let requests = &mut self.requests;
            // SAFETY: the requests are those of the UD queue pair.
            unsafe {
                requests.refill(DATAGRAMS, self.shape, mem, |some| nic.post_receives(some, None));
            }
            is_empty = requests.is_dry();
        }
        for place in peers.places() {
            let Some(peer) = peers.at_mut(place) else { continue };
            let Some(requests) = peer.requests.as_mut().filter(|_| !peer.has_failed) else {
                continue;
            };
            let way = &peer.of.way;
            // SAFETY: the requests are those of the peer's pair.
            unsafe {
                requests.refill(peer.number, self.shape, mem, |some| {
                    nic.post_receives(some, Some(way))
                });
            }
            is_empty |= requests.is_dry();
        }
        if is_empty {
            // Nothing can be received on one of the ways, and a freed frame is not notified.
            self.rx_nombuf += 1;
            self.starved = Retry::later();
        }
    }
}

/// Removes the route in front of a datagram; returns the GID from which it came.
///
/// If the datagram came by IPv4, the route is the header of IPv4, in the last 20 bytes, and the GID
/// stands for the IPv4 address; the 20 bytes before it are undefined then.
fn source(skb: &mut Skb) -> Option<[u8; 16]> {
    let mut route = [0; ROUTE_BYTES];
    let n = skb.copy_to(0, &mut route);
    if n < ROUTE_BYTES || !skb.pull(ROUTE_BYTES) {
        return None;
    }
    let mut gid = [0; 16];
    if route[20] == 0x45 && checksum::sum(&route[20..]) == 0xffff {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&route[32..36]);
    } else {
        gid.copy_from_slice(&route[8..24]);
    }
    Some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_datagram_is_found_in_either_form_of_its_route() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let with = |bytes: [u8; ROUTE_BYTES]| {
            let mut skb = pool.local().alloc_copy(&[&bytes[..], &[7; 60]].concat()).unwrap();
            let from = source(&mut skb);
            assert_eq!(skb.data(), [7; 60]);
            from
        };
        let mut route = [0; ROUTE_BYTES];
        route[0] = 0x60;
        route[8..24].fill(9);
        assert_eq!(with(route), Some([9; 16]));
        // A GID may have the first byte of a header of IPv4 where that would stand.
        route[20] = 0x45;
        assert_eq!(with(route).map(|gid| gid[11..14].to_vec()), Some(vec![9, 0x45, 9]));
        // The first 20 bytes are whatever they were, also as if they began a header of IPv6.
        let mut route = [0x60; ROUTE_BYTES];
        route[20..].fill(0);
        route[20] = 0x45;
        route[32..36].copy_from_slice(&[10, 0, 0, 1]);
        let sum = checksum::sum(&route[20..]);
        route[30..32].copy_from_slice(&(!sum).to_be_bytes());
        assert_eq!(with(route), Some(v4));
    }
}
