//! Tests of generated packets: their numbers, bytes and times.

use super::queue::GenQueue;
use super::traffic::IMIX;
use super::*;
use crate::Port;
use crate::queue::{Health, QueueOps, Want};
use linerate_skb::{Batch, DropReason, Skb, Trust};
use linerate_wire::stamp;
use std::time::{Duration, Instant};

#[test]
fn frames_are_numbered_per_flow_and_verify() {
    let mut port = Port::open("gen:,size=imix,flows=3,count=24").unwrap();
    let mut batch = Batch::with_capacity(64);
    assert_eq!(port.rx(&mut batch), 24);
    for (i, skb) in batch.iter().enumerate() {
        let s = stamp::read(skb.data()).unwrap();
        assert_eq!((s.flow as usize, s.seq as usize), (i % 3, i / 3));
        assert_eq!(skb.len(), IMIX[i % 12]);
    }
    assert_eq!(port.health(), Health::Finished);
    assert_eq!(port.ledger().created, 24);
}

#[test]
fn the_descriptor_is_readable_when_a_packet_is_due() {
    let mut port = Port::open("gen:,rate=100pps").unwrap();
    let mut batch = Batch::with_capacity(8);
    let start = Instant::now();
    let mut n = 0;
    while n < 4 {
        assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
        n += port.rx(&mut batch);
    }
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(port.counts().polls_empty <= 1, "{:?}", port.counts());
}

#[test]
fn rest_of_a_burst_that_the_batch_had_no_room_for_is_not_waited_for() {
    let mut port = Port::open("gen:,rate=50kpps,burst=20").unwrap();
    let mut batch = Batch::with_capacity(8);
    while port.rx(&mut batch) < 8 {
        batch.discard(DropReason::UNSENT);
        assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
    }
    assert!(!port.arm(Want::Frames), "twelve packets are due");
}

#[test]
fn packets_of_a_burst_leave_by_one_wake_up_and_their_lateness_says_so() {
    let mut port = Port::open("gen:,rate=50kpps,burst=20,count=410").unwrap();
    assert_eq!(port.obtained().mode, "gen at 50kpps in bursts of 20");
    // With room for all, so that the packets of a late wake-up come together, too.
    let (mut batch, mut wakes) = (Batch::with_capacity(512), Vec::new());
    while port.health() != Health::Finished {
        assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
        if port.rx(&mut batch) > 0 {
            let meant = |skb: &Skb| stamp::read(skb.data()).unwrap().time_ns;
            let times: Vec<u64> = batch.iter().map(meant).collect();
            wakes.push((batch.len(), times[times.len() - 1] - times[0]));
        }
        batch.discard(DropReason::UNSENT);
    }
    // The first packet is due at once, and the rest of the last burst when its last packet is due.
    assert_eq!(wakes[0], (1, 0));
    let whole = &wakes[1..wakes.len() - 1];
    assert!(whole.iter().all(|(n, apart)| *n >= 20 && *apart >= 379_000), "{wakes:?}");
    let single = Port::open("gen:,rate=50kpps,burst=1").unwrap();
    assert_eq!(single.obtained().mode, "gen at 50kpps");
    let paced = Port::open("gen:,rate=50kpps,rate_for=1s").unwrap();
    let mode = "gen at 50kpps in bursts of up to 1 ms for 1s, then at the highest rate";
    assert_eq!(paced.obtained().mode, mode);
    assert!(Port::open("gen:,burst=8").unwrap_err().why.contains("burst needs a rate"));
}

