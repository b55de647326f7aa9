//! Tests of two ports on the two ends of a veth pair.

mod flow;
mod lost;
mod missed;
mod queues;
mod refusals;
mod unringed;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, PacketType};
use linerate_sys::wait::{Epoll, EventFlags, NO_EVENT, poll_readable};
use linerate_wire::checksum;

use crate::host::testing::*;
use crate::{Health, Port, Queue, Want};

#[test]
fn stamped_frames_of_every_length_cross_both_ways_in_order_and_whole() {
    in_netns(|| {
        veth(1500);
        for options in [
            "",
            ",bypass",
            ",vnet=off",
            ",bypass,vnet=off,promisc=off",
            ",retire=0",
            ",retire=0,vnet=off",
        ] {
            ip("link set v0 address 02:00:00:00:00:02");
            ip("link set v1 address 02:00:00:00:00:02");
            let mut a = queue(&format!("packet:v0{options}"));
            let mut b = queue(&format!("packet:v1{options}"));
            let frames: Vec<_> =
                (0..1000).map(|i| stamped(i, 60 + (i as usize * 7) % 1455)).collect();
            for _ in 0..2 {
                for part in frames.chunks(250) {
                    send(&mut a, part, Offload::NONE);
                    let got = receive(&mut b, part.len());
                    for (skb, frame) in got.iter().zip(part) {
                        assert!(bytes(skb) == *frame, "{options}");
                        assert_eq!(skb.packet_type(), PacketType::Host);
                        assert_eq!(skb.offload(), Offload::NONE);
                        assert!(skb.stamp_ns() > Some(1_000_000_000_000_000_000));
                    }
                }
                std::mem::swap(&mut a, &mut b);
            }
            assert_eq!(a.counts().rx_missed + b.counts().rx_missed, 0);
            assert_eq!((a.counts().tx_packets, b.counts().rx_packets), (1000, 1000));
        }
    });
}

#[test]
fn offloads_inside_a_tunnel_are_completed_before_sending() {
    in_netns(|| {
        veth(1500);
        let mut seen = queue("packet:v1");
        let datagram = ipip(ipv4(17, 100));
        send(&mut queue("packet:v0"), std::slice::from_ref(&datagram), PARTIAL.pushed(20).unwrap());
        let superframe = ipip(ipv4(6, 20_000));
        let mut sender = queue("packet:v0");
        let left = Offload { gso_size: 1000, ..SUPERFRAME }.pushed(20).unwrap();
        send(&mut sender, std::slice::from_ref(&superframe), left);
        let got = receive_if(&mut seen, 21, |data| data[26..30] == [10, 9, 0, 1]);
        let mut stream = Vec::new();
        for (i, skb) in got.iter().enumerate() {
            let packet = bytes(skb);
            assert_eq!(skb.offload(), Offload::NONE, "{i}");
            let inner = [&packet[..14], &packet[34..]].concat();
            let right = linerate_wire::udp(&inner).map(|udp| udp.checksum_ok());
            assert!(right.unwrap_or_else(|_| linerate_wire::tcp(&inner).unwrap().checksum_ok()));
            assert!(linerate_wire::ipv4(&packet).unwrap().checksum_ok(), "{i}");
            stream.extend_from_slice(if i == 0 { &[] } else { &packet[74..] });
        }
        assert!(stream == superframe[74..]);
        assert_eq!(sender.counts().tx_packets, 20);
        let pool = sender.pool().clone();
        drop((got, sender, seen));
        assert_settled(&pool);
    });
}

