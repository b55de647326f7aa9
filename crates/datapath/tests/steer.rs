//! Single-queue devices divided among workers: every flow stays in order, in both directions, while
//! its bucket moves.

#[path = "steer/overload.rs"]
mod overload;

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linerate_datapath::{
    Engine, EngineBuilder, PortId, Stage, StageContext, Stats, Steering, Turn, Worker,
};
use linerate_port::wait::EventFd;
use linerate_port::wrap::fault::{Fault, Faulty, Plan as FaultPlan};
use linerate_port::{
    Caps, Code, Driver, Health, Needs, Obtained, OpenContext, Opened, Plan, QueueOps, Result, Spec,
    Want,
};
use linerate_skb::{Batch, Local, Moved};
use proptest::collection::vec;
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(20);
/// Number of flows that a device has in each direction.
const FLOWS: usize = 64;

/// The driver of `talk:1,most=4` and `talk:2,doubles=true`: a device with one queue. It delivers
/// numbered UDP packets of [`FLOWS`] flows, at most `most` at a time, and accepts packets of the
/// other device if each flow is in order; with `doubles`, a packet may come twice in a row.
struct Talk;

impl Driver for Talk {
    fn name(&self) -> &'static str {
        "talk"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        let most = spec.value("most", str::parse::<usize>)?.unwrap_or(8);
        let doubles = spec.value("doubles", str::parse::<bool>)?.unwrap_or(false);
        spec.finish()?;
        Ok(Box::new(TalkPlan { host: spec.arg.parse().unwrap(), most, doubles }))
    }
}

struct TalkPlan {
    host: u8,
    most: usize,
    doubles: bool,
}

impl Plan for TalkPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: 1, packet_max_bytes: 60, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let bell = EventFd::new()?;
        bell.signal();
        let queue = Talker {
            bell,
            host: self.host,
            most: self.most,
            doubles: self.doubles,
            dice: u64::from(self.host),
            given: [0; FLOWS],
            taken: [0; FLOWS],
        };
        Ok(Opened { queues: vec![Box::new(queue)], obtained: Obtained::new("talk", "talk", 60) })
    }
}

struct Talker {
    bell: EventFd,
    host: u8,
    most: usize,
    doubles: bool,
    dice: u64,
    given: [u64; FLOWS],
    taken: [u64; FLOWS],
}

impl Talker {
    fn dice(&mut self, sides: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.dice >> 33) as usize % sides
    }
}

/// Returns a UDP packet of a flow between the two hosts: for the other direction, addresses and
/// ports are exchanged.
fn packet(host: u8, flow: usize, number: u64) -> [u8; 60] {
    let mut bytes = [0; 60];
    // Ethernet, IPv4 with a header of 20 bytes and 46 bytes in total, UDP, 18 bytes of payload.
    bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, host, 10, 0, 0, 3 - host]);
    let (own, other) = if host == 1 { (35, 37) } else { (37, 35) };
    (bytes[own], bytes[other]) = (flow as u8, 7);
    bytes[39] = 26;
    bytes[42..50].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns the flow and the number in a packet.
fn read(bytes: &[u8]) -> (usize, u64) {
    let flow = if bytes[29] == 1 { bytes[35] } else { bytes[37] };
    (flow.into(), u64::from_be_bytes(bytes[42..50].try_into().unwrap()))
}

impl QueueOps for Talker {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let mut moved = Moved::default();
        let most = self.most;
        while moved.packets < budget.min(most) {
            let flow = self.dice(FLOWS);
            let bytes = packet(self.host, flow, self.given[flow] + 1);
            let Some(skb) = mem.alloc_copy(&bytes) else { break };
            self.given[flow] += 1;
            out.push(skb).expect("no more than the budget");
            moved += Moved { packets: 1, bytes: 60 };
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        for skb in batch.iter() {
            assert_ne!(skb.data()[29], self.host, "its own packet came back");
            let (flow, number) = read(skb.data());
            let last = std::mem::replace(&mut self.taken[flow], number);
            let is_double = self.doubles && last == number;
            assert!(last < number || is_double, "flow {flow}: {number} came after {last}");
        }
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, want: Want) -> bool {
        !want.room() && self.most == 0
    }

    fn caps(&self) -> Caps {
        Caps::IN_PROCESS
    }

