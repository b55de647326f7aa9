//! Packets that the kernel lost before the port, by cause.

use linerate_skb::{Batch, Offload, Pool};

use crate::host::testing::*;

#[test]
fn packets_that_find_the_ring_full_are_missed_with_their_cause() {
    for text in ["packet:v0,ring=512KiB", "packet:v0,ring=512KiB,retire=0"] {
        in_netns(move || {
            veth(1500);
            let pool = Pool::builder().frames(2048).build().unwrap();
            let mut near = queue_in(text, &pool);
            let mut far = queue("packet:v1");
            let frames: Vec<_> = (0..1024).map(|seq| stamped(seq, 1500)).collect();
            send(&mut far, &frames, Offload::NONE);
            eventually(|| near.counts().rx_missed >= 512);
            let (counts, causes) = (near.counts(), near.driver_counts());
            // On a busy machine this thread may have waited for a CPU.
            let full = causes.missed_ring_full + causes.missed_no_cpu;
            assert_eq!(full, counts.rx_missed, "{text}: {causes:?}");
            let missed = counts.rx_missed;
            // Those that waited are read, and an empty pool is another cause.
            let mut batch = Batch::with_capacity(2048);
            eventually(|| {
                near.rx(&mut batch);
                batch.len() as u64 + missed >= 1024
            });
            let mut kept = Batch::with_capacity(2048);
            while near.local().alloc(&mut kept, 2048) > 0 {}
            send(&mut far, &frames, Offload::NONE);
            eventually(|| {
                near.rx(&mut Batch::with_capacity(8));
                near.counts().rx_nombuf > 0
            });
            let (counts, causes) = (near.counts(), near.driver_counts());
            assert_eq!(causes.missed_no_frame, counts.rx_missed - missed, "{text}: {causes:?}");
            assert!(causes.missed_no_frame >= 512, "{text}: {causes:?}");
        });
    }
}
