//! Tests complete engines and their memory: frames that fit packets, pools that run out of frames,
//! and which worker frees whose packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{
    Code, Engine, PortId, Running, Stage, Steering, Stopped, Turn, Turned, Worker,
};
use linerate_port::Port;
use linerate_port::pcap::{self, Frame};
use linerate_skb::{Batch, DropReason, Init, Ledger, Pool, PoolStats, Return, Trust};
use linerate_testing::may_pin;

const LONG: Duration = Duration::from_secs(20);

fn finish(running: Running) -> Stopped {
    assert!(running.wait(LONG).unwrap(), "{:#}", running.stats().ledger());
    running.stop(LONG)
}

/// Returns the number of packets that the holder `name` holds.
fn held(ledger: &Ledger, name: &str) -> u64 {
    ledger.held().iter().find(|(known, _)| known == name).map_or(0, |(_, n)| *n)
}

/// A stage that counts packets of 9000 bytes, and their fragments.
#[derive(Clone, Default)]
struct Pieces(Arc<[AtomicUsize; 2]>);

impl Pieces {
    fn count(&self) -> [usize; 2] {
        [0, 1].map(|i| self.0[i].load(Ordering::Relaxed))
    }
}

impl Stage for Pieces {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        for skb in batch.iter().filter(|skb| skb.len() == 9000) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            self.0[1].fetch_add(1 + skb.fragments(), Ordering::Relaxed);
        }
    }
}

#[test]
fn frames_that_fit_carry_the_longest_packet_in_one_and_no_memory_is_added_later() {
    let pieces = Pieces::default();
    let seen = pieces.clone();
    let engine = Engine::builder()
        .fit_packets(true)
        .port("gen", "gen:,count=20k,size=9000")
        .port("sink", "sink:")
        .wire("gen", "sink")
        .stage(move |_| seen.clone())
        .build()
        .unwrap();
    let (pool, memory_bytes) = (engine.stats().pool().clone(), engine.stats().pool().stats());
    assert_eq!(pool.frame_size(), 16_384);
    assert_eq!(engine.warnings().len(), 0);
    let stopped = finish(engine.start().unwrap());
    assert_eq!((stopped.ledger.sent, pieces.count()), (20_000, [20_000, 20_000]));
    assert_eq!(stopped.ports[1].verified.unwrap().packets, 20_000);
    assert_eq!(stopped.memory_bytes, memory_bytes.memory_bytes());
    assert_eq!(pool.stats().memory_bytes(), memory_bytes.memory_bytes());
}

