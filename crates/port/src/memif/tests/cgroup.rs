//! A server, a client and a reader, each in a process with limited memory, with hostile peers whose
//! memory it maps in order to make the kernel kill it: the process survives, and serves an honest
//! peer afterwards. Its worker waits in none of its turns.
//!
//! `LINERATE_TEST_HOSTILE=1000` has so many peers come instead of 12.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use linerate_sys::seqpacket::Listener;
use linerate_sys::wait::poll_readable;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::sockopt::set_socket_linger;

use super::super::message::{Message, RingPlace};
use super::super::ring::COOKIE;
use super::neighbours::{
    LONG, Random, admitted, assert_served, lingering, next, pool, send_some, serve,
};
use super::peer::hello;
use super::waits::Turns;
use super::*;
use crate::memif::channel::Channel;
use crate::port::Port;
use crate::queue::{Queue, Want};

/// Environment variable that marks this process as the one in the cgroup; its value has the folder
/// and the port's text.
const VICTIM: &str = "LINERATE_TEST_MEMIF_CGROUP";
const LIMIT: u64 = 96 << 20;
/// The limit of a client's memory; the next constant has the bytes of it that are holes.
pub const MEMORY: &str = "memory=32";
const HOLES: u64 = 31 << 20;
const POWER: u8 = 10;
pub const RING: u64 = 1 << POWER;
/// Longest sleep of the process in the cgroup.
const SLEEP: Duration = Duration::from_millis(1);

/// Returns true if this process may not make a cgroup, or there is none of this version. Panics at
/// another failure.
fn may_not(done: io::Result<()>) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    match done {
        Err(e) if matches!(e.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem) => true,
        done => {
            done.unwrap();
            false
        }
    }
}

/// A folder of a memory cgroup, of either version.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup with the limit; returns `None`, with a note on stderr, if this process may
    /// not do so.
    fn new() -> Option<Group> {
        let own = format!("linerate-test{}", name().replace('@', "-"));
        let roots =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, limit) in roots {
            let folder = PathBuf::from(root).join(&own);
            if may_not(fs::create_dir(&folder)) {
                continue;
            }
            let group = Group(folder);
            if !may_not(fs::write(group.0.join(limit), LIMIT.to_string())) {
                return Some(group);
            }
        }
        eprintln!("skipped: no memory cgroup that this process may make");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Try again: the last process of the cgroup may still be ending.
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The process in the cgroup.
pub struct Victim {
    pub child: Child,
    _group: Group,
}

impl Victim {
    /// Starts the test of this name again in a cgroup, as the process that opens the ports of
    /// `text`.
    pub fn start(test: &str, text: &str) -> Option<Victim> {
        let group = Group::new()?;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("memif::tests::{test}"), "--nocapture"]);
        command.args(["--include-ignored"]);
        command.env(VICTIM, format!("{} {text}", group.0.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Some(Victim { child: command.spawn().unwrap(), _group: group })
    }

    /// Waits for the end of the process, which must exit by itself.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(
            status.success(),
            "it ended by {status}: signal 9 is the kernel's, for want of memory"
        );
    }
}

/// Runs the ports if this process is the one in the cgroup, until its standard input ends; returns
/// false in any other process.
pub fn is_victim() -> bool {
    let Ok(told) = std::env::var(VICTIM) else { return false };
    let (group, text) = told.split_once(' ').unwrap();
    fs::write(PathBuf::from(group).join("cgroup.procs"), "0").unwrap();
    let turns = Turns::default();
    std::thread::scope(|scope| {
        let stdin = scope.spawn(|| std::io::stdin().read(&mut [0]));
        let ended = || stdin.is_finished();
        match text.strip_prefix("reader ") {
            Some(text) => run_reader(text, &turns, ended),
            None => run_queues(text, &turns, ended),
        }
    });
    turns.assert_free();
    true
}

fn run_reader(text: &str, turns: &Turns, ended: impl Fn() -> bool) {
    let mut reader = Reader::open(text).unwrap();
    while !ended() {
        let armed = turns.take(|| {
            reader.frames(64).for_each(drop);
            reader.arm()
        });
        if armed {
            poll_readable(&[reader.as_fd()], Some(SLEEP)).unwrap();
        }
    }
}

/// Runs the queues of the ports in `text`, one worker for all.
fn run_queues(text: &str, turns: &Turns, ended: impl Fn() -> bool) {
    let pool = pool();
    let mut queues: Vec<Queue> = text.split(' ').map(|text| queue(text, &pool)).collect();
    let mut batches: Vec<Batch> = queues.iter().map(|_| Batch::with_capacity(64)).collect();
    let sends = text.contains("role=client");
    while !ended() {
        let armed = turns.take(|| {
            for (queue, batch) in queues.iter_mut().zip(&mut batches) {
                if sends {
                    queue.local().alloc_copy(&[1; 60]).into_iter().for_each(|skb| {
                        let _ = batch.push(skb);
                    });
                }
                queue.rx(batch);
                queue.xmit(batch);
                batch.clear();
            }
            queues.iter_mut().all(|queue| queue.arm(Want::Frames))
        });
        if armed {
            let fds: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
            poll_readable(&fds, Some(SLEEP)).unwrap();
        }
    }
}

fn queue(text: &str, pool: &Pool) -> Queue {
    Port::open_with(text, pool).unwrap().into_queues().remove(0)
}

