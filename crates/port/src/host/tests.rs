//! Tests of properties that all ports of host interfaces have, run on each kind of these ports.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, Pool, Trust};
use linerate_sys::wait::poll_readable;

use super::testing::*;
use crate::{Health, Port, Queue, Want};

/// A port, with a packet socket on the other side of its interface.
#[derive(Clone, Copy)]
struct Pair {
    near: &'static str,
    far: &'static str,
    interface: &'static str,
}

const PACKET: Pair = Pair { near: "packet:v0", far: "packet:v1", interface: "v0" };
const UNRINGED: Pair = Pair { near: "packet:v0,retire=0", ..PACKET };
const TAP: Pair = Pair { near: "tap:t0,up", far: "packet:t0", interface: "t0" };
const PLAIN_TAP: Pair = Pair { near: "tap:t0,up,vnet=off", ..TAP };
const XDP: Pair = Pair { near: "xdp:v0,ring=64", far: "packet:v1", interface: "v0" };

impl Pair {
    fn is_veth(&self) -> bool {
        self.interface == "v0"
    }

    /// Runs `test` on each of `pairs` at the same time: most of it is sleep.
    fn each(pairs: &[Pair], test: impl Fn(Pair) + Copy + Send + 'static) {
        std::thread::scope(|scope| {
            for pair in pairs {
                scope.spawn(move || pair.run(test));
            }
        });
    }

    /// Runs `test` in a network namespace of its own.
    fn run(self, test: impl FnOnce(Pair) + Send + 'static) {
        let test = move || {
            if self.is_veth() {
                veth(1500);
            }
            test(self);
        };
        if self.near.starts_with("xdp") { in_netns_with_xdp(test) } else { in_netns(test) }
    }

    /// Opens both ends; the near end receives into `pool`.
    fn open(&self, pool: &Pool) -> (Queue, Queue) {
        (queue_in(self.near, pool), queue(self.far))
    }

    fn ip(&self, before: &str, after: &str) {
        ip(&format!("{before} {}{after}", self.interface));
    }

    fn up(&self) {
        self.ip("link set", " up");
        if self.is_veth() {
            wait_running("v0");
            wait_running("v1");
        }
    }
}

fn pool(frames: u32) -> Pool {
    Pool::builder().frames(frames).build().unwrap()
}

/// Sends packets that may be lost, and receives, until the queue's health is as `wanted` requires.
fn until(queue: &mut Queue, wanted: impl Fn(&Health) -> bool) {
    let (mut batch, deadline) = (Batch::with_capacity(64), Instant::now() + LONG);
    while !wanted(&queue.health()) {
        assert!(Instant::now() < deadline, "{:?}", queue.health());
        queue.wait(Some(Duration::from_millis(20))).unwrap();
        queue.rx(&mut batch);
        batch.clear();
        batch.push(queue.local().alloc_copy(&stamped(0, 60)).unwrap()).unwrap();
        queue.xmit(&mut batch);
        batch.clear();
    }
}

/// Sends a frame, and waits until it arrives.
fn pass(from: &mut Queue, to: &mut Queue) {
    let frame = stamped(7, 60);
    send(from, std::slice::from_ref(&frame), Offload::NONE);
    receive_if(to, 1, |data| *data == frame);
}

#[test]
fn an_interface_that_goes_down_and_comes_back_is_followed() {
    for pair in [PACKET, UNRINGED, TAP, PLAIN_TAP, XDP] {
        pair.run(|pair| {
            let pool = pool(1024);
            let (mut near, mut far) = pair.open(&pool);
            let fd = near.as_raw_fd();
            for _ in 0..2 {
                pair.ip("link set", " down");
                until(&mut near, |health| *health != Health::Up);
                let Health::Down(e) = near.health() else { panic!("{:?}", near.health()) };
                assert_eq!(e.code, Code::DeviceDown);
                assert_eq!(e.fix, format!("ip link set {} up", pair.interface));
                let dropped = || pool.ledger().dropped(DropReason::DEVICE_DOWN);
                let before = dropped();
                send(&mut near, &[stamped(0, 60), stamped(1, 60)], Offload::NONE);
                assert_eq!(dropped() - before, 2);
                assert_silent(&mut near, 13);
                pair.up();
                for queue in [&mut near, &mut far] {
                    until(queue, |health| *health == Health::Up);
                }
                pass(&mut near, &mut far);
                pass(&mut far, &mut near);
            }
            assert_eq!(near.as_raw_fd(), fd, "the descriptor is the same");
            drop(near);
            assert_settled(&pool);
        });
    }
}

