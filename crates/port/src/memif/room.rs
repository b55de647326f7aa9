//! The interval between checks of a full ring, because a memif peer does not signal room.
//!
//! A peer takes a ring's worth of packets in some time. A sender that looks much earlier finds
//! little room for the cost of a wake-up, and one that looks later finds the ring empty, and its
//! peer idle. So the time is learned: what is found at a look says whether it was too long or too
//! short. It settles where about half of the ring is free.

use std::time::{Duration, Instant};

use crate::host::RETRY;
use crate::moderation::SLEEP_MIN;

/// The shortest interval.
const WAIT_MIN: Duration = SLEEP_MIN;
/// The longest interval. For a peer that takes no packets the interval grows with the time since it
/// last took one.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A sender's wait for room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    wait: Duration,
    since: Option<Instant>,
    /// The time of the next check for room; `None` if no packet waits for room.
    due: Option<Instant>,
}

impl Room {
    pub fn new() -> Room {
        Room { wait: RETRY, since: None, due: None }
    }

    /// Ends the wait: the peer has taken packets, or no packet waits for room.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// Returns the time of the next check: for room if the ring is `full`, otherwise for packets
    /// that the peer has processed, which is less urgent.
    pub fn look_at(&mut self, full: bool, now: Instant) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        let first = if full { self.wait } else { RETRY };
        let at = now.checked_add((now - since).clamp(first, LOOK_MAX));
        self.due = at.filter(|_| full);
        at
    }

    /// Returns true if the caller waits for room.
    #[inline]
    pub fn waits(&self) -> bool {
        self.due.is_some()
    }

    /// Records that a check found `room` of `size`. Only a check at its due time adjusts the
    /// interval: a sender that another event woke, or that does not sleep, checks too early, and
    /// one that had no CPU checks too late.
    pub fn found(&mut self, room: usize, size: usize, now: Instant) {
        let Some(due) = self.due.take_if(|due| *due <= now) else { return };
        if now - due > self.wait {
            return;
        }
        if 4 * room < size {
            self.wait += self.wait / 2;
        } else if 4 * room > 3 * size {
            self.wait -= self.wait / 4;
        }
        self.wait = self.wait.clamp(WAIT_MIN, RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates waits at a ring of 1024 whose peer takes a packet every `packet_ns`; returns the
    /// mean room found by the last ten.
    fn settled(packet_ns: u64) -> u64 {
        let mut room = Room::new();
        let now = Instant::now();
        let mut found = Vec::new();
        for _ in 0..100 {
            room.end();
            let at = room.look_at(true, now).unwrap();
            let n = ((at - now).as_nanos() as u64 / packet_ns).min(1024);
            room.found(n as usize, 1024, at);
            found.push(n);
        }
        found[90..].iter().sum::<u64>() / 10
    }

    #[test]
    fn it_settles_where_half_of_the_ring_is_free() {
        for packet_ns in [200, 500, 1000, 1800] {
            let room = settled(packet_ns);
            assert!((256..=768).contains(&room), "{packet_ns} ns a packet: {room} of 1024");
        }
        // The shortest and the longest interval limit the result.
        assert_eq!((settled(1), settled(100_000)), (1024, 10));
    }

    #[test]
    fn backoff_grows_while_peer_takes_nothing() {
        let (mut room, start) = (Room::new(), Instant::now());
        let mut now = start;
        let mut looks = Vec::new();
        while now < start + Duration::from_secs(1) {
            let at = room.look_at(true, now).unwrap();
            looks.push(at - now);
            now = at;
        }
        assert_eq!((looks[0], looks[1]), (RETRY, RETRY));
        assert!(looks.is_sorted() && looks.last() == Some(&LOOK_MAX), "{looks:?}");
        room.end();
        assert_eq!(room.look_at(true, now), Some(now + RETRY));
    }

    #[test]
    fn early_look_does_not_change_the_wait() {
        let (mut room, now) = (Room::new(), Instant::now());
        assert!(!room.waits());
        let at = room.look_at(true, now);
        for _ in 0..50 {
            room.found(1024, 1024, now);
        }
        room.end();
        assert!(room.waits());
        assert_eq!(room.look_at(true, now), at);
    }

    #[test]
    fn late_look_does_not_change_the_wait() {
        let (mut room, now) = (Room::new(), Instant::now());
        let at = room.look_at(true, now).unwrap();
        room.found(1024, 1024, at + 2 * RETRY);
        assert!(!room.waits());
        room.end();
        assert_eq!(room.look_at(true, now), Some(at));
    }

    #[test]
    fn wait_for_finished_packets_ignores_the_learned_time() {
        let (mut room, now) = (Room::new(), Instant::now());
        for _ in 0..50 {
            let at = room.look_at(true, now).unwrap();
            room.found(1024, 1024, at);
            room.end();
        }
        assert_eq!(room.look_at(true, now), Some(now + WAIT_MIN));
        assert_eq!(room.look_at(false, now), Some(now + RETRY));
    }
}
