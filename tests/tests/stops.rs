//! A stop takes effect at any moment: a worker that is about to sleep wakes up for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use linerate_datapath::Engine;
use linerate_tests::wait::until_true;

/// Engines started and stopped.
const ENGINES: u32 = 3000;
/// Longest time for the test; with a lost stop it would never end.
const LONG: Duration = Duration::from_secs(60);
/// Time that a stop may drain; there is next to nothing to drain.
const DRAIN: Duration = Duration::from_millis(500);

static STOPPED: AtomicU32 = AtomicU32::new(0);

#[test]
fn engine_stops_at_any_moment() {
    let thread = std::thread::spawn(|| {
        for i in 0..ENGINES {
            let builder = Engine::builder().hot_list_len(64).port("a", "gen:,rate=100kpps");
            let engine = builder.port("b", "sink:").wire("a", "b").build().unwrap();
            let running = engine.start().unwrap();
            // Stop after a different time in each round, up to the time of some packets.
            (0..i * 37 % 20_000).for_each(|_| std::hint::spin_loop());
            let stopped = running.stop(DRAIN);
            assert!(stopped.ledger.balanced() && stopped.ledger.in_flight == 0, "{stopped}");
            STOPPED.store(i + 1, Ordering::Relaxed);
        }
    });
    let done = || thread.is_finished();
    until_true("three thousand engines to start and stop", LONG, || {
        done() || STOPPED.load(Ordering::Relaxed) == ENGINES
    });
    thread.join().unwrap();
}