#[test]
fn a_captured_packet_is_in_pieces_unless_frames_fit_or_a_jumbo_class_has_room() {
    let path = std::env::temp_dir().join(format!("linerate-fit-{}.pcapng", std::process::id()));
    let frames = [60, 9000, 1500].map(|len| Frame { stamp_ns: 0, bytes: vec![7; len] });
    pcap::write_all(&path, &frames).unwrap();
    for (fit, jumbo_frames, expected) in [(false, 0, 6), (true, 0, 1), (false, 8, 1)] {
        let pieces = Pieces::default();
        let seen = pieces.clone();
        let engine = Engine::builder()
            .fit_packets(fit)
            .jumbo(jumbo_frames, 16_384)
            .port("file", &format!("pcap:{}", path.display()))
            .port("null", "null:")
            .wire("file", "null")
            .stage(move |_| seen.clone())
            .build()
            .unwrap();
        // A capture may contain packets that are longer than any frame.
        assert_eq!(engine.warnings().len(), usize::from(fit), "{:?}", engine.warnings());
        let running = engine.start().unwrap();
        let start = Instant::now();
        while pieces.count()[0] == 0 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = running.stop(LONG);
        assert_eq!(pieces.count(), [1, expected], "fit {fit}, {jumbo_frames} jumbo frames");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_empty_pool_stops_nobody_and_the_path_recovers_when_frames_return() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local_with(0);
    let mut mine = Batch::with_capacity(4096);
    assert_eq!(mem.alloc(&mut mine, 4096), 4096);
    let running = Engine::builder()
        .pool(&pool)
        .port("gen", "gen:,count=10k")
        .port("r0", "ring:r,len=64")
        .port("r1", "ring:r,len=64")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink")
        .build()
        .unwrap()
        .start()
        .unwrap();
    let counts = |i: usize| running.stats().ports()[i].counts;
    let start = Instant::now();
    // No packet moves, but the worker is not stuck: it keeps asking for frames.
    while counts(0).rx_nombuf < 10 {
        assert!(start.elapsed() < LONG, "{:?}", counts(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((counts(0).rx_packets, counts(3).rx_nombuf, running.failed()), (0, 0, false));
    mine.consume(&mut mem);
    let stopped = finish(running);
    let ledger = &stopped.ledger;
    assert_eq!((ledger.sent, ledger.dropped_total(), ledger.difference()), (10_000, 0, 0));
    assert!(ledger.starved >= 10, "{ledger}");
}

#[test]
fn a_pool_of_few_frames_is_handed_out_to_the_last_and_used_again() {
    let pool = Pool::builder().frames(2048).build().unwrap();
    let engine = Engine::builder()
        .pool(&pool)
        .hot_list_len(64)
        .port("gen", "gen:,count=5k")
        .port("sink", "sink:")
        .wire("gen", "sink")
        .build()
        .unwrap();
    let (mut mem, mut mine) = (pool.local_with(0), Batch::with_capacity(2048));
    assert_eq!(mem.alloc(&mut mine, 2045), 2045);
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    // Three frames are enough for one worker: each turn sends the packets of the previous one.
    while worker.turn(Instant::now()) != Turned::Ended {}
    let counts = stats.ports()[0].counts;
    assert_eq!(counts.rx_packets, 5000);
    // The last poll finds the end of the source.
    assert_eq!((counts.rx_nombuf, counts.polls_empty), (5000 / 3, 1), "{counts:?}");
}

/// A stage that sends one packet of its own for each packet that it gets.
struct Adds(PortId);

impl Stage for Adds {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        for i in 0..batch.len() {
            let skb = if i % 2 == 0 { turn.alloc_copy(b"odd") } else { turn.alloc() };
            turn.send(self.0, skb.unwrap());
        }
    }
}

#[test]
fn a_pool_of_the_sum_of_its_holders_has_a_packet_for_each_that_a_stage_adds() {
    let engine = Engine::builder()
        .port("gen", "gen:,count=10k")
        .port("sink", "sink:")
        .port("added", "sink:,blind")
        .wire("gen", "sink")
        .stage(|cx| Adds(cx.port("added")))
        .build()
        .unwrap();
    let stopped = finish(engine.start().unwrap());
    let sent = |i: usize| stopped.ports[i].counts.tx_packets;
    assert_eq!(
        (sent(1), sent(2), stopped.ledger.dropped_total()),
        (10_000, 10_000, 0),
        "{stopped}"
    );
    assert_eq!((stopped.ledger.starved, stopped.ledger.difference()), (0, 0), "{stopped}");
}

/// Turns each of `workers` in turn, `times` times.
fn turn(workers: &mut [Worker], times: usize) {
    for _ in 0..times {
        workers.iter_mut().for_each(|worker| {
            let _ = worker.turn(Instant::now());
        });
    }
}

#[test]
fn the_ledger_says_which_ring_and_which_backlog_has_the_packets() {
    let engine = Engine::builder()
        .backlog(100)
        .port("gen", "gen:")
        .port("west", "ring:r,len=128")
        .port("east", "ring:r,len=128")
        .port("sink", "sink:")
        .wire("gen", "west")
        .wire("east", "sink")
        .build()
        .unwrap();
    let stats = engine.stats();
    let mut workers = engine.into_workers();
    // The first worker fills the ring and its backlog; the second one has received one budget.
    turn(&mut workers, 1);
    turn(&mut workers[..1], 10);
    let ledger = stats.ledger();
    assert_eq!(held(&ledger, "west backlog"), 100, "{ledger:#}");
    turn(&mut workers[1..], 1);
    let ledger = stats.ledger();
    assert_eq!(ledger.in_flight, 100 + 64, "{ledger:#}");
    assert_eq!(held(&ledger, "ring r forth"), 64, "{ledger:#}");
    assert_eq!((held(&ledger, "ring r back"), held(&ledger, "the program")), (0, 0), "{ledger:#}");
    let stats = stats.pool().stats();
    let names = stats.cores.iter().filter(|core| core.alive).map(|core| core.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["worker 0", "worker 1"]);
}

#[test]
fn engine_does_not_change_the_sampling_of_a_pool_that_the_program_made() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    pool.set_sampling(1);
    let engine = Engine::builder().port("gen", "gen:,count=100").port("sink", "sink:");
    let engine = engine.wire("gen", "sink").pool(&pool).sampling(0).build().unwrap();
    let stopped = finish(engine.start().unwrap());
    let timed = stopped.pool.cores.iter().map(|core| core.alloc_time.calls).sum::<u64>();
    assert!(timed > 0, "{:?}", stopped.pool.cores);
}

#[test]
fn with_a_core_for_each_wire_no_packet_is_freed_on_another() {
    if !may_pin() {
        return;
    }
    let cpus = linerate_port::thread::allowed_cpus().unwrap();
    if cpus.len() < 2 {
        return println!("skipped: one CPU");
    }
    let wires = || {
        let engine = Engine::builder().port("a", "gen:,count=100k").port("b", "sink:");
        let engine = engine.port("c", "gen:,count=100k").port("d", "sink:");
        engine.wire("a", "b").wire("c", "d").cpus(&cpus[..2])
    };
    for (init, return_to) in [(Init::AtAlloc, Return::Local), (Init::AtFree, Return::Home)] {
        let engine = wires().init(init).return_to(return_to).build().unwrap();
        let pool = finish(engine.start().unwrap()).pool;
        assert_eq!((pool.matrix.remote(), pool.matrix.local()), (0, 200_000));
        let known = |core: &&linerate_skb::CoreStats| core.allocs > 0;
        let on: Vec<_> = pool.cores.iter().filter(known).map(|c| c.cpu.unwrap()).collect();
        assert_eq!(on, cpus[..2]);
        assert_eq!(cpus[..2].iter().map(|&c| pool.matrix.frees(c, c)).max(), Some(100_000));
    }
}

/// Sends 100,000 packets over a ring to a worker that frees them.
fn over_a_ring(cpus: &[usize]) -> PoolStats {
    let engine = Engine::builder().port("gen", "gen:,count=100k").port("r0", "ring:r");
    let engine = engine.port("r1", "ring:r").port("sink", "sink:").wire("gen", "r0");
    let engine = engine.wire("r1", "sink").cpus(cpus).sampling(4).build().unwrap();
    finish(engine.start().unwrap()).pool
}

#[test]
fn producer_and_consumer_on_one_core_free_nothing_on_another() {
    if !may_pin() {
        return;
    }
    let cpu = linerate_port::thread::allowed_cpus().unwrap()[0];
    let matrix = over_a_ring(&[cpu, cpu]).matrix;
    assert_eq!((matrix.frees(cpu, cpu), matrix.remote(), matrix.unknown()), (100_000, 0, 0));
}

#[test]
fn over_a_ring_every_packet_is_freed_on_the_other_core_and_counted() {
    if !may_pin() {
        return;
    }
    let cpus = linerate_port::thread::allowed_cpus().unwrap();
    if cpus.len() < 2 {
        return println!("skipped: one CPU");
    }
    let pool = over_a_ring(&cpus[..2]);
    assert_eq!((pool.matrix.frees(cpus[0], cpus[1]), pool.matrix.local()), (100_000, 0));
    assert_eq!((pool.dwell[0].packets(), pool.dwell[1].packets() > 0), (0, true));
}

/// A stage that sends packets of one port to another port, and counts packets that a peer may
/// write.
struct Crosses {
    ways: Vec<(PortId, PortId)>,
    exported: Arc<[AtomicUsize; 2]>,
}

impl Stage for Crosses {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let exported = batch.iter().filter(|skb| skb.trust() == Trust::Exported).count();
        self.exported[0].fetch_add(exported, Ordering::Relaxed);
        self.exported[1].fetch_add(batch.len() - exported, Ordering::Relaxed);
        if let Some((_, to)) = self.ways.iter().find(|(from, _)| *from == turn.port()) {
            batch.set_verdicts(to.verdict());
        }
    }

    fn reads_exported() -> bool {
        true
    }
}

/// Returns the text of a memif port with a socket of its own.
fn memif(name: &str, role: &str) -> String {
    format!("memif:@linerate-memory-{name}-{},role={role}", std::process::id())
}

/// Starts an engine that receives from a memif client.
fn server(name: &str) -> Running {
    let text = memif(name, "server");
    let engine = Engine::builder().port("memif", &text).port("sink", "sink:,blind");
    engine.wire("memif", "sink").build().unwrap().start().unwrap()
}

#[test]
fn peer_of_one_wire_has_no_packet_of_another_wire_in_reach() {
    let server = server("apart");
    for workers in [1, 2] {
        let engine = Engine::builder()
            .workers(workers)
            .port("a", "gen:,count=10k")
            .port("memif", &memif("apart", "client"))
            .port("b", "gen:,count=500")
            .port("sink", "sink:")
            .wire("a", "memif")
            .wire("b", "sink");
        let mut engine = engine.build().unwrap();
        assert!(engine.wait_until_up(LONG));
        let (stats, stopped) = (engine.stats(), finish(engine.start().unwrap()));
        assert!(stopped.check().is_ok(), "{stopped}");
        let [private, exported] = stats.pools() else { panic!("{:?}", stats.pools()) };
        assert_eq!((private.trust(), exported.trust()), (Trust::Private, Trust::Exported));
        assert_eq!((private.ledger().sent, exported.ledger().sent), (500, 10_000), "{stopped}");
        assert_eq!((stopped.ledger.sent, stopped.ledger.difference()), (10_500, 0), "{stopped}");
        let cost = stopped.pool;
        assert_eq!(cost.cores.iter().map(|core| core.allocs).sum::<u64>(), 10_500, "{cost}");
        // Packets are processed in place, and none is copied.
        assert_eq!(stopped.ports[1].driver_counts.copied_bytes, Some(0));
    }
    drop(server);
}

#[test]
fn packet_that_a_stage_moves_to_or_from_a_peers_wire_is_copied_and_counted() {
    let (server, exported) = (server("crosses"), Arc::<[AtomicUsize; 2]>::default());
    let seen = exported.clone();
    let engine = Engine::builder()
        .workers(1)
        .port("a", "gen:,count=2000")
        .port("memif", &memif("crosses", "client"))
        .port("b", "gen:,count=500")
        .port("west", "ring:crosses")
        .port("east", "ring:crosses")
        .port("sink", "sink:")
        .wire("a", "memif")
        .wire("b", "west")
        .wire("east", "sink")
        .stage(move |cx| Crosses {
            ways: vec![(cx.port("a"), cx.port("west")), (cx.port("b"), cx.port("memif"))],
            exported: seen.clone(),
        });
    let mut engine = engine.build().unwrap();
    assert!(engine.wait_until_up(LONG));
    let stopped = finish(engine.start().unwrap());
    let copied = |port: &str| {
        let port = stopped.ports.iter().find(|stats| stats.name == port).unwrap();
        (port.counts.tx_packets, port.driver_counts.copied_bytes.unwrap_or(0))
    };
    assert_eq!(
        (copied("memif"), copied("west")),
        ((500, 500 * 60), (2000, 2000 * 60)),
        "{stopped}"
    );
    assert_eq!(stopped.ports[5].verified.unwrap().packets, 2000);
    assert_eq!((stopped.ledger.sent, stopped.ledger.difference()), (2500, 0), "{stopped}");
    // Only packets of `a` were writable by the peer; packets out of the ring are private again.
    let seen = exported.each_ref().map(|n| n.load(Ordering::Relaxed));
    assert_eq!(seen, [2000, 500 + 2000]);
    drop(server);
}

#[test]
fn packets_that_a_peer_has_not_taken_at_the_stop_do_not_count_as_sent() {
    // Nothing reads from this end: its queue is never called.
    let dead = Port::open(&memif("dead", "server")).unwrap();
    let engine = Engine::builder()
        .port("gen", "gen:,count=1000")
        .port("memif", &format!("{},size=64", memif("dead", "client")))
        .wire("gen", "memif");
    let mut engine = engine.build().unwrap();
    assert!(engine.wait_until_up(LONG));
    let (running, start) = (engine.start().unwrap(), Instant::now());
    while running.stats().ports()[1].counts.tx_packets < 64 {
        assert!(start.elapsed() < LONG, "{:#}", running.stats().ledger());
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopped = running.stop(Duration::ZERO);
    stopped.check().unwrap();
    let (counts, ledger) = (stopped.ports[1].counts, &stopped.ledger);
    assert_eq!((counts.tx_packets, counts.tx_bytes, ledger.sent), (0, 0, 0), "{stopped}");
    assert_eq!(ledger.dropped(DropReason::PEER_GONE), 64, "{stopped}");
    drop(dead);
}

/// A stage that drops packets which it cannot read in place, and does not declare that it may get
/// such packets.
struct Filter;

impl Stage for Filter {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| if skb.data().is_empty() { Err(DropReason::MALFORMED) } else { Ok(()) });
    }
}

