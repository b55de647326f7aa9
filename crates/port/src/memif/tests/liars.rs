//! Connected peers that write forbidden values into the rings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate_sys::peer::PeerMemory;
use linerate_sys::seqpacket::Listener;

use super::super::channel::Channel;
use super::super::queue::SHORT_MAX;
use super::super::ring::{Desc, NEXT};
use super::hostile::settled;
use super::peer::{CLIENT_STEPS, Client, RING, Raw, Server, buffer, refused, until_up};
use super::*;
use crate::queue::Want;

fn pool(trust: Trust) -> Pool {
    Pool::builder().frames(256).trust(trust).build().unwrap()
}

/// Receives packets, and sends two packets of 1000 bytes.
fn work(port: &mut Opened, pool: &Pool) -> usize {
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
    let received = port.queues[0].rx(&mut mem, &mut batch, 64).packets;
    batch.consume(&mut mem);
    for _ in 0..2 {
        if let Some(skb) = mem.alloc_copy(&[3; 1000]) {
            let _ = batch.push(skb);
        }
    }
    port.queues[0].xmit(&mut mem, &mut batch);
    received
}

/// Checks that the port has sent the peer the reason and has counted the violation; returns the
/// reason.
fn accused(port: &mut Opened, pool: &Pool, socket: &Channel) -> String {
    assert!(matches!(port.queues[0].health(), Health::Down(_)));
    let why = refused(socket, port, &mut pool.local()).expect("a reason");
    // The control thread counts the violation when it ends the connection, so wait for it.
    let start = Instant::now();
    while port.queues[0].counters().driver.resets == 0 && start.elapsed() < Duration::from_secs(10)
    {
        std::thread::yield_now();
    }
    let counts = port.queues[0].counters().driver;
    assert_eq!((counts.bad_descs, counts.resets), (1, 1));
    why
}

#[test]
fn a_client_that_lies_is_disconnected_with_the_reason() {
    type Lies = fn(&Client);
    const INDEX: &str = "a ring's index went backwards or too far";
    const OUTSIDE: &str = "a descriptor outside its region";
    const CHAIN: &str = "a packet without an end";
    const LONG: &str = "a packet that is too long, or in too many parts";
    const BUFFER: &str = "a buffer of no bytes, or in memory that is read-only";
    fn sent(client: &Client, desc: Desc) {
        client.fill(0, 60);
        client.from.ring.set(1, desc);
        client.from.set_head(2);
    }
    fn posted(client: &Client, desc: Desc) {
        client.to.ring.set(0, desc);
    }
    let lies: [(Lies, &str); 14] = [
        (|client| client.from.set_head(RING + 1), INDEX),
        (|client| client.from.set_head(u16::MAX), INDEX),
        (|client| client.to.set_head(RING + 1), INDEX),
        (|client| client.to.set_head(RING - 1), INDEX),
        (|client| sent(client, Desc { region: 1, ..buffer(9) }), OUTSIDE),
        (|client| sent(client, Desc { region: u16::MAX, ..buffer(9) }), OUTSIDE),
        (|client| sent(client, Desc { offset: u32::MAX, ..buffer(9) }), OUTSIDE),
        (|client| sent(client, Desc { offset: 1 << 16, len: 1, ..buffer(9) }), OUTSIDE),
        (|client| sent(client, Desc { len: u32::MAX, ..buffer(9) }), OUTSIDE),
        (
            |client| {
                (0..RING).for_each(|i| client.from.ring.set(i, Desc { flags: NEXT, ..buffer(i) }));
                client.from.set_head(RING);
            },
            CHAIN,
        ),
        (
            |client| {
                let long = Desc { flags: NEXT, offset: 0, len: 40_000, ..buffer(0) };
                (0..2).for_each(|i| client.from.ring.set(i, long));
                client.from.set_head(2);
            },
            LONG,
        ),
        (|client| posted(client, Desc { region: 1, ..buffer(0) }), OUTSIDE),
        (|client| posted(client, Desc { offset: 65_000, ..buffer(0) }), OUTSIDE),
        (|client| posted(client, Desc { len: 0, ..buffer(0) }), BUFFER),
    ];
    for (i, (lie, why)) in lies.into_iter().enumerate() {
        let (name, pool) = (name(), pool(Trust::Private));
        let mut port = open(&format!("memif:{name},role=server"), &pool);
        let client = Client::connected(&name, &mut port, &mut pool.local());
        // Let the port read the correct index first, so that a lower one is a violation.
        let _ = (0..3).any(|_| port.queues[0].arm(Want::Frames));
        port.queues[0].xmit(&mut pool.local(), &mut Batch::with_capacity(1));
        assert_eq!(port.queues[0].health(), Health::Up);
        lie(&client);
        work(&mut port, &pool);
        assert_ne!(port.queues[0].health(), Health::Up, "lie {i}");
        assert_eq!(accused(&mut port, &pool, &client.socket), why, "lie {i}");
        drop(port);
        settled(&pool);
    }
}

