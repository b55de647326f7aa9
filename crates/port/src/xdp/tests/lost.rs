//! Queues whose socket or interface is lost.

use std::time::{Duration, Instant};

use linerate_skb::Batch;

use super::super::queue::tests::open;
use super::pool;
use crate::host::testing::{
    LONG, assert_settled, eventually, in_netns_with_xdp, ip, queue_in, veth,
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
