//! Tests complete engines on ports that need no privilege.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, EngineBuilder, PortId, Stage, Turn, Turned, Xconnect};
use linerate_port::pcap::{self, Frame};
use linerate_port::{Code, Obtained};
use linerate_skb::{Batch, DropReason, Pool};
use linerate_testing::may_pin;

const LONG: Duration = Duration::from_secs(20);

/// Returns an engine with two workers: from port `gen` to a ring, and from the ring to port `sink`.
fn over_ring(source: &str, ring: &str, sink: &str) -> EngineBuilder {
    let engine = Engine::builder().port("gen", source).port("r0", ring).port("r1", ring);
    engine.port("sink", sink).wire("gen", "r0").wire("r1", "sink")
}

/// Returns an engine with a wire from port `a` to port `b`.
fn wired(a: &str, b: &str) -> EngineBuilder {
    Engine::builder().port("a", a).port("b", b).wire("a", "b")
}

#[test]
fn every_packet_crosses_two_workers_and_is_verified() {
    let engine =
        over_ring("gen:,count=200k,size=imix,flows=16", "ring:r", "sink:").build().unwrap();
    let running = engine.start().unwrap();
    assert!(running.wait(LONG).unwrap(), "{:?}", running.stats().ledger());
    let stopped = running.stop(LONG);
    let ledger = &stopped.ledger;
    assert_eq!((ledger.created, ledger.sent, ledger.in_flight), (200_000, 200_000, 0));
    assert_eq!(ledger.difference(), 0, "{ledger}");
    let found = stopped.ports[3].verified.unwrap();
    assert_eq!((found.packets, found.lost, found.reordered), (200_000, 0, 0));
    assert_eq!((found.corrupted, found.duplicated, found.foreign), (0, 0, 0));
    assert_eq!(stopped.ports[2].counts.rx_packets, 200_000);
}

#[test]
fn a_stop_under_load_loses_nothing_and_names_what_it_dropped() {
    for _ in 0..5 {
        let engine = over_ring("gen:", "ring:r,len=256", "sink:").build().unwrap();
        let running = engine.start().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let stopped = running.stop(LONG);
        let ledger = &stopped.ledger;
        assert!(ledger.is_drained(), "{ledger}");
        assert!(ledger.sent > 0 && ledger.sent == ledger.created, "{ledger}");
        assert_eq!(stopped.ports[3].verified.unwrap().lost, 0);
    }
}

#[test]
fn a_pool_too_small_for_its_holders_is_refused_with_the_sum() {
    let builder = || Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b");
    let e = builder().pool_frames(100).build().unwrap_err();
    assert_eq!(e.code, Code::PoolTooSmall);
    assert!(e.why.contains("worker 0 hot list 1024") && e.why.contains(" = "), "{e}");
    let need: u32 = e.fix.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(builder().pool_frames(need).build().is_ok());
    assert!(builder().pool_frames(need - 1).build().is_err());
}

#[test]
fn a_topology_that_makes_no_sense_is_refused() {
    let two = || Engine::builder().port("a", "gen:").port("b", "sink:");
    for (builder, word) in [
        (two().wire("a", "c"), "no such port"),
        (two().wire("a", "a"), "joins 'a' to itself"),
        (two().wire("a", "b").wire("b", "a"), "more than one wire"),
        (two().port("a", "null:").wire("a", "b"), "two ports"),
        (two().port("r", "ring:x").wire("a", "r"), "1 of the two ends"),
        (two().port("s", "sink:").wire("b", "s"), "only be written"),
        (two().port("g", "gen:").wire("a", "g"), "only be read"),
    ] {
        let e = builder.build().unwrap_err();
        assert_eq!(e.code, Code::Topology, "{e}");
        assert!(e.why.contains(word), "{e}");
    }
}

