//! Tests of a TAP port, with a packet port as the host's side of its interface.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, PacketType, Pool, Trust};
use linerate_wire::checksum;

use super::*;
use crate::doctor::Level;
use crate::host::PACKET_BYTES_MAX;
use crate::host::testing::*;
use crate::{Health, Obtained, Port};

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
            assert_eq!(queue.driver_counts().doorbells, Some(1));
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
        // The descriptor is readable meanwhile, and the caller is not woken by it but once a
        // millisecond.
        let (mut turns, start) = (0, Instant::now());
        while start.elapsed() < Duration::from_millis(50) {
            tap.wait(Some(LONG)).unwrap();
            tap.rx(&mut batch);
            turns += 1;
        }
        assert!(turns <= 100, "{turns} wake-ups in 50 ms");
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
        // Its driver does not report them, but the kernel lists them.
        let interface = linerate_sys::netif::Interface::open("m0").unwrap();
        assert_eq!(interface.rx_queues().unwrap(), 2);
        assert!(port.obtained().to_string().starts_with("m0 TAP attached"));
        drop(port);
        assert!(ip("-o link show m0").contains("m0"));
    });
}

#[test]
fn tun_interface_is_refused_as_one_with_the_commands_that_make_a_tap() {
    in_netns(|| {
        ip("tuntap add u0 mode tun");
        let e = Port::open("tap:u0").unwrap_err();
        assert_eq!(
            (e.code, &*e.why),
            (Code::Busy, "it is a TUN interface, whose packets have no Ethernet header")
        );
        let commands = "ip tuntap del u0 mode tun && ip tuntap add u0 mode tap";
        assert!(e.fix.ends_with(commands), "{e}");
        for command in commands.split(" && ") {
            ip(command.trim_start_matches("ip "));
        }
        assert!(Port::open("tap:u0").is_ok());
    });
}

#[test]
fn needs_and_properties_of_a_port_are_those_of_a_tap() {
    let plan = Tap.parse(&Spec::parse("tap:t0,queues=4", &["tap"]).unwrap()).unwrap();
    let needs = plan.needs().unwrap();
    assert_eq!((needs.queues, needs.packet_max_bytes), (4, PACKET_BYTES_MAX));
    assert_eq!(needs.capabilities, Capabilities::NET_ADMIN);
    assert!(Tap.flags().interface);
    in_netns(|| {
        let pool = Pool::builder().frames(64).build().unwrap();
        let Opened { queues, obtained } = crate::registry::open("tap:t0,queues=2", &pool).unwrap();
        let caps = queues[0].caps();
        assert_eq!((obtained.queues, caps.copies), (2, Copies::Always));
        assert!(ip("-o link show t0").contains(&obtained.mac.unwrap().to_string()), "{obtained}");
        // Linux has superframes of UDP from 6.2 on, and only a kernel before it is named.
        let has_all = obtained.mode.contains(" csum tso uso");
        let gso = if has_all { TxOffload::Untunnelled } else { TxOffload::UntunnelledTcp };
        assert_eq!((caps.checksum, caps.gso), (TxOffload::Untunnelled, gso));
        assert_eq!(obtained.refused.iter().any(|why| why.starts_with("offloads")), !has_all);
    });
}

#[test]
fn packets_come_by_a_copy_into_memory_that_a_peer_may_write() {
    in_netns(|| {
        let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let frames = [stamped(1, 60), stamped(2, 1400)];
        send(&mut queue("packet:t0"), &frames, Offload::NONE);
        let mut got = Batch::with_capacity(2);
        eventually(|| {
            tap.rx(&mut got);
            got.len() == 2
        });
        assert!(got.iter().map(bytes).eq(frames));
        let ledger = pool.ledger();
        let ends = [ledger.consumed, ledger.dropped_total()];
        assert_eq!((ledger.received, ledger.in_flight, ends), (2, 2, [0, 0]), "{ledger}");
    });
}

#[test]
fn a_packet_that_the_pool_cannot_hold_is_dropped_as_too_long() {
    in_netns(|| {
        let pool = Pool::builder().frames(16).frame_size(256).headroom(192).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let frames = [stamped(1, pool.packet_max_bytes() + 1), stamped(2, 60)];
        send(&mut queue("packet:t0"), &frames, Offload::NONE);
        assert_eq!(bytes(receive(&mut tap, 1).iter().next().unwrap()), frames[1]);
        let ledger = pool.ledger();
        assert_eq!((ledger.received, ledger.dropped(DropReason::TOO_LONG)), (2, 1), "{ledger}");
        drop(tap);
        assert_settled(&pool);
    });
}

#[test]
fn packets_to_an_interface_that_is_down_are_dropped_as_such_without_a_system_call() {
    in_netns(|| {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut tap = queue_in("tap:t0", &pool);
        assert!(matches!(tap.health(), Health::Down(_)));
        send(&mut tap, &[stamped(1, 60), stamped(2, 60)], Offload::NONE);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 2, "{}", pool.ledger());
        assert_eq!(tap.driver_counts().doorbells, Some(0));
    });
}

