//! Peers that die, are silent, flood, or send forbidden messages: the port listens or connects
//! again, and serves the next peer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use linerate_sys::seqpacket::Listener;
use linerate_sys::wait::EventFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::super::channel::Channel;
use super::super::message::{BYTES, Message};
use super::super::ring::{Desc, NEXT};
use super::neighbours::LONG;
use super::peer::{self, Client, Server, heard, init, place, refused, turn, until_up};
use super::*;

/// Returns a pool that a client can share.
fn pool() -> Pool {
    Pool::builder().frames(512).trust(Trust::Exported).build().unwrap()
}

/// Checks that packets pass both ways between two ports that are connected.
fn exchange(pool: &Pool, near: &mut Opened, far: &mut Opened) {
    pass(pool, near, far);
    pass(pool, far, near);
}

fn pass(pool: &Pool, from: &mut Opened, to: &mut Opened) {
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(32));
    let (mut sent, mut passed, start) = (0u8, 0u8, Instant::now());
    while passed < 100 {
        assert!(start.elapsed() < Duration::from_secs(10), "{passed} of {sent} passed");
        while sent < 100 && batch.spare() > 0 {
            let Some(skb) = mem.alloc_copy(&[sent; 60]) else { break };
            let _ = batch.push(skb);
            sent += 1;
        }
        from.queues[0].xmit(&mut mem, &mut batch);
        let mut out: Batch = Batch::with_capacity(64);
        to.queues[0].rx(&mut mem, &mut out, 64);
        for skb in out.iter() {
            let mut bytes = [0; 61];
            assert_eq!((skb.copy_to(0, &mut bytes), bytes[..60] == [passed; 60]), (60, true));
            passed += 1;
        }
        out.consume(&mut mem);
    }
    assert!(batch.is_empty());
}

/// Asserts that every frame is back in the pool after the ports are closed.
pub fn settled(pool: &Pool) {
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
    let lent = ledger.holders().iter().find(|(name, _)| *name == "device rings");
    assert_eq!(lent.map(|(_, n)| *n), Some(0), "{ledger}");
    let frames = pool.frames();
    let mut all: Batch = Batch::with_capacity(frames);
    assert_eq!(pool.local_with(0).alloc(&mut all, frames), frames);
}

/// Asserts that a port that serves at `name` still serves a client that keeps to the protocol.
fn serves(name: &str, pool: &Pool, mut port: Opened) {
    let mut good = open(&format!("memif:{name},size=64"), pool);
    meet(pool, &mut [&mut good, &mut port]);
    exchange(pool, &mut good, &mut port);
    drop((good, port));
    settled(pool);
}

/// Time in which another test's process executes its program.
const PROMPT: Duration = Duration::from_secs(2);

/// Opens a server at `name` in the place of a listener that is closed. A process that another test
/// forks meanwhile has the listener, too, until it executes its program.
fn serve_at(name: &str, pool: &Pool) -> Opened {
    let start = Instant::now();
    loop {
        match registry::open(&format!("memif:{name},role=server"), pool) {
            Err(e) if e.code == linerate_skb::Code::Busy && start.elapsed() < PROMPT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Asserts that a port that connects to `name` still connects to a server that keeps to the
/// protocol.
fn dials(name: &str, pool: &Pool, mut port: Opened) {
    let mut good = serve_at(name, pool);
    meet(pool, &mut [&mut good, &mut port]);
    exchange(pool, &mut good, &mut port);
    drop((good, port));
    settled(pool);
}

#[test]
fn a_client_that_dies_at_any_step_leaves_the_place_to_the_next() {
    for step in 0..=peer::CLIENT_STEPS {
        let (name, pool) = (name(), pool());
        let mut port = open(&format!("memif:{name},role=server"), &pool);
        let mut mem = pool.local();
        drop(Client::at_step(&name, step, &mut port, &mut mem));
        drop(mem);
        serves(&name, &pool, port);
    }
}

#[test]
fn a_connected_client_that_dies_leaves_the_place_to_the_next() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let client = Client::connected(&name, &mut port, &mut mem);
    client.fill(0, 60);
    client.from.set_head(1);
    peer::until_up(true, &mut port, &mut mem);
    drop((client, mem));
    serves(&name, &pool, port);
}

#[test]
fn a_server_that_dies_at_any_step_is_dialled_anew() {
    for sharing in ["yes", "no"] {
        for step in 0..9 {
            let (name, pool) = (name(), pool());
            let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
            let mut port = open(&format!("memif:{name},size=64,zerocopy={sharing}"), &pool);
            let mut mem = pool.local();
            let server = Server::at_step(&listener, step, &mut port, &mut mem);
            turn(&mut port, &mut mem);
            drop((server, listener, mem));
            dials(&name, &pool, port);
        }
    }
}

#[test]
fn a_server_that_dies_with_packets_of_ours_leaves_them_to_us() {
    let (name, pool) = (name(), pool());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(16));
    let (server, _, rings) = Server::connected(&listener, &mut port, &mut mem);
    for _ in 0..16 {
        batch.push(mem.alloc_copy(&[1; 60]).unwrap()).unwrap();
    }
    assert_eq!(port.queues[0].xmit(&mut mem, &mut batch).packets, 16);
    assert_eq!((rings[0].head(), rings[1].head()), (16, 64));
    rings[0].set_tail(5);
    drop((server, listener));
    until_up(false, &mut port, &mut mem);
    assert_eq!(pool.ledger().in_flight, 0);
    assert_eq!(port.queues[0].counters().driver.resets, 1);
    drop(mem);
    dials(&name, &pool, port);
}

#[test]
fn packets_that_were_not_received_are_missed_whatever_their_parts() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let client = Client::connected(&name, &mut port, &mut mem);
    peer::until_up(true, &mut port, &mut mem);
    for (slot, flags) in [NEXT, NEXT, 0, 0, NEXT].into_iter().enumerate() {
        client.from.ring.set(slot as u16, Desc { flags, len: 60, ..peer::buffer(0) });
    }
    client.from.set_head(5);
    drop(client);
    peer::until_up(false, &mut port, &mut mem);
    assert_eq!(port.queues[0].counters().rx_missed, 2);
    drop((port, mem));
    settled(&pool);
}

