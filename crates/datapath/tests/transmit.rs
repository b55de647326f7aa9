//! Batches and disciplines on running engines, on ports that need no privilege.

use std::time::{Duration, Instant};

use linerate_datapath::{Engine, EngineBuilder, Running, Setting, TxBatch};
use linerate_port::QueueOps;
use linerate_port::pcap::{self, Frame};
use linerate_port::wrap::fault::{Fault, Faulty, Plan};
use linerate_skb::{Batch, DropReason};
use linerate_testing::eventually;

const LONG: Duration = Duration::from_secs(60);

/// Returns `gen → ring → sink`, whose packets are numbered and verified.
fn verified(options: &str) -> EngineBuilder {
    Engine::builder()
        .port("gen", &format!("gen:{options}"))
        .port("r0", "ring:r,len=256")
        .port("r1", "ring:r,len=256")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink")
}

/// Stops an engine, and checks that every packet made was sent and verified, in order.
fn stop_whole(running: Running) -> u64 {
    let stopped = running.stop(LONG);
    let ledger = &stopped.ledger;
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!(ledger.sent, ledger.created, "{ledger}");
    let found = stopped.ports[3].verified.unwrap();
    assert_eq!((found.lost, found.reordered, found.duplicated, found.corrupted), (0, 0, 0, 0));
    found.packets
}

/// S2.8: the cap changes between two turns, when the queue is at rest.
#[test]
fn ten_thousand_changes_of_the_cap_under_load_lose_double_and_reorder_nothing() {
    let running = verified(",size=imix,flows=16").build().unwrap().start().unwrap();
    let control = running.control();
    let caps = [1, 2, 64, 7, 1024].map(TxBatch::Packets).into_iter().chain([TxBatch::Auto]);
    for (i, cap) in caps.cycle().take(10_000).enumerate() {
        let port = ["r0", "sink"][i % 2];
        let applied = control.set_tx_batch(port, None, cap).unwrap().wait(LONG).unwrap();
        assert_eq!(
            (applied.asked, applied.applied),
            (Setting::TxBatch(cap), Setting::TxBatch(cap))
        );
        let ports = running.stats().ports();
        let set = ports.iter().find(|read| read.name == port).unwrap();
        assert_eq!(set.queues[0].settings.tx_batch, cap, "a reading shows what the last order did");
    }
    assert!(stop_whole(running) > 10_000);
}

#[test]
fn cap_of_one_rings_once_a_packet_and_a_cap_of_64_at_most_once_in_16_at_saturation() {
    for (cap, most) in [
        (TxBatch::Packets(1), 1.0),
        (TxBatch::Packets(64), 1.0 / 16.0),
        (TxBatch::Auto, 1.0 / 16.0),
    ] {
        let engine = Engine::builder().port("gen", "gen:,count=100k").port("sink", "sink:");
        let running = engine.wire("gen", "sink").tx_batch(cap).build().unwrap().start().unwrap();
        assert!(running.wait(LONG).unwrap());
        let stopped = running.stop(LONG);
        let (sink, sizes) = (&stopped.ports[1], stopped.ports[1].flushes.sizes);
        let calls = sink.flushes.calls - sizes.full();
        let each = calls as f64 / sink.counts.tx_packets as f64;
        assert_eq!((sink.counts.tx_packets, sink.tx_batch), (100_000, cap));
        assert!(each <= most && (most < 1.0 || calls == 100_000), "{cap}: {each}; {sizes}");
        assert_eq!(sizes.calls.iter().sum::<u64>(), sink.flushes.calls);
    }
}

#[test]
fn port_text_sets_the_cap_over_the_builders() {
    let engine = Engine::builder().port("a", "null:,tx_batch=2").port("b", "null:").wire("a", "b");
    let running = engine.tx_batch(TxBatch::Packets(9)).build().unwrap().start().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let stopped = running.stop(LONG);
    let caps: Vec<_> = stopped.ports.iter().map(|port| port.tx_batch).collect();
    assert_eq!(caps, [TxBatch::Packets(2), TxBatch::Packets(9)]);
}

