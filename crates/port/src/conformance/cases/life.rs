//! Cases for health, and for closing under load.

use std::time::Duration;

use linerate_skb::Batch;

use crate::conformance::bench::Way;
use crate::conformance::end::{BATCH, End, TRIES};
use crate::conformance::traffic::{Packet, of_lengths};
use crate::conformance::{Ran, Rig};
use crate::queue::{Health, Want};

/// Number of times that a port is opened, loaded and closed.
const ROUNDS: u8 = 16;

/// Checks that a new queue is healthy, is readable until it is armed and has lost no packet, and
/// that a queue whose other end is closed reports this at most once and then lets its owner sleep.
pub fn health_and_descriptor_are_as_said(rig: &mut Rig) -> Ran {
    let mut bench = rig.bench(Way::Forth);
    let patience = bench.patience();
    for end in bench.ends() {
        let health = end.health();
        assert!(matches!(health, Health::Up | Health::Finished), "just opened, it is {health:?}");
        // Wait for a moment: even a timer that is due already fires only after an interrupt.
        let readable = end.readable(patience);
        assert!(readable, "a queue that was never armed is not readable");
        let lost = (end.rx_missed(), end.rx_nombuf());
        assert_eq!(lost, (0, 0), "packets missed, and receives without a frame, so far");
    }
    if bench.is_pair() {
        let mut arrivals = bench.arrivals(&[]);
        bench.close_sender();
        let end = bench.receiver();
        end.settle(&mut arrivals, patience);
        while end.take(&mut arrivals, BATCH) > 0 {}
        if end.health().ended() {
            reports_end_once(end);
        }
    }
    bench.close();
    Ran::Passed
}

/// Asserts that an end that will receive no more packets reports this at most once and then stays
/// silent.
pub(super) fn reports_end_once(end: &mut End) {
    let mut batch = Batch::with_capacity(BATCH);
    assert_eq!(end.rx(&mut batch, BATCH), 0, "packets after the end");
    let ends = (0..TRIES).take_while(|_| !end.arm(Want::Frames)).count();
    assert!(ends <= 1, "arm() tells of the end {ends} times: its owner can never sleep");
    assert!(end.arm(Want::Frames), "arm() tells of the end once more");
    assert!(!end.readable(Duration::ZERO), "the end was told, and the descriptor is readable");
}

/// Checks that a port closed with packets in flight returns every frame, in either order of closing
/// its ends, and that it can be opened again.
pub fn closing_under_load_loses_no_frame(rig: &mut Rig) -> Ran {
    for round in 0..ROUNDS {
        let mut bench = rig.bench(if round % 2 == 0 { Way::Forth } else { Way::Back });
        if !bench.carries() {
            bench.close();
            continue;
        }
        let len = bench.limits.shortest_bytes.max(60);
        let window = bench.limits.window_packets as u32;
        let packets: Vec<_> = (0..window).map(|seq| Packet::new(round, seq, len)).collect();
        let mut arrivals = bench.arrivals(&packets);
        let mut batch = bench.batch(&packets);
        bench.sender().xmit(&mut batch);
        bench.discard(batch);
        match round / 2 % 4 {
            0 => {}
            1 => drop(bench.receiver().arm(Want::Both)),
            2 => drop(bench.receiver().take(&mut arrivals, window as usize / 2)),
            _ if bench.is_pair() => bench.close_sender(),
            _ => {}
        }
        if round / 2 % 4 == 0 && bench.is_pair() {
            bench.close_receiver();
            // Send to the closed end: the packets are taken with a reason, or stay with the sender.
            let mut more = bench.batch(&packets);
            bench.sender().xmit(&mut more);
            bench.discard(more);
        }
        bench.close();
    }
    rig.each_way(|bench| {
        let len = bench.limits.shortest_bytes.max(60);
        bench.exchange(&of_lengths(u8::MAX - 1, [len; 100]));
        Ran::Passed
    })
}
