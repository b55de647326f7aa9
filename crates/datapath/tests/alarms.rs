//! Stages that are called without packets, at the times of their alarms.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, PortId, Stage, Stats, Turn, Turned, Worker};
use linerate_port::Queue;
use linerate_port::wait::poll_readable;
use linerate_skb::{Batch, DropReason};

/// The longest wait of a test.
const LONG: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);

/// A stage that sends `left` packets after the last one that it saw, one in each step.
struct Repeats {
    to: PortId,
    times: u64,
    left: u64,
    next: Option<Instant>,
    calls: Arc<AtomicU64>,
}

impl Stage for Repeats {
    fn run(&mut self, _: &mut Batch, turn: &mut Turn<'_>) {
        self.left = self.times;
        self.next = (self.times > 0).then(|| turn.now() + STEP);
    }

    fn alarm(&self) -> Option<Instant> {
        self.next
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        assert!(self.next.is_some_and(|at| at <= turn.now()), "it is called too early");
        let packet = turn.alloc_copy(&[2; 60]).unwrap();
        assert!(turn.send(self.to, packet));
        self.left -= 1;
        self.next = (self.left > 0).then(|| turn.now() + STEP);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns an engine with such a stage on a wire between two rings to the program, and the calls of
/// the stage.
fn repeats(times: u64) -> (Engine, Arc<AtomicU64>) {
    let calls = Arc::<AtomicU64>::default();
    let its = calls.clone();
    let engine = Engine::builder().port("near", "ring:a,len=256").port("far", "ring:b,len=256");
    let engine = engine.port("mine", "ring:a").port("also mine", "ring:b").wire("near", "far");
    let engine = engine.keep("mine").keep("also mine").stage(move |cx| Repeats {
        to: cx.port("far"),
        times,
        left: 0,
        next: None,
        calls: its.clone(),
    });
    (engine.build().unwrap(), calls)
}

/// Returns the worker of such an engine, whose calls have not begun, and the program's queues.
fn worker(times: u64) -> (Worker, [Queue; 2], Stats, Arc<AtomicU64>) {
    let (mut engine, calls) = repeats(times);
    let queues = ["mine", "also mine"].map(|port| engine.take(port).remove(0));
    let stats = engine.stats();
    (engine.into_workers().remove(0), queues, stats, calls)
}

fn send(queue: &mut Queue) {
    let mut batch = Batch::with_capacity(1);
    batch.push(queue.local().alloc_copy(&[1; 60]).unwrap()).unwrap();
    queue.xmit(&mut batch);
}

/// Receives what waits; returns the number of packets.
fn receive(queue: &mut Queue) -> usize {
    let mut batch = Batch::with_capacity(64);
    queue.rx(&mut batch);
    let n = batch.len();
    batch.drain().for_each(|skb| skb.discard(DropReason::UNSENT));
    n
}

#[test]
fn sleeping_worker_wakes_for_each_alarm_and_for_nothing_else() {
    let (mut worker, [mut from, mut to], stats, calls) = worker(4);
    send(&mut from);
    let start = Instant::now();
    while calls.load(Ordering::Relaxed) < 4 {
        assert!(start.elapsed() < LONG, "an alarm was missed");
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(LONG)).unwrap();
    }
    assert!(start.elapsed() >= 4 * STEP);
    worker.turn(Instant::now());
    assert_eq!(receive(&mut to), 5, "the packet, and one for each alarm");
    let slept = || stats.workers()[0].sleeps;
    assert!(slept() <= 5, "{} sleeps", slept());
}

#[test]
fn program_that_sleeps_on_the_descriptor_is_woken_for_each_alarm_and_for_nothing_else() {
    let (mut worker, [mut from, mut to], _, calls) = worker(4);
    send(&mut from);
    let (start, mut wakes) = (Instant::now(), 0);
    while calls.load(Ordering::Relaxed) < 4 {
        assert!(start.elapsed() < LONG, "an alarm was missed");
        if worker.turn(Instant::now()) != Turned::Again && worker.arm().unwrap() {
            assert!(poll_readable(&[worker.as_fd()], Some(LONG)).unwrap());
            wakes += 1;
        }
    }
    assert!(start.elapsed() >= 4 * STEP && wakes <= 5, "{wakes} wake-ups");
    worker.turn(Instant::now());
    assert_eq!(receive(&mut to), 5);
    while worker.turn(Instant::now()) == Turned::Again {}
    assert!(worker.arm().unwrap(), "no alarm is left");
    assert!(!poll_readable(&[worker.as_fd()], Some(4 * STEP)).unwrap());
}

#[test]
fn worker_whose_stage_has_no_alarm_sleeps_until_the_timeout() {
    let (mut worker, [mut from, mut to], stats, calls) = worker(0);
    send(&mut from);
    while worker.turn(Instant::now()) == Turned::Again {}
    assert_eq!(receive(&mut to), 1);
    // What the packet left behind ends one sleep at most.
    for _ in 0..2 {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(STEP)).unwrap();
    }
    let before = stats.workers()[0].sleeps;
    let (start, turned) = (Instant::now(), worker.turn(Instant::now()));
    worker.park(turned, Some(4 * STEP)).unwrap();
    assert!(start.elapsed() >= 4 * STEP);
    assert_eq!((stats.workers()[0].sleeps - before, calls.load(Ordering::Relaxed)), (1, 0));
}

