//! Queues, workers and CPUs: which worker serves which queue, and on which CPU the worker runs.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use linerate_datapath::{
    Engine, EngineBuilder, Moderation, Running, Setting, Stage, Turn, TxBatch,
};
use linerate_port::thread::{allowed_cpus, current_cpu, run_on};
use linerate_port::wait::EventFd;
use linerate_port::{
    Caps, Code, Driver, DriverFlags, Health, Needs, Obtained, OpenContext, Opened, Plan, QueueOps,
    Result, Spec, Want,
};
use linerate_skb::{Batch, Local, Moved};
use linerate_testing::may_pin;

const LONG: Duration = Duration::from_secs(30);
/// Number of packets that each queue delivers.
const PACKETS: u64 = 20_000;

/// The driver of `lanes:N`: a device with N queues. Each packet contains the number of the queue
/// that delivers it; a queue only accepts packets from the queue with its own number, in order.
struct Lanes;

impl Driver for Lanes {
    fn name(&self) -> &'static str {
        "lanes"
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { ends: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        let (queues, shown) = spec.arg.split_once('/').unwrap_or((&spec.arg, &spec.arg));
        let [queues, shown] = [queues, shown].map(|n| n.parse().unwrap());
        Ok(Box::new(LanesPlan { queues, shown }))
    }
}

struct LanesPlan {
    queues: usize,
    /// Number of queues that exist; more may have been planned.
    shown: usize,
}

impl Plan for LanesPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: self.queues, packet_max_bytes: 60, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let open = |number| {
            let bell = EventFd::new()?;
            Ok(Box::new(Lane { bell, number, given: 0, taken: 0 }) as Box<dyn QueueOps>)
        };
        let mut obtained = Obtained::new("lanes", "lanes", 60);
        obtained.queues = self.shown;
        let queues = (0..self.shown as u64).map(open).collect::<Result<_>>()?;
        Ok(Opened { queues, obtained })
    }
}

struct Lane {
    bell: EventFd,
    number: u64,
    given: u64,
    taken: u64,
}

impl QueueOps for Lane {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let mut moved = Moved::default();
        while moved.packets < budget && self.given < PACKETS {
            let bytes = [self.number.to_be_bytes(), self.given.to_be_bytes()].concat();
            let Some(skb) = mem.alloc_copy(&bytes) else { break };
            out.push(skb).expect("no more than the budget");
            self.given += 1;
            moved += Moved { packets: 1, bytes: bytes.len() as u64 };
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        for skb in batch.iter() {
            let (number, count) = skb.data().split_at(8);
            assert_eq!(number, self.number.to_be_bytes(), "a packet of another queue");
            assert_eq!(count, self.taken.to_be_bytes(), "out of order");
            self.taken += 1;
        }
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, want: Want) -> bool {
        !want.room() && self.given == PACKETS
    }

    fn caps(&self) -> Caps {
        Caps::IN_PROCESS
    }

    fn health(&self) -> Health {
        if self.given == PACKETS { Health::Finished } else { Health::Up }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A stage that records which thread has processed packets of which queue.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(u8, ThreadId)>>>);

impl Stage for Seen {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let seen = (batch.iter().next().unwrap().data()[7], thread::current().id());
        let mut all = self.0.lock().unwrap();
        if !all.contains(&seen) {
            all.push(seen);
        }
    }
}

/// Runs wires between ports with these numbers of queues; returns the number of workers, and the
/// queues that each thread served.
fn served(builder: EngineBuilder, wires: &[[&str; 2]]) -> (usize, Vec<Vec<u8>>) {
    let seen = Seen::default();
    let by = seen.clone();
    let mut builder = builder.driver(&Lanes).stage(move |_| by.clone());
    for (i, [a, b]) in wires.iter().enumerate() {
        let (left, right) = (format!("a{i}"), format!("b{i}"));
        builder = builder.port(&left, a).port(&right, b).wire(&left, &right);
    }
    let running = builder.build().unwrap().start().unwrap();
    let workers = running.stats().workers().len();
    assert!(running.wait(LONG).unwrap(), "{:?}", running.stats().ledger());
    let stopped = running.stop(LONG);
    stopped.check().unwrap();
    let queues: u64 = stopped.ports.iter().map(|port| port.obtained.queues as u64).sum();
    assert_eq!(stopped.ledger.sent, queues * PACKETS, "{stopped}");
    let all = seen.0.lock().unwrap();
    let mut threads: Vec<ThreadId> = all.iter().map(|(_, thread)| *thread).collect();
    threads.sort_unstable_by_key(|thread| format!("{thread:?}"));
    threads.dedup();
    let of = |thread: &ThreadId| {
        let mut queues: Vec<u8> =
            all.iter().filter(|(_, t)| t == thread).map(|(q, _)| *q).collect();
        queues.sort_unstable();
        queues
    };
    let mut served: Vec<_> = threads.iter().map(of).collect();
    served.sort();
    (workers, served)
}