#[test]
fn a_server_that_lies_is_disconnected_with_the_reason() {
    type Lies = fn(&[Raw; 2]);
    const INDEX: &str = "a ring's index went backwards or too far";
    const CHAIN: &str = "a packet without an end";
    const LENGTH: &str = "a length beyond the buffer";
    fn fill(to: &Raw, n: u16, desc: Desc) {
        (0..n).for_each(|i| to.ring.set(i, desc));
        to.set_tail(n);
    }
    let lies: [(Lies, &str); 6] = [
        (|[from, _]| from.set_tail(3), INDEX),
        (|[from, _]| from.set_tail(u16::MAX), INDEX),
        (|[_, to]| to.set_tail(65), INDEX),
        (|[_, to]| to.set_tail(0x8000), INDEX),
        (|[_, to]| fill(to, 1, Desc { len: u32::MAX, ..Desc::default() }), LENGTH),
        (|[_, to]| fill(to, 64, Desc { flags: NEXT, len: 1, ..Desc::default() }), CHAIN),
    ];
    for (sharing, trust) in [("yes", Trust::Exported), ("no", Trust::Private)] {
        for (i, (lie, why)) in lies.into_iter().enumerate() {
            let (name, pool) = (name(), pool(trust));
            let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
            let mut port = open(&format!("memif:{name},size=64,zerocopy={sharing}"), &pool);
            let (server, _memory, rings) =
                Server::connected(&listener, &mut port, &mut pool.local());
            work(&mut port, &pool);
            lie(&rings);
            work(&mut port, &pool);
            assert_eq!(accused(&mut port, &pool, &server.socket), why, "{sharing} lie {i}");
            drop(port);
            settled(&pool);
        }
    }
}

/// A chain of filled frames cannot exceed the longest packet, whatever its descriptors contain.
#[test]
fn a_chain_that_is_longer_than_a_packet_is_a_lie_in_our_frames_too() {
    let room = pool(Trust::Exported).data_room() as u32;
    // A chain of 64 parts without an end is refused before its next part arrives.
    for (parts, len, last) in [(50, room, 0), (65, 1, 0), (64, 1, NEXT)] {
        let (name, pool) = (name(), pool(Trust::Exported));
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let mut port = open(&format!("memif:{name},size=128"), &pool);
        let (server, _memory, [_, to]) = Server::connected(&listener, &mut port, &mut pool.local());
        for i in 0..parts {
            let flags = if i < parts - 1 { NEXT } else { last };
            to.ring.set(i, Desc { flags, len, ..Desc::default() });
        }
        to.set_tail(parts);
        assert_eq!(work(&mut port, &pool), 0);
        let why = accused(&mut port, &pool, &server.socket);
        assert_eq!(why, "a packet that is too long, or in too many parts");
        drop(port);
        settled(&pool);
    }
}

