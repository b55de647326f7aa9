//! The state that the queues of a port share: the connection, which any of them keeps going, and
//! the rings of it that each has.
//!
//! ```text
//!   queue 0 ─┐                       ┌─ seat 0: rings of this connection, until queue 0 takes them
//!   queue 1 ─┼─► Link ── Control ────┼─ seat 1
//!   queue 2 ─┘    generation         └─ seat 2
//! ```
//!
//! A queue looks at the generation whenever it is called: one load. When it has moved on, the queue gives
//! up the rings that it has, and takes those that its seat has now, if any. Whatever ends a connection,
//! a peer's word, its death or a lie found by any queue, moves the generation on.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::wait::{Epoll, EventFd, NO_EVENT, poll_readable};

use super::config::{Config, Role};
use super::dial::Dial;
use super::ring::Lie;
use super::session::Session;
use super::welcome::Welcome;
use crate::queue::Health;

/// Longest time that opening waits for a server that answers.
const MEETING: Duration = Duration::from_millis(200);

/// Shared by the queues of a port.
pub(super) struct Link {
    pub config: Config,
    generation: AtomicU32,
    now: Mutex<Now>,
    control: Mutex<Control>,
    /// Readable when the control side has something to do.
    pub watch: Arc<Epoll>,
    /// Rung when the generation moves on, one for each queue.
    news: Box<[EventFd]>,
    /// Connections that have ended.
    pub ended: AtomicU64,
    /// The part of these that ended because of a lie.
    pub lies: AtomicU64,
}

/// The state that the queues read.
struct Now {
    health: Health,
    seats: Vec<Option<Session>>,
}

/// The side of the socket.
enum Control {
    Client(Dial),
    Server(Welcome),
}

/// A change at the socket.
pub(super) enum Event {
    /// A peer shares memory: rings for each queue that gets some.
    Connected(Vec<Option<Session>>),
    /// A peer shares memory no longer, or not yet; with the reason.
    Ended(String),
}

impl Link {
    /// Connects or listens, as the configuration says; with news for each queue.
    pub fn open(config: Config, pool: &Pool) -> Result<Arc<Link>> {
        let watch = Arc::new(Epoll::new()?);
        let queues = usize::from(config.rings);
        let control = match config.role {
            Role::Client => Control::Client(Dial::new(&config, pool, watch.clone())?),
            Role::Server => Control::Server(Welcome::new(&config, watch.clone())?),
        };
        Link::new(config, control, watch, queues)
    }

    /// Listens for one who has all rings, and services the link himself: there are no news.
    pub fn listen(config: Config) -> Result<Arc<Link>> {
        let watch = Arc::new(Epoll::new()?);
        let control = Control::Server(Welcome::new(&config, watch.clone())?);
        Link::new(config, control, watch, 0)
    }

    fn new(
        config: Config,
        control: Control,
        watch: Arc<Epoll>,
        listeners: usize,
    ) -> Result<Arc<Link>> {
        let why = match config.role {
            Role::Client => "it has not answered yet",
            Role::Server => "nobody has connected yet",
        };
        let health = Health::Down(absent(&config, why));
        let seats = (0..config.rings).map(|_| None).collect();
        let link = Arc::new(Link {
            config,
            generation: AtomicU32::new(0),
            now: Mutex::new(Now { health, seats }),
            control: Mutex::new(control),
            watch,
            news: (0..listeners).map(|_| EventFd::new()).collect::<Result<_>>()?,
            ended: AtomicU64::new(0),
            lies: AtomicU64::new(0),
        });
        link.turn();
        link.meet();
        Ok(link)
    }

    /// Gives a peer that is there the time to come to terms, so that what was obtained says so.
    fn meet(&self) {
        let until = Instant::now() + MEETING;
        let is_talking = || match &*self.control.lock().unwrap_or_else(PoisonError::into_inner) {
            Control::Client(dial) => dial.is_talking(),
            Control::Server(_) => false,
        };
        while is_talking() {
            let left = until.saturating_duration_since(Instant::now());
            if !poll_readable(&[self.watch.as_fd()], Some(left)).unwrap_or(false) {
                return;
            }
            self.turn();
        }
    }

    /// Returns the number of changes so far that a queue has to know.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The doorbell of queue `index`.
    pub fn news(&self, index: usize) -> &EventFd {
        &self.news[index]
    }

    /// Returns the present state for queue `index`, with its generation: the port's health, and the
    /// queue's rings, if they are new.
    pub fn take(&self, index: usize) -> (u32, Health, Option<Session>) {
        let mut now = self.now();
        (self.generation(), now.health.clone(), now.seats[index].take())
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
        let event = match &mut *control {
            Control::Client(dial) => dial.turn(&self.config),
            Control::Server(welcome) => welcome.turn(&self.config),
        };
        if let Some(event) = event {
            self.publish(event);
        }
    }

    /// Ends the connection of `generation`, whose peer has lied.
    pub fn accuse(&self, lie: Lie, generation: u32) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if self.generation() != generation {
            // It is over already.
            return;
        }
        self.lies.fetch_add(1, Ordering::Relaxed);
        match &mut *control {
            Control::Client(dial) => dial.hang_up(lie.as_str()),
            Control::Server(welcome) => welcome.hang_up(lie.as_str()),
        }
        self.publish(Event::Ended(format!("the peer was disconnected: {}", lie.as_str())));
    }

    fn publish(&self, event: Event) {
        let mut now = self.now();
        match event {
            Event::Connected(seats) => {
                now.health = Health::Up;
                now.seats = seats;
            }
            Event::Ended(why) => {
                if now.health == Health::Up {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
                let health = Health::Down(absent(&self.config, &why));
                if now.health == health {
                    return;
                }
                now.health = health;
                now.seats.iter_mut().for_each(|seat| *seat = None);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        self.news.iter().for_each(EventFd::signal);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port without a peer.
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
