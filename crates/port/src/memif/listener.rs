//! The server's end of the socket: it listens, runs handshakes with a few clients at a time, and
//! serves the first client that completes one.
//!
//! ```text
//!   accept ──► stranger: of a user that is allowed; 100 ms for its INIT; 2 places a user, 8 in all
//!                 │ id and secret are right
//!                 ▼
//!              guest: 2 s for the rest; 2 places a user, 8 in all; its descriptors are taken
//!                 │ CONNECT
//!                 ▼
//!              connected
//! ```
//!
//! At places that are all taken the oldest goes: a client that keeps to the protocol needs a place
//! for a moment. Clients are accepted in rounds, so that many clients that connect again and again
//! cost few wake-ups, and so that each one that gets a place keeps it for a round at least.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::seqpacket;
use linerate_sys::wait::{Epoll, EventFlags, WaitSet};

use super::HANDSHAKE_TIMEOUT;
use super::channel::Channel;
use super::closer::{Useless, Waste};
use super::config::{Config, Peer};
use super::handshake::{Ending, Reply, Server};
use super::link::Event;
use super::message::Message;
use super::rings::Rings;
use super::turn::{Protocol, Turn};
use crate::host::{is_busy, open_when_closed};

/// Longest time for a client to present the secret.
const INIT_TIMEOUT: Duration = Duration::from_millis(100);
/// Number of places for clients that have presented the secret; there are as many for the other
/// clients.
const PLACES: usize = 8;
/// Places of either kind that the clients of one user can take together.
const PLACES_OF_USER: usize = 2;
/// Most clients accepted in one round: more than can wait, so that one that keeps to the protocol
/// finds room.
const ACCEPTS_MAX: u32 = 1024;
/// Least time between two rounds, the time that each accepted client adds to it, and its limit. A
/// client that connects after a longer quiet time is accepted at once. Many clients wait longer, so
/// that they take less CPU time.
const ROUND: Duration = Duration::from_millis(2);
const ROUND_OF_CLIENT: Duration = Duration::from_millis(4);
const ROUND_MAX: Duration = Duration::from_millis(400);
/// Number of clients accepted in a round after which the next one is earlier, and the time until
/// it: the listener's backlog may have been full, and a client that finds it full is not in it.
const ACCEPTS_FULL: u32 = 256;
const ROUND_FULL: Duration = Duration::from_millis(50);
/// Most messages of one client processed in one turn.
const MESSAGES_MAX: usize = 64;
/// The reason for a peer of a user of whom too many objects wait to be closed.
pub(super) const CLOSING: &str = "files of the peer's user are not closed yet";
/// Interval between checks of a listener that is not watched.
const PAUSE: Duration = Duration::from_millis(100);

/// The server's end of the socket, with its clients.
pub(super) struct Listener {
    // First field, so that it is dropped first.
    listener: seqpacket::Listener,
    watch: WaitSet,
    /// Clients in their handshake, in the order of arrival.
    guests: Vec<Guest>,
    connected: Option<Channel>,
    /// True if the listener is watched; it is not between two rounds, and while no client can be
    /// accepted.
    listening: bool,
    /// Earliest time of the next round.
    next_round: Instant,
}

/// A client whose handshake is not complete.
struct Guest {
    channel: Channel,
    user: u32,
    machine: Server,
    until: Instant,
}

/// The state of a guest after its messages were processed.
enum GuestState {
    Waiting,
    Left,
    Connected(Vec<Option<Rings>>),
}

impl Listener {
    /// Listens at the path of `config`; blocks for up to 200 ms while another socket listens there.
    pub fn new(config: &Config) -> Result<Listener> {
        // Every user can open the file; `greet` checks the user of each client that connects.
        let mode = if config.peer == Peer::Own { 0o600 } else { 0o666 };
        let bind = || seqpacket::Listener::bind(&config.path, mode);
        let listener = open_when_closed(is_busy, bind)?;
        let watch = WaitSet::new(0)?;
        let what = || format!("cannot listen at {}", config.path.display());
        let fail = |e| Error::os(Code::System, what(), "epoll_ctl", e);
        watch.add(&listener, 0, EventFlags::IN).map_err(fail)?;
        let (guests, next_round) = (Vec::new(), Instant::now());
        Ok(Listener { listener, watch, guests, connected: None, listening: true, next_round })
    }

    /// Reads from the connected client, whose only valid message is to disconnect.
    fn recv_connected(&mut self, turn: &mut Turn<'_>) -> Option<Event> {
        let channel = self.connected.as_ref()?;
        let mut fds = Vec::new();
        let why = match turn.recv(channel, channel.user(), &mut fds) {
            Ok(None) => return None,
            Ok(Some(Message::Disconnect(why))) => channel.refuse(Ending::ByPeer(why)),
            Ok(Some(_)) => channel.refuse(Ending::Refused("unexpected message")),
            Err(ending) => channel.refuse(ending),
        };
        if let Some(channel) = self.connected.take() {
            let n = fds.len();
            self.retire(channel, Useless(fds), n, turn);
        }
        Some(Event::Ended(why))
    }

