//! Tests superframes in front of a rate: cut into segments, or whole.

use linerate_port::Port;
use linerate_skb::{Offload, Trust};

use super::*;

/// A packet that left: its source, its number in the stream, its length in bytes, and the time in
/// µs.
type Gone = (u8, u32, usize, u64);

/// Returns a superframe of TCP from host `src`, with `payload` bytes in segments of `gso_size`.
fn superframe(mem: &mut Local, src: u8, payload: usize, gso_size: u16) -> Skb {
    let mut frame = vec![0; 54 + payload];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, src, 10, 0, 0, 200]);
    frame[46] = 0x50;
    let mut skb = mem.alloc_copy(&frame).unwrap();
    let (flags, gso_type) = (Offload::NEEDS_CHECKSUM, Offload::GSO_TCPV4);
    let (hdr_len, csum_start, csum_offset) = (54, 34, 16);
    let offload = Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset };
    assert!(skb.set_offload(offload) && skb.set_hash(u32::from(src) << 29));
    skb
}

/// Returns all frames of the pool but `left`.
fn frames_but(left: usize, mem: &mut Local) -> Batch {
    let mut taken = Batch::with_capacity(1024);
    mem.alloc(&mut taken, 1024);
    taken.truncate_to(taken.len() - left, mem);
    taken
}

fn put<Q: Qdisc>(bench: &mut Bench<Q>, skb: Skb) {
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(skb).is_ok());
    bench.qdisc.enqueue(&mut batch, 1, bench.now(), &mut bench.mem);
    assert!(batch.is_empty());
}

fn put_superframe<Q: Qdisc>(bench: &mut Bench<Q>, src: u8, payload: usize, gso_size: u16) {
    let skb = superframe(&mut bench.mem, src, payload, gso_size);
    put(bench, skb);
}

/// Returns the packets that leave, each at its time.
fn leave<Q: Qdisc>(bench: &mut Bench<Q>) -> Vec<Gone> {
    let (mut out, mut gone) = (Batch::with_capacity(512), Vec::new());
    loop {
        bench.qdisc.dequeue(&mut out, ALL, bench.now(), &mut bench.mem);
        let now_us = bench.now_ns / 1000;
        gone.extend(out.iter().map(|skb| {
            let mut number = [0; 4];
            assert_eq!(skb.copy_to(38, &mut number), 4);
            (skb.data()[29], u32::from_be_bytes(number), skb.len(), now_us)
        }));
        out.consume(&mut bench.mem);
        if !bench.wait() {
            return gone;
        }
    }
}

fn lengths(gone: &[Gone]) -> Vec<usize> {
    gone.iter().map(|(.., bytes, _)| *bytes).collect()
}

#[test]
fn superframe_at_a_low_rate_leaves_as_segments_in_order_and_spaced_by_the_rate() {
    // A byte in a microsecond, bursts of 2000 bytes.
    let mut bench = Bench::new(Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(9))));
    put_superframe(&mut bench, 1, 4500, 1000);
    bench.check();
    let all = Moved { packets: 5, bytes: 4500 + 5 * 54 };
    assert_eq!(bench.qdisc.counts().queued, all);
    assert_eq!(bench.pool.ledger().consumed, 1, "the superframe");
    let gone = leave(&mut bench);
    let segments = [
        (1, 0, 1054, 0),
        (1, 1000, 1054, 108),
        (1, 2000, 1054, 1162),
        (1, 3000, 1054, 2216),
        (1, 4000, 554, 2770),
    ];
    assert_eq!(gone, segments);
    assert_eq!((bench.qdisc.counts().enqueued, bench.qdisc.counts().dequeued), (all, all));
    bench.check();
}

#[test]
fn superframe_that_takes_no_longer_than_a_millisecond_and_than_the_burst_stays_whole() {
    for (bps, burst, whole, segments) in [
        (8_000_000, Some(2000_u64), 1000, 2),
        (100_000_000, None, 12_500, 23),
        (1_000_000_000, Some(1500), 1500, 3),
    ] {
        for (bytes, packets) in [(whole, 1), (whole + 1, segments)] {
            let mut bench = Bench::new(Tbf::new(bps, burst, Fifo::new(Limit::packets(99))));
            put_superframe(&mut bench, 1, bytes - 54 * segments, 500);
            bench.check();
            let held = bench.qdisc.counts().queued.packets;
            assert_eq!(held, packets, "{bytes} bytes at {bps} bit/s");
            assert_eq!(leave(&mut bench).len(), packets);
        }
    }
    // The longest that Linux sends by default.
    let mut bench = Bench::new(Tbf::new(1_000_000_000, None::<u64>, Fifo::new(Limit::packets(9))));
    put_superframe(&mut bench, 1, 65_495, 1448);
    assert_eq!(lengths(&leave(&mut bench)), [65_549]);
}