#[test]
fn stage_that_reads_in_place_gets_no_packet_that_a_peer_may_write() {
    let server = server("filter");
    let engine = |text: &str| {
        let engine = Engine::builder().port("gen", "gen:,count=1000").port("memif", text);
        engine.wire("gen", "memif").stage(|_| Filter)
    };
    let mut built = engine(&memif("filter", "client")).build().unwrap();
    assert!(built.wait_until_up(LONG));
    assert_eq!(built.stats().pool().trust(), Trust::Private);
    let stopped = finish(built.start().unwrap());
    let port = &stopped.ports[1];
    assert!(port.obtained.mode.contains("by copies"), "{}", port.obtained);
    assert!(port.obtained.refused.iter().any(|why| why.contains("stage")), "{}", port.obtained);
    let copied = (port.counts.tx_packets, port.driver_counts.copied_bytes);
    assert_eq!(copied, (1000, Some(60_000)), "{stopped}");
    drop(server);
    // An explicit request is refused rather than changed.
    let e = engine(&format!("{},zerocopy=yes", memif("filter", "client"))).build().unwrap_err();
    assert!(e.fix.contains("zerocopy=no") && e.fix.contains("reads_exported"), "{e}");
    let pool = Pool::builder().frames(8192).trust(Trust::Exported).build().unwrap();
    let e = engine("sink:,blind").pool(&pool).build().unwrap_err();
    assert!(e.code == Code::Unsupported && e.fix.contains("reads_exported"), "{e}");
}