#[test]
fn a_capture_that_a_refused_engine_would_write_keeps_its_packets() {
    let path = std::env::temp_dir().join(format!("linerate-kept-{}.pcapng", std::process::id()));
    let frames = [Frame { stamp_ns: 0, bytes: vec![7; 60] }];
    pcap::write_all(&path, &frames).unwrap();
    // The second port of a wire is written, unless its text says `read`.
    let engine =
        Engine::builder().port("a", "sink:").port("b", &format!("pcap:{}", path.display()));
    let e = engine.wire("a", "b").build().unwrap_err();
    assert!(e.code == Code::Topology && e.why.contains("only be written"), "{e}");
    let kept = pcap::read_all(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(kept, frames);
}

/// Returns a file with a capture of one packet, and the packet.
fn capture(name: &str) -> (std::path::PathBuf, [Frame; 1]) {
    let name = format!("linerate-{name}-{}.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    let frames = [Frame { stamp_ns: 0, bytes: vec![7; 60] }];
    pcap::write_all(&path, &frames).unwrap();
    (path, frames)
}

#[test]
fn a_capture_that_an_engine_would_write_keeps_its_packets_if_the_engine_never_runs() {
    let (path, frames) = capture("unused");
    let text = format!("pcap:{}", path.display());
    let builder = || Engine::builder().port("gen", "gen:,count=9").port("out", &text);
    drop(builder().wire("gen", "out").build().unwrap());
    let dropped = pcap::read_all(&path).unwrap();
    // The second worker cannot be built.
    let two = builder().port("gen2", "gen:").port("out2", "sink:");
    let two = two.wire("gen", "out").wire("gen2", "out2");
    let two = two.stage(|cx| ToSelf(cx.port(if cx.worker() == 0 { "out" } else { "absent" })));
    let e = two.build().unwrap_err();
    let refused = pcap::read_all(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(e.why.contains("worker 1 asks for port 'absent'"), "{e}");
    assert_eq!((&dropped[..], &refused[..]), (&frames[..], &frames[..]));
}

#[test]
fn an_engine_that_captured_nothing_leaves_an_empty_capture() {
    let ((path, _), (source, _)) = (capture("empty"), capture("source"));
    pcap::write_all(&source, &[]).unwrap();
    let engine = Engine::builder().port("in", &format!("pcap:{}", source.display()));
    let engine = engine.port("out", &format!("pcap:{}", path.display())).wire("in", "out");
    let running = engine.build().unwrap().start().unwrap();
    assert!(running.wait(LONG).unwrap());
    running.stop(LONG).check().unwrap();
    let left = pcap::read_all(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

struct ToSelf(PortId);

impl Stage for ToSelf {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        for skb in batch.iter_mut() {
            turn.send(self.0, skb.share());
        }
    }
}

#[test]
fn a_stage_can_copy_to_a_port_on_no_wire() {
    let engine = Engine::builder()
        .port("gen", "gen:,count=10k")
        .port("out", "sink:")
        .port("mirror", "sink:")
        .wire("gen", "out")
        .stage(|cx| ToSelf(cx.port("mirror")))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    assert!(running.wait(LONG).unwrap());
    let stopped = running.stop(LONG);
    let sent = |i: usize| stopped.ports[i].counts.tx_packets;
    assert_eq!(sent(1), 10_000);
    assert_eq!(sent(2) + stopped.ledger.dropped(DropReason::TX_FULL), 10_000);
    assert_eq!(stopped.ledger.difference(), 0, "{stopped}");
}

#[test]
fn a_stage_that_asks_for_a_port_that_is_not_there_is_refused() {
    let e = wired("gen:", "sink:").stage(|cx| ToSelf(cx.port("tap"))).build().unwrap_err();
    assert!(e.why.contains("'tap'") && e.fix.contains("a b"), "{e}");
}

struct Panics;

impl Stage for Panics {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        panic!("a stage's own fault");
    }
}

#[test]
fn a_stage_that_panics_ends_its_worker_and_leaks_nothing() {
    let engine = wired("gen:,count=10", "sink:").stage(|_| Panics).build().unwrap();
    let running = engine.start().unwrap();
    let failed = running.wait(LONG).unwrap_err();
    assert!(failed.what.contains("worker 0") && failed.why.contains("a stage's own fault"));
    assert!(running.failed() && !running.finished());
    let stopped = running.stop(Duration::ZERO);
    assert_eq!((stopped.failed.as_ref(), stopped.check()), (Some(&failed), Err(failed.clone())));
    let text = stopped.to_string();
    assert!(text.ends_with(&format!("\nFAILED: {failed}")), "{text}");
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

/// Panics in its turn, and again when it is dropped.
struct PanicsTwice;

impl Stage for PanicsTwice {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        panic!("a stage's own fault");
    }
}

impl Drop for PanicsTwice {
    fn drop(&mut self) {
        panic!("a stage's second fault");
    }
}

#[test]
fn a_stage_that_panics_again_when_it_is_dropped_ends_its_worker_only() {
    let engine = wired("gen:,count=10", "sink:").stage(|_| PanicsTwice).build().unwrap();
    let running = engine.start().unwrap();
    let failed = running.wait(LONG).unwrap_err();
    assert!(failed.why.contains("a stage's own fault"), "{failed}");
    let stopped = running.stop(Duration::ZERO);
    assert_eq!(stopped.check(), Err(failed));
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

/// Passes packets on in `.0` more turns, then drops its own packets and panics.
struct PanicsAfter(u32);

impl Stage for PanicsAfter {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let Some(left) = self.0.checked_sub(1) else {
            batch.discard(DropReason::UNWANTED);
            panic!("a stage's own fault");
        };
        self.0 = left;
    }
}

#[test]
fn panic_leaks_nothing_of_what_waits_on_a_list_or_in_a_discipline() {
    // A ring that is not read refuses packets of a list of two; the rate of the other port lets
    // few packets leave the discipline.
    let shaped = "sink:,tx_batch=2,shape=1Mbit,burst=1514,qdisc=fq_codel";
    for to in ["ring:unread,len=64,tx_batch=2", shaped] {
        // Each turn brings a whole budget, so that few turns fill what is in front of the device.
        let engine = wired("gen:", to);
        let engine = match to.starts_with("ring:") {
            true => engine.port("unread", "ring:unread,len=64").keep("unread"),
            false => engine,
        };
        let mut engine = engine.stage(|_| PanicsAfter(3)).build().unwrap();
        let mut unread = engine.take("unread");
        let running = engine.start().unwrap();
        let failed = running.wait(LONG).unwrap_err();
        assert!(failed.why.contains("a stage's own fault"), "{to}: {failed}");
        let stats = running.stats().clone();
        let stopped = running.stop(Duration::ZERO);
        let waited = stopped.ledger.dropped(DropReason::STOPPED);
        assert!(stopped.ports[1].counts.tx_packets > 0 && waited > 0, "{to}: {stopped}");
        let mut batch = Batch::with_capacity(64);
        for queue in &mut unread {
            queue.rx(&mut batch);
            batch.discard(DropReason::UNWANTED);
        }
        drop(unread);
        assert!(stats.ledger().is_drained(), "{to}: {:?}", stats.ledger());
    }
}

#[test]
fn a_port_that_fails_is_an_error_of_the_wait_and_of_the_stopped_engine() {
    let path = std::env::temp_dir().join(format!("cut-off-{}.pcap", std::process::id()));
    let head = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1_u32];
    // A packet of 4 bytes, then one that claims 60 bytes and has none.
    let words = [&head[..], &[0, 0, 4, 4, 7], &[0, 0, 60, 60]].concat();
    std::fs::write(&path, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let engine = Engine::builder()
        .port("file", &format!("pcap:{}", path.display()))
        .port("out", "sink:")
        .port("other", "gen:,rate=10pps")
        .port("there", "sink:")
        .wire("file", "out")
        .wire("other", "there")
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    // The other wire keeps running.
    let failed = running.wait(LONG).unwrap_err();
    assert_eq!((failed.code, running.failed()), (Code::Capture, false));
    assert!(failed.what.starts_with("port 'file': "), "{failed}");
    let stopped = running.stop(LONG);
    std::fs::remove_file(&path).unwrap();
    assert_eq!((stopped.failed.clone(), stopped.check()), (None, Err(failed.clone())));
    assert!(stopped.to_string().ends_with(&format!("OK\nFAILED: {failed}")), "{stopped}");
}

#[test]
fn a_stopped_engine_tells_what_was_missed_and_who_kept_the_frames() {
    let engine = Engine::builder().port("a", "gen:,count=10").port("b", "sink:").wire("a", "b");
    let pool = Pool::builder().frames(16_384).build().unwrap();
    let kept = pool.local().alloc_one();
    let running = engine.pool(&pool).build().unwrap().start().unwrap();
    assert_eq!(running.wait(LONG), Ok(true));
    let mut stopped = running.stop(LONG);
    assert_eq!(stopped.check(), Ok(()));
    assert!(!stopped.to_string().contains('\n') && stopped.to_string().ends_with("OK"));
    stopped.ports[0].counts.rx_missed = 521;
    stopped.ports[0].counts.rx_nombuf = 7;
    stopped.ports[0].driver_counts.missed_ring_full = 500;
    stopped.ports[0].driver_counts.longer_ring = Some("ring=4096");
    let told = "missed 521 before port 'a', in no ledger: 500 ring full (a longer ring: ring=4096)\n\
                port 'a' starved 7 times: the program holds 1 packets\nreceived";
    assert!(stopped.to_string().starts_with(told), "{stopped}");
    assert_eq!(stopped.check(), Ok(()));
    drop(kept);
}

#[test]
fn an_engine_without_ports_is_told_that_it_has_none() {
    let e = Engine::builder().build().unwrap_err();
    assert!(e.code == Code::Topology && e.why.contains("no port") && !e.fix.is_empty(), "{e}");
}

#[test]
fn a_wait_returns_when_its_time_is_over_or_a_waker_is_used() {
    let engine = Engine::builder().port("a", "gen:,rate=1pps").port("b", "sink:").wire("a", "b");
    let running = engine.build().unwrap().start().unwrap();
    let start = Instant::now();
    assert_eq!(running.wait(Duration::from_millis(50)), Ok(false));
    assert!(start.elapsed() >= Duration::from_millis(50));
    // A waker ends the present wait, or the next one.
    let waker = running.waker();
    waker.wake();
    assert_eq!(running.wait(Duration::MAX), Ok(false));
    let thread = std::thread::spawn(move || waker.wake());
    assert_eq!(running.wait(Duration::MAX), Ok(false));
    thread.join().unwrap();
    assert_eq!(running.stop(LONG).check(), Ok(()));
}

#[test]
fn a_worker_can_be_turned_by_hand_on_a_pool_of_ones_own() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = wired("gen:,count=1000", "sink:").pool(&pool).build().unwrap();
    let mut worker = engine.into_workers().remove(0);
    loop {
        match worker.turn(Instant::now()) {
            Turned::Ended => break,
            turned => worker.park(turned, Some(LONG)).unwrap(),
        }
    }
    assert_eq!(pool.ledger().sent, 1000);
}

#[test]
fn a_single_packet_leaves_in_the_turn_in_which_it_comes() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = wired("gen:,count=1", "sink:").pool(&pool).build().unwrap();
    let mut worker = engine.into_workers().remove(0);
    worker.turn(Instant::now());
    assert_eq!((pool.ledger().created, pool.ledger().sent), (1, 1));
}

#[test]
fn a_drained_worker_takes_nothing_in_and_leaves_nothing_behind() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let engine = wired("gen:", "sink:").pool(&pool).build().unwrap();
    let mut worker = engine.into_workers().remove(0);
    worker.turn(Instant::now());
    // Each turn also sends the packets that it receives.
    assert!(pool.ledger().sent > 0, "{}", pool.ledger());
    assert!(worker.drain(LONG).unwrap());
    let sent = pool.ledger().sent;
    assert!(sent > 0 && worker.drain(LONG).unwrap());
    assert_eq!((pool.ledger().sent, pool.ledger().in_flight), (sent, 0));
}