/// Returns the rate in bits a second at which a sink behind `shape` receives, over `time` after the
/// first burst.
fn rate_of(shape: &str, pps: &str, time: Duration) -> f64 {
    let engine = Engine::builder()
        .port("gen", &format!("gen:,size=1514,rate={pps}"))
        .port("sink", &format!("null:,{shape},limit=500"));
    let engine = engine.wire("gen", "sink").build().unwrap();
    let stats = engine.stats();
    let running = engine.start().unwrap();
    std::thread::sleep(time / 5);
    let look = || (Instant::now(), stats.ports()[1].counts.tx_bytes);
    let (start, before) = look();
    std::thread::sleep(time);
    let (end, after) = look();
    drop(running);
    (after - before) as f64 * 8.0 / (end - start).as_secs_f64()
}

#[test]
fn shaped_port_sends_at_its_rate_within_a_percent() {
    // The source sends twice the rate.
    for (shape, pps, bps, burst) in [
        ("shape=10Mbit,burst=15k", "1650pps", 10e6, 15e3),
        ("shape=5Gbit,burst=30M", "825kpps", 5e9, 30e6),
    ] {
        // Other programs may keep the worker from its CPU for longer than a burst lasts.
        let near = |_| {
            let got = rate_of(shape, pps, Duration::from_secs(3));
            eprintln!("{shape}: {got:.0} bit/s");
            assert!(got < bps + burst * 8.0 / 2.9, "{shape}: {got:.0} bit/s is above it");
            (got / bps - 1.0).abs() < 0.01
        };
        assert!((0..5).any(near), "{shape}");
    }
}

#[test]
fn shaped_port_sleeps_between_two_packets() {
    let engine = Engine::builder()
        .port("gen", "gen:,rate=2kpps,size=1000")
        .port("sink", "null:,shape=1Mbit,burst=1000,limit=10");
    let engine = engine.wire("gen", "sink").build().unwrap();
    let (stats, running) = (engine.stats(), engine.start().unwrap());
    std::thread::sleep(Duration::from_secs(1));
    let stopped = running.stop(Duration::ZERO);
    let sink = &stopped.ports[1];
    // A packet each 8 ms, and fewer if other programs keep the worker from its CPU.
    assert!((50..=130).contains(&sink.counts.tx_packets), "{}", sink.counts.tx_packets);
    let worker = stats.workers()[0];
    assert!(worker.sleeps < 10_000 && worker.asleep_ns > 500_000_000, "{worker:?}");
    let qdisc = sink.qdisc.unwrap();
    assert!(
        qdisc.dropped.packets > 1000 && qdisc.dequeued.packets as u64 == sink.counts.tx_packets
    );
}

#[test]
fn stop_sends_what_a_shaped_port_holds_or_names_what_it_drops() {
    let start = |shape: &str| {
        let engine = Engine::builder()
            .port("gen", "gen:,count=300,size=1000")
            .port("sink", &format!("null:,shape={shape},burst=1000,limit=250"));
        engine.wire("gen", "sink").build().unwrap().start().unwrap()
    };
    let holding = |shape: &str| {
        let running = start(shape);
        eventually(|| running.stats().ledger().created == 300);
        running
    };
    let stopped = holding("800kbit").stop(LONG);
    let ledger = &stopped.ledger;
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!(ledger.dropped(DropReason::STOPPED), 0, "{ledger}");
    assert_eq!(ledger.sent + ledger.dropped(DropReason::QUEUE_LIMIT), ledger.created, "{ledger}");
    // Ten packets a second: most packets are held, however slow the test runs.
    let stopped = holding("80kbit").stop(Duration::ZERO);
    let ledger = &stopped.ledger;
    assert!(ledger.is_drained(), "{ledger}");
    assert!(ledger.dropped(DropReason::STOPPED) > 100, "{ledger}");
}

#[test]
fn discipline_takes_what_a_full_port_would_refuse_and_the_pool_has_frames_for_it() {
    let engine = Engine::builder()
        .port("gen", "gen:,count=5k")
        .port("sink", "null:,qdisc=fq_codel,shape=1Mbit,limit=2000");
    let engine = engine.wire("gen", "sink").build().unwrap();
    let holds =
        |holder: &linerate_datapath::Holder| holder.name == "sink qdisc" && holder.frames == 2000;
    assert!(engine.holders().iter().any(holds));
    let running = engine.start().unwrap();
    eventually(|| running.stats().ledger().created == 5000);
    let stopped = running.stop(Duration::ZERO);
    let (ledger, qdisc) = (&stopped.ledger, stopped.ports[1].qdisc.unwrap());
    assert_eq!(qdisc.enqueued.packets, 5000, "{ledger}");
    assert!(ledger.dropped(DropReason::QUEUE_LIMIT) > 0 && ledger.starved == 0, "{ledger}");
    assert_eq!(ledger.difference(), 0, "{ledger}");
}