#[test]
fn a_superframe_behind_two_vlan_tags_loses_no_byte() {
    in_netns(|| {
        veth(1500);
        let tags = [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5];
        for (options, to) in [("", ""), (",vnet=off", ""), ("", ",retire=0")] {
            let mut a = queue(&format!("packet:v0{options}"));
            let mut b = queue(&format!("packet:v1{to}"));
            let mut frame = ipv4(6, 20_000);
            frame.splice(12..12, tags);
            send(&mut a, std::slice::from_ref(&frame), SUPERFRAME.pushed(8).unwrap());
            // With an offload header the kernel decides whether to cut it.
            let (mut stream, mut batch) = (Vec::new(), Batch::with_capacity(64));
            while stream.len() < 20_000 {
                assert!(b.wait(Some(LONG)).unwrap(), "{} bytes came{options}", stream.len());
                b.rx(&mut batch);
                for packet in batch.drain().map(|skb| bytes(&skb)) {
                    assert_eq!(packet[12..20], tags);
                    stream.extend_from_slice(&packet[62..]);
                }
            }
            assert!(stream == frame[62..]);
            assert_eq!(a.pool().ledger().dropped_total(), 0);
        }
    });
}

#[test]
fn superframe_behind_extension_headers_loses_no_byte() {
    in_netns(|| {
        veth(1500);
        for options in ["", ",vnet=off"] {
            let (mut a, mut b) = (queue(&format!("packet:v0{options}")), queue("packet:v1"));
            for (first, chain) in chains(6) {
                let (frame, start) = (ipv6(first, &chain, 6, 20_000), 54 + chain.len());
                let v6 = Offload { gso_type: 4, csum_start: 54, hdr_len: 74, ..SUPERFRAME };
                let left = Offload { gso_size: 1000, ..v6 }.pushed(chain.len()).unwrap();
                send(&mut a, std::slice::from_ref(&frame), left);
                let got = receive_if(&mut b, 20, |data| data[22..38] == [7; 16]);
                let packets: Vec<_> = got.iter().map(bytes).collect();
                assert!(packets.iter().all(|packet| packet[54..start] == chain), "{first}");
                let stream: Vec<u8> =
                    packets.iter().flat_map(|one| one[start + 20..].to_vec()).collect();
                assert!(stream == frame[start + 20..], "{first}");
            }
            assert_eq!(a.pool().ledger().dropped_total(), 0);
        }
    });
}

#[test]
fn without_offload_headers_checksums_are_filled_in_and_superframes_cut() {
    in_netns(|| {
        veth(1500);
        let (mut a, mut b) = (queue("packet:v0,vnet=off"), queue("packet:v1"));
        let frame = ipv4(17, 100);
        send(&mut a, std::slice::from_ref(&frame), PARTIAL);
        let got = receive_if(&mut b, 1, is_ipv4);
        let skb = got.iter().next().unwrap();
        assert_eq!(skb.offload(), Offload::NONE);
        let sum = checksum::sum(&skb.data()[34..]);
        assert_eq!(checksum::add(sum, pseudo(17, frame.len() - 34)), u16::MAX);
        let superframe = ipv4(6, 14 * 1448);
        send(&mut a, std::slice::from_ref(&superframe), SUPERFRAME);
        let got = receive_if(&mut b, 14, is_ipv4);
        let stream: Vec<u8> = got.iter().flat_map(|skb| bytes(skb)[54..].to_vec()).collect();
        assert!(stream == superframe[54..]);
        assert!(got.iter().all(|skb| skb.offload() == Offload::NONE));
    });
}

#[test]
fn without_offload_headers_an_unfinished_checksum_is_found_and_filled_in() {
    in_netns(|| {
        veth(1500);
        for options in ["", ",retire=0"] {
            let mut a = queue("packet:v0");
            let mut b = queue(&format!("packet:v1,vnet=off{options}"));
            let frame = ipv4(17, 100);
            // The field does not have the sum of the pseudo header.
            let mut unknown = frame.clone();
            unknown[40] ^= 1;
            send(&mut a, &[unknown, frame.clone()], PARTIAL);
            let mut got = receive_if(&mut b, 1, is_ipv4);
            assert_eq!(got.iter().next().unwrap().offload(), PARTIAL, "{options}");
            assert_eq!(b.pool().ledger().dropped(DropReason::UNSUPPORTED), 1, "{options}");
            assert_eq!(b.xmit(&mut got), 1);
            let got = receive_if(&mut a, 1, is_ipv4);
            let skb = got.iter().next().unwrap();
            let sum = checksum::add(checksum::sum(&skb.data()[34..]), pseudo(17, frame.len() - 34));
            assert_eq!((skb.offload(), sum), (Offload::NONE, u16::MAX), "{options}");
        }
    });
}

