//! Against real kernels, on veth pairs in namespaces of their own.

mod beside;
mod cut;
mod lacking;
mod lost;
mod silent;
mod slow;
mod tagged;
mod taken;
mod told;
mod used;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, Pool, Skb};
use linerate_sys::wait::poll_readable;

use super::examine::FRAGS;
use crate::doctor::kernel;
use crate::host::RETRY;
use crate::host::testing::{
    LONG, assert_settled, assert_silent, bytes, eventually, in_netns_with_xdp, ip, queue, queue_in,
    receive, send, stamped, veth, wait_running,
};
use crate::{Health, Port, Queue, Want};

fn pool(frames: u32) -> Pool {
    Pool::builder().frames(frames).build().unwrap()
}

fn frames(n: u64, len: usize) -> Vec<Vec<u8>> {
    (0..n).map(|seq| stamped(seq, len)).collect()
}

/// Sends `frames` from one queue to the other, and checks that they come as they were, in order.
fn pass(from: &mut Queue, to: &mut Queue, frames: &[Vec<u8>]) {
    for part in frames.chunks(128) {
        send(from, part, Offload::NONE);
        let got = receive(to, part.len());
        for (skb, frame) in got.iter().zip(part) {
            assert_eq!(&bytes(skb), frame);
        }
    }
}

/// Receives and drops what comes, until the queue is up.
fn wait_until_up(xdp: &mut Queue) {
    let (mut batch, deadline) = (Batch::with_capacity(64), Instant::now() + LONG);
    while xdp.health() != Health::Up {
        assert!(Instant::now() < deadline, "{:?}", xdp.health());
        xdp.wait(Some(Duration::from_millis(100))).unwrap();
        xdp.rx(&mut batch);
        batch.clear();
    }
}

/// Lets a queue take back what its device is done with.
fn settle(queue: &mut Queue) {
    let mut batch = Batch::with_capacity(64);
    let deadline = Instant::now() + LONG;
    while queue.pool().ledger().held().iter().any(|(name, n)| name.ends_with(" tx") && *n > 0) {
        assert!(Instant::now() < deadline, "{}", queue.pool().ledger());
        queue.wait(Some(Duration::from_millis(1))).unwrap();
        queue.rx(&mut batch);
        batch.clear();
    }
}

#[test]
fn two_interfaces_on_one_pool_exchange_frames_without_a_copy() {
    in_netns_with_xdp(|| {
        veth(1500);
        ip("link add w0 type veth peer name w1");
        ip("link set w0 up");
        ip("link set w1 up");
        wait_running("w0");
        let pool = pool(16384);
        let (mut west, mut east) = (queue_in("xdp:v0", &pool), queue_in("xdp:w0", &pool));
        let (mut near, mut far) = (queue("packet:v1"), queue("packet:w1"));
        let mut batch = Batch::with_capacity(256);
        for round in 0..20 {
            let sent: Vec<Vec<u8>> = (0..100).map(|i| stamped(100 * round + i, 200)).collect();
            send(&mut near, &sent, Offload::NONE);
            let mut passed = 0;
            while passed < 100 {
                west.wait(Some(LONG)).unwrap();
                passed += west.rx(&mut batch);
                while !batch.is_empty() {
                    east.xmit(&mut batch);
                }
            }
            let got = receive(&mut far, 100);
            assert!(got.iter().zip(&sent).all(|(skb, frame)| &bytes(skb) == frame));
        }
        settle(&mut east);
        for queue in [&mut west, &mut east] {
            let counts = queue.driver_counts();
            let told = (counts.copied_bytes, counts.bad_descs, counts.resets);
            assert_eq!(told, (Some(0), 0, 0), "bytes copied, bad descriptors, resets");
        }
        drop((west, east));
        assert_settled(&pool);
        assert_eq!((pool.ledger().received, pool.ledger().sent), (2000, 2000));
    });
}

/// Opens a port whose packets are longer than a frame; returns `None`, with a message, if this
/// kernel is older than Linux 6.6, which has no packets of several frames. Before Linux 5.18 it has
/// no programs for them, either.
fn takes_long_packets(text: &str, pool: &Pool) -> Option<Port> {
    const REFUSALS: [&str; 2] = ["need Linux 6.6, bind: EINVAL", "BPF_PROG_LOAD: Invalid argument"];
    let is_old = || kernel::version().is_some_and(|version| version < FRAGS);
    match Port::open_with(text, pool) {
        Err(e) if is_old() && REFUSALS.iter().any(|why| e.why.contains(why)) => {
            eprintln!("skipped: no packets of several frames: {e}");
            None
        }
        port => Some(port.unwrap()),
    }
}