/// Empty packets are dropped, and the receiver's turn must end after as many of them as it may
/// receive.
#[test]
fn empty_packets_count_against_the_budget_of_a_turn() {
    for role in ["server", "yes", "no"] {
        let trust = if role == "yes" { Trust::Exported } else { Trust::Private };
        let (name, pool) = (name(), pool(trust));
        let mut mem = pool.local();
        let dropped = |port: &mut Opened, n: u64| {
            for turn in 0..=n {
                let dropped = pool.ledger().dropped(linerate_skb::DropReason::MALFORMED);
                assert_eq!(dropped, 2 * turn, "{role}");
                let mut out: Batch = Batch::with_capacity(8);
                assert_eq!(port.queues[0].rx(&mut pool.local(), &mut out, 2).packets, 0);
            }
            assert_eq!(pool.ledger().created, 0, "{}", pool.ledger());
            assert_eq!(port.queues[0].health(), Health::Up);
        };
        let empty = Desc { len: 0, ..buffer(0) };
        if role == "server" {
            let mut port = open(&format!("memif:{name},role=server"), &pool);
            let client = Client::connected(&name, &mut port, &mut mem);
            (0..RING).for_each(|i| client.from.ring.set(i, empty));
            client.from.set_head(RING);
            dropped(&mut port, u64::from(RING) / 2);
        } else {
            let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
            let mut port = open(&format!("memif:{name},size=64,zerocopy={role}"), &pool);
            let (_server, _memory, [_, to]) = Server::connected(&listener, &mut port, &mut mem);
            (0..64).for_each(|i| to.ring.set(i, empty));
            to.set_tail(64);
            dropped(&mut port, 8);
        }
        drop(mem);
        settled(&pool);
    }
}

/// The beginning of a packet must not keep a sleeper awake.
#[test]
fn a_packet_whose_end_never_comes_keeps_nobody_awake() {
    for role in ["server", "yes", "no"] {
        let trust = if role == "yes" { Trust::Exported } else { Trust::Private };
        let (name, pool) = (name(), pool(trust));
        let (mut mem, mut out) = (pool.local(), Batch::with_capacity(8));
        let next = Desc { flags: NEXT, len: 60, ..buffer(0) };
        let end = Desc { flags: 0, ..next };
        if role == "server" {
            let mut port = open(&format!("memif:{name},role=server"), &pool);
            let client = Client::connected(&name, &mut port, &mut mem);
            client.from.ring.set(0, next);
            client.from.set_head(1);
            sleeps(&mut port, &mut mem, &mut out);
            client.from.ring.set(1, end);
            client.from.set_head(2);
            wakes(&mut port, &mut mem, &mut out);
        } else {
            let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
            let mut port = open(&format!("memif:{name},size=64,zerocopy={role}"), &pool);
            let (_server, _memory, [_, to]) = Server::connected(&listener, &mut port, &mut mem);
            to.ring.set(0, next);
            to.set_tail(1);
            sleeps(&mut port, &mut mem, &mut out);
            to.ring.set(1, end);
            to.set_tail(2);
            wakes(&mut port, &mut mem, &mut out);
        }
        out.consume(&mut mem);
        drop((out, mem));
        settled(&pool);
    }
}

fn sleeps(port: &mut Opened, mem: &mut linerate_skb::Local, out: &mut Batch) {
    let queue = &mut port.queues[0];
    let _ = queue.arm(Want::Frames);
    assert_eq!(queue.rx(mem, out, 8).packets, 0);
    assert!((0..2).any(|_| queue.arm(Want::Frames)), "awake for nothing");
}

fn wakes(port: &mut Opened, mem: &mut linerate_skb::Local, out: &mut Batch) {
    let queue = &mut port.queues[0];
    assert!(!queue.arm(Want::Frames));
    let moved = queue.rx(mem, out, 8);
    assert_eq!((moved.packets, moved.bytes), (1, 120));
}

/// A sender sleeps while the room is too small for its packet; a packet that is longer than the
/// whole ring is dropped.
#[test]
fn too_little_room_lets_the_sender_sleep() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    (0..RING).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(i) }));
    let queue = &mut port.queues[0];
    for _ in 0..2 {
        batch.push(mem.alloc_copy(&[1; 450]).unwrap()).unwrap();
    }
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 1, "five buffers of eight");
    assert!((0..2).any(|_| queue.arm(Want::Room)), "awake for three");
    // Taking back what the peer is done with makes no room either.
    let asleep = |_| queue.reap(&mut mem) > 0 && queue.arm(Want::Room);
    assert!((0..2).any(asleep), "awake for three after a look");
    client.to.set_head(RING + 5);
    assert!(!queue.arm(Want::Room));
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 1);
    client.to.set_head(RING + 10);
    batch.push(mem.alloc_copy(&[1; 900]).unwrap()).unwrap();
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 0);
    assert!(batch.is_empty());
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 1);
    drop((port, batch, mem));
    settled(&pool);
}

