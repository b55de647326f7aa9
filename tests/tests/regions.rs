//! A region timer around the stretch of a worker in which wake-ups are masked.
//!
//! While it turns, a worker has armed nothing, so senders send it no notification. This is user
//! space's region with interrupts disabled. A profile by timer interrupts sees the region like any
//! other code, but the figure of interest is its longest time and not its share.

use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Turned};
use linerate_prof::region::Region;
use linerate_skb::Pool;

#[test]
fn every_poll_section_of_a_worker_is_timed_and_its_packets_are_those_of_the_ledger() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = Engine::builder()
        .pool(&pool)
        .port("gen", "gen:,count=100k")
        .port("sink", "sink:")
        .wire("gen", "sink")
        .build()
        .unwrap();
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
    assert_eq!(pool.ledger().sent, 100_000);
    let timing = masked.timing();
    println!("{timing}{}", armed.timing());
    // 100,000 packets, at most 64 a turn: enough times for every percentile.
    assert!(turns >= 100_000 / 64, "{turns}");
    assert_eq!((timing.count, timing.backwards), (turns, 0));
    let (p50, p99) = (timing.p50_ticks.unwrap(), timing.p99_ticks.unwrap());
    let (mean, max) = (timing.mean_ticks.unwrap(), timing.max_ticks.unwrap());
    // Percentiles have three digits.
    assert!(p50 <= p99 && p99 as f64 <= max as f64 * 1.001, "{timing:?}");
    assert!(mean > 0.0 && mean <= max as f64, "{timing:?}");
}