#[test]
fn a_port_gets_the_mode_it_demands_also_beside_one_in_another_mode() {
    in_netns_with_xdp(|| {
        veth(9000);
        ip("link add w0 mtu 9000 type veth peer name w1 mtu 9000");
        ip("link set w0 up");
        ip("link set w1 up");
        let pool = pool(8192);
        let Some(_first) = takes_long_packets("xdp:v0,mode=native", &pool) else { return };
        let refused = Port::open_with("xdp:w0,mode=zerocopy", &pool);
        let told = refused.map(|port| port.obtained().to_string());
        assert_eq!(told.as_ref().map_err(|e| e.code), Err(Code::Unsupported), "{told:?}");
    });
}

#[test]
fn a_queue_with_too_few_frames_for_a_packet_tries_again_to_get_more() {
    in_netns_with_xdp(|| {
        veth(9000);
        let pool = pool(256);
        let Some(port) = takes_long_packets("xdp:v0,mode=native,ring=64", &pool) else { return };
        let (mut near, mut far) = (port.into_queues().remove(0), queue("packet:v1"));
        let (mut mem, mut kept) = (pool.local(), Batch::with_capacity(256));
        while mem.alloc(&mut kept, 64) > 0 {}
        let in_rings = || {
            let ledger = pool.ledger();
            ledger.holders().iter().find(|(name, _)| *name == "device rings").unwrap().1
        };
        let (mut seq, mut received) = (0, Vec::new());
        while in_rings() > 1 {
            send(&mut far, &[stamped(seq, 60)], Offload::NONE);
            received.push(receive(&mut near, 1));
            seq += 1;
        }
        assert_eq!(near.rx(&mut Batch::with_capacity(1)), 0);
        assert!(matches!(near.health(), Health::Starved(_)), "{:?}", near.health());
        assert!(near.arm(Want::Frames));
        kept.clear();
        drop((mem, received));
        assert!(poll_readable(&[near.as_fd()], Some(LONG)).unwrap());
        assert_eq!(near.rx(&mut Batch::with_capacity(1)), 0);
        send(&mut far, &[stamped(seq, 5000)], Offload::NONE);
        assert_eq!(bytes(receive(&mut near, 1).iter().next().unwrap()), stamped(seq, 5000));
        drop(near);
        assert_settled(&pool);
    });
}

#[test]
fn packets_of_another_pool_are_copied_and_counted() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (ours, theirs) = (pool(8192), pool(64));
        let mut xdp = queue_in("xdp:v0", &ours);
        let mut packet = queue("packet:v1");
        let mut mem = theirs.local();
        let mut batch = Batch::with_capacity(4);
        batch.push(mem.alloc_copy(&stamped(7, 300)).unwrap()).unwrap();
        assert_eq!(xdp.xmit(&mut batch), 1);
        assert_eq!(bytes(receive(&mut packet, 1).iter().next().unwrap()), stamped(7, 300));
        assert_eq!(xdp.driver_counts().copied_bytes, Some(300));
        settle(&mut xdp);
        drop(xdp);
        assert_settled(&ours);
        assert_settled(&theirs);
    });
}

#[test]
fn a_packet_that_finds_no_frame_for_its_copy_is_tried_again_after_a_while() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (ours, theirs) = (pool(1024), pool(64));
        let mut xdp = queue_in("xdp:v0,ring=64", &ours);
        let mut packet = queue("packet:v1");
        let (mut mem, mut kept) = (ours.local(), Batch::with_capacity(1024));
        while mem.alloc(&mut kept, 64) > 0 {}
        let mut batch = Batch::with_capacity(4);
        batch.push(theirs.local().alloc_copy(&stamped(7, 300)).unwrap()).unwrap();
        let until = Instant::now() + LONG;
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(xdp.xmit(&mut batch), 0);
            // The check of the interface, which is no attempt to send, may end a sleep, too.
            while xdp.arm(Want::Room) {
                assert!(Instant::now() < until, "never tried again");
                assert!(poll_readable(&[xdp.as_fd()], Some(LONG)).unwrap());
            }
            assert!(begun.elapsed() >= RETRY, "there is no room without a frame");
        }
        drop((kept, mem));
        assert_eq!(xdp.xmit(&mut batch), 1);
        assert_eq!(bytes(receive(&mut packet, 1).iter().next().unwrap()), stamped(7, 300));
        settle(&mut xdp);
        drop(xdp);
        assert_settled(&ours);
    });
}

