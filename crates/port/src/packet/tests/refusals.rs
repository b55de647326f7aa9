//! Tests of packets that the kernel refuses for lack of room, or for themselves.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Offload, Pool, Skb};

use super::{shape, token_bucket};
use crate::doctor::is_here;
use crate::host::testing::*;
use crate::{Port, Queue, Want};

#[test]
fn superframes_wait_for_a_full_qdisc_and_none_is_lost() {
    in_netns(|| {
        veth(1500);
        if !shape("300kb") {
            return;
        }
        let mut a = queue("packet:v0");
        // Each of them takes longer than 2 ms at the rate of the token bucket.
        let frames = vec![ipv4(6, 64_000); 50];
        send(&mut a, &frames, SUPERFRAME);
        assert_eq!(a.pool().ledger().dropped_total(), 0, "{}", a.pool().ledger());
        assert_eq!(a.counts().tx_packets, 50);
    });
}

/// Offers `frames` until the kernel has taken all of them, or they were dropped, for at most 3 s;
/// returns false if the kernel drops such packets without telling.
fn offer(queue: &mut Queue, frames: &[Vec<u8>]) -> bool {
    let mut batch = Batch::with_capacity(8);
    for frame in frames {
        batch.push(queue.local().alloc_copy(frame).unwrap()).unwrap();
    }
    offer_all(queue, &mut batch)
}

/// Does as `offer`; the first packet of `batch` is one that the kernel always refuses.
fn offer_all(queue: &mut Queue, batch: &mut Batch) -> bool {
    if queue.xmit(batch) > 0 {
        eprintln!("skipped: this kernel says that it took what veth drops");
        return false;
    }
    let deadline = Instant::now() + Duration::from_secs(3);
    while !batch.is_empty() || queue.waiting() > 0 {
        let left = batch.len() + queue.waiting();
        assert!(Instant::now() < deadline, "{left} are never taken");
        queue.wait_for(Want::Room, Some(LONG)).unwrap();
        queue.xmit(batch);
    }
    true
}

#[test]
fn packets_that_the_kernel_always_drops_do_not_hold_up_the_next_one() {
    in_netns(|| {
        veth(1500);
        // The other end drops what is longer than its own MTU.
        ip("link set v1 mtu 1400");
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
        for guilty in [1, 2] {
            let before = a.pool().ledger().dropped(DropReason::WRITE_FAILED);
            let mut frames = vec![stamped(0, 1514); guilty];
            frames.push(stamped(guilty as u64, 60));
            if !offer(&mut a, &frames) {
                return;
            }
            let got = receive(&mut b, 1);
            assert_eq!(bytes(got.iter().next().unwrap()), frames[guilty]);
            let ledger = a.pool().ledger();
            assert_eq!(ledger.dropped(DropReason::WRITE_FAILED) - before, guilty as u64);
        }
        assert_eq!(a.pool().ledger().dropped_total(), 3);
        assert_eq!(a.counts().tx_packets, 2);
    });
}

#[test]
fn segments_that_the_kernel_always_drops_do_not_hold_up_the_next_packet() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let (mut a, mut b) = (queue("packet:v0,vnet=off"), queue("packet:v1"));
        let mut batch = Batch::with_capacity(8);
        let left = Offload { gso_size: 1446, ..SUPERFRAME };
        for (frame, offload) in [(ipv4(6, 2 * 1446), left), (stamped(0, 1300), Offload::NONE)] {
            let mut skb = a.local().alloc_copy(&frame).unwrap();
            skb.set_offload(offload);
            batch.push(skb).unwrap();
        }
        if offer_all(&mut a, &mut batch) {
            let got = receive(&mut b, 1);
            assert_eq!(bytes(got.iter().next().unwrap()), stamped(0, 1300));
            assert_eq!(a.pool().ledger().dropped(DropReason::WRITE_FAILED), 2);
        }
    });
}

/// Returns a batch of a packet that the kernel always refuses, and one behind it that is tried
/// after 1 s.
fn refused_and_short(queue: &mut Queue) -> Batch {
    let mut batch = Batch::with_capacity(2);
    for frame in [stamped(0, 1514), stamped(1, 60)] {
        batch.push(queue.local().alloc_copy(&frame).unwrap()).unwrap();
    }
    batch
}

#[test]
fn a_pause_between_refusals_drops_neither_the_same_packet_nor_another_one() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let mut a = queue("packet:v0");
        let mut batches = [(); 2].map(|()| refused_and_short(&mut a));
        if a.xmit(&mut batches[0]) > 0 {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        for batch in &mut batches {
            // Longer than any packet is refused before the one behind it is tried.
            std::thread::sleep(Duration::from_millis(1100));
            assert_eq!((a.xmit(batch), batch.len()), (0, 2));
        }
        assert_eq!(a.pool().ledger().dropped_total(), 0, "{}", a.pool().ledger());
    });
}