/// A stage whose alarm is always at this time, or always now.
struct Past(Option<Instant>, Arc<AtomicU64>);

impl Stage for Past {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {}

    fn alarm(&self) -> Option<Instant> {
        Some(self.0.unwrap_or_else(Instant::now))
    }

    fn alarmed(&mut self, _: &mut Turn<'_>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn alarm_that_is_always_due_keeps_no_worker_busy_and_prevents_no_end() {
    for at in [Some(Instant::now()), None] {
        keeps_no_worker_busy(at);
    }
}

fn keeps_no_worker_busy(at: Option<Instant>) {
    let calls = Arc::<AtomicU64>::default();
    let its = calls.clone();
    let engine = Engine::builder().port("near", "ring:a").port("mine", "ring:a").keep("mine");
    let engine = engine.port("sink", "sink:,blind").wire("near", "sink");
    let mut engine = engine.stage(move |_| Past(at, its.clone())).build().unwrap();
    let (_mine, stats) = (engine.take("mine"), engine.stats());
    let mut worker = engine.into_workers().remove(0);
    let start = Instant::now();
    while start.elapsed() < 4 * STEP {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(LONG)).unwrap();
    }
    let most = start.elapsed().as_millis() as u64 + 2;
    let (called, slept) = (calls.load(Ordering::Relaxed), stats.workers()[0].sleeps);
    assert!((1..=most).contains(&called) && slept <= most, "{called} calls, {slept} sleeps");
    assert!(worker.drain(LONG).unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), called, "a worker that drains calls no alarm");
}

/// A stage that panics when it is called for its alarm.
struct Panics(Instant);

impl Stage for Panics {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {}

    fn alarm(&self) -> Option<Instant> {
        Some(self.0)
    }

    fn alarmed(&mut self, _: &mut Turn<'_>) {
        panic!("a stage's alarm panics");
    }
}

#[test]
fn panic_in_an_alarm_ends_the_engine_with_an_error_and_loses_no_frame() {
    let engine = Engine::builder().port("near", "ring:a").port("mine", "ring:a").keep("mine");
    let engine = engine.port("sink", "sink:,blind").wire("near", "sink");
    let mut engine = engine.stage(|_| Panics(Instant::now())).build().unwrap();
    let mine = engine.take("mine");
    let running = engine.start().unwrap();
    assert!(running.wait(LONG).is_err());
    drop(mine);
    let stopped = running.stop(LONG);
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

#[test]
fn threads_of_an_engine_call_alarms_until_it_is_stopped() {
    let (mut engine, calls) = repeats(u64::MAX);
    let [mut from, mut to] = ["mine", "also mine"].map(|port| engine.take(port).remove(0));
    let running = engine.start().unwrap();
    send(&mut from);
    let (start, mut received) = (Instant::now(), 0);
    while received < 4 {
        assert!(start.elapsed() < LONG, "{received} packets");
        to.wait(Some(LONG)).unwrap();
        received += receive(&mut to);
    }
    drop((from, to));
    running.stop(LONG).check().unwrap();
    let called = calls.load(Ordering::Relaxed);
    assert!(called >= 3);
    std::thread::sleep(4 * STEP);
    assert_eq!(calls.load(Ordering::Relaxed), called);
}