#[test]
fn jumbo_frames_pass_in_several() {
    in_netns_with_xdp(|| {
        veth(9000);
        let pool = pool(8192);
        let Some(port) = takes_long_packets("xdp:v0", &pool) else { return };
        let mut xdp = port.into_queues().remove(0);
        let mut packet = queue("packet:v1");
        for len in [60, 1792, 1793, 3000, 9014] {
            pass(&mut packet, &mut xdp, &frames(40, len));
            pass(&mut xdp, &mut packet, &frames(40, len));
        }
        settle(&mut xdp);
        drop(xdp);
        assert_settled(&pool);
    });
}

#[test]
fn a_filter_takes_its_own_and_leaves_the_rest_to_the_kernel() {
    in_netns_with_xdp(|| {
        veth(1500);
        ip("addr add 198.18.0.2/24 dev v0");
        let pool = pool(8192);
        let mut xdp = queue_in("xdp:v0,udp=7777", &pool);
        let mut packet = queue("packet:v1");
        let datagram = |port: u16| {
            let mut frame = crate::host::testing::ipv4(17, 30);
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            frame
        };
        let mut tcp = crate::host::testing::ipv4(6, 30);
        tcp[36..38].copy_from_slice(&7777u16.to_be_bytes());
        let mut fragment = datagram(7777);
        fragment[20] = 0x20;
        let others = [datagram(7778), tcp, fragment, stamped(1, 60)];
        send(&mut packet, &others, Offload::NONE);
        send(&mut packet, &[datagram(7777)], Offload::NONE);
        let got = crate::host::testing::receive_if(&mut xdp, 1, |_| true);
        assert_eq!(bytes(got.iter().next().unwrap()), datagram(7777));
        assert_silent(&mut xdp, 2);
        assert_eq!(xdp.counts().rx_packets, 1);
    });
}

#[test]
fn the_program_goes_with_the_port() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(16384);
        let port = Port::open_with("xdp:v0", &pool).unwrap();
        assert!(ip("link show v0").contains("prog/xdp"), "{}", ip("link show v0"));
        assert!(
            port.obtained()
                .to_string()
                .starts_with("v0 AF_XDP native copy, diverts every packet, queue 0, promiscuous (")
        );
        drop(port);
        eventually(|| !ip("link show v0").contains("prog/xdp"));
        assert_settled(&pool);
        for _ in 0..20 {
            drop(Port::open_with("xdp:v0", &pool).unwrap());
        }
        assert_settled(&pool);
    });
}

#[test]
fn interface_is_promiscuous_as_long_as_a_port_that_asks_for_it() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(16384);
        let is_promiscuous = || !ip("-details link show v0").contains(" promiscuity 0 ");
        for (options, expected) in
            [("", true), (",promisc=off", false), (",udp=7777", false), (",udp=7777,promisc", true)]
        {
            let port = Port::open_with(&format!("xdp:v0{options}"), &pool).unwrap();
            assert_eq!(is_promiscuous(), expected, "{options}: {}", ip("-details link show v0"));
            assert_eq!(port.obtained().mode.contains("promiscuous"), expected, "{options}");
            drop(port);
            eventually(|| !is_promiscuous());
        }
        let port = Port::open_with("xdp:v0,write,promisc", &pool).unwrap();
        let refused = &port.obtained().refused;
        assert!(refused.contains(&"promisc: this port only sends".into()), "{refused:?}");
        assert!(!is_promiscuous());
    });
}

