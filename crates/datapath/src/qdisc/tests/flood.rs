//! Tests fair queueing against a sender with very many flows, and a rate for each source against
//! several senders.

use super::*;

/// Fair queueing to 65536 queues, of which each packet's hash names one.
struct Flood(Bench<FqCodel>);

impl Flood {
    fn new(limit: usize) -> Flood {
        let limit = Limit::packets(limit);
        let config = FqCodelConfig { limit, flows: 1 << 16, ..FqCodelConfig::default() };
        Flood(Bench::new(FqCodel::new(config)))
    }

    /// Enqueues a packet in queue number `queue`; returns the number of packets dropped for it.
    fn put(&mut self, queue: u16) -> usize {
        let Flood(Bench { qdisc, mem, start, .. }) = self;
        let (mut batch, before) = (Batch::with_capacity(1), qdisc.counts().dropped.packets);
        let mut skb = udp(mem, 1, 2, queue, 100);
        assert!(skb.set_hash(u32::from(queue) << 16) && batch.push(skb).is_ok());
        qdisc.enqueue(&mut batch, 1, *start, mem);
        let dropped = qdisc.counts().dropped.packets - before;
        self.0.check();
        dropped
    }
}

#[test]
fn all_queues_are_searched_once_for_many_packets_of_many_flows() {
    let mut flood = Flood::new(640);
    let drops: Vec<usize> = (0..900).map(|queue| flood.put(queue)).collect();
    // Each packet above the limit displaces one packet; a search of all queues serves ten of them.
    assert!(drops.iter().enumerate().all(|(n, dropped)| *dropped == usize::from(n >= 640)));
    assert_eq!(flood.0.qdisc.searches(), 26);
}

#[test]
fn flow_that_sends_on_loses_before_flows_with_a_packet_each_also_without_a_search() {
    let mut flood = Flood::new(640);
    let drops: usize = (0..645).map(|queue| flood.put(queue)).sum();
    assert_eq!((drops, flood.0.qdisc.searches()), (5, 1));
    // The queues from 5 on have a packet each. Four packets join the one of queue 600, and one of
    // that queue is dropped for each.
    let drops: usize = (0..4).map(|_| flood.put(600)).sum();
    assert_eq!((drops, flood.0.qdisc.searches()), (4, 1));
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    let mut out = Batch::with_capacity(1024);
    qdisc.dequeue(&mut out, ALL, *start, mem);
    let mut queues: Vec<u32> = out.iter().map(|skb| skb.hash().unwrap() >> 16).collect();
    queues.sort_unstable();
    assert!(queues.iter().copied().eq(5..645), "{queues:?}");
    out.consume(mem);
}

#[test]
fn queues_of_the_same_length_take_turns_to_lose() {
    let mut flood = Flood::new(64);
    let drops: usize = (0..64).chain([64, 0, 1, 2]).map(|queue| flood.put(queue)).sum();
    assert_eq!(drops, 4);
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    let mut out = Batch::with_capacity(128);
    qdisc.dequeue(&mut out, ALL, *start, mem);
    let mut queues: Vec<u32> = out.iter().map(|skb| skb.hash().unwrap() >> 16).collect();
    queues.sort_unstable();
    // The packets of queues 0 to 3 were dropped in turn, and the first three queues sent again.
    assert!(queues.iter().copied().eq((0..3).chain(4..65)), "{queues:?}");
    out.consume(mem);
}

#[test]
fn flow_with_many_packets_loses_all_that_a_search_drops() {
    let mut flood = Flood::new(959);
    // A 64th of all packets is more than half of the longest queue.
    let sum: usize = [0; 20].into_iter().chain(1..=940).map(|queue| flood.put(queue)).sum();
    assert_eq!(sum, 15);
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    let mut out = Batch::with_capacity(1024);
    qdisc.dequeue(&mut out, ALL, *start, mem);
    let of_many = out.iter().filter(|skb| skb.hash() == Some(0)).count();
    assert_eq!((of_many, out.len()), (5, 945));
    out.consume(mem);
}