#[test]
fn without_offload_headers_a_change_of_the_mtu_is_followed_while_the_port_is_open() {
    in_netns(|| {
        for options in ["", ",retire=0"] {
            veth(1500);
            ip("link set v1 mtu 1300");
            let mut a = queue("packet:v0");
            let mut b = queue(&format!("packet:v1,vnet=off{options}"));
            // Two bytes longer than the MTU, which a veth with room for a tag delivers.
            let frame = ipv4(6, 1302 - 40);
            let offload = Offload { csum_offset: 16, ..PARTIAL };
            let mut is_cut = |b: &mut Queue| {
                send(&mut a, std::slice::from_ref(&frame), offload);
                receive_if(b, 1, is_ipv4).iter().next().unwrap().offload().is_gso()
            };
            assert!(is_cut(&mut b), "{options}");
            ip("link set v1 mtu 1400");
            let mut batch = Batch::with_capacity(64);
            eventually(|| {
                // The interface is checked at one of 1,024 receives without a packet.
                for _ in 0..1024 {
                    b.rx(&mut batch);
                    batch.clear();
                }
                !is_cut(&mut b)
            });
            ip("link del v0");
        }
    });
}

#[test]
fn packet_that_the_device_never_takes_is_dropped() {
    in_netns(|| {
        veth(1500);
        let (mut a, mut b) = (queue("packet:v0,bypass"), queue("packet:v1"));
        // The packet is longer than any device takes uncut; a qdisc would have cut it.
        send(&mut a, &[ipv4(6, 65_536 - 54)], SUPERFRAME);
        send(&mut a, &[stamped(1, 1600), vec![0; 10], stamped(2, 60)], Offload::NONE);
        assert_eq!(bytes(receive(&mut b, 1).iter().next().unwrap()), stamped(2, 60));
        let ledger = a.pool().ledger();
        assert_eq!(ledger.dropped(DropReason::UNSUPPORTED), 1, "{ledger}");
        assert_eq!(ledger.dropped(DropReason::TOO_LONG), 1, "{ledger}");
        // Ten bytes are too few for an Ethernet header.
        assert_eq!(ledger.dropped(DropReason::MALFORMED), 1, "{ledger}");
    });
}

#[test]
fn arm_returns_false_once_after_the_device_goes_down() {
    in_netns(|| {
        veth(1500);
        for options in ["", ",retire=0"] {
            ip("link set v0 up");
            let mut a = queue(&format!("packet:v0{options}"));
            assert!(a.arm(Want::Frames));
            ip("link set v0 down");
            assert!(poll_readable(&[a.as_fd()], Some(LONG)).unwrap());
            assert!(!a.arm(Want::Frames));
            assert!(matches!(a.health(), Health::Down(_)));
            assert!(a.arm(Want::Frames));
        }
    });
}

#[test]
fn a_sleeper_is_woken_soon_after_a_lone_frame() {
    in_netns(|| {
        veth(1500);
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
        // Take the best of several: on a busy machine single waits are long.
        let best = (0..5)
            .map(|i| {
                assert!(!b.wait(Some(Duration::ZERO)).unwrap());
                let start = std::thread::scope(|scope| {
                    let sender = scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(20));
                        let start = Instant::now();
                        send(&mut a, &[stamped(i, 60)], Offload::NONE);
                        start
                    });
                    assert!(b.wait(Some(LONG)).unwrap());
                    sender.join().unwrap()
                });
                let took = start.elapsed();
                receive(&mut b, 1);
                took
            })
            .min()
            .unwrap();
        assert!(best < Duration::from_millis(50), "{best:?}");
    });
}

