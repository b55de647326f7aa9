//! Times the part of a worker's turn in which wake-ups are masked.
//!
//! While it turns, a worker has armed nothing, so senders send it no notification. This is user
//! space's region with interrupts disabled. A profile by timer interrupts sees the region like any
//! other code, but the figure of interest is its longest time and not its share.

use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, Turned};
use linerate_prof::region::{Region, Timing};
use linerate_skb::Pool;

/// Packets of a run: at most 64 a turn, so that there are turns for every percentile.
const PACKETS: u64 = 100_000;

/// Forwards packets from one port to another in timed turns; returns the number of turns, their timing and the
/// counts.
fn timed(from: &str, to: &str) -> (u64, Timing, Stats) {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = Engine::builder().pool(&pool).port("from", from).port("to", to);
    let engine = engine.wire("from", "to").build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let (mut masked, mut armed) = (Region::new("turn"), Region::new("park"));
    let mut turns = 0;
    loop {
        let entered = masked.enter();
        let turned = worker.turn(Instant::now());
        masked.leave(entered);
        turns += 1;
        if turned == Turned::Ended {
            break;
        }
        let entered = armed.enter();
        worker.park(turned, Some(Duration::from_millis(10))).unwrap();
        armed.leave(entered);
    }
    worker.publish();
    assert_eq!(pool.ledger().sent, PACKETS);
    let timing = masked.timing();
    println!("{timing}{}", armed.timing());
    (turns, timing, stats)
}

#[test]
fn every_poll_section_of_a_worker_is_timed_and_its_packets_are_those_of_the_ledger() {
    let (turns, timing, _) = timed("gen:,count=100k", "sink:");
    assert!(turns >= PACKETS / 64, "{turns}");
    assert_eq!((timing.count, timing.backwards), (turns, 0));
    let (p50, p99) = (timing.p50_ticks.unwrap(), timing.p99_ticks.unwrap());
    let (mean, max) = (timing.mean_ticks.unwrap(), timing.max_ticks.unwrap());
    // Percentiles have three digits.
    assert!(p50 <= p99 && p99 as f64 <= max as f64 * 1.001, "{timing:?}");
    assert!(mean > 0.0 && mean <= max as f64, "{timing:?}");
}

#[test]
fn in_the_model_a_section_with_interrupts_masked_takes_what_its_registers_take() {
    let (turns, timing, stats) = timed("gen:,count=100k,toll=20us/0us", "sink:,toll=20us/0us");
    let ports = stats.ports();
    let written_ns: u64 =
        ports.iter().filter_map(|port| port.driver_counts.registers).map(|r| r.write_ns).sum();
    // One write to receive packets, and one to send them.
    let moving = PACKETS / 64;
    assert!(written_ns >= moving * 40_000, "{written_ns} ns in {turns} turns");
    // A busy machine makes regions longer, never shorter; the two clocks may differ by 2 %.
    let ns = |ticks: f64| ticks * 1e9 / timing.ticks_hz * 1.02;
    let (p50, mean) = (timing.p50_ticks.unwrap() as f64, timing.mean_ticks.unwrap());
    assert!(ns(mean) * timing.count as f64 >= written_ns as f64, "{written_ns} {timing:?}");
    assert!(ns(p50) >= 40_000.0 && timing.p99_ticks.unwrap() as f64 >= p50, "{timing:?}");
}