#[test]
fn refusals_of_another_packet_do_not_count_for_a_superframe() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let mut a = queue("packet:v0,bypass");
        // The superframe is longer than any device takes uncut.
        let packets = [(stamped(0, 1514), Offload::NONE), (ipv4(6, 65_536 - 54), SUPERFRAME)];
        let [mut before, mut batch] = packets.map(|(frame, offload)| {
            let mut skb = a.local().alloc_copy(&frame).unwrap();
            skb.set_offload(offload);
            let mut batch = Batch::with_capacity(1);
            batch.push(skb).unwrap();
            batch
        });
        if a.xmit(&mut before) > 0 {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        for left in [1, 0] {
            // Longer than a superframe is refused before it is dropped.
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!((a.xmit(&mut batch), batch.len()), (0, left));
        }
        assert_eq!(a.pool().ledger().dropped(DropReason::UNSUPPORTED), 1);
    });
}

/// Drops the packets of `batch` as a program does that does not wait for room, and puts a packet
/// that `make` makes into the frame that the first one had.
fn replace(queue: &mut Queue, batch: &mut Batch, make: impl Fn(&mut Queue) -> Skb) {
    let (n, handle) = (batch.len(), batch.handles()[0]);
    batch.discard_first(n, DropReason::TX_FULL, queue.local());
    let mut others = Vec::new();
    loop {
        batch.push(make(queue)).unwrap();
        if batch.handles() == [handle] {
            return;
        }
        others.extend(batch.pop());
    }
}

#[test]
fn refusals_of_a_superframe_that_was_dropped_do_not_count_for_the_next_in_its_frame() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0,bypass");
        let superframe = |queue: &mut Queue| {
            let mut skb = queue.local().alloc_copy(&ipv4(6, 65_536 - 54)).unwrap();
            skb.set_offload(SUPERFRAME);
            skb
        };
        let mut batch = Batch::with_capacity(1);
        batch.push(superframe(&mut a)).unwrap();
        assert_eq!((a.xmit(&mut batch), batch.len()), (0, 1));
        // Longer than a superframe is refused before it is dropped.
        std::thread::sleep(Duration::from_millis(10));
        replace(&mut a, &mut batch, superframe);
        assert_eq!((a.xmit(&mut batch), batch.len()), (0, 1));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!((a.xmit(&mut batch), batch.len()), (0, 0));
        assert_eq!(a.pool().ledger().dropped(DropReason::UNSUPPORTED), 1);
    });
}

#[test]
fn packet_that_two_queues_share_and_refuse_is_given_up_by_both() {
    in_netns(|| {
        veth(1500);
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut queues = [(); 2].map(|()| queue_in("packet:v0,bypass", &pool));
        let mut skb = pool.local().alloc_copy(&ipv4(6, 65_536 - 54)).unwrap();
        skb.set_offload(SUPERFRAME);
        let mut batches = [(); 2].map(|()| Batch::with_capacity(1));
        batches[0].push(skb.share().into()).unwrap();
        batches[1].push(skb).unwrap();
        for left in [1, 0] {
            for (queue, batch) in queues.iter_mut().zip(&mut batches) {
                assert_eq!((queue.xmit(batch), batch.len()), (0, left));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(pool.ledger().dropped(DropReason::UNSUPPORTED), 2);
    });
}

#[test]
fn refusals_of_a_packet_that_was_dropped_do_not_count_for_the_next_in_its_frame() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let mut a = queue("packet:v0");
        let mut batch = refused_and_short(&mut a);
        if a.xmit(&mut batch) > 0 {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        for offers in 1..16 {
            // Of each pause 100 ms count, so the second packet is tried at the eleventh offer.
            std::thread::sleep(Duration::from_millis(110));
            if offers == 8 {
                let packet = |queue: &mut Queue, len| queue.local().alloc_copy(&stamped(0, len));
                replace(&mut a, &mut batch, |queue| packet(queue, 1514).unwrap());
                batch.push(packet(&mut a, 60).unwrap()).unwrap();
            }
            assert_eq!((a.xmit(&mut batch), batch.len()), (0, 2), "{offers}");
        }
    });
}

#[test]
fn a_packet_that_is_offered_rarely_and_always_refused_is_dropped_in_the_end() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
        let mut batch = refused_and_short(&mut a);
        if a.xmit(&mut batch) > 0 {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        let mut offers = 1;
        while !batch.is_empty() {
            assert!(offers < 15, "{}", a.pool().ledger());
            // Of each pause 100 ms count, so the packet behind it is tried at the eleventh offer.
            std::thread::sleep(Duration::from_millis(110));
            a.xmit(&mut batch);
            offers += 1;
        }
        assert_eq!(a.pool().ledger().dropped(DropReason::WRITE_FAILED), 1);
        assert_eq!(bytes(receive(&mut b, 1).iter().next().unwrap()), stamped(1, 60));
    });
}

