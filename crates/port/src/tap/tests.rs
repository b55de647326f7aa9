//! A TAP port and the host's side of its interface, which a packet port plays.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, PacketType, Pool, Trust};
use linerate_sys::thread::{allowed_cpus, pin_to_cpu};

use crate::host::testing::*;
use crate::{Health, Port, Queue};

#[test]
fn frames_of_every_length_cross_both_ways_in_order_and_whole() {
    in_netns(|| {
        let mut tap = queue("tap:t0,up");
        ip("link set t0 mtu 9000");
        let mut host = queue("packet:t0");
        let lens = (0..400).map(|i| 60 + i * 7 % 1455).chain([9014]);
        let frames: Vec<_> = (0..).zip(lens).map(|(i, len)| stamped(i, len)).collect();
        for _ in 0..2 {
            for part in frames.chunks(100) {
                send(&mut tap, part, Offload::NONE);
                let got = receive(&mut host, part.len());
                assert!(got.iter().map(bytes).eq(part.iter().cloned()));
                assert!(got.iter().all(|skb| skb.offload() == Offload::NONE));
            }
            std::mem::swap(&mut tap, &mut host);
        }
        assert_eq!((tap.counts().tx_packets, tap.counts().rx_packets), (401, 401));
    });
}

#[test]
fn offloads_cross_between_taps_and_packet_sockets_unharmed() {
    in_netns(|| {
        let (mut a, mut b) = (queue("tap:t0,up"), queue("tap:t1,up"));
        let (mut host_a, mut host_b) = (queue("packet:t0"), queue("packet:t1,bypass"));
        for (frame, offload) in
            [(ipv4(17, 100), PARTIAL), (ipv4(6, 20_000), SUPERFRAME), (ipv4(6, 65_481), SUPERFRAME)]
        {
            // Host a -> tap a -> tap b -> host b.
            send(&mut host_a, std::slice::from_ref(&frame), offload);
            let mut got = receive_if(&mut a, 1, is_ipv4);
            assert_eq!(got.iter().next().unwrap().offload(), offload);
            assert_eq!(b.xmit(&mut got), 1);
            let got = receive_if(&mut host_b, 1, is_ipv4);
            let skb = got.iter().next().unwrap();
            assert_eq!((skb.offload(), bytes(skb) == frame), (offload, true));
        }
    });
}

#[test]
fn a_vlan_tag_stays_in_its_place() {
    in_netns(|| {
        let mut tap = queue("tap:t0,up");
        let mut host = queue("packet:t0");
        let mut frame = ipv4(17, 1400);
        frame.splice(12..12, [0x81, 0x00, 0x20, 0x05]);
        let offload = Offload { csum_start: 38, ..PARTIAL };
        send(&mut host, std::slice::from_ref(&frame), offload);
        let mut got = receive_if(&mut tap, 1, |data| data[12..14] == [0x81, 0x00]);
        let skb = got.iter().next().unwrap();
        assert_eq!((skb.offload(), bytes(skb) == frame), (offload, true));
        assert_eq!(tap.xmit(&mut got), 1);
        let got = receive_if(&mut host, 1, |data| data[12..14] == [0x81, 0x00]);
        let skb = got.iter().next().unwrap();
        assert_eq!((skb.offload(), bytes(skb) == frame), (offload, true));
    });
}