#[test]
fn an_edge_triggered_waiter_sees_an_edge_for_each_frame_after_arm() {
    in_netns(|| {
        veth(1500);
        for text in ["packet:v1", "packet:v1,retire=0"] {
            let (mut a, mut b) = (queue("packet:v0"), queue(text));
            let outer = Epoll::new().unwrap();
            outer.add(&b, 1, EventFlags::IN | EventFlags::ET).unwrap();
            let mut events = [NO_EVENT; 1];
            for i in 0..50 {
                // As tokio does: after `arm` it clears its readiness and waits for the next edge.
                while !b.arm(Want::Frames) {
                    b.rx(&mut Batch::with_capacity(8));
                }
                let _ = outer.wait(&mut events, Some(Duration::ZERO)).unwrap();
                send(&mut a, &[stamped(i, 60)], Offload::NONE);
                assert_eq!(outer.wait(&mut events, Some(LONG)).unwrap(), 1, "{text}: frame {i}");
                receive(&mut b, 1);
            }
        }
    });
}

/// Sends by a queue that is never armed, and that its bell does not watch after several packets.
#[test]
fn queue_that_only_sends_notices_by_reap_that_its_interface_is_down_and_gone() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0");
        (0..20).for_each(|i| send(&mut a, &[stamped(i, 60)], Offload::NONE));
        for (what, is_told) in [
            (
                "link set v0 down",
                (|health| matches!(health, Health::Down(_))) as fn(&Health) -> bool,
            ),
            ("link del v0", |health| matches!(health, Health::Failed(_))),
        ] {
            ip(what);
            let start = Instant::now();
            while !is_told(&a.health()) {
                assert!(start.elapsed() < LONG, "{what}: {:?}", a.health());
                a.reap();
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}

#[test]
fn drops_of_a_full_ring_are_counted_as_missed() {
    in_netns(|| {
        veth(1500);
        for text in ["packet:v1,ring=512KiB", "packet:v1,ring=512KiB,retire=0"] {
            let (mut a, mut b) = (queue("packet:v0"), queue(text));
            let frames: Vec<_> = (0..2000).map(|i| stamped(i, 1514)).collect();
            send(&mut a, &frames, Offload::NONE);
            let mut batch = Batch::with_capacity(64);
            while b.wait(Some(Duration::from_millis(20))).unwrap() {
                b.rx(&mut batch);
                batch.clear();
            }
            let counts = b.counts();
            assert!(counts.rx_missed > 0 && counts.rx_packets > 0, "{text}: {counts:?}");
            assert_eq!(counts.rx_missed + counts.rx_packets, 2000, "{text}");
        }
    });
}

#[test]
fn obtained_settings_are_reported() {
    in_netns(|| {
        veth(1500);
        let flow = "MTU 1500, vnet_hdr, only tcp=80+443, reserved, fanout hash, 2 queues";
        let ring = "TPACKET_V3";
        for (options, longest, how, said) in [
            ("", 65_550, ring, "MTU 1500, vnet_hdr, promiscuous"),
            (",vnet=off,promisc=off,bypass", 1522, ring, "MTU 1500, qdisc bypass"),
            (",tcp=443+80,queues=2", 65_550, ring, flow),
            (",retire=0", 65_550, "without a ring", "MTU 1500, vnet_hdr, promiscuous"),
        ] {
            let port = Port::open(&format!("packet:v0{options}")).unwrap();
            let expected = format!("v0 AF_PACKET {how}, copy, {said}");
            let obtained = port.obtained().to_string();
            assert_eq!(obtained.split(" (vnet: ").next().unwrap(), expected);
            assert_eq!(port.obtained().refused.len(), usize::from(options.contains("vnet=off")));
            assert_eq!(port.obtained().packet_max_bytes, longest);
        }
    });
}

#[test]
fn a_ring_gathers_for_its_retire_time_and_a_port_without_a_ring_does_not() {
    in_netns(|| {
        veth(1500);
        for (options, gathers) in [("", Duration::from_millis(1)), (",retire=0", Duration::ZERO)] {
            let spec = crate::parse(&format!("packet:v0{options}")).unwrap();
            let opened = super::setup::open(&super::Config::of(&spec).unwrap()).unwrap();
            assert_eq!(opened.queues[0].caps().rx_gathers.time, gathers, "{options}");
        }
    });
}

#[test]
fn an_interface_that_cannot_be_opened_is_an_error_with_the_remedy() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        ip("tuntap add mode tun name n0");
        ip("link set n0 up");
        for (text, code, why, fix) in [
            ("packet:none0", Code::NoDevice, "No such device", "ip -br link"),
            ("packet:none0,vnet=off", Code::NoDevice, "No such device", "ip -br link"),
            ("packet:v0", Code::DeviceDown, "is down", "ip link set v0 up"),
            ("packet:n0", Code::Unsupported, "no Ethernet header", "link/ether"),
            ("packet:sixteen-bytes-ab", Code::PortSyntax, "16 bytes", "ip -br link"),
        ] {
            let e = Port::open(text).unwrap_err();
            assert_eq!(e.code, code, "{text}: {e}");
            assert!(e.why.contains(why) && e.fix.contains(fix), "{text}: {e}");
        }
    });
}