/// Fills a queue to both limits at once, with packets that need a second frame for one byte: no
/// other packets need more frames. The engine's other holders are short, so that their frames are
/// too few to help out.
#[test]
fn queue_that_is_full_of_packets_and_of_bytes_finds_frames_for_all_of_them() {
    let path = std::env::temp_dir().join(format!("linerate-full-{}.pcapng", std::process::id()));
    pcap::write_all(&path, &vec![Frame { stamp_ns: 0, bytes: vec![7; 1793] }; 6000]).unwrap();
    let limit = format!("limit=5000,limit_bytes={}", 5000 * 1793);
    let engine = Engine::builder()
        .budget(4)
        .backlog(4)
        .hot_list_len(64)
        .port("file", &format!("pcap:{}", path.display()))
        .port("sink", &format!("null:,qdisc=fq_codel,shape=1Mbit,{limit}"));
    let engine = engine.wire("file", "sink").build().unwrap();
    let held = engine.holders().iter().find(|holder| holder.name == "sink qdisc").unwrap();
    assert_eq!(held.frames, 5000 + 5000 * 1793 / 1792);
    let running = engine.start().unwrap();
    eventually(|| running.stats().ports()[0].counts.rx_packets == 6000);
    let stopped = running.stop(Duration::ZERO);
    std::fs::remove_file(&path).unwrap();
    let (ledger, qdisc) = (&stopped.ledger, stopped.ports[1].qdisc.unwrap());
    assert_eq!(qdisc.enqueued.packets, 6000, "{ledger}");
    assert!(ledger.dropped(DropReason::QUEUE_LIMIT) > 0, "the queue was full: {ledger}");
    assert_eq!((ledger.starved, ledger.difference()), (0, 0), "{ledger}");
}

#[test]
fn text_that_no_port_can_follow_is_refused_with_what_would_fit() {
    for (text, wanted) in [
        ("null:,tx_batch=0", "1 to 1024"),
        ("null:,tx_batch", "needs a value"),
        ("null:,shape=0bit", "1kbit"),
        ("null:,shape=10Tbit", "below 10Tbit"),
        ("null:,qdisc=fifo,limit=0", "1 to 1048576"),
        ("null:,limit=5", "no option 'limit'"),
        ("null:,limit=5", "add qdisc= or shape="),
        ("null:,qdisc=fifo,target=5ms", "no option 'target'"),
    ] {
        let engine = Engine::builder().port("gen", "gen:").port("out", text).wire("gen", "out");
        let e = engine.build().unwrap_err();
        assert!(e.to_string().contains(wanted), "{text}: {e}");
    }
}

/// A device that sometimes accepts nothing, and loses a packet in the middle of a batch.
#[test]
fn refusals_and_losses_in_mid_batch_keep_order_and_books_with_any_cap() {
    for cap in [TxBatch::Packets(1), TxBatch::Packets(2), TxBatch::Packets(64), TxBatch::Auto] {
        let plan = Plan::new(7).tx(Fault::Refuse { calls: 3 }, 9).tx(Fault::Drop, 50);
        let faulty = move |ops, _| Ok(Box::new(Faulty::new(ops, &plan)?) as Box<dyn QueueOps>);
        let engine = verified(",count=20k,flows=4").tx_batch(cap).wrap("r0", faulty);
        let running = engine.build().unwrap().start().unwrap();
        assert!(running.wait(LONG).unwrap());
        let stopped = running.stop(LONG);
        let (ledger, found) = (&stopped.ledger, stopped.ports[3].verified.unwrap());
        assert!(ledger.is_drained(), "{cap}: {ledger}");
        // The fault wrapper holds packets, which a stop drops.
        let held = ledger.dropped(DropReason::STOPPED);
        let lost = ledger.dropped(DropReason::INJECTED) + held;
        assert!(lost - held > 100 && ledger.sent + lost == 20_000, "{cap}: {ledger}");
        // The loss of the last packets cannot be detected, because no packet follows them. The held
        // ones are the last.
        let known = held + found.lost;
        assert!(found.lost <= lost && known + 100 > lost, "{cap}: {found:?} of {lost}");
        assert_eq!((found.reordered, found.duplicated), (0, 0), "{cap}");
        let r0 = &stopped.ports[1];
        assert!(r0.flushes.sizes.full() > 0, "{cap}: {}", r0.flushes.sizes);
    }
}

