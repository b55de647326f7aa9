//! The connection of a port: the state that its endpoints share with the control thread.
//!
//! ```text
//!   queue 0 ─┐            ┌─ binding 0: rings of this connection, until queue 0 takes them
//!   queue 1 ─┼─► Link ◄───┼─ binding 1                              ◄─── control thread
//!   queue 2 ─┘ generation └─ binding 2
//! ```
//!
//! An endpoint looks at the generation whenever it is called: one load. When it has moved on, the
//! endpoint gives up the rings that it has, and takes those that are bound to its queues now, if
//! any. Whatever ends a connection, a peer's word, its death or a violation of the protocol, moves
//! the generation on.

use std::fmt::Display;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::unix::own_user;
use linerate_sys::wait::{EventFd, poll_readable};
use rustix::io::Errno;

use super::closer::Waste;
use super::config::{Config, Role};
use super::connector::Connector;
use super::control::{CLOSE_MIN, Control};
use super::handover::Handover;
use super::listener::Listener;
use super::ring::ProtocolError;
use super::rings::Rings;
use super::sync::lock;
use super::turn::Protocol;
use crate::queue::Health;

/// Longest time that opening waits for a server that answers.
const OPEN_TIMEOUT: Duration = Duration::from_millis(200);

/// The connection of a port. When the last endpoint drops it, the control thread closes the socket.
pub(super) struct Link {
    shared: Arc<Shared>,
    control: Arc<Control>,
}

/// The part of a connection that endpoints and control thread share.
pub(super) struct Shared {
    pub config: Config,
    handover: Handover<Health, Rings, Waste>,
    /// Bells of the endpoints, rung when the generation changes.
    bells: Box<[EventFd]>,
    /// Number of connections that have ended.
    pub ended: AtomicU64,
    /// Number of connections that ended because the peer violated the protocol.
    pub errors: AtomicU64,
    /// Number of queues that are not closed.
    open: AtomicUsize,
    /// Generation of the last connection that a queue has asked to end, and the time until which
    /// each queue that asks waits at least.
    hung_up: Mutex<Option<(u32, Instant)>>,
}

/// A change at the socket.
pub(super) enum Event {
    /// A peer shares memory; the value holds the rings of each queue that gets some.
    Connected(Vec<Option<Rings>>),
    /// connect(2) to the server failed with this error.
    Unreachable(io::Error),
    /// No peer shares memory, for this reason.
    Ended(String),
    /// This side has ended the connection, for this reason; not counted as a reset.
    Left(String),
}

impl Link {
    /// Opens a port that connects or listens, as the configuration requires; each queue is an
    /// endpoint.
    pub fn open(config: Config, pool: &Pool) -> Result<Arc<Link>> {
        let queues = config.rings.into();
        match config.role {
            Role::Client => {
                let connector = Connector::new(&config, pool)?;
                Link::new(config, Box::new(connector), queues)
            }
            Role::Server => {
                let listener = Listener::new(&config)?;
                Link::new(config, Box::new(listener), queues)
            }
        }
    }

    /// Opens a port that listens, with one endpoint for all rings.
    pub fn listen(config: Config) -> Result<Arc<Link>> {
        let listener = Listener::new(&config)?;
        Link::new(config, Box::new(listener), 1)
    }

    fn new(config: Config, protocol: Box<dyn Protocol>, endpoints: usize) -> Result<Arc<Link>> {
        let why = match config.role {
            Role::Client => "the server has not answered yet",
            Role::Server => "no client has connected yet",
        };
        let health = Health::Down(absent(&config, why));
        let shared = Arc::new(Shared {
            handover: Handover::new(health, config.rings.into()),
            config,
            bells: (0..endpoints).map(|_| EventFd::new()).collect::<Result<_>>()?,
            ended: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            open: AtomicUsize::new(endpoints),
            hung_up: Mutex::default(),
        });
        let control = Control::of_this_thread()?;
        control.add(shared.clone(), protocol)?;
        let link = Link { shared, control };
        if link.config.role == Role::Client {
            // Wait for the server, so that the port's properties show whether there is a peer.
            let _ = poll_readable(&[link.bells[0].as_fd()], Some(OPEN_TIMEOUT));
        }
        Ok(Arc::new(link))
    }