#[test]
fn a_worker_is_pinned_where_it_is_told() {
    if !may_pin() {
        return;
    }
    let build = |cpu| wired("gen:,rate=1pps", "sink:").cpus(&[cpu]).build();
    let allowed = linerate_sys::thread::allowed_cpus().unwrap();
    for &cpu in &allowed {
        let before: Vec<_> = std::fs::read_dir("/proc/self/task").unwrap().flatten().collect();
        let running = build(cpu).unwrap().start().unwrap();
        let mut pinned = false;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let new = before.iter().all(|b| b.path() != task.path());
            let only = format!("Cpus_allowed_list:\t{cpu}\n");
            pinned |= new && status.contains("Name:\tlinerate-0") && status.contains(&only);
        }
        assert!(pinned, "no worker on CPU {cpu} alone");
        drop(running);
    }
    let e = build(100_000).unwrap_err();
    assert_eq!(e.code, Code::Cpu, "{e}");
}

#[test]
fn a_stop_is_never_slept_through() {
    for i in 0..300 {
        // No timer and no packet wakes a worker: without the stop it sleeps for ever.
        let engine = Engine::builder()
            .port("a", "ring:r,len=64")
            .port("b", "sink:")
            .port("c", "ring:r,len=64")
            .port("d", "sink:")
            .wire("a", "b")
            .wire("c", "d")
            .build()
            .unwrap();
        let running = engine.start().unwrap();
        // The workers are at any point between their first turn and their first sleep.
        (0..i * 20).for_each(|_| std::hint::spin_loop());
        let start = Instant::now();
        drop(running);
        // A thread that does not end is left behind after 3 s.
        assert!(start.elapsed() < Duration::from_secs(3), "a worker slept on");
    }
}

