//! The client's end of the socket: it connects, repeatedly, and offers the memory to share.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result, Trust};
use linerate_sys::mem::Pages;
use linerate_sys::seqpacket::Seqpacket;
use linerate_sys::unix;
use linerate_sys::wait::{Epoll, EventFlags, WaitSet};

use super::HANDSHAKE_TIMEOUT;
use super::channel::{Channel, NO_USER};
use super::client_memory::{ClientMemory, Layout};
use super::closer::{Useless, Waste};
use super::config::{Config, Sharing};
use super::handshake::{Client, Ending, Limits, Step};
use super::link::Event;
use super::listener::CLOSING;
use super::message::Message;
use super::ring::REGION_BYTES_MAX;
use super::turn::{Protocol, Turn};

/// Interval between attempts to connect to an absent server.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between attempts to connect to a server for which too many clients wait. A longer one
/// would let other clients refill the backlog before each attempt.
const FULL_INTERVAL: Duration = Duration::from_millis(5);

/// The client's end of the socket, with its present connection.
pub(super) struct Connector {
    pool: Pool,
    /// The server's path, which the process's working directory does not change.
    address: PathBuf,
    watch: WaitSet,
    state: State,
    /// The user of the last server, if the server was refused and its socket counts as that user's
    /// in the closing threads.
    refused: Option<u32>,
}

enum State {
    /// No connection until the time of the next attempt.
    Waiting(Instant),
    Handshake(Box<Handshake>),
    Connected(Channel),
}

/// A connection whose handshake is not complete.
struct Handshake {
    channel: Channel,
    machine: Client,
    memory: Option<ClientMemory>,
    /// The time by which the server must answer.
    until: Instant,
}

impl Connector {
    pub fn new(config: &Config, pool: &Pool) -> Result<Connector> {
        check(config, pool)?;
        let (watch, state) = (WaitSet::new(0)?, State::Waiting(Instant::now()));
        let address = unix::lasting(&config.path);
        Ok(Connector { pool: pool.clone(), address, watch, state, refused: None })
    }

    /// Connects to the server, if its user is allowed: no other server gets the secret or the
    /// memory.
    ///
    /// # Errors
    /// Why no connection was made.
    fn connect(&mut self, turn: &mut Turn<'_>, until: Instant) -> std::result::Result<(), Event> {
        let socket = Seqpacket::connect(&self.address).map_err(Event::Unreachable)?;
        let channel = Channel(socket);
        let watched = match channel.check_peer(turn.config) {
            Ok(user) if turn.closer.is_full(Some(user), turn.waste) => Err(CLOSING.to_owned()),
            Ok(_) => self.watch.add(&channel, 0, EventFlags::IN).map_err(|e| e.to_string()),
            Err(ending) => Err(channel.refuse(ending)),
        };
        if let Err(why) = watched {
            self.refused = channel.close_user();
            turn.close(channel, (), 0);
            return Err(Event::Ended(why));
        }
        self.refused = None;
        self.alarm(until);
        let machine = Client::new(turn.config);
        let handshake = Handshake { channel, machine, memory: None, until };
        self.state = State::Handshake(Box::new(handshake));
        Ok(())
    }

    /// Takes the rings of a completed handshake.
    fn connected(&mut self, turn: &mut Turn<'_>) -> Event {
        let memory = match &mut self.state {
            State::Handshake(handshake) => handshake.memory.take(),
            _ => None,
        };
        // `end` passes the socket to a closing thread, because its close may block.
        let Some(memory) = memory else {
            self.end(turn, RECONNECT_INTERVAL);
            return Event::Ended("the server answered too early".into());
        };
        let state = std::mem::replace(&mut self.state, State::Waiting(Instant::now()));
        if let State::Handshake(handshake) = state {
            self.state = State::Connected(handshake.channel);
        }
        let _ = self.watch.alarm(None);
        Event::Connected(memory.rings(turn.config, &self.pool))
    }

    /// Closes the socket; the next attempt follows after `interval`.
    fn end(&mut self, turn: &mut Turn<'_>, interval: Duration) {
        let again = Instant::now() + interval;
        let user = self.channel().map(|channel| {
            // The socket stays readable until it is closed, which can be late.
            let _ = self.watch.delete(channel);
            channel.close_user()
        });
        let state = std::mem::replace(&mut self.state, State::Waiting(again));
        turn.waste.extend(user.map(|user| Waste::of(user, state.descriptors(), state)));
        self.alarm(again);
    }

    /// Returns the socket of the present connection.
    fn channel(&self) -> Option<&Channel> {
        match &self.state {
            State::Waiting(_) => None,
            State::Handshake(handshake) => Some(&handshake.channel),
            State::Connected(channel) => Some(channel),
        }
    }

    fn alarm(&mut self, at: Instant) {
        // If the timer cannot be set, the next turn checks the time.
        let _ = self.watch.alarm(Some(at));
    }
}