#[test]
fn each_queue_of_a_wire_has_a_worker_of_its_own_and_its_packets_stay_in_order() {
    let wire = ["lanes:4", "lanes:4"];
    let apart = served(Engine::builder().workers(4), &[wire]);
    assert_eq!(apart, (4, vec![vec![0], vec![1], vec![2], vec![3]]));
    assert_eq!(served(Engine::builder().workers(2), &[wire]), (2, vec![vec![0, 2], vec![1, 3]]));
    // The default is one worker.
    assert_eq!(served(Engine::builder(), &[wire]), (1, vec![vec![0, 1, 2, 3]]));
}

#[test]
fn as_many_workers_as_cpus_are_named() {
    if !may_pin() {
        return;
    }
    let cpu = allowed_cpus().unwrap()[0];
    let builder = Engine::builder().cpus(&[cpu, cpu]);
    assert_eq!(served(builder, &[["lanes:2", "lanes:2"]]), (2, vec![vec![0], vec![1]]));
    // Two wires have two workers, and the queues of a wire stay with one worker.
    let builder = Engine::builder().cpus(&[cpu, cpu]);
    let two = served(builder, &[["lanes:2", "lanes:2"]; 2]);
    assert_eq!(two, (2, vec![vec![0, 1]; 2]));
}

#[test]
fn more_workers_than_cpus_take_turns_which_is_said_and_keep_every_queue_in_order() {
    if !may_pin() {
        return;
    }
    let on_one_cpu = || {
        run_on(&allowed_cpus().unwrap()[..1]).unwrap();
        let builder = Engine::builder().port("a", "null:,queues=4").port("b", "null:,queues=4");
        let engine = builder.wire("a", "b").workers(4).build().unwrap();
        let [warning] = engine.warnings() else { panic!("{:?}", engine.warnings()) };
        assert!(warning.starts_with("workers: 4, CPUs for them: 1: they take turns"), "{warning}");
        drop(engine);
        served(Engine::builder().workers(4), &[["lanes:4", "lanes:4"]])
    };
    // A new thread, because the workers inherit its CPUs.
    let served = thread::spawn(on_one_cpu).join().unwrap();
    assert_eq!(served, (4, vec![vec![0], vec![1], vec![2], vec![3]]));
}

#[test]
fn a_cpu_that_is_named_twice_has_two_workers_which_is_said() {
    if !may_pin() {
        return;
    }
    let all = allowed_cpus().unwrap();
    let named = [all[0], all[all.len() - 1], all[0]];
    let builder = Engine::builder().port("a", "null:,queues=3").port("b", "null:,queues=3");
    let engine = builder.wire("a", "b").cpus(&named).build().unwrap();
    let [warning] = engine.warnings() else { panic!("{:?}", engine.warnings()) };
    let twice = format!("CPUs: {} is named twice: its workers take turns on it", all[0]);
    assert_eq!(*warning, twice);
    let running = engine.start().unwrap();
    let pinned = || running.stats().workers().iter().map(|w| w.pinned).collect::<Vec<_>>();
    let start = Instant::now();
    while pinned() != named.map(Some) {
        assert!(start.elapsed() < LONG, "{:?}", pinned());
        thread::sleep(Duration::from_millis(5));
    }
    running.stop(LONG).check().unwrap();
}

#[test]
fn more_workers_than_queues_are_said_to_be_none() {
    let build = |builder: EngineBuilder| {
        builder.port("a", "null:").port("b", "null:,queues=2").wire("a", "b").build().unwrap()
    };
    let engine = build(Engine::builder().workers(2));
    assert_eq!(engine.stats().workers().len(), 1);
    let [warning] = engine.warnings() else { panic!("{:?}", engine.warnings()) };
    let text =
        "workers: asked 2, applied 1: a wire has one for each queue of its port with fewer queues";
    assert!(warning.starts_with(text), "{warning}");
    assert!(warning.contains("a device of one queue by Steering (docs/placement.md)"), "{warning}");
}

