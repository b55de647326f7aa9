//! Tests properties of every discipline, and the use of each one.

mod bound;
mod boxed;
mod codel;
mod exported;
mod extremes;
mod flood;
mod shaped;
mod superframes;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use linerate_port::Views;
use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb};
use proptest::prelude::*;

use super::*;

const ALL: Moved = Moved { packets: usize::MAX, bytes: u64::MAX };
/// Length in bytes of a packet's headers and its number.
const LEAST: usize = 46;

/// Returns a UDP packet of `bytes`, from host `src` to `dst` and from port 1 to `port`; ECT(0),
/// without a checksum of its own.
pub(super) fn udp(mem: &mut Local, src: u8, dst: u8, port: u16, bytes: usize) -> Skb {
    let mut frame = vec![0; bytes.max(LEAST)];
    let len = frame.len() as u16;
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 2]);
    frame[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, src, 10, 0, 0, dst]);
    let check = !linerate_wire::checksum::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame[34..36].copy_from_slice(&1u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    mem.alloc_copy(&frame).unwrap()
}

/// A discipline with its clock, and the packets that passed it.
struct Bench<Q> {
    qdisc: Q,
    pool: Pool,
    mem: Local,
    start: Instant,
    now_ns: u64,
    numbers: HashMap<u8, u32>,
}

/// A packet that left: its flow, its number in the flow, and its length in bytes.
type Left = (u8, u32, usize);

impl<Q: Qdisc> Bench<Q> {
    fn new(qdisc: Q) -> Bench<Q> {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let (mem, start) = (pool.local(), Instant::now());
        Bench { qdisc, pool, mem, start, now_ns: 0, numbers: HashMap::new() }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.now_ns)
    }

    /// Enqueues a packet of each given flow, numbered within the flow; the flow is also the
    /// packet's priority.
    fn put(&mut self, packets: impl IntoIterator<Item = (u8, usize)>) {
        let mut batch = Batch::with_capacity(1024);
        for (flow, bytes) in packets {
            let number = self.numbers.entry(flow).or_default();
            let mut skb = udp(&mut self.mem, flow, 200, 9, bytes);
            skb.copy_from(42, &number.to_be_bytes());
            assert!(skb.set_priority(flow.into()));
            // With eight queues, flows 1 and 2 have one each, and some of the flows after 7 share
            // one.
            assert!(flow > 7 || skb.set_hash(u32::from(flow) << 29));
            *number += 1;
            assert!(batch.push(skb).is_ok());
        }
        let n = batch.len();
        self.qdisc.enqueue(&mut batch, n, self.now(), &mut self.mem);
        assert!(batch.is_empty());
        self.check();
    }

    fn take(&mut self, most: Moved) -> Vec<Left> {
        let mut out = Batch::with_capacity(512);
        let moved = self.qdisc.dequeue(&mut out, most, self.now(), &mut self.mem);
        assert_eq!(moved, out.count_first(512));
        let left = |skb: &Skb| {
            let mut number = [0; 4];
            assert_eq!(skb.copy_to(42, &mut number), 4);
            (skb.data()[29], u32::from_be_bytes(number), skb.len())
        };
        let left = out.iter().map(left).collect();
        out.consume(&mut self.mem);
        self.check();
        left
    }

    fn take_all(&mut self) -> Vec<Left> {
        self.take(ALL)
    }

    /// Sets the clock to the next deadline; returns false if no packet is held.
    fn wait(&mut self) -> bool {
        let Some(at) = self.qdisc.deadline() else { return false };
        self.now_ns = self.now_ns.max((at - self.start).as_nanos() as u64);
        true
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.pool.ledger().dropped(reason)
    }

    /// Checks that no packet is lost or invented, in the counts and in the pool's ledger.
    fn check(&self) {
        let counts = self.qdisc.counts();
        let mut sum = counts.dequeued;
        sum += counts.dropped;
        sum += counts.queued;
        assert_eq!(counts.enqueued, sum);
        let ledger = self.pool.ledger();
        assert_eq!((ledger.in_flight, ledger.difference()), (counts.queued.packets as u64, 0));
        assert_eq!(ledger.dropped_total(), counts.dropped.packets as u64);
        assert_eq!(self.qdisc.deadline().is_some(), counts.queued.packets > 0);
    }
}

