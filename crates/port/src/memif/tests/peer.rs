//! A peer that a test controls: it sends and writes what the test requests.

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
/// Bytes of the peer's region; the next constant has those of each buffer in it.
pub const REGION_BYTES: usize = 1 << 16;
pub const BUFFER_BYTES: usize = 2048;
const BUFFERS_AT: usize = 1 << 14;
/// Bytes between two rings.
const STRIDE: usize = 4096;
/// Longest wait of a peer for any event.
const LONG: Duration = Duration::from_secs(20);

/// Runs a port for a step, and gives the control thread time to work.
pub fn turn(port: &mut Opened, mem: &mut Local) {
    for queue in &mut port.queues {
        queue.rx(mem, &mut Batch::with_capacity(1), 0);
    }
    std::thread::sleep(Duration::from_micros(200));
}

/// Runs a port until it is up, or down if `wanted` is false.
pub fn until_up(wanted: bool, port: &mut Opened, mem: &mut Local) {
    let start = Instant::now();
    while (port.queues[0].health() == crate::queue::Health::Up) != wanted {
        assert!(start.elapsed() < LONG, "{:?}", port.queues[0].health());
        turn(port, mem);
    }
}

/// Returns the next message that the peer receives; `None` if the connection has ended.
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

/// Returns the reason with which the port ends the connection.
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

/// A ring of the peer, with access to words of its header.
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

/// Number of messages that a client sends until it is connected.
pub const CLIENT_STEPS: usize = 5;

pub fn init() -> Message {
    Message::Init { version: VERSION, id: 0, mode: 0, secret: [0; SECRET_BYTES] }
}

pub fn place(index: u16, from_client: bool) -> RingPlace {
    let offset = if from_client { 0 } else { STRIDE as u32 };
    RingPlace { from_client, index, offset, power: POWER, ..RingPlace::default() }
}

impl Client {
    /// Connects, and sends the first `steps` messages of the handshake.
    pub fn at_step(name: &str, steps: usize, port: &mut Opened, mem: &mut Local) -> Client {
        Client::with_rings(name, POWER, steps, port, mem)
    }

    /// Does as [`Client::at_step`], with rings of two to the power of `power` slots.
    pub fn with_rings(
        name: &str,
        power: u8,
        steps: usize,
        port: &mut Opened,
        mem: &mut Local,
    ) -> Client {
        let region = Arc::new(Region::new("peer", REGION_BYTES, Huge::Never).unwrap());
        // SAFETY: the memory is accessed only by atomics and copies.
        let memory = Arc::new(unsafe { PeerMemory::shared(region) });
        let [from, to] = [0, STRIDE].map(|at| Raw::new(&memory, at, power));
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
        let power = self.to.ring.len().ilog2() as u8;
        let place = |from_client| RingPlace { power, ..place(0, from_client) };
        let (message, fd) = match step {
            0 => (init(), None),
            1 => (Message::AddRegion { index: 0, bytes }, Some(region.as_fd())),
            2 => (Message::AddRing(place(true)), Some(self.bells[0].as_fd())),
            3 => (Message::AddRing(place(false)), Some(self.bells[1].as_fd())),
            _ => (Message::Connect, None),
        };
        self.socket.send(&message, fd.map(|fd| fd.try_clone_to_owned().unwrap())).unwrap();
    }

    /// Connects, with empty buffers in the ring to the client.
    pub fn connected(name: &str, port: &mut Opened, mem: &mut Local) -> Client {
        let client = Client::at_step(name, CLIENT_STEPS, port, mem);
        assert_eq!(heard(&client.socket, port, mem).unwrap().0, Message::Connected);
        for slot in 0..RING {
            client.to.ring.set(slot, buffer(slot));
        }
        client.to.set_head(RING);
        // The server answers a moment before its queues have the connection.
        until_up(true, port, mem);
        client
    }

    /// Returns the doorbell of the ring with this number: from the client, or to it.
    pub fn bell(&self, ring: usize) -> &EventFd {
        &self.bells[ring]
    }

    /// Writes a packet of `len` bytes into the buffer of `slot`, without publishing it.
    pub fn fill(&self, slot: u16, len: u32) {
        let desc = Desc { len, ..buffer(RING + slot) };
        assert!(self.memory.write(desc.offset as usize, &vec![7; len as usize]));
        self.from.ring.set(slot, desc);
    }
}

/// Returns the `i`-th buffer; the buffers of the ring to the client come first.
pub fn buffer(i: u16) -> Desc {
    let offset = BUFFERS_AT + usize::from(i) * BUFFER_BYTES;
    Desc { flags: 0, region: 0, len: BUFFER_BYTES as u32, offset: offset as u32 }
}

/// Connects as soon as the port has a place.
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

/// A server: it listens, and maps the memory that the port shares.
pub struct Server {
    pub socket: Channel,
    hello: Message,
    regions: Vec<(OwnedFd, u64)>,
    rings: Vec<RingPlace>,
}

impl Server {
    /// Accepts the port, and sends the first `steps` messages of the handshake.
    pub fn at_step(
        listener: &Listener,
        steps: usize,
        port: &mut Opened,
        mem: &mut Local,
    ) -> Server {
        Server::with_hello(hello(), listener, steps, port, mem)
    }

    /// Accepts the port, connects, and takes two rings each way.
    pub fn with_two_rings(listener: &Listener, port: &mut Opened, mem: &mut Local) -> Server {
        let mut hello = hello();
        if let Message::Hello { to_client_max, from_client_max, .. } = &mut hello {
            (*to_client_max, *from_client_max) = (1, 1);
        }
        let server = Server::with_hello(hello, listener, usize::MAX, port, mem);
        assert_eq!(server.rings.len(), 4);
        until_up(true, port, mem);
        server
    }

    /// Accepts the port, and sends the first `steps` messages of the handshake, which begins with
    /// `hello`.
    pub fn with_hello(
        hello: Message,
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
        let mut server = Server { socket, hello, regions: Vec::new(), rings: Vec::new() };
        for step in 0..steps {
            if !server.step(step, port, mem) {
                break;
            }
        }
        server
    }

    /// Receives the next message and answers it; returns false once connected.
    fn step(&mut self, step: usize, port: &mut Opened, mem: &mut Local) -> bool {
        if step == 0 {
            return self.send(&self.hello);
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
