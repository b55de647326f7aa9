//! Flows that move while the device brings more than a worker takes: its worker pauses reading.

use super::*;

/// Returns workers of an overloaded division, of which worker 2 takes 16 of its 32 packets in a
/// round.
fn overloaded() -> (Vec<Worker>, Stats, Steering) {
    let (builder, [west, _]) = divided_between(["talk:1,most=16", "talk:2,most=1"], 64, 16);
    let engine = builder.build().unwrap();
    let stats = engine.stats();
    (engine.into_workers(), stats, west)
}

/// Turns each worker so many times in each of some rounds; returns the time that has passed.
fn rounds(workers: &mut [Worker], count: usize, times: [usize; 4]) -> Duration {
    let begun = NOW.get();
    for _ in 0..count {
        for (worker, times) in workers.iter_mut().zip(times) {
            turn(worker, times);
        }
    }
    NOW.get() - begun
}

#[test]
fn under_overload_flows_move_after_a_pause_in_which_the_waiting_packets_leave() {
    let (mut workers, stats, west) = overloaded();
    let times = [4, 4, 1, 4];
    rounds(&mut workers, 200, times);
    west.give(0..256, 1).unwrap();
    // 2.6 ms a round.
    assert!(rounds(&mut workers, 3, times) < Duration::from_millis(10));
    assert_eq!((west.moved(), west.waiting()), (0, 128), "moves, and buckets that wait");
    assert_eq!(west.paused(), Duration::ZERO);
    // At most 256 packets of the backlog and 64 of the ring wait, for a worker that takes 16 a
    // round.
    rounds(&mut workers, 50, times);
    // Half of the flows began at output 0, in buckets of their own.
    let (moved, waiting) = (west.moved(), west.waiting());
    assert!(moved >= FLOWS as u64 / 4, "{moved} moved, {waiting} wait");
    let paused = west.paused();
    assert!(paused > Duration::ZERO && paused < Duration::from_millis(100), "{paused:?}");
    // The buckets without flows make no further pause.
    rounds(&mut workers, 1000, times);
    assert!(west.waiting() > 0 && west.paused() == paused, "{:?}", west.paused());
    drop(workers);
    assert!(stats.ledger().balanced(), "{}", stats.ledger());
}

#[test]
fn at_a_low_load_flows_move_without_a_pause_although_other_buckets_have_none() {
    let (mut workers, _, west) = overloaded();
    let times = [1, 4, 4, 4];
    rounds(&mut workers, 100, times);
    for output in [1, 0, 1] {
        let before = west.moved();
        west.give(0..256, output).unwrap();
        rounds(&mut workers, 200, times);
        assert!(west.moved() >= before + FLOWS as u64 / 4, "{} moved", west.moved() - before);
        assert!(west.waiting() > 0 && west.paused().is_zero(), "{:?}", west.paused());
    }
}

#[test]
fn pauses_that_move_nothing_are_rare() {
    let (mut workers, _, west) = overloaded();
    rounds(&mut workers, 200, [4, 4, 1, 4]);
    west.give(0..256, 1).unwrap();
    // Worker 2 has so little CPU time that what waits for it needs longer than the longest pause.
    let mut slowly = |count: usize| {
        let slow = |i: usize| rounds(&mut workers, 1, [4, 4, usize::from(i.is_multiple_of(3)), 4]);
        (0..count).map(slow).sum::<Duration>()
    };
    let passed = slowly(400);
    assert!(west.paused() >= Duration::from_millis(100), "{:?}", west.paused());
    let passed = passed + slowly(10_000);
    assert!(passed > Duration::from_secs(20));
    assert!(west.paused() <= passed / 50, "{:?} of {passed:?}", west.paused());
    assert_eq!(west.moved(), 0);
}

/// A stage that takes 2 us for each packet that a ring delivers.
struct Spin(Option<PortId>);

impl Stage for Spin {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if self.0 != Some(turn.port()) {
            let begun = Instant::now();
            let until = begun + Duration::from_micros(2) * batch.len() as u32;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
    }
}

/// In a pause, nothing but the time wakes the worker of the device.
#[test]
fn a_worker_with_nothing_but_its_device_wakes_at_the_end_of_a_pause() {
    let west = Steering::new("west", &["w1", "w2"]).unwrap();
    let mut builder = Engine::builder().driver(&Talk).port("west", "talk:1,most=64").steer(&west);
    for (ring, sink) in [("w1", "s1"), ("w2", "s2")] {
        let text = format!("ring:{ring},len=64");
        builder = builder.port(ring, &text).port(&format!("far-{ring}"), &text);
        builder = builder.port(sink, "sink:,blind").wire(&format!("far-{ring}"), sink);
    }
    let builder = builder.stage(|cx| Spin(cx.find("west")));
    let running = builder.build().unwrap().start().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    west.give(0..256, 1).unwrap();
    let until = Instant::now() + LONG;
    while west.moved() < FLOWS as u64 / 4 {
        assert!(!running.failed(), "{:?}", running.wait(LONG));
        assert!(Instant::now() < until, "{} moves, paused {:?}", west.moved(), west.paused());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(west.paused() > Duration::ZERO);
    running.stop(LONG).check().unwrap();
}
