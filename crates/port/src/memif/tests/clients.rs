//! A zero-copy client: its frames, its sleep, and what it counts.

use std::os::fd::AsFd;
use std::path::Path;

use linerate_skb::{DropReason, Local, Moved};
use linerate_sys::seqpacket::Listener;
use linerate_sys::wait::poll_readable;

use super::super::message::Message;
use super::super::queue::SHORT_MAX;
use super::hostile::settled;
use super::peer::{Server, hello, refused, until_up};
use super::*;
use crate::host::RETRY;
use crate::queue::Want;

const FRAMES: usize = 256;

fn exported() -> Pool {
    Pool::builder().frames(FRAMES as u32).trust(Trust::Exported).build().unwrap()
}

fn push(batch: &mut Batch, n: usize, mem: &mut Local) {
    (0..n).for_each(|_| batch.push(mem.alloc_copy(&[1; 60]).unwrap()).unwrap());
}

/// Returns the number of frames of the pool that are in rings.
fn lent(pool: &Pool) -> Option<u64> {
    let ledger = pool.ledger();
    ledger.holders().iter().find(|(name, _)| *name == "device rings").map(|(_, n)| *n)
}

#[test]
fn calls_that_publish_nothing_ring_no_doorbell() {
    let (name, pool) = (name(), exported());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(80));
    let (_server, _memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    push(&mut batch, 65, &mut mem);
    let queue = &mut port.queues[0];
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 64);
    assert_eq!(queue.counters().driver.doorbells, Some(1));
    for _ in 0..10 {
        assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 0);
    }
    assert_eq!((queue.reap(&mut mem), queue.reap(&mut mem)), (64, 64));
    assert_eq!(queue.counters().driver.doorbells, Some(1));
    rings[0].set_tail(64);
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 1);
    assert_eq!(queue.counters().driver.doorbells, Some(2));
    drop((port, batch, mem));
    settled(&pool);
}

/// Checks that a packet is not dropped because the server takes no packets for a while.
#[test]
fn packet_waits_for_a_server_that_has_stopped() {
    for zerocopy in ["yes", "no"] {
        let (name, pool) = (name(), exported());
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let mut port = open(&format!("memif:{name},size=64,zerocopy={zerocopy}"), &pool);
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(80));
        let (_server, _memory, rings) = Server::connected(&listener, &mut port, &mut mem);
        push(&mut batch, 62, &mut mem);
        batch.push(mem.alloc_copy(&[1; 9000]).unwrap()).unwrap();
        let queue = &mut port.queues[0];
        assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 62);
        std::thread::sleep(SHORT_MAX + Duration::from_millis(10));
        assert_eq!((queue.xmit(&mut mem, &mut batch).packets, batch.len()), (0, 1), "{zerocopy}");
        rings[0].set_tail(62);
        assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 1);
        rings[0].set_tail(rings[0].head());
        queue.reap(&mut mem);
        drop((port, batch, mem));
        settled(&pool);
    }
}

#[test]
fn packets_that_a_lost_peer_has_not_taken_do_not_count_as_sent() {
    let (name, pool) = (name(), exported());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let (server, memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    push(&mut batch, 3, &mut mem);
    let mut queue = crate::Queue::new(port.queues.remove(0), mem);
    assert_eq!(queue.xmit(&mut batch), 3);
    assert_eq!((queue.counts().tx_packets, queue.counts().tx_bytes), (3, 180));
    rings[0].set_tail(1);
    drop((server, memory, rings));
    let start = Instant::now();
    while queue.health() == Health::Up {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", pool.ledger());
        queue.rx(&mut batch);
    }
    let ledger = pool.ledger();
    assert_eq!((ledger.sent, ledger.dropped(DropReason::PEER_GONE)), (1, 2));
    assert_eq!((queue.counts().tx_packets, queue.counts().tx_bytes), (1, 60));
    drop((port, queue));
    settled(&pool);
}

#[test]
fn queue_that_is_closed_counts_what_either_side_has_not_read() {
    let (name, pool) = (name(), exported());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let (server, memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    push(&mut batch, 3, &mut mem);
    let queue = &mut port.queues[0];
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 3);
    // The peer takes one packet, and sends two.
    rings[0].set_tail(1);
    rings[1].set_tail(2);
    queue.close(Instant::now() + Duration::from_secs(10));
    let counters = queue.counters();
    assert_eq!(counters.tx_lost, Moved { packets: 2, bytes: 120 });
    assert_eq!((counters.rx_missed, counters.driver.missed_unread), (2, 2));
    let ledger = pool.ledger();
    assert_eq!((ledger.sent, ledger.dropped(DropReason::PEER_GONE)), (1, 2), "{ledger}");
    drop((port, batch, mem, server, memory, rings));
    settled(&pool);
}

/// Checks that the peer takes no copies that were counted as lost.
#[test]
fn closing_the_only_queue_ends_the_connection_before_copies_are_counted() {
    let (name, pool) = (name(), Pool::builder().frames(256).build().unwrap());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64,zerocopy=no"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let (server, _memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    push(&mut batch, 3, &mut mem);
    let queue = &mut port.queues[0];
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 3);
    rings[0].set_tail(1);
    queue.close(Instant::now() + Duration::from_secs(10));
    let said = server.socket.recv(&mut Vec::new());
    assert_eq!(said, Ok(Some(Message::Disconnect("a queue was closed".into()))));
    assert_eq!(queue.counters().tx_lost, Moved { packets: 2, bytes: 120 });
}

