//! Tests engines with ports that a thread of the program serves.

mod common;

use std::thread;
use std::time::Instant;

use linerate_datapath::{Engine, Steering};
use linerate_port::thread::{allowed_cpus, pin_to_cpu};
use linerate_port::{Code, Queue, pcap};
use linerate_skb::Batch;

use common::{LONG, pass};
use linerate_testing::may_pin;

/// Returns an engine with two rings to the program, and a worker between them.
fn between_rings() -> Engine {
    let engine = Engine::builder().port("near", "ring:a,len=256").port("far", "ring:b,len=256");
    let engine = engine.port("mine", "ring:a").port("also mine", "ring:b").wire("near", "far");
    engine.keep("mine").keep("also mine").build().unwrap()
}

#[test]
fn a_program_passes_packets_through_an_engine_by_the_rings_that_it_keeps() {
    let mut engine = between_rings();
    let holders: Vec<&str> = engine.holders().iter().map(|holder| &*holder.name).collect();
    for holder in ["mine: the program's batches and hot lists", "ring a both ways"] {
        assert!(holders.contains(&holder), "{holders:?}");
    }
    let [mut a, mut b] = ["mine", "also mine"].map(|port| engine.take(port).remove(0));
    assert!(engine.take("mine").is_empty() && engine.take("near").is_empty());
    let running = engine.start().unwrap();
    pass(&mut a, &mut b, 0..10_000);
    pass(&mut b, &mut a, 0..10_000);
    let ports = running.stats().ports();
    let counts: Vec<_> =
        ports.iter().map(|port| (port.name.as_str(), port.counts.rx_packets)).collect();
    assert_eq!(counts, [("near", 10_000), ("far", 10_000)]);
    assert!(!running.finished(), "the program may still send");
    drop((a, b));
    assert!(running.wait(LONG).unwrap());
    let stopped = running.stop(LONG);
    stopped.check().unwrap();
    assert!(stopped.ledger.is_drained(), "{stopped}");
}

/// S3.2: a thread of the program on the CPU of the worker that serves its ring, and on another one.
#[test]
fn packets_of_a_program_are_freed_on_its_cpu_if_that_is_its_workers() {
    const PACKETS: u64 = 10_000;
    if !may_pin() {
        return;
    }
    let cpus = allowed_cpus().unwrap();
    let (served, other) = (cpus[0], cpus[cpus.len() - 1]);
    if served == other {
        eprintln!("skipped in part: with one CPU the program cannot run on another one");
    }
    let mut places = vec![served, other];
    places.dedup();
    for cpu in places {
        let engine = Engine::builder().port("near", "ring:a,len=256").port("sink", "sink:,blind");
        let engine = engine.port("mine", "ring:a").wire("near", "sink").keep("mine");
        let mut engine = engine.cpus(&[served]).build().unwrap();
        let mine = engine.take("mine").remove(0);
        let running = engine.start().unwrap();
        assert_eq!(running.stats().workers()[0].pinned, Some(served));
        let program = thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            send(mine, PACKETS);
        });
        program.join().unwrap();
        assert!(running.wait(LONG).unwrap());
        let stopped = running.stop(LONG);
        stopped.check().unwrap();
        let freed = &stopped.pool.matrix;
        assert_eq!(freed.frees(cpu, served), PACKETS, "from CPU {cpu} to {served}: {freed:?}");
        assert_eq!(freed.remote() > 0, cpu != served, "{freed:?}");
    }
}

/// Sends packets, and then closes the queue.
fn send(mut queue: Queue, packets: u64) {
    let (mut batch, deadline) = (Batch::with_capacity(64), Instant::now() + LONG);
    let mut made = 0;
    while made < packets || !batch.is_empty() {
        assert!(Instant::now() < deadline, "{made} of {packets} packets");
        while made < packets && batch.spare() > 0 {
            batch.push(queue.local().alloc_copy(&[1; 60]).unwrap()).unwrap();
            made += 1;
        }
        queue.xmit(&mut batch);
        thread::yield_now();
    }
}

#[test]
fn what_a_program_leaves_in_its_rings_is_accounted_for() {
    for stop_first in [false, true] {
        let mut engine = between_rings();
        let stats = engine.stats();
        let mut a = engine.take("mine").remove(0);
        // The other kept port is closed with the engine.
        let running = engine.start().unwrap();
        let mut batch = Batch::with_capacity(64);
        for _ in 0..64 {
            batch.push(a.local().alloc_copy(&[1; 60]).unwrap()).unwrap();
        }
        a.xmit(&mut batch);
        if stop_first {
            drop(running);
            // Nobody reads any more: what is sent now is dropped, and does not wait.
            batch.push(a.local().alloc_copy(&[2; 60]).unwrap()).unwrap();
            a.xmit(&mut batch);
            assert!(batch.is_empty());
            drop((a, batch));
        } else {
            drop((a, batch));
            drop(running);
        }
        let ledger = stats.ledger();
        assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
    }
}

