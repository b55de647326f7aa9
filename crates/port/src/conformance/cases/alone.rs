//! Cases for sources and sinks, whose peer is not part of the suite.

use std::time::Duration;

use linerate_skb::Batch;

use super::life::reports_end_once;
use crate::conformance::bench::Way;
use crate::conformance::end::{BATCH, End, TRIES};
use crate::conformance::traffic::{LEN_MIN, of_lengths};
use crate::conformance::{Ran, Rig};
use crate::queue::Want;

/// Number of packets after which a source is treated as endless.
const MANY: usize = 10_000;

/// Checks that a source keeps to its budget, keeps packets for which it has no frame, and accounts
/// for all packets; and that a source that ends reports its end once.
pub fn a_source_keeps_to_its_budget_and_ends_once(rig: &mut Rig) -> Ran {
    let mut bench = rig.bench(Way::Forth);
    if bench.carries() || bench.is_stored() || !bench.receiver().receives() {
        bench.close();
        return Ran::DoesNotApply("it is no source");
    }
    let (mut arrivals, patience) = (bench.arrivals(&[]), bench.patience());
    let (frames, mut came) = (bench.pool.frames(), 0);
    let end = bench.receiver();
    assert!(end.readable(Duration::ZERO), "a queue that was never armed is not readable");
    for budget in [0, 1, 7, BATCH] {
        // `rx` itself asserts that the budget was kept.
        came += end.take(&mut arrivals, budget);
    }
    let hoard = end.hoard(frames);
    let mut batch = Batch::with_capacity(BATCH);
    let dry = |end: &mut End, batch: &mut Batch| {
        end.rx(batch, BATCH);
        end.arm(Want::Frames)
    };
    let slept = (0..TRIES).any(|_| dry(end, &mut batch));
    assert_eq!(batch.len(), 0, "packets without a frame");
    assert!(slept, "without a free frame arm() returns false for ever: a worker spins");
    end.release(hoard);
    let woken = end.readable(patience) || end.health().ended();
    assert!(woken, "there are frames again, and the poller is not woken");
    while came < MANY && !end.health().ended() {
        let woken = end.wait(Want::Frames, patience);
        assert!(woken, "a source that has not ended is silent after {came} packets");
        came += end.take(&mut arrivals, BATCH);
    }
    assert!(came > 0, "the source gave nothing");
    if end.health().ended() {
        reports_end_once(end);
    }
    bench.close();
    Ran::Passed
}

/// Checks that a sink takes packets of every length and shape, and sends each or drops it with a
/// reason.
pub fn a_sink_takes_every_length_and_chain(rig: &mut Rig) -> Ran {
    let mut bench = rig.bench(Way::Forth);
    if bench.carries() || bench.is_stored() || !bench.sender().sends() {
        bench.close();
        return Ran::DoesNotApply("it is no sink");
    }
    let longest = bench.longest().max(LEN_MIN);
    let lengths = (0..512).map(|i| LEN_MIN + i * 127 % (longest - LEN_MIN + 1));
    let packets = of_lengths(0, lengths);
    for (piece, most) in [(usize::MAX, usize::MAX), (64, 1024)] {
        for packet in packets.iter().filter(|packet| packet.len <= most) {
            let mut batch = bench.batch(&[packet.in_pieces(piece)]);
            assert_eq!(batch.len(), 1, "the pool has a frame for each");
            bench.sender().xmit(&mut batch);
            for _ in 0..TRIES {
                if batch.is_empty() {
                    break;
                }
                let patience = bench.patience();
                assert!(bench.sender().wait(Want::Room, patience), "room is not announced");
                bench.sender().xmit(&mut batch);
            }
            assert!(batch.is_empty(), "a packet of {} bytes is never taken", packet.len);
        }
    }
    let passed = bench.sender().passed;
    assert!(passed.sent > 0, "of {} packets none was sent", passed.taken);
    bench.close();
    Ran::Passed
}