#[test]
fn every_queue_is_taken_and_each_gets_its_own() {
    in_netns_with_xdp(|| {
        ip("link add v0 numrxqueues 4 numtxqueues 4 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        wait_running("v0");
        let pool = pool(32768);
        let port = Port::open_with("xdp:v0,ring=256", &pool).unwrap();
        assert_eq!(port.obtained().queues, 4);
        assert!(port.obtained().mode.contains("queues 0-3"), "{}", port.obtained());
        drop(port);
        let two = Port::open_with("xdp:v0,ring=256,queues=1+3", &pool).unwrap();
        assert_eq!(two.into_queues().len(), 2);
        let fifth = Port::open_with("xdp:v0,queues=4", &pool).unwrap_err();
        assert!(fifth.why.contains("no queue 4"), "{fifth}");
        assert_settled(&pool);
    });
}

#[test]
fn a_pool_without_frames_leaves_packets_to_the_kernels_count_and_recovers() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(256);
        // A ring that holds all frames of the pool is never full.
        let mut xdp = queue_in("xdp:v0,ring=256", &pool);
        let mut packet = queue("packet:v1");
        let mut kept: Vec<Skb> = Vec::new();
        let mut batch = Batch::with_capacity(64);
        let deadline = Instant::now() + LONG;
        while kept.len() < 256 {
            assert!(Instant::now() < deadline, "{} were had", kept.len());
            send(&mut packet, &frames(16, 60), Offload::NONE);
            xdp.wait(Some(Duration::from_millis(5))).unwrap();
            xdp.rx(&mut batch);
            kept.extend(batch.drain());
        }
        send(&mut packet, &frames(16, 60), Offload::NONE);
        xdp.wait(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(xdp.rx(&mut batch), 0);
        let counts = xdp.counts();
        assert!(counts.rx_missed >= 16 && counts.rx_nombuf > 0, "{counts:?}");
        let causes = xdp.driver_counts();
        let missed = (causes.missed_no_frame, causes.missed_ring_full);
        assert_eq!(missed, (counts.rx_missed, 0), "{causes:?}");
        kept.clear();
        // No event signals free frames: the queue's own alarm wakes the caller.
        xdp.wait(Some(LONG)).unwrap();
        xdp.rx(&mut batch);
        pass(&mut packet, &mut xdp, &frames(40, 60));
        drop((xdp, batch));
        assert_settled(&pool);
    });
}

#[test]
fn a_receive_ring_that_is_full_is_counted_as_the_cause() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(4096);
        let mut xdp = queue_in("xdp:v0,ring=64", &pool);
        let mut packet = queue("packet:v1");
        // The test keeps 64 packets, and the fill ring has room for 64 more frames.
        send(&mut packet, &frames(100, 60), Offload::NONE);
        assert_eq!(receive(&mut xdp, 64).len(), 64);
        let (counts, causes) = (xdp.counts(), xdp.driver_counts());
        assert_eq!(
            (counts.rx_missed, causes.missed_ring_full, causes.missed_no_frame),
            (36, 36, 0)
        );
        pass(&mut packet, &mut xdp, &frames(60, 60));
        drop(xdp);
        assert_settled(&pool);
    });
}

#[test]
fn pools_that_cannot_be_a_devices_are_refused() {
    in_netns_with_xdp(|| {
        veth(1500);
        let general = Pool::builder().frames(4096).data(linerate_skb::Data::General);
        let small = Pool::builder().frames(4096).frame_size(1024);
        let large = Pool::builder().frames(4096).frame_size(8192);
        for (pool, code) in
            [(general, Code::Unsupported), (small, Code::PoolSize), (large, Code::PoolSize)]
        {
            let e = Port::open_with("xdp:v0", &pool.build().unwrap()).unwrap_err();
            assert_eq!(e.code, code, "{e}");
            assert!(e.fix.contains(": --"), "an option of the command: {e}");
        }
        let nobody = Port::open("xdp:nobody").unwrap_err();
        assert_eq!(nobody.code, Code::NoDevice);
        assert_eq!(Port::open("xdp:v0,udp=0").unwrap_err().code, Code::PortSyntax);
        let both = Port::open("xdp:v0,udp=1,tcp=2").unwrap_err();
        assert!(both.why.contains("udp=1 and tcp=2 at once"), "{both}");
    });
}

#[test]
fn a_flows_port_is_the_ports_own_until_it_is_closed() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(16384);
        let port = Port::open_with("xdp:v0,udp=7777", &pool).unwrap();
        let taken = || std::net::UdpSocket::bind("0.0.0.0:7777");
        assert!(taken().is_err());
        ip("link add w0 type veth peer name w1");
        ip("link set w0 up");
        // No port takes the packets of the other interface yet.
        drop(Port::open_with("xdp:w0,udp=7777", &pool).unwrap());
        let again = Port::open_with("packet:v0,udp=7777", &pool).unwrap_err();
        assert_eq!(again.code, Code::Busy, "{again}");
        drop(port);
        eventually(|| taken().is_ok());
        assert_settled(&pool);
    });
}