#[test]
fn a_device_with_fewer_queues_than_were_planned_is_refused() {
    let builder = Engine::builder().driver(&Lanes).port("a", "lanes:4/2").port("b", "null:");
    let e = builder.wire("a", "b").build().map(drop).unwrap_err();
    assert!(e.why.contains("it opened 2 of 4 planned queues"), "{e}");
}

#[test]
fn null_ports_of_two_queues_work_on_two_workers() {
    let engine = Engine::builder().port("a", "null:,queues=2").port("b", "null:size=64,queues=2");
    let running = engine.wire("a", "b").workers(2).build().unwrap().start().unwrap();
    thread::sleep(Duration::from_millis(50));
    let cores = running.stats().pool().stats();
    let stopped = running.stop(LONG);
    stopped.check().unwrap();
    let busy =
        |core: &&linerate_datapath::CoreStats| core.name.starts_with("worker") && core.allocs > 0;
    assert_eq!(cores.cores.iter().filter(busy).count(), 2);
    // Each worker frees the packets that it allocated.
    assert_eq!(stopped.pool.matrix.remote(), 0);
    let e = Engine::builder().port("a", "null:,queues=65").build().map(drop).unwrap_err();
    assert!(e.why.contains("1 to 64"), "{e}");
}

/// Starts an engine that sends numbered packets of 16 flows over two workers to a verifying sink.
fn verified() -> Running {
    let engine = Engine::builder()
        .port("gen", "gen:,flows=16")
        .port("in", "ring:r")
        .port("out", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "in")
        .wire("out", "sink");
    engine.build().unwrap().start().unwrap()
}

#[test]
fn workers_are_moved_10_000_times_under_load_and_nothing_is_lost_or_reordered() {
    if !may_pin() {
        return;
    }
    let cpus = allowed_cpus().unwrap();
    let running = verified();
    let control = running.control();
    let before = control.set_cpus(0, &cpus[..1]).unwrap().wait(LONG).unwrap().before;
    assert_eq!(before, cpus);
    for i in 0..5_000 {
        // Move both workers at once, each to another CPU than before.
        let order = |worker: usize| control.set_cpus(worker, &[cpus[(i + worker) % cpus.len()]]);
        let asked = [0, 1].map(|worker| order(worker).unwrap());
        for (worker, asked) in asked.into_iter().enumerate() {
            let moved = asked.wait(LONG).unwrap();
            assert_eq!(moved.cpus, [cpus[(i + worker) % cpus.len()]]);
        }
    }
    // Undo the change.
    let floats = control.set_cpus(1, &before).unwrap().wait(LONG).unwrap();
    assert_eq!(floats.cpus, cpus);
    // If there is one CPU, an order for all CPUs is one for that CPU.
    let pinned = if let [cpu] = cpus[..] { Some(cpu) } else { None };
    assert_eq!(running.stats().workers()[1].pinned, pinned);
    let stopped = running.stop(LONG);
    stopped.check().unwrap();
    let found = stopped.ports[3].verified.unwrap();
    assert!(found.packets > 10_000, "{found:?}");
    assert_eq!((found.lost, found.reordered, found.duplicated), (0, 0, 0), "{found:?}");
    assert_eq!(found.packets, stopped.ledger.sent);
}

#[test]
fn a_worker_runs_where_it_was_ordered_to_and_a_sleeping_one_is_woken_for_it() {
    if !may_pin() {
        return;
    }
    let engine = Engine::builder().port("a", "gen:,rate=1pps").port("b", "sink:").wire("a", "b");
    let running = engine.build().unwrap().start().unwrap();
    for cpu in allowed_cpus().unwrap() {
        let moved = running.control().set_cpus(0, &[cpu]).unwrap().wait(LONG).unwrap();
        assert_eq!(moved.cpus, [cpu]);
        let worker = running.stats().workers()[0];
        assert_eq!((worker.cpu, worker.pinned, worker.strayed()), (Some(cpu), Some(cpu), None));
    }
}

#[test]
fn a_cpu_that_is_not_there_is_refused_and_the_worker_stays_where_it_was() {
    if !may_pin() {
        return;
    }
    let running = verified();
    let control = running.control();
    let cpu = allowed_cpus().unwrap()[0];
    let _ = control.set_cpus(1, &[cpu]).unwrap().wait(LONG).unwrap();
    for absent in [1023, 100_000] {
        let e = control.set_cpus(1, &[absent]).unwrap().wait(LONG).unwrap_err();
        assert!(e.code == Code::Cpu && e.why.contains("there is no CPU"), "{e}");
    }
    assert_eq!(running.stats().workers()[1].pinned, Some(cpu));
    let e = control.set_cpus(2, &[cpu]).map(drop).unwrap_err();
    assert!(e.code == Code::Topology && e.fix == "workers: 0..2", "{e}");
    running.stop(LONG).check().unwrap();
}