#[test]
fn a_wait_returns_once_when_the_last_packet_was_made() {
    let mut port = Port::open("gen:,count=1").unwrap();
    assert_eq!(port.rx(&mut Batch::with_capacity(4)), 1);
    // No timeout: if the end were not reported, this would sleep without end.
    assert!(port.wait(None).unwrap());
    assert_eq!(port.health(), Health::Finished);
    assert!(!port.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(port.wait_for(Want::Room, None), Ok(true), "packets are taken after the end, too");
}

#[test]
fn a_wait_for_room_returns_at_once_because_every_packet_is_taken() {
    let mut port = Port::open("gen:,rate=1pps").unwrap();
    let mut batch = Batch::with_capacity(4);
    assert_eq!(port.rx(&mut batch), 1);
    assert_eq!(port.wait_for(Want::Room, None), Ok(true));
    assert_eq!((port.xmit(&mut batch), batch.len()), (0, 0));
    assert_eq!(port.ledger().dropped(DropReason::UNSUPPORTED), 1);
}

#[test]
fn a_packet_is_late_once_however_long_it_waits_for_a_frame() {
    let pool = Pool::builder().frames(4).build().unwrap();
    let spec = crate::parse("gen:,rate=1Mpps").unwrap();
    let mut queue = GenQueue::new(Traffic::of(&spec).unwrap(), None).unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
    assert_eq!(queue.rx(&mut mem, &mut batch, 64).packets, 1);
    std::thread::sleep(Duration::from_millis(1));
    let more: usize = (0..100).map(|_| queue.rx(&mut mem, &mut batch, 64).packets).sum();
    let pace = queue.counters().pace.unwrap();
    // The median is reported from 20 observations on.
    assert_eq!((more, pace.sent, pace.late_p50_ns), (3, 4, None));
    // At least 1001 packets are due in a millisecond.
    assert!(pace.asked > 1000 && pace.unsent == pace.asked - 4, "{pace:?}");
}

#[test]
fn late_packets_of_the_paced_time_are_made_before_unpaced_ones() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let spec = crate::parse("gen:,rate=1kpps,rate_for=20ms").unwrap();
    let mut queue = GenQueue::new(Traffic::of(&spec).unwrap(), None).unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
    assert_eq!(queue.counters().pace.map(|pace| (pace.asked, pace.unsent)), Some((0, 0)));
    assert_eq!(queue.rx(&mut mem, &mut batch, 1).packets, 1);
    // 20 packets are due in this time, the last one after 19 ms.
    std::thread::sleep(Duration::from_millis(20));
    for (budget, made, sent) in [(8, 8, 9), (32, 11, 20), (32, 32, 20)] {
        assert_eq!(queue.rx(&mut mem, &mut batch, budget).packets, made);
        let pace = queue.counters().pace.unwrap();
        assert_eq!((pace.asked, pace.sent, pace.unsent), (20, sent, 20 - sent), "{pace:?}");
    }
}

#[test]
fn a_packet_longer_than_a_frame_is_made_in_a_jumbo_frame_or_refused() {
    let pool = Pool::builder().frames(8);
    let open = |pool: &Pool| Port::open_with("gen:,size=9000", pool);
    let e = open(&pool.clone().build().unwrap()).unwrap_err();
    assert!(e.why.contains("holds 1792") && e.fix.contains("--jumbo"), "{e}");
    for pool in [pool.clone().jumbo(3, 16_384), pool.data(Data::General)] {
        let pool = pool.build().unwrap();
        let mut port = open(&pool).unwrap();
        let mut batch = Batch::with_capacity(64);
        // A batch can have as many packets as the pool has frames of that kind.
        let n = if pool.jumbo_frames() > 0 { 3 } else { 8 };
        assert_eq!((port.rx(&mut batch), port.counts().rx_nombuf), (n, 1));
        assert!(batch.iter().all(|skb| skb.is_linear() && stamp::read(skb.data()).is_ok()));
        assert_eq!(port.counts().rx_bytes, 9000 * n as u64);
    }
}

#[test]
fn in_memory_that_a_peer_writes_the_bytes_are_the_same() {
    let made = |trust| {
        let pool = Pool::builder().frames(64).jumbo(8, 16_384).trust(trust).build().unwrap();
        let frames = |text| {
            let mut port = Port::open_with(text, &pool).unwrap();
            let mut batch = Batch::with_capacity(32);
            port.rx(&mut batch);
            let bytes: usize = batch.iter().map(|skb| skb.len()).sum();
            assert_eq!(port.counts().rx_bytes, bytes as u64, "{text}");
            let copied = batch.iter().map(|skb| {
                assert_eq!((skb.trust(), skb.is_linear()), (trust, true), "{text}");
                let mut frame = vec![0; skb.len()];
                assert_eq!(skb.copy_to(0, &mut frame), frame.len());
                let stamp = stamp::read(&frame).unwrap();
                // The time in the stamp depends on the run: clear it.
                stamp::write(&mut frame, stamp.flow, stamp.seq, 0).unwrap();
                frame
            });
            copied.collect::<Vec<_>>()
        };
        ["gen:,size=imix,flows=3,count=24", "gen:,size=9000,count=5"].map(frames)
    };
    let private = made(Trust::Private);
    assert_eq!((private[0].len(), private[1].len()), (24, 5));
    assert!(private == made(Trust::Exported), "frames differ");
}

