//! Hostile peers: whatever they send, keep or leave out, a worker waits in none of its turns, and a
//! peer that keeps to the protocol is served within a second.
//!
//! `LINERATE_TEST_MESSAGES=1000000` sends that many random messages instead of 10,000, and
//! `--nocapture` shows how many.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use linerate_sys::seqpacket::{Listener, Seqpacket};
use linerate_sys::wait::{EventFd, poll_readable};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::thread::Uid;

use super::super::channel::Channel;
use super::super::closer::{Closer, Useless, Waste};
use super::super::fuzzing::some_file;
use super::super::listener::CLOSING;
use super::super::message::{BYTES, Message, RingPlace, SECRET_BYTES, VERSION};
use super::super::ring::COOKIE;
use super::peer::{RING, hello, place};
use super::waits::Turns;
use super::*;
use crate::port::Port;
use crate::queue::{Queue, Want};

/// Longest wait of these tests.
pub const LONG: Duration = Duration::from_secs(20);
/// Time in which a campaign, which has the machine for itself, requires that an honest peer is
/// served; other runs report the time.
const SERVED: Duration = Duration::from_secs(1);
/// The variables of a campaign.
const CAMPAIGN: [&str; 2] = ["LINERATE_TEST_HOSTILE", "LINERATE_TEST_MESSAGES"];
const LINGER: Duration = Duration::from_secs(10);
const NOBODY: u32 = 65534;

/// A thread that takes turns until it is stopped.
pub struct Worker {
    stop: Arc<AtomicBool>,
    turns: Arc<Turns>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(mut turn: impl FnMut() + Send + 'static) -> Worker {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(Turns::default()));
        let (stopped, taken) = (stop.clone(), turns.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                taken.take(&mut turn);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        Worker { stop, turns, thread }
    }

    /// Starts a worker that takes turns of a port's first queue.
    pub fn of_port(text: &str, pool: &Pool) -> Worker {
        let mut queue = Port::open_with(text, pool).unwrap().into_queues().remove(0);
        let mut batch = Batch::with_capacity(64);
        Worker::start(move || {
            queue.rx(&mut batch);
            queue.xmit(&mut batch);
            batch.clear();
            let _ = queue.arm(Want::Frames);
        })
    }

    /// Asserts that the worker is not held up in a turn now, and has waited in none.
    fn assert_free(&self) {
        let (start, taken) = (Instant::now(), self.turns.taken());
        while self.turns.taken() == taken {
            assert!(start.elapsed() < LONG, "a turn does not end");
            std::thread::sleep(Duration::from_micros(100));
        }
        self.turns.assert_free();
    }

    /// Stops the worker, which waited in none of its turns.
    pub fn end(self) {
        self.assert_free();
        self.stop();
    }

    /// Stops the worker, and returns the time of its longest turn.
    pub fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let start = Instant::now();
        self.thread.join().unwrap();
        // Closing a port waits for the port's socket, but for no descriptor of a peer.
        assert!(start.elapsed() < LONG, "the end took {:?}", start.elapsed());
        self.turns.longest()
    }
}

pub fn pool() -> Pool {
    Pool::builder().frames(512).build().unwrap()
}

/// Opens a port and gives it turns until `served` returns true; reports how long that took.
pub fn serve(
    text: &str,
    pool: &Pool,
    mut served: impl FnMut(&mut Queue, &mut Batch) -> bool,
) -> Queue {
    let is_campaign = CAMPAIGN.iter().any(|name| std::env::var_os(name).is_some());
    let (limit, start) = (if is_campaign { SERVED } else { LONG }, Instant::now());
    let mut queue = Port::open_with(text, pool).unwrap().into_queues().remove(0);
    let mut batch = Batch::with_capacity(8);
    while !served(&mut queue, &mut batch) {
        assert!(start.elapsed() < limit, "not served: {:?}", queue.health());
        queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
    }
    eprintln!("served after {:?}", start.elapsed());
    queue
}