#[test]
fn a_deleted_interface_fails_for_good_and_gives_every_frame_back() {
    Pair::each(&[PACKET, UNRINGED, TAP, PLAIN_TAP, XDP], |pair| {
        let pool = pool(1024);
        let (mut near, mut far) = pair.open(&pool);
        let fd = near.as_raw_fd();
        pass(&mut far, &mut near);
        pass(&mut near, &mut far);
        let sent = |queue: &mut Queue| (queue.counts().tx_packets, queue.counts().tx_bytes);
        let before = sent(&mut near);
        pair.ip("link del", "");
        // The queue does not know yet that the interface is gone.
        send(&mut near, &[stamped(0, 60)], Offload::NONE);
        if pair.is_veth() {
            // This is another interface, although it has the same name.
            veth(1500);
        }
        let (mut batch, deadline) = (Batch::with_capacity(8), Instant::now() + LONG);
        while !matches!(near.health(), Health::Failed(_)) {
            assert!(Instant::now() < deadline, "{:?}", near.health());
            near.wait(Some(LONG)).unwrap();
            near.rx(&mut batch);
        }
        let Health::Failed(e) = near.health() else { unreachable!() };
        assert_eq!(e.code, Code::NoDevice);
        assert!(e.fix.contains("open the port again"), "{e}");
        assert!(e.fix.contains(": ip -br link"), "{e}");
        let _ = near.wait(Some(Duration::ZERO));
        assert_settled(&pool);
        send(&mut near, &[stamped(1, 60), stamped(2, 60)], Offload::NONE);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 3);
        assert_eq!(sent(&mut near), before, "as in the ledger");
        assert_eq!(near.rx(&mut batch), 0);
        assert_silent(&mut near, 2);
        assert_eq!(near.as_raw_fd(), fd, "the descriptor is the same");
        drop(near);
        assert_settled(&pool);
    });
}

#[test]
fn an_idle_queue_is_silent_whatever_it_did_before() {
    Pair::each(&[PACKET, UNRINGED, TAP, PLAIN_TAP, XDP], |pair| {
        let pool = pool(1024);
        let (mut near, mut far) = pair.open(&pool);
        pass(&mut near, &mut far);
        pass(&mut far, &mut near);
        assert_silent(&mut near, 3);
        assert_silent(&mut far, 2);
    });
}

#[test]
fn a_queue_that_waits_for_packets_is_woken_however_much_it_sends_meanwhile() {
    for pair in [PACKET, UNRINGED, TAP, PLAIN_TAP, XDP] {
        pair.run(|pair| {
            let pool = pool(1024);
            let (mut near, mut far) = pair.open(&pool);
            let mut batch = Batch::with_capacity(64);
            while !near.arm(Want::Frames) {
                near.rx(&mut batch);
                batch.clear();
            }
            // Far more calls than after which a busy queue's device is not watched any more.
            for seq in 0..50 {
                batch.push(near.local().alloc_copy(&stamped(seq, 60)).unwrap()).unwrap();
                assert_eq!(near.xmit(&mut batch), 1);
            }
            send(&mut far, &[stamped(100, 60)], Offload::NONE);
            let rings = poll_readable(&[near.as_fd()], Some(LONG)).unwrap();
            assert!(rings, "{} is not woken", pair.near);
            assert_eq!(bytes(receive(&mut near, 1).iter().next().unwrap()), stamped(100, 60));
        });
    }
}

#[test]
fn an_exhausted_pool_leaves_packets_in_the_interface_and_recovers() {
    Pair::each(&[PACKET, UNRINGED, TAP, PLAIN_TAP], |pair| {
        let pool = pool(8);
        let (mut near, mut far) = pair.open(&pool);
        let frames: Vec<_> = (0..20).map(|i| stamped(i, 100)).collect();
        send(&mut far, &frames, Offload::NONE);
        let held = receive(&mut near, 8);
        // The port tries again once in a millisecond, not more often, and loses no packet.
        assert_silent(&mut near, 1100);
        let counts = near.counts();
        assert!(counts.rx_nombuf > 0 && counts.rx_missed == 0, "{counts:?}");
        let mut seen: Vec<_> = held.iter().map(bytes).collect();
        drop(held);
        while seen.len() < 20 {
            let got = receive(&mut near, (20 - seen.len()).min(8));
            seen.extend(got.iter().map(bytes));
        }
        assert!(seen == frames);
        drop(near);
        assert_settled(&pool);
        assert_eq!((pool.ledger().received, pool.ledger().created), (20, 0));
    });
}

#[test]
fn a_packet_that_the_pool_cannot_hold_is_dropped_and_holds_nothing_up() {
    for pair in [PACKET, TAP, PLAIN_TAP] {
        pair.run(move |pair| {
            let pool = pool(4);
            let (mut near, _) = pair.open(&pool);
            for end in [pair.interface, "v1"].into_iter().take(1 + usize::from(pair.is_veth())) {
                ip(&format!("link set {end} mtu 9000"));
            }
            let mut far = queue(pair.far);
            send(&mut far, &[stamped(0, 9014), stamped(1, 60)], Offload::NONE);
            assert_eq!(bytes(receive(&mut near, 1).iter().next().unwrap()), stamped(1, 60));
            drop(near);
            assert_settled(&pool);
            assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 1);
        });
    }
}

