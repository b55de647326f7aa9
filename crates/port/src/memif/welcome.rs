//! The server's end of the socket: it listens, hears a few clients at a time, and maps the memory of
//! the one that comes through.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::peer::{Access, PeerMemory};
use linerate_sys::seqpacket::{Listener, Seqpacket};
use linerate_sys::wait::{Epoll, EventFd, EventFlags, TimerFd};

use super::PATIENCE;
use super::config::{Config, Sharing};
use super::dial::{hear, refuse, say};
use super::handshake::{Answer, End, Offer, Server};
use super::link::Event;
use super::message::{Message, RingPlace};
use super::ring::{ServerRing, Shared};
use super::server::{Regions, Side};
use super::session::{Receiver, Sender, Session};

/// Clients that are heard at once; others wait.
const GUESTS_MAX: usize = 8;
/// Clients that are accepted in one turn: one that is gone again takes no place.
const ACCEPTS_MAX: usize = 2 * GUESTS_MAX;
/// Messages of one client that are taken in one turn.
const MESSAGES_MAX: usize = 64;
/// Time between two checks for guests that are too slow.
const LOOK: Duration = Duration::from_millis(500);

const ANY: u64 = 0;

/// The server's end.
pub(super) struct Welcome {
    listener: Listener,
    watch: Arc<Epoll>,
    timer: TimerFd,
    guests: Vec<Guest>,
    connected: Option<Seqpacket>,
    /// The listener is watched: not while all places are taken.
    listening: bool,
}

/// A client that has not said everything yet.
struct Guest {
    socket: Seqpacket,
    machine: Server,
    until: Instant,
}

/// The state of a guest after a turn.
enum Came {
    /// It has not said everything.
    Waits,
    Left,
    Through(Vec<Option<Session>>),
}

impl Welcome {
    pub fn new(config: &Config, watch: Arc<Epoll>) -> Result<Welcome> {
        let listener = Listener::bind(&config.path)?;
        let what = || format!("cannot listen at {}", config.path.display());
        let timer = TimerFd::new()?;
        let fail = |e| Error::os(Code::System, what(), "epoll_ctl", e);
        watch.add(&listener, ANY, EventFlags::IN).map_err(fail)?;
        watch.add(&timer, ANY, EventFlags::IN).map_err(fail)?;
        let guests = Vec::with_capacity(GUESTS_MAX);
        Ok(Welcome { listener, watch, timer, guests, connected: None, listening: true })
    }

    /// Does what waits.
    pub fn turn(&mut self, config: &Config) -> Option<Event> {
        let ended = self.hear_connected();
        if ended.is_some() {
            // What comes next comes with the next turn, so that queues learn of both.
            return ended;
        }
        let accepts = self.let_in(config);
        let (mut event, now) = (None, Instant::now());
        let mut i = 0;
        while i < self.guests.len() {
            let taken = self.connected.is_some();
            let came = self.guests[i].turn(config, taken, now);
            match came {
                Came::Waits => i += 1,
                Came::Left => drop(self.guests.swap_remove(i)),
                Came::Through(sessions) => {
                    self.connected = Some(self.guests.swap_remove(i).socket);
                    event = Some(Event::Connected(sessions));
                }
            }
        }
        // Looked at behind the guests: the last of them to leave makes place for those that wait.
        self.listen(accepts && self.guests.len() < GUESTS_MAX);
        let looks = !self.guests.is_empty() || !self.listening;
        let alarm = if looks { now.checked_add(LOOK) } else { None };
        let _ = self.timer.set_at(alarm);
        event
    }

    /// Ends the connection, and says why.
    pub fn hang_up(&mut self, why: &'static str) {
        if let Some(socket) = self.connected.take() {
            refuse(&socket, End::Refused(why));
        }
    }

    /// Reads from the client that is connected; it may only disconnect.
    fn hear_connected(&mut self) -> Option<Event> {
        let socket = self.connected.as_ref()?;
        let why = match hear(socket) {
            Ok(None) => return None,
            Ok(Some((Message::Disconnect(why), _))) => refuse(socket, End::Told(why)),
            Ok(Some(_)) => refuse(socket, End::Refused("unexpected message")),
            Err(end) => refuse(socket, end),
        };
        self.connected = None;
        Some(Event::Ended(why))
    }

