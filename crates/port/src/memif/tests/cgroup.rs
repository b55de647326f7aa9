//! A server, a client and a reader, each in a process with limited memory, with hostile peers whose memory it
//! maps in order to make the kernel kill it: the process survives, and serves an honest peer afterwards.
//!
//! `LINERATE_TEST_HOSTILE=1000` has so many peers come instead of 12. The rate beside them is measured by
//! `cargo test -p linerate-port --lib -- --ignored --nocapture memif::tests::cgroup`.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use linerate_sys::seqpacket::Listener;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::super::message::{Message, RingPlace};
use super::super::ring::COOKIE;
use super::neighbours::{
    LONG, Random, admitted, assert_served, lingering, next, pool, send_some, serve,
};
use super::peer::hello;
use super::*;
use crate::memif::channel::Channel;
use crate::port::Port;
use crate::queue::{Queue, Want};

/// Environment variable that marks this process as the one in the cgroup; its value has the folder and
/// the port's text.
const VICTIM: &str = "LINERATE_TEST_MEMIF_CGROUP";
const LIMIT: u64 = 96 << 20;
/// The limit of a client's memory; the next constant has the bytes of it that are holes.
const MEMORY: &str = "memory=32";
const HOLES: u64 = 31 << 20;
const POWER: u8 = 10;
const RING: u64 = 1 << POWER;