    /// Has a client's socket closed, and the `rest` of its objects, as [`Turn::close`] does. Stops
    /// watching the socket: it stays readable until it is closed, which can be late. There are
    /// objects that came from the client only if the socket takes descriptors.
    fn retire(
        &self,
        channel: Channel,
        rest: impl Send + 'static,
        descriptors: usize,
        turn: &mut Turn<'_>,
    ) {
        let _ = self.watch.delete(&channel);
        turn.close(channel, rest, descriptors);
    }

    fn retire_guest(&self, guest: Guest, turn: &mut Turn<'_>) {
        let n = guest.machine.doorbells();
        self.retire(guest.channel, guest.machine, n, turn);
    }

    /// Accepts the clients that wait, if it is time for a round. Returns the time of the next one,
    /// or `None` if the next client can be accepted as soon as it connects. Until that time the
    /// listener must not be watched, because it may stay readable: between two rounds, and while no
    /// client can be accepted, for example without free descriptors.
    fn accept(&mut self, turn: &mut Turn<'_>, now: Instant) -> Option<Instant> {
        if now < self.next_round {
            return Some(self.next_round);
        }
        let (mut users, mut accepted) = (Vec::new(), 0);
        while accepted < ACCEPTS_MAX {
            if turn.closer.is_full(None, turn.waste) {
                return self.pause(now);
            }
            let channel = match self.listener.accept() {
                Ok(Some(socket)) => Channel(socket),
                Ok(None) if accepted == 0 => return None,
                Ok(None) => break,
                Err(_) => return self.pause(now),
            };
            match self.greet(&channel, &mut users, turn) {
                Ok(user) => {
                    self.make_place(user, false, turn);
                    let (machine, until) = (Server::new(turn.config), now + INIT_TIMEOUT);
                    self.guests.push(Guest { channel, user, machine, until });
                }
                Err(ending) => {
                    channel.refuse(ending);
                    turn.close(channel, (), 0);
                }
            }
            accepted += 1;
        }
        let round = match accepted {
            ACCEPTS_FULL.. => ROUND_FULL,
            _ => (ROUND + ROUND_OF_CLIENT * accepted).min(ROUND_MAX),
        };
        self.next_round = now + round;
        Some(self.next_round)
    }

    /// Accepts no clients for a longer time, which it returns.
    fn pause(&mut self, now: Instant) -> Option<Instant> {
        self.next_round = now + PAUSE;
        Some(self.next_round)
    }

    /// Sends a hello to a client whose user is allowed, unless too many objects of that user wait
    /// to be closed, or the user's places or all places are taken in this round, whose `users` it
    /// adds to; returns the user.
    fn greet(
        &self,
        channel: &Channel,
        users: &mut Vec<u32>,
        turn: &Turn<'_>,
    ) -> std::result::Result<u32, Ending> {
        let user = channel.check_peer(turn.config)?;
        if turn.closer.is_full(Some(user), turn.waste) {
            return Err(Ending::Refused(CLOSING));
        }
        let own = users.iter().filter(|&&other| other == user).count();
        if own >= PLACES_OF_USER || users.len() >= PLACES {
            return Err(Ending::Refused("too many clients connect at once"));
        }
        let hello = Server::new(turn.config).hello();
        let gone = |e: std::io::Error| Ending::ByPeer(e.to_string());
        channel.send(&hello, None).map_err(gone)?;
        self.watch.add(channel, 0, EventFlags::IN).map_err(|e| gone(e.into()))?;
        users.push(user);
        Ok(user)
    }

    /// Makes a place for another client of `user`: drops the oldest client of that user if the
    /// user's places are taken, or the oldest of all if all places are taken.
    fn make_place(&mut self, user: u32, admitted: bool, turn: &mut Turn<'_>) {
        let here = |guest: &&Guest| guest.machine.is_admitted() == admitted;
        let all = self.guests.iter().filter(here).count();
        let own = self.guests.iter().filter(here).filter(|guest| guest.user == user).count();
        let goes = |guest: &Guest| match own >= PLACES_OF_USER {
            true => here(&guest) && guest.user == user,
            false => all >= PLACES && here(&guest),
        };
        if let Some(oldest) = self.guests.iter().position(goes) {
            let guest = self.guests.remove(oldest);
            guest.channel.refuse(Ending::Refused("another client waits"));
            self.retire_guest(guest, turn);
        }
    }

    /// Starts or stops watching the listener.
    fn listen(&mut self, wanted: bool) {
        if wanted != self.listening {
            let interest = if wanted { EventFlags::IN } else { EventFlags::empty() };
            if self.watch.modify(&self.listener, 0, interest).is_ok() {
                self.listening = wanted;
            }
        }
    }