    fn health(&self) -> Health {
        Health::Up
    }
}

impl AsFd for Talker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Returns an engine with two devices, each divided between the same two workers.
fn divided(len: usize, budget: usize) -> (EngineBuilder, [Steering; 2]) {
    divided_between(["talk:1", "talk:2"], len, budget)
}

fn divided_between(
    devices: [&str; 2],
    len: usize,
    budget: usize,
) -> (EngineBuilder, [Steering; 2]) {
    divided_over(devices, len, budget, "")
}

/// `qdisc` is the discipline in front of each ring to a worker.
fn divided_over(
    devices: [&str; 2],
    len: usize,
    budget: usize,
    qdisc: &str,
) -> (EngineBuilder, [Steering; 2]) {
    let mut builder = Engine::builder().driver(&Talk).budget(budget);
    builder = builder.port("west", devices[0]).port("east", devices[1]);
    for ring in ["w1", "w2", "e1", "e2"] {
        let text = format!("ring:{ring},len={len}");
        builder = builder.port(ring, &(text.clone() + qdisc)).port(&format!("far-{ring}"), &text);
    }
    let steerings = [("west", ["w1", "w2"]), ("east", ["e1", "e2"])];
    let steerings = steerings.map(|(from, outputs)| Steering::new(from, &outputs).unwrap());
    let builder = builder.steer(&steerings[0]).steer(&steerings[1]);
    (builder.wire("far-w1", "far-e1").wire("far-w2", "far-e2"), steerings)
}

/// A step of a run on one thread.
#[derive(Debug, Clone)]
enum Step {
    /// A worker, given by its number, turns a number of times.
    Turn(usize, usize),
    /// Some buckets of a device are ordered to an output: the device, the first bucket, the output.
    Give(usize, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => (0..4_usize, 1..4_usize).prop_map(|(worker, times)| Step::Turn(worker, times)),
        1 => (0..2_usize, 0..256_usize, 0..2_usize).prop_map(|(side, at, to)| Step::Give(side, at, to)),
    ]
}

/// A stage that drops every packet whose number is 3 modulo 7.
struct Loser;

impl Stage for Loser {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let odd = linerate_skb::DropReason::UNWANTED;
        batch.retain(|skb| if read(skb.data()).1 % 7 == 3 { Err(odd) } else { Ok(()) });
    }

    fn runs_at_division() -> bool {
        true
    }
}

/// Time that passes from one turn to the next in tests on one thread.
const TURN: Duration = Duration::from_micros(200);

thread_local! {
    static NOW: Cell<Instant> = Cell::new(Instant::now());
}