/// A folder of a memory cgroup, of either version.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup with the limit; returns `None`, with a note on stderr, if this process may not do so.
    fn new() -> Option<Group> {
        let own = format!("linerate-test{}", name().replace('@', "-"));
        let roots =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, limit) in roots {
            let folder = PathBuf::from(root).join(&own);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group(folder);
            if fs::write(group.0.join(limit), LIMIT.to_string()).is_ok() {
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
struct Victim {
    child: Child,
    _group: Group,
}

impl Victim {
    /// Starts this test again in a cgroup, as the process that opens `text`.
    fn start(test: &str, text: &str) -> Option<Victim> {
        let group = Group::new()?;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("memif::tests::cgroup::{test}"), "--nocapture"]);
        command.args(["--include-ignored"]);
        command.env(VICTIM, format!("{} {text}", group.0.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Some(Victim { child: command.spawn().unwrap(), _group: group })
    }

    /// Waits for the end of the process, which must exit by itself.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "it ended by {status}: 9 is the kernel's, for want of memory");
    }
}

/// Runs the port if this process is the one in the cgroup, until its standard input ends; returns
/// false in any other process.
fn is_victim() -> bool {
    let Ok(told) = std::env::var(VICTIM) else { return false };
    let (group, text) = told.split_once(' ').unwrap();
    fs::write(PathBuf::from(group).join("cgroup.procs"), "0").unwrap();
    std::thread::scope(|scope| {
        let stdin = scope.spawn(|| std::io::stdin().read(&mut [0]));
        if let Some(text) = text.strip_prefix("reader ") {
            let mut reader = Reader::open(text).unwrap();
            while !stdin.is_finished() {
                reader.frames(64).for_each(drop);
                reader.wait(Some(Duration::from_millis(1))).unwrap();
            }
            return;
        }
        let mut queue = queue(text, &pool());
        let mut batch = Batch::with_capacity(64);
        while !stdin.is_finished() {
            if text.contains("role=client") && batch.is_empty() {
                queue
                    .local()
                    .alloc_copy(&[1; 60])
                    .into_iter()
                    .for_each(|skb| drop(batch.push(skb)));
            }
            queue.rx(&mut batch);
            queue.xmit(&mut batch);
            batch.clear();
            queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
        }
    });
    true
}

fn queue(text: &str, pool: &Pool) -> Queue {
    Port::open_with(text, pool).unwrap().into_queues().remove(0)
}

fn hostile() -> u64 {
    let number = std::env::var("LINERATE_TEST_HOSTILE");
    number.ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// Makes a server read a packet from every page of a sparse file, as far as the server allows; `punches` removes
/// the pages again.
fn send_holes(name: &str, punches: bool) -> Option<()> {
    let channel = admitted(name, "")?;
    let file = rustix::fs::memfd_create("holes", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, HOLES).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let write = |at: u64, bytes: &[u8]| rustix::io::pwrite(&file, bytes, at).unwrap();
    let tell = |message, fd: Option<_>| {
        channel.send(&message, fd).ok()?;
        next(&channel).filter(|answer| matches!(answer, Message::Ack | Message::Connected))
    };
    tell(Message::AddRegion { index: 0, bytes: HOLES }, Some(file.try_clone().unwrap()))?;
    for (at, from_client) in [(0, true), (1 << 15, false)] {
        write(at, &COOKIE.to_ne_bytes());
        let offset = at as u32;
        let place = RingPlace { from_client, index: 0, region: 0, offset, power: POWER };
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        tell(Message::AddRing(place), Some(bell))?;
    }
    tell(Message::Connect, None)?;
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

/// Runs one hostile client of the server at `name`.
fn be_hostile(name: &str, i: u64, random: &mut Random) {
    match i % 6 {
        0 | 1 => {
            let _ = send_holes(name, i % 6 == 1);
        }
        2 => {
            let channel = admitted(name, "").unwrap();
            let (socket, _far) = lingering();
            let _ = channel.send(&Message::AddRegion { index: 0, bytes: 4096 }, Some(socket));
        }
        3 => {
            // Offer more than is allowed; the server must map none of it.
            let channel = admitted(name, "").unwrap();
            let file = rustix::fs::memfd_create("large", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, 3 << 30).unwrap();
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            let _ = channel.send(&Message::AddRegion { index: 0, bytes: 3 << 30 }, Some(file));
            assert!(matches!(next(&channel), Some(Message::Disconnect(_))));
        }
        4 => {
            send_some(&admitted(name, "").unwrap(), 20, random);
        }
        // Present the secret, and disconnect without a further message.
        _ => drop(admitted(name, "")),
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
        let test = "server_and_reader_survive_hostile_clients_in_little_memory";
        let Some(victim) = Victim::start(test, &text) else { return };
        (0..hostile()).for_each(|i| be_hostile(&name, i, &mut random));
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
    let test = "client_survives_hostile_servers_in_little_memory";
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
        let (socket, _far) = (served % 2 == 1).then(lingering).unzip();
        let _ = channel.send(&hello(), socket);
        send_some(&channel, 10, &mut random);
        served += 1;
    }
    drop(listener);
    let server = format!("memif:{name},role=server");
    drop(serve(&server, &pool(), |queue, batch| queue.rx(batch) > 0));
    victim.end();
}

/// Returns the number of packets that come back within `time`.
fn echoed(queue: &mut Queue, time: Duration) -> u64 {
    let (mut batch, start, mut back) = (Batch::with_capacity(32), Instant::now(), 0);
    while start.elapsed() < time {
        while let Some(skb) = queue.local().alloc_copy(&[1; 60]) {
            if batch.push(skb).is_err() {
                break;
            }
        }
        queue.xmit(&mut batch);
        batch.clear();
        queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
        back += queue.rx(&mut batch) as u64;
        batch.clear();
    }
    back
}

/// Reports the rate of an honest client with 100 hostile ones, as a share of its rate alone.
#[test]
#[ignore = "a campaign of half a minute, which reports a rate"]
fn rate_of_an_honest_client_beside_a_hundred_hostile_ones() {
    if is_victim() {
        return;
    }
    let (name, pool) = (name(), pool());
    let text = format!("memif:{name},role=server,{MEMORY}");
    let test = "rate_of_an_honest_client_beside_a_hundred_hostile_ones";
    let Some(victim) = Victim::start(test, &text) else { return };
    let client = format!("memif:{name},zerocopy=no");
    let mut queue = serve(&client, &pool, |queue, _| queue.health() == Health::Up);
    let mut shares: Vec<f64> = Vec::new();
    // Measure alternately in short windows, because which CPUs two programs get changes over seconds.
    let window = Duration::from_millis(300);
    for _ in 0..41 {
        let alone = echoed(&mut queue, window);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut idle = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    idle.truncate(99);
                    let socket = linerate_sys::seqpacket::Seqpacket::connect(name.as_ref());
                    idle.extend(
                        socket.into_iter().inspect(|socket| drop(socket.send(&[7; 128], None))),
                    );
                    idle.rotate_right(1);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let beside = echoed(&mut queue, window);
            stop.store(true, Ordering::Relaxed);
            beside
        });
        shares.push(beside as f64 / alone.max(1) as f64);
    }
    shares.sort_by(f64::total_cmp);
    let [low, median, high] = [10, 20, 30].map(|at| shares[at]);
    eprintln!(
        "beside 100 hostile clients: {median:.3} of the rate alone, quartiles {low:.3} and {high:.3}"
    );
    assert!(median > 0.0 && queue.health() == Health::Up);
    drop(queue);
    victim.end();
}