/// Returns a UDP packet from port `flow`.
fn datagram(flow: u8) -> [u8; 60] {
    let mut bytes = [0; 60];
    // Ethernet, IPv4 with a header of 20 bytes and 46 bytes in total, UDP, 18 bytes of payload.
    bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    bytes[26..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, flow, 0, 7, 0, 26]);
    bytes
}

#[test]
fn flows_of_one_device_are_divided_among_threads_of_the_program() {
    const ROUNDS: usize = 100;
    let steering = Steering::new("device", &["to 0", "to 1"]).unwrap();
    let mut engine = Engine::builder()
        .port("device", "ring:d")
        .port("wire", "ring:d")
        .port("to 0", "ring:0")
        .port("0", "ring:0")
        .port("to 1", "ring:1")
        .port("1", "ring:1")
        .steer(&steering)
        .keep("wire")
        .keep("0")
        .keep("1")
        .build()
        .unwrap();
    let [mut wire, zero, one] = ["wire", "0", "1"].map(|port| engine.take(port).remove(0));
    let running = engine.start().unwrap();
    let threads = [zero, one].map(|mut queue| {
        std::thread::spawn(move || {
            let (mut batch, mut flows) = (Batch::with_capacity(64), Vec::new());
            // Until the engine has stopped, which is the end of this source.
            while queue.wait(None).unwrap() {
                queue.rx(&mut batch);
                flows.extend(batch.drain().map(|skb| skb.data()[35]));
            }
            flows
        })
    });
    let mut batch = Batch::with_capacity(64);
    for _ in 0..ROUNDS {
        for flow in 0..64 {
            batch.push(wire.local().alloc_copy(&datagram(flow)).unwrap()).unwrap();
        }
        let until = Instant::now() + LONG;
        while wire.xmit(&mut batch) == 0 || !batch.is_empty() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }
    let until = Instant::now() + LONG;
    while running.stats().ports()[0].counts.rx_packets < 64 * ROUNDS as u64 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    running.stop(LONG).check().unwrap();
    let [zero, one] = threads.map(|thread| thread.join().unwrap());
    assert_eq!(zero.len() + one.len(), 64 * ROUNDS);
    assert!(!zero.is_empty() && !one.is_empty());
    assert!(zero.iter().all(|flow| !one.contains(flow)), "a flow has come to both");
}

#[test]
fn a_capture_that_the_program_keeps_is_read_unless_it_says_write() {
    let path = std::env::temp_dir().join(format!("kept-{}.pcapng", std::process::id()));
    let frames = [pcap::Frame { stamp_ns: 7, bytes: vec![1; 60] }];
    pcap::write_all(&path, &frames).unwrap();
    let engine = Engine::builder().port("gen", "gen:count=1").port("sink", "sink:");
    let engine = engine.wire("gen", "sink").port("mine", &format!("pcap:{}", path.display()));
    let mut queue = engine.keep("mine").build().unwrap().take("mine").remove(0);
    let mut batch = Batch::with_capacity(4);
    let came = queue.rx(&mut batch);
    let left = pcap::read_all(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!((came, left.unwrap().len()), (1, 1));
}

#[test]
fn a_kept_port_that_a_worker_would_have_to_serve_is_refused() {
    let with = |text: &str| Engine::builder().port("near", "ring:a").port("mine", text);
    for (engine, code, words) in [
        (
            with("ring:a").wire("near", "mine"),
            Code::Topology,
            "the program keeps 'mine', and it is on a wire",
        ),
        (
            with("ring:a,tx_batch=1"),
            Code::PortSyntax,
            "the program keeps the port, and tx_batch= is a worker's",
        ),
        (with("ring:a,shape=1Mbit"), Code::PortSyntax, "and a queueing discipline is a worker's"),
    ] {
        let e = engine.keep("mine").build().unwrap_err();
        assert!(e.code == code && e.why.contains(words) && !e.fix.is_empty(), "{e}");
    }
    let e = with("ring:a").keep("none").build().unwrap_err();
    assert!(e.why.contains("the program keeps 'none', and there is no such port"), "{e}");
}