#[test]
fn time_of_a_packet_that_became_too_long_does_not_count_for_the_next_in_its_frame() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let mut a = queue("packet:v0");
        let mut batch = Batch::with_capacity(1);
        batch.push(a.local().alloc_copy(&stamped(0, 1514)).unwrap()).unwrap();
        let handle = batch.handles()[0];
        if a.xmit(&mut batch) > 0 {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        for _ in 0..12 {
            // Of each pause 100 ms count.
            std::thread::sleep(Duration::from_millis(110));
            assert_eq!((a.xmit(&mut batch), batch.len()), (0, 1));
        }
        ip("link set v0 mtu 1300");
        a.xmit(&mut batch);
        assert_eq!(a.pool().ledger().dropped(DropReason::TOO_LONG), 1);
        ip("link set v0 mtu 1500");
        let mut batch = refused_and_short(&mut a);
        assert_eq!(batch.handles()[0], handle);
        assert_eq!((a.xmit(&mut batch), batch.len()), (0, 2));
    });
}

/// Offers single packets, as `tx_batch=1` does: there is never a second one to offer.
#[test]
fn packets_that_the_kernel_always_drops_are_given_up_if_nothing_is_behind_them() {
    in_netns(|| {
        veth(1500);
        ip("link set v1 mtu 1400");
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
        let mut waits = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            if !offer(&mut a, &[stamped(0, 1514)]) {
                return;
            }
            waits.push(start.elapsed());
        }
        // The first one waits for long. On a busy machine a later one may, too, but not all of
        // them.
        let long = Duration::from_secs(2);
        assert!(waits[0] >= long && waits[1..].iter().any(|wait| *wait < long), "{waits:?}");
        assert_eq!(a.pool().ledger().dropped(DropReason::WRITE_FAILED), 5);
        send(&mut a, &[stamped(1, 60)], Offload::NONE);
        assert_eq!(receive(&mut b, 1).len(), 1);
    });
}

#[test]
fn a_qdisc_with_room_only_for_a_shorter_packet_is_waited_for() {
    in_netns(|| {
        veth(1500);
        // Each long packet takes 121 ms. While two wait there is room for a short one only.
        if !token_bucket("rate 100kbit burst 2kb limit 3200") {
            return;
        }
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1"));
        let frames: Vec<_> = (0..12).map(|i| stamped(i, [1514, 60][i as usize % 2])).collect();
        send(&mut a, &frames, Offload::NONE);
        let ledger = a.pool().ledger();
        assert_eq!(ledger.dropped_total(), 0, "{ledger}");
        assert_eq!(receive(&mut b, 12).len(), 12);
    });
}

#[test]
fn superframe_of_more_datagrams_than_a_kernel_takes_is_cut() {
    in_netns(|| {
        veth(1500);
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1,vnet=off"));
        let (gso_type, gso_size) = (5, 100);
        let udp = Offload { gso_type, gso_size, hdr_len: 42, csum_offset: 6, ..SUPERFRAME };
        send(&mut a, &[ipv4(17, 129 * 100)], udp);
        receive_if(&mut b, 129, |bytes| bytes.len() == 142);
        assert_eq!(a.pool().ledger().dropped_total(), 0, "{}", a.pool().ledger());
    });
}

#[test]
fn superframes_without_offload_headers_are_noted_with_the_command_that_prevents_them() {
    in_netns(|| {
        veth(1500);
        let (mut a, port) = (queue("packet:v0"), Port::open("packet:v1,vnet=off").unwrap());
        let refused = port.obtained().refused.concat();
        let (why, command) = refused.rsplit_once(": ").unwrap();
        assert!(why.contains("dropped as too_long") && why.contains("as one packet"), "{why}");
        assert_eq!(command, "ethtool -K v0 tso off gso off tx-udp-segmentation off");
        let mut b = port.into_queues().remove(0);
        let udp = Offload { gso_type: 5, gso_size: 500, hdr_len: 42, csum_offset: 6, ..SUPERFRAME };
        let mut sends = |payload: usize| send(&mut a, &[ipv4(17, payload)], udp);
        // The kernel has no mark for a superframe that is not longer than the MTU.
        sends(1000);
        receive_if(&mut b, 1, |bytes| bytes.len() == 1042);
        sends(3000);
        let dropped = |b: &Queue| b.pool().ledger().dropped(DropReason::TOO_LONG);
        let mut others = Batch::with_capacity(8);
        eventually(|| {
            b.rx(&mut others);
            others.clear();
            dropped(&b) == 1
        });
        if !is_here("ethtool") {
            return eprintln!("skipped in part: ethtool is not installed");
        }
        let words: Vec<&str> = command.split(' ').collect();
        let ran = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        sends(3000);
        receive_if(&mut b, 6, |bytes| bytes.len() == 542);
        assert_eq!(dropped(&b), 1);
    });
}

#[test]
fn a_port_with_offload_headers_notes_no_superframes() {
    in_netns(|| {
        veth(1500);
        ip("link set lo up");
        let noted = |text: &str| {
            let port = Port::open(text).unwrap();
            port.obtained().refused.iter().find(|why| why.starts_with("vnet: ")).cloned()
        };
        assert_eq!(noted("packet:v0"), None);
        let own = noted("packet:lo,vnet=off").unwrap();
        assert!(own.contains(": ethtool -K lo tso off gso off tx-udp-segmentation off"), "{own}");
    });
}