    /// Accepts clients as long as there are places; false if the system has no more descriptors, which a
    /// listener that is watched would announce for ever.
    fn let_in(&mut self, config: &Config) -> bool {
        for _ in 0..ACCEPTS_MAX {
            if self.guests.len() == GUESTS_MAX {
                break;
            }
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                Err(_) => return false,
            };
            let machine = Server::new(config);
            let greeted = say(&socket, &machine.hello(), None).is_ok();
            if greeted && self.watch.add(&socket, ANY, EventFlags::IN).is_ok() {
                let until = Instant::now() + PATIENCE;
                self.guests.push(Guest { socket, machine, until });
            }
        }
        true
    }

    /// Has the listener watched, or not.
    fn listen(&mut self, wanted: bool) {
        if wanted != self.listening {
            let interest = if wanted { EventFlags::IN } else { EventFlags::empty() };
            if self.watch.modify(&self.listener, ANY, interest).is_ok() {
                self.listening = wanted;
            }
        }
    }
}

impl Guest {
    fn turn(&mut self, config: &Config, taken: bool, now: Instant) -> Came {
        for _ in 0..MESSAGES_MAX {
            let end = match hear(&self.socket) {
                Ok(None) if self.until <= now => End::Refused("too slow"),
                Ok(None) => return Came::Waits,
                Ok(Some((Message::Init { .. }, _))) if taken => End::Refused("already connected"),
                Ok(Some((message, fds))) => match self.answer(config, message, fds) {
                    Ok(None) => continue,
                    Ok(Some(_)) if taken => End::Refused("already connected"),
                    Ok(Some(sessions)) => return Came::Through(sessions),
                    Err(end) => end,
                },
                Err(end) => end,
            };
            refuse(&self.socket, end);
            return Came::Left;
        }
        Came::Waits
    }

    fn answer(
        &mut self,
        config: &Config,
        message: Message,
        fds: Vec<OwnedFd>,
    ) -> std::result::Result<Option<Vec<Option<Session>>>, End> {
        let gone = |_| End::Told("the peer is gone".into());
        match self.machine.on(message, fds)? {
            Answer::Send(message) => say(&self.socket, &message, None).map(|()| None).map_err(gone),
            Answer::Map(offer) => {
                let sessions = map(offer, config)?;
                say(&self.socket, &Message::Connected, None).map_err(gone)?;
                Ok(Some(sessions))
            }
        }
    }
}

/// Maps what a client offers: rings for each queue.
pub(super) fn map(offer: Offer, config: &Config) -> std::result::Result<Vec<Option<Session>>, End> {
    let rings = || offer.from_client.iter().chain(&offer.to_client);
    let regions = offer.regions.iter().enumerate().map(|(i, (fd, bytes))| {
        let map = |access| PeerMemory::map(fd, *bytes, access, config.trust);
        let has_rings = rings().any(|(place, _)| usize::from(place.region) == i);
        let mapped = match config.sharing == Sharing::Read && !has_rings {
            true => map(Access::Read),
            // A client may let us read only.
            false => map(Access::Write).or_else(|_| map(Access::Read)),
        };
        mapped.map(Arc::new).map_err(|e| {
            // What trust would change has a remedy.
            let remedy = if e.fix.is_empty() { "" } else { "; say trust=yes" };
            End::Unfit(format!("region {i}: {}{remedy}", e.why))
        })
    });
    let regions: Regions = regions.collect::<std::result::Result<Vec<_>, _>>()?.into();
    let sides = |rings: Vec<(RingPlace, OwnedFd)>| -> std::result::Result<Vec<Side>, End> {
        rings.into_iter().map(|(place, bell)| side(&regions, place, bell)).collect()
    };
    let rx = sides(offer.from_client)?.into_iter().map(Receiver::Server);
    let tx = sides(offer.to_client)?.into_iter().map(Sender::Server);
    let (mut rx, mut tx) = (rx, tx);
    let pair = |_| {
        let (tx, rx) = (tx.next(), rx.next());
        (tx.is_some() || rx.is_some()).then(|| Session { tx, rx })
    };
    Ok((0..config.rings).map(pair).collect())
}

fn side(regions: &Regions, place: RingPlace, bell: OwnedFd) -> std::result::Result<Side, End> {
    let memory = regions.get(usize::from(place.region)).filter(|memory| memory.is_writable());
    let shared = memory
        .and_then(|memory| Shared::new(memory, place.offset as usize, place.power))
        .filter(Shared::is_one)
        .ok_or(End::Refused("a ring that is none"))?;
    if !is_eventfd(&bell) {
        return Err(End::Refused("a doorbell that is none"));
    }
    let bell = EventFd::from_fd(bell).map_err(|_| End::Refused("a doorbell that is none"))?;
    Ok(Side::new(ServerRing::new(shared), bell, regions.clone()))
}

/// A write to another kind of file might wait for ever.
fn is_eventfd(fd: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    let link = PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    std::fs::read_link(link).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventfd]")
}
