//! Packets that the kernel keeps for a long time, and may read in their frames until it completes
//! them: on a macvlan whose lower device has a slow queue, and on a card that polls its ring late.

use std::process::Command;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Offload, Pool};

use super::super::queue::tests::open;
use super::{frames, pool};
use crate::host::testing::{
    LONG, adds_qdisc, assert_settled, bytes, eventually, in_netns_with_xdp, ip, move_away_and_back,
    queue, receive, veth, wait_running,
};
use crate::{QueueOps, Want};

/// A time longer than that after which a device without completions is treated as failed.
const STALL: Duration = Duration::from_millis(1500);
const PACKETS: usize = 8;
/// More packets than the kernel takes out of a transmit ring at once: the send buffer of a socket
/// is full with fewer.
const MANY: usize = 300;

/// Removes the slow queue of v0.
fn end_the_queue() {
    let done = Command::new("tc").args("qdisc del dev v0 root".split(' ')).status().unwrap();
    assert!(done.success(), "{done}");
}

/// Runs `f` where `m0` sends by `v0`, `kbit` a second; it gets [`PACKETS`] packets of 1000 bytes to
/// send.
fn behind_a_queue(kbit: u32, f: impl FnOnce(&Pool, &mut Local, &mut Batch) + Send + 'static) {
    behind_a_queue_with(PACKETS, kbit, f);
}

/// Runs `f` as [`behind_a_queue`] does, with so many packets.
fn behind_a_queue_with(
    packets: usize,
    kbit: u32,
    f: impl FnOnce(&Pool, &mut Local, &mut Batch) + Send + 'static,
) {
    in_netns_with_xdp(move || {
        veth(1500);
        ip("link add link v0 name m0 type macvlan mode bridge");
        ip("link set m0 up");
        wait_running("m0");
        if !adds_qdisc(&format!("dev v0 root tbf rate {kbit}kbit burst 1600 limit 1000000")) {
            return;
        }
        let pool = pool(4096);
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(packets.max(64)));
        for frame in frames(packets as u64, 1000) {
            let mut skb = mem.alloc_copy(&frame).unwrap();
            skb.set_offload(Offload::NONE);
            batch.push(skb).unwrap();
        }
        f(&pool, &mut mem, &mut batch);
    });
}

/// Returns the packets that a queue has not got back.
fn under_way(pool: &Pool) -> u64 {
    let ledger = pool.ledger();
    ledger.held().iter().filter(|(name, _)| name.ends_with(" tx")).map(|(_, n)| n).sum()
}

#[test]
fn packets_that_wait_in_the_kernel_are_no_reason_to_have_another_socket() {
    behind_a_queue(2, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        let begun = Instant::now();
        while begun.elapsed() < STALL {
            queue.rx(mem, batch, 64);
            let _ = queue.arm(Want::Both);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(queue.counters().driver.resets, 0);
        // At least one packet was sent before the queue was full.
        assert!(under_way(pool) >= PACKETS as u64 - 3, "{:#}", pool.ledger());
        // The kernel drops the queued packets, which completes them.
        end_the_queue();
        drop(queue);
        batch.clear();
        assert_settled(pool);
        assert!(pool.ledger().sent >= PACKETS as u64, "{}", pool.ledger());
    });
}

#[test]
fn socket_that_the_kernel_has_unbound_stays_open_while_the_kernel_has_its_packets() {
    behind_a_queue(2, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        move_away_and_back("m0");
        // Longer than the interval at which a queue checks its socket.
        let begun = Instant::now();
        while begun.elapsed() < STALL {
            queue.rx(mem, batch, 64);
            let _ = queue.arm(Want::Frames);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(queue.counters().driver.resets, 0);
        assert!(under_way(pool) >= PACKETS as u64 - 3, "{:#}", pool.ledger());
        // The kernel drops the queued packets, which completes them.
        end_the_queue();
        eventually(|| {
            queue.rx(mem, batch, 64);
            let _ = queue.arm(Want::Frames);
            queue.counters().driver.resets == 1
        });
        drop(queue);
        batch.clear();
        assert_settled(pool);
    });
}

#[test]
fn frames_of_a_closed_queue_are_not_reused_while_the_kernel_may_read_them() {
    behind_a_queue(2, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        drop(queue);
        assert!(under_way(pool) >= PACKETS as u64 - 3, "{:#}", pool.ledger());
        assert_eq!(pool.ledger().difference(), 0, "{:#}", pool.ledger());
    });
}

#[test]
fn close_waits_no_longer_than_its_caller_lets_it() {
    behind_a_queue(2, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        let begun = Instant::now();
        queue.close(begun);
        let waited = begun.elapsed();
        drop(queue);
        // A dropped queue waits for `LINGER`, one second.
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        assert_eq!(pool.ledger().difference(), 0, "{:#}", pool.ledger());
    });
}