fn codel(limit: Limit, target_us: u64) -> FqCodel {
    FqCodel::new(FqCodelConfig {
        limit,
        flows: 8,
        target: Duration::from_micros(target_us),
        interval: Duration::from_micros(20 * target_us),
        ecn: target_us.is_multiple_of(2),
        ..FqCodelConfig::default()
    })
}

/// Returns a discipline of each kind, with limits that the test reaches.
fn any_qdisc(which: usize) -> Box<dyn Qdisc> {
    let limit = Limit::packets(20).and_bytes(9000);
    match which {
        0 => Box::new(Fifo::new(limit)),
        1 => Box::new(PfifoFast::new(limit)),
        2 => Box::new(codel(limit, 100)),
        3 => Box::new(codel(limit, 101)),
        4 => Box::new(Tbf::new(50_000_000, 1200, Fifo::new(limit))),
        5 => Box::new(Tbf::new(50_000_000, 3000, codel(limit, 100))),
        6 => Box::new(FlowTbf::new(Key::SrcIp, 20_000_000, 1400, 4).limits(limit, 6)),
        _ => Box::new(FlowTbf::new(Key::Connection, 1_000_000_000, 9000, 100).limits(limit, 20)),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<(u8, usize)>),
    Take(usize, u64),
    Sleep(u64),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec((0u8..10, LEAST..1515), 1..12).prop_map(Step::Put),
        (0usize..9, prop_oneof![Just(u64::MAX), 0u64..4000]).prop_map(|(n, b)| Step::Take(n, b)),
        (0u64..3_000_000).prop_map(Step::Sleep),
        Just(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn nothing_is_lost_and_each_flow_stays_in_order(
        which in 0usize..8, steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut bench = Bench::new(any_qdisc(which));
        let mut last = HashMap::new();
        for step in steps {
            match step {
                Step::Put(packets) => bench.put(packets),
                Step::Sleep(ns) => bench.now_ns += ns,
                Step::Wait => {
                    bench.wait();
                }
                Step::Take(packets, bytes) => {
                    let left = bench.take(Moved { packets, bytes });
                    prop_assert!(left.len() <= packets);
                    let before: usize = left.iter().rev().skip(1).map(|(.., bytes)| bytes).sum();
                    prop_assert!(left.is_empty() || (before as u64) < bytes);
                    for (flow, number, _) in left {
                        let before = last.insert(flow, number);
                        prop_assert!(before.is_none_or(|before| before < number), "flow {flow}");
                    }
                }
            }
        }
        bench.qdisc.purge(DropReason::STOPPED, &mut bench.mem);
        bench.check();
        prop_assert_eq!(bench.qdisc.counts().queued, Moved::default());
    }

    /// The rate is not exceeded over any window, to the bit, and packets are sent as soon as it
    /// allows.
    #[test]
    fn tbf_sends_at_its_rate_and_never_above(
        bps in prop_oneof![1_000u64..100_000_000, 1_000_000_000..=RATE_MAX_BPS],
        burst in 1514u64..20_000,
        sizes in prop::collection::vec(LEAST..1515, 2..100),
        late_ns in prop::collection::vec(0u64..2_000_000, 1..20),
    ) {
        let mut bench = Bench::new(Tbf::new(bps, burst, Fifo::new(Limit::packets(200))));
        bench.put(sizes.iter().map(|bytes| (1, *bytes)));
        let (mut sent, mut late) = (Vec::new(), late_ns.iter().cycle());
        while bench.wait() {
            let left = bench.take_all();
            sent.extend(left.into_iter().map(|(.., bytes)| (bench.now_ns, bytes as u128)));
            bench.now_ns += late.next().unwrap();
        }
        prop_assert_eq!(sent.len(), sizes.len());
        for from in 0..sent.len() {
            let mut bytes = 0;
            for (at, more) in &sent[from..] {
                bytes += more;
                let time = u128::from(at - sent[from].0);
                let allowed = time * u128::from(bps) + u128::from(burst) * 8_000_000_000;
                prop_assert!(bytes * 8_000_000_000 <= allowed, "{bytes} bytes in {time} ns");
            }
        }
    }

    /// Served at its deadlines, the whole series takes the time that the rate implies, to the
    /// nanosecond.
    #[test]
    fn tbf_does_not_drift(bps in 1_000u64..=RATE_MAX_BPS, sizes in prop::collection::vec(LEAST..1515, 9..300)) {
        // A packet and a nanosecond's bytes: a bucket that is not quite full when a packet is due
        // never overflows.
        let burst = 1514 + 1250;
        let mut bench = Bench::new(Tbf::new(bps, burst, Fifo::new(Limit::packets(300))));
        bench.put(sizes.iter().map(|bytes| (1, *bytes)));
        let mut total: u128 = 0;
        while bench.wait() {
            total += bench.take_all().iter().map(|(.., bytes)| *bytes as u128).sum::<u128>();
        }
        let missing = (total - u128::from(burst).min(total)) * 8_000_000_000;
        let exact = missing.div_ceil(u128::from(bps));
        prop_assert_eq!(u128::from(bench.now_ns), exact);
    }

    /// Served as late as packets may gather, the series takes no longer than the last packets
    /// gathered.
    #[test]
    fn tbf_loses_no_rate_while_packets_gather(
        bps in 1_000_000u64..=RATE_MAX_BPS,
        burst in 1514u64..200_000,
        sizes in prop::collection::vec(LEAST..1515, 9..300),
    ) {
        let mut bench = Bench::new(Tbf::new(bps, burst, Fifo::new(Limit::packets(300))));
        bench.put(sizes.iter().map(|bytes| (1, *bytes)));
        let (mut total, mut wakes) = (0u128, 0);
        while let Some(at) = bench.qdisc.latest() {
            prop_assert!(bench.qdisc.deadline().is_some_and(|due| due <= at));
            bench.now_ns = bench.now_ns.max((at - bench.start).as_nanos() as u64);
            total += bench.take_all().iter().map(|(.., bytes)| *bytes as u128).sum::<u128>();
            wakes += 1;
        }
        let missing = (total - u128::from(burst).min(total)) * 8_000_000_000;
        let exact = missing.div_ceil(u128::from(bps));
        let half = (u128::from(burst) * 8_000_000_000).div_ceil(u128::from(bps)) / 2;
        prop_assert!(u128::from(bench.now_ns) <= exact + half + 2 * wakes, "{} of {exact}", bench.now_ns);
    }

    #[test]
    fn flow_tbf_keeps_each_flow_at_its_rate(
        bps in 1_000_000u64..10_000_000_000,
        packets in prop::collection::vec((0u8..6, LEAST..1515), 1..200),
    ) {
        let burst = bps / 8 / 20_000 + 1514;
        let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, bps, burst, 100).limits(Limit::packets(400), 200));
        bench.put(packets.iter().copied());
        let mut sent: HashMap<u8, Vec<(u64, u64)>> = HashMap::new();
        while bench.wait() {
            for (flow, _, bytes) in bench.take_all() {
                sent.entry(flow).or_default().push((bench.now_ns, bytes as u64));
            }
        }
        prop_assert_eq!(sent.values().map(Vec::len).sum::<usize>(), packets.len());
        for sent in sent.values() {
            let (mut bytes, slot) = (0u128, 2 << 14);
            for (at, more) in sent {
                bytes += u128::from(*more);
                let allowed = |at: u64| u128::from(at) * u128::from(bps) + u128::from(burst) * 8_000_000_000;
                prop_assert!(bytes * 8_000_000_000 <= allowed(*at));
                // No packet is later than the length of a wheel's slot.
                let early = at.saturating_sub(slot);
                prop_assert!(early == 0 || bytes * 8_000_000_000 > allowed(early), "{at} ns: {bytes}");
            }
        }
    }
}