    /// Processes the guests' messages; returns the rings of the first guest that completes its
    /// handshake.
    fn hear_guests(&mut self, turn: &mut Turn<'_>, now: Instant) -> Option<Vec<Option<Rings>>> {
        let (mut connected, mut i) = (None, 0);
        while i < self.guests.len() {
            let taken = self.connected.is_some();
            let (was_admitted, mut fds) = (self.guests[i].machine.is_admitted(), Vec::new());
            let state = self.guests[i].turn(turn, taken, now, &mut fds);
            if !fds.is_empty() {
                turn.waste.push(Waste::of(self.guests[i].user, fds.len(), Useless(fds)));
            }
            match state {
                GuestState::Waiting if self.guests[i].machine.is_admitted() == was_admitted => {
                    i += 1
                }
                GuestState::Waiting => {
                    // Move the guest to the end of the list: it is the youngest of the admitted
                    // guests.
                    let guest = self.guests.remove(i);
                    self.make_place(guest.user, true, turn);
                    self.guests.push(guest);
                    i = 0;
                }
                GuestState::Left => {
                    let guest = self.guests.remove(i);
                    self.retire_guest(guest, turn);
                }
                GuestState::Connected(rings) => {
                    self.connected = Some(self.guests.remove(i).channel);
                    connected = Some(rings);
                }
            }
        }
        connected
    }
}

impl Protocol for Listener {
    fn watch(&self) -> &Epoll {
        &self.watch
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> Option<Event> {
        let ended = self.recv_connected(turn);
        if ended.is_some() {
            // The next event is handled in the next turn, so that endpoints see both.
            return ended;
        }
        let now = Instant::now();
        let next_round = self.accept(turn, now);
        let connected = self.hear_guests(turn, now);
        self.listen(next_round.is_none());
        let alarm = self.guests.iter().map(|guest| guest.until).chain(next_round).min();
        let _ = self.watch.alarm(alarm);
        connected.map(Event::Connected)
    }

    fn hang_up(&mut self, why: &'static str, turn: &mut Turn<'_>) {
        if let Some(channel) = self.connected.take() {
            channel.refuse(Ending::Refused(why));
            self.retire(channel, (), 0, turn);
        }
    }

    fn close(&mut self, turn: &mut Turn<'_>) {
        // Before Linux 6.16 clients that wait may have sent descriptors, which would be closed with
        // the listener.
        self.listener.shut();
        for _ in 0..ACCEPTS_MAX {
            let Ok(Some(socket)) = self.listener.accept() else { break };
            let channel = Channel(socket);
            channel.shut();
            turn.close(channel, (), 0);
        }
        for guest in std::mem::take(&mut self.guests) {
            guest.channel.shut();
            self.retire_guest(guest, turn);
        }
        if let Some(channel) = self.connected.take() {
            channel.shut();
            self.retire(channel, (), 0, turn);
        }
    }
}

impl Guest {
    /// Answers the client's messages; adds descriptors that no message used to `fds`, which is
    /// empty. Ends after such a message, so that the caller counts its descriptors before the next
    /// one is received.
    fn turn(
        &mut self,
        turn: &Turn<'_>,
        taken: bool,
        now: Instant,
        fds: &mut Vec<OwnedFd>,
    ) -> GuestState {
        for _ in 0..MESSAGES_MAX {
            let step = match turn.recv(&self.channel, self.user, fds) {
                Ok(None) if self.until > now => return GuestState::Waiting,
                Ok(None) => Err(Ending::Refused("too slow")),
                Ok(Some(Message::Init { .. } | Message::Connect)) if taken => {
                    Err(Ending::Refused("already connected"))
                }
                Ok(Some(message)) => self.answer(turn.config, message, fds),
                Err(ending) => Err(ending),
            };
            match step {
                Ok(GuestState::Waiting) if fds.is_empty() => {}
                Ok(state) => return state,
                Err(ending) => {
                    self.channel.refuse(ending);
                    return GuestState::Left;
                }
            }
        }
        GuestState::Waiting
    }

    fn answer(
        &mut self,
        config: &Config,
        message: Message,
        fds: &mut Vec<OwnedFd>,
    ) -> std::result::Result<GuestState, Ending> {
        let was_admitted = self.machine.is_admitted();
        let reply = self.machine.on(message, fds, config)?;
        if self.machine.is_admitted() && !was_admitted {
            self.channel.0.take_descriptors();
            self.until = Instant::now() + HANDSHAKE_TIMEOUT;
        }
        let (message, state) = match reply {
            Reply::Ack => (Message::Ack, GuestState::Waiting),
            Reply::Connected(rings) => (Message::Connected, GuestState::Connected(rings)),
        };
        let gone = |_| Ending::ByPeer("the peer is gone".into());
        self.channel.send(&message, None).map_err(gone)?;
        Ok(state)
    }
}
