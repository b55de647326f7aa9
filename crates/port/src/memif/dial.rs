//! The client's end of the socket: it connects, again and again, and lays out the memory it shares.
//!
//! ```text
//!   region 0   ring │ ring │ … │ ring │ ring │ … │ buffers of each ring that is copied into or out of
//!              from the client   to the client
//!   region 1   the pool, where packets go as they lie
//! ```
//!
//! Region 0 is a connection's own: a peer that is gone and still has it mapped writes where nobody
//! reads any more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result, Trust};
use linerate_sys::mem::{Huge, Pages, Region};
use linerate_sys::peer::PeerMemory;
use linerate_sys::seqpacket::Seqpacket;
use linerate_sys::wait::{Epoll, EventFd, EventFlags, TimerFd};

use super::client::{POOL, Rx, Slots, Tx};
use super::config::{Config, Sharing};
use super::handshake::{Client, End, Limits, Step};
use super::link::Event;
use super::message::{BYTES, Message, RingPlace};
use super::ring::{self, ClientRing, Shared};
use super::session::{Receiver, Sender, Session};
use super::{NAME, PATIENCE};

/// Time between two attempts to reach a server that is not there.
const AGAIN: Duration = Duration::from_millis(100);
/// Bytes of a region that a descriptor's offset can reach.
const REGION_BYTES_MAX: u64 = 1 << 32;
/// Buffers begin on lines of their own.
const LINE: usize = 64;

const SOCKET: u64 = 0;
const TIMER: u64 = 1;

/// The client's end.
pub(super) struct Dial {
    pool: Pool,
    watch: Arc<Epoll>,
    timer: TimerFd,
    state: State,
}

enum State {
    /// Until it is tried again.
    Waiting(Instant),
    Talking(Box<Talk>),
    Connected(Seqpacket),
}

/// A connection that is not agreed on yet.
struct Talk {
    socket: Seqpacket,
    machine: Client,
    made: Option<Made>,
    /// The server's deadline.
    until: Instant,
}

impl Dial {
    pub fn new(config: &Config, pool: &Pool, watch: Arc<Epoll>) -> Result<Dial> {
        let what = || format!("cannot connect to memif {}", config.path.display());
        if config.sharing == Sharing::Write && pool.trust() != Trust::Exported {
            let why = "the peer would write the pool's memory, and the pool is private";
            return Err(Error::new(Code::Memory, what(), why).fix(
                "say zerocopy=no, or zerocopy=read to a reader, or make a pool with Trust::Exported",
            ));
        }
        if config.sharing == Sharing::Read && pool.trust() != Trust::Private {
            let why = "a peer that only reads needs a private pool, and the pool is exported";
            return Err(
                Error::new(Code::Memory, what(), why).fix("say zerocopy=yes or zerocopy=no")
            );
        }
        if config.sharing == Sharing::Write && pool.pages() == Pages::Huge2M && !config.trust {
            let why =
                "the peer could punch holes into the pool's huge pages, and kill us by SIGBUS";
            return Err(Error::new(Code::Memory, what(), why).fix(
                "if the peer is trusted not to do so, say trust=yes; or make a pool with Huge::Try",
            ));
        }
        // SAFETY: its length is read, and its pages get their memory.
        let region = unsafe { pool.region() };
        if let Some(region) = region.filter(|_| config.sharing == Sharing::Read)
            && region.pages() == Pages::Huge2M
        {
            // The peer looks for holes.
            region.populate()?;
        }
        let bytes = region.map_or(0, |region| region.len() as u64);
        let zero_copy = config.sharing != Sharing::Nothing;
        if zero_copy && !(1..=REGION_BYTES_MAX).contains(&bytes) {
            let why =
                format!("a pool of {bytes} bytes cannot be a region, which has 4 GiB at most");
            return Err(Error::new(Code::Memory, what(), why)
                .fix("give the pool fewer frames, or say zerocopy=no"));
        }
        let rings = Limits {
            from_client: config.rings,
            to_client: config.rings,
            power: config.size.trailing_zeros() as u8,
            regions: 2,
        };
        let layout = Layout::of(rings, config);
        if layout.bytes as u64 > REGION_BYTES_MAX {
            let why =
                format!("its rings and buffers take {} bytes, of 4 GiB at most", layout.bytes);
            return Err(
                Error::new(Code::Memory, what(), why).fix("say fewer rings, size or buffer")
            );
        }
        let timer = TimerFd::new()?;
        let fail = |e| Error::os(Code::System, what(), "epoll_ctl", e);
        watch.add(&timer, TIMER, EventFlags::IN).map_err(fail)?;
        Ok(Dial { pool: pool.clone(), watch, timer, state: State::Waiting(Instant::now()) })
    }

