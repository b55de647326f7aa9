//! A peer under a test's control: it sends what the test says, and writes what it likes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::peer::{Access, PeerMemory};
use linerate_sys::seqpacket::{Listener, Seqpacket};
use linerate_sys::wait::EventFd;

use super::super::channel::Channel;
use super::super::message::{Message, RingPlace, SECRET_BYTES, VERSION};
use super::super::ring::{self, Desc, Shared};
use crate::driver::Opened;

/// Descriptors of a ring, as a power of two.
pub const POWER: u8 = 3;
pub const RING: u16 = 1 << POWER;
/// Bytes of a region of the peer's, and of each buffer in it.
pub const REGION_BYTES: usize = 1 << 16;
pub const BUFFER_BYTES: usize = 2048;
const BUFFERS_AT: usize = 1 << 14;
/// Bytes between two rings.
const STRIDE: usize = 4096;
/// The longest wait for anything that a peer waits for.
const LONG: Duration = Duration::from_secs(20);

/// Lets a port follow its connection, and the control thread work.
pub fn turn(port: &mut Opened, mem: &mut Local) {
    for queue in &mut port.queues {
        queue.rx(mem, &mut Batch::with_capacity(1), 0);
    }
    std::thread::sleep(Duration::from_micros(200));
}

/// Lets a port follow its connection until it is up, or down.
pub fn until_up(wanted: bool, port: &mut Opened, mem: &mut Local) {
    let start = Instant::now();
    while (port.queues[0].health() == crate::queue::Health::Up) != wanted {
        assert!(start.elapsed() < LONG, "{:?}", port.queues[0].health());
        turn(port, mem);
    }
}

/// Returns the next message that the peer gets; `None` if the connection has ended.
pub fn heard(
    socket: &Channel,
    port: &mut Opened,
    mem: &mut Local,
) -> Option<(Message, Vec<OwnedFd>)> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        turn(port, mem);
        let mut fds = Vec::new();
        match socket.recv(&mut fds) {
            Ok(Some(message)) => return Some((message, fds)),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
    panic!("the port says nothing")
}

/// Returns the port's reason for ending the connection, which ends with it.
pub fn refused(socket: &Channel, port: &mut Opened, mem: &mut Local) -> Option<String> {
    loop {
        match heard(socket, port, mem)? {
            (Message::Disconnect(why), _) => {
                assert_eq!(heard(socket, port, mem).map(|(said, _)| said), None);
                return Some(why);
            }
            (said, _) => assert!(matches!(said, Message::Hello { .. } | Message::Ack), "{said:?}"),
        }
    }
}

/// A ring of a peer's, and words of its header.
pub struct Raw {
    pub ring: Shared,
    memory: Arc<PeerMemory>,
    at: usize,
}

impl Raw {
    fn new(memory: &Arc<PeerMemory>, at: usize, power: u8) -> Raw {
        let ring = Shared::new(memory, at, power).unwrap();
        Raw { ring, memory: memory.clone(), at }
    }

    fn half(&self, at: usize) -> &std::sync::atomic::AtomicU16 {
        &self.memory.half_words(self.at + at, 1).unwrap()[0]
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn set_head(&self, to: u16) {
        self.half(6).store(to, Ordering::Release);
    }

    pub fn set_tail(&self, to: u16) {
        self.half(64).store(to, Ordering::Release);
    }

    pub fn head(&self) -> u16 {
        self.half(6).load(Ordering::Acquire)
    }
}

/// A client: it owns memory, and connects to the port.
pub struct Client {
    pub socket: Channel,
    pub memory: Arc<PeerMemory>,
    pub from: Raw,
    pub to: Raw,
    bells: [EventFd; 2],
}

/// Messages of a client's until it is connected.
pub const CLIENT_STEPS: usize = 5;

pub fn init() -> Message {
    Message::Init { version: VERSION, id: 0, mode: 0, secret: [0; SECRET_BYTES] }
}

pub fn place(index: u16, from_client: bool) -> RingPlace {
    let offset = if from_client { 0 } else { STRIDE as u32 };
    RingPlace { from_client, index, region: 0, offset, power: POWER }
}

impl Client {
    /// Connects, and has said the first `steps` things.
    pub fn at_step(name: &str, steps: usize, port: &mut Opened, mem: &mut Local) -> Client {
        let region = Arc::new(Region::new("peer", REGION_BYTES, Huge::Never).unwrap());
        // SAFETY: looked at by atomics and copies only.
        let memory = Arc::new(unsafe { PeerMemory::shared(region) });
        let [from, to] = [0, STRIDE].map(|at| Raw::new(&memory, at, POWER));
        from.ring.initialise();
        to.ring.initialise();
        let bells = [(); 2].map(|()| EventFd::new().unwrap());
        let socket = connect(name, port, mem);
        let client = Client { socket, memory, from, to, bells };
        for step in 0..steps {
            let said = heard(&client.socket, port, mem).unwrap().0;
            assert_eq!(matches!(said, Message::Hello { .. }), step == 0, "{said:?}");
            client.send(step);
        }
        client
    }