fn hostile() -> u64 {
    let number = std::env::var("LINERATE_TEST_HOSTILE");
    number.ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// Connects with a file of this length as the only region; its first 64 KiB have a ring in each
/// direction. Returns `None` if the server ends the connection.
pub fn connect_with(channel: &Channel, file: &OwnedFd, bytes: u64) -> Option<()> {
    let tell = |message, fd: Option<_>| {
        channel.send(&message, fd).ok()?;
        next(channel).filter(|answer| matches!(answer, Message::Ack | Message::Connected))
    };
    tell(Message::AddRegion { index: 0, bytes }, Some(file.try_clone().unwrap()))?;
    for (at, from_client) in [(0, true), (1 << 15, false)] {
        rustix::io::pwrite(file, &COOKIE.to_ne_bytes(), at).unwrap();
        let offset = at as u32;
        let place = RingPlace { from_client, offset, power: POWER, ..RingPlace::default() };
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        tell(Message::AddRing(place), Some(bell))?;
    }
    tell(Message::Connect, None).map(drop)
}

/// Makes a server read a packet from every page of a sparse file, as far as the server allows;
/// `punches` removes the pages again. Returns `None` if the server ends the connection before.
fn send_holes(channel: &Channel, punches: bool) -> Option<()> {
    let file = rustix::fs::memfd_create("holes", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, HOLES).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let write = |at: u64, bytes: &[u8]| rustix::io::pwrite(&file, bytes, at).unwrap();
    connect_with(channel, &file, HOLES)?;
    let (page, first) = (4096, 1 << 16);
    let (mut head, start) = (0u64, Instant::now());
    for at in (first..HOLES - page).step_by(page as usize) {
        // The fields of a descriptor: flags and region, length, offset.
        let desc = [[0, 64], [at as u32, 0]].concat().into_iter().flat_map(u32::to_ne_bytes);
        write(128 + head % RING * 16, &desc.collect::<Vec<_>>());
        head += 1;
        if head.is_multiple_of(RING) {
            write(6, &(head as u16).to_ne_bytes());
            let mut tail = [0; 2];
            while u16::from_ne_bytes(tail) != head as u16 {
                // The server may have ended the connection.
                if start.elapsed() > LONG || !matches!(channel.recv(&mut Vec::new()), Ok(None)) {
                    return None;
                }
                rustix::io::pread(&file, &mut tail[..], 64).unwrap();
            }
            if punches {
                let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, holes, first, at - first).unwrap();
            }
        }
    }
    Some(())
}

/// Sends a message with a socket whose last close lingers.
fn send_lingering(channel: &Channel, message: &Message) {
    let (socket, _far) = lingering();
    let own = socket.try_clone().unwrap();
    if channel.send(message, Some(socket)).is_err() {
        // The peer has not got the socket, so its last close would linger here.
        set_socket_linger(&own, None).unwrap();
    }
}

/// Acts as one hostile client, of the kind with number `i`, on a connection to a server.
pub fn be_hostile(channel: &Channel, i: u64, random: &mut Random) {
    match i % 6 {
        0 | 1 => {
            let _ = send_holes(channel, i % 6 == 1);
        }
        2 => send_lingering(channel, &Message::AddRegion { index: 0, bytes: 4096 }),
        3 => {
            // Offer more than is allowed; the server must map none of it.
            let file = rustix::fs::memfd_create("large", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, 3 << 30).unwrap();
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            let _ = channel.send(&Message::AddRegion { index: 0, bytes: 3 << 30 }, Some(file));
            assert_ne!(next(channel), Some(Message::Ack));
        }
        4 => {
            send_some(channel, 20, random);
        }
        // Send nothing.
        _ => {}
    }
}

#[test]
fn server_and_reader_survive_hostile_clients_in_little_memory() {
    if is_victim() {
        return;
    }
    for reads in [false, true] {
        let (name, mut random) = (name(), Random::default());
        let what = if reads { "reader " } else { "" };
        let text = format!("{what}memif:{name},role=server,{MEMORY}");
        let test = "cgroup::server_and_reader_survive_hostile_clients_in_little_memory";
        let Some(victim) = Victim::start(test, &text) else { return };
        for i in 0..hostile() {
            be_hostile(&admitted(&name, "").unwrap(), i, &mut random);
        }
        let client = format!("memif:{name},zerocopy=no");
        match reads {
            false => assert_served(&client, &pool()),
            true => drop(serve(&client, &pool(), |queue, _| queue.health() == Health::Up)),
        }
        victim.end();
    }
}

#[test]
fn client_survives_hostile_servers_in_little_memory() {
    if is_victim() {
        return;
    }
    let (name, mut random) = (name(), Random::default());
    let text = format!("memif:{name},role=client,zerocopy=no");
    let test = "cgroup::client_survives_hostile_servers_in_little_memory";
    let Some(victim) = Victim::start(test, &text) else { return };
    let listener = Listener::bind(std::path::Path::new(&name), 0o600).unwrap();
    let (mut served, start) = (0, Instant::now());
    // The client under test connects ten times a second.
    while served < hostile().min(200) {
        assert!(start.elapsed() < 10 * LONG, "it came {served} times");
        let Some(socket) = listener.accept().unwrap() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let channel = Channel(socket);
        match served % 2 {
            0 => _ = channel.send(&hello(), None),
            _ => send_lingering(&channel, &hello()),
        }
        send_some(&channel, 10, &mut random);
        served += 1;
    }
    drop(listener);
    let server = format!("memif:{name},role=server");
    drop(serve(&server, &pool(), |queue, batch| queue.rx(batch) > 0));
    victim.end();
}