/// Checks that a packet that needs more buffers than a client ever posts is dropped, and the
/// packets after it sent.
#[test]
fn packet_longer_than_all_posted_buffers_is_dropped() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    (0..RING).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(i) }));
    client.to.set_head(3);
    // The server sees these, and no more for a second.
    port.queues[0].reap(&mut mem);
    std::thread::sleep(Duration::from_secs(1));
    for len in [350, 60, 350, 250, 60] {
        batch.push(mem.alloc_copy(&vec![1; len]).unwrap()).unwrap();
    }
    // One of three buffers is in use then, so that the client may post more of them.
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (1, 3));
    client.to.set_head(4);
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (1, 1));
    client.to.set_head(7);
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (1, 0));
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 2);
    drop((port, batch, mem));
    settled(&pool);
}

/// Checks that a packet that needs more buffers than a client has posted first waits for the
/// others.
#[test]
fn packet_waits_while_the_client_posts_its_first_buffers() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
    let client = Client::connected(&name, &mut port, &mut mem);
    (0..RING).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(i) }));
    batch.push(mem.alloc_copy(&[1; 350]).unwrap()).unwrap();
    client.to.set_head(3);
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (0, 1));
    client.to.set_head(4);
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (1, 0));
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 0);
    drop((port, batch, mem));
    settled(&pool);
}

/// Checks that a packet is dropped if it needs more buffers than the client has posted again for a
/// second.
#[test]
fn packet_that_waits_for_buffers_which_do_not_come_is_dropped() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    (0..RING).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(i) }));
    for len in [450, 450, 60] {
        batch.push(mem.alloc_copy(&vec![1; len]).unwrap()).unwrap();
    }
    let (start, mut sent) = (Instant::now(), 0);
    assert_eq!((port.queues[0].xmit(&mut mem, &mut batch).packets, batch.len()), (1, 2));
    while !batch.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "{} wait", batch.len());
        if !port.queues[0].arm(Want::Room) {
            sent += port.queues[0].xmit(&mut mem, &mut batch).packets;
            // A call without packets does not end the wait of those that the caller keeps.
            port.queues[0].reap(&mut mem);
        }
        std::thread::yield_now();
    }
    assert_eq!((sent, pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG)), (1, 1));
    assert!(start.elapsed() >= Duration::from_secs(1));
    drop((port, batch, mem));
    settled(&pool);
}

/// Checks that a packet is not dropped while a client has more filled buffers than it holds back,
/// which it has not read.
#[test]
fn packet_waits_for_a_client_that_has_stopped() {
    const SLOTS: u16 = 64;
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::with_rings(&name, 6, CLIENT_STEPS, &mut port, &mut mem);
    (0..SLOTS).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(0) }));
    client.to.set_head(SLOTS);
    until_up(true, &mut port, &mut mem);
    for len in [3150, 3250] {
        batch.push(mem.alloc_copy(&vec![1; len]).unwrap()).unwrap();
    }
    let queue = &mut port.queues[0];
    assert_eq!((queue.xmit(&mut mem, &mut batch).packets, batch.len()), (1, 1), "32 of 64");
    std::thread::sleep(SHORT_MAX + Duration::from_millis(10));
    assert_eq!((queue.xmit(&mut mem, &mut batch).packets, batch.len()), (0, 1));
    client.to.set_head(SLOTS + 1);
    assert_eq!((queue.xmit(&mut mem, &mut batch).packets, batch.len()), (1, 0));
    drop((port, batch, mem));
    settled(&pool);
}

/// A packet that the pool can never hold must not block the packets after it.
#[test]
fn a_packet_too_long_for_the_pool_is_dropped() {
    let (name, pool) = (name(), Pool::builder().frames(16).build().unwrap());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut out) = (pool.local_with(4), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    client.from.ring.set(0, Desc { len: 60_000, offset: 0, ..Desc::default() });
    client.fill(1, 60);
    client.from.set_head(2);
    assert_eq!(port.queues[0].rx(&mut mem, &mut out, 8).packets, 1);
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 1);
    out.consume(&mut mem);
    drop((port, out, mem));
    settled(&pool);
}

