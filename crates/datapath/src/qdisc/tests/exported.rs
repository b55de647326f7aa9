//! Tests disciplines with packets in memory that a peer can write.

use linerate_skb::Trust;

use super::*;

#[test]
fn packet_in_memory_that_a_peer_can_write_is_marked_and_not_dropped() {
    let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
    let (mut mem, start) = (pool.local(), Instant::now());
    let mut qdisc = FqCodel::new(FqCodelConfig::default());
    let (mut batch, mut out) = (Batch::with_capacity(64), Batch::with_capacity(64));
    let mut marked = 0;
    // A standing queue of 50 packets, served at one packet a ms.
    for ms in 0..400 {
        let now = start + Duration::from_millis(ms);
        let missing = 50 - qdisc.counts().queued.packets;
        for _ in 0..missing {
            assert!(batch.push(udp(&mut mem, 1, 200, 9, 1000)).is_ok());
        }
        qdisc.enqueue(&mut batch, missing, now, &mut mem);
        let later = now + Duration::from_millis(1);
        qdisc.dequeue(&mut out, Moved { packets: 1, ..ALL }, later, &mut mem);
        for skb in out.iter() {
            let mut bytes = [0; 1000];
            assert!(skb.data().is_empty() && skb.copy_to(0, &mut bytes) == 1000);
            let ip = linerate_wire::ipv4(&bytes).unwrap();
            assert!(ip.checksum_ok() && ip.ecn() >= 2);
            marked += u64::from(ip.ecn() == 3);
        }
        out.consume(&mut mem);
    }
    let counts = qdisc.counts();
    assert_eq!((counts.dropped.packets, counts.marked), (0, marked));
    assert!(marked > 2, "{marked}");
    qdisc.purge(DropReason::STOPPED, &mut mem);
}
