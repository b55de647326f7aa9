//! Tests bounds in bytes: those up to which CoDel finds no standing queue, and bursts.

use std::time::Duration;

use super::*;

#[test]
fn bound_of_a_standing_queue_is_the_mtu_and_not_the_quantum() {
    let usual = FqCodelConfig {
        ecn: false,
        target: Duration::from_micros(500),
        ..FqCodelConfig::default()
    };
    let dropped = |quantum_bytes, mtu_bytes, packets| {
        let config = FqCodelConfig { quantum_bytes, mtu_bytes, ..usual };
        standing(config, packets, 1, 400).1.dropped(DropReason::CONGESTED)
    };
    for quantum in [300, 1514, 100_000] {
        // After a packet has left, one or four packets of 1000 bytes wait.
        assert_eq!(dropped(quantum, 1514, 2), 0, "{quantum}");
        assert!(dropped(quantum, 1514, 5) > 0, "{quantum}");
        assert_eq!(dropped(quantum, 9014, 5), 0, "{quantum}");
    }
}

#[test]
fn standing_queue_of_many_flows_with_a_packet_each_is_dropped_from() {
    // A flow sends one packet in its turn.
    let usual = FqCodelConfig { ecn: false, quantum_bytes: 1000, ..FqCodelConfig::default() };
    let dropped =
        |flows: u8| standing(usual, flows.into(), flows, 2000).1.dropped(DropReason::CONGESTED);
    assert!(dropped(8) > 0);
    assert_eq!(dropped(2), 0, "one packet waits");
}

/// Makes a superframe that cannot be cut, because it does not say after how many bytes.
#[test]
fn whole_superframe_longer_than_the_burst_leaves_and_the_next_packets_wait_until_it_is_paid() {
    // A byte in a microsecond, bursts of 1000 bytes.
    let mut bench = Bench::new(Tbf::new(8_000_000, 1000, Fifo::new(Limit::packets(9))));
    let mut batch = Batch::with_capacity(4);
    for (bytes, gso_type) in [(300, 0), (5000, 1), (400, 0), (5000, 0)] {
        let mut skb = udp(&mut bench.mem, 1, 200, 9, bytes);
        let offload = linerate_skb::Offload { gso_type, ..linerate_skb::Offload::NONE };
        assert!(skb.set_offload(offload));
        assert!(batch.push(skb).is_ok());
    }
    bench.qdisc.enqueue(&mut batch, 4, bench.now(), &mut bench.mem);
    assert_eq!(bench.dropped(DropReason::TOO_LONG), 1, "no superframe");
    let mut left = Vec::new();
    let mut leave = |bench: &mut Bench<_>| {
        let now_us = bench.now_ns / 1000;
        left.extend(bench.take_all().into_iter().map(|(.., bytes)| (bytes, now_us)));
    };
    leave(&mut bench);
    while bench.wait() {
        leave(&mut bench);
    }
    // 300 bytes are earned again; then 4000 and 400 bytes.
    assert_eq!(left, [(300, 0), (5000, 300), (400, 4700)]);
}
