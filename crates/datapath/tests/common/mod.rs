//! Functions that several of these test programs use.

use std::time::{Duration, Instant};

use linerate_port::Queue;
use linerate_skb::{Batch, DropReason};
use linerate_wire::stamp;

/// The longest wait of a test.
pub const LONG: Duration = Duration::from_secs(20);

/// Sends packets with these numbers, and receives them from `to`, in order.
pub fn pass(from: &mut Queue, to: &mut Queue, numbers: std::ops::Range<u64>) {
    let (mut batch, mut got) = (Batch::with_capacity(64), Batch::with_capacity(64));
    let deadline = Instant::now() + LONG;
    let (mut next, mut expected) = (numbers.start, numbers.start);
    while expected < numbers.end {
        assert!(Instant::now() < deadline, "{expected} never came");
        while next < numbers.end && batch.spare() > 0 {
            let mut frame = [0; 60];
            stamp::write(&mut frame, 0, next, 0).unwrap();
            batch.push(from.local().alloc_copy(&frame).unwrap()).unwrap();
            next += 1;
        }
        from.xmit(&mut batch);
        to.wait(Some(Duration::from_millis(10))).unwrap();
        to.rx(&mut got);
        for skb in got.drain() {
            assert_eq!(stamp::read(skb.data()).unwrap().seq, expected);
            expected += 1;
            skb.discard(DropReason::UNSENT);
        }
    }
}