    /// Gives back `retired`, and takes the rings of `queues`: see [`Handover::exchange`].
    pub fn exchange(
        &self,
        queues: Range<usize>,
        retired: &mut Vec<Waste>,
    ) -> Option<(u32, Health, Vec<Rings>)> {
        let (bell, is_waste) = (self.bell(queues.start), !retired.is_empty());
        let taken = self.handover.exchange(queues, retired, || _ = bell.drain());
        if taken.is_some() && is_waste {
            self.control.ring();
        }
        taken
    }

    /// Passes the objects of a closed endpoint to the control thread.
    pub fn give_back(&self, retired: &mut Vec<Waste>) {
        self.handover.give_back(retired);
        self.control.ring();
    }

    /// Ends the connection of `generation`, whose peer has violated the protocol.
    ///
    /// Cost: a syscall; the control thread does the rest.
    pub fn disconnect(&self, error: ProtocolError, generation: u32) {
        if self.handover.accuse(generation, error as u8) {
            self.control.ring();
        }
    }

    /// Ends the connection of `generation` for `why`, which is no fault of the peer; returns true
    /// if that connection has ended.
    ///
    /// Cost: waits for the control thread, until `until` or for [`Control::hang_up`]'s least time.
    pub fn hang_up(&self, generation: u32, why: &'static str, until: Instant) -> bool {
        self.control.hang_up(&self.shared, generation, why, until)
    }

    /// Counts a queue as closed. After the last one of a client, the control thread ends the
    /// connection, and connects no more.
    ///
    /// Cost: a syscall for the last queue.
    pub fn close_queue(&self) {
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.control.ring();
        }
    }

    /// Has `waste` dropped after the connection has ended, whose end [`Link::hang_up`] has
    /// requested.
    pub fn dispose(&self, waste: Waste) {
        self.control.dispose(waste);
    }
}

impl Deref for Link {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.control.remove(&self.shared);
    }
}

impl Shared {
    /// Returns the generation: the number of changes of the connection, which endpoints compare
    /// with the number they have seen.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.handover.generation()
    }

    /// Returns the bell of the endpoint whose first queue is `queue`.
    pub fn bell(&self, queue: usize) -> &EventFd {
        &self.bells[queue]
    }

    /// Returns true if all queues of a client are closed.
    pub fn is_over(&self) -> bool {
        self.config.role == Role::Client && self.open.load(Ordering::Acquire) == 0
    }

    /// Returns the time until which a queue that asks at `now` to end the connection of
    /// `generation` waits at least: [`CLOSE_MIN`] after the first queue asked, so that the waits of
    /// several queues are no sum.
    pub fn least_until(&self, generation: u32, now: Instant) -> Instant {
        let mut hung_up = lock(&self.hung_up);
        let known = hung_up.filter(|(of, _)| *of == generation);
        hung_up.insert(known.unwrap_or((generation, now + CLOSE_MIN))).1
    }

    /// Returns the present peer's violation of the protocol, if an endpoint has found one and it
    /// was not returned before.
    pub fn take_violation(&self) -> Option<ProtocolError> {
        let code = self.handover.take_violation()?;
        self.errors.fetch_add(1, Ordering::Relaxed);
        ProtocolError::ALL.into_iter().find(|error| *error as u8 == code)
    }

    /// Calls `inside` while the state is locked, as it is while another thread changes it.
    #[cfg(test)]
    pub fn locked<R>(&self, inside: impl FnOnce() -> R) -> R {
        let mut result = None;
        let change = |_: &mut super::handover::State<Health, Rings, Waste>| {
            result = Some(inside());
            false
        };
        self.handover.publish(change, || {});
        result.expect("it was called")
    }

    /// Publishes `event`, if there is one, to the endpoints; moves the objects that endpoints have
    /// returned to `waste`.
    pub fn publish(&self, event: Option<Event>, waste: &mut Vec<Waste>) {
        let change = |state: &mut super::handover::State<Health, Rings, Waste>| {
            waste.append(&mut state.retired);
            let health = match &event {
                None => return false,
                Some(Event::Connected(_)) => Health::Up,
                Some(Event::Unreachable(e)) => Health::Down(cannot_connect(&self.config, e)),
                Some(Event::Ended(why) | Event::Left(why)) => {
                    Health::Down(absent(&self.config, why))
                }
            };
            if matches!(event, Some(Event::Ended(_))) && state.health == Health::Up {
                self.ended.fetch_add(1, Ordering::Relaxed);
            }
            let bindings = match event {
                Some(Event::Connected(bindings)) => bindings,
                _ => state.bindings.iter().map(|_| None).collect(),
            };
            let is_new = health == Health::Up || health != state.health;
            state.health = health;
            let old = std::mem::replace(&mut state.bindings, bindings);
            waste.extend(old.into_iter().flatten().map(Waste::rings));
            is_new
        };
        self.handover.publish(change, || self.bells.iter().for_each(EventFd::signal));
    }
}