fn turn(worker: &mut Worker, times: usize) {
    for _ in 0..times {
        NOW.set(NOW.get() + TURN);
        let _ = worker.turn(NOW.get());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Checks any order of the workers' turns and any moves of buckets: a flow that comes out of
    /// order panics.
    #[test]
    fn flows_stay_in_order_both_ways_however_they_are_moved(
        steps in vec(step(), 1..400),
        loses in any::<bool>(),
        len in prop_oneof![Just(64_usize), Just(256)],
        qdisc in prop_oneof![Just(""), Just(",qdisc=fq_codel,limit=200")],
    ) {
        let (mut builder, steerings) = divided_over(["talk:1,most=7", "talk:2,most=7"], len, 16, qdisc);
        if loses {
            builder = builder.stage(|_| Loser);
        }
        let engine = builder.build().unwrap();
        let stats = engine.stats();
        let mut workers = engine.into_workers();
        prop_assert_eq!(workers.len(), 4);
        for step in steps {
            match step {
                Step::Turn(worker, times) => turn(&mut workers[worker], times),
                Step::Give(side, at, to) => {
                    steerings[side].give(at..(at + 96).min(256), to).unwrap();
                }
            }
        }
        // Every pending move is made once all workers turn regularly.
        for steering in &steerings {
            steering.give(0..256, 1).unwrap();
        }
        for _ in 0..2000 {
            workers.iter_mut().for_each(|worker| turn(worker, 1));
            if stats.ports()[0].counts.rx_packets > 4000
                && steerings.iter().all(|steering| steering.waiting() == 0) { break }
        }
        // A bucket without flows never moves.
        let stay = steerings.each_ref().map(Steering::waiting);
        prop_assert!(stay.iter().all(|n| *n <= 128), "{:?}", stay);
        // Half of the flows began at output 0, in buckets of their own.
        let moved = steerings.each_ref().map(Steering::moved);
        prop_assert!(moved.iter().all(|n| *n >= FLOWS as u64 / 4), "{:?} moves", moved);
        drop(workers);
        prop_assert!(stats.ledger().balanced(), "{}", stats.ledger());
    }
}

/// The rings' ends at which packets are received or sent, the fault that happens there, and whether
/// flows still move under load.
const FAULTS: [([&str; 2], bool, Fault, bool); 6] = [
    (["far-w1", "far-w2"], true, Fault::Drop, true),
    (["far-w1", "far-w2"], true, Fault::Duplicate, true),
    (["w1", "w2"], false, Fault::Drop, true),
    (["e1", "e2"], true, Fault::Drop, true),
    (["far-w1", "far-w2"], true, Fault::DelayTurns(6), false),
    (["e1", "e2"], true, Fault::DelayTurns(6), false),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks the same of rings that lose, double or withhold packets: flows stay in order and
    /// move.
    #[test]
    fn flows_move_and_stay_in_order_whatever_wrappers_of_the_rings_do(
        steps in vec(step(), 1..300),
        at in 0..FAULTS.len(),
        seed in any::<u64>(),
    ) {
        let (ends, receives, fault, moves) = FAULTS[at];
        let devices = ["talk:1,doubles=true", "talk:2,doubles=true"];
        let (mut builder, steerings) = divided_between(devices, 64, 16);
        for (i, end) in ends.into_iter().enumerate() {
            let plan = FaultPlan::new(seed.wrapping_add(i as u64));
            let plan = if receives { plan.rx(fault, 3) } else { plan.tx(fault, 3) };
            builder = builder.wrap(end, move |ops, _| Ok(Box::new(Faulty::new(ops, &plan)?)));
        }
        let engine = builder.pool_frames(1 << 14).build().unwrap();
        let stats = engine.stats();
        let mut workers = engine.into_workers();
        for step in steps {
            match step {
                Step::Turn(worker, times) => turn(&mut workers[worker], times),
                Step::Give(side, at, to) => {
                    steerings[side].give(at..(at + 96).min(256), to).unwrap();
                }
            }
        }
        // All flows of the western device go to one worker, and then to the other.
        let mut round = || workers.iter_mut().for_each(|worker| turn(worker, 1));
        steerings[0].give(0..256, 1).unwrap();
        (0..300).for_each(|_| round());
        let before = steerings[0].moved();
        steerings[0].give(0..256, 0).unwrap();
        for _ in 0..3000 {
            if !moves || steerings[0].moved() >= before + FLOWS as u64 / 4 { break }
            round();
        }
        let moved = steerings[0].moved() - before;
        prop_assert!(!moves || moved >= FLOWS as u64 / 4, "{} of {} flows moved", moved, FLOWS);
        drop(workers);
        prop_assert!(stats.ledger().balanced(), "{}", stats.ledger());
    }
}

/// A stage that takes time, more on one worker than on the other, and records the flows of each
/// direction.
struct Slow {
    worker: usize,
    seen: Arc<Mutex<Vec<(usize, usize)>>>,
    quiet: Arc<AtomicBool>,
    passed: Arc<AtomicU64>,
}

impl Stage for Slow {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.passed.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if self.quiet.load(Ordering::Relaxed) {
            for _ in 0..self.worker * 500 {
                std::hint::spin_loop();
            }
            return;
        }
        let mut seen = self.seen.lock().unwrap();
        for skb in batch.iter() {
            let flow = (read(skb.data()).0, self.worker);
            if !seen.contains(&flow) {
                seen.push(flow);
            }
        }
    }
}

