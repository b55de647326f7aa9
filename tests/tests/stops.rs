//! A stop takes effect at any moment: a worker that is about to sleep wakes up for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use linerate_datapath::Engine;
use linerate_tests::wait::until_true;

/// Engines started and stopped.
const ENGINES: u32 = 1000;
/// Longest time for the test.
const LONG: Duration = Duration::from_secs(60);
/// Time that a stop may drain. There is nothing to drain: only a stop that a worker slept through
/// takes it all, and then the test lasts longer than [`LONG`].
const DRAIN: Duration = Duration::from_secs(120);

static STOPPED: AtomicU32 = AtomicU32::new(0);

#[test]
fn engine_stops_at_any_moment() {
    let thread = std::thread::spawn(|| {
        for i in 0..ENGINES {
            // No timer and no packet wakes a worker: without the stop it sleeps for ever.
            let builder = Engine::builder().hot_list_len(64).port("a", "ring:r,len=64");
            let builder = builder.port("b", "sink:").port("c", "ring:r,len=64").port("d", "sink:");
            let engine = builder.wire("a", "b").wire("c", "d").build().unwrap();
            let running = engine.start().unwrap();
            // Stop after a different time in each round, up to some time after the first sleep.
            (0..i * 37 % 2_000).for_each(|_| std::hint::spin_loop());
            let stopped = running.stop(DRAIN);
            // A worker that slept through the halt is left behind, which is a failure.
            stopped.check().unwrap();
            assert!(stopped.ledger.balanced() && stopped.ledger.in_flight == 0, "{stopped}");
            STOPPED.store(i + 1, Ordering::Relaxed);
        }
    });
    let done = || thread.is_finished();
    until_true("one thousand engines to start and stop", LONG, || {
        done() || STOPPED.load(Ordering::Relaxed) == ENGINES
    });
    thread.join().unwrap();
}
