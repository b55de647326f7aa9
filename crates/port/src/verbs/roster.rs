//! The peers of a queue, as the port's control thread and the queue hand them to each other.
//!
//! ```text
//!   control thread ── joined, left, why there is none ──► Roster ──► queue     generation + 1, bell
//!   control thread ◄── ways that are of no use any more, peers that failed ── queue
//! ```
//!
//! Each queue of a port has a roster, and all have the same control thread. The queue never waits:
//! where the lock is taken it comes again with its next call, and its bell stays rung.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_skb::Result;
use linerate_sys::wait::EventFd;

/// A peer that has joined.
#[derive(Debug)]
pub(super) struct Joined<P> {
    /// The peer's number in this port, never given twice.
    pub id: u64,
    pub way: P,
    /// Longest datagram to the peer in bytes.
    pub datagram_bytes: usize,
    /// Longest packet on the connection in bytes; `None` without a connection.
    pub connection_bytes: Option<usize>,
    /// GID and numbers of its UD queue pairs, of all its queues.
    pub gid: [u8; 16],
    pub pairs: Arc<[u32]>,
    /// The number of our queue pair of the connection.
    pub connection: Option<u32>,
}

/// A change that the queue has not seen.
#[derive(Debug)]
pub(super) enum Change<P> {
    Joined(Joined<P>),
    Left(u64),
}

/// Reports of a queue to the control thread.
#[derive(Debug)]
pub(super) struct Reports<G> {
    /// The rest of peers that have gone, to be dropped where no packet waits.
    pub gone: Vec<G>,
    /// Peers whose connection has failed, each with the device's words.
    pub failed: Vec<(u64, String)>,
}

impl<G> Default for Reports<G> {
    fn default() -> Reports<G> {
        Reports { gone: Vec::new(), failed: Vec::new() }
    }
}

impl<G> Reports<G> {
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.failed.is_empty()
    }
}

struct State<P, G> {
    changes: Vec<Change<P>>,
    /// Why there is no peer.
    why: String,
    reports: Reports<G>,
    /// True if the queue is gone, and takes no change any more.
    is_closed: bool,
}

/// The peers of a queue in transit: `P` is the way to one, `G` what is left of it.
pub(super) struct Roster<P, G> {
    generation: AtomicU32,
    state: Mutex<State<P, G>>,
    /// The bell of the queue; the next is that of the control thread.
    pub queue_bell: EventFd,
    control_bell: Arc<EventFd>,
    /// Number of peers of the port that have gone, which its first queue counts.
    pub ended: AtomicU64,
    /// Number of times that the queue found the lock taken.
    pub contended: AtomicU64,
}

