//! Tests engines whose ports have wrappers.

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Running};
use linerate_port::wrap::fault::{Fault, FaultStats, Faulty, Plan};
use linerate_port::wrap::tee::{Limits, Tee};
use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Code, Error, Queue, QueueOps, pcap, ring};
use linerate_skb::{Batch, DropReason, Local, Moved, Pool};
use linerate_testing::eventually;
use linerate_wire::stamp;

use common::{LONG, pass};

/// A file in memory, which its writer shares with the test.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Bytes {
    /// Returns the numbers of the packets in the file, as a reader of captures finds them.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let name = format!("linerate-{name}-{}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &*self.0.lock().unwrap()).unwrap();
        let frames = pcap::read_all(&path);
        std::fs::remove_file(&path).unwrap();
        frames.unwrap().iter().map(|f| stamp::read(&f.bytes).unwrap().seq).collect()
    }
}

/// Returns a ring: the test keeps one end, and the other may replace a queue.
fn ring_of(name: &str, pool: &Pool) -> (Queue, Box<dyn QueueOps>) {
    let (mut near, mut far) = ring::pair(name, 256, pool).unwrap();
    (Queue::new(near.queues.remove(0), pool.local()), far.queues.remove(0))
}

#[test]
fn a_capture_of_a_running_engine_has_the_packets_of_its_time_and_no_others() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (mut west, west_end) = ring_of("west", &pool);
    let (mut east, east_end) = ring_of("east", &pool);
    let tee = Tee::new(Limits::default()).unwrap();
    let (on_west, on_east) = (tee.clone(), tee.clone());
    let (mut west_end, mut east_end) = (Some(west_end), Some(east_end));
    // The engine opens its ports by text; then an end of the ring replaces the queue that the text
    // opened.
    let engine = Engine::builder()
        .pool(&pool)
        .port("west", "null:")
        .port("east", "null:")
        .wire("west", "east")
        .wrap("west", move |_, _| Ok(west_end.take().unwrap()))
        .wrap("east", move |_, _| Ok(east_end.take().unwrap()))
        .wrap("west", move |ops, _| on_west.wrap(ops, "west"))
        .wrap("east", move |ops, _| on_east.wrap(ops, "east"))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    pass(&mut west, &mut east, 0..1000);
    let file = Bytes::default();
    let writer = tee.start(file.clone()).unwrap();
    pass(&mut west, &mut east, 1000..1500);
    pass(&mut east, &mut west, 1500..1700);
    // The counts of the last call may be written after its packets have arrived.
    eventually(|| tee.counts().copied == 2 * 700);
    tee.stop();
    pass(&mut west, &mut east, 1700..3000);
    assert_eq!(writer.finish().unwrap(), 2 * 700);
    pass(&mut east, &mut west, 3000..4000);
    // Each packet was received by one port and sent by the other.
    let mut numbers = file.numbers("of-its-time");
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq((1000..1700).flat_map(|n| [n, n])), "{numbers:?}");
    let counts = tee.counts();
    assert_eq!((counts.written, counts.unwritten, counts.dropped), (2 * 700, 0, 0));
    let stopped = running.stop(LONG);
    assert!(stopped.failed.is_none(), "{:?}", stopped.failed);
    drop((west, east));
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!((ledger.created, ledger.dropped(DropReason::UNSENT)), (4000, 4000), "{ledger}");
}

/// Returns the number of packets that a port of the engine has received.
fn received(running: &Running, port: usize) -> u64 {
    running.stats().ports()[port].counts.rx_packets
}

