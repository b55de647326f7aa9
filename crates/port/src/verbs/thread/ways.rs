//! Making the ways to a peer that has said its hellos, or refusing it: a part of the control
//! thread.

use std::sync::Arc;
use std::time::Instant;

use linerate_skb::Result;

use super::super::hello::{HELLO_BYTES, Hello, READY, Refusal};
use super::super::meeting::{Greeting, Stage};
use super::super::nic::Fabric;
use super::super::roster::{Change, Joined};
use super::Thread;

/// Why a meeting failed, with the byte that tells the peer, if there is one.
pub(super) type Refused = (Option<Refusal>, String);

impl<F: Fabric, G> Thread<F, G> {
    /// Keeps a hello of a peer; after the last, makes the ways to it.
    pub(super) fn meet(
        &mut self,
        at: usize,
        bytes: &[u8; HELLO_BYTES],
    ) -> std::result::Result<(), Refused> {
        let hello = Hello::of(bytes).map_err(|why| (None, why.to_owned()))?;
        if usize::from(hello.queues) != self.fabrics.len() {
            return refuse(Refusal::Queues);
        }
        if self.has_closed() {
            return refuse(Refusal::Closed);
        }
        let meeting = &mut self.meetings[at];
        let Stage::Greeting(greeting) = &mut meeting.stage else { return Ok(()) };
        if greeting.ours.is_empty() {
            let answered = greeting.answer(&meeting.stream, &mut self.fabrics, self.longest_bytes);
            answered.map_err(|why| (None, why))?;
        }
        let (ours, theirs) = (&greeting.ours, &mut greeting.theirs);
        if hello.connection.is_some() != ours[theirs.len()].connection.is_some() {
            return refuse(Refusal::Mode);
        }
        // A port has one address, and each other one could be a neighbour to wait for.
        if theirs.first().is_some_and(|first| first.gid != hello.gid) {
            return Err((None, "its queues have different addresses".to_owned()));
        }
        theirs.push(hello);
        if theirs.len() == ours.len() { self.make(at) } else { Ok(()) }
    }

    /// Makes the ways to a peer that has said all its hellos.
    fn make(&mut self, at: usize) -> std::result::Result<(), Refused> {
        let Stage::Greeting(Greeting { halves, ours, theirs, .. }) =
            std::mem::replace(&mut self.meetings[at].stage, Stage::Calling)
        else {
            return Err((None, "it said hello twice".to_owned()));
        };
        let is = theirs.first().map(|hello| (hello.gid, hello.pair));
        let mut others = self.meetings.iter().filter(|meeting| meeting.has_place());
        if others.clone().count() >= self.peers_max {
            return refuse(Refusal::Full);
        }
        if others.any(|meeting| meeting.is == is) {
            return refuse(Refusal::Twice);
        }
        let (id, began) = (self.meetings[at].id, Instant::now());
        let pairs: Arc<[u32]> = theirs.iter().map(|hello| hello.pair).collect();
        let ways = halves.into_iter().zip(&mut self.fabrics).zip(ours.iter().zip(&theirs));
        let ways: Result<Vec<_>> = ways
            .map(|((half, fabric), (ours, theirs))| {
                Ok(joined(id, fabric.complete(half, ours, theirs)?, ours, theirs, &pairs))
            })
            .collect();
        // The kernel may have looked for a neighbour: other peers have that time more.
        let took = began.elapsed();
        self.meetings.iter_mut().for_each(|meeting| meeting.until += took);
        let meeting = &mut self.meetings[at];
        meeting.stage = Stage::Making(ways.map_err(|e| (None, e.to_string()))?);
        meeting.is = is;
        meeting.say(READY).map_err(|why| (None, why))
    }

    /// Gives a peer that can receive to the queues.
    pub(super) fn join(&mut self, at: usize) -> std::result::Result<(), Refused> {
        // A queue may have closed since the hellos.
        if self.has_closed() {
            return refuse(Refusal::Closed);
        }
        let stage = std::mem::replace(&mut self.meetings[at].stage, Stage::Peer);
        let Stage::Making(joined) = stage else {
            return Err((None, "it was ready twice".to_owned()));
        };
        for (roster, joined) in self.shared.rosters.iter().zip(joined) {
            roster.publish(Change::Joined(joined));
        }
        Ok(())
    }
}

fn refuse(refusal: Refusal) -> std::result::Result<(), Refused> {
    Err((Some(refusal), refusal.as_str().to_owned()))
}

/// Returns the peer as its queue needs it.
fn joined<P>(id: u64, way: P, ours: &Hello, theirs: &Hello, pairs: &Arc<[u32]>) -> Joined<P> {
    let shorter = |a: u32, b: u32| a.min(b) as usize;
    let longest = shorter(ours.longest_bytes, theirs.longest_bytes);
    Joined {
        id,
        way,
        datagram_bytes: shorter(ours.mtu_bytes, theirs.mtu_bytes).min(longest),
        connection_bytes: ours.connection.map(|_| longest),
        gid: theirs.gid,
        pairs: pairs.clone(),
        connection: ours.connection,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_a_peer_are_as_long_as_both_ends_take() {
        let hello = |(mtu_bytes, longest_bytes)| Hello {
            connection: Some(5),
            mtu_bytes,
            longest_bytes,
            ..Hello::default()
        };
        for (one, other, datagram, connection) in
            [((1024, 9018), (4096, 1518), 1024, 1518), ((4096, 1024), (4096, 4096), 1024, 1024)]
        {
            for (ours, theirs) in [(one, other), (other, one)] {
                let peer = joined(1, (), &hello(ours), &hello(theirs), &[7].into());
                let lengths = (peer.datagram_bytes, peer.connection_bytes);
                assert_eq!(lengths, (datagram, Some(connection)), "{ours:?} {theirs:?}");
            }
        }
    }
}