#[test]
fn flow_that_grew_below_the_limit_after_a_search_loses_before_a_sparse_one() {
    let mut flood = Flood::new(640);
    assert_eq!((0..641).map(|queue| flood.put(queue)).sum::<usize>(), 1);
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    let mut out = Batch::with_capacity(1024);
    qdisc.dequeue(&mut out, ALL, *start, mem);
    out.consume(mem);
    // One flow fills the queues to the limit, and another one sends a packet.
    assert_eq!((0..640).map(|_| flood.put(1000)).sum::<usize>(), 0);
    assert!(flood.put(2000) > 0);
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    qdisc.dequeue(&mut out, ALL, *start, mem);
    assert!(out.iter().any(|skb| skb.hash().unwrap() >> 16 == 2000), "the sparse flow lost");
    out.consume(mem);
}

#[test]
fn floods_of_several_sources_leave_room_for_one_within_its_rate() {
    // A byte in a microsecond for each source: the floods send twice as much, the other one half.
    let qdisc = FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 32).limits(Limit::packets(256), 64);
    let (mut bench, mut left) = (Bench::new(qdisc), 0);
    for _ in 0..200 {
        bench.put((1..=16).flat_map(|flow| [(flow, 500); 4]));
        bench.put([(100, 500)]);
        bench.now_ns += 1_000_000;
        left += bench.take_all().iter().filter(|(flow, ..)| *flow == 100).count();
    }
    assert_eq!(left, 200, "it loses nothing");
    assert!(bench.dropped(DropReason::FLOW_LIMIT) > 1000);
    assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 0);
}

#[test]
fn floods_of_long_packets_leave_bytes_for_another_source() {
    // The floods reach the limit of bytes long before that of packets.
    let limit = Limit::packets(1000).and_bytes(64_000);
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 32).limits(limit, 64));
    bench.put((1..=16).flat_map(|flow| [(flow, 1000); 4]));
    bench.put([(100, 500)]);
    // The last flood loses two packets, which would leave less room than the flood has taken.
    assert_eq!(bench.qdisc.counts().queued, Moved { packets: 63, bytes: 62_500 });
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 2);
    assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 0);
}

#[test]
fn flow_alone_holds_half_of_the_bytes_for_all() {
    let limit = Limit::packets(1000).and_bytes(10_000);
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000, 1000, 9).limits(limit, 64));
    bench.put([(1, 500); 20]);
    // The tenth packet comes to 4500 bytes when 5000 are left with it; the next one to 5000 when
    // 4500 are left.
    assert_eq!(bench.qdisc.counts().queued, Moved { packets: 10, bytes: 5000 });
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 10);
}

#[test]
fn new_flow_is_not_dropped_behind_a_run_of_flows_that_hold_packets() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000, 1000, 64));
    // The first 40 flows hold a packet each, the others none.
    bench.put((0..40).flat_map(|flow| [(flow, 600); 2]).chain((40..64).map(|flow| (flow, 600))));
    assert_eq!((bench.take_all().len(), bench.qdisc.counts().queued.packets), (64, 40));
    bench.put((64..84).map(|flow| (flow, 600)));
    assert_eq!((bench.dropped(DropReason::FLOW_LIMIT), bench.qdisc.counts().evicted), (0, 20));
}

#[test]
fn the_only_flow_without_packets_is_found() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000, 1000, 64));
    let packets = |flow: u8| if flow == 40 { 1 } else { 2 };
    bench.put((0..64).flat_map(|flow| vec![(flow, 600); packets(flow)]));
    assert_eq!((bench.take_all().len(), bench.qdisc.counts().queued.packets), (64, 63));
    bench.put([(64, 600)]);
    assert_eq!((bench.dropped(DropReason::FLOW_LIMIT), bench.qdisc.counts().evicted), (0, 1));
}