    /// Does what waits.
    pub fn turn(&mut self, config: &Config) -> Option<Event> {
        loop {
            let now = Instant::now();
            match &mut self.state {
                State::Waiting(until) if *until > now => return None,
                State::Waiting(_) => match self.dial(config) {
                    Ok(socket) => {
                        let (machine, until) = (Client::new(config), now + PATIENCE);
                        self.alarm(until);
                        self.state =
                            State::Talking(Box::new(Talk { socket, machine, made: None, until }));
                    }
                    Err(e) => return Some(self.end(e.to_string())),
                },
                State::Talking(talk) => {
                    let Talk { socket, machine, made, until } = &mut **talk;
                    let heard = hear(socket);
                    let step = match heard {
                        Ok(None) if *until <= now => Err("the server does not answer".to_owned()),
                        Ok(None) => return None,
                        Ok(Some((message, fds))) => {
                            machine.on(&message, &fds).map_err(|end| refuse(socket, end))
                        }
                        Err(End::Told(why)) => Err(why),
                        Err(end) => Err(refuse(socket, end)),
                    };
                    let said = match step {
                        Ok(Step::Make(limits)) => {
                            Made::new(limits, config, &self.pool).and_then(|(new, all)| {
                                let init = machine.tell(all);
                                *made = Some(new);
                                say(socket, &init, None).map_err(|e| e.to_string())
                            })
                        }
                        Ok(Step::Send(message, fd)) => {
                            say(socket, &message, fd).map_err(|e| e.to_string())
                        }
                        Ok(Step::Connected) => return Some(self.connected(config)),
                        Err(why) => Err(why),
                    };
                    if let Err(why) = said {
                        return Some(self.end(why));
                    }
                }
                State::Connected(socket) => {
                    let why = match hear(socket) {
                        Ok(None) => return None,
                        Ok(Some((Message::Disconnect(why), _))) => {
                            format!("the server has disconnected: {why}")
                        }
                        Ok(Some(_)) => refuse(socket, End::Refused("unexpected message")),
                        Err(End::Told(why)) => why,
                        Err(end) => refuse(socket, end),
                    };
                    return Some(self.end(why));
                }
            }
        }
    }

    /// True while a server answers, and they have not come to terms.
    pub fn is_talking(&self) -> bool {
        matches!(self.state, State::Talking(_))
    }

    /// Ends the connection, and says why.
    pub fn hang_up(&mut self, why: &'static str) {
        let socket = match &self.state {
            State::Connected(socket) => Some(socket),
            State::Talking(talk) => Some(&talk.socket),
            State::Waiting(_) => None,
        };
        if let Some(socket) = socket {
            refuse(socket, End::Refused(why));
        }
        self.end(String::new());
    }

    fn dial(&self, config: &Config) -> io::Result<Seqpacket> {
        let socket = Seqpacket::connect(&config.path)?;
        self.watch.add(&socket, SOCKET, EventFlags::IN)?;
        Ok(socket)
    }

