//! An end of a link, as a queue or a reader has it: the descriptor to sleep on, and the rings of the
//! connection that there is now.
//!
//! ```text
//!  outside ──► epoll ─┬─ the socket: a peer that connects, speaks or goes        (any endpoint's work)
//!                     ├─ the link's bell: a connection has come or gone
//!                     ├─ the doorbell that the peer rings, while it is unmasked  (edge-triggered: never read)
//!                     └─ an alarm: what nobody announces
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{Epoll, EventFd, EventFlags, NO_EVENT, TimerFd};

use super::link::Link;
use super::ring::ProtocolError;
use super::rings::Rings;
use crate::host::RETRY;
use crate::queue::Health;

/// Calls that found nothing, after which a busy endpoint looks at the socket.
const IDLE_CALLS: u32 = 256;

const CONTROL: u64 = 0;
const CHANGE: u64 = 1;
const ALARM: u64 = 2;
/// The tag of doorbells, and of what else wakes an endpoint.
const BELL: u64 = 3;

/// An end of a link.
pub(super) struct Endpoint {
    pub link: Arc<Link>,
    /// The link's queues whose rings it takes; the first one has its bell.
    queues: Range<usize>,
    generation: u32,
    pub health: Health,
    set: Epoll,
    timer: TimerFd,
    /// The time that the timer is set to.
    alarm: Option<Instant>,
    /// The caller may have slept on the descriptor since it was last looked at.
    pub armed: bool,
    /// The health has changed, and the caller does not know yet.
    changed: bool,
    idle_calls: u32,
    /// The peer is to ring for what it sends.
    pub belled: bool,
    /// When a sleeper looks a second time: a peer may have published just before it saw that it is to ring.
    pub second_look: Option<Instant>,
}

impl Endpoint {
    /// Makes an end that is readable at once, for callers that wait before they arm, and has no rings yet.
    pub fn new(link: Arc<Link>, queues: Range<usize>) -> Result<Endpoint> {
        let (set, timer) = (Epoll::new()?, TimerFd::new()?);
        let fail = |e| Error::os(Code::System, "cannot wait for a peer", "epoll_ctl", e);
        set.add(&*link.watch, CONTROL, EventFlags::IN).map_err(fail)?;
        set.add(link.bell(queues.start), CHANGE, EventFlags::IN).map_err(fail)?;
        set.add(&timer, ALARM, EventFlags::IN).map_err(fail)?;
        let alarm = Some(Instant::now());
        timer.set_at(alarm).map_err(fail)?;
        Ok(Endpoint {
            link,
            queues,
            generation: 0,
            health: Health::Up,
            set,
            timer,
            alarm,
            armed: true,
            changed: false,
            idle_calls: 0,
            belled: false,
            second_look: None,
        })
    }

    /// Returns true if a connection has come or gone since [`Endpoint::attach`].
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.link.generation() != self.generation
    }

    /// Takes the rings of the present connection; without a ring that is `wanted`, the port is down because
    /// of `why`.
    #[cold]
    pub fn attach(&mut self, wanted: fn(&Rings) -> bool, why: &str) -> Vec<Rings> {
        self.link.bell(self.queues.start).drain();
        let (generation, mut health, rings) = self.link.take(self.queues.clone());
        if health == Health::Up && !rings.iter().any(wanted) {
            let what = format!("memif {}", self.link.config.path.display());
            health = Health::Down(Error::new(Code::DeviceDown, what, why));
        }
        self.changed |= self.health != health;
        (self.generation, self.health) = (generation, health);
        (self.belled, self.second_look) = (false, None);
        rings
    }

    /// Returns true if the health has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Ends the connection with a peer that violates the protocol.
    #[cold]
    pub fn disconnect(&self, error: ProtocolError) {
        self.link.disconnect(error, self.generation);
    }

    /// Wakes a sleeper when `bell` is rung.
    pub fn watch(&self, bell: &EventFd) -> rustix::io::Result<()> {
        self.set.add(bell, BELL, EventFlags::IN | EventFlags::ET)
    }

    /// Does not watch `bell` any more.
    pub fn forget(&self, bell: &EventFd) {
        let _ = self.set.delete(bell);
    }

    /// Services the socket if that has woken the caller.
    ///
    /// Cost: a syscall, and what there is to do.
    pub fn look(&mut self) {
        self.armed = false;
        let mut events = [NO_EVENT; 4];
        let n = self.set.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
        // Copies, because the kernel's structure is packed.
        if events[..n].iter().any(|&e| { e.data }.u64() == CONTROL) {
            self.link.service();
        }
    }

    /// Services the socket once in many calls that found nothing: a caller that polls is not woken by it.
    #[inline]
    pub fn idle(&mut self) {
        self.idle_calls += 1;
        if self.idle_calls >= IDLE_CALLS {
            self.idle_calls = 0;
            self.link.service();
        }
    }

    /// Notes that packets came.
    #[inline]
    pub fn busy(&mut self) {
        self.idle_calls = 0;
    }

    /// Notes whether the peer is to ring from `now` on; true if that is new, and is to be written to the rings.
    pub fn set_belled(&mut self, wanted: bool, now: Option<Instant>) -> bool {
        let is_new = wanted != self.belled;
        if is_new {
            self.belled = wanted;
            // Once after the caller fell asleep, not each time it looks.
            self.second_look = now.filter(|_| wanted).and_then(|now| now.checked_add(RETRY));
        }
        is_new
    }

    /// Lets the caller sleep until something rings, or until `alarm`; `None` is for ever.
    pub fn sleep(&mut self, alarm: Option<Instant>) {
        if alarm != self.alarm && self.timer.set_at(alarm).is_ok() {
            self.alarm = alarm;
        }
        self.armed = true;
    }

    /// Returns true if the alarm has rung at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        self.alarm.is_some_and(|at| at <= now)
    }

    /// Rings at `at`, too; true if it will.
    pub fn no_later(&mut self, at: Instant) -> bool {
        if self.alarm.is_none_or(|alarm| at < alarm) && self.timer.set_at(Some(at)).is_ok() {
            self.alarm = Some(at);
        }
        self.is_due(at)
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
