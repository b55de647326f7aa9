//! Tests of a TAP port, with a packet port as the host's side of its interface.

use linerate_skb::{Batch, Code, DropReason, Offload, PacketType, Pool, Trust};
use linerate_wire::checksum;

use crate::host::testing::*;
use crate::{Health, Obtained, Port, Want};

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
fn obtained_settings_and_problems_are_reported() {
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
fn tap_that_is_opened_again_waits_for_a_descriptor_that_is_closed_late() {
    in_netns(|| {
        for text in ["tap:t0", "tap:t1,queues=2"] {
            assert_waits_for_close(|| Port::open(text));
        }
    });
}

#[test]
fn the_share_of_a_queue_that_is_closed_goes_to_the_others() {
    in_netns(|| {
        if !stays_on_one_cpu() {
            return;
        }
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
        // The interface is removed with its last queue.
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
            // The kernel has seen the flow in this queue, so it sends the answers there.
            send(&mut host, std::slice::from_ref(&frame), SUPERFRAME);
            let got = receive_if(queue, 1, is_ipv4);
            assert!(got.iter().all(|skb| skb.offload() == SUPERFRAME && bytes(skb) == frame));
        }
    });
}

#[test]
fn without_offload_headers_every_packet_is_complete_in_both_directions() {
    in_netns(|| {
        for text in ["tap:t0,up,vnet=off", "tap:t0,up,vnet=off,queues=2"] {
            let mut queues = Port::open(text).unwrap().into_queues();
            let mut host = queue("packet:t0");
            let (datagram, superframe) = (ipv4(17, 100), ipv4(6, 14 * 1448));
            for tap in &mut queues {
                // Each queue sends first, so that the kernel sends the answers of its flow to it.
                send(tap, std::slice::from_ref(&datagram), PARTIAL);
                assert_is_complete(&receive_if(&mut host, 1, is_ipv4), &datagram);
                send(tap, std::slice::from_ref(&superframe), SUPERFRAME);
                assert_are_segments(&receive_if(&mut host, 14, is_ipv4), &superframe);
                send(&mut host, std::slice::from_ref(&datagram), PARTIAL);
                assert_is_complete(&receive_if(tap, 1, is_ipv4), &datagram);
                send(&mut host, std::slice::from_ref(&superframe), SUPERFRAME);
                assert_are_segments(&receive_if(tap, 14, is_ipv4), &superframe);
                assert_eq!(tap.pool().ledger().dropped_total(), 0);
            }
            drop((queues, host));
            eventually(|| Port::open("packet:t0").is_err_and(|e| e.code == Code::NoDevice));
        }
    });
}

/// Asserts that the datagram arrived with its checksum.
fn assert_is_complete(got: &Batch, frame: &[u8]) {
    let skb = got.iter().next().unwrap();
    let sum = checksum::add(checksum::sum(&skb.data()[34..]), pseudo(17, frame.len() - 34));
    assert_eq!((skb.offload(), sum, skb.len()), (Offload::NONE, u16::MAX, frame.len()));
}

/// Asserts that the superframe arrived in segments, each with its checksum.
fn assert_are_segments(got: &Batch, superframe: &[u8]) {
    let stream: Vec<u8> = got.iter().flat_map(|skb| bytes(skb)[54..].to_vec()).collect();
    assert!(stream == superframe[54..]);
    for skb in got.iter() {
        let segment = bytes(skb);
        let sum = checksum::add(checksum::sum(&segment[34..]), pseudo(6, segment.len() - 34));
        assert_eq!((skb.offload(), sum), (Offload::NONE, u16::MAX));
    }
}