/// Checks copies in slots of a ring that has wrapped, with packets in one slot and in two.
#[test]
fn copies_that_a_lost_peer_has_not_taken_do_not_count_as_sent() {
    let (name, pool) = (name(), Pool::builder().frames(256).build().unwrap());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=8,zerocopy=no"), &pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let (server, memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    let long = mem.alloc_copy(&[1; 3000]).unwrap();
    push(&mut batch, 6, &mut mem);
    let mut queue = crate::Queue::new(port.queues.remove(0), mem);
    assert_eq!(queue.xmit(&mut batch), 6);
    rings[0].set_tail(6);
    push(&mut batch, 1, queue.local());
    batch.push(long).unwrap();
    push(&mut batch, 2, queue.local());
    assert_eq!(queue.xmit(&mut batch), 4);
    assert_eq!((queue.counts().tx_packets, queue.counts().tx_bytes), (10, 3540));
    // The peer takes one more packet, and the first part of the next one.
    rings[0].set_tail(8);
    drop((server, memory, rings));
    let start = Instant::now();
    while queue.health() == Health::Up {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", pool.ledger());
        queue.rx(&mut batch);
    }
    assert_eq!((queue.counts().tx_packets, queue.counts().tx_bytes), (7, 420));
    drop((port, queue));
    settled(&pool);
}

#[test]
fn sender_without_a_frame_for_a_copy_sleeps_until_one_is_free() {
    let (name, pool) = (name(), exported());
    let private = Pool::builder().frames(64).build().unwrap();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut batch) = (private.local(), Batch::with_capacity(8));
    let (_server, _memory, _rings) = Server::connected(&listener, &mut port, &mut mem);
    let mut hoard: Batch = Batch::with_capacity(FRAMES);
    assert_eq!(pool.local_with(0).alloc(&mut hoard, FRAMES), FRAMES - 64);
    push(&mut batch, 1, &mut mem);
    let queue = &mut port.queues[0];
    let mut sleeps = || {
        assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 0);
        queue.arm(Want::Room)
    };
    // On a busy machine the time of the next attempt may have come before the queue is armed.
    assert!((0..8).any(|_| sleeps()), "awake for nothing");
    hoard.clear();
    assert!(poll_readable(&[queue.as_fd()], Some(Duration::from_secs(10))).unwrap());
    assert!(!queue.arm(Want::Room));
    assert_eq!(queue.xmit(&mut mem, &mut batch).packets, 1);
    drop((port, hoard, batch, mem));
    settled(&pool);
    settled(&private);
}