#[test]
fn steering_on_packets_that_a_peer_may_write_is_refused_with_its_own_remedy() {
    let steering = Steering::new("west", &["w1"]).unwrap();
    let engine = |west: &str| {
        let engine = Engine::builder().port("west", west).port("w1", "ring:w1");
        let engine = engine.port("far", "ring:w1").port("s", "sink:,blind");
        engine.steer(&steering).wire("far", "s")
    };
    let e = engine(&format!("{},zerocopy=yes", memif("steered", "client"))).build().unwrap_err();
    assert!(e.why.contains("while Steering reads"), "{e}");
    assert_eq!(e.fix, "say zerocopy=no");
    let pool = Pool::builder().frames(8192).trust(Trust::Exported).build().unwrap();
    let e = engine("null:").pool(&pool).build().unwrap_err();
    assert!(e.code == Code::Unsupported && e.why.contains("while Steering reads"), "{e}");
    assert_eq!(e.fix, "make the pool private");
}

#[test]
fn backlog_that_has_left_holds_nothing() {
    let engine = Engine::builder()
        .backlog(100)
        .port("gen", "gen:count=300")
        .port("west", "ring:r,len=128")
        .port("east", "ring:r,len=128")
        .port("sink", "sink:");
    let engine = engine.wire("gen", "west").wire("east", "sink").build().unwrap();
    let stats = engine.stats();
    let mut workers = engine.into_workers();
    turn(&mut workers, 1);
    turn(&mut workers[..1], 10);
    assert_eq!(held(&stats.ledger(), "west backlog"), 100);
    turn(&mut workers, 20);
    let ledger = stats.ledger();
    assert_eq!((held(&ledger, "west backlog"), ledger.in_flight), (0, 0), "{ledger:#}");
}