#[test]
fn packet_of_another_flow_passes_between_the_segments_of_a_superframe() {
    let qdisc = Tbf::new(8_000_000, 2000, codel(Limit::packets(99), 5000));
    let mut bench = Bench::new(qdisc);
    put_superframe(&mut bench, 1, 20_000, 1000);
    // One segment leaves at once, and another one waits for tokens.
    assert_eq!(bench.take_all().len(), 1);
    let mut ping = udp(&mut bench.mem, 2, 200, 9, 100);
    assert!(ping.set_hash(2 << 29));
    put(&mut bench, ping);
    let gone = leave(&mut bench);
    assert_eq!(gone.len(), 20);
    let (src, _, bytes, at_us) = gone[1];
    assert_eq!((src, bytes, at_us), (2, 100, 208), "{gone:?}");
    let numbers: Vec<u32> = gone.iter().filter(|gone| gone.0 == 1).map(|gone| gone.1).collect();
    assert!(numbers.iter().copied().eq((1..20_u32).map(|n| n * 1000)), "{numbers:?}");
    bench.check();
}

#[test]
fn superframe_stays_whole_and_is_counted_so_if_the_pool_has_too_few_frames() {
    let mut bench = Bench::new(Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(9))));
    let skb = superframe(&mut bench.mem, 1, 4500, 1000);
    // Two of the five frames.
    let mut taken = frames_but(2, &mut bench.mem);
    put(&mut bench, skb);
    let counts = bench.qdisc.counts();
    let whole = Moved { packets: 1, bytes: 4554 };
    assert_eq!((counts.enqueued, counts.queued), (whole, whole));
    let mut free = Batch::with_capacity(9);
    assert_eq!(bench.mem.alloc(&mut free, 9), 2, "the frames of the first segments are back");
    free.consume(&mut bench.mem);
    taken.consume(&mut bench.mem);
    bench.check();
    put_superframe(&mut bench, 1, 4500, 1000);
    assert_eq!(bench.qdisc.counts().queued.packets, 6);
    assert_eq!(lengths(&leave(&mut bench)), [4554, 1054, 1054, 1054, 1054, 554]);
    bench.check();
}

#[test]
fn superframe_whose_segments_are_longer_than_the_burst_stays_whole_and_leaves() {
    let mut bench = Bench::new(Tbf::new(8_000_000, 1053, Fifo::new(Limit::packets(9))));
    put_superframe(&mut bench, 1, 4500, 1000);
    assert_eq!(lengths(&leave(&mut bench)), [4554]);
    assert_eq!(bench.dropped(DropReason::TOO_LONG), 0);
    bench.check();
}

#[test]
fn limit_of_packets_counts_the_segments_of_a_superframe() {
    let mut bench = Bench::new(Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(3))));
    put_superframe(&mut bench, 1, 4500, 1000);
    bench.check();
    let counts = bench.qdisc.counts();
    assert_eq!((counts.enqueued.packets, counts.queued.packets), (5, 3));
    assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 2);
    assert_eq!(bench.take_all().len(), 1);
    bench.qdisc.purge(DropReason::STOPPED, &mut bench.mem);
    bench.check();
    assert_eq!(bench.dropped(DropReason::STOPPED), 2);
}

#[test]
fn packets_around_a_superframe_stay_in_order_and_those_that_were_not_given_stay() {
    let mut bench = Bench::new(Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(9))));
    let mut batch = Batch::with_capacity(4);
    for bytes in [100, 0, 200, 300] {
        let mem = &mut bench.mem;
        let skb = if bytes > 0 { udp(mem, 1, 2, 3, bytes) } else { superframe(mem, 1, 1500, 1000) };
        assert!(batch.push(skb).is_ok());
    }
    bench.qdisc.enqueue(&mut batch, 3, bench.now(), &mut bench.mem);
    assert_eq!(batch.iter().map(Skb::len).collect::<Vec<_>>(), [300]);
    batch.consume(&mut bench.mem);
    bench.check();
    assert_eq!(lengths(&leave(&mut bench)), [100, 1054, 554, 200]);
}