#[test]
fn a_stop_with_time_left_drops_nothing() {
    for i in 0..150u32 {
        let engine = over_ring("gen:", "ring:r,len=64", "sink:").build().unwrap();
        let running = engine.start().unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(i) * 37 % 2000));
        let stopped = running.stop(LONG);
        assert_eq!(stopped.ledger.dropped_total(), 0, "{stopped}");
        assert!(stopped.ledger.is_drained(), "{stopped}");
    }
}

#[test]
fn an_engine_in_a_pool_of_the_programs_own_finishes() {
    let pool = Pool::builder().frames(16_384).build().unwrap();
    let mine = pool.local().alloc_one().unwrap();
    let engine = wired("gen:,count=10", "sink:").pool(&pool).build().unwrap();
    let running = engine.start().unwrap();
    assert!(running.wait(LONG).unwrap());
    let start = Instant::now();
    let stopped = running.stop(LONG);
    assert!(start.elapsed() < LONG / 2 && stopped.ledger.in_flight == 1, "{stopped}");
    drop(mine);
}

struct PanicsIfFirst(usize);

impl Stage for PanicsIfFirst {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        assert!(self.0 > 0 || batch.is_empty(), "a stage's own fault");
    }
}

#[test]
fn a_dead_worker_is_noticed_while_others_run() {
    let engine = Engine::builder()
        .port("a", "gen:,rate=1kpps")
        .port("b", "sink:")
        .port("c", "gen:,rate=1kpps")
        .port("d", "sink:")
        .wire("a", "b")
        .wire("c", "d")
        .stage(|cx| PanicsIfFirst(cx.worker()))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    let start = Instant::now();
    while !running.failed() {
        assert!(start.elapsed() < LONG, "the end was not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopped = running.stop(LONG);
    assert!(stopped.failed.is_some());
    assert!(stopped.ledger.dropped(DropReason::STOPPED) > 0, "{stopped}");
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

/// Packets in a ring that the failed worker read will never be received.
#[test]
fn a_stop_waits_for_the_packets_of_live_workers_and_not_for_those_of_a_failed_one() {
    let engine = Engine::builder()
        .port("r1", "ring:r")
        .port("b", "sink:")
        .port("a", "gen:")
        .port("r0", "ring:r")
        .port("c", "gen:,count=200,size=60")
        // 12,000 bytes take about 1.8 s: they still wait when the stop begins.
        .port("d", "sink:,shape=50kbit,burst=1k")
        .wire("r1", "b")
        .wire("a", "r0")
        .wire("c", "d")
        .stage(|cx| PanicsIfFirst(cx.worker()))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    let start = Instant::now();
    while !running.failed() || running.stats().ports()[4].counts.rx_packets < 200 {
        assert!(start.elapsed() < LONG, "{}", running.stats().ledger());
        std::thread::sleep(Duration::from_millis(1));
    }
    let start = Instant::now();
    let stopped = running.stop(LONG);
    assert!(stopped.failed.is_some() && start.elapsed() < LONG / 2, "{stopped}");
    assert_eq!(stopped.ports[5].counts.tx_packets, 200, "{stopped}");
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

#[test]
fn more_queues_than_verdicts_are_refused() {
    let mut builder = Engine::builder().port("a", "gen:").port("b", "sink:").wire("a", "b");
    for i in 0..127 {
        builder = builder.port(&format!("s{i}"), "sink:");
    }
    let e = builder.build().unwrap_err();
    assert!(e.why.contains("129 queues"), "{e}");
}

struct MirrorsIfItCan(Option<PortId>);

impl Stage for MirrorsIfItCan {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if let Some(port) = self.0 {
            batch.iter_mut().take(1).for_each(|skb| assert!(turn.send(port, skb.share())));
        }
    }
}

#[test]
fn a_stage_can_ask_for_a_port_that_only_one_worker_has() {
    let engine = Engine::builder()
        .port("a", "gen:,count=100")
        .port("b", "sink:")
        .port("c", "gen:,count=100")
        .port("d", "sink:")
        .port("mirror", "sink:")
        .wire("a", "b")
        .wire("c", "d")
        .stage(|cx| MirrorsIfItCan(cx.find("mirror")))
        .build()
        .unwrap();
    let running = engine.start().unwrap();
    assert!(running.wait(LONG).unwrap());
    let stopped = running.stop(LONG);
    assert!(stopped.ports[4].counts.tx_packets > 0, "{stopped}");
}

#[test]
fn an_idle_engine_sleeps() {
    let start = Instant::now();
    let engine = wired("gen:,rate=2pps", "sink:").build().unwrap();
    let running = engine.start().unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    let ports = running.stop(LONG).ports;
    // Packets at 0, 0.5, 1 s and so on: a wake-up for each, and one for the stop.
    let most = 1 + start.elapsed().as_millis() as u64 / 500;
    assert!(ports[0].counts.polls <= 4 * most, "{:?}", ports[0].counts);
    let packets = ports[0].counts.rx_packets;
    assert!((2..=most).contains(&packets), "{packets} packets, {most} at most");
}

#[test]
fn stage_is_created_with_what_was_obtained_for_its_ports() {
    let (told, tells) = mpsc::channel();
    let builder = wired("gen:count=1,size=600", "sink:");
    let builder = builder.port("other", "gen:count=1").port("its", "sink:").wire("other", "its");
    let engine = builder.workers(2).stage(move |cx| {
        let obtained = ["a", "b"].map(|port| cx.find(port).and_then(|port| cx.obtained(port)));
        told.send((cx.worker(), obtained.map(Option::<&Obtained>::cloned))).unwrap();
        Xconnect
    });
    let engine = engine.build().unwrap();
    let ports = engine.stats().ports();
    let expected = ports[..2].iter().map(|port| Some(port.obtained.clone())).collect::<Vec<_>>();
    let mut seen: Vec<_> = tells.iter().take(2).collect();
    seen.sort_by_key(|(worker, _)| *worker);
    assert_eq!((seen[0].1.as_slice(), &seen[1].1), (&*expected, &[None, None]));
}
