//! Peers that leave, ports that close and devices that fail: what was sent is received or counted,
//! and frames come back.

use std::os::fd::AsFd;

use linerate_skb::{DropReason, Moved};
use linerate_sys::wait::poll_readable;

use super::ways::{drain, send_to_all, three};
use super::*;
use crate::HealthKind;
use crate::queue::Want;

const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `n` peers of `end` have left, without a call that makes its queue see this.
fn wait_left(end: &mut Opened, n: u64) {
    let start = Instant::now();
    while end.queues[0].counters().driver.resets < n {
        assert!(start.elapsed() < PATIENCE, "{n} peers do not leave");
        std::thread::yield_now();
    }
}

#[test]
fn packets_of_two_peers_that_leave_together_are_received() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, mut left, mut right] = three(&pool, "");
    for (spoke, n) in [(&mut left, 1), (&mut right, 2)] {
        let packets: Vec<_> = (0..5).map(|_| packet(&mut mem, 9, n, 60, n)).collect();
        send(spoke, &mut mem, packets);
    }
    drop((left, right));
    wait_left(&mut hub, 2);
    let (mut came, mut batch) = (Vec::new(), Batch::with_capacity(3));
    for _ in 0..4 {
        // The first call removes no peer of which messages are left.
        hub.queues[0].rx(&mut mem, &mut batch, 3);
        came.extend(batch.iter().map(|skb| skb.data()[skb.len() - 1]));
        batch.consume(&mut mem);
    }
    came.sort_unstable();
    assert_eq!(came, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!(hub.queues[0].counters().rx_missed, 0);
    drop((hub, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn two_of_three_peers_that_leave_together_keep_their_frames_and_the_rest_is_counted() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem, start) = (address(), pool.local(), Instant::now());
    let mut hub = open(&format!("verbs:soft,listen={at}"), &pool);
    let connect = format!("verbs:soft,connect={at}");
    let mut spokes: Vec<Opened> = (0..3).map(|_| open(&connect, &pool)).collect();
    for spoke in &mut spokes {
        meet(&pool, &mut [spoke]);
    }
    while send_to_all(&mut hub, &mut mem) < 3 {
        assert!(start.elapsed() < PATIENCE, "three peers do not join");
        std::thread::yield_now();
    }
    for (spoke, n) in spokes.iter_mut().zip(1..) {
        let packets: Vec<_> = (0..5).map(|_| packet(&mut mem, 9, n, 60, n)).collect();
        send(spoke, &mut mem, packets);
    }
    drop(spokes);
    wait_left(&mut hub, 3);
    // The hub sees that they have left, and receives nothing.
    while lent(&pool) > 2 * 512 {
        hub.queues[0].xmit(&mut mem, &mut Batch::with_capacity(1));
        assert!(start.elapsed() < 2 * PATIENCE, "{}", pool.ledger());
    }
    let mut came = receive(&mut hub, &mut mem, 10);
    came.sort_unstable();
    assert_eq!(came.len(), 10, "{came:?}");
    assert!(came.chunks(5).all(|five| five.iter().all(|n| *n == five[0])), "{came:?}");
    assert_eq!(hub.queues[0].counters().rx_missed, 5);
    drop((hub, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn packets_of_a_peer_that_was_removed_are_counted_as_missed() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at},peers=1"), &pool);
    for n in 1..=2 {
        let mut near = open(&format!("verbs:soft,connect={at}"), &pool);
        meet(&pool, &mut [&mut near]);
        let packets: Vec<_> = (0..5).map(|_| packet(&mut mem, 9, n, 60, n)).collect();
        send(&mut near, &mut mem, packets);
        // The far end sees the peer and posts frames, and receives nothing.
        let start = Instant::now();
        while near.queues[0].reap(&mut mem) > 0 {
            far.queues[0].xmit(&mut mem, &mut Batch::with_capacity(1));
            assert!(start.elapsed() < PATIENCE);
        }
        drop(near);
        wait_left(&mut far, n.into());
    }
    assert_eq!(receive(&mut far, &mut mem, 5), [2; 5], "those of the last peer are there");
    assert_eq!(far.queues[0].counters().rx_missed, 5);
    drop((far, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn packets_that_the_device_has_at_the_close_do_not_count_as_sent() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",rx=32,tx=64");
    // The far end has 32 requests, and receives nothing.
    let packets: Vec<_> = (0..50).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    assert_eq!(near.queues[0].reap(&mut mem), 18, "the chain of the first 32 is complete");
    let ledger = pool.ledger();
    let held: Vec<u64> =
        ledger.held().iter().filter(|(name, _)| name == "verbs tx").map(|(_, n)| *n).collect();
    assert_eq!(held.iter().sum::<u64>(), 18, "{held:?}");
    let start = Instant::now();
    while !near.queues[0].arm(Want::Frames) {
        assert!(start.elapsed() < PATIENCE, "it never sleeps");
    }
    // No event is asked for a sent packet, so that the queue looks by itself.
    assert!(poll_readable(&[near.queues[0].as_fd()], Some(PATIENCE)).unwrap());
    near.queues[0].close(Instant::now());
    assert_eq!(near.queues[0].counters().tx_lost.packets, 18);
    let ledger = pool.ledger();
    assert_eq!((ledger.sent, ledger.dropped(DropReason::DEVICE_DOWN)), (32, 18), "{ledger}");
    drop((near, far, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn frames_of_a_peer_that_has_gone_come_back_while_others_send_without_a_pause() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, left, mut right] = three(&pool, ",rx=32,tx=32");
    drop(left);
    wait_left(&mut hub, 1);
    let (start, mut one) = (Instant::now(), Batch::with_capacity(1));
    let first = packet(&mut mem, 9, 2, 60, 1);
    send(&mut right, &mut mem, [first]);
    assert_eq!(lent(&pool), 3 * 32, "the hub has frames for two connections");
    while lent(&pool) > 2 * 32 {
        let next = packet(&mut mem, 9, 2, 60, 1);
        send(&mut right, &mut mem, [next]);
        assert_eq!(hub.queues[0].rx(&mut mem, &mut one, 1).packets, 1);
        one.consume(&mut mem);
        assert!(start.elapsed() < PATIENCE, "{}", pool.ledger());
    }
}

#[test]
fn an_address_is_not_learned_from_a_peer_that_has_gone() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let [mut hub, mut left, mut right] = three(&pool, ",group=ff0e::1");
    let last = packet(&mut mem, 9, 1, 60, 5);
    send(&mut left, &mut mem, [last]);
    drop(left);
    wait_left(&mut hub, 1);
    let mut one = Batch::with_capacity(1);
    assert_eq!(hub.queues[0].rx(&mut mem, &mut one, 1).packets, 1);
    one.consume(&mut mem);
    let answer = packet(&mut mem, 1, 9, 60, 6);
    send(&mut hub, &mut mem, [answer]);
    assert_eq!(receive(&mut right, &mut mem, 1), [6], "the peer that is left may know the address");
}

#[test]
fn a_packet_to_all_peers_goes_to_none_that_has_gone() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem, start) = (address(), pool.local(), Instant::now());
    let mut hub = open(&format!("verbs:soft,listen={at},datagrams"), &pool);
    let connect = format!("verbs:soft,connect={at},datagrams");
    let mut spokes: Vec<Opened> = (0..3).map(|_| open(&connect, &pool)).collect();
    while send_to_all(&mut hub, &mut mem) < 3 {
        assert!(start.elapsed() < PATIENCE, "three peers do not join");
        std::thread::yield_now();
    }
    drop(spokes.pop());
    wait_left(&mut hub, 1);
    spokes.iter_mut().for_each(|spoke| while !drain(spoke, &mut mem).is_empty() {});
    assert_eq!(send_to_all(&mut hub, &mut mem), 2);
    for spoke in &mut spokes {
        assert_eq!(drain(spoke, &mut mem), [7]);
    }
}

#[test]
fn packets_on_a_connection_are_dropped_as_device_down_if_this_end_closes() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",rx=32,tx=64");
    // The far end has 32 requests, and the rest waits.
    let packets: Vec<_> = (0..50).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    assert_eq!(near.queues[0].reap(&mut mem), 18);
    drop(near);
    let ledger = pool.ledger();
    let dropped = [DropReason::DEVICE_DOWN, DropReason::PEER_GONE].map(|why| ledger.dropped(why));
    assert_eq!(dropped, [18, 0], "{ledger}");
    drop((far, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn datagrams_that_the_device_has_at_the_close_are_dropped_as_device_down() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, _far) = joined(&pool, ",datagrams");
    let packets: Vec<_> = (0..5).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    near.queues[0].close(Instant::now());
    assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 5, "{}", pool.ledger());
    assert_eq!(near.queues[0].counters().tx_lost, Moved { packets: 5, bytes: 300 });
}