#[test]
fn packets_never_completed_are_dropped_and_the_socket_is_bound_again() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(8192);
        let (mut ops, mut packet) = (super::queue::tests::open("v0", &pool), queue("packet:v1"));
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
        let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&ops));
        batch.push(mem.alloc_copy(&stamped(1, 60)).unwrap()).unwrap();
        ops.lose(&mut batch);
        assert_eq!(pool.ledger().in_flight, 1);
        let mut xdp = Queue::new(Box::new(ops), pool.local());
        let deadline = Instant::now() + LONG;
        while xdp.driver_counts().resets == 0 {
            assert!(Instant::now() < deadline, "{}", pool.ledger());
            xdp.wait(Some(Duration::from_millis(100))).unwrap();
            xdp.rx(&mut batch);
        }
        wait_until_up(&mut xdp);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 1);
        assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&xdp), fd, "the descriptor is the same");
        pass(&mut packet, &mut xdp, &frames(100, 60));
        pass(&mut xdp, &mut packet, &frames(100, 60));
        drop((xdp, mem));
        assert_settled(&pool);
    });
}

#[test]
fn a_queue_exchanges_no_frames_with_a_hot_list_of_another_pool() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (ours, theirs) = (pool(8192), pool(64));
        let mut ops = super::queue::tests::open("v0", &ours);
        let (mut mem, mut packet) = (theirs.local(), queue("packet:v1"));
        send(&mut packet, &frames(10, 60), Offload::NONE);
        let mut batch = Batch::with_capacity(64);
        let deadline = Instant::now() + LONG;
        while batch.len() < 10 {
            assert!(Instant::now() < deadline, "{} came", batch.len());
            crate::QueueOps::rx(&mut ops, &mut mem, &mut batch, 64);
        }
        assert!(batch.iter().all(|skb| skb.is_of(&ours)));
        let lent = theirs.ledger();
        assert!(
            lent.holders().iter().all(|(name, n)| *name != "device rings" || *n == 0),
            "{lent}"
        );
        drop((batch, ops, mem));
        assert_settled(&ours);
        assert_settled(&theirs);
    });
}

#[test]
fn the_socket_prefers_busy_polling_only_if_the_port_text_asks() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(8192);
        let of = |text| super::queue::tests::open(text, &pool).prefers_busy_poll();
        assert_eq!((of("v0"), of("v0,busy")), (false, true));
        assert_settled(&pool);
    });
}

#[test]
fn a_receive_without_packets_polls_the_device_once_and_only_with_busy() {
    in_netns_with_xdp(|| {
        veth(1500);
        let (pool, mut packet) = (pool(8192), queue("packet:v1"));
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
        for (text, is_busy) in [("v0", false), ("v0,busy", true)] {
            let mut ops = super::queue::tests::open(text, &pool);
            let (mut empty, mut got, deadline) = (0, 0, Instant::now() + LONG);
            while got < 10 {
                assert!(Instant::now() < deadline, "{got} came");
                if empty == 3 {
                    send(&mut packet, &frames(10, 60), Offload::NONE);
                }
                let n = crate::QueueOps::rx(&mut ops, &mut mem, &mut batch, 64).packets;
                batch.clear();
                (empty, got) = (empty + u64::from(n == 0), got + n);
            }
            // Without room for packets nothing is received.
            crate::QueueOps::rx(&mut ops, &mut mem, &mut batch, 0);
            assert_eq!(ops.device_polls(), if is_busy { empty } else { 0 }, "{text}");
        }
        drop((batch, mem));
        assert_settled(&pool);
    });
}

#[test]
fn igb_is_refused_zero_copy_with_frames_whose_room_cuts_packets() {
    let cut = |driver, frame: usize| super::setup::cut_by(driver, frame - 256, 1514);
    assert!(cut("igb", 2048).unwrap().contains("writes 1024 bytes"));
    assert_eq!((cut("igb", 4096), cut("ixgbe", 2048), cut("", 2048)), (None, None, None));
}

#[test]
fn small_pool_and_missing_carrier_are_noted_when_the_port_is_opened() {
    in_netns_with_xdp(|| {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        let has = |port: &Port, what: &str| {
            port.obtained().refused.iter().any(|why| why.starts_with(what))
        };
        let few = |frames| has(&Port::open_with("xdp:v0", &pool(frames)).unwrap(), "frames: ");
        assert_eq!((few(2048), few(8192)), (true, false));
        let port = Port::open_with("xdp:v0", &pool(2048)).unwrap();
        assert!(port.obtained().to_string().contains("another port none to receive into"));
        drop(port);
        // The kernel reports a change of the carrier a moment later.
        let lacks = |port: &str| has(&Port::open(port).unwrap(), "carrier: ");
        for port in ["xdp:v0", "packet:v0"] {
            ip("link set v1 down");
            eventually(|| lacks(port));
            ip("link set v1 up");
            eventually(|| !lacks(port));
        }
    });
}