/// Moves its worker's thread without an order, as a cpuset does that loses a CPU.
struct Mover(Arc<AtomicBool>, usize);

impl Stage for Mover {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        if self.0.swap(false, Ordering::Relaxed) {
            run_on(&[self.1]).unwrap();
        }
    }
}

#[test]
fn a_worker_whose_cpu_is_taken_away_goes_on_and_says_so() {
    if !may_pin() {
        return;
    }
    let cpus = allowed_cpus().unwrap();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    if first == last {
        return eprintln!("skipped: with one CPU none can be taken away");
    }
    let taken = Arc::new(AtomicBool::new(false));
    let of_stage = taken.clone();
    let engine = Engine::builder().port("a", "gen:,rate=10kpps").port("b", "sink:").wire("a", "b");
    let engine = engine.stage(move |_| Mover(of_stage.clone(), last)).cpus(&[first]);
    let running = engine.build().unwrap().start().unwrap();
    taken.store(true, Ordering::Relaxed);
    let start = Instant::now();
    let said = loop {
        if let Some(e) = running.stats().workers()[0].strayed() {
            break e;
        }
        assert!(start.elapsed() < LONG, "{:?}", running.stats().workers());
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(said.what, format!("a worker pinned to CPU {first} runs on CPU {last}"));
    assert!(
        said.why.contains("another process moved its thread") && said.fix.contains("set_cpus"),
        "{said}"
    );
    let _ = running.control().set_cpus(0, &[first]).unwrap().wait(LONG).unwrap();
    assert_eq!(running.stats().workers()[0].strayed(), None);
    let stopped = running.stop(LONG);
    assert_eq!(stopped.ports[1].verified.unwrap().lost, 0);
}

/// A stage that counts the packets of each worker by CPU.
struct Where(Arc<[AtomicU64; 2]>, [usize; 2]);

impl Stage for Where {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let at = self.1.iter().position(|cpu| *cpu == current_cpu()).unwrap();
        self.0[at].fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

#[test]
fn a_moved_worker_s_stages_run_where_it_was_moved() {
    if !may_pin() {
        return;
    }
    let cpus = allowed_cpus().unwrap();
    let ends = [cpus[0], cpus[cpus.len() - 1]];
    if ends[0] == ends[1] {
        return eprintln!("skipped: with one CPU there is no other to move to");
    }
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let of_stage = counts.clone();
    let engine = Engine::builder().port("a", "null:").port("b", "sink:,blind").wire("a", "b");
    let engine = engine.stage(move |_| Where(of_stage.clone(), ends)).cpus(&ends[..1]);
    let running = engine.build().unwrap().start().unwrap();
    let read = || [0, 1].map(|i| counts[i].load(Ordering::Relaxed));
    for (at, cpu) in ends.into_iter().enumerate() {
        let _ = running.control().set_cpus(0, &[cpu]).unwrap().wait(LONG).unwrap();
        let (before, start) = (read(), Instant::now());
        while read()[at] == before[at] {
            assert!(!running.failed(), "{:?}", running.wait(LONG));
            assert!(start.elapsed() < LONG, "no packet on CPU {cpu}");
            thread::yield_now();
        }
        assert_eq!(read()[1 - at], before[1 - at], "seen on the other CPU");
    }
}

#[test]
fn an_order_for_a_port_reaches_its_queues_on_all_workers() {
    let engine = Engine::builder().port("a", "null:,queues=3").port("b", "null:,queues=3");
    let running = engine.wire("a", "b").workers(2).build().unwrap().start().unwrap();
    let control = running.control();
    for queue in [None, Some(0), Some(1), Some(2)] {
        let applied = control.set_moderation("a", queue, Moderation::Busy).unwrap().wait(LONG);
        assert_eq!(applied.unwrap().applied, Setting::Moderation(Moderation::Busy));
    }
    let fixed = |usecs, frames| Moderation::Fixed { usecs, frames };
    let applied = control.set_moderation("a", None, fixed(50_000, 0)).unwrap().wait(LONG).unwrap();
    let settings = [applied.asked, applied.applied];
    assert_eq!(settings, [fixed(50_000, 0), fixed(10_000, 1)].map(Setting::Moderation));
    control.set_moderation("a", None, Moderation::Busy).unwrap().wait(LONG).unwrap();
    let napi = control.set_moderation("a", Some(1), Moderation::Napi).unwrap().wait(LONG);
    assert_eq!(napi.unwrap().note, None);
    let ports = running.stats().ports();
    let modes: Vec<_> = ports[0].queues.iter().map(|queue| queue.settings.moderation).collect();
    assert_eq!(modes, [Moderation::Busy, Moderation::Napi, Moderation::Busy]);
    assert_eq!(
        [0, 1, 2, 3].map(|queue| control.worker_of("b", queue)),
        [Some(0), Some(1), Some(0), None]
    );
    let e = control.set_moderation("a", Some(3), Moderation::Busy).map(drop).unwrap_err();
    assert!(e.why == "it has no queue 3" && e.fix == "a has 3 queues, numbers 0 to 2", "{e}");
    let e = control.set_moderation("c", None, Moderation::Busy).map(drop).unwrap_err();
    assert_eq!(e.fix, "ports: a b");
}

#[test]
fn control_of_one_worker_numbers_it_as_the_engine_does() {
    if !may_pin() {
        return;
    }
    let engine = Engine::builder().port("a", "null:,queues=2").port("b", "null:,queues=2");
    let engine = engine.wire("a", "b").workers(2).build().unwrap();
    let (stats, cpu) = (engine.stats(), allowed_cpus().unwrap()[0]);
    let mut second = engine.into_workers().remove(1);
    let control = second.control();
    assert_eq!([0, 1].map(|queue| control.worker_of("a", queue)), [None, Some(1)]);
    let e = control.set_cpus(0, &[cpu]).map(drop).unwrap_err();
    assert!(e.code == Code::Topology && e.fix == "workers: 1..2", "{e}");
    let order = control.set_cpus(1, &[cpu]).unwrap();
    // On a thread of its own, because that thread is the one that is moved.
    thread::scope(|scope| _ = scope.spawn(|| second.turn(Instant::now())).join().unwrap());
    assert_eq!(order.answer().unwrap().unwrap().cpus, [cpu]);
    assert_eq!([0, 1].map(|worker| stats.workers()[worker].pinned), [None, Some(cpu)]);
    assert_eq!([0, 1].map(|worker| control.has_ended(worker)), [false; 2]);
    drop(second);
    assert_eq!([0, 1].map(|worker| control.has_ended(worker)), [false, true]);
}

#[test]
fn an_order_whose_time_has_passed_is_never_executed() {
    let engine = Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b");
    let engine = engine.build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let (control, short) = (worker.control(), Duration::from_millis(1));
    let e = control.set_moderation("a", None, Moderation::Busy).unwrap().wait(short).unwrap_err();
    assert_eq!((e.code, &*e.what), (Code::Busy, "the order was not executed"));
    let kept = control.set_moderation("b", None, Moderation::Busy).unwrap();
    worker.turn(Instant::now());
    assert!(kept.answer().is_some() && !kept.withdraw(), "executed, and not to be withdrawn");
    let ports = stats.ports();
    let modes = [0, 1].map(|port: usize| ports[port].queues[0].settings.moderation);
    assert!(modes[0] != Moderation::Busy && modes[1] == Moderation::Busy, "{modes:?}");
}

#[test]
fn order_for_a_port_reaches_all_queues_that_one_worker_serves() {
    let engine = Engine::builder().port("a", "null:,queues=3").port("b", "null:,queues=3");
    let running = engine.wire("a", "b").workers(1).build().unwrap().start().unwrap();
    let control = running.control();
    let cap = TxBatch::Packets(3);
    control.set_moderation("a", None, Moderation::Napi).unwrap().wait(LONG).unwrap();
    control.set_tx_batch("b", None, cap).unwrap().wait(LONG).unwrap();
    let ports = running.stats().ports();
    assert_eq!([ports[0].queues.len(), ports[1].queues.len()], [3, 3]);
    let modes = ports[0].queues.iter().map(|queue| queue.settings.moderation);
    assert!(modes.clone().all(|mode| mode == Moderation::Napi), "{:?}", modes.collect::<Vec<_>>());
    let caps = ports[1].queues.iter().map(|queue| queue.settings.tx_batch);
    assert!(caps.clone().all(|found| found == cap), "{:?}", caps.collect::<Vec<_>>());
}