/// VPP and DPDK post their buffers again many at a time, so the last ones not at all.
#[test]
fn packets_whose_buffers_a_client_does_not_post_again_count_as_sent_after_a_while() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let _client = Client::connected(&name, &mut port, &mut mem);
    let mut send = |n: usize, mem: &mut linerate_skb::Local| {
        let mut batch = Batch::with_capacity(n);
        (0..n).for_each(|_| batch.push(mem.alloc_copy(&[1; 60]).unwrap()).unwrap());
        assert_eq!(port.queues[0].xmit(mem, &mut batch).packets, n);
        let (under_way, start) = (port.queues[0].reap(mem), Instant::now());
        while port.queues[0].reap(mem) > 0 {
            assert!(start.elapsed() < LONG, "they are under way for ever");
            std::thread::sleep(Duration::from_millis(10));
        }
        (under_way, start.elapsed() > Duration::from_millis(300))
    };
    assert_eq!((send(3, &mut mem), send(1, &mut mem)), ((3, true), (4, true)));
}

#[test]
fn silent_client_is_disconnected_at_the_deadline() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let silent = Client::at_step(&name, 0, &mut port, &mut mem);
    let half = Client::at_step(&name, 2, &mut port, &mut mem);
    assert_eq!(refused(&silent.socket, &mut port, &mut mem).as_deref(), Some("too slow"));
    assert_eq!(refused(&half.socket, &mut port, &mut mem).as_deref(), Some("too slow"));
    drop(mem);
    serves(&name, &pool, port);
}

#[test]
fn a_server_that_never_answers_is_given_up_at_the_deadline() {
    let (name, pool) = (name(), pool());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let mut mem = pool.local();
    let silent = Server::at_step(&listener, 0, &mut port, &mut mem);
    assert!(heard(&silent.socket, &mut port, &mut mem).is_none());
    let half = Server::at_step(&listener, 2, &mut port, &mut mem);
    while heard(&half.socket, &mut port, &mut mem).is_some() {}
    drop((silent, half, listener, mem));
    dials(&name, &pool, port);
}

#[test]
fn a_thousand_connections_are_served_in_turn() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    for _ in 0..1000 {
        drop(peer::connect(&name, &mut port, &mut mem));
    }
    drop(mem);
    serves(&name, &pool, port);
}

#[test]
fn guests_that_only_sit_there_keep_nobody_out_for_longer_than_the_deadline() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let idle: Vec<Channel> = (0..12).map(|_| peer::connect(&name, &mut port, &mut mem)).collect();
    turn(&mut port, &mut mem);
    drop(mem);
    serves(&name, &pool, port);
    drop(idle);
}

/// The listener is not watched between two rounds, and must be watched again after them.
#[test]
fn guests_that_leave_all_at_once_leave_their_places() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let guests: Vec<Channel> = (0..8).map(|_| peer::connect(&name, &mut port, &mut mem)).collect();
    for guest in &guests {
        let said = heard(guest, &mut port, &mut mem);
        assert!(matches!(said, Some((Message::Hello { .. } | Message::Disconnect(_), _))));
    }
    turn(&mut port, &mut mem);
    drop(guests);
    drop(mem);
    serves(&name, &pool, port);
}

