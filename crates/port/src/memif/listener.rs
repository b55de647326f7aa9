//! The server's end of the socket: it listens, hears a few clients at a time, and maps the memory of
//! the one that comes through.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::peer::{Access, PeerMemory};
use linerate_sys::seqpacket;
use linerate_sys::wait::{Epoll, EventFd, EventFlags, TimerFd};

use super::HANDSHAKE_TIMEOUT;
use super::channel::Channel;
use super::config::{Config, Sharing};
use super::handshake::{Answer, Ending, Offer, Server};
use super::link::{Control, Event};
use super::message::{Message, RingPlace};
use super::ring::{ServerRing, Shared};
use super::rings::{Rings, RxRing, TxRing};
use super::server::{MappedRing, Regions};

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
pub(super) struct Listener {
    listener: seqpacket::Listener,
    watch: Arc<Epoll>,
    timer: TimerFd,
    guests: Vec<Guest>,
    connected: Option<Channel>,
    /// The listener is watched: not while all places are taken.
    listening: bool,
}

/// A client that has not said everything yet.
struct Guest {
    channel: Channel,
    machine: Server,
    until: Instant,
}

/// The state of a guest after a turn.
enum GuestState {
    /// It has not said everything.
    Waiting,
    Left,
    Connected(Vec<Option<Rings>>),
}

impl Listener {
    pub fn new(config: &Config, watch: Arc<Epoll>) -> Result<Listener> {
        let listener = seqpacket::Listener::bind(&config.path)?;
        let what = || format!("cannot listen at {}", config.path.display());
        let timer = TimerFd::new()?;
        let fail = |e| Error::os(Code::System, what(), "epoll_ctl", e);
        watch.add(&listener, ANY, EventFlags::IN).map_err(fail)?;
        watch.add(&timer, ANY, EventFlags::IN).map_err(fail)?;
        let guests = Vec::with_capacity(GUESTS_MAX);
        Ok(Listener { listener, watch, timer, guests, connected: None, listening: true })
    }

    /// Reads from the client that is connected; it may only disconnect.
    fn recv_connected(&mut self) -> Option<Event> {
        let channel = self.connected.as_ref()?;
        let why = match channel.recv() {
            Ok(None) => return None,
            Ok(Some((Message::Disconnect(why), _))) => channel.refuse(Ending::ByPeer(why)),
            Ok(Some(_)) => channel.refuse(Ending::Refused("unexpected message")),
            Err(ending) => channel.refuse(ending),
        };
        self.connected = None;
        Some(Event::Ended(why))
    }

    /// Accepts clients as long as there are places; false if the system has no more descriptors, which a
    /// listener that is watched would announce for ever.
    fn accept(&mut self, config: &Config) -> bool {
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
            let channel = Channel(socket);
            let greeted = channel.send(&machine.hello(), None).is_ok();
            if greeted && self.watch.add(&channel, ANY, EventFlags::IN).is_ok() {
                let until = Instant::now() + HANDSHAKE_TIMEOUT;
                self.guests.push(Guest { channel, machine, until });
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

impl Control for Listener {
    fn turn(&mut self, config: &Config) -> Option<Event> {
        let ended = self.recv_connected();
        if ended.is_some() {
            // What comes next comes with the next turn, so that queues learn of both.
            return ended;
        }
        let accepts = self.accept(config);
        let (mut event, now) = (None, Instant::now());
        let mut i = 0;
        while i < self.guests.len() {
            let taken = self.connected.is_some();
            let state = self.guests[i].turn(config, taken, now);
            match state {
                GuestState::Waiting => i += 1,
                GuestState::Left => drop(self.guests.swap_remove(i)),
                GuestState::Connected(rings) => {
                    self.connected = Some(self.guests.swap_remove(i).channel);
                    event = Some(Event::Connected(rings));
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

    fn hang_up(&mut self, why: &'static str) {
        if let Some(channel) = self.connected.take() {
            channel.refuse(Ending::Refused(why));
        }
    }
}

impl Guest {
    fn turn(&mut self, config: &Config, taken: bool, now: Instant) -> GuestState {
        for _ in 0..MESSAGES_MAX {
            let end = match self.channel.recv() {
                Ok(None) if self.until <= now => Ending::Refused("too slow"),
                Ok(None) => return GuestState::Waiting,
                Ok(Some((Message::Init { .. }, _))) if taken => {
                    Ending::Refused("already connected")
                }
                Ok(Some((message, fds))) => match self.answer(config, message, fds) {
                    Ok(None) => continue,
                    Ok(Some(_)) if taken => Ending::Refused("already connected"),
                    Ok(Some(rings)) => return GuestState::Connected(rings),
                    Err(end) => end,
                },
                Err(end) => end,
            };
            self.channel.refuse(end);
            return GuestState::Left;
        }
        GuestState::Waiting
    }

    fn answer(
        &mut self,
        config: &Config,
        message: Message,
        fds: Vec<OwnedFd>,
    ) -> std::result::Result<Option<Vec<Option<Rings>>>, Ending> {
        let gone = |_| Ending::ByPeer("the peer is gone".into());
        match self.machine.on(message, fds)? {
            Answer::Send(message) => self.channel.send(&message, None).map(|()| None).map_err(gone),
            Answer::Map(offer) => {
                let rings = map(offer, config)?;
                self.channel.send(&Message::Connected, None).map_err(gone)?;
                Ok(Some(rings))
            }
        }
    }
}

/// Maps what a client offers: rings for each queue.
pub(super) fn map(
    offer: Offer,
    config: &Config,
) -> std::result::Result<Vec<Option<Rings>>, Ending> {
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
            Ending::Unfit(format!("region {i}: {}{remedy}", e.why))
        })
    });
    let regions: Regions = regions.collect::<std::result::Result<Vec<_>, _>>()?.into();
    let rings = |rings: Vec<(RingPlace, OwnedFd)>| -> std::result::Result<Vec<MappedRing>, Ending> {
        rings.into_iter().map(|(place, bell)| mapped_ring(&regions, place, bell)).collect()
    };
    let rx = rings(offer.from_client)?.into_iter().map(|ring| Box::new(ring) as Box<dyn RxRing>);
    let tx = rings(offer.to_client)?.into_iter().map(|ring| Box::new(ring) as Box<dyn TxRing>);
    Ok(Rings::distribute(config.rings, tx, rx))
}

fn mapped_ring(
    regions: &Regions,
    place: RingPlace,
    bell: OwnedFd,
) -> std::result::Result<MappedRing, Ending> {
    let memory = regions.get(usize::from(place.region)).filter(|memory| memory.is_writable());
    let shared = memory
        .and_then(|memory| Shared::new(memory, place.offset as usize, place.power))
        .filter(Shared::is_one)
        .ok_or(Ending::Refused("a ring that is none"))?;
    if !is_eventfd(&bell) {
        return Err(Ending::Refused("a doorbell that is none"));
    }
    let bell = EventFd::from_fd(bell).map_err(|_| Ending::Refused("a doorbell that is none"))?;
    Ok(MappedRing::new(ServerRing::new(shared), bell, regions.clone()))
}

/// A write to another kind of file might wait for ever.
fn is_eventfd(fd: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    let link = PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    std::fs::read_link(link).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventfd]")
}