#[test]
fn superframe_in_memory_that_a_peer_can_write_is_cut_too() {
    let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    let (mut mem, now) = (pool.local(), Instant::now());
    let mut qdisc = Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(9)));
    let (mut batch, mut out) = (Batch::with_capacity(1), Batch::with_capacity(9));
    assert!(batch.push(superframe(&mut mem, 1, 4500, 1000)).is_ok());
    qdisc.enqueue(&mut batch, 1, now, &mut mem);
    qdisc.dequeue(&mut out, ALL, now, &mut mem);
    qdisc.dequeue(&mut out, ALL, now + Duration::from_secs(1), &mut mem);
    let mut bytes = [0; 2000];
    for skb in out.iter() {
        assert!(skb.data().is_empty() && skb.offload() == Offload::NONE);
        let n = skb.copy_to(0, &mut bytes);
        assert!(linerate_wire::tcp(&bytes[..n]).unwrap().checksum_ok());
    }
    assert!(out.len() > 1);
    qdisc.purge(DropReason::STOPPED, &mut mem);
}

#[test]
fn shaped_port_sends_a_superframe_as_segments() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, mut b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(20))));
    let (mut mem, now) = (pool.local(), Instant::now());
    let (mut batch, mut got) = (Batch::with_capacity(1), Batch::with_capacity(8));
    assert!(batch.push(superframe(&mut mem, 1, 4500, 1000)).is_ok());
    assert_eq!(port.xmit(&mut batch, now), 1);
    assert_eq!((port.counts().queued.packets, batch.len()), (4, 0));
    let due = Duration::from_micros(108);
    assert_eq!(port.timeout(now), Some(due));
    assert_eq!((port.xmit(&mut batch, now + due), b.rx(&mut got)), (1, 2));
    assert!(got.iter().all(|skb| skb.len() == 1054 && skb.tcp().unwrap().checksum_ok()));
}

#[test]
fn whole_superframe_counts_with_the_headers_of_all_its_segments() {
    // 12.5 bytes in a microsecond: up to 12,500 bytes stay whole.
    let mut bench = Bench::new(Tbf::new(100_000_000, 20_000, Fifo::new(Limit::packets(99))));
    for src in 0..4 {
        put_superframe(&mut bench, src, 7802, 90);
    }
    let short = udp(&mut bench.mem, 9, 200, 9, 1000);
    put(&mut bench, short);
    let gone = leave(&mut bench);
    // 87 segments, 12,500 bytes together.
    assert_eq!(lengths(&gone), [7856, 7856, 7856, 7856, 1000]);
    let times = gone.iter().map(|(.., at_us)| *at_us).collect::<Vec<_>>();
    assert_eq!(times, [0, 400, 1400, 2400, 2480]);
    let bytes = 4 * 7856 + 1000;
    assert_eq!(bench.qdisc.counts().dequeued, Moved { packets: 5, bytes });
    bench.check();
}

/// Returns the time in µs at which a flow of `FlowTbf` is served that is due at `due_us`: in the
/// next slot of the wheel.
fn slot_us(due_us: u64) -> u64 {
    (due_us * 1000 / 16_384 + 1) * 16_384 / 1000
}

#[test]
fn superframe_of_a_slow_flow_leaves_as_segments_in_order_and_spaced_by_the_rate() {
    // A byte in a microsecond for each flow, bursts of 2000 bytes.
    let mut bench = Bench::new(FlowTbf::new(Key::Connection, 8_000_000, 2000, 9));
    put_superframe(&mut bench, 1, 4500, 1000);
    bench.check();
    let all = Moved { packets: 5, bytes: 4500 + 5 * 54 };
    assert_eq!((bench.qdisc.counts().queued, bench.qdisc.flows()), (all, 1));
    assert_eq!(bench.pool.ledger().consumed, 1, "the superframe");
    let segments = [
        (1, 0, 1054, 0),
        (1, 1000, 1054, slot_us(108)),
        (1, 2000, 1054, slot_us(1162)),
        (1, 3000, 1054, slot_us(2216)),
        (1, 4000, 554, slot_us(2770)),
    ];
    assert_eq!(leave(&mut bench), segments);
    assert_eq!((bench.qdisc.counts().enqueued, bench.qdisc.counts().dequeued), (all, all));
    bench.check();
}