#[test]
fn a_capture_under_load_takes_nothing_from_the_path_and_counts_what_it_leaves_out() {
    let limits = Limits { queue_bytes: 1 << 14, snaplen_bytes: 64, ..Limits::default() };
    // More copies of 60 bytes than the tee can hold at once.
    let many = (1 << 14) / 60;
    let tee = Tee::new(limits).unwrap();
    let on_ring = tee.clone();
    let engine = Engine::builder()
        .port("gen", "gen:,size=60")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("s0", "ring:s")
        .port("s1", "ring:s")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "s0")
        .wire("s1", "sink")
        .wrap("r1", move |ops, _| on_ring.wrap(ops, "r1"))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    eventually(|| received(&running, 2) > 10_000);
    let (file, before) = (Bytes::default(), received(&running, 2));
    let mut writer = tee.start(file.clone()).unwrap();
    // A disk slower than the path: nothing is written until copies have been dropped.
    eventually(|| tee.counts().dropped > 1000);
    writer.write_pending().unwrap();
    eventually(|| tee.counts().copied > many);
    let packets = writer.finish().unwrap();
    let after = received(&running, 2);
    eventually(|| received(&running, 2) > after + 10_000);
    let stopped = running.stop(LONG);
    let numbers = file.numbers("under-load");
    assert_eq!(numbers.len() as u64, packets);
    assert!(numbers.is_sorted_by(|a, b| a < b));
    // Counters are written at the end of a call, so they may lag by two calls with a budget of 64.
    let window = before..after + 2 * 64;
    assert!(numbers.iter().all(|n| window.contains(n)), "{before} {numbers:?} {after}");
    let counts = tee.counts();
    // Copies of the call in progress when the capture ended still wait for a writer.
    let waiting = counts.copied - counts.written - counts.unwritten;
    assert!(counts.written == packets && waiting <= 64, "{counts:?}");
    assert!(counts.dropped > 1000 && counts.copied + counts.dropped <= after + 128 - before);
    let ledger = &stopped.ledger;
    assert_eq!((ledger.sent, ledger.in_flight), (ledger.created, 0), "{ledger}");
    assert_eq!(ledger.difference(), 0, "{ledger}");
    let found = stopped.ports[5].verified.unwrap();
    assert_eq!((found.packets, found.lost, found.reordered), (ledger.sent, 0, 0));
}

#[test]
fn faults_between_two_workers_are_accounted_for_and_the_engine_ends() {
    let stats: Arc<Mutex<Option<Arc<FaultStats>>>> = Arc::default();
    let told = stats.clone();
    let plan = Plan::new(5)
        .rx(Fault::Drop, 10)
        .rx(Fault::Duplicate, 30)
        .rx(Fault::Stall(Duration::from_micros(100)), 20);
    let engine = Engine::builder()
        .port("gen", "gen:,count=20k")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink")
        .pool_frames(1 << 14)
        .wrap("r1", move |ops, _| {
            let faulty = Faulty::new(ops, &plan)?;
            *told.lock().unwrap() = Some(faulty.stats());
            Ok(Box::new(faulty))
        })
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    // The counts of the ring's ends differ from the number of packets in the ring.
    assert!(running.wait(LONG).unwrap(), "{}", running.stats().ledger());
    let stopped = running.stop(LONG);
    let counts = stats.lock().unwrap().as_ref().unwrap().counts();
    assert!(counts.dropped > 0 && counts.duplicated > 0 && counts.stalled > 0, "{counts:?}");
    let ledger = &stopped.ledger;
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!(ledger.dropped(DropReason::INJECTED), counts.dropped, "{ledger}");
    assert_eq!(ledger.created, 20_000 + counts.duplicated, "{ledger}");
    assert_eq!(ledger.dropped(DropReason::STOPPED), 0, "the wait is over, and none is withheld");
    assert_eq!(ledger.sent, ledger.created - counts.dropped, "{ledger}");
    let found = stopped.ports[3].verified.unwrap();
    assert_eq!((found.packets, found.duplicated), (ledger.sent, counts.duplicated));
}

/// Starts an engine that sends ten packets through a ring, one end of which has faults.
fn faulty_ring(end: &str, plan: &Plan) -> Running {
    let plan = plan.clone();
    let engine = Engine::builder()
        .port("gen", "gen:,count=10")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink")
        .wrap(end, move |ops, _| Ok(Box::new(Faulty::new(ops, &plan)?)))
        .build()
        .unwrap();
    engine.start().unwrap()
}