#[test]
fn an_examination_leaves_an_interface_as_it_is_and_says_what_has_its_name() {
    in_netns(|| {
        let examined = |text: &str, how| {
            let spec = Spec::parse(text, &["tap"]).unwrap();
            let mut found = Findings::default();
            Tap.parse(&spec).unwrap().examine(&spec, how, &mut found);
            let found = found.into_vec();
            assert_eq!(found.len(), 1, "{found:#?}");
            let why = found[0].why.clone().unwrap_or_default();
            (found[0].level, format!("{}: {why}", found[0].what))
        };
        ip("link add d0 type veth peer name d1");
        for (text, words) in [
            ("tap:lo", "lo is no TAP: another interface has that name"),
            ("tap:d0", "d0 is no TAP: an interface of kind veth has that name"),
        ] {
            assert_eq!(examined(text, Trial::Full), (Level::Miss, words.to_owned()));
        }
        ip("tuntap add p0 mode tap");
        let (level, words) = examined("tap:p0,up", Trial::Careful);
        assert_eq!(
            (level, words.starts_with("p0 exists, and was not opened: ")),
            (Level::Warn, true)
        );
        let (level, words) = examined("tap:p0,up", Trial::Full);
        assert_eq!(
            (level, words.starts_with("opens: p0 TAP attached")),
            (Level::Ok, true),
            "{words}"
        );
        assert!(!ip("-o link show p0").contains(",UP"), "it was set up");
        let (level, words) = examined("tap:t0,up", Trial::Careful);
        assert_eq!(
            (level, words.starts_with("opens: t0 TAP created")),
            (Level::Ok, true),
            "{words}"
        );
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
            let frames = [to(2), to(3), to(0xff), broadcast];
            send(&mut host, &frames, Offload::NONE);
            let (mut batch, mut kinds) = (Batch::with_capacity(64), Vec::new());
            eventually(|| {
                tap.rx(&mut batch);
                let ours = batch.drain().filter(|skb| frames.contains(&bytes(skb)));
                kinds.extend(ours.map(|skb| skb.packet_type()));
                kinds.len() == 4
            });
            let multicast = PacketType::Multicast;
            let expected = [PacketType::Host, multicast, multicast, PacketType::Broadcast];
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

#[test]
fn packets_that_find_the_queue_full_are_missed_with_their_cause() {
    in_netns(|| {
        ip("tuntap add t0 mode tap");
        ip("link set t0 txqueuelen 64");
        let pool = Pool::builder().frames(256).build().unwrap();
        let mut tap = queue_in("tap:t0,up", &pool);
        let mut host = queue("packet:t0");
        let frames: Vec<_> = (0..128).map(|seq| stamped(seq, 60)).collect();
        assert_eq!(tap.counts().rx_missed, 0);
        send(&mut host, &frames, Offload::NONE);
        let (counts, causes) = (tap.counts(), tap.driver_counts());
        // The host's own packets, such as its search for routers, may have taken places, too.
        assert!((64..80).contains(&counts.rx_missed), "{counts:?}");
        // On a busy machine this thread may have waited for a CPU.
        assert_eq!(causes.missed_ring_full + causes.missed_no_cpu, counts.rx_missed, "{causes:?}");
        let missed = counts.rx_missed;
        // Those that waited are read, and an empty pool is another cause.
        let mut batch = Batch::with_capacity(256);
        while tap.rx(&mut batch) > 0 {}
        let mut kept = Batch::with_capacity(256);
        while tap.local().alloc(&mut kept, 256) > 0 {}
        send(&mut host, &frames, Offload::NONE);
        assert_eq!(tap.rx(&mut Batch::with_capacity(8)), 0);
        let (counts, causes) = (tap.counts(), tap.driver_counts());
        assert!(causes.missed_no_frame >= 64 && counts.rx_nombuf > 0, "{counts:?}, {causes:?}");
        assert_eq!(causes.missed_no_frame, counts.rx_missed - missed);
        // The interface's counter goes with it; the port's count stays.
        ip("link del t0");
        assert_eq!(tap.counts().rx_missed, counts.rx_missed);
    });
}

#[test]
fn the_first_of_several_queues_counts_what_the_interface_lost() {
    in_netns(|| {
        ip("tuntap add t0 mode tap multi_queue");
        ip("link set t0 txqueuelen 16");
        let pool = Pool::builder().frames(256).build().unwrap();
        let mut taps = Port::open_with("tap:t0,up,queues=2", &pool).unwrap().into_queues();
        let frames: Vec<_> = (0..64).map(|seq| stamped(seq, 60)).collect();
        send(&mut queue("packet:t0"), &frames, Offload::NONE);
        let [first, second] = [0, 1].map(|i| (taps[i].counts().rx_missed, taps[i].driver_counts()));
        assert!((32..64).contains(&first.0) && second.0 == 0, "{first:?}, {second:?}");
        assert_eq!((first.1.missed_ring_full, first.1.missed_no_cpu), (first.0, 0));
    });
}