#[test]
fn whole_superframe_of_a_flow_counts_with_the_headers_of_all_its_segments() {
    // 12.5 bytes in a microsecond for each flow: up to 12,500 bytes stay whole.
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 100_000_000, 20_000, 9));
    for src in [1, 1, 2, 1] {
        put_superframe(&mut bench, src, 7802, 90);
    }
    let short = udp(&mut bench.mem, 1, 200, 9, 1000);
    put(&mut bench, short);
    let gone = leave(&mut bench);
    let sent: Vec<_> = gone.iter().map(|gone| (gone.0, gone.2, gone.3)).collect();
    // 87 segments, 12,500 bytes together.
    let expected = [
        (1, 7856, 0),
        (2, 7856, 0),
        (1, 7856, slot_us(400)),
        (1, 7856, slot_us(1400)),
        (1, 1000, slot_us(1480)),
    ];
    assert_eq!(sent, expected);
    let bytes = 4 * 7856 + 1000;
    assert_eq!(bench.qdisc.counts().dequeued, Moved { packets: 5, bytes });
    bench.check();
}

#[test]
fn whole_superframe_longer_than_the_burst_of_a_flow_leaves_and_its_flow_waits_for_the_debt() {
    // The segments are longer than the burst, and the superframe counts with 4770 bytes.
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1053, 9));
    put_superframe(&mut bench, 1, 4500, 1000);
    for src in [1, 2] {
        let skb = udp(&mut bench.mem, src, 200, 9, 300);
        put(&mut bench, skb);
    }
    let gone = leave(&mut bench);
    let sent: Vec<_> = gone.iter().map(|gone| (gone.0, gone.2, gone.3)).collect();
    let due_us = 4770 - 1053 + 300;
    assert_eq!(sent, [(1, 4554, 0), (2, 300, 0), (1, 300, slot_us(due_us))]);
    assert_eq!(bench.dropped(DropReason::TOO_LONG), 0);
    bench.check();
}

#[test]
fn limit_of_a_flow_counts_the_segments_of_a_superframe() {
    let qdisc = FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9).limits(Limit::packets(99), 3);
    let mut bench = Bench::new(qdisc);
    put_superframe(&mut bench, 1, 4500, 1000);
    bench.check();
    let counts = bench.qdisc.counts();
    assert_eq!((counts.enqueued.packets, counts.queued.packets), (5, 3));
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 2);
    assert_eq!(lengths(&leave(&mut bench)), [1054; 3]);
}

#[test]
fn packets_around_a_superframe_of_their_flow_stay_in_order_and_too_long_ones_are_dropped() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9));
    let mut batch = Batch::with_capacity(40);
    // The superframe is not among the 32 packets that are looked up first.
    for bytes in [60; 33].into_iter().chain([0, 2001, 200, 300]) {
        let mem = &mut bench.mem;
        let skb = if bytes > 0 { udp(mem, 1, 2, 3, bytes) } else { superframe(mem, 1, 1500, 1000) };
        assert!(batch.push(skb).is_ok());
    }
    bench.qdisc.enqueue(&mut batch, 36, bench.now(), &mut bench.mem);
    assert_eq!(batch.iter().map(Skb::len).collect::<Vec<_>>(), [300]);
    batch.consume(&mut bench.mem);
    bench.check();
    assert_eq!(bench.dropped(DropReason::TOO_LONG), 1);
    let expected: Vec<usize> = [60; 33].into_iter().chain([1054, 554, 200]).collect();
    assert_eq!(lengths(&leave(&mut bench)), expected);
}

#[test]
fn superframe_in_front_of_a_full_discipline_is_not_cut() {
    let limit = Limit::packets(3);
    let full: [Box<dyn Qdisc>; 2] = [Box::new(Fifo::new(limit)), Box::new(PfifoFast::new(limit))];
    for inner in full {
        let mut bench = Bench::new(Tbf::new(8_000_000, 2000, inner));
        for _ in 0..2 {
            put_superframe(&mut bench, 1, 4500, 1000);
        }
        bench.check();
        let counts = bench.qdisc.counts();
        assert_eq!((counts.enqueued.packets, counts.queued.packets), (5 + 1, 3));
        assert_eq!(bench.pool.ledger().consumed, 1, "only the first one is cut");
        assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 2 + 1);
        assert_eq!(lengths(&leave(&mut bench)), [1054; 3]);
    }
}