/// Shapes v0 by a token bucket of 200 Mbit/s with a queue of `limit` bytes; returns false if the
/// machine lacks something for this.
fn shape(limit: &str) -> bool {
    token_bucket(&format!("rate 200mbit burst 256kb limit {limit}"))
}

/// Shapes v0 by a token bucket; returns false if the machine lacks something for this.
fn token_bucket(args: &str) -> bool {
    adds_qdisc(&format!("dev v0 root tbf {args}"))
}

#[test]
fn a_full_send_buffer_is_waited_for_without_a_spurious_wake_up() {
    in_netns(|| {
        veth(1500);
        if !shape("32mb") {
            return;
        }
        let mut a = queue("packet:v0");
        let mut batch = Batch::with_capacity(64);
        let deadline = Instant::now() + LONG;
        while batch.is_empty() {
            assert!(Instant::now() < deadline, "it takes everything");
            a.alloc(&mut batch, 64);
            for skb in batch.iter_mut() {
                assert!(skb.put_slice(&stamped(0, 1514)));
            }
            a.xmit(&mut batch);
        }
        assert!(!a.wait_for(Want::Room, Some(Duration::from_millis(1))).unwrap());
        let before = a.counts().wakeups;
        while !batch.is_empty() {
            assert!(a.wait_for(Want::Room, Some(LONG)).unwrap(), "nothing woke");
            a.xmit(&mut batch);
        }
        assert!(a.counts().wakeups - before <= 2, "{:?}", a.counts());
        assert_eq!(a.pool().ledger().dropped_total(), 0);
    });
}

