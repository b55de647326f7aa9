//! The state that the endpoints of a port share: the connection, which any of them keeps going, and
//! the rings of it that each has.
//!
//! ```text
//!   queue 0 ─┐                       ┌─ binding 0: rings of this connection, until queue 0 takes them
//!   queue 1 ─┼─► Link ── Control ────┼─ binding 1
//!   queue 2 ─┘    generation         └─ binding 2
//! ```
//!
//! An endpoint looks at the generation whenever it is called: one load. When it has moved on, the endpoint
//! gives up the rings that it has, and takes those that are bound to its queues now, if any. Whatever ends a
//! connection, a peer's word, its death or a violation of the protocol, moves the generation on.

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::wait::{Epoll, EventFd, NO_EVENT, poll_readable};

use super::config::{Config, Role};
use super::connector::Connector;
use super::listener::Listener;
use super::ring::ProtocolError;
use super::rings::Rings;
use crate::queue::Health;

/// Longest time that opening waits for a server that answers.
const OPEN_TIMEOUT: Duration = Duration::from_millis(200);

/// The state that the endpoints of a port share.
pub(super) struct Link {
    pub config: Config,
    generation: AtomicU32,
    state: Mutex<State>,
    control: Mutex<Box<dyn Control>>,
    /// Readable when the control side has something to do.
    pub watch: Arc<Epoll>,
    /// Rung when the generation moves on, one for each endpoint.
    bells: Box<[EventFd]>,
    /// Connections that have ended.
    pub ended: AtomicU64,
    /// The part of these that ended because the peer violated the protocol.
    pub errors: AtomicU64,
}

/// The state that the endpoints read.
struct State {
    health: Health,
    bindings: Vec<Option<Rings>>,
}

/// The side of the socket.
pub(super) trait Control: Send {
    /// Handles what waits at the socket.
    fn turn(&mut self, config: &Config) -> Option<Event>;

    /// Ends the connection, and tells the peer why.
    fn hang_up(&mut self, why: &'static str);

    /// Returns true while a server answers, and the handshake is not complete.
    fn is_talking(&self) -> bool {
        false
    }
}

/// A change at the socket.
pub(super) enum Event {
    /// A peer shares memory: rings for each queue that gets some.
    Connected(Vec<Option<Rings>>),
    /// A peer shares memory no longer, or not yet; with the reason.
    Ended(String),
}

impl Link {
    /// Connects or listens, as the configuration says; each queue is an endpoint.
    pub fn open(config: Config, pool: &Pool) -> Result<Arc<Link>> {
        let watch = Arc::new(Epoll::new()?);
        let queues = config.rings.into();
        let control: Box<dyn Control> = match config.role {
            Role::Client => Box::new(Connector::new(&config, pool, watch.clone())?),
            Role::Server => Box::new(Listener::new(&config, watch.clone())?),
        };
        Link::new(config, control, watch, queues)
    }

    /// Listens for one endpoint that has all rings.
    pub fn listen(config: Config) -> Result<Arc<Link>> {
        let watch = Arc::new(Epoll::new()?);
        let control = Box::new(Listener::new(&config, watch.clone())?);
        Link::new(config, control, watch, 1)
    }

    fn new(
        config: Config,
        control: Box<dyn Control>,
        watch: Arc<Epoll>,
        endpoints: usize,
    ) -> Result<Arc<Link>> {
        let why = match config.role {
            Role::Client => "it has not answered yet",
            Role::Server => "nobody has connected yet",
        };
        let health = Health::Down(absent(&config, why));
        let bindings = (0..config.rings).map(|_| None).collect();
        let link = Arc::new(Link {
            config,
            generation: AtomicU32::new(0),
            state: Mutex::new(State { health, bindings }),
            control: Mutex::new(control),
            watch,
            bells: (0..endpoints).map(|_| EventFd::new()).collect::<Result<_>>()?,
            ended: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        });
        link.turn();
        link.meet();
        Ok(link)
    }

    /// Gives a peer that is there the time to come to terms, so that what was obtained says so.
    fn meet(&self) {
        let until = Instant::now() + OPEN_TIMEOUT;
        let is_talking =
            || self.control.lock().unwrap_or_else(PoisonError::into_inner).is_talking();
        while is_talking() {
            let left = until.saturating_duration_since(Instant::now());
            if !poll_readable(&[self.watch.as_fd()], Some(left)).unwrap_or(false) {
                return;
            }
            self.turn();
        }
    }

    /// Returns the number of changes so far that an endpoint has to know.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the bell of the endpoint whose first queue is `queue`.
    pub fn bell(&self, queue: usize) -> &EventFd {
        &self.bells[queue]
    }

    /// Returns the present state for `queues`, with its generation: the port's health, and the
    /// queues' rings, if they are new.
    pub fn take(&self, queues: Range<usize>) -> (u32, Health, Vec<Rings>) {
        let mut state = self.state();
        let rings = state.bindings[queues].iter_mut().filter_map(Option::take).collect();
        (self.generation(), state.health.clone(), rings)
    }

    /// Does what waits at the socket, unless another queue is at it.
    ///
    /// Cost: a syscall if there is nothing.
    pub fn service(&self) {
        let mut event = [NO_EVENT; 1];
        if self.watch.wait(&mut event, Some(Duration::ZERO)).is_ok_and(|n| n > 0) {
            self.turn();
        }
    }

    fn turn(&self) {
        let mut control = match self.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(event) = control.turn(&self.config) {
            self.publish(event);
        }
    }

    /// Ends the connection of `generation`, whose peer has violated the protocol.
    pub fn disconnect(&self, error: ProtocolError, generation: u32) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if self.generation() != generation {
            // It is over already.
            return;
        }
        self.errors.fetch_add(1, Ordering::Relaxed);
        control.hang_up(error.as_str());
        self.publish(Event::Ended(format!("the peer was disconnected: {}", error.as_str())));
    }

    fn publish(&self, event: Event) {
        let mut state = self.state();
        match event {
            Event::Connected(bindings) => {
                state.health = Health::Up;
                state.bindings = bindings;
            }
            Event::Ended(why) => {
                if state.health == Health::Up {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
                let health = Health::Down(absent(&self.config, &why));
                if state.health == health {
                    return;
                }
                state.health = health;
                state.bindings.iter_mut().for_each(|binding| *binding = None);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        self.bells.iter().for_each(EventFd::signal);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error of a port without a peer.
fn absent(config: &Config, why: &str) -> Error {
    let path = Path::new(&config.path).display();
    let (what, fix) = match config.role {
        Role::Client => (
            format!("memif {path} has no server"),
            format!("start the server at {path}; it is connected to as soon as it listens"),
        ),
        Role::Server => (
            format!("memif {path} has no client"),
            format!("start a client: memif:{path},role=client,id={}", config.id),
        ),
    };
    Error::new(Code::DeviceDown, what, why).fix(fix)
}