/// Returns the error of a port without a peer.
pub(super) fn absent(config: &Config, why: &str) -> Error {
    let path = config.path.display();
    let (what, fix) = match config.role {
        Role::Client => (
            format!("memif {path} is not connected"),
            format!(
                "start the server at {path}, or check that this is its path: the port connects by itself when the server accepts it"
            ),
        ),
        Role::Server => (
            format!("memif {path} has no client"),
            format!("start a client: memif:{path},role=client,id={}", config.id),
        ),
    };
    Error::new(Code::DeviceDown, what, why).fix(fix)
}

/// Returns what an error says of a client if no server listens at `path`, or if too many clients
/// wait for the server: a later attempt may succeed.
pub(super) fn no_server(path: impl Display) -> String {
    format!("memif {path} has no server")
}

/// Returns the error of a client whose connect(2) failed with `e`.
fn cannot_connect(config: &Config, e: &io::Error) -> Error {
    let why = e.to_string();
    let fix = match Errno::from_io_error(e) {
        Some(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => {
            let mut error = absent(config, &why);
            error.what = no_server(config.path.display());
            return error;
        }
        Some(Errno::ACCESS) => {
            let user = own_user();
            format!(
                "the socket file and its directories must admit this user: peer={user} at the \
                 server, with a umask that leaves the file writable; or run both programs as one \
                 user"
            )
        }
        Some(Errno::NAMETOOLONG) => {
            "name a path of at most 108 bytes, as one relative to the working directory".to_owned()
        }
        Some(Errno::PROTOTYPE) => {
            "the path is a socket of another kind: name the socket of a memif server".to_owned()
        }
        _ => "remove the cause; this port tries to connect ten times a second".to_owned(),
    };
    let what = format!("cannot connect to memif {}", config.path.display());
    Error::new(Code::DeviceDown, what, why).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::super::turn::Turn;
    use super::*;

    use linerate_sys::wait::Epoll;
    use std::path::Path;

    /// A side of a socket whose descriptor belongs to another port, too: the kernel refuses to
    /// watch it twice.
    struct Twin(Arc<Epoll>);

    impl Protocol for Twin {
        fn watch(&self) -> &Epoll {
            &self.0
        }

        fn turn(&mut self, _: &mut Turn<'_>) -> Option<Event> {
            None
        }

        fn hang_up(&mut self, _: &'static str, _: &mut Turn<'_>) {}

        fn close(&mut self, _: &mut Turn<'_>) {}
    }

    #[test]
    fn port_that_the_control_thread_cannot_watch_is_not_opened() {
        let set = Arc::new(Epoll::new().unwrap());
        let open = || {
            let config = Config::reader_at(Path::new("@linerate-twin")).unwrap();
            Link::new(config, Box::new(Twin(set.clone())), 1)
        };
        let first = open().unwrap();
        let e = open().err().expect("the second port is refused");
        assert!(e.why.starts_with("epoll_ctl: ") && e.fix.contains("max_user_watches"), "{e}");
        drop(first);
        assert!(open().is_ok());
    }

    #[test]
    fn remedy_for_a_failed_connect_depends_on_its_error() {
        let config = Config::of(&crate::parse("memif:@x").unwrap()).unwrap();
        let error = |errno: Errno| cannot_connect(&config, &errno.into());
        for errno in [Errno::NOENT, Errno::CONNREFUSED, Errno::AGAIN] {
            let e = error(errno);
            assert!(e.what == no_server("@x") && e.fix.starts_with("start the server"), "{e}");
        }
        for (errno, fix) in [
            (Errno::ACCESS, "the socket file and its directories must admit this user"),
            (Errno::PROTOTYPE, "the path is a socket of another kind"),
            (Errno::NAMETOOLONG, "name a path of at most 108 bytes"),
            (Errno::MFILE, "remove the cause"),
        ] {
            let e = error(errno);
            assert!(e.what != no_server("@x") && e.fix.starts_with(fix), "{e}");
        }
        let (e, peer) = (error(Errno::ACCESS), format!("peer={} at the server,", own_user()));
        assert!(e.fix.contains(&peer) && e.fix.contains("umask"), "{e}");
        assert_ne!(absent(&config, "it was refused").what, no_server("@x"));
    }
}