#[test]
fn ring_of_one_passes_every_packet_in_order_with_any_cap() {
    for cap in [TxBatch::Packets(1), TxBatch::Packets(64), TxBatch::Auto] {
        let engine = Engine::builder().port("gen", "gen:,count=500,flows=4").tx_batch(cap);
        let engine = engine.port("r0", "ring:r,len=1").port("r1", "ring:r,len=1");
        let engine = engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink");
        let running = engine.build().unwrap().start().unwrap();
        assert!(running.wait(LONG).unwrap());
        assert_eq!(stop_whole(running), 500, "{cap}");
    }
}

/// Drops what waits for a peer that is gone, in the fifo, on the list or in a discipline, with the
/// reason.
#[test]
fn peer_that_goes_under_load_frees_what_waits_for_it_in_every_queue() {
    for options in ["tx_batch=2", "qdisc=fifo,limit=300", "qdisc=fq_codel,tx_batch=1"] {
        let engine = Engine::builder().port("gen", "gen:,count=5k,flows=9").wire("gen", "near");
        let engine =
            engine.port("near", &format!("ring:r,len=4,{options}")).port("far", "ring:r,len=4");
        let mut engine = engine.keep("far").build().unwrap();
        let mut far = engine.take("far").remove(0);
        let running = engine.start().unwrap();
        let (start, mut batch) = (Instant::now(), Batch::with_capacity(3));
        while far.counts().rx_packets < 100 {
            assert!(start.elapsed() < LONG, "{options}");
            far.wait(Some(Duration::from_millis(10))).unwrap();
            far.rx(&mut batch);
            batch.clear();
        }
        drop(far);
        assert!(
            running.wait(LONG).unwrap(),
            "{options}: nobody reads, and no packet waits for ever"
        );
        let ledger = running.stop(LONG).ledger;
        let gone = ledger.dropped(DropReason::PEER_GONE);
        let over = ledger.dropped(DropReason::QUEUE_LIMIT) + ledger.dropped(DropReason::CONGESTED);
        assert!(ledger.is_drained() && gone > 0, "{options}: {ledger}");
        assert_eq!(ledger.consumed + gone + over, 5000, "{options}: {ledger}");
    }
}

#[test]
fn shaped_stop_under_load_ends_soon_and_leaves_nothing() {
    for text in ["null:,shape=1Mbit,qdisc=fq_codel,limit=300", "null:,qdisc=pfifo_fast,tx_batch=1"]
    {
        let engine = Engine::builder().port("gen", "gen:,flows=100").port("out", text);
        let running = engine.wire("gen", "out").build().unwrap().start().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let since = Instant::now();
        let stopped = running.stop(Duration::from_millis(100));
        assert!(since.elapsed() < Duration::from_secs(10), "{text}");
        let ledger = &stopped.ledger;
        assert!(ledger.is_drained(), "{text}: {ledger}");
        let qdisc = stopped.ports[1].qdisc.unwrap();
        assert_eq!(qdisc.queued.packets, 0, "{text}: {qdisc:?}");
    }
}

#[test]
fn rate_of_each_flow_in_a_port_s_text_drops_what_a_flow_sends_above_it() {
    let rate = "sink:,qdisc=flow_tbf,flow_rate=100kbit,flow_burst=2000,flow_limit=4";
    let engine = Engine::builder().port("gen", "gen:,size=1000").port("sink", rate);
    let running = engine.wire("gen", "sink").build().unwrap().start().unwrap();
    eventually(|| running.stats().ledger().dropped(DropReason::FLOW_LIMIT) > 1000);
    let stopped = running.stop(Duration::ZERO);
    let ledger = &stopped.ledger;
    stopped.check().unwrap();
    let counts = stopped.ports[1].qdisc.unwrap();
    assert_eq!(counts.enqueued.packets as u64, ledger.created, "{ledger}");
    assert!(counts.dequeued.packets >= 2, "a burst: {counts:?}");
    assert_eq!(counts.dropped.packets as u64, ledger.created - ledger.sent, "{ledger}");
}