#[test]
fn fifo_drops_what_comes_when_it_is_full() {
    let mut bench = Bench::new(Fifo::new(Limit::packets(3)));
    bench.put([(1, 60); 5]);
    assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 2);
    assert_eq!(bench.take_all(), [(1, 0, 60), (1, 1, 60), (1, 2, 60)]);
    let mut bench = Bench::new(Fifo::new(Limit::packets(100).and_bytes(150)));
    bench.put([(1, 60); 5]);
    assert_eq!((bench.qdisc.counts().queued.packets, bench.take_all().len()), (2, 2));
    // A limit of bytes only.
    let all = Limit::packets(usize::MAX).and_bytes(150);
    let mut bench = Bench::new(codel(all, 5000));
    bench.put([(1, 60); 2]);
    assert_eq!(bench.take_all().len(), 2);
    assert_eq!(Fifo::new(all).len(), 0);
    drop(FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 9).limits(all, 4));
    // A limit of 0 becomes one packet: a queue that holds none would drop all packets.
    let mut bench = Bench::new(Fifo::new(Limit::packets(0)));
    bench.put([(1, 60); 2]);
    assert_eq!(bench.take_all(), [(1, 0, 60)]);
}

#[test]
fn fifo_of_bytes_takes_a_short_packet_after_a_long_one_that_does_not_fit() {
    let sizes = [1000, 900, 60, 900, 900, 60, 60];
    let run = |together: usize| {
        let mut bench = Bench::new(Fifo::new(Limit::packets(100).and_bytes(1170)));
        sizes.chunks(together).for_each(|sizes| bench.put(sizes.iter().map(|bytes| (1, *bytes))));
        bench.take_all()
    };
    let one_by_one = run(1);
    assert_eq!(one_by_one, [(1, 0, 1000), (1, 2, 60), (1, 5, 60)]);
    for together in 2..=sizes.len() {
        assert_eq!(run(together), one_by_one, "{together} at a time");
    }
}

