//! Tests which packets FQ-CoDel drops, and which flow it serves next.

use super::*;

#[test]
fn bytes_of_packets_that_codel_drops_no_longer_count() {
    let config = FqCodelConfig {
        mtu_bytes: 1500,
        quantum_bytes: 15_000,
        ecn: false,
        ..FqCodelConfig::default()
    };
    let mut bench = Bench::new(FqCodel::new(config));
    bench.put([(1, 1500); 8]);
    let mut one = |ms: u64| {
        bench.now_ns = ms * 1_000_000;
        bench.take(Moved { packets: 1, bytes: u64::MAX }).first().map(|left| left.1)
    };
    assert_eq!([one(10), one(120), one(1000)], [Some(0), Some(2), Some(6)]);
}

#[test]
fn a_flow_that_comes_is_served_before_the_old_ones() {
    let config = FqCodelConfig { flows: 8, ..FqCodelConfig::default() };
    let mut bench = Bench::new(FqCodel::new(config));
    bench.put([(1, 1000); 20]);
    assert_eq!(bench.take(Moved { packets: 3, bytes: u64::MAX }).len(), 3);
    bench.put([(2, 100)]);
    assert_eq!(bench.take(Moved { packets: 1, bytes: u64::MAX }), [(2, 0, 100)]);
}
