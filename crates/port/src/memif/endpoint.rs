//! An end of a link, held by a queue or a reader: the descriptor to sleep on, and the rings of the
//! present connection.
//!
//! ```text
//!  outside ──► epoll ─┬─ the link's bell: a connection has come or gone
//!                     ├─ the doorbell that the peer rings, while it is unmasked  (edge-triggered: never read)
//!                     └─ an alarm: what no peer announces
//! ```

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{EventFd, EventFlags, NO_EVENT, WaitSet};

use super::closer::Waste;
use super::link::{Link, absent};
use super::ring::ProtocolError;
use super::rings::Rings;
use crate::host::RETRY;
use crate::queue::Health;

const CHANGE: u64 = 1;
const ALARM: u64 = 2;
/// The tag of doorbells and other events that wake an endpoint.
const BELL: u64 = 3;
/// Most events that one call reads: those of a queue are fewer.
const EVENTS_MAX: usize = 4;

/// An end of a link.
pub(super) struct Endpoint {
    pub link: Arc<Link>,
    /// The link's queues whose rings the endpoint uses; the bell of the first queue wakes the
    /// endpoint.
    queues: Range<usize>,
    generation: Cell<u32>,
    /// The violation of the protocol that this endpoint has found, with the generation of the peer.
    failed: Cell<Option<(u32, ProtocolError)>>,
    /// Mappings and descriptors that the control thread is to close.
    retired: Vec<Waste>,
    pub health: Health,
    pub set: WaitSet,
    /// True if the caller may have slept on the descriptor since the endpoint last checked it.
    pub armed: bool,
    /// True if the health has changed and the change has not been reported to the caller.
    changed: bool,
    /// True if the peer should ring the doorbell when it sends.
    pub belled: bool,
    /// Time of a second check of the rings: a peer may have published packets just before it saw
    /// the request to ring.
    pub second_look: Option<Instant>,
    /// True if a doorbell of the present connection cannot be watched, so that a sleeper must wake
    /// at intervals and check the rings.
    polls: bool,
}

impl Endpoint {
    /// Creates an end that is readable immediately, for callers that wait before they arm. It is
    /// stale until [`Endpoint::attach`].
    pub fn new(link: Arc<Link>, queues: Range<usize>) -> Result<Endpoint> {
        let mut set = WaitSet::new(ALARM)?;
        let fail = |e| Error::os(Code::System, "cannot wait for a peer", "epoll_ctl", e);
        set.add(link.bell(queues.start), CHANGE, EventFlags::IN).map_err(fail)?;
        set.alarm(Some(Instant::now())).map_err(fail)?;
        let stale = link.generation().wrapping_sub(1);
        Ok(Endpoint {
            link,
            queues,
            generation: Cell::new(stale),
            health: Health::Up,
            set,
            armed: true,
            changed: false,
            failed: Cell::new(None),
            retired: Vec::new(),
            belled: false,
            second_look: None,
            polls: false,
        })
    }

