//! The ways of packets: which peer, connection or group, in which order, and what becomes of them
//! when a peer goes.

use linerate_skb::DropReason;

use super::*;

/// Returns a hub and two ports that have met it, with `options` at all; the hub has learned that 1
/// is behind the second and 2 behind the third.
pub(super) fn three(pool: &Pool, options: &str) -> [Opened; 3] {
    let at = address();
    let mut hub = open(&format!("verbs:soft,listen={at}{options}"), pool);
    let text = format!("verbs:soft,connect={at}{options}");
    let (mut left, mut right) = (open(&text, pool), open(&text, pool));
    meet(pool, &mut [&mut hub, &mut left, &mut right]);
    let (mut mem, start) = (pool.local(), Instant::now());
    // The hub has both only when both get what it sends to an unknown address. A group is no sign
    // of that: its packets reach a peer that the hub does not have yet.
    let mut met = [false; 2];
    while met != [true; 2] {
        let skb = packet(&mut mem, 77, 9, 60, 0);
        send(&mut hub, &mut mem, [skb]);
        for (met, spoke) in met.iter_mut().zip([&mut left, &mut right]) {
            *met |= !drain(spoke, &mut mem).is_empty();
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{met:?}");
    }
    // A packet that was sent before a peer had frames for it comes later: then the peer gets one
    // that is not its own.
    for (n, other) in [(1, 1), (2, 0)] {
        loop {
            let spokes = [&mut left, &mut right];
            let asks = packet(&mut mem, 9, n, 60, n);
            send(spokes[1 - other], &mut mem, [asks]);
            assert_eq!(receive(&mut hub, &mut mem, 1), [n]);
            drain(spokes[1 - other], &mut mem);
            let answers = packet(&mut mem, n, 9, 60, n);
            send(&mut hub, &mut mem, [answers]);
            assert_eq!(receive(spokes[1 - other], &mut mem, 1), [n]);
            if drain(spokes[other], &mut mem).is_empty() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{n} is not learned");
        }
    }
    [hub, left, right]
}

/// Receives what has come; returns the last byte of each packet.
pub(super) fn drain(end: &mut Opened, mem: &mut Local) -> Vec<u8> {
    let mut batch = Batch::with_capacity(64);
    end.queues[0].rx(mem, &mut batch, 64);
    let all = batch.iter().map(|skb| skb.data().last().copied().unwrap()).collect();
    batch.consume(mem);
    all
}

/// Sends a packet to all; returns how many were sent.
pub(super) fn send_to_all(end: &mut Opened, mem: &mut Local) -> usize {
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(packet(mem, 255, 9, 60, 7)).is_ok());
    let sent = end.queues[0].xmit(mem, &mut batch).packets;
    assert!(batch.is_empty(), "it waits");
    sent
}

fn doorbells(end: &mut Opened) -> u64 {
    end.queues[0].counters().driver.doorbells.unwrap()
}

#[test]
fn packets_go_to_the_peer_behind_which_their_address_was_seen() {
    for options in [",datagrams", ""] {
        let pool = Pool::builder().frames(8192).build().unwrap();
        let mut mem = pool.local();
        let [mut hub, mut left, mut right] = three(&pool, options);
        let packets =
            [(1, 11), (1, 12), (2, 21), (1, 13)].map(|(to, n)| packet(&mut mem, to, 9, 60, n));
        let before = doorbells(&mut hub);
        send(&mut hub, &mut mem, packets);
        assert_eq!(receive(&mut left, &mut mem, 3), [11, 12, 13]);
        assert_eq!(receive(&mut right, &mut mem, 1), [21]);
        assert_eq!(doorbells(&mut hub) - before, 3, "a chain for a run of packets to one peer");
        // An unknown address and a broadcast go to each.
        let packets = [(77, 31), (255, 32)].map(|(to, n)| packet(&mut mem, to, 9, 60, n));
        send(&mut hub, &mut mem, packets);
        for spoke in [&mut left, &mut right] {
            assert_eq!(receive(spoke, &mut mem, 2), [31, 32]);
        }
        drop([hub, left, right]);
        drop(mem);
        let ledger = pool.ledger();
        assert!(ledger.is_drained() && ledger.in_flight == 0, "{ledger}");
    }
}