/// Checks a receiver whose peer has filled every frame, so that nothing that the peer does can wake
/// it.
#[test]
fn receiver_without_posted_frames_does_not_sleep_past_its_next_attempt() {
    let (name, pool) = (name(), exported());
    let mut mem = Pool::builder().frames(64).build().unwrap().local();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (_server, _memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    let mut hoard: Batch = Batch::with_capacity(2 * FRAMES);
    assert_eq!(pool.local_with(0).alloc(&mut hoard, FRAMES), FRAMES - 64);
    let (queue, mut batch) = (&mut port.queues[0], Batch::with_capacity(64));
    // The first call reports the connection.
    assert!(!queue.arm(Want::Frames) && queue.arm(Want::Frames));
    rings[1].set_tail(64);
    assert_eq!(queue.rx(&mut mem, &mut batch, 64).packets, 64);
    assert_eq!((rings[1].head(), queue.counters().rx_nombuf), (64, 1));
    // The program works for longer than the time to the next attempt, finds no frame, works again,
    // and frees the packets then.
    std::thread::sleep(2 * RETRY);
    let _ = queue.arm(Want::Frames);
    assert_eq!(queue.rx(&mut mem, &mut hoard, 64).packets, 0);
    std::thread::sleep(2 * RETRY);
    batch.clear();
    let told = !queue.arm(Want::Frames)
        || poll_readable(&[queue.as_fd()], Some(Duration::from_secs(10))).unwrap();
    assert!(told, "the receiver sleeps, and its peer has no frame for a packet");
    queue.rx(&mut mem, &mut batch, 64);
    assert_eq!(rings[1].head(), 128, "there are frames for the peer again");
    drop((port, hoard, batch, mem));
    settled(&pool);
}

/// Checks a receiver whose peer has two frames, and waits for the third one that its packet takes.
#[test]
fn receiver_with_too_few_posted_frames_for_a_packet_tries_again_to_post_more() {
    let (name, pool) = (name(), exported());
    let mut mem = Pool::builder().frames(64).build().unwrap().local();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (_server, _memory, rings) = Server::connected(&listener, &mut port, &mut mem);
    let mut hoard: Batch = Batch::with_capacity(FRAMES);
    assert_eq!(pool.local_with(0).alloc(&mut hoard, FRAMES), FRAMES - 64);
    let (queue, mut batch) = (&mut port.queues[0], Batch::with_capacity(64));
    rings[1].set_tail(62);
    assert_eq!(queue.rx(&mut mem, &mut batch, 64).packets, 62);
    // On a busy machine the time of the next attempt may have come before the queue is armed.
    let mut sleeps = || queue.rx(&mut mem, &mut batch, 2).packets == 0 && queue.arm(Want::Frames);
    assert!((0..8).any(|_| sleeps()), "awake for nothing");
    // The second look, which follows the first sleep after packets, is over.
    std::thread::sleep(2 * RETRY);
    assert!((0..8).any(|_| sleeps()), "awake for nothing");
    assert!(rings[1].ring.rings(), "a packet of two frames may arrive");
    batch.clear();
    let told = poll_readable(&[queue.as_fd()], Some(Duration::from_secs(10))).unwrap();
    assert!(told, "the receiver sleeps, and its peer has too few frames");
    queue.rx(&mut mem, &mut batch, 2);
    assert!(rings[1].head() > 64, "there are frames for the peer again");
    drop((port, hoard, batch, mem));
    settled(&pool);
}

#[test]
fn copy_takes_a_frame_of_the_callers_hot_list() {
    let (name, pool) = (name(), exported());
    let private = Pool::builder().frames(64).build().unwrap();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let mut mem = pool.local_with(32);
    let (_server, _memory, _rings) = Server::connected(&listener, &mut port, &mut mem);
    let mut batch: Batch = Batch::with_capacity(32);
    assert_eq!(mem.alloc(&mut batch, 16), 16);
    let mut hoard: Batch = Batch::with_capacity(FRAMES);
    pool.local_with(0).alloc(&mut hoard, FRAMES);
    batch.consume(&mut mem);
    push(&mut batch, 1, &mut private.local());
    assert_eq!(port.queues[0].xmit(&mut mem, &mut batch).packets, 1);
    drop((port, hoard, batch, mem));
    settled(&pool);
}

/// The server must not write any more into frames that return to the pool.
#[test]
fn closing_one_queue_ends_the_connection_before_its_frames_come_home() {
    for sharing in ["yes", "read"] {
        let trust = if sharing == "yes" { Trust::Exported } else { Trust::Private };
        let pool = Pool::builder().frames(512).trust(trust).build().unwrap();
        let name = name();
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let text = format!("memif:{name},size=64,rings=2,zerocopy={sharing}");
        let mut port = open(&text, &pool);
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
        let server = Server::with_two_rings(&listener, &mut port, &mut mem);
        push(&mut batch, 4, &mut mem);
        assert_eq!(port.queues[1].xmit(&mut mem, &mut batch).packets, 4);
        assert_eq!(lent(&pool), Some(if sharing == "yes" { 128 } else { 0 }));
        drop(port.queues.remove(1));
        // No turn of the other queue, and no wait: the connection has ended when the queue is
        // closed.
        let said = server.socket.recv(&mut Vec::new());
        assert_eq!(said, Ok(Some(Message::Disconnect("a queue was closed".into()))));
        until_up(false, &mut port, &mut mem);
        assert_eq!((lent(&pool), pool.ledger().in_flight), (Some(0), 0));
        let counts = port.queues[0].counters().driver;
        assert_eq!((counts.bad_descs, counts.resets), (0, 0));
        drop((port, batch, mem));
        settled(&pool);
    }
}

#[test]
fn server_that_maps_one_region_is_told_the_reason() {
    let (name, pool) = (name(), exported());
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64"), &pool);
    let (mut mem, mut hello) = (pool.local(), hello());
    if let Message::Hello { region_max, .. } = &mut hello {
        *region_max = 0;
    }
    let server = Server::with_hello(hello, &listener, 2, &mut port, &mut mem);
    let why = refused(&server.socket, &mut port, &mut mem);
    assert_eq!(why.as_deref(), Some("the server maps one region only: use zerocopy=no"));
}

/// Checks queues that are closed and not dropped, as those of a stopped engine that are read for
/// the report.
#[test]
fn client_whose_queues_are_all_closed_connects_no_more() {
    let (name, pool) = (name(), Pool::builder().frames(512).trust(Trust::Exported).build());
    let pool = pool.unwrap();
    let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
    let mut port = open(&format!("memif:{name},size=64,rings=2"), &pool);
    let server = Server::with_two_rings(&listener, &mut port, &mut pool.local());
    let until = Instant::now() + Duration::from_secs(10);
    port.queues.iter_mut().for_each(|queue| queue.close(until));
    // A connection that was made after the first queue was closed.
    std::thread::sleep(Duration::from_millis(100));
    while listener.accept().unwrap().is_some() {}
    std::thread::sleep(Duration::from_millis(500));
    assert!(listener.accept().unwrap().is_none(), "it connects, and has no queue");
    drop((port, server));
    settled(&pool);
}

#[test]
fn queue_that_is_left_goes_on_with_the_next_connection() {
    let (name, pool) = (name(), Pool::builder().frames(1024).trust(Trust::Exported).build());
    let pool = pool.unwrap();
    let mut far = open(&format!("memif:{name},role=server,rings=2"), &pool);
    let mut near = open(&format!("memif:{name},size=64,rings=2"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    drop(near.queues.remove(1));
    let mut mem = pool.local();
    until_up(false, &mut near, &mut mem);
    meet(&pool, &mut [&mut near, &mut far]);
    let mut batch = Batch::with_capacity(8);
    push(&mut batch, 8, &mut mem);
    assert_eq!(near.queues[0].xmit(&mut mem, &mut batch).packets, 8);
    assert_eq!(far.queues[0].rx(&mut mem, &mut batch, 8).packets, 8);
    batch.consume(&mut mem);
    drop((near, far, batch, mem));
    settled(&pool);
}

#[test]
fn the_end_of_a_connection_of_two_queues_is_counted_once() {
    let (name, pool) = (name(), exported());
    let mut far = open(&format!("memif:{name},role=server,rings=2"), &pool);
    let mut near = open(&format!("memif:{name},size=64,rings=2"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    drop(near);
    let mut mem = pool.local();
    until_up(false, &mut far, &mut mem);
    let resets: u64 = far.queues.iter_mut().map(|queue| queue.counters().driver.resets).sum();
    assert_eq!(resets, 1);
}

#[test]
fn only_the_client_which_chooses_the_length_of_the_rings_states_it() {
    let (name, pool) = (name(), exported());
    let far = open(&format!("memif:{name},role=server"), &pool);
    let near = open(&format!("memif:{name},size=64"), &pool);
    assert_eq!(far.obtained.mode, "memif server, by copies");
    assert_eq!(near.obtained.mode, "memif client, zero copy, rings of 64");
}

#[test]
fn queue_for_which_the_peer_has_no_rings_is_down_with_a_remedy() {
    let (name, pool) = (name(), exported());
    let mut far = open(&format!("memif:{name},role=server,rings=2"), &pool);
    let mut near = open(&format!("memif:{name},size=64"), &pool);
    let mut mem = pool.local();
    until_up(true, &mut near, &mut mem);
    until_up(true, &mut far, &mut mem);
    far.queues[1].rx(&mut mem, &mut Batch::with_capacity(1), 0);
    let Health::Down(e) = far.queues[1].health() else { panic!("it has rings") };
    assert_eq!(e.why, "the peer has fewer rings");
    assert!(e.fix.starts_with("set rings= "), "{e}");
}