#[test]
fn frames_that_a_peer_can_write_are_exchanged_as_copies() {
    for pair in [PACKET, UNRINGED, TAP, PLAIN_TAP] {
        pair.run(|pair| {
            let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
            let (mut near, mut far) = pair.open(&pool);
            let frames: Vec<_> = (0..10).map(|i| stamped(i, 1500)).collect();
            send(&mut near, &frames, Offload::NONE);
            assert!(receive(&mut far, 10).iter().map(bytes).eq(frames.clone()));
            send(&mut far, &frames, Offload::NONE);
            let mut got = Batch::with_capacity(10);
            while got.spare() > 0 {
                assert!(near.wait(Some(LONG)).unwrap());
                near.rx(&mut got);
            }
            assert!(got.iter().map(bytes).eq(frames));
            drop((got, near));
            assert_settled(&pool);
            assert_eq!((pool.ledger().received, pool.ledger().created), (10, 10));
        });
    }
}

/// Sends a packet to the other end and back, and asserts that it returns unchanged, with the same
/// offload.
fn assert_returns(pair: &Pair, frame: &[u8], offload: Offload, is_it: fn(&[u8]) -> bool) {
    let (mut near, mut far) = pair.open(&pool(256));
    send(&mut far, &[frame.to_vec()], offload);
    let mut got = receive_if(&mut near, 1, is_it);
    assert_eq!(near.xmit(&mut got), 1);
    let got = receive_if(&mut far, 1, is_it);
    let skb = got.iter().next().unwrap();
    assert!(bytes(skb) == frame, "{offload:?}: contents differ");
    assert_eq!(skb.offload(), Offload { flags: 1, ..offload });
}

#[test]
fn superframes_and_partial_checksums_are_forwarded_unharmed() {
    let bypass = Pair { near: "packet:v0,bypass", ..PACKET };
    for pair in [PACKET, bypass, TAP] {
        pair.run(|pair| {
            for (frame, offload) in [
                (ipv4(17, 100), PARTIAL),
                (ipv4(6, 20_000), SUPERFRAME),
                (ipv4(6, 65_535 - 54), SUPERFRAME),
                // "The checksum was verified" is a flag of received packets, which a sender must
                // not set.
                (ipv4(17, 100), Offload { flags: 3, ..PARTIAL }),
            ] {
                assert_returns(&pair, &frame, offload, is_ipv4);
            }
            for (first, chain) in chains(17) {
                let offload = Offload { csum_start: 54 + chain.len() as u16, ..PARTIAL };
                let is_it = |data: &[u8]| data[12..14] == [0x86, 0xdd] && data[22..38] == [7; 16];
                assert_returns(&pair, &ipv6(first, &chain, 17, 100), offload, is_it);
            }
        });
    }
}

#[test]
fn a_vlan_tag_is_where_it_was_and_so_is_the_checksum_behind_it() {
    for pair in [PACKET, UNRINGED, TAP] {
        pair.run(|pair| {
            let mut frame = ipv4(17, 1472);
            frame.splice(12..12, [0x81, 0x00, 0x20, 0x05]);
            let offload = Offload { csum_start: 38, ..PARTIAL };
            assert_returns(&pair, &frame, offload, |data| data[12..14] == [0x81, 0x00]);
        });
    }
}

#[test]
fn flows_are_divided_among_the_queues_each_in_order_and_each_packet_once() {
    let packet = Pair { near: "packet:v0,queues=4,ring=4MiB", ..PACKET };
    let unringed = Pair { near: "packet:v0,queues=4,ring=4MiB,retire=0", ..PACKET };
    let tap = Pair { near: "tap:t0,up,queues=4", ..TAP };
    for pair in [packet, unringed, tap] {
        pair.run(|pair| {
            if !stays_on_one_cpu() {
                return;
            }
            let pool = pool(1024);
            let port = Port::open_with(pair.near, &pool).unwrap();
            assert_eq!(port.obtained().queues, 4);
            assert!(port.obtained().to_string().contains(", 4 queues"), "{}", port.obtained());
            let (mut queues, mut far) = (port.into_queues(), queue(pair.far));
            let mut seen = Seen::default();
            for seq in 0..100 {
                send(&mut far, &round(seq), Offload::NONE);
                seen.take(&mut queues);
            }
            seen.wait(&mut queues, 6400);
            seen.assert_once(100);
            seen.assert_divided(4);
            let counts: Vec<_> = queues.iter_mut().map(Queue::counts).collect();
            assert_eq!(counts.iter().map(|c| c.rx_packets).sum::<u64>(), 6400, "{counts:?}");
            assert_eq!(counts.iter().map(|c| c.rx_missed).sum::<u64>(), 0, "{counts:?}");

            // Send by each queue in turn.
            for (seq, queue) in queues.iter_mut().enumerate() {
                send(queue, &round(seq as u32), Offload::NONE);
            }
            let mut there = Seen::default();
            there.wait(std::slice::from_mut(&mut far), 4 * usize::from(FLOWS));
            there.assert_once(4);
            drop(queues);
            assert_settled(&pool);
            assert_eq!(pool.ledger().received, 6400);
        });
    }
}