#[test]
fn without_offload_headers_the_longest_packet_is_that_of_the_mtu_and_longer_ones_pass() {
    in_netns(|| {
        ip("tuntap add p0 mode tap");
        ip("link set p0 mtu 9000");
        let needs = |text| crate::registry::plan(text).unwrap().needs().unwrap().packet_max_bytes;
        for (text, expected) in
            [("tap:p0,vnet=off", 9022), ("tap:p0", 65_550), ("tap:t0,vnet=off", 1522)]
        {
            assert_eq!(needs(text), expected, "{text}");
            let port = Port::open(text).unwrap();
            let Obtained { packet_max_bytes, mode, refused, .. } = port.obtained();
            assert_eq!(*packet_max_bytes, expected, "{text}");
            assert_eq!(mode.contains("vnet_hdr"), !text.contains("vnet=off"), "{mode}");
            assert_eq!(refused.len(), 1, "only that it is down: {refused:?}");
        }
        let mut tap = queue("tap:t0,up,vnet=off");
        ip("link set t0 mtu 9000");
        let mut host = queue("packet:t0");
        let frame = stamped(1, 9014);
        send(&mut host, std::slice::from_ref(&frame), Offload::NONE);
        assert_eq!(bytes(receive(&mut tap, 1).iter().next().unwrap()), frame);
        send(&mut tap, std::slice::from_ref(&frame), Offload::NONE);
        assert_eq!(bytes(receive(&mut host, 1).iter().next().unwrap()), frame);
        assert_eq!(tap.pool().ledger().dropped(DropReason::TOO_LONG), 0);
    });
}

#[test]
fn an_empty_pool_starves_the_port_only_while_a_packet_waits() {
    in_netns(|| {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let (mut mem, mut kept) = (pool.local(), Batch::with_capacity(64));
        while mem.alloc(&mut kept, 8) > 0 {}
        let mut batch = Batch::with_capacity(8);
        for _ in 0..2 {
            assert_eq!(tap.rx(&mut batch), 0);
            assert_eq!((tap.health(), tap.counts().rx_nombuf), (Health::Up, 0));
            assert!(tap.arm(Want::Frames), "nothing waits");
        }
        send(&mut queue("packet:t0"), &[stamped(1, 60)], Offload::NONE);
        eventually(|| {
            tap.rx(&mut batch);
            matches!(tap.health(), Health::Starved(_))
        });
        assert!(tap.counts().rx_nombuf > 0);
        kept.clear();
        drop(mem);
        assert_eq!(bytes(receive(&mut tap, 1).iter().next().unwrap()), stamped(1, 60));
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

#[test]
fn broadcasts_and_multicasts_are_marked() {
    for trust in [Trust::Private, Trust::Exported] {
        in_netns(move || {
            let pool = Pool::builder().frames(64).trust(trust).build().unwrap();
            let (mut tap, mut host) = (queue_in("tap:t0,up", &pool), queue("packet:t0"));
            let to = |first| [&[first][..], &ipv4(17, 20)[1..]].concat();
            let mut broadcast = ipv4(17, 20);
            broadcast[..6].fill(0xff);
            let frames = [to(2), to(3), broadcast];
            send(&mut host, &frames, Offload::NONE);
            let (mut batch, mut kinds) = (Batch::with_capacity(64), Vec::new());
            eventually(|| {
                tap.rx(&mut batch);
                let ours = batch.drain().filter(|skb| frames.contains(&bytes(skb)));
                kinds.extend(ours.map(|skb| skb.packet_type()));
                kinds.len() == 3
            });
            let expected = [PacketType::Host, PacketType::Multicast, PacketType::Broadcast];
            assert_eq!(kinds, expected, "{trust:?}");
        });
    }
}

#[test]
fn the_last_frame_of_a_pool_that_a_peer_can_write_takes_a_packet() {
    in_netns(|| {
        let pool = Pool::builder().frames(8).trust(Trust::Exported).build().unwrap();
        let (mut tap, mut host) = (queue_in("tap:t0,up", &pool), queue("packet:t0"));
        let (mut mem, mut kept) = (pool.local(), Batch::with_capacity(64));
        while mem.alloc(&mut kept, 8) > 0 {}
        drop(kept.pop());
        let frame = stamped(1, 1000);
        send(&mut host, std::slice::from_ref(&frame), Offload::NONE);
        let mut batch = Batch::with_capacity(1);
        eventually(|| {
            assert_eq!(pool.ledger().dropped(DropReason::NO_FRAME), 0, "a frame was free");
            tap.rx(&mut batch) == 1
        });
        assert_eq!(batch.iter().map(bytes).collect::<Vec<_>>(), [frame]);
        drop((batch, kept, mem, tap));
        assert_settled(&pool);
    });
}