    /// Returns true if a connection has been made or lost since [`Endpoint::attach`].
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.link.generation() != self.generation.get()
    }

    /// Takes the rings of the present connection. If the connection has no `wanted` ring, the port
    /// is down with the reason `why` and the remedy `fix`. If another thread has locked the state,
    /// the endpoint stays stale and gets no rings.
    #[cold]
    pub fn attach(&mut self, wanted: fn(&Rings) -> bool, why: &str, fix: &str) -> Vec<Rings> {
        let present = self.link.generation();
        let failed = self.failed.get().filter(|(generation, _)| *generation == present);
        let taken = match failed {
            // The control thread has not yet ended the connection that this endpoint reported.
            Some((_, error)) => {
                let why = format!("the peer was disconnected: {}", error.as_str());
                let health = Health::Down(absent(&self.link.config, &why));
                Some((present, health, Vec::new()))
            }
            None => self.link.exchange(self.queues.clone(), &mut self.retired),
        };
        let Some((generation, mut health, rings)) = taken else { return Vec::new() };
        if health == Health::Up && !rings.iter().any(wanted) {
            let what = format!("memif {}", self.link.config.path.display());
            health = Health::Down(Error::new(Code::DeviceDown, what, why).fix(fix));
        }
        self.changed |= self.health != health;
        self.health = health;
        self.generation.set(generation);
        (self.belled, self.second_look, self.polls) = (false, None, false);
        rings
    }

    /// Passes rings or memory of the last connection to the control thread, which drops it.
    pub fn retire(&mut self, waste: impl Send + 'static) {
        self.retired.push(Waste::rings(waste));
    }

    /// Returns true if the health has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Ends the connection with a peer that violates the protocol; the endpoint is stale
    /// afterwards.
    #[cold]
    pub fn disconnect(&self, error: ProtocolError) {
        if self.is_stale() {
            // The connection has already ended.
            return;
        }
        let present = self.generation.get();
        self.link.disconnect(error, present);
        self.failed.set(Some((present, error)));
        self.generation.set(present.wrapping_sub(1));
    }

    /// Ends the connection whose rings the endpoint has, for `why`, which is no fault of the peer;
    /// returns true if that connection has ended. Waits for the control thread as [`Link::hang_up`]
    /// does.
    #[cold]
    pub fn hang_up(&self, why: &'static str, until: Instant) -> bool {
        self.is_stale() || self.link.hang_up(self.generation.get(), why, until)
    }

    /// Makes the endpoint's descriptor readable when `bell` is rung. If that fails,
    /// [`Endpoint::sleep`] sets an alarm instead, until the next connection.
    ///
    /// # Errors
    /// ENOSPC if the user has too many watches (fs.epoll.max_user_watches), ENOMEM, EEXIST.
    pub fn watch(&mut self, bell: &EventFd) -> rustix::io::Result<()> {
        let watched = self.set.add(bell, BELL, EventFlags::IN | EventFlags::ET);
        self.polls |= watched.is_err();
        watched
    }

    /// Stops watching `bell`.
    pub fn forget(&self, bell: &EventFd) {
        let _ = self.set.delete(bell);
    }

    /// Reads and clears the edge-triggered events of the descriptor.
    ///
    /// Cost: a syscall; for a reader another one for each two or more doorbells that were rung.
    pub fn look(&mut self) {
        self.armed = false;
        // Two members of the set are level-triggered, so each round reads two doorbells at least.
        // The number of rounds is limited, because a peer can ring at any time.
        for _ in 0..=self.queues.len() {
            let read = self.set.wait(&mut [NO_EVENT; EVENTS_MAX], Some(Duration::ZERO));
            if read != Ok(EVENTS_MAX) {
                return;
            }
        }
    }

    /// Records whether the peer should ring from `now` on; returns true if this is a change, which
    /// the caller must write to the rings.
    pub fn set_belled(&mut self, wanted: bool, now: Option<Instant>) -> bool {
        let is_new = wanted != self.belled;
        if is_new {
            self.belled = wanted;
            // Set the second check once, when the caller goes to sleep, not at each poll.
            self.second_look = now.filter(|_| wanted).and_then(|now| now.checked_add(RETRY));
        }
        is_new
    }

    /// Prepares the descriptor for the caller's sleep until an event, or until `alarm`; `None` sets
    /// no time.
    pub fn sleep(&mut self, alarm: Option<Instant>) {
        let look = if self.polls && self.belled { Instant::now().checked_add(RETRY) } else { None };
        let alarm = match (alarm, look) {
            (Some(alarm), Some(look)) => Some(alarm.min(look)),
            (alarm, look) => alarm.or(look),
        };
        // Setting the alarm cannot fail, because its descriptor is a timer.
        let _ = self.set.alarm(alarm);
        self.armed = true;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.link.give_back(&mut self.retired);
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