    fn send(&self, step: usize) {
        let region = self.memory.region().unwrap();
        let bytes = REGION_BYTES as u64;
        let (message, fd) = match step {
            0 => (init(), None),
            1 => (Message::AddRegion { index: 0, bytes }, Some(region.as_fd())),
            2 => (Message::AddRing(place(0, true)), Some(self.bells[0].as_fd())),
            3 => (Message::AddRing(place(0, false)), Some(self.bells[1].as_fd())),
            _ => (Message::Connect, None),
        };
        self.socket.send(&message, fd.map(|fd| fd.try_clone_to_owned().unwrap())).unwrap();
    }

    /// Connects, with empty buffers in the ring to it.
    pub fn connected(name: &str, port: &mut Opened, mem: &mut Local) -> Client {
        let client = Client::at_step(name, CLIENT_STEPS, port, mem);
        assert_eq!(heard(&client.socket, port, mem).unwrap().0, Message::Connected);
        for slot in 0..RING {
            client.to.ring.set(slot, buffer(slot));
        }
        client.to.set_head(RING);
        client
    }

    /// Returns the doorbell of the ring from it, or to it.
    pub fn bell(&self, ring: usize) -> &EventFd {
        &self.bells[ring]
    }

    /// Sends a packet of `len` bytes in the buffer of `slot`, without saying so.
    pub fn fill(&self, slot: u16, len: u32) {
        let desc = Desc { len, ..buffer(RING + slot) };
        assert!(self.memory.write(desc.offset as usize, &vec![7; len as usize]));
        self.from.ring.set(slot, desc);
    }
}

/// Returns the `i`-th buffer: those of the ring to the client are first.
pub fn buffer(i: u16) -> Desc {
    let offset = BUFFERS_AT + usize::from(i) * BUFFER_BYTES;
    Desc { flags: 0, region: 0, len: BUFFER_BYTES as u32, offset: offset as u32 }
}

/// Connects as soon as there is a place.
pub fn connect(name: &str, port: &mut Opened, mem: &mut Local) -> Channel {
    let start = Instant::now();
    loop {
        if let Ok(socket) = Seqpacket::connect(Path::new(name)) {
            return Channel(socket);
        }
        assert!(start.elapsed() < LONG, "nobody listens");
        turn(port, mem);
    }
}

/// A server: it listens, and maps what the port lets it.
pub struct Server {
    pub socket: Channel,
    regions: Vec<(OwnedFd, u64)>,
    rings: Vec<RingPlace>,
}

impl Server {
    /// Accepts the port, and has said the first `steps` things.
    pub fn at_step(
        listener: &Listener,
        steps: usize,
        port: &mut Opened,
        mem: &mut Local,
    ) -> Server {
        let start = Instant::now();
        let socket = loop {
            if let Some(socket) = listener.accept().unwrap() {
                socket.take_descriptors();
                break Channel(socket);
            }
            assert!(start.elapsed() < LONG, "nobody connects");
            turn(port, mem);
        };
        let mut server = Server { socket, regions: Vec::new(), rings: Vec::new() };
        for step in 0..steps {
            if !server.step(step, port, mem) {
                break;
            }
        }
        server
    }

    /// Hears the next thing and answers; false once connected.
    fn step(&mut self, step: usize, port: &mut Opened, mem: &mut Local) -> bool {
        if step == 0 {
            return self.send(&hello());
        }
        let (said, mut fds) = heard(&self.socket, port, mem).unwrap();
        match said {
            Message::AddRegion { bytes, .. } => self.regions.push((fds.remove(0), bytes)),
            Message::AddRing(place) => self.rings.push(place),
            Message::Connect => return !self.send(&Message::Connected),
            _ => {}
        }
        self.send(&Message::Ack)
    }

    fn send(&self, message: &Message) -> bool {
        self.socket.send(message, None).is_ok()
    }

    /// Connects; returns the rings from and to the port.
    pub fn connected(
        listener: &Listener,
        port: &mut Opened,
        mem: &mut Local,
    ) -> (Server, Arc<PeerMemory>, [Raw; 2]) {
        let server = Server::at_step(listener, usize::MAX, port, mem);
        let (fd, bytes) = &server.regions[0];
        let memory = Arc::new(PeerMemory::map(fd, *bytes, Access::Write, false).unwrap());
        let raw = |from| {
            let place = server.rings.iter().find(|ring| ring.from_client == from).unwrap();
            Raw::new(&memory, place.offset as usize, place.power)
        };
        let rings = [raw(true), raw(false)];
        until_up(true, port, mem);
        (server, memory, rings)
    }
}

pub fn hello() -> Message {
    Message::Hello {
        versions: (VERSION, VERSION),
        region_max: 255,
        to_client_max: 0,
        from_client_max: 0,
        ring_power_max: ring::POWER_MAX,
    }
}