#[test]
fn a_queue_on_hold_is_not_woken_by_a_packet() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let (mut mem, start) = (pool.local(), Instant::now());
    let (mut near, mut far) = joined(&pool, "");
    while !far.queues[0].arm(Want::Frames) {
        assert!(start.elapsed() < PATIENCE, "it never sleeps");
    }
    assert!(far.queues[0].hold(Instant::now() + PATIENCE));
    let skb = packet(&mut mem, 9, 1, 60, 7);
    send(&mut near, &mut mem, [skb]);
    let wakes = |far: &Opened, time| poll_readable(&[far.queues[0].as_fd()], Some(time)).unwrap();
    assert!(!wakes(&far, Duration::from_millis(20)));
    assert!(far.queues[0].hold(Instant::now()) && wakes(&far, PATIENCE));
    assert_eq!(receive(&mut far, &mut mem, 1), [7]);
}

#[test]
fn frames_of_a_peer_that_has_gone_come_back_to_a_caller_that_only_arms() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let [mut hub, left, _right] = three(&pool, ",rx=32,tx=32");
    drop(left);
    wait_left(&mut hub, 1);
    let start = Instant::now();
    while lent(&pool) > 2 * 32 {
        let _ = hub.queues[0].arm(Want::Frames);
        assert!(start.elapsed() < PATIENCE, "{}", pool.ledger());
        std::thread::yield_now();
    }
}