/// Tests a packet that a stage has trimmed to nothing, before one that must be dropped.
#[test]
fn fifo_without_room_for_a_byte_takes_packets_without_bytes_and_drops_others() {
    let mut bench = Bench::new(Fifo::new(Limit::packets(9).and_bytes(60)));
    let mut batch = Batch::with_capacity(4);
    for bytes in [60, 0, 60, 0] {
        let mem = &mut bench.mem;
        let skb = if bytes > 0 { udp(mem, 1, 2, 3, bytes) } else { mem.alloc_one().unwrap() };
        assert!(batch.push(skb).is_ok());
    }
    bench.qdisc.enqueue(&mut batch, 4, bench.now(), &mut bench.mem);
    bench.check();
    let held = bench.qdisc.counts().queued;
    assert_eq!((held.packets, held.bytes, bench.dropped(DropReason::QUEUE_LIMIT)), (3, 60, 1));
}

#[test]
fn pfifo_fast_serves_interactive_first_and_bulk_last() {
    let mut bench = Bench::new(PfifoFast::new(Limit::packets(2)));
    // Priorities 2 (bulk), 0 (best effort), 6 (interactive); the limit is each band's.
    bench.put([(2, 60), (0, 60), (2, 60), (6, 60), (6, 60), (2, 60), (0, 60)]);
    let flows: Vec<u8> = bench.take_all().into_iter().map(|(flow, ..)| flow).collect();
    assert_eq!(flows, [6, 6, 0, 0, 2, 2]);
    bench.put([(2, 60), (16 + 7, 60)]);
    assert_eq!(bench.take(Moved { packets: 1, ..ALL })[0].0, 23, "the low four bits count");
}

#[test]
fn packet_that_no_burst_lets_out_is_dropped_as_too_long() {
    let mut bench = Bench::new(Tbf::new(1_000_000, 1000, Fifo::new(Limit::packets(9))));
    bench.put([(1, 900), (1, 1001), (1, 100)]);
    assert_eq!(bench.dropped(DropReason::TOO_LONG), 1);
    assert_eq!(bench.take_all(), [(1, 0, 900), (1, 2, 100)]);
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 1_000_000, 1000, 9));
    bench.put([(1, 900), (1, 1001), (1, 100)]);
    assert_eq!((bench.take_all().len(), bench.dropped(DropReason::TOO_LONG)), (2, 1));
}

#[test]
fn sparse_flow_passes_a_bulk_stream() {
    let mut bench = Bench::new(codel(Limit::packets(500), 5000));
    bench.put([(1, 1514); 100]);
    assert_eq!(bench.take(Moved { packets: 5, ..ALL }).len(), 5);
    bench.put([(2, 80)]);
    let next = bench.take(Moved { packets: 2, ..ALL });
    assert!(next.contains(&(2, 0, 80)), "{next:?}");
}

#[test]
fn bulk_flows_share_by_bytes() {
    let mut bench = Bench::new(codel(Limit::packets(900), 5000));
    bench.put((0..800).map(|i| if i % 2 == 0 { (1, 1500) } else { (2, 150) }));
    let left = bench.take(Moved { packets: 300, ..ALL });
    let bytes = |flow| left.iter().filter(|l| l.0 == flow).map(|l| l.2).sum::<usize>();
    assert!(bytes(1).abs_diff(bytes(2)) < 4000, "{} and {} bytes", bytes(1), bytes(2));
}