/// Sends packets from a client with this text until one of them comes back.
pub fn assert_served(text: &str, pool: &Pool) {
    drop(serve(text, pool, |queue, batch| {
        if queue.health() == Health::Up {
            batch.push(queue.local().alloc_copy(&[7; 60]).unwrap()).unwrap();
            queue.xmit(batch);
            batch.clear();
        }
        queue.rx(batch) > 0
    }));
}

/// Returns a TCP socket whose last close lingers, with the peer's end, which does not read.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGER)).unwrap();
    (near.into(), far)
}

pub fn init(secret: &str) -> Message {
    let mut bytes = [0; SECRET_BYTES];
    bytes[..secret.len()].copy_from_slice(secret.as_bytes());
    Message::Init { version: VERSION, id: 0, mode: 0, secret: bytes }
}

/// Connects as soon as the server has a place.
pub fn connect(name: &str) -> Channel {
    let start = Instant::now();
    loop {
        match Seqpacket::connect(Path::new(name)) {
            Ok(socket) => return Channel(socket),
            Err(e) => assert!(start.elapsed() < LONG, "{e}"),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Returns the next message of the other end; `None` if the connection has ended.
pub fn next(channel: &Channel) -> Option<Message> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        match channel.recv(&mut Vec::new()) {
            Ok(None) => {
                // Sleep, so that a crowd of clients that wait takes no CPU time.
                let _ = poll_readable(&[channel.as_fd()], Some(LONG));
            }
            Ok(message) => return message,
            Err(_) => return None,
        }
    }
    panic!("nothing is said");
}

/// Returns a client that has presented the secret. On a busy machine several attempts may be
/// needed, because the server allows 100 ms for each.
pub fn admitted(name: &str, secret: &str) -> Option<Channel> {
    let start = Instant::now();
    admitted_while(name, secret, || start.elapsed() < LONG)
}

/// Tries to be admitted while `go_on` returns true, which is called before each attempt.
pub fn admitted_while(name: &str, secret: &str, go_on: impl Fn() -> bool) -> Option<Channel> {
    while go_on() {
        let channel = connect(name);
        if matches!(next(&channel), Some(Message::Hello { .. })) {
            let _ = channel.send(&init(secret), None);
            if next(&channel) == Some(Message::Ack) {
                return Some(channel);
            }
        }
    }
    None
}

#[test]
fn lingering_sockets_of_clients_hold_up_no_server_and_no_reader() {
    for reads in [false, true] {
        let (name, pool) = (name(), pool());
        let worker = if reads {
            let mut reader = Reader::open(&format!("memif:{name},secret=s")).unwrap();
            Worker::start(move || {
                reader.frames(64).for_each(drop);
                let _ = reader.arm();
            })
        } else {
            Worker::of_port(&format!("memif:{name},role=server,secret=s"), &pool)
        };
        // Dropped after `ends`: then its close does not linger.
        let mut refused = Vec::new();
        let mut ends = Vec::new();
        // Send the lingering socket without the secret, in the first message; and with the secret,
        // as a region.
        for with_secret in [false, true] {
            let (socket, far) = lingering();
            ends.push(far);
            if with_secret {
                let channel = admitted(&name, "s").unwrap();
                let region = Message::AddRegion { index: 0, bytes: 4096 };
                channel.send(&region, Some(socket)).unwrap();
                assert!(matches!(next(&channel), Some(Message::Disconnect(_))));
            } else {
                let message = Message::Ack.encode("");
                // The kernel refuses this since Linux 6.16: then the close of this test would be
                // the last, and wait.
                if connect(&name).0.send(&message, Some(socket.as_fd())).is_err() {
                    refused.push(socket);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        worker.assert_free();
        if !reads {
            assert_served(&format!("memif:{name},secret=s,zerocopy=no"), &pool);
        }
        worker.end();
    }
}

#[test]
fn socket_that_a_peer_sends_is_touched_by_a_closing_thread_only() {
    let name = name();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let near = Seqpacket::connect(Path::new(&name)).unwrap();
    let far = listener.accept().unwrap().unwrap();
    far.take_descriptors();
    let (lingering, _far) = lingering();
    let own = lingering.try_clone().unwrap();
    let linger = || rustix::net::sockopt::socket_linger(&own).unwrap();
    Channel(near).send(&hello(), Some(lingering)).unwrap();
    let mut fds = Vec::new();
    Channel(far).recv(&mut fds).unwrap();
    assert_eq!((fds.len(), linger()), (1, Some(LINGER)));
    Closer::alone().dispose(Waste::own(Useless(fds)));
    let start = Instant::now();
    while linger().is_some() {
        assert!(start.elapsed() < LONG, "it still lingers");
        std::thread::yield_now();
    }
}

#[test]
fn lingering_socket_of_a_server_holds_up_no_client() {
    let (name, pool) = (name(), pool());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let worker = Worker::of_port(&format!("memif:{name},zerocopy=no"), &pool);
    let (mut kept, mut ends) = (Vec::new(), Vec::new());
    let (mut sent, start) = (0, Instant::now());
    while sent < 2 {
        assert!(start.elapsed() < LONG);
        let Some(socket) = listener.accept().unwrap() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let (lingering, far) = lingering();
        // Where the kernel refuses it, its close waits here until the other end is gone.
        kept.extend(socket.refuses_descriptors().then(|| lingering.try_clone().unwrap()));
        ends.push(far);
        match Channel(socket).send(&hello(), Some(lingering)) {
            Ok(()) => sent += 1,
            // The kernel refuses this since Linux 6.16.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => sent += 1,
            // A client waits two seconds for the handshake; a busy machine can take as long for
            // `lingering`.
            Err(_) => {}
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    worker.assert_free();
    drop(listener);
    let honest = Worker::of_port(&format!("memif:{name},role=server"), &pool);
    std::thread::sleep(Duration::from_millis(500));
    honest.end();
    worker.end();
}

/// Sends sparse files with 128 TiB of mappings in total, and one file with little memory and much
/// address space.
#[test]
fn sparse_memory_is_refused_before_it_is_mapped_with_the_remedy() {
    let (name, pool) = (name(), pool());
    let worker = Worker::of_port(&format!("memif:{name},role=server"), &pool);
    for (bytes, wanted) in [
        ((5 << 39) - 4096, "a region of more than 4 GiB, which no descriptor can reach"),
        (4 << 30, "regions of 4096 MiB, 256 MiB allowed; say memory=4096 to the server"),
    ] {
        let file = rustix::fs::memfd_create("sparse", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        for _ in 0..51 {
            let channel = admitted(&name, "").unwrap();
            let region = Message::AddRegion { index: 0, bytes };
            channel.send(&region, Some(file.try_clone().unwrap())).unwrap();
            assert_eq!(next(&channel), Some(Message::Disconnect(wanted.to_owned())));
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:sparse"), "{maps}");
    assert_served(&format!("memif:{name},zerocopy=no"), &pool);
    worker.end();
}

/// Checks a client whose only ring is one to itself. That ring keeps the client's memory mapped.
#[test]
fn memory_of_a_client_that_only_receives_is_not_unmapped_by_its_reader() {
    let name = name();
    let mut reader = Reader::listen(&name).unwrap();
    let channel = admitted(&name, "").unwrap();
    let file = rustix::fs::memfd_create("one-way", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    rustix::io::pwrite(&file, &COOKIE.to_ne_bytes(), 0).unwrap();
    let bell = EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap();
    let ring = Message::AddRing(RingPlace { offset: 0, ..place(0, false) });
    for (message, fd, answer) in [
        (Message::AddRegion { index: 0, bytes: 4096 }, Some(file), Message::Ack),
        (ring, Some(bell), Message::Ack),
        (Message::Connect, None, Message::Connected),
    ] {
        channel.send(&message, fd).unwrap();
        assert_eq!(next(&channel), Some(answer));
    }
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains("memfd:one-way")
    };
    let start = Instant::now();
    let is_known = |reader: &Reader| match reader.health() {
        Health::Down(e) => e.why == "the client has no ring to send by" && !e.fix.is_empty(),
        _ => false,
    };
    while !is_known(&reader) {
        assert!(start.elapsed() < LONG, "{:?}", reader.health());
        let _ = reader.arm();
    }
    assert!(is_mapped(), "the reader's thread has unmapped it");
    drop(reader);
    while is_mapped() {
        assert!(start.elapsed() < LONG, "it stays mapped");
        std::thread::yield_now();
    }
}

/// Uses a full, blocking doorbell, which an honest server rings for each packet.
#[test]
fn full_and_blocking_doorbell_holds_up_no_server() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let client = super::peer::Client::connected(&name, &mut port, &mut mem);
    super::peer::until_up(true, &mut port, &mut mem);
    let bell: &EventFd = client.bell(1);
    rustix::io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::io::ioctl_fionbio(bell.as_fd(), false).unwrap();
    client.to.ring.want_bell(true);
    let turns = Turns::default();
    for _ in 0..RING {
        let mut batch = Batch::with_capacity(1);
        batch.push(mem.alloc_copy(&[1; 60]).unwrap()).unwrap();
        assert_eq!(turns.take(|| port.queues[0].xmit(&mut mem, &mut batch)).packets, 1);
    }
    turns.assert_free();
    drop((client, port));
}

/// Runs `work` on a thread of another user; returns `None`, with a note on stderr, if this process
/// may not do so.
pub fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let work = || {
            let nobody = Uid::from_raw(NOBODY);
            if rustix::process::geteuid() == nobody {
                eprintln!("skipped: this is that user");
                return None;
            }
            match rustix::thread::set_thread_res_uid(nobody, nobody, nobody) {
                // EINVAL: the user namespace has no such user.
                Err(e @ (Errno::PERM | Errno::INVAL)) => {
                    eprintln!("skipped: no right to change the user: {e}");
                    return None;
                }
                done => done.unwrap(),
            }
            Some(work())
        };
        scope.spawn(work).join().unwrap()
    })
}

#[test]
fn idle_sockets_of_another_user_starve_nobody() {
    let slow = Duration::from_millis(1);
    for (options, sockets, pause) in [
        ("", 22, slow),
        (",peer=any,secret=s", 22, slow),
        (",peer=any,secret=s", 300, Duration::ZERO),
        (",peer=any,secret=s", 600, Duration::ZERO),
    ] {
        let (name, pool) = (name(), pool());
        let worker = Worker::of_port(&format!("memif:{name},role=server{options}"), &pool);
        let stop = AtomicBool::new(false);
        let flood = || {
            let mut idle = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if idle.len() == sockets {
                    idle.remove(0);
                }
                idle.extend(Seqpacket::connect(Path::new(&name)));
                std::thread::sleep(pause);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| as_nobody(flood));
            std::thread::sleep(Duration::from_millis(300));
            let secret = options.strip_prefix(",peer=any").unwrap_or_default();
            assert_served(&format!("memif:{name},zerocopy=no{secret}"), &pool);
            stop.store(true, Ordering::Relaxed);
        });
        worker.end();
    }
}

#[test]
fn crowd_of_one_user_gets_two_hellos_in_two_milliseconds() {
    let (name, pool) = (name(), pool());
    let worker = Worker::of_port(&format!("memif:{name},role=server"), &pool);
    let start = Instant::now();
    let crowd: Vec<_> = (0..100).map(|_| connect(&name)).collect();
    let (mut hellos, mut refused) = (0, 0);
    for channel in &crowd {
        match next(channel) {
            Some(Message::Hello { .. }) => hellos += 1,
            Some(Message::Disconnect(why)) => {
                // Those that were refused are closed one after the other.
                assert!(["too many clients connect at once", CLOSING].contains(&&*why), "{why}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    let rounds = start.elapsed().as_millis() as u64 / 2 + 2;
    assert!(hellos <= 2 * rounds && hellos + refused == 100, "{hellos} in {rounds} rounds");
    assert_served(&format!("memif:{name},zerocopy=no"), &pool);
    worker.end();
}

#[test]
fn listener_of_another_user_is_told_no_secret_and_gets_no_memory() {
    let name = name();
    let listener = as_nobody(|| Listener::bind(Path::new(&name), 0o666).unwrap());
    let Some(listener) = listener else { return };
    let pool = pool();
    let mut port = open(&format!("memif:{name},secret=s3cret,zerocopy=no"), &pool);
    let mut mem = pool.local();
    let start = Instant::now();
    let socket = loop {
        if let Some(socket) = listener.accept().unwrap() {
            break Channel(socket);
        }
        assert!(start.elapsed() < LONG);
        super::peer::turn(&mut port, &mut mem);
    };
    socket.0.take_descriptors();
    let _ = socket.send(&hello(), None);
    let why = match next(&socket) {
        Some(Message::Disconnect(why)) => why,
        other => panic!("it was told {other:?}"),
    };
    assert_eq!(why, "the peer belongs to user 65534; to accept that user, add peer=65534");
    assert_eq!(next(&socket), None);
    let Health::Down(e) = port.queues[0].health() else { panic!("it is up") };
    assert!(e.why.contains("add peer=65534"), "{e}");
    drop(port);
    let mut port = open(&format!("memif:{name},secret=s3cret,zerocopy=no,peer=65534"), &pool);
    let start = Instant::now();
    let socket = loop {
        match listener.accept().unwrap() {
            Some(socket) => break Channel(socket),
            None => super::peer::turn(&mut port, &mut mem),
        }
        assert!(start.elapsed() < LONG);
    };
    socket.send(&hello(), None).unwrap();
    assert_eq!(next(&socket), Some(init("s3cret")));
}

/// A generator of pseudo-random numbers, the same in each run.
pub struct Random(pub u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Makes a message that is almost valid, or random.
fn some_message(random: &mut Random) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let (kind, fields) = (random.next(), random.next());
    bytes[..2].copy_from_slice(&[(kind % 9) as u8, (kind >> 60 & kind >> 56 & 1) as u8]);
    for (at, byte) in bytes[2..26].iter_mut().enumerate() {
        // Mostly small numbers; for lengths, a page or more.
        *byte = match fields >> (at % 32) & 3 {
            0 => (random.next() % 3) as u8,
            1 => random.next() as u8,
            _ => 0,
        };
    }
    if kind % 9 == 4 {
        bytes[2..12].copy_from_slice(&[(kind >> 8 & 1) as u8, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    }
    if kind % 9 == 5 {
        bytes[2..13].copy_from_slice(&[(kind >> 8 & 1) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    }
    bytes
}

/// Sends up to `most` messages, most of them with a descriptor; returns the number sent.
pub fn send_some(channel: &Channel, most: u64, random: &mut Random) -> u64 {
    (0..most)
        .take_while(|_| {
            let (bytes, with) = (some_message(random), random.next());
            let file = (with % 4 > 0).then(|| some_file(with >> 3));
            channel.0.send(&bytes, file.as_ref().map(AsFd::as_fd)).is_ok()
        })
        .count() as u64
}

#[test]
fn random_messages_with_descriptors_hold_up_nobody() {
    let messages = std::env::var("LINERATE_TEST_MESSAGES");
    let messages: u64 = messages.ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let (name, pool) = (name(), pool());
    let worker = Worker::of_port(&format!("memif:{name},role=server"), &pool);
    let (mut random, mut sent, mut clients, start) = (Random::default(), 0, 0, Instant::now());
    while sent < messages {
        let Some(channel) = admitted(&name, "") else { continue };
        sent += send_some(&channel, 20, &mut random);
        clients += 1;
    }
    worker.assert_free();
    eprintln!("{sent} messages of {clients} clients in {:?}", start.elapsed());
    assert_served(&format!("memif:{name},zerocopy=no"), &pool);
    worker.end();
}
