//! Tests the bytes up to which CoDel finds no standing queue.

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