/// Tests a quantum of a byte, which would take a round of all flows for each byte of a packet.
#[test]
fn quantum_has_a_least_by_which_a_flow_sends_two_short_packets_in_its_turn() {
    let config = FqCodelConfig { quantum_bytes: 1, ..FqCodelConfig::default() };
    let mut bench = Bench::new(FqCodel::new(config));
    bench.put([(1, 200), (2, 200), (1, 200), (2, 200)]);
    let flows: Vec<u8> = bench.take_all().iter().map(|left| left.0).collect();
    assert_eq!(flows, [1, 1, 2, 2]);
}

#[test]
fn longest_queue_loses_from_its_head_when_all_are_too_much() {
    let mut bench = Bench::new(codel(Limit::packets(100), 5000));
    bench.put([(2, 60)]);
    bench.put([(1, 1514); 100]);
    assert_eq!(bench.dropped(DropReason::QUEUE_LIMIT), 50);
    let left = bench.take_all();
    assert!(left.contains(&(2, 0, 60)) && left.contains(&(1, 99, 1514)));
    assert!(!left.contains(&(1, 0, 1514)));
}

/// Returns a discipline with a standing queue of `packets` packets for `ms`, served at one packet a
/// ms. Packets come from `flows` flows in turn, of which each sends again after its packet has
/// left.
fn standing(
    config: FqCodelConfig,
    packets: usize,
    flows: u8,
    ms: usize,
) -> (Vec<Left>, Bench<FqCodel>) {
    let config = FqCodelConfig { limit: Limit::packets(200), ..config };
    let mut bench = Bench::new(FqCodel::new(config));
    let (mut left, mut next) = (Vec::new(), (0..flows).cycle());
    for _ in 0..ms {
        let missing = packets - bench.qdisc.counts().queued.packets;
        bench.put(next.by_ref().take(missing).map(|flow| (flow, 1000)));
        bench.now_ns += 1_000_000;
        left.extend(bench.take(Moved { packets: 1, ..ALL }));
    }
    (left, bench)
}

/// Returns a discipline with a standing queue of 50 packets of a flow for 400 ms.
fn congested(ecn: bool) -> (Vec<Left>, Bench<FqCodel>) {
    standing(FqCodelConfig { ecn, ..FqCodelConfig::default() }, 50, 1, 400)
}

#[test]
fn standing_queue_is_dropped_from_or_marked() {
    let (left, bench) = congested(false);
    let dropped = bench.dropped(DropReason::CONGESTED);
    assert!((3..40).contains(&dropped) && left.len() == 400, "{dropped}");
    assert_eq!(bench.qdisc.counts().marked, 0);
    let (left, bench) = congested(true);
    let counts = bench.qdisc.counts();
    assert_eq!((counts.dropped.packets, left.len()), (0, 400));
    assert!(counts.marked.abs_diff(dropped) <= 2, "{} marked, {dropped} dropped", counts.marked);
}

#[test]
fn marked_packet_says_so_and_its_checksum_is_right() {
    let mut bench = congested(true).1;
    let (mut out, mut marked) = (Batch::with_capacity(64), 0);
    bench.now_ns += 200_000_000;
    bench.qdisc.dequeue(&mut out, ALL, bench.now(), &mut bench.mem);
    for skb in out.iter() {
        let ip = skb.ipv4().unwrap();
        assert!(ip.checksum_ok() && ip.ecn() >= 2);
        marked += u32::from(ip.ecn() == 3);
    }
    assert!(marked > 0);
}

#[test]
fn packet_of_another_link_type_than_ethernet_is_not_marked() {
    let mut bench = Bench::new(FqCodel::new(FqCodelConfig::default()));
    let mut skb = udp(&mut bench.mem, 1, 2, 3, 100);
    assert!(fq_codel::mark(&mut skb));
    let mut skb = udp(&mut bench.mem, 1, 2, 3, 100);
    // LINKTYPE_LINUX_SLL2: bytes 12 to 20 are a hardware address.
    assert!(skb.set_link_type(276));
    let before = skb.data().to_vec();
    assert!(!fq_codel::mark(&mut skb) && skb.data() == before);
}