#[test]
fn a_queue_without_a_frame_looks_for_one_by_itself() {
    let pool = Pool::builder().frames(32).build().unwrap();
    let other = Pool::builder().frames(1024).build().unwrap();
    let (at, mut mem) = (address(), other.local());
    let mut far = open(&format!("verbs:soft,listen={at},rx=32,tx=32"), &pool);
    let mut near = open(&format!("verbs:soft,connect={at},rx=32,tx=32"), &other);
    meet(&other, &mut [&mut near, &mut far]);
    let packets: Vec<_> = (0..32).map(|n| packet(&mut mem, 9, 1, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    // A hot list of another pool gives the device no frame.
    let mut batch = Batch::with_capacity(32);
    assert_eq!(far.queues[0].rx(&mut mem, &mut batch, 32).packets, 32);
    assert!(batch.iter().all(|skb| skb.is_of(&pool)));
    assert_eq!((lent(&pool), lent(&other)), (0, 32), "those of the near end");
    assert!(far.queues[0].counters().rx_nombuf > 0);
    let start = Instant::now();
    for _ in 0..3 {
        while !far.queues[0].arm(Want::Frames) {
            far.queues[0].rx(&mut mem, &mut batch, 1);
            assert!(start.elapsed() < PATIENCE, "it never sleeps");
        }
        assert!(poll_readable(&[far.queues[0].as_fd()], Some(PATIENCE)).unwrap());
    }
    batch.clear();
    let packets: Vec<_> = (0..8).map(|n| packet(&mut mem, 9, 1, 60, n)).collect();
    send(&mut near, &mut mem, packets);
    assert_eq!(receive(&mut far, &mut mem, 8), (0..8).collect::<Vec<u8>>());
}

#[test]
fn the_end_of_the_last_peer_is_told_by_arm() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (near, mut far) = joined(&pool, "");
    drop(near);
    let start = Instant::now();
    while far.queues[0].health_kind() != HealthKind::Down {
        far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(!far.queues[0].arm(Want::Frames), "the caller learns of it");
    assert!(!far.queues[0].arm(Want::Room), "packets to send are dropped at once");
    while !far.queues[0].arm(Want::Frames) {
        assert!(start.elapsed() < PATIENCE, "it never sleeps");
    }
}

#[test]
fn a_wait_for_packets_and_room_ends_with_room() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    for want in [Want::Room, Want::Both] {
        let (mut near, mut far) = joined(&pool, ",rx=32,tx=32");
        let (start, mut batch) = (Instant::now(), Batch::with_capacity(100));
        (0..100).for_each(|n| assert!(batch.push(packet(&mut mem, 1, 2, 60, n)).is_ok()));
        while batch.len() > 100 - 32 - 32 || !near.queues[0].arm(want) {
            near.queues[0].xmit(&mut mem, &mut batch);
            assert!(start.elapsed() < PATIENCE, "{} are left", batch.len());
        }
        assert_eq!(receive(&mut far, &mut mem, 32).len(), 32);
        assert!(poll_readable(&[near.queues[0].as_fd()], Some(PATIENCE)).unwrap(), "{want:?}");
        assert!(near.queues[0].xmit(&mut mem, &mut batch).packets > 0);
    }
}

#[test]
fn queue_whose_events_cannot_be_watched_sleeps_and_looks_again_by_itself() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (mut near, mut far) = joined(&pool, "");
    let mut mem = pool.local();
    soft::refuse_watches();
    let start = Instant::now();
    while !far.queues[0].arm(Want::Frames) {
        far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < PATIENCE, "it never sleeps");
    }
    let skb = packet(&mut mem, 9, 1, 60, 7);
    send(&mut near, &mut mem, [skb]);
    assert!(poll_readable(&[far.queues[0].as_fd()], Some(PATIENCE)).unwrap());
    assert_eq!(receive(&mut far, &mut mem, 1), [7]);
}