#[test]
fn room_is_told_to_an_edge_triggered_waiter_that_only_receives() {
    in_netns(|| {
        for with_packet in [false, true] {
            veth(1500);
            // The buffer is half empty after two seconds, and then has room.
            if !token_bucket("rate 8mbit burst 16kb limit 32mb") {
                return;
            }
            let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
            let outer = Epoll::new().unwrap();
            outer.add(&a, 1, EventFlags::IN | EventFlags::ET).unwrap();
            let (mut events, mut batch) = ([NO_EVENT; 1], Batch::with_capacity(64));
            let deadline = Instant::now() + LONG;
            while batch.is_empty() || !a.arm(Want::Both) {
                assert!(Instant::now() < deadline, "it takes everything");
                let spare = batch.spare();
                a.alloc(&mut batch, spare);
                for skb in batch.iter_mut().filter(|skb| skb.is_empty()) {
                    assert!(skb.put_slice(&stamped(0, 1514)));
                }
                a.xmit(&mut batch);
            }
            let _ = outer.wait(&mut events, Some(Duration::ZERO)).unwrap();
            if with_packet {
                send(&mut b, &[stamped(1, 60)], Offload::NONE);
                assert_eq!(outer.wait(&mut events, Some(LONG)).unwrap(), 1, "for the packet");
            }
            // Without the token bucket its packets are dropped.
            let args = ["qdisc", "del", "dev", "v0", "root"];
            assert!(std::process::Command::new("tc").args(args).status().unwrap().success());
            assert_eq!(outer.wait(&mut events, Some(LONG)).unwrap(), 1, "for the room");
            let (mut got, deadline) = (Batch::with_capacity(8), Instant::now() + LONG);
            a.rx(&mut got);
            while with_packet && got.is_empty() {
                assert!(Instant::now() < deadline, "the packet is not there");
                a.rx(&mut got);
            }
            assert!(!a.arm(Want::Both), "it sleeps beside room; with a packet: {with_packet}");
            drop((a, b, got));
            ip("link del v0");
        }
    });
}

#[test]
fn a_full_qdisc_holds_packets_back_and_loses_none() {
    in_netns(|| {
        veth(1500);
        if !shape("300kb") {
            return;
        }
        // Use a ring that holds half a second of such frames, in case the reader gets no CPU.
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1,ring=64MiB"));
        let mut frames: Vec<_> = (0..2000).map(|i| stamped(i, 1514)).collect();
        let got = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&mut b, 2000));
            send(&mut a, &frames, Offload::NONE);
            receiver.join().unwrap()
        });
        let (here, there) = (a.counts(), b.counts());
        assert_eq!((got.len(), there.rx_missed), (2000, 0), "{here:?} {there:?}");
        // Accept any order: the qdisc's timer sends from another CPU than this thread, and veth
        // delivers on both.
        let mut got: Vec<_> = got.iter().map(bytes).collect();
        got.sort_unstable();
        frames.sort_unstable();
        assert!(got == frames);
        assert_eq!(a.pool().ledger().dropped_total(), 0);
    });
}

#[test]
fn an_interface_without_a_carrier_does_not_hold_packets_for_ever() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0,bypass");
        ip("link set v1 down");
        let mut batch = Batch::with_capacity(2);
        for seq in 0..2 {
            batch.push(a.local().alloc_copy(&stamped(seq, 60)).unwrap()).unwrap();
        }
        // A carrier that is lost for a moment costs no packet.
        let refused = Instant::now();
        assert_eq!((a.xmit(&mut batch), batch.len()), (0, 2));
        while !batch.is_empty() {
            assert!(refused.elapsed() < LONG, "{}", a.pool().ledger());
            a.wait_for(Want::Room, Some(LONG)).unwrap();
            a.xmit(&mut batch);
        }
        assert!(refused.elapsed() >= Duration::from_millis(100), "{:?}", refused.elapsed());
        assert_eq!(a.pool().ledger().dropped(DropReason::DEVICE_DOWN), 2);
        assert_eq!(a.health(), Health::Up);
    });
}

#[test]
fn stamps_have_the_fractions_of_a_second() {
    in_netns(|| {
        veth(1500);
        let (mut near, mut far) = (queue("packet:v0"), queue("packet:v1"));
        let fractions: Vec<u64> = (0..3)
            .map(|seq| {
                send(&mut near, &[stamped(seq, 60)], Offload::NONE);
                let got = receive(&mut far, 1);
                got.iter().next().unwrap().stamp_ns().unwrap() % 1_000_000_000
            })
            .collect();
        assert!(fractions.iter().any(|ns| *ns != 0), "{fractions:?}");
    });
}
