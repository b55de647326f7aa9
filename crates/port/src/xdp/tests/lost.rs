//! Queues whose socket or interface is lost.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, Offload};

use super::super::queue::XdpQueue;
use super::super::queue::tests::open;
use super::{frames, pool, wait_until_up};
use crate::host::testing::{
    LONG, assert_settled, eventually, in_netns_with_xdp, ip, move_away_and_back, queue, queue_in,
    send, stamped, veth, wait_running,
};
use crate::{Health, QueueOps};

#[test]
fn memory_of_a_lost_queue_stays_registered_while_another_socket_has_the_queue() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (ours, theirs) = (pool(1024), pool(1024));
        let (mut queue, mut mem) = (open("v0,ring=64", &ours), ours.local());
        queue.lose_socket();
        let other = queue.occupy(&theirs);
        let mut seen = Vec::new();
        for _ in 0..3 {
            // Longer than the interval of the attempts.
            std::thread::sleep(Duration::from_millis(12));
            queue.reap(&mut mem);
            seen.extend(queue.unbound());
        }
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|socket| socket.upgrade().is_some()), "each is the same socket");
        drop(other);
        eventually(|| {
            queue.reap(&mut mem);
            queue.health() == Health::Up
        });
        assert!(queue.unbound().is_none());
        drop((queue, mem));
        assert_settled(&ours);
    });
}

#[test]
fn packets_that_were_not_read_before_a_reset_or_the_close_are_counted_as_missed() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(1024);
        let (mut near, mut mem) = (open("v0,ring=64", &pool), pool.local());
        let mut far = queue("packet:v1");
        let mut arrive = |near: &mut XdpQueue| {
            send(&mut far, &frames(10, 60), Offload::NONE);
            eventually(|| near.arrived() == 10);
        };
        let missed = |near: &mut XdpQueue| {
            let counters = near.counters();
            (counters.rx_missed, counters.driver.missed_unread)
        };
        arrive(&mut near);
        near.lose_socket();
        assert_eq!(missed(&mut near), (10, 10));
        eventually(|| {
            near.reap(&mut mem);
            near.health() == Health::Up
        });
        arrive(&mut near);
        near.close(Instant::now() + LONG);
        assert_eq!(missed(&mut near), (20, 20));
        drop((near, mem));
        assert_settled(&pool);
        assert_eq!(pool.ledger().received, 0);
    });
}

#[test]
fn a_reader_that_never_waits_notices_that_its_interface_was_deleted() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(1024);
        let mut queue = queue_in("xdp:v0,ring=64", &pool);
        ip("link del v0");
        let (mut batch, deadline) = (Batch::with_capacity(8), Instant::now() + LONG);
        while !matches!(queue.health(), Health::Failed(_)) {
            assert!(Instant::now() < deadline, "{:?}", queue.health());
            (0..1000).for_each(|_| assert_eq!(queue.rx(&mut batch), 0));
        }
        assert_settled(&pool);
    });
}

#[test]
fn interface_that_is_made_again_with_the_same_index_is_another_one() {
    in_netns_with_xdp(|| {
        let make = || {
            ip("link add v0 index 50 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            wait_running("v0");
        };
        make();
        let pool = pool(1024);
        let mut queue = queue_in("xdp:v0,ring=64", &pool);
        ip("link del v0");
        make();
        eventually(|| {
            let _ = queue.wait(Some(Duration::from_millis(50)));
            matches!(queue.health(), Health::Failed(_))
        });
        let Health::Failed(e) = queue.health() else { panic!("{:?}", queue.health()) };
        assert!(e.why.contains("another one has its index"), "{e}");
        assert_settled(&pool);
    });
}

#[test]
fn receiver_whose_interface_was_moved_away_and_back_is_bound_again() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(1024);
        let (mut near, mut far) = (queue_in("xdp:v0,ring=64", &pool), queue("packet:v1"));
        move_away_and_back("v0");
        wait_running("v1");
        let (mut batch, deadline) = (Batch::with_capacity(64), Instant::now() + LONG);
        while near.rx(&mut batch) == 0 {
            assert!(Instant::now() < deadline, "nothing arrives: {:?}", near.health());
            send(&mut far, &[stamped(0, 60)], Offload::NONE);
            near.wait(Some(Duration::from_millis(50))).unwrap();
        }
        assert_eq!(near.driver_counts().resets, 1);
        drop((near, batch));
        assert_settled(&pool);
    });
}

#[test]
fn port_stays_promiscuous_after_its_interface_was_moved_away_and_back() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(4096);
        let is_promiscuous = || !ip("-details link show v0").contains(" promiscuity 0 ");
        for (options, expected) in [("", true), (",promisc=off", false)] {
            let mut near = queue_in(&format!("xdp:v0,ring=64{options}"), &pool);
            assert_eq!(is_promiscuous(), expected, "{options}: opened");
            for resets in 1..=2 {
                move_away_and_back("v0");
                assert!(!is_promiscuous(), "{options}: the kernel ends it");
                eventually(|| {
                    near.wait(Some(Duration::from_millis(50))).unwrap();
                    near.reap();
                    near.driver_counts().resets == resets
                });
                wait_until_up(&mut near);
                assert_eq!(is_promiscuous(), expected, "{options}: bound again");
            }
            drop(near);
            eventually(|| !is_promiscuous());
        }
        assert_settled(&pool);
    });
}

#[test]
fn error_of_a_lost_queue_has_both_names_of_its_interface() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (ours, theirs) = (pool(1024), pool(1024));
        let (mut queue, mut mem) = (open("v0,ring=64", &ours), ours.local());
        for change in ["v0 down", "v0 name x0", "x0 up"] {
            ip(&format!("link set {change}"));
        }
        queue.lose_socket();
        let Health::Down(e) = queue.health() else { panic!("{:?}", queue.health()) };
        assert_eq!(e.what, "cannot use x0 (it was v0)");
        let other = queue.occupy(&theirs);
        queue.reap(&mut mem);
        let Health::Down(e) = queue.health() else { panic!("{:?}", queue.health()) };
        assert_eq!(e.what, "cannot open xdp:x0 (it was v0), queue 0");
        drop((other, queue, mem));
        assert_settled(&ours);
    });
}

#[test]
fn losses_of_a_new_socket_are_added_to_those_of_the_lost_one() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(4096);
        let (mut near, mut mem) = (open("v0,ring=64", &pool), pool.local());
        let mut far = queue("packet:v1");
        let mut burst = |near: &mut XdpQueue, n: u64| {
            send(&mut far, &frames(n, 60), Offload::NONE);
            eventually(|| near.arrived() == 64);
        };
        let missed = |near: &mut XdpQueue| {
            let counts = near.counters().driver;
            counts.missed_ring_full + counts.missed_no_cpu
        };
        burst(&mut near, 100);
        eventually(|| missed(&mut near) == 36);
        near.lose_socket();
        eventually(|| {
            near.reap(&mut mem);
            near.health() == Health::Up
        });
        burst(&mut near, 84);
        eventually(|| missed(&mut near) == 36 + 20);
        drop((near, mem));
        assert_settled(&pool);
    });
}
