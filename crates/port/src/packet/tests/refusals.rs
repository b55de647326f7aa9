//! Tests of packets that the kernel refuses for lack of room, or for themselves.

use super::shape;
use crate::host::testing::*;

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