#[test]
fn a_device_of_one_queue_is_divided_among_workers_and_both_ways_of_a_flow_meet() {
    let (builder, steerings) = divided(1024, 64);
    let (seen, quiet, passed) = (Arc::default(), Arc::default(), Arc::<AtomicU64>::default());
    let slow = {
        let (seen, quiet, passed) = (Arc::clone(&seen), Arc::clone(&quiet), passed.clone());
        move |cx: &mut StageContext<'_>| {
            let (seen, quiet, passed) = (Arc::clone(&seen), Arc::clone(&quiet), passed.clone());
            Slow { worker: cx.worker(), seen, quiet, passed }
        }
    };
    let running = builder.stage(slow).build().unwrap().start().unwrap();
    let start = Instant::now();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(!running.failed(), "{:?}", running.wait(LONG));
            assert!(start.elapsed() < LONG, "never came true: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let of_worker = |worker: usize| {
        let seen: std::sync::MutexGuard<'_, Vec<(usize, usize)>> = seen.lock().unwrap();
        seen.iter().filter(|(_, by)| *by == worker).count()
    };
    until("all flows are seen", &|| of_worker(2) + of_worker(3) >= FLOWS);
    // Before the first move, each flow has one worker for both directions.
    assert_eq!(of_worker(2) + of_worker(3), FLOWS);
    assert!((16..48).contains(&of_worker(2)), "{} of {FLOWS} flows by worker 2", of_worker(2));
    assert_eq!(steerings.each_ref().map(Steering::moved), [0, 0]);
    quiet.store(true, Ordering::Relaxed);
    let mut at = 0;
    let moves = || steerings.iter().map(Steering::moved).sum::<u64>();
    while moves() < 100 {
        assert!(!running.failed(), "{:?}", running.wait(LONG));
        assert!(start.elapsed() < LONG, "{} moves", moves());
        at = (at + 97) % 200;
        for (i, steering) in steerings.iter().enumerate() {
            steering.give(at..at + 56, (at + i) % 2).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopped = running.stop(LONG);
    stopped.check().unwrap();
    println!("{} packets, {} moves: {}", passed.load(Ordering::Relaxed), moves(), stopped.ledger);
}

#[test]
fn a_division_ordered_before_the_engine_is_built_needs_no_move() {
    let (builder, [west, _]) = divided(64, 16);
    west.give(0..256, 1).unwrap();
    let engine = builder.build().unwrap();
    let stats = engine.stats();
    for mut worker in engine.into_workers() {
        turn(&mut worker, 3);
    }
    let ports = stats.ports();
    let sent = |name: &str| ports.iter().find(|p| p.name == name).unwrap().counts.tx_packets;
    assert!(sent("w1") == 0 && sent("w2") > 0, "{} and {}", sent("w1"), sent("w2"));
    assert_eq!((west.moved(), west.waiting()), (0, 0));
}

/// Ends a worker as a panic in one of its stages does: with packets in the rings to it and out of
/// it.
#[test]
fn flows_leave_a_worker_that_has_ended_and_stay_in_order() {
    for reads_on in [true, false] {
        let (builder, [west, _]) = divided(64, 16);
        let engine = builder.build().unwrap();
        let stats = engine.stats();
        let mut workers = engine.into_workers();
        for _ in 0..20 {
            workers.iter_mut().for_each(|worker| turn(worker, 1));
        }
        turn(&mut workers[0], 2);
        turn(&mut workers[2], 1);
        turn(&mut workers[0], 2);
        drop(workers.remove(2));
        if !reads_on {
            // The worker that would receive from the rings out of it has ended, too.
            drop(workers.remove(1));
        }
        let ledger = stats.ledger();
        let to_it = ledger.held().iter().filter(|(name, _)| name.starts_with("ring w1 "));
        assert!(to_it.map(|(_, n)| *n).sum::<u64>() > 0, "{:?}", ledger.held());
        let counts = |port: &str| stats.ports().iter().find(|p| p.name == port).unwrap().counts;
        let (sent_by_it, received) = (counts("far-e1").tx_packets, counts("e1").rx_packets);
        assert!(sent_by_it > received, "{sent_by_it} sent and {received} received");
        west.give(0..256, 1).unwrap();
        let before = counts("east").tx_packets;
        for _ in 0..500 {
            workers.iter_mut().for_each(|worker| turn(worker, 1));
        }
        let after = counts("east").tx_packets;
        assert_eq!(after > before, reads_on, "{after} after {before}");
        // Half of the flows began at output 0, in buckets of their own.
        let (moved, waiting) = (west.moved(), west.waiting());
        assert!(moved >= FLOWS as u64 / 4, "{moved} moved, {waiting} wait");
    }
}

#[test]
fn what_cannot_be_divided_is_refused_with_the_reason() {
    let e = Steering::new("a", &[]).unwrap_err();
    assert!(e.code == Code::Topology && e.fix == "1 to 32", "{e}");
    let steering = Steering::new("dev", &["r1", "r2"]).unwrap();
    for (buckets, to) in [(0..257, 0), (0..1, 2)] {
        let e = steering.give(buckets, to).unwrap_err();
        assert!(e.fix == "buckets 0..256, outputs 0..2", "{e}");
    }
    let build = |dev: &str, more: &[(&str, &str)], wire: [&str; 2]| {
        let mut builder = Engine::builder().port("dev", dev).port("s", "sink:,blind");
        for (name, text) in more {
            builder = builder.port(name, text);
        }
        let builder = builder.steer(&steering).wire(wire[0], wire[1]);
        builder.build().map(drop).unwrap_err()
    };
    let rings = [("r1", "ring:a"), ("r2", "ring:b"), ("f1", "ring:a"), ("f2", "ring:b")];
    let e = build("null:", &rings[..1], ["f1", "s"]);
    assert!(e.why.contains("'r2', and there is no such port") || e.why.contains("'f1'"), "{e}");
    let e = build("null:,queues=2", &rings, ["f1", "s"]);
    assert!(e.why.contains("it has 2 queues") && e.fix.starts_with("queues=1"), "{e}");
    let e = build("null:", &rings, ["r2", "s"]);
    assert_eq!(e.why, "'r2' is on more than one wire");
    assert_eq!(e.fix, "a wire carries packets both ways: leave out the second wire");
}

/// A stage that sends every packet to a port of its own worker, if it has one.
struct Elsewhere(Option<PortId>);

impl Stage for Elsewhere {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        if let Some(port) = self.0 {
            batch.decide(|_| Ok(port.verdict()));
        }
    }

    fn runs_at_division() -> bool {
        true
    }
}