#[test]
fn one_batch_takes_three_ways_and_stays_in_order() {
    for options in ["", ",datagrams"] {
        three_ways(&format!("{options},group=ff0e::1"));
    }
}

fn three_ways(options: &str) {
    let pool = Pool::builder().frames(16384).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, mut left, mut right] = three(&pool, options);
    let all = [(1, 1), (1, 2), (255, 3), (255, 4), (2, 5), (1, 6), (255, 7)];
    let packets = all.map(|(to, n)| packet(&mut mem, to, 9, 60, n));
    let before = doorbells(&mut hub);
    send(&mut hub, &mut mem, packets);
    assert_eq!(doorbells(&mut hub) - before, 5, "1 2 | 3 4 | 5 | 6 | 7");
    assert_eq!(receive(&mut left, &mut mem, 6), [1, 2, 3, 4, 6, 7]);
    assert_eq!(receive(&mut right, &mut mem, 4), [3, 4, 5, 7]);
    // The hub is a member, too, and does not receive what it has sent, nor count it.
    assert_eq!(hub.queues[0].rx(&mut mem, &mut Batch::with_capacity(8), 8).packets, 0);
    assert_eq!(pool.ledger().dropped_total(), 0, "{}", pool.ledger());
}

#[test]
fn a_connection_carries_what_is_too_long_for_a_datagram() {
    let pool = Pool::builder().frames(4096).frame_size(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, ",packet_mtu=3000");
    let packets = [(3018, 1), (3019, 2), (60, 3)].map(|(len, n)| packet(&mut mem, 1, 2, len, n));
    send(&mut near, &mut mem, packets);
    assert_eq!(receive(&mut far, &mut mem, 2), [1, 3]);
    assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 1);
    let (mut near, mut far) = joined(&pool, ",datagrams,packet_mtu=3000");
    let packets =
        [(soft::MTU, 4), (soft::MTU + 1, 5)].map(|(len, n)| packet(&mut mem, 1, 2, len, n));
    send(&mut near, &mut mem, packets);
    assert_eq!(receive(&mut far, &mut mem, 1), [4]);
    assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 2);
}

#[test]
fn a_packet_to_a_group_that_is_too_long_for_a_datagram_goes_to_each_peer() {
    let pool = Pool::builder().frames(4096).frame_size(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, ",packet_mtu=3000,group=239.1.2.3");
    let packets =
        [(soft::MTU, 1), (soft::MTU + 1, 2)].map(|(len, n)| packet(&mut mem, 255, 2, len, n));
    send(&mut near, &mut mem, packets);
    let mut came = receive(&mut far, &mut mem, 2);
    came.sort_unstable();
    assert_eq!(came, [1, 2]);
}

#[test]
fn packets_to_all_peers_wait_for_a_send_request_for_each_and_the_too_long_ones_are_dropped() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, mut left, mut right] = three(&pool, ",datagrams,rx=64,tx=32");
    let packets: Vec<_> = (0..40).map(|n| packet(&mut mem, 255, 9, 60, n)).collect();
    send(&mut hub, &mut mem, packets);
    for spoke in [&mut left, &mut right] {
        assert_eq!(receive(spoke, &mut mem, 40), (0..40).collect::<Vec<u8>>());
    }
    let long = packet(&mut mem, 255, 9, soft::MTU + 1, 7);
    send(&mut hub, &mut mem, [long]);
    let short = packet(&mut mem, 255, 9, 60, 8);
    let cut = mem.alloc_copy(&short.data()[..13]).unwrap();
    send(&mut hub, &mut mem, [cut]);
    let dropped = |reason| pool.ledger().dropped(reason);
    let reasons = [DropReason::TX_FULL, DropReason::TOO_LONG, DropReason::MALFORMED];
    assert_eq!(reasons.map(dropped), [0, 1, 1], "{}", pool.ledger());
}