/// Sends `bytes` with these descriptors.
fn throw(socket: &Channel, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let fd = null.as_fd();
    let kind = |kind: u16| {
        let mut bytes = vec![0xa5; BYTES];
        bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        bytes
    };
    let region = Message::AddRegion { index: 0, bytes: 4096 }.encode("");
    for (bytes, fds) in [
        (vec![0; 1], 0),
        (vec![1; BYTES - 1], 0),
        (vec![1; BYTES + 1], 0),
        (vec![1; 10_000], 0),
        (kind(0), 0),
        (kind(9), 0),
        (kind(u16::MAX), 0),
        (kind(1), 0),
        (kind(3), 0),
        (kind(4), 1),
        (kind(5), 1),
        (kind(6), 0),
        (init().encode("").to_vec(), 0),
        (region.to_vec(), 0),
        (region.to_vec(), 2),
        (region.to_vec(), 16),
    ] {
        let client = Client::at_step(&name, 1, &mut port, &mut mem);
        assert_eq!(heard(&client.socket, &mut port, &mut mem).unwrap().0, Message::Ack);
        throw(&client.socket, &bytes, &vec![fd; fds]);
        let why = refused(&client.socket, &mut port, &mut mem);
        assert!(why.is_some(), "{bytes:?} with {fds}");
    }
    drop(mem);
    serves(&name, &pool, port);
}

fn memfd(bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

/// Returns a memory file as clients make it.
pub fn sealed(bytes: u64) -> OwnedFd {
    let fd = memfd(bytes, MemfdFlags::ALLOW_SEALING);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// Returns the server's refusal, if any, of a client that sends these files as its region and its
/// doorbell.
fn offered(trust: &str, region: OwnedFd, bell: OwnedFd) -> Option<String> {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server{trust}"), &pool);
    let mut mem = pool.local();
    let client = Client::at_step(&name, 1, &mut port, &mut mem);
    let (socket, mut why) = (&client.socket, None);
    assert_eq!(heard(socket, &mut port, &mut mem).unwrap().0, Message::Ack);
    for (message, fd) in [
        (Message::AddRegion { index: 0, bytes: 4096 }, Some(region)),
        (Message::AddRing(place(0, true)), Some(bell)),
        (Message::Connect, None),
    ] {
        // The send fails if the server has refused the client already.
        let _ = socket.send(&message, fd);
        match heard(socket, &mut port, &mut mem).unwrap().0 {
            Message::Ack => {}
            Message::Connected => break,
            Message::Disconnect(reason) => {
                why = Some(reason);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    drop((client, mem));
    serves(&name, &pool, port);
    why
}

#[test]
fn files_that_are_no_memory_or_no_doorbell_are_refused() {
    let bell = || -> OwnedFd { EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap() };
    let file = |path: &str| -> OwnedFd { std::fs::File::open(path).unwrap().into() };
    let good = || {
        let fd = sealed(4096);
        let cookie = super::super::ring::COOKIE.to_ne_bytes();
        rustix::io::pwrite(&fd, &cookie, 0).unwrap();
        fd
    };
    let unsealed = "region 0: its file is not sealed against truncation; add trust=yes";
    for region in [
        file("/dev/null"),
        file("/dev/zero"),
        file("/proc/self/exe"),
        file("/proc/self/environ"),
        rustix::pipe::pipe().unwrap().0,
        bell(),
        memfd(4096, MemfdFlags::empty()),
        memfd(4096, MemfdFlags::ALLOW_SEALING),
    ] {
        assert_eq!(offered("", region, bell()).as_deref(), Some(unsealed));
    }
    let short = offered("", sealed(4095), bell());
    assert_eq!(short.as_deref(), Some("region 0: its file has 4095 bytes"));
    for no_bell in [file("/dev/null"), rustix::pipe::pipe().unwrap().1, good()] {
        let why = offered("", good(), no_bell);
        assert_eq!(why.as_deref(), Some("a doorbell that is not an eventfd"));
    }
    assert_eq!(offered("", sealed(4096), bell()).as_deref(), Some("a ring that does not exist"));
    assert_eq!(offered("", good(), bell()), None);
    let unsealable = memfd(4096, MemfdFlags::empty());
    rustix::io::pwrite(&unsealable, &super::super::ring::COOKIE.to_ne_bytes(), 0).unwrap();
    assert_eq!(offered(",trust=yes", unsealable, bell()), None);
}

#[test]
fn shared_region_cannot_be_truncated() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let mut mem = pool.local();
    let client = Client::connected(&name, &mut port, &mut mem);
    let region = client.memory.region().unwrap();
    assert_eq!(rustix::fs::ftruncate(region.as_fd(), 0), Err(rustix::io::Errno::PERM));
}