#[test]
fn a_packet_that_a_stage_has_sent_elsewhere_is_not_divided() {
    let steering = Steering::new("west", &["w1"]).unwrap();
    let builder =
        Engine::builder().driver(&Talk).port("west", "talk:1").port("host", "sink:,blind");
    let builder = builder.port("w1", "ring:w1").port("far", "ring:w1").port("s", "sink:,blind");
    let builder = builder.steer(&steering).wire("far", "s");
    let elsewhere = |cx: &mut StageContext<'_>| match cx.worker() {
        0 => Elsewhere(Some(cx.port("host"))),
        _ => Elsewhere(None),
    };
    let engine = builder.stage(elsewhere).build().unwrap();
    let stats = engine.stats();
    for mut worker in engine.into_workers() {
        turn(&mut worker, 3);
    }
    let ports = stats.ports();
    let sent = |name: &str| ports.iter().find(|p| p.name == name).unwrap().counts.tx_packets;
    assert!(sent("host") > 0 && sent("w1") == 0, "{} and {}", sent("host"), sent("w1"));
}

/// Notes how many packets it has seen on its worker.
struct Noted(usize, Arc<Mutex<Vec<(usize, u64)>>>);

impl Stage for Noted {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.1.lock().unwrap()[self.0].1 += batch.len() as u64;
    }
}

#[test]
fn packet_of_a_divided_device_passes_a_stage_once_behind_the_rings() {
    let seen = Arc::new(Mutex::new((0..4).map(|worker| (worker, 0)).collect::<Vec<_>>()));
    let (builder, _steerings) = divided(1024, 64);
    let notes = seen.clone();
    let builder = builder.stage(move |cx| Noted(cx.worker(), notes.clone()));
    let engine = builder.build().unwrap();
    let stats = engine.stats();
    let mut workers = engine.into_workers();
    for _ in 0..50 {
        workers.iter_mut().for_each(|worker| turn(worker, 1));
    }
    let seen = seen.lock().unwrap().clone();
    // The devices are on the first two workers.
    assert_eq!((seen[0].1, seen[1].1), (0, 0), "{seen:?}");
    let came: u64 =
        stats.ports().iter().filter(|port| !port.flags.paired).map(|p| p.counts.rx_packets).sum();
    let waiting = came - seen[2].1 - seen[3].1;
    assert!(seen[2].1 > 0 && seen[3].1 > 0 && waiting <= 4 * 64, "{seen:?} of {came}");
}