#[test]
fn packets_delayed_between_two_workers_are_waited_for() {
    let delay = Fault::Delay(Duration::from_millis(100));
    for (end, plan) in [("r1", Plan::new(1).rx(delay, 1)), ("r0", Plan::new(1).tx(delay, 1))] {
        let running = faulty_ring(end, &plan);
        assert!(running.wait(LONG).unwrap(), "{end}");
        let waited = running.stop(Duration::ZERO).ledger;
        let running = faulty_ring(end, &plan);
        eventually(|| running.stats().ledger().created == 10);
        let stopped = running.stop(LONG).ledger;
        for ledger in [waited, stopped] {
            assert_eq!(ledger.sent, 10, "{end}: {ledger}");
            assert!(ledger.is_drained(), "{end}: {ledger}");
        }
    }
}

/// Starts an engine that sends 100 packets to a sink, each with this delay.
fn delayed(time: Duration) -> Running {
    let plan = Plan::new(1).tx(Fault::Delay(time), 1);
    let engine = Engine::builder()
        .port("gen", "gen:,count=100")
        .port("sink", "sink:")
        .wire("gen", "sink")
        .wrap("sink", move |ops, _| Ok(Box::new(Faulty::new(ops, &plan)?)))
        .build()
        .unwrap();
    engine.start().unwrap()
}

#[test]
fn packets_delayed_before_a_port_that_is_not_read_leave_after_the_delay() {
    let running = delayed(Duration::from_millis(2));
    eventually(|| running.stats().ledger().sent == 100);
    let ledger = running.stop(LONG).ledger;
    assert_eq!((ledger.created, ledger.sent), (100, 100), "{ledger}");
    assert!(ledger.is_drained(), "{ledger}");
}

#[test]
fn packets_held_by_faults_are_dropped_as_stopped_with_the_engine() {
    let running = delayed(Duration::from_secs(3600));
    assert!(running.wait(LONG).unwrap());
    let held = running.stats().ledger();
    assert!(held.held().contains(&("held by faults".to_owned(), 100)), "{:?}", held.held());
    let (start, timeout) = (Instant::now(), Duration::from_millis(50));
    let stopped = running.stop(timeout);
    let ledger = &stopped.ledger;
    // A stop waits for them, for its whole time.
    assert!((timeout..LONG / 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!((ledger.dropped(DropReason::STOPPED), ledger.sent), (100, 0), "{ledger}");
    assert_eq!((stopped.ports[1].counts.tx_packets, stopped.ports[1].counts.tx_bytes), (0, 0));
    assert!(ledger.is_drained(), "{ledger}");
}

/// A layer that records its name when it is called.
struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Layer for Named {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        self.1.lock().unwrap().push(self.0);
        below.rx(mem, out, budget)
    }
}

#[test]
fn last_wrapper_is_nearest_to_the_worker() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let named = |name| {
        let called = called.clone();
        move |ops, _| {
            let layer = Named(name, called.clone());
            Ok(Box::new(Wrapped::around(ops, layer)) as Box<dyn QueueOps>)
        }
    };
    let engine = Engine::builder()
        .port("a", "gen:")
        .port("b", "sink:")
        .wire("a", "b")
        .wrap("a", named("first"))
        .wrap("b", named("not read"))
        .wrap("a", named("last"))
        .build()
        .unwrap();
    engine.into_workers()[0].turn(Instant::now());
    assert_eq!(*called.lock().unwrap(), ["last", "first"]);
}

#[test]
fn wrapper_that_does_not_fit_is_an_error_of_building() {
    let two = || Engine::builder().port("a", "gen:").port("b", "sink:").wire("a", "b");
    let e = two().wrap("c", |ops, _| Ok(ops)).build().unwrap_err();
    assert_eq!(e.code, Code::Topology);
    assert!(e.why.contains("around 'c', and there is no such port"), "{e}");
    let e = two().wrap("a", |_, _| Err(Error::new(Code::Memory, "cannot", "why"))).build();
    assert_eq!(e.unwrap_err().code, Code::Memory);
}