#[test]
fn packets_are_unpaced_after_the_paced_time_has_ended() {
    let mut port = Port::open("gen:,rate=10pps,rate_for=50ms").unwrap();
    assert_eq!(port.obtained().mode, "gen at 10pps for 50ms, then at the highest rate");
    let mut batch = Batch::with_capacity(64);
    assert_eq!((port.rx(&mut batch), port.rx(&mut batch)), (1, 0));
    // The second packet would be due after 100 ms.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(port.rx(&mut batch), 63);
    let numbers: Vec<u64> = batch.iter().map(|p| stamp::read(p.data()).unwrap().seq).collect();
    assert!(numbers.iter().copied().eq(0..64), "{numbers:?}");
    assert!(Port::open("gen:,rate_for=1s").unwrap_err().why.contains("rate"));
}

#[test]
fn wait_ends_with_the_paced_time_although_no_paced_packet_is_due() {
    let mut port = Port::open("gen:,rate=1pps,rate_for=50ms").unwrap();
    let mut batch = Batch::with_capacity(64);
    assert_eq!(port.rx(&mut batch), 1);
    // The second packet would be due after 1 s.
    assert!(port.wait(Some(Duration::from_millis(800))).unwrap());
    assert!(port.wait(Some(Duration::ZERO)).unwrap(), "the rate has ended, and nothing was made");
    assert_eq!(port.rx(&mut batch), 63);
}

#[test]
fn datagrams_verify_and_each_flow_has_a_port_of_its_own() {
    let target = "mac=02:00:00:00:00:09";
    for (to, from, shortest) in [
        ("192.0.2.7:7777", "192.0.2.1:65534", 70),
        ("[2001:db8::7]:7777", "[2001:db8::1]:65534", 90),
    ] {
        let text = format!("gen:,to={to},{target},from={from},flows=3,count=24,size=imix");
        let mut port = Port::open(&text).unwrap();
        let mode = format!("gen at no pause from {from} to {to} by 02:00:00:00:00:09");
        assert_eq!(port.obtained().mode, mode);
        let mut batch = Batch::with_capacity(64);
        assert_eq!(port.rx(&mut batch), 24);
        for (i, skb) in batch.iter().enumerate() {
            let s = stamp::read(skb.data()).unwrap();
            assert_eq!((s.flow as usize, s.seq as usize), (i % 3, i / 3));
            assert_eq!(skb.len(), IMIX[i % 12].max(shortest));
            let udp = linerate_wire::udp(skb.data()).unwrap();
            assert!(udp.checksum_ok() && udp.dst_addr() == to.parse().unwrap());
            assert_eq!(udp.src_port(), [65_534, 65_535, 1024][i % 3]);
        }
    }
}

#[test]
fn impossible_traffic_is_refused() {
    for text in ["gen:,size=59", "gen:,size=70k", "gen:,flows=0", "gen:,rate=1", "gen:,n=1"] {
        assert!(Port::open(text).is_err(), "{text}");
    }
    for rate in ["1001Gpps", "1000000Gbps"] {
        let e = Port::open(&format!("gen:,rate={rate}")).unwrap_err();
        assert!(e.why.contains("1e12 packets"), "{e}");
    }
}

#[test]
fn stamps_are_the_meant_times_in_both_kinds_of_memory() {
    for trust in [Trust::Private, Trust::Exported] {
        let pool = Pool::builder().frames(64).trust(trust).build().unwrap();
        let spec = crate::parse("gen:,rate=1kpps").unwrap();
        let mut queue = GenQueue::new(Traffic::of(&spec).unwrap(), None).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(3));
        queue.rx(&mut mem, &mut batch, 1);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(queue.rx(&mut mem, &mut batch, 2).packets, 2);
        let times: Vec<u64> = batch
            .iter()
            .map(|skb| {
                let mut frame = vec![0; skb.len()];
                skb.copy_to(0, &mut frame);
                stamp::read(&frame).unwrap().time_ns
            })
            .collect();
        assert_eq!(times[2] - times[0], 2_000_000, "{trust:?}");
    }
}