/// Packets that were sent before a violation was found are counted as sent.
#[test]
fn what_was_sent_before_a_lie_is_counted() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    client.to.ring.set(1, Desc { region: 9, ..buffer(1) });
    // A dropped packet ends the run of valid packets before the one that finds the violation.
    for len in [60, 5, 60] {
        batch.push(mem.alloc_copy(&vec![1; len]).unwrap()).unwrap();
    }
    let moved = port.queues[0].xmit(&mut mem, &mut batch);
    assert_eq!((moved.packets, batch.len()), (1, 1));
    assert_eq!(pool.ledger().sent, 1);
    drop((port, batch, mem));
    settled(&pool);
}

/// Writes random values over rings until `stop` is set.
fn scribble(memory: &PeerMemory, rings: [usize; 2], seed: u64, stop: &AtomicBool) {
    let mut x = seed | 1;
    while !stop.load(Ordering::Relaxed) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let [_, _, a, b, c, d, e, f] = x.to_ne_bytes();
        let (ring, value) = (rings[usize::from(f & 1)], u16::from_ne_bytes([a, b]));
        let (at, value) = match c % 8 {
            // Most values are almost valid: an index that advances a little.
            0..4 => (ring + if d & 1 == 0 { 6 } else { 64 }, None),
            4 => (ring + 4, Some(value)),
            5 | 6 => (ring + 128 + 2 * usize::from(e), Some(value & 0x7ff)),
            _ => (ring + 2 * usize::from(e), Some(value)),
        };
        let half = &memory.half_words(at, 1).unwrap()[0];
        match value {
            Some(value) => half.store(value, Ordering::Relaxed),
            None => {
                half.fetch_add(u16::from(e & 3), Ordering::AcqRel);
            }
        }
    }
}

fn seed(round: u64) -> u64 {
    0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round + 1)
}

/// Works until the port detects the violation, or for a limited time.
fn work_beside(
    port: &mut Opened,
    pool: &Pool,
    memory: &Arc<PeerMemory>,
    at: [usize; 2],
    seed: u64,
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| scribble(memory, at, seed, &stop));
        for i in 0..200 {
            work(port, pool);
            let want = if i % 2 == 0 { Want::Frames } else { Want::Both };
            let _ = port.queues[0].arm(want);
            if port.queues[0].health() != Health::Up {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_server_may_write_anything_at_any_time() {
    for (sharing, trust) in [("yes", Trust::Exported), ("no", Trust::Private)] {
        let (name, pool) = (name(), pool(trust));
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let mut port = open(&format!("memif:{name},size=64,zerocopy={sharing}"), &pool);
        for round in 0..20 {
            let (server, memory, rings) =
                Server::connected(&listener, &mut port, &mut pool.local());
            let at = rings.each_ref().map(Raw::at);
            work_beside(&mut port, &pool, &memory, at, seed(round));
            drop(server);
        }
        drop(port);
        settled(&pool);
    }
}

#[test]
fn a_client_may_write_anything_at_any_time() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    for round in 0..60 {
        let client = Client::connected(&name, &mut port, &mut pool.local());
        super::peer::turn(&mut port, &mut pool.local());
        let at = [client.from.at(), client.to.at()];
        work_beside(&mut port, &pool, &client.memory, at, seed(round));
        drop(client);
        super::peer::turn(&mut port, &mut pool.local());
    }
    drop(port);
    settled(&pool);
}

#[test]
fn each_packet_waits_for_a_second_before_it_is_dropped() {
    let (name, pool) = (name(), pool(Trust::Private));
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let client = Client::connected(&name, &mut port, &mut mem);
    (0..RING).for_each(|i| client.to.ring.set(i, Desc { len: 100, ..buffer(i) }));
    for _ in 0..3 {
        batch.push(mem.alloc_copy(&[1; 450]).unwrap()).unwrap();
    }
    let start = Instant::now();
    while !batch.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "{} wait", batch.len());
        if !port.queues[0].arm(Want::Room) {
            port.queues[0].xmit(&mut mem, &mut batch);
        }
        std::thread::yield_now();
    }
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 2);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    drop((port, batch, mem));
    settled(&pool);
}
