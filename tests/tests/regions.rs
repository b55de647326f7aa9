//! Times the part of a worker's turn in which wake-ups are masked.
//!
//! While it turns, a worker has armed nothing, so senders send it no notification. This is user
//! space's region with interrupts disabled. A profile by timer interrupts sees the region like any
//! other code, but the figure of interest is its longest time and not its share.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stage, Stats, Turn, Turned, Worker};
use linerate_port::wait::poll_readable;
use linerate_prof::region::{Region, Timing};
use linerate_skb::{Batch, Pool};

/// Packets of a run: at most 64 a turn, so that there are turns for every percentile.
const PACKETS: u64 = 100_000;

/// A stage that takes a known time for each batch.
struct Spin(Duration);

impl Stage for Spin {
    fn run(&mut self, _: &mut Batch, turn: &mut Turn<'_>) {
        let until = Instant::now() + self.0;
        while !self.0.is_zero() && Instant::now() < until {
            std::hint::spin_loop();
        }
        let _ = turn.port();
    }
}

/// Returns a worker that forwards packets from one port to another, with its pool and its counts.
fn path(from: &str, to: &str, spin: Duration) -> (Worker, Pool, Stats) {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = Engine::builder().pool(&pool).port("from", from).port("to", to);
    let engine = engine.wire("from", "to").stage(move |_| Spin(spin)).build().unwrap();
    let stats = engine.stats();
    (engine.into_workers().remove(0), pool, stats)
}

/// Forwards packets from one port to another in timed turns; returns the number of turns, their
/// timing and the counts.
fn timed(from: &str, to: &str) -> (u64, Timing, Stats) {
    timed_with(from, to, Duration::ZERO)
}

/// Does the same with a stage that takes `spin` for each batch.
fn timed_with(from: &str, to: &str, spin: Duration) -> (u64, Timing, Stats) {
    let (mut worker, pool, stats) = path(from, to, spin);
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
fn every_turn_of_a_worker_is_timed_and_the_time_of_its_stages_is_in_it() {
    let (turns, timing, _) = timed("gen:,count=100k", "sink:");
    assert!(turns >= PACKETS / 64, "{turns}");
    assert_eq!((timing.count, timing.backwards), (turns, 0));
    let (p50, p99) = (timing.p50_ticks.unwrap(), timing.p99_ticks.unwrap());
    let (mean, max) = (timing.mean_ticks.unwrap(), timing.max_ticks.unwrap());
    // Percentiles have three digits.
    assert!(p50 <= p99 && p99 as f64 <= max as f64 * 1.001, "{timing:?}");
    assert!(mean > 0.0 && mean <= max as f64, "{timing:?}");
    // Without the stage's time a turn takes some microseconds. A busy machine makes turns longer,
    // never shorter; the two clocks may differ by 2 %.
    let spin = Duration::from_micros(200);
    let (_, with, _) = timed_with("gen:,count=100k", "sink:", spin);
    let least = with.ticks_hz * spin.as_secs_f64() * 0.98;
    assert!((p50 as f64) < least && with.p50_ticks.unwrap() as f64 >= least, "{with:?}");
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

#[test]
fn in_the_model_a_section_that_begins_with_an_irq_takes_what_its_flushing_reads_take() {
    // Each packet wakes the worker. The program sleeps on the worker's descriptor, so that the turn
    // after the sleep begins with the irq.
    let from = "gen:,count=500,rate=5kpps,burst=1,toll=0ns/20us";
    let (mut worker, pool, stats) = path(from, "sink:", Duration::ZERO);
    let mut masked = Region::new("turn");
    loop {
        let entered = masked.enter();
        let turned = worker.turn(Instant::now());
        masked.leave(entered);
        if turned == Turned::Ended {
            break;
        }
        if turned != Turned::Again && worker.arm().unwrap() {
            poll_readable(&[worker.as_fd()], Some(Duration::from_millis(10))).unwrap();
        }
    }
    worker.publish();
    assert_eq!(pool.ledger().sent, 500);
    let (timing, port) = (masked.timing(), stats.ports().remove(0));
    let (irqs, taken) = (port.counts.irqs(), port.driver_counts.registers.unwrap());
    // An irq reads twice, a sleep that is cancelled once; the latter is not in a turn.
    assert!(irqs > 0, "{:?}", port.counts);
    assert_eq!(taken.reads, 2 * irqs + port.counts.rechecks, "{taken:?}");
    // The two clocks may differ by 2 %.
    let in_turns_ns =
        timing.mean_ticks.unwrap() * timing.count as f64 * 1e9 / timing.ticks_hz * 1.02;
    assert!(in_turns_ns >= (irqs * 2 * 20_000) as f64, "{irqs} irqs: {timing:?}");
}