/// Arms `end` for room, and waits until it is readable.
fn sleeps_for_a_moment(end: &mut Opened) {
    let start = Instant::now();
    while !end.queues[0].arm(crate::Want::Room) {
        assert!(start.elapsed() < Duration::from_secs(10), "it never sleeps");
    }
    let fd = [std::os::fd::AsFd::as_fd(&end.queues[0])];
    assert!(linerate_sys::wait::poll_readable(&fd, Some(Duration::from_secs(10))).unwrap());
}

#[test]
fn a_packet_of_another_pool_waits_for_a_frame_of_its_copy() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let other = Pool::builder().frames(64).frame_size(4096).build().unwrap();
    let mut mem = pool.local_with(0);
    let (mut near, mut far) = joined(&pool, ",rx=64,tx=64,packet_mtu=3000");
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(packet(&mut other.local(), 1, 2, 60, 7)).is_ok());
    let mut hoard = Batch::with_capacity(4096);
    mem.alloc(&mut hoard, 4096);
    for _ in 0..3 {
        assert_eq!(near.queues[0].xmit(&mut mem, &mut batch).packets, 0);
        sleeps_for_a_moment(&mut near);
    }
    assert_eq!(batch.len(), 1);
    drop(hoard);
    assert_eq!(near.queues[0].xmit(&mut mem, &mut batch).packets, 1);
    assert_eq!(receive(&mut far, &mut mem, 1), [7]);
    assert_eq!(near.queues[0].counters().driver.copied_bytes, Some(60));
    let long = packet(&mut other.local(), 1, 2, 2500, 8);
    send(&mut near, &mut mem, [long]);
    assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 0, "it is of the other pool");
    assert_eq!(other.ledger().dropped(DropReason::TOO_LONG), 1, "longer than a frame");
}