impl<P, G> Roster<P, G> {
    /// Creates a roster without peers; the control thread waits for `control_bell`.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(control_bell: &Arc<EventFd>) -> Result<Roster<P, G>> {
        let state = State {
            changes: Vec::new(),
            why: String::new(),
            reports: Reports::default(),
            is_closed: false,
        };
        Ok(Roster {
            generation: AtomicU32::new(0),
            state: Mutex::new(state),
            queue_bell: EventFd::new()?,
            control_bell: control_bell.clone(),
            ended: AtomicU64::new(0),
            contended: AtomicU64::new(0),
        })
    }

    /// Returns the number of changes so far, which the queue compares with the number it has seen.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes the changes and the reason why there is no peer, and gives `reports`; returns the
    /// generation that has them, or `None` if the control thread has the lock. For the queue: never
    /// waits.
    pub fn exchange(
        &self,
        changes: &mut Vec<Change<P>>,
        why: &mut String,
        reports: &mut Reports<G>,
    ) -> Option<u32> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(state)) => state.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                self.contended.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        self.queue_bell.drain();
        changes.append(&mut state.changes);
        why.clone_from(&state.why);
        if !reports.is_empty() {
            state.reports.gone.append(&mut reports.gone);
            state.reports.failed.append(&mut reports.failed);
            self.control_bell.signal();
        }
        Some(self.generation.load(Ordering::Relaxed))
    }

    /// Publishes a change. A peer that leaves before the queue has seen it is never seen, and none
    /// is seen by a queue that is gone. For the control thread.
    pub fn publish(&self, change: Change<P>) {
        let mut state = self.lock();
        if state.is_closed {
            // The way is dropped by the caller's thread, after the lock.
            return drop((state, change));
        }
        let unseen = match &change {
            Change::Joined(_) => None,
            Change::Left(id) => {
                let is_it = |change: &Change<P>| matches!(change, Change::Joined(joined) if joined.id == *id);
                state.changes.iter().position(is_it)
            }
        };
        // Its way is dropped after the lock.
        let _unseen = match unseen {
            Some(at) => Some(state.changes.remove(at)),
            None => {
                state.changes.push(change);
                None
            }
        };
        self.advance();
        // Under the lock: the queue clears the bell for exactly the changes that it takes.
        self.queue_bell.signal();
        drop(state);
    }

    /// Publishes why there is no peer, without waking the queue. For the control thread.
    pub fn say(&self, why: &str) {
        why.clone_into(&mut self.lock().why);
        self.advance();
    }

    /// Takes what the queue has reported. For the control thread.
    pub fn reports(&self) -> Reports<G> {
        std::mem::take(&mut self.lock().reports)
    }

    /// Takes all that is left in the roster of a queue that goes, which gets no peer any more.
    ///
    /// Cost: waits for the lock. For the end of a queue.
    pub fn close(&self) -> (Vec<Change<P>>, Reports<G>) {
        let mut state = self.lock();
        state.is_closed = true;
        (std::mem::take(&mut state.changes), std::mem::take(&mut state.reports))
    }

    /// Returns true if the queue is gone. For the control thread.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn advance(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State<P, G>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bell() -> Arc<EventFd> {
        Arc::new(EventFd::new().unwrap())
    }

    fn joined<P>(id: u64, way: P) -> Joined<P> {
        let (datagram_bytes, connection_bytes, connection) = (1024, None, None);
        Joined {
            id,
            way,
            datagram_bytes,
            connection_bytes,
            gid: [1; 16],
            pairs: [3].into(),
            connection,
        }
    }

    #[test]
    fn changes_are_taken_once_and_reports_come_back() {
        let roster = Roster::new(&bell()).unwrap();
        roster.say("no call");
        let (mut changes, mut why) = (Vec::new(), String::new());
        let mut reports = Reports::default();
        assert_eq!(roster.exchange(&mut changes, &mut why, &mut reports), Some(1));
        assert_eq!((changes.len(), why.as_str()), (0, "no call"));
        roster.publish(Change::Joined(joined(7, "a")));
        roster.say("it hung up");
        assert_eq!(roster.generation(), 3);
        reports.gone.push("old");
        assert_eq!(roster.exchange(&mut changes, &mut why, &mut reports), Some(3));
        assert_eq!((changes.len(), why.as_str(), reports.is_empty()), (1, "it hung up", true));
        roster.publish(changes.pop().unwrap());
        roster.publish(Change::Left(7));
        assert_eq!(roster.exchange(&mut changes, &mut why, &mut reports), Some(5));
        assert!(changes.is_empty(), "it was not seen: {changes:?}");
        assert_eq!(roster.reports().gone, ["old"]);
        assert!(roster.reports().is_empty());
    }

    #[test]
    fn a_queue_does_not_wait_for_the_control_thread() {
        let roster = Roster::<(), ()>::new(&bell()).unwrap();
        let state = roster.lock();
        let taken = roster.exchange(&mut Vec::new(), &mut String::new(), &mut Reports::default());
        assert_eq!((taken, roster.contended.load(Ordering::Relaxed)), (None, 1));
        drop(state);
    }

    #[test]
    fn a_queue_that_is_gone_gets_no_peer() {
        let roster = Roster::<_, ()>::new(&bell()).unwrap();
        let way = Arc::new(());
        roster.publish(Change::Joined(joined(1, way.clone())));
        assert_eq!(Arc::strong_count(&way), 2);
        assert_eq!((roster.is_closed(), roster.close().0.len()), (false, 1));
        roster.publish(Change::Joined(joined(2, way.clone())));
        assert_eq!((roster.is_closed(), Arc::strong_count(&way)), (true, 1));
    }
}