#[test]
fn close_waits_a_moment_for_packets_that_the_kernel_is_about_to_send() {
    behind_a_queue(400, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        drop(queue);
        batch.clear();
        assert_settled(pool);
        assert_eq!(pool.ledger().sent, PACKETS as u64, "{}", pool.ledger());
    });
}

#[test]
fn close_announces_packets_again_that_the_kernel_has_not_taken() {
    behind_a_queue_with(MANY, 8000, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, MANY);
        drop(queue);
        batch.clear();
        assert_settled(pool);
        assert_eq!(pool.ledger().sent, MANY as u64, "{}", pool.ledger());
    });
}

#[test]
fn reap_reports_packets_until_the_kernel_has_sent_them() {
    behind_a_queue(2, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.reap(mem), 0);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        assert!(queue.reap(mem) >= PACKETS - 3, "{:#}", pool.ledger());
        // The kernel drops the queued packets, which completes them.
        end_the_queue();
        eventually(|| queue.reap(mem) == 0);
        assert_eq!(under_way(pool), 0, "{:#}", pool.ledger());
    });
}

#[test]
fn a_queue_that_is_closed_after_its_last_packet_is_reaped_has_sent_everything() {
    behind_a_queue_with(MANY, 2000, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, MANY);
        let begun = Instant::now();
        while queue.reap(mem) > 0 {
            assert!(begun.elapsed() < LONG, "{:#}", pool.ledger());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(queue.counters().driver.resets, 0);
        drop(queue);
        batch.clear();
        assert_settled(pool);
        assert_eq!(pool.ledger().sent, MANY as u64, "{}", pool.ledger());
    });
}

#[test]
fn packets_that_nobody_ever_sends_are_reported_for_a_limited_time() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(4096);
        let (mut queue, mut mem) = (open("v0", &pool), pool.local());
        let mut batch = Batch::with_capacity(1);
        batch.push(mem.alloc_copy(&frames(1, 60)[0]).unwrap()).unwrap();
        queue.lose(&mut batch);
        assert_eq!(queue.reap(&mut mem), 1);
        eventually(|| queue.reap(&mut mem) == 0);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 1);
    });
}

#[test]
fn a_caller_that_comes_late_finds_its_packets_sent_and_its_socket_open() {
    behind_a_queue(400, |pool, mem, batch| {
        let mut queue = open("m0", pool);
        assert_eq!(queue.xmit(mem, batch).packets, PACKETS);
        while !queue.arm(Want::Frames) {
            queue.rx(mem, batch, 64);
            batch.clear();
        }
        std::thread::sleep(STALL);
        let _ = queue.arm(Want::Frames);
        assert_eq!(queue.counters().driver.resets, 0);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 0, "{}", pool.ledger());
        assert_eq!(under_way(pool), 0, "{:#}", pool.ledger());
    });
}

/// Two cards of virtio with a cable between them, in the namespace of this process; the device of
/// the first takes packets out of its ring after seconds. Guests of `cargo xtask qemu` have such.
const CARDS: &str = "LINERATE_TEST_SLOW_CARDS";

/// The driver puts frames into its ring where they lie, pages of the pool, and its device reads
/// them after the close.
#[test]
fn frames_of_a_closed_queue_leave_a_card_as_they_were() {
    let Ok(cards) = std::env::var(CARDS) else {
        return eprintln!("skipped: no card that sends late; `cargo xtask qemu` has one");
    };
    let (near, far) = cards.split_once(' ').unwrap();
    let (pool, mut far) = (pool(4096), queue(&format!("packet:{far}")));
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
    let sent = frames(PACKETS as u64, 1000);
    sent.iter().for_each(|frame| batch.push(mem.alloc_copy(frame).unwrap()).unwrap());
    let mut card = open(near, &pool);
    assert_eq!(card.xmit(&mut mem, &mut batch).packets, PACKETS);
    drop(card);
    assert_eq!(under_way(&pool), PACKETS as u64, "{:#}", pool.ledger());
    // Write every frame that can be allocated.
    let mut others = Batch::with_capacity(4096);
    assert_eq!(mem.alloc(&mut others, 4096), 4096 - PACKETS);
    for skb in others.iter_mut() {
        skb.push(skb.headroom()).unwrap().fill(0xff);
        let room = skb.tailroom();
        skb.put(room).unwrap().fill(0xff);
    }
    let came = receive(&mut far, PACKETS);
    assert!(came.iter().zip(&sent).all(|(skb, frame)| &bytes(skb) == frame));
}