#[test]
fn superframe_in_front_of_a_discipline_with_less_room_than_a_segment_is_not_cut() {
    // Three segments of 1054 bytes fit, and then 38 bytes.
    let limit = Limit::packets(99).and_bytes(3200);
    let of_flows = FlowTbf::new(Key::SrcIp, 1_000_000_000, 9000, 9).limits(limit, 99);
    let full: [Box<dyn Qdisc>; 4] = [
        Box::new(Tbf::new(8_000_000, 2000, Fifo::new(limit))),
        Box::new(Tbf::new(8_000_000, 2000, PfifoFast::new(limit))),
        Box::new(Tbf::new(8_000_000, 2000, of_flows)),
        Box::new(FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9).limits(limit, 99)),
    ];
    for (i, qdisc) in full.into_iter().enumerate() {
        let mut bench = Bench::new(qdisc);
        put_superframe(&mut bench, 1, 4500, 1000);
        let cut = bench.qdisc.counts();
        // By flows, one flow leaves room for others.
        let held = if i < 2 { 3 } else { cut.queued.packets };
        assert_eq!((cut.enqueued.packets, cut.queued.packets), (5, held), "{i}");
        put_superframe(&mut bench, 1, 4500, 1000);
        bench.check();
        assert_eq!(bench.qdisc.counts().enqueued.packets, 5 + 1, "{i}: it is not cut");
    }
}

#[test]
fn superframe_of_a_flow_that_is_full_is_dropped_uncut() {
    let qdisc = FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9).limits(Limit::packets(99), 3);
    let mut bench = Bench::new(qdisc);
    for _ in 0..2 {
        put_superframe(&mut bench, 1, 4500, 1000);
    }
    bench.check();
    let counts = bench.qdisc.counts();
    assert_eq!((counts.enqueued.packets, counts.queued.packets), (5 + 1, 3));
    assert_eq!((bench.pool.ledger().consumed, bench.dropped(DropReason::FLOW_LIMIT)), (1, 2 + 1));
    assert_eq!(lengths(&leave(&mut bench)), [1054; 3]);
}

#[test]
fn superframe_is_dropped_uncut_if_other_flows_have_all_room() {
    let qdisc = FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9).limits(Limit::packets(3), 3);
    let mut bench = Bench::new(qdisc);
    for src in 1..=3 {
        put_superframe(&mut bench, src, 0, 1000);
    }
    let created = bench.pool.ledger().created;
    put_superframe(&mut bench, 4, 4500, 1000);
    bench.check();
    assert_eq!(bench.pool.ledger().created, created + 1, "only the superframe itself");
    assert_eq!(bench.qdisc.counts().dropped.packets, 1);
}

#[test]
fn superframe_of_a_flow_stays_whole_if_the_pool_has_too_few_frames() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 9));
    let skb = superframe(&mut bench.mem, 1, 4500, 1000);
    let mut taken = frames_but(2, &mut bench.mem);
    put(&mut bench, skb);
    taken.consume(&mut bench.mem);
    bench.check();
    assert_eq!(lengths(&leave(&mut bench)), [4554]);
}

#[test]
fn flow_that_has_not_paid_for_its_superframe_is_evicted_after_those_that_have() {
    // The segments are longer than the burst: each superframe leaves whole, and takes 4770 us to
    // pay.
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1053, 2));
    for src in [1, 2] {
        put_superframe(&mut bench, src, if src == 1 { 4500 } else { 0 }, 1000);
    }
    assert_eq!(bench.take_all().len(), 2);
    for src in [3, 1] {
        let skb = udp(&mut bench.mem, src, 200, 9, 300);
        put(&mut bench, skb);
    }
    let sent: Vec<_> = leave(&mut bench).iter().map(|gone| (gone.0, gone.3)).collect();
    assert_eq!(sent, [(3, 0), (1, slot_us(4770 - 1053 + 300))], "flow 2 was evicted, and 1 waits");
    bench.check();
}