    fn connected(&mut self, config: &Config) -> Event {
        let until = Instant::now();
        if let State::Talking(talk) = std::mem::replace(&mut self.state, State::Waiting(until))
            && let Talk { socket, made: Some(made), .. } = *talk
        {
            self.state = State::Connected(socket);
            let _ = self.timer.set_at(None);
            return Event::Connected(made.sessions(config, &self.pool));
        }
        self.end("the server was too quick".into())
    }

    /// The socket is closed, and another one is tried later.
    fn end(&mut self, why: String) -> Event {
        let again = Instant::now() + AGAIN;
        self.state = State::Waiting(again);
        self.alarm(again);
        Event::Ended(why)
    }

    fn alarm(&self, at: Instant) {
        // An alarm that cannot be set is looked at by whoever calls next.
        let _ = self.timer.set_at(Some(at));
    }
}

/// The next message; `Ok(None)` if there is none yet.
pub(super) fn hear(
    socket: &Seqpacket,
) -> std::result::Result<Option<(Message, Vec<OwnedFd>)>, End> {
    let mut bytes = [0; BYTES];
    match socket.receive(&mut bytes) {
        Ok(None) => Ok(None),
        Ok(Some(got)) if got.len == 0 => Err(End::Told("the peer is gone".into())),
        Ok(Some(got)) if got.cut => Err(End::Refused("a message or its descriptors are too many")),
        Ok(Some(got)) => match Message::decode(&bytes[..got.len]) {
            Some(message) => Ok(Some((message, got.fds))),
            None => Err(End::Refused("there is no such message")),
        },
        Err(e) => Err(End::Told(e.to_string())),
    }
}

/// Says `message`, with a descriptor or none.
pub(super) fn say(socket: &Seqpacket, message: &Message, fd: Option<OwnedFd>) -> io::Result<()> {
    socket.send(&message.encode(NAME), fd.as_ref().map(AsFd::as_fd))
}

/// Tells the peer why the connection ends, if it does not know; in words for us.
pub(super) fn refuse(socket: &Seqpacket, end: End) -> String {
    let why = match end {
        End::Refused(why) => why.to_owned(),
        End::Unfit(why) => why,
        End::Told(why) => return format!("the peer has disconnected: {why}"),
    };
    let said = format!("the peer was disconnected: {why}");
    let _ = say(socket, &Message::Disconnect(why), None);
    said
}

/// The offsets of rings and buffers in region 0.
struct Layout {
    rings: Limits,
    /// The buffers of each ring, of either direction, in rings' order.
    buffers: [Option<usize>; 2],
    buffer_bytes: usize,
    bytes: usize,
}

impl Layout {
    fn of(rings: Limits, config: &Config) -> Layout {
        let buffer_bytes = config.buffer_bytes as usize;
        let both = usize::from(rings.from_client + rings.to_client);
        let mut bytes = (both * Layout::ring_bytes(rings)).next_multiple_of(LINE);
        let copied = match config.sharing {
            Sharing::Write => [false, false],
            Sharing::Read => [false, true],
            Sharing::Nothing => [true, true],
        };
        let mut buffers = [None; 2];
        let counts = [rings.from_client, rings.to_client];
        for ((place, n), copied) in buffers.iter_mut().zip(counts).zip(copied) {
            if copied {
                *place = Some(bytes);
                bytes = bytes.saturating_add((usize::from(n) << rings.power) * buffer_bytes);
            }
        }
        Layout { rings, buffers, buffer_bytes, bytes }
    }

    fn ring_bytes(rings: Limits) -> usize {
        ring::bytes(rings.power).next_multiple_of(LINE)
    }

    /// The ring with this number, of its direction.
    fn ring(&self, index: u16, from_client: bool) -> usize {
        let first = if from_client { 0 } else { self.rings.from_client };
        usize::from(first + index) * Layout::ring_bytes(self.rings)
    }

