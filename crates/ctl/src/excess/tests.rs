//! Tests the figures for each packet on short runs of engines.

use std::time::Duration;

use linerate_datapath::{Engine, EngineBuilder};

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// Runs an engine until it ends by itself, and returns the result.
fn ran(build: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Stopped {
    let running = build(Engine::builder()).build().unwrap().start().unwrap();
    assert!(running.wait(LONG).unwrap());
    running.stop(LONG)
}

/// Returns `gen → ring → sink`.
fn trial(packets: u64) -> Stopped {
    let generator = format!("gen:,count={packets}");
    ran(|engine| {
        let engine = engine.port("gen", &generator).port("r0", "ring:r").port("r1", "ring:r");
        engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink")
    })
}

fn spent(ticks_per_second: Option<f64>) -> Spent {
    Spent { ticks_per_second, ..Spent::default() }
}

/// Returns the run's result with the given duration.
fn lasted(mut stopped: Stopped, seconds: u64) -> Stopped {
    stopped.workers.iter_mut().for_each(|w| w.ran_ns = Some(seconds * 1_000_000_000));
    stopped
}

#[test]
fn a_packet_of_the_trial_takes_few_locks_and_no_copy() {
    let stopped = lasted(trial(100_000), 2);
    let locks = Locks::of(&stopped, &spent(Some(1e9)));
    // One lock for half a hot list of frames at each end: one worker allocates and the other
    // frees, both through the depot.
    assert!(locks.taken > 0 && locks.taken_per_packet.unwrap() < 1.0 / 16.0, "{locks:?}");
    let calls = Calls::of(&stopped);
    assert_eq!((calls.allocs, calls.frees), (100_000, 100_000));
    assert_eq!((calls.allocs_per_packet, calls.copies), (Some(1.0), Some(0)));
    assert_eq!((calls.counted_seconds, calls.allocs_per_second), (Some(2.0), Some(50_000.0)));
    assert_eq!((calls.buffers_per_alloc_call, calls.buffers_per_free_call), (None, None));
    // Each of the two workers makes at least one call to receive a budget of 64, and one to
    // send a backlog of 256.
    let least = 2 * (100_000_u64.div_ceil(64) + 100_000_u64.div_ceil(256));
    assert!(calls.device_calls >= least, "{calls:?}");
    // Frees are divided, and not allocations, whose number differs here.
    let mut freed_more = stopped;
    freed_more.pool.cores[0].frees += 50_000;
    let calls = Calls::of(&freed_more);
    assert_eq!((calls.frees_per_packet, calls.frees_per_second), (Some(1.5), Some(75_000.0)));
}

#[test]
fn locks_that_were_waited_for_are_told_a_packet_with_the_time() {
    let mut stopped = trial(1000);
    let pool = &mut stopped.pool.locks;
    (pool.taken, pool.contended, pool.wait_ticks) = (500, 40, 3000);
    let locks = Locks::of(&stopped, &spent(Some(2e9)));
    let each = (locks.taken_per_packet, locks.contended_per_packet, locks.wait_ns_per_packet);
    assert_eq!(locks.taken, 500);
    assert_eq!(locks.contended, 40);
    assert_eq!(locks.wait_ns, Some(1500));
    assert_eq!(each, (Some(0.5), Some(0.04), Some(1.5)));
    // If the ticks' rate is unknown, the time of a wait is unknown, and not 0.
    let locks = Locks::of(&stopped, &spent(None));
    assert_eq!((locks.contended, locks.wait_ns, locks.wait_ns_per_packet), (40, None, None));
}

#[test]
fn what_is_allocated_and_not_freed_is_outstanding() {
    let engine = Engine::builder().port("gen", "gen:").port("r0", "ring:r").port("r1", "ring:r");
    let engine = engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink");
    let engine = engine.build().unwrap();
    let stats = engine.stats();
    let calls = || {
        let cores = stats.pool().stats().cores;
        cores.iter().fold((0, 0), |(a, f), core| (a + core.allocs, f + core.frees))
    };
    let mut workers = engine.into_workers();
    let now = std::time::Instant::now();
    workers[0].turn(now);
    let (allocs, frees) = calls();
    assert_eq!((allocs, frees, stats.ledger().in_flight), (64, 0, 64));
    workers[1].turn(now);
    let (allocs, frees) = calls();
    assert_eq!((allocs, frees + stats.ledger().in_flight), (64, 64));
}

#[test]
fn a_port_that_copies_shows_a_copy_a_packet() {
    let path = std::env::temp_dir().join(format!("linerate-ctl-{}.pcap", std::process::id()));
    let file = format!("pcap:{}", path.display());
    let write =
        ran(|e| e.port("gen", "gen:,count=500,size=60").port("file", &file).wire("gen", "file"));
    let calls = Calls::of(&write);
    assert_eq!((calls.copies, calls.copied_bytes), (Some(500), Some(500 * 60)));
    let read = ran(|e| e.port("file", &file).port("sink", "sink:").wire("file", "sink"));
    std::fs::remove_file(&path).unwrap();
    let read = lasted(read, 2);
    let calls = Calls::of(&read);
    assert_eq!(calls.copies, Some(500));
    assert_eq!(calls.copies_per_packet, Some(1.0));
    assert_eq!(calls.copies_per_second, Some(250.0));
    let mut strange = read;
    strange.ports[1].copies = Copies::Sometimes;
    let calls = Calls::of(&strange);
    assert_eq!((calls.copies, calls.copies_per_packet), (None, None), "unknown");
    assert_eq!(calls.copied_bytes, None);
}

#[test]
fn a_driver_that_copies_where_it_must_is_believed() {
    let mut stopped = trial(1000);
    let mut copied = |bytes: [Option<u64>; 2]| {
        for (port, bytes) in stopped.ports.iter_mut().zip(bytes) {
            port.copies = Copies::Sometimes;
            port.driver_counts.copied_bytes = bytes;
        }
        let calls = Calls::of(&stopped);
        (calls.copies, calls.copies_per_packet, calls.copied_bytes)
    };
    assert_eq!(copied([Some(0), Some(0)]), (Some(0), Some(0.0), Some(0)));
    // Bytes are reported without the number of packets.
    assert_eq!(copied([Some(0), Some(300)]), (None, None, Some(300)));
    assert_eq!(copied([Some(0), None]), (None, None, None));
}

#[test]
fn without_a_packet_nothing_is_a_packet_and_everything_is_counted() {
    let mut stopped = trial(1000);
    stopped.ports.iter_mut().for_each(|p| p.counts.tx_packets = 0);
    let locks = Locks::of(&stopped, &Spent::default());
    let (calls, waits) = (Calls::of(&stopped), Waits::of(&stopped, &locks));
    assert_eq!((locks.taken_per_packet, locks.wait_ns_per_packet), (None, None));
    assert_eq!((calls.allocs, calls.allocs_per_packet), (1000, None));
    assert!(calls.allocs_per_second.is_some(), "a second needs no packet");
    assert_eq!((waits.asleep_ns_per_packet, waits.flush_ns_per_packet), (None, None));
    assert!(waits.flushes >= 2 * 1000_u64.div_ceil(256), "{waits:?}");
}

#[test]
fn a_wait_in_ticks_of_an_unknown_rate_is_unknown() {
    let mut stopped = trial(1000);
    stopped.pool.locks.wait_ticks = 3000;
    let wait_ns = |rate| Locks::of(&stopped, &spent(rate)).wait_ns;
    assert_eq!((wait_ns(Some(2e9)), wait_ns(None), wait_ns(Some(0.0))), (Some(1500), None, None));
    stopped.pool.locks.wait_ticks = 0;
    assert_eq!(Locks::of(&stopped, &spent(None)).wait_ns_per_packet, Some(0.0));
}

#[test]
fn a_worker_that_waits_for_a_slow_source_sleeps_most_of_its_time() {
    let stopped = ran(|e| {
        e.port("gen", "gen:,count=20,rate=50pps").port("sink", "sink:").wire("gen", "sink")
    });
    let waits = Waits::of(&stopped, &Locks::default());
    assert!(waits.sleeps > 0 && waits.asleep_ns > 0, "{waits:?}");
    let (worker, awake) = (stopped.workers[0], awake_ns(&stopped.workers).unwrap());
    assert_eq!(worker.ran_ns, Some(awake + worker.asleep_ns));
    assert!(worker.asleep_ns > awake, "{worker:?}");
    // With at most 20 calls none is timed, so there is no estimate.
    assert_eq!((waits.flushes_timed, waits.flush_ns), (0, None));
}

#[test]
fn waits_for_locks_flushes_and_wake_ups_are_told_a_packet() {
    let mut stopped = trial(1000);
    stopped.pool.locks.wait_ticks = 3000;
    for (worker, (asleep_ns, run_delay_ns)) in
        stopped.workers.iter_mut().zip([(4000, 200), (1000, 300)])
    {
        (worker.asleep_ns, worker.run_delay_ns) = (asleep_ns, Some(run_delay_ns));
    }
    for port in &mut stopped.ports {
        port.flushes = Flushes::default();
    }
    let last = &mut stopped.ports[3].flushes;
    (last.calls, last.timed, last.timed_ns) = (1000, 40, 400);
    let waits = Waits::of(&stopped, &Locks::of(&stopped, &spent(Some(2e9))));
    assert_eq!((waits.lock_ns, waits.lock_ns_per_packet), (Some(1500), Some(1.5)));
    assert_eq!((waits.flush_ns, waits.flush_ns_per_packet), (Some(10_000), Some(10.0)));
    assert_eq!((waits.asleep_ns, waits.asleep_ns_per_packet), (5000, Some(5.0)));
    assert_eq!((waits.run_delay_ns, waits.run_delay_ns_per_packet), (Some(500), Some(0.5)));
}

#[test]
fn a_port_of_which_no_flush_was_timed_hides_the_time_unless_it_is_small() {
    let flushes = |calls, timed, timed_ns| {
        let mut flushes = Flushes::default();
        (flushes.calls, flushes.timed, flushes.timed_ns) = (calls, timed, timed_ns);
        flushes
    };
    let mut stopped = trial(1000);
    let mut time_ns = |few: Flushes| {
        stopped.ports.iter_mut().for_each(|port| port.flushes = Flushes::default());
        stopped.ports[0].flushes = few;
        stopped.ports[1].flushes = flushes(100_000, 390, 3900);
        flushed(&stopped.ports).1
    };
    assert_eq!(time_ns(flushes(0, 0, 0)), Some(1_000_000));
    assert_eq!(time_ns(flushes(500, 0, 0)), Some(1_000_000));
    // With a single timed flush on a port, there is no estimate for the port's other flushes.
    assert_eq!(time_ns(flushes(500, 1, 1_000_000)), Some(1_000_000));
    assert_eq!(time_ns(flushes(7000, 27, 270)), None);
    assert_eq!(time_ns(flushes(8000, 31, 310)), Some(1_080_000));
}

#[test]
fn rates_count_packets_and_time_to_the_end_of_the_drain() {
    let stopped = trial(1000);
    let calls = Calls::of(&stopped);
    let longest = stopped.workers.iter().filter_map(|w| w.ran_ns).max().unwrap();
    assert_eq!(calls.counted_seconds, Some(longest as f64 / 1e9));
    // Rates use the workers' own time, not the duration that the caller measured.
    assert_eq!(Calls::of(&lasted(stopped, 10)).allocs_per_second, Some(100.0));
}

#[test]
fn a_worker_that_did_not_come_back_makes_the_sum_unknown() {
    let mut stopped = trial(1000);
    assert!(awake_ns(&stopped.workers).is_some());
    stopped.workers[1] = WorkerStats::default();
    assert_eq!(awake_ns(&stopped.workers), None);
    let calls = Calls::of(&stopped);
    assert_eq!(calls.counted_seconds, None);
    assert_eq!(calls.allocs_per_second, None);
    assert_eq!(Waits::of(&stopped, &Locks::default()).run_delay_ns, None);
}