#[test]
fn packets_on_the_connection_of_a_peer_that_goes_come_back_and_it_can_come_again() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let at = address();
    let options = ",rx=32,tx=64";
    let mut far = open(&format!("verbs:soft,listen={at}{options}"), &pool);
    let mut near = open(&format!("verbs:soft,connect={at}{options}"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    // The far end has 32 requests, and the rest waits.
    let packets: Vec<_> = (0..50).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    assert_eq!(near.queues[0].reap(&mut mem), 18, "the chain of the first 32 is complete");
    drop(far);
    let start = Instant::now();
    while near.queues[0].health_kind() != crate::HealthKind::Down {
        near.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let skb = packet(&mut mem, 1, 2, 60, 99);
    send(&mut near, &mut mem, [skb]);
    assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 1);
    assert_eq!(near.queues[0].counters().tx_lost.packets, 18);
    let mut far = open(&format!("verbs:soft,listen={at}{options}"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    let skb = packet(&mut mem, 1, 2, 60, 100);
    send(&mut near, &mut mem, [skb]);
    assert_eq!(receive(&mut far, &mut mem, 1), [100]);
    assert_eq!(near.queues[0].counters().driver.resets, 1);
    drop((near, far, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.in_flight == 0, "{ledger}");
}

#[test]
fn an_error_in_the_middle_of_a_chain_counts_those_before_it_as_sent_and_the_others_as_lost() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",rx=32,tx=64");
    near.queues[0].reap(&mut mem);
    let before = pool.ledger();
    // The far end has 32 requests: they take the first chain and 12 packets of the second one,
    // whose completion is that of its last packet.
    for n in [20, 32] {
        let packets: Vec<_> = (0..n).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
        send(&mut near, &mut mem, packets);
    }
    assert_eq!(near.queues[0].reap(&mut mem), 32, "only the first chain is complete");
    drop(far);
    let start = Instant::now();
    while near.queues[0].health_kind() != crate::HealthKind::Down {
        near.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    near.queues[0].reap(&mut mem);
    let after = pool.ledger();
    assert_eq!(after.sent - before.sent, 32, "{after}");
    assert_eq!(near.queues[0].counters().tx_lost.packets, 20);
    drop((near, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.in_flight == 0, "{ledger}");
}

#[test]
fn a_peer_that_does_not_receive_holds_up_no_other() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, _left, mut right] = three(&pool, ",rx=32,tx=32");
    let start = Instant::now();
    for n in 0..100 {
        let packets = [packet(&mut mem, 1, 9, 60, n), packet(&mut mem, 2, 9, 60, n)];
        send(&mut hub, &mut mem, packets);
        assert_eq!(receive(&mut right, &mut mem, 1), [n]);
    }
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(pool.ledger().dropped(DropReason::TX_FULL) >= 30, "{}", pool.ledger());
}

#[test]
fn a_packet_to_all_peers_counts_as_its_copies() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, left, right] = three(&pool, ",rx=32,tx=32");
    hub.queues[0].reap(&mut mem);
    let before = pool.ledger();
    assert_eq!(send_to_all(&mut hub, &mut mem), 2);
    assert_eq!(hub.queues[0].reap(&mut mem), 0);
    assert_eq!(pool.ledger().sent - before.sent, 2);
    // No connection has room after these.
    for n in 0..100 {
        let packets = [packet(&mut mem, 1, 9, 60, n), packet(&mut mem, 2, 9, 60, n)];
        send(&mut hub, &mut mem, packets);
    }
    hub.queues[0].reap(&mut mem);
    let before = pool.ledger();
    assert_eq!(send_to_all(&mut hub, &mut mem), 0);
    let after = pool.ledger();
    assert_eq!(after.sent, before.sent);
    let full = DropReason::TX_FULL;
    assert_eq!(after.dropped(full) - before.dropped(full), 2, "a copy for each peer");
    drop((hub, left, right, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn a_peer_misses_a_packet_to_all_without_a_frame_for_its_copy_and_this_is_counted() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local_with(0);
    let [mut hub, mut left, mut right] = three(&pool, ",datagrams,rx=64,tx=64");
    hub.queues[0].reap(&mut mem);
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(packet(&mut mem, 255, 9, 60, 7)).is_ok());
    // One frame is left.
    let mut hoard = Batch::with_capacity(4096);
    mem.alloc(&mut hoard, 4096);
    // None is left: the packet waits, and the queue looks for a frame by itself.
    assert_eq!(hub.queues[0].xmit(&mut mem, &mut batch).packets, 0);
    sleeps_for_a_moment(&mut hub);
    assert_eq!(batch.len(), 1);
    drop(hoard.pop());
    assert_eq!(hub.queues[0].xmit(&mut mem, &mut batch).packets, 2);
    assert_eq!(hub.queues[0].counters().tx_lost.packets, 1);
    let came = [drain(&mut left, &mut mem), drain(&mut right, &mut mem)];
    assert_eq!(came.concat(), [7]);
    drop((hub, left, right, hoard, batch, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn datagrams_have_frames_only_where_they_may_come() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    for (options, frames) in [("", 0), (",datagrams", 64), (",group=239.1.2.3", 64)] {
        let port = open(&format!("verbs:soft,listen={}{options},rx=64", address()), &pool);
        assert_eq!(lent(&pool), frames, "{options}");
        drop(port);
    }
}

#[test]
fn both_ends_agree_about_connections_or_say_so() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let _far = open(&format!("verbs:soft,listen={at},datagrams"), &pool);
    let mut near = open(&format!("verbs:soft,connect={at}"), &pool);
    let start = Instant::now();
    loop {
        near.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        match near.queues[0].health() {
            Health::Down(e) if e.why.contains("has the option datagrams") => break,
            health => assert!(start.elapsed() < Duration::from_secs(10), "{health:?}"),
        }
    }
}

#[test]
fn the_queues_of_requests_are_as_long_as_the_text_says() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, ",rx=64,tx=32");
    assert_eq!(near.queues[0].caps().rx_ring_len, Some(64));
    let mut batch = Batch::with_capacity(256);
    for n in 0..200 {
        assert!(batch.push(packet(&mut mem, 1, 2, 60, n)).is_ok());
    }
    let start = Instant::now();
    while batch.len() > 200 - 64 - 32 {
        near.queues[0].xmit(&mut mem, &mut batch);
        assert!(start.elapsed() < Duration::from_secs(10), "{}", batch.len());
    }
    for _ in 0..10 {
        assert_eq!(near.queues[0].xmit(&mut mem, &mut batch).packets, 0);
    }
    // The first of the rest goes when the receiver has made room.
    assert_eq!(receive(&mut far, &mut mem, 64), (0..64).collect::<Vec<u8>>());
    while batch.len() == 200 - 64 - 32 {
        near.queues[0].xmit(&mut mem, &mut batch);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_connection_that_fails_on_the_receiving_side_is_left_and_made_again() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at}"), &pool);
    let far_port = soft::last();
    let mut near = open(&format!("verbs:soft,connect={at}"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    soft::spoil(far_port);
    far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
    assert_eq!(lent(&pool), 2 * 512 - 1, "a connection that has failed gets no frame");
    let skb = packet(&mut mem, 1, 2, 60, 7);
    send(&mut far, &mut mem, [skb]);
    assert_eq!(pool.ledger().dropped(DropReason::PEER_GONE), 1);
    let start = Instant::now();
    for end in [&mut far, &mut near] {
        while end.queues[0].counters().driver.resets == 0 {
            end.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
    }
    assert_eq!(far.queues[0].counters().rx_missed, 1);
    meet(&pool, &mut [&mut near, &mut far]);
    let skb = packet(&mut mem, 1, 2, 60, 7);
    send(&mut near, &mut mem, [skb]);
    assert_eq!(receive(&mut far, &mut mem, 1), [7]);
    drop((near, far, mem));
    assert!(pool.ledger().is_drained() && pool.ledger().in_flight == 0, "{}", pool.ledger());
}

#[test]
fn a_connection_that_takes_part_of_a_chain_and_then_nothing_is_left() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at}"), &pool);
    let mut near = open(&format!("verbs:soft,connect={at}"), &pool);
    let near_port = soft::last();
    meet(&pool, &mut [&mut near, &mut far]);
    soft::limit(near_port, 5);
    let mut batch = Batch::with_capacity(32);
    for n in 0..32 {
        assert!(batch.push(packet(&mut mem, 1, 2, 60, n)).is_ok());
    }
    assert_eq!(near.queues[0].xmit(&mut mem, &mut batch).packets, 5);
    let start = Instant::now();
    // The control thread ends the way, and the queue counts its packets after that.
    while near.queues[0].counters().tx_lost.packets == 0 {
        near.queues[0].xmit(&mut mem, &mut batch);
        near.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < Duration::from_secs(10), "five packets are held for ever");
        std::thread::yield_now();
    }
    assert_eq!(near.queues[0].counters().tx_lost.packets, 5);
    assert_eq!(near.queues[0].reap(&mut mem), 0, "the device has none of them");
    drop((near, far, batch, mem));
    assert!(pool.ledger().is_drained() && pool.ledger().in_flight == 0, "{}", pool.ledger());
}

#[test]
fn packets_of_a_pool_that_a_peer_may_write_are_sent_as_they_lie() {
    let pool = Pool::builder().frames(4096).trust(linerate_skb::Trust::Exported).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, "");
    let packets = [1, 2].map(|n| packet(&mut mem, 1, 2, 60, n));
    send(&mut near, &mut mem, packets);
    assert_eq!(receive(&mut far, &mut mem, 2), [1, 2]);
    assert_eq!(near.queues[0].counters().driver.copied_bytes, Some(0));
}