    fn slots(&self, memory: &Arc<PeerMemory>, index: u16, from_client: bool) -> Option<Slots> {
        let first = self.buffers[usize::from(!from_client)]?;
        let each = self.buffer_bytes << self.rings.power;
        Some(Slots {
            memory: memory.clone(),
            offset: first + usize::from(index) * each,
            buffer_bytes: self.buffer_bytes as u32,
        })
    }
}

/// The memory and rings of a connection, made and not yet in use.
pub(super) struct Made {
    layout: Layout,
    pub memory: Arc<PeerMemory>,
    /// A ring and its doorbell each.
    from_client: Vec<(ClientRing, EventFd)>,
    to_client: Vec<(ClientRing, EventFd)>,
}

/// Messages, with the descriptor that goes with each.
pub(super) type Told = Vec<(Message, OwnedFd)>;

impl Made {
    pub fn new(
        limits: Limits,
        config: &Config,
        pool: &Pool,
    ) -> std::result::Result<(Made, Told), String> {
        let layout = Layout::of(limits, config);
        let zero_copy = config.sharing != Sharing::Nothing;
        if zero_copy && limits.regions < 2 {
            return Err("the server maps one region only: say zerocopy=no".into());
        }
        let text = |e: Error| e.to_string();
        let name = format!("memif-{}", config.id);
        let region = Arc::new(Region::new(&name, layout.bytes, Huge::Never).map_err(text)?);
        let mut told: Told = Vec::new();
        let mut tell = |message, fd: std::os::fd::BorrowedFd<'_>| match fd.try_clone_to_owned() {
            Ok(fd) => {
                told.push((message, fd));
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        };
        tell(Message::AddRegion { index: 0, bytes: region.len() as u64 }, region.as_fd())?;
        if zero_copy && let Some(file) = pool.memory() {
            // SAFETY: its length is read.
            let bytes = unsafe { pool.region() }.map_or(0, |region| region.len() as u64);
            tell(Message::AddRegion { index: POOL, bytes }, file)?;
        }
        // SAFETY: made here, and used by rings and buffers alone, which keep to this.
        let memory = Arc::new(unsafe { PeerMemory::shared(region) });
        let mut made = Made { layout, memory, from_client: Vec::new(), to_client: Vec::new() };
        for (n, from_client) in [(limits.from_client, true), (limits.to_client, false)] {
            for index in 0..n {
                let offset = made.layout.ring(index, from_client);
                let shared = Shared::new(&made.memory, offset, limits.power)
                    .ok_or("the layout of the rings is wrong")?;
                shared.initialise();
                let bell = EventFd::new().map_err(text)?;
                let place = RingPlace {
                    from_client,
                    index,
                    region: 0,
                    offset: offset as u32,
                    power: limits.power,
                };
                tell(Message::AddRing(place), bell.as_fd())?;
                let rings = if from_client { &mut made.from_client } else { &mut made.to_client };
                rings.push((ClientRing::new(shared), bell));
            }
        }
        Ok((made, told))
    }

    /// Rings for each queue.
    pub fn sessions(self, config: &Config, pool: &Pool) -> Vec<Option<Session>> {
        let Made { layout, memory, from_client, to_client } = self;
        let slots = |index: usize, from| layout.slots(&memory, index as u16, from);
        let tx = from_client.into_iter().enumerate().map(|(i, (ring, bell))| {
            let tally = pool.tally(&format!("memif {}/{i} tx", config.path.display()));
            Tx::new(ring, bell, slots(i, true), pool, config.buffer_bytes, tally)
        });
        let rx = to_client
            .into_iter()
            .enumerate()
            .map(|(i, (ring, bell))| Rx::new(ring, bell, slots(i, false), pool));
        let (mut tx, mut rx) = (tx.map(Sender::Client), rx.map(Receiver::Client));
        let pair = |_| {
            let (tx, rx) = (tx.next(), rx.next());
            (tx.is_some() || rx.is_some()).then(|| Session { tx, rx })
        };
        (0..config.rings).map(pair).collect()
    }
}
