//! Tests of requests that a driver makes just after they were read. The socket is not bound, so the
//! rings' other half is this test's.

use linerate_skb::Batch;
use linerate_sys::xdp::XdpSocket;

use super::super::held::Held;
use super::super::rings::{Lens, Rings, Socket};
use super::super::rx::Rx;
use super::super::tx::Tx;
use super::pool;
use crate::host::Link;
use crate::host::testing::{in_netns_with_xdp, ip, stamped};

pub(super) fn socket(frame_bytes: usize) -> Socket {
    let lens = Lens { fill: 64, rx: 64, tx: 64, completion: 64 };
    let rings = Rings::of(XdpSocket::new().unwrap(), &lens).unwrap();
    // The kernel sets it in a new transmit ring.
    rings.tx_map.set_wakeup(false);
    Socket { rings, held: Held::new(1 << 20, frame_bytes) }
}

#[test]
fn driver_that_asks_late_is_told_of_packets_in_the_ring() {
    in_netns_with_xdp(|| {
        ip("link set lo up");
        let (pool, mut link) = (pool(64), Link::open("lo").unwrap());
        let (mut socket, mut mem) = (socket(pool.frame_size()), pool.local());
        let (mut tx, mut batch) =
            (Tx::new(pool.clone(), pool.tally("tx")), Batch::with_capacity(1));
        batch.push(mem.alloc_copy(&stamped(0, 60)).unwrap()).unwrap();
        let mut home = pool.local_with(0);
        let sent = tx.send(&mut socket, &mut link, &mut home, &mut mem, &mut batch);
        assert_eq!(sent.packets, 1);
        for polls in 0..3 {
            tx.check_at(&socket.held);
            tx.poll(&mut socket, &mut link, &mut mem);
            assert_eq!(tx.doorbells, 0, "{polls}: no driver asked");
        }
        socket.rings.tx_map.set_wakeup(true);
        tx.poll(&mut socket, &mut link, &mut mem);
        assert_eq!(tx.doorbells, 1);
        // The socket is not bound: the next attempt is made later.
        tx.poll(&mut socket, &mut link, &mut mem);
        assert_eq!(tx.doorbells, 1);
    });
}

#[test]
fn driver_that_asks_late_is_told_of_posted_frames_if_none_comes_back() {
    in_netns_with_xdp(|| {
        let pool = pool(64);
        let (mut socket, mut mem) = (socket(pool.frame_size()), pool.local());
        let mut rx = Rx::new(1);
        assert!(!rx.refill(&mut socket, &mut mem, true), "no driver asked");
        assert_eq!(socket.held.posted, 64);
        socket.rings.fill_map.set_wakeup(true);
        assert!(!rx.refill(&mut socket, &mut mem, false), "packets arrive");
        assert!(rx.refill(&mut socket, &mut mem, true));
    });
}

#[test]
fn driver_that_asks_while_packets_arrive_is_told_before_the_queue_sleeps() {
    in_netns_with_xdp(|| {
        let pool = pool(64);
        let (mut socket, mut mem) = (socket(pool.frame_size()), pool.local());
        let mut rx = Rx::new(1);
        assert!(!rx.announce(&socket), "no frame is posted");
        rx.refill(&mut socket, &mut mem, false);
        assert!(!rx.announce(&socket), "no driver asked");
        socket.rings.fill_map.set_wakeup(true);
        assert!(rx.announce(&socket));
    });
}

#[test]
fn device_with_a_long_ring_of_its_own_gets_no_more_frames_than_the_pool_was_sized_for() {
    in_netns_with_xdp(|| {
        let pool = pool(256);
        let (mut socket, mut mem) = (socket(pool.frame_size()), pool.local());
        // The driver has moved 100 frames into the device's ring, so the fill ring is empty.
        socket.held.posted = 100;
        Rx::new(1).refill(&mut socket, &mut mem, false);
        assert_eq!(socket.held.posted, 64 + 64);
    });
}
