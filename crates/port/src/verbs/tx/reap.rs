//! The end of packets that the device has: each was sent, or its way has failed, or its peer has
//! gone.

use std::time::{Duration, Instant};

use linerate_skb::{DropReason, Local};
use linerate_sys::verbs::Completion;

use super::{CHAIN, DATAGRAMS, Tx, Way};
use crate::host::RETRY;
use crate::verbs::nic::Nic;
use crate::verbs::peers::{Gone, Peer, Peers};
use crate::verbs::roster::Reports;

/// The longest sleep while the device has packets.
const SLEEP_MAX: Duration = Duration::from_millis(100);

impl Tx {
    /// Takes back the packets that the device has sent; reports connections that have failed.
    ///
    /// Cost: nothing while the device has nothing; else a call of its driver for 32 packets with a
    ///       completion.
    pub fn reap<N: Nic>(
        &mut self,
        nic: &mut N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        reports: &mut Reports<Gone<N::Peer>>,
    ) {
        if self.sending == 0 && !std::mem::take(&mut self.is_stale) {
            return;
        }
        loop {
            let mut completions = [Completion::default(); CHAIN];
            let n = match nic.sent(&mut completions) {
                Ok(n) => n,
                Err(e) => {
                    self.failed.get_or_insert(format!("its completion queue failed: {e}"));
                    return;
                }
            };
            for completion in &completions[..n] {
                self.complete(completion, nic, peers, mem, reports);
            }
            if n > 0 {
                self.waits_since = None;
            }
            if n < completions.len() {
                break;
            }
        }
        self.tally.set(self.sending);
    }

    /// Ends the packets up to a completed one.
    fn complete<N: Nic>(
        &mut self,
        completion: &Completion,
        nic: &N,
        peers: &mut Peers<N::Peer>,
        mem: &mut Local,
        reports: &mut Reports<Gone<N::Peer>>,
    ) {
        let (number, index) = ((completion.id >> 32) as u32, completion.id as u32);
        let place = peers.of_flight(number).filter(|_| number != DATAGRAMS);
        let flight = match (number, place) {
            (DATAGRAMS, _) => &mut self.datagrams,
            (_, Some(place)) => match peers.at_mut(place).and_then(|peer| peer.flight.as_mut()) {
                Some(flight) => flight,
                None => return,
            },
            // Of a peer that has gone.
            _ => return,
        };
        if !flight.has(index) {
            return;
        }
        // Those before a failed one were sent.
        let last = if completion.is_ok() { index } else { index.wrapping_sub(1) };
        let before = flight.len();
        while !flight.done(last, &mut self.done) {
            self.done.sent(self.done.len(), mem);
        }
        self.done.sent(self.done.len(), mem);
        if !completion.is_ok() {
            flight.done(index, &mut self.done);
        }
        self.sending -= before - flight.len();
        if completion.is_ok() {
            return;
        }
        self.lost += self.done.count_from(0);
        self.done.discard(DropReason::PEER_GONE);
        let way = place.map_or(Way::Group, Way::Connection);
        self.fail(way, &nic.text(completion), peers, reports);
    }

    /// Reports that a way carries nothing more: a peer's connection, or all datagrams.
    #[cold]
    pub(super) fn fail<P>(
        &mut self,
        way: Way,
        why: &str,
        peers: &mut Peers<P>,
        reports: &mut Reports<Gone<P>>,
    ) {
        match way {
            Way::Connection(place) => {
                if let Some(peer) = peers.at_mut(place)
                    && !std::mem::replace(&mut peer.has_failed, true)
                {
                    reports.failed.push((peer.of.id, why.to_owned()));
                }
            }
            _ => _ = self.failed.get_or_insert(why.to_owned()),
        }
    }

    /// Counts the packets of a peer that is being removed as lost.
    pub fn forget<P>(&mut self, peer: &Peer<P>) {
        if let Some(flight) = &peer.flight {
            self.lost += flight.count();
            self.sending -= flight.len();
        }
        (self.is_stale, self.waits_since) = (true, None);
        self.tally.set(self.sending);
    }

    /// Returns the time of the next look for completions, for which no event is asked. The interval
    /// grows while there are none.
    pub fn look_at(&mut self) -> Option<Instant> {
        if self.sending == 0 {
            return None;
        }
        let now = Instant::now();
        let waited = now.saturating_duration_since(*self.waits_since.get_or_insert(now));
        now.checked_add(waited.clamp(RETRY, SLEEP_MAX))
    }

    /// Drops the datagrams that the device has not sent, when its pair has ended.
    pub fn end(&mut self) {
        self.lost += self.datagrams.discard(DropReason::DEVICE_DOWN);
        self.sending = 0;
        self.tally.set(0);
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::Pool;

    use super::*;

    #[test]
    fn looks_are_rarer_the_longer_the_device_returns_nothing() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut tx = Tx::new(&pool, 32, None);
        assert_eq!(tx.look_at(), None, "the device has nothing");
        tx.sending = 1;
        for (waited, rest) in [(0, 1), (50, 50), (5000, 100)].map(|(a, b)| (ms(a), ms(b))) {
            let now = Instant::now();
            tx.waits_since = now.checked_sub(waited);
            let next = tx.look_at().unwrap() - now;
            let late = 2 * now.elapsed();
            assert!(next >= rest && next <= rest + late, "{waited:?}: {next:?}");
        }
        tx.sending = 0;
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }
}