#[test]
fn packets_that_came_before_the_device_failed_are_received_before_the_queue_sleeps() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, ",datagrams,rx=64");
    let port = soft::last();
    let packets: Vec<_> = (0..40).map(|n| packet(&mut mem, 1, 2, 60, n)).collect();
    send(&mut far, &mut mem, packets);
    assert!(!near.queues[0].arm(Want::Frames), "packets have come");
    let (mut came, mut batch) = (Vec::new(), Batch::with_capacity(8));
    let mut receive = |near: &mut Opened, mem: &mut Local| {
        near.queues[0].rx(mem, &mut batch, 8);
        came.extend(batch.iter().map(|skb| skb.data()[skb.len() - 1]));
        batch.consume(mem);
        assert!(came.len() <= 40);
        came.clone()
    };
    assert_eq!(receive(&mut near, &mut mem).len(), 8);
    // The completion of a packet is read only while the device has one.
    let skb = packet(&mut mem, 9, 1, 60, 7);
    send(&mut near, &mut mem, [skb]);
    soft::lose_sent(port);
    let start = Instant::now();
    while !near.queues[0].arm(Want::Frames) {
        receive(&mut near, &mut mem);
        assert!(start.elapsed() < PATIENCE, "it never sleeps");
    }
    assert_eq!(near.queues[0].health_kind(), HealthKind::Failed);
    assert_eq!(receive(&mut near, &mut mem), (0..40).collect::<Vec<u8>>());
    drop((near, far, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.balanced(), "{ledger}");
}

#[test]
fn a_device_that_has_failed_gets_no_frames_for_datagrams() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",datagrams,rx=64");
    assert_eq!(lent(&pool), 2 * 64);
    soft::fail_datagrams(soft::last());
    for _ in 0..4 {
        near.queues[0].rx(&mut mem, &mut Batch::with_capacity(64), 64);
    }
    assert_eq!(near.queues[0].health_kind(), HealthKind::Failed);
    assert_eq!(near.queues[0].counters().rx_missed, 0, "no message came");
    let skb = packet(&mut mem, 1, 2, 60, 7);
    send(&mut near, &mut mem, [skb]);
    assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 1);
    assert_eq!(lent(&pool), 64, "those of the other end");
    assert!(!near.queues[0].arm(Want::Frames), "the caller learns of it once");
    assert!(near.queues[0].arm(Want::Frames));
    drop((near, far, mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}