#[test]
fn the_hosts_own_stack_answers_through_it() {
    in_netns(|| {
        let mut tap = queue("tap:t0,up");
        ip("addr add 198.18.0.1/24 dev t0");
        // Who has 198.18.0.1? Tell 198.18.0.2.
        let mut question = vec![0xff; 6];
        question.extend([2, 0, 0, 0, 0, 2, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
        question.extend([2, 0, 0, 0, 0, 2, 198, 18, 0, 2]);
        question.extend([0, 0, 0, 0, 0, 0, 198, 18, 0, 1]);
        send(&mut tap, &[question], Offload::NONE);
        let is_reply = |data: &[u8]| data[12..14] == [0x08, 0x06] && data[20..22] == [0, 2];
        let got = receive_if(&mut tap, 1, is_reply);
        let skb = got.iter().next().unwrap();
        assert_eq!(skb.data()[..6], [2, 0, 0, 0, 0, 2]);
        assert_eq!(skb.data()[28..32], [198, 18, 0, 1]);
        assert_eq!(skb.packet_type(), PacketType::Host);
    });
}

#[test]
fn an_interface_that_goes_down_and_comes_back_is_followed() {
    in_netns(|| {
        let mut tap = queue("tap:t0");
        let fd = tap.as_raw_fd();
        for seq in [0, 2] {
            let frames = [stamped(seq, 60), stamped(seq + 1, 60)];
            send(&mut tap, &frames, Offload::NONE);
            assert_eq!(tap.pool().ledger().dropped(DropReason::DEVICE_DOWN), seq + 2);
            let Health::Down(e) = tap.health() else { panic!("{:?}", tap.health()) };
            assert_eq!((e.code, e.fix.as_str()), (Code::DeviceDown, "ip link set t0 up"));
            assert_silent(&mut tap, 12);
            ip("link set t0 up");
            let deadline = Instant::now() + LONG;
            while tap.health() != Health::Up {
                assert!(Instant::now() < deadline, "{:?}", tap.health());
                tap.wait(Some(Duration::from_millis(200))).unwrap();
                tap.rx(&mut Batch::with_capacity(8));
            }
            let mut host = queue("packet:t0");
            send(&mut tap, &[stamped(9, 60)], Offload::NONE);
            receive(&mut host, 1);
            assert_silent(&mut tap, 2);
            ip("link set t0 down");
        }
        assert_eq!(tap.as_raw_fd(), fd);
    });
}

#[test]
fn an_interface_that_is_deleted_fails_for_good_and_loses_no_count() {
    in_netns(|| {
        let pool = Pool::builder().frames(512).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        assert!(!tap.wait(Some(Duration::ZERO)).unwrap());
        ip("link del t0");
        let mut batch = Batch::with_capacity(8);
        while tap.health() == Health::Up {
            assert!(tap.wait(Some(LONG)).unwrap(), "nothing woke");
            tap.rx(&mut batch);
        }
        let Health::Failed(e) = tap.health() else { panic!("{:?}", tap.health()) };
        assert_eq!(e.code, Code::NoDevice);
        send(&mut tap, &[stamped(0, 60), stamped(1, 60)], Offload::NONE);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 2);
        assert_eq!(tap.rx(&mut batch), 0);
        assert_silent(&mut tap, 2);
        drop((batch, tap));
        assert_settled(&pool);
    });
}

#[test]
fn an_exhausted_pool_leaves_packets_in_the_interface_and_recovers() {
    in_netns(|| {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let mut host = queue("packet:t0");
        let frames: Vec<_> = (0..20).map(|i| stamped(i, 100)).collect();
        send(&mut host, &frames, Offload::NONE);
        let held = receive(&mut tap, 8);
        assert_silent(&mut tap, 1100);
        assert!(tap.counts().rx_nombuf > 0, "{:?}", tap.counts());
        let mut seen: Vec<_> = held.iter().map(bytes).collect();
        drop(held);
        while seen.len() < 20 {
            let got = receive(&mut tap, (20 - seen.len()).min(8));
            seen.extend(got.iter().map(bytes));
        }
        assert!(seen == frames);
        drop(tap);
        assert_settled(&pool);
        assert_eq!((pool.ledger().received, pool.ledger().created), (20, 0));
    });
}

#[test]
fn a_packet_that_finds_too_few_frames_is_dropped_and_counted() {
    in_netns(|| {
        let pool = Pool::builder().frames(4).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        ip("link set t0 mtu 9000");
        let mut host = queue("packet:t0");
        send(&mut host, &[stamped(0, 9014), stamped(1, 60)], Offload::NONE);
        assert_eq!(bytes(receive(&mut tap, 1).iter().next().unwrap()), stamped(1, 60));
        drop(tap);
        assert_settled(&pool);
        assert_eq!(pool.ledger().dropped(DropReason::NO_FRAME), 1);
    });
}

#[test]
fn frames_that_a_peer_can_write_are_exchanged_as_copies() {
    in_netns(|| {
        let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let mut host = queue("packet:t0");
        let frames: Vec<_> = (0..10).map(|i| stamped(i, 1500)).collect();
        send(&mut tap, &frames, Offload::NONE);
        assert!(receive(&mut host, 10).iter().map(bytes).eq(frames.clone()));
        send(&mut host, &frames, Offload::NONE);
        let mut got = Batch::with_capacity(10);
        while got.spare() > 0 {
            assert!(tap.wait(Some(LONG)).unwrap());
            tap.rx(&mut got);
        }
        assert!(got.iter().map(bytes).eq(frames));
        drop((got, tap));
        assert_settled(&pool);
        assert_eq!((pool.ledger().received, pool.ledger().created), (10, 10));
    });
}

#[test]
fn what_was_obtained_is_said_and_what_is_wrong() {
    in_netns(|| {
        let port = Port::open("tap:t%d").unwrap();
        let text = port.obtained().to_string();
        assert!(text.starts_with("t0 TAP created, copy, a syscall a packet, MTU 1500"), "{text}");
        assert!(text.contains("csum tso") && text.contains("down: ip link set t0 up)"), "{text}");
        assert_eq!(Port::open("tap:t0").unwrap_err().code, Code::Busy);
        ip("tuntap add p0 mode tap");
        let text = Port::open("tap:p0,up").unwrap().obtained().to_string();
        assert!(text.starts_with("p0 TAP attached") && !text.contains("down"), "{text}");
        assert!(ip("-o link show p0").contains("p0"));
    });
}

#[test]
fn flows_are_divided_among_the_queues_each_in_order_and_each_packet_once() {
    in_netns(|| {
        pin_to_cpu(allowed_cpus().unwrap()[0]).unwrap();
        let pool = Pool::builder().frames(1024).build().unwrap();
        let port = Port::open_with("tap:t0,up,queues=4", &pool).unwrap();
        assert_eq!(port.obtained().queues, 4);
        assert!(port.obtained().to_string().contains(", 4 queues"), "{}", port.obtained());
        let mut queues = port.into_queues();
        let mut host = queue("packet:t0");
        let mut seen = Seen::default();
        for seq in 0..100 {
            send(&mut host, &round(seq), Offload::NONE);
            seen.take(&mut queues);
        }
        seen.wait(&mut queues, 6400);
        seen.assert_once(100);
        seen.assert_divided(4);
        let counts: Vec<_> = queues.iter_mut().map(Queue::counts).collect();
        assert_eq!(counts.iter().map(|c| c.rx_packets).sum::<u64>(), 6400, "{counts:?}");

        // Each queue sends.
        for (seq, queue) in queues.iter_mut().enumerate() {
            send(queue, &round(seq as u32), Offload::NONE);
        }
        let mut there = Seen::default();
        there.wait(std::slice::from_mut(&mut host), 4 * usize::from(FLOWS));
        there.assert_once(4);
        drop(queues);
        assert_settled(&pool);
        assert_eq!(pool.ledger().received, 6400);
    });
}

#[test]
fn the_share_of_a_queue_that_is_closed_goes_to_the_others() {
    in_netns(|| {
        pin_to_cpu(allowed_cpus().unwrap()[0]).unwrap();
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut queues = Port::open_with("tap:t0,up,queues=4", &pool).unwrap().into_queues();
        let mut host = queue("packet:t0");
        for left in [3, 2, 1] {
            drop(queues.remove(0));
            eventually(|| ip("-d link show t0").contains(&format!("numqueues {left} ")));
            let mut seen = Seen::default();
            for seq in 0..10 {
                send(&mut host, &round(seq), Offload::NONE);
            }
            seen.wait(&mut queues, 640);
            seen.assert_once(10);
            seen.assert_divided(left);
        }
        // The interface goes with the last one.
        drop(queues);
        eventually(|| Port::open("packet:t0").is_err_and(|e| e.code == Code::NoDevice));
        assert_settled(&pool);
    });
}

#[test]
fn superframes_cross_by_every_queue() {
    in_netns(|| {
        let mut queues = Port::open("tap:t0,up,queues=2").unwrap().into_queues();
        let mut host = queue("packet:t0");
        let frame = ipv4(6, 20_000);
        for queue in &mut queues {
            send(queue, std::slice::from_ref(&frame), SUPERFRAME);
            let got = receive_if(&mut host, 1, is_ipv4);
            assert!(got.iter().all(|skb| skb.offload() == SUPERFRAME && bytes(skb) == frame));
            // The flow has been seen in this queue: that is where its answers go.
            send(&mut host, std::slice::from_ref(&frame), SUPERFRAME);
            let got = receive_if(queue, 1, is_ipv4);
            assert!(got.iter().all(|skb| skb.offload() == SUPERFRAME && bytes(skb) == frame));
        }
    });
}

#[test]
fn several_queues_and_an_interface_of_one_are_an_error_that_says_what_to_run() {
    in_netns(|| {
        ip("tuntap add s0 mode tap");
        let e = Port::open("tap:s0,queues=2").unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.fix.contains("ip tuntap add s0 mode tap multi_queue"), "{e}");
        ip("tuntap add m0 mode tap multi_queue");
        let port = Port::open("tap:m0,queues=2").unwrap();
        assert!(port.obtained().to_string().starts_with("m0 TAP attached"));
        drop(port);
        assert!(ip("-o link show m0").contains("m0"));
    });
}