impl Protocol for Connector {
    fn watch(&self) -> &Epoll {
        &self.watch
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> Option<Event> {
        loop {
            let now = Instant::now();
            let mut fds = Vec::new();
            let step = match &mut self.state {
                State::Waiting(until) if *until > now => return None,
                // Another attempt would add a socket that waits for its close.
                State::Waiting(_) if turn.closer.is_full(self.refused, turn.waste) => {
                    Err(Event::Ended(CLOSING.into()))
                }
                State::Waiting(_) => self.connect(turn, now + HANDSHAKE_TIMEOUT),
                State::Handshake(handshake) => {
                    match handshake.turn(turn, &self.pool, now, &mut fds) {
                        Ok(None) => return None,
                        Ok(Some(Step::Connected)) => return Some(self.connected(turn)),
                        Ok(Some(_)) => Ok(()),
                        Err(why) => Err(Event::Ended(why)),
                    }
                }
                State::Connected(channel) => {
                    let why = match turn.recv(channel, channel.user(), &mut fds) {
                        Ok(None) => return None,
                        Ok(Some(Message::Disconnect(why))) => {
                            format!("the server has disconnected: {why}")
                        }
                        Ok(Some(_)) => channel.refuse(Ending::Refused("unexpected message")),
                        Err(Ending::ByPeer(why)) => why,
                        Err(ending) => channel.refuse(ending),
                    };
                    Err(Event::Ended(why))
                }
            };
            if !fds.is_empty() {
                let user = self.channel().map_or(NO_USER, Channel::user);
                turn.waste.push(Waste::of(user, fds.len(), Useless(fds)));
            }
            if let Err(event) = step {
                let interval = match &event {
                    Event::Unreachable(e) if e.kind() == ErrorKind::WouldBlock => FULL_INTERVAL,
                    _ => RECONNECT_INTERVAL,
                };
                self.end(turn, interval);
                return Some(event);
            }
        }
    }

    fn hang_up(&mut self, why: &'static str, turn: &mut Turn<'_>) {
        if let State::Connected(channel) = &self.state {
            channel.refuse(Ending::Refused(why));
        }
        self.end(turn, RECONNECT_INTERVAL);
    }

    fn close(&mut self, turn: &mut Turn<'_>) {
        if let Some(channel) = self.channel() {
            channel.shut();
        }
        self.end(turn, RECONNECT_INTERVAL);
    }
}

impl State {
    /// Returns the number of descriptors of the connection, ours and the socket.
    fn descriptors(&self) -> usize {
        match self {
            State::Waiting(_) => 0,
            State::Handshake(handshake) => {
                let memory = handshake.memory.as_ref().map_or(0, ClientMemory::descriptors);
                1 + handshake.machine.unsent() + memory
            }
            State::Connected(_) => 1,
        }
    }
}

impl Handshake {
    /// Reads and answers one message of the server; returns the step taken, or `None` if no message
    /// has arrived.
    ///
    /// # Errors
    /// Why the handshake has ended.
    fn turn(
        &mut self,
        turn: &Turn<'_>,
        pool: &Pool,
        now: Instant,
        fds: &mut Vec<OwnedFd>,
    ) -> std::result::Result<Option<Step>, String> {
        let step = match turn.recv(&self.channel, self.channel.user(), fds) {
            Ok(None) if self.until <= now => return Err("the server does not answer".into()),
            Ok(None) => return Ok(None),
            Ok(Some(message)) => self.machine.on(&message, fds),
            Err(Ending::ByPeer(why)) => return Err(why),
            Err(ending) => Err(ending),
        };
        let mut step = step.map_err(|ending| self.channel.refuse(ending))?;
        if let Step::Make(limits) = step {
            let made = ClientMemory::new(limits, turn.config, pool);
            let (memory, messages) = made.map_err(|why| self.channel.refuse(Ending::Unfit(why)))?;
            self.memory = Some(memory);
            step = self.machine.offer(messages).map_err(|ending| self.channel.refuse(ending))?;
        }
        if let Step::Send(message, fd) = &mut step {
            self.channel.send(message, fd.take()).map_err(|e| e.to_string())?;
        }
        Ok(Some(step))
    }
}

/// Checks that the configuration allows this pool to be shared.
fn check(config: &Config, pool: &Pool) -> Result<()> {
    let refuse = |why: &str, fix: &str| {
        let what = format!("cannot connect to memif {}", config.path.display());
        Err(Error::new(Code::Memory, what, why).fix(fix))
    };
    let (sharing, huge) = (config.sharing, pool.pages() == Pages::Huge2M);
    match (sharing, pool.trust()) {
        (Sharing::Write, Trust::Private) => {
            return refuse(
                "the peer would write into the pool's memory, and the pool is private",
                "use zerocopy=no, or zerocopy=read with a reader, or create the pool with Trust::Exported",
            );
        }
        (Sharing::Read, Trust::Exported) => {
            return refuse(
                "a peer that only reads needs a private pool, and the pool is exported",
                "use zerocopy=yes or zerocopy=no",
            );
        }
        (Sharing::Write, _) if huge && !config.trust => {
            return refuse(
                "the peer could punch holes into the pool's huge pages, and this process would get SIGBUS",
                "if the peer is trusted not to do so, add trust=yes; or create the pool with Huge::Try",
            );
        }
        _ => {}
    }
    // SAFETY: only the region's length is read; no byte is read or written.
    let region = unsafe { pool.region() };
    let bytes = region.map_or(0, |region| region.len() as u64);
    if sharing != Sharing::Nothing && !(1..=REGION_BYTES_MAX).contains(&bytes) {
        let why = format!("a pool of {bytes} bytes cannot be a region, which has 4 GiB at most");
        return refuse(&why, "use fewer frames in the pool, or zerocopy=no");
    }
    let bytes = Layout::new(Limits::wanted(config), config).bytes;
    if bytes as u64 > REGION_BYTES_MAX {
        let why = format!("its rings and buffers take {bytes} bytes, of 4 GiB at most");
        return refuse(&why, "use smaller values of rings, size or buffer");
    }
    Ok(())
}