#[test]
fn flow_over_its_limit_loses_and_others_do_not() {
    let mut bench =
        Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 9).limits(Limit::packets(99), 4));
    bench.put([(1, 500); 10]);
    bench.put([(2, 500); 2]);
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 6);
    // Bursts of 1000 bytes are sent in turn.
    let flows: Vec<u8> = bench.take_all().into_iter().map(|(flow, ..)| flow).collect();
    assert_eq!(flows, [1, 2, 1, 2]);
    // At 1 byte a microsecond the next packet is due after 500 us.
    assert!(bench.wait());
    assert!((500_000..540_000).contains(&bench.now_ns), "{}", bench.now_ns);
    assert_eq!(bench.take_all(), [(1, 2, 500)]);
}

#[test]
fn flow_that_sent_once_is_forgotten_before_one_that_sends_on() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 4));
    for flow in [1, 2, 3, 4, 1] {
        bench.put([(flow, 500)]);
        assert_eq!(bench.take_all().len(), 1);
    }
    bench.put([(5, 1000)]);
    assert_eq!((bench.qdisc.counts().evicted, bench.qdisc.flows()), (1, 4));
    // Flow 2 was evicted, and begins with a full burst; the other flows must wait for tokens.
    bench.put([(2, 1000), (4, 1000), (1, 1000)]);
    let flows: Vec<u8> = bench.take_all().into_iter().map(|(flow, ..)| flow).collect();
    assert_eq!(flows, [5, 2]);
    assert_eq!(bench.qdisc.counts().evicted, 2);
}

#[test]
fn flood_of_single_packets_leaves_flows_that_send_on() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000_000, 2000, 16));
    for round in 0..20 {
        for flow in [1, 2, 3] {
            bench.put([(flow, 100)]);
        }
        for flood in 0..10 {
            bench.put([(20 + round * 10 + flood, 100)]);
        }
        assert_eq!(bench.take_all().len(), 13);
    }
    // All flows used 2000 bytes in almost no time: an evicted flow would have a full burst again.
    for flow in [1, 2, 3] {
        bench.put([(flow, 1000)]);
    }
    assert_eq!(bench.take_all(), []);
}

#[test]
fn new_flow_is_dropped_while_all_others_hold_packets() {
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000, 1000, 3));
    bench.put([(1, 600), (1, 600), (2, 600), (2, 600), (3, 600), (3, 600), (4, 600)]);
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 1);
    assert_eq!(bench.take_all().len(), 3);
    bench.put([(4, 600)]);
    assert_eq!(bench.dropped(DropReason::FLOW_LIMIT), 2, "each has one that waits");
}

#[test]
fn hundred_thousand_flows_are_told_apart_and_evicted() {
    const FLOWS: u32 = if cfg!(miri) { 100 } else { 100_000 };
    let mut qdisc = FlowTbf::new(Key::SrcIp, 1_000_000, 2000, FLOWS as usize);
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, now) = (pool.local(), Instant::now());
    let (mut batch, mut out) = (Batch::with_capacity(1), Batch::with_capacity(4));
    let mut send = |qdisc: &mut FlowTbf, n: u32| {
        let mut skb = udp(&mut mem, 0, 0, 1, 1000);
        skb.copy_from(26, &n.to_be_bytes());
        assert!(batch.push(skb).is_ok());
        qdisc.enqueue(&mut batch, 1, now, &mut mem);
        let sent = qdisc.dequeue(&mut out, ALL, now, &mut mem).packets;
        out.consume(&mut mem);
        sent
    };
    let twice = (0..2 * FLOWS).map(|n| send(&mut qdisc, n % FLOWS)).sum::<usize>();
    assert_eq!((qdisc.flows(), twice as u32), (FLOWS as usize, 2 * FLOWS));
    assert_eq!(qdisc.counts().evicted, 0);
    assert_eq!(send(&mut qdisc, 7), 0, "it has used its burst");
    for n in 0..FLOWS - 1 {
        assert_eq!(send(&mut qdisc, FLOWS + n), 1);
    }
    assert_eq!((qdisc.flows(), qdisc.counts().evicted), (FLOWS as usize, u64::from(FLOWS) - 1));
    qdisc.purge(DropReason::STOPPED, &mut mem);
    assert_eq!(pool.ledger().in_flight, 0);
}
