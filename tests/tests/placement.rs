//! Four adapters, as in post 003, each served on its own given CPU; and one wire between adapters
//! with two queues, served by two workers.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_datapath::{Engine, Running, Stage, Turn};
use linerate_port::thread::allowed_cpus;
use linerate_port::{Code, Port};
use linerate_skb::Batch;
use linerate_tests::netns::Netns;
use linerate_tests::topology::{EAST, Hosts, WEST, wait_for_carrier};
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, may_pin, or_skip};

const ADAPTERS: usize = 4;
/// The packets of a tenth of a second.
const PACKETS: u64 = 2_000;

/// Lets one test run at a time: the threads that are new while a test starts its engine are then
/// that engine's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pairs `a0 ═ b0` to `a3 ═ b3`.
fn links() -> Result<Netns, String> {
    let netns = Netns::new()?;
    for i in 0..ADAPTERS {
        netns.try_ip(&format!("link add dev a{i} type veth peer name b{i}"))?;
        for end in ["a", "b"] {
            netns.ip(&format!("link set dev {end}{i} up"));
        }
        wait_for_carrier(&netns, &format!("a{i}"));
        wait_for_carrier(&netns, &format!("b{i}"));
    }
    Ok(netns)
}

/// Builds an engine that receives from each adapter, from adapter `i` on `cpus[i]`.
fn adapters(cpus: &[usize]) -> Engine {
    let mut builder = Engine::builder().cpus(cpus);
    for i in 0..ADAPTERS {
        let (adapter, end) = (format!("a{i}"), format!("end{i}"));
        builder = builder
            .port(&adapter, &format!("xdp:{adapter},ring=256"))
            .port(&end, "sink:,blind")
            .wire(&adapter, &end);
    }
    builder.build().unwrap()
}

/// Sends packets to one adapter from any CPU, until the result is dropped.
fn send(adapter: usize) -> Running {
    let engine = Engine::builder()
        .port("source", "gen:,rate=20kpps,burst=1")
        .port("out", &format!("packet:b{adapter}"))
        .wire("source", "out");
    engine.build().unwrap().start().unwrap()
}

fn threads() -> BTreeSet<PathBuf> {
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path()).collect()
}

/// A worker's thread.
#[derive(Debug)]
struct Served {
    name: String,
    /// The CPUs on which the thread may run; the next field is the one on which it last ran.
    allowed: String,
    last: usize,
    /// Times that it has slept.
    sleeps: u64,
}

impl Served {
    fn read(path: &Path) -> Served {
        let [status, stat] =
            ["status", "stat"].map(|file| fs::read_to_string(path.join(file)).unwrap());
        let said = |what: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(what));
            line.unwrap().trim().to_owned()
        };
        // The CPU is the 39th field; only the second field, the name, contains a bracket.
        let last = stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap();
        Served {
            name: said("Name:"),
            allowed: said("Cpus_allowed_list:"),
            last: last.parse().unwrap(),
            sleeps: said("voluntary_ctxt_switches:").parse().unwrap(),
        }
    }
}

#[test]
fn four_adapters_are_placed_on_cpus_independently() {
    let _alone = alone();
    or_skip!(may_pin());
    let netns = or_skip!(links());
    or_skip!(available(netns.run(|| Port::open("xdp:a0").map(drop))));
    let allowed = allowed_cpus().unwrap();
    let [one, other] = [allowed[0], allowed[allowed.len() - 1]];
    if one == other {
        eprintln!("skipped: with one CPU there is nothing to choose");
        return;
    }
    // All on one CPU; on two CPUs in turn; and then one of them moved.
    for cpus in [[one; ADAPTERS], [one, other, one, other], [one, other, other, other]] {
        let engine = netns.run(|| adapters(&cpus));
        let before = threads();
        let running = engine.start().unwrap();
        let workers: Vec<_> = threads().difference(&before).cloned().collect();
        let read = || {
            let mut all: Vec<_> = workers.iter().map(|path| Served::read(path)).collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all
        };
        for (i, cpu) in cpus.into_iter().enumerate() {
            let idle = read();
            let sending = netns.run(|| send(i));
            let came = || running.stats().ports()[2 * i].counts.rx_packets >= PACKETS;
            until_true("an adapter's packets", SOON, came);
            drop(sending.stop(SOON));
            let worked = read();
            // The worker has slept between packets; the others had no packets, except perhaps a
            // stray one.
            let woken = |j: usize| worked[j].sleeps - idle[j].sleeps;
            assert_eq!((0..ADAPTERS).max_by_key(|j| woken(*j)), Some(i), "{idle:?} {worked:?}");
            assert_eq!((&worked[i].allowed, worked[i].last), (&cpu.to_string(), cpu));
        }
        drop(running.stop(SOON));
    }
}

/// Passes packets of adapter `a0` over a ring to a second worker, whose sink reads and frees them.
/// Returns the packets freed on the CPU that allocated them, and on the other one.
fn freed(netns: &Netns, cpus: [usize; 2]) -> (u64, u64) {
    let engine = netns.run(|| {
        let engine = Engine::builder().port("a0", "xdp:a0").port("r0", "ring:r").wire("a0", "r0");
        let engine = engine.port("r1", "ring:r").port("end", "sink:").wire("r1", "end");
        engine.cpus(&cpus).build().unwrap()
    });
    let running = engine.start().unwrap();
    let sending = netns.run(|| send(0));
    let came = || running.stats().ports()[3].counts.tx_packets >= PACKETS;
    until_true("an adapter's packets", SOON, came);
    drop(sending.stop(SOON));
    let stopped = running.stop(SOON);
    stopped.check().unwrap();
    (stopped.pool.matrix.local(), stopped.pool.matrix.remote())
}

#[test]
fn packets_of_an_adapter_are_freed_on_their_core_with_affinity_and_on_the_other_without() {
    let _alone = alone();
    or_skip!(may_pin());
    let netns = or_skip!(links());
    or_skip!(available(netns.run(|| Port::open("xdp:a0").map(drop))));
    let allowed = allowed_cpus().unwrap();
    let [one, other] = [allowed[0], allowed[allowed.len() - 1]];
    let (local, remote) = freed(&netns, [one, one]);
    assert!(local >= PACKETS && remote == 0, "{local} on their core, {remote} elsewhere");
    if one == other {
        return eprintln!("skipped: with one CPU there is no other");
    }
    // The first worker itself frees what it drops if the second one is late.
    let (local, remote) = freed(&netns, [one, other]);
    assert!(remote >= PACKETS, "{local} on their core, {remote} elsewhere");
}

/// A stage that counts the packets of each worker of a wire.
struct Count(Arc<[AtomicU64; 2]>, usize);

impl Stage for Count {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.0[self.1].fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

/// Sends datagrams of 16 flows in turn; each has its number within its flow.
fn send_flows(rounds: u64) {
    let flow = |_| UdpSocket::bind((WEST, 0)).unwrap();
    let flows: Vec<UdpSocket> = (0..16).map(flow).collect();
    for number in 0..rounds {
        for flow in &flows {
            // A full queue of the sending host is a loss, which the receiver tolerates.
            let _ = flow.send_to(&number.to_be_bytes(), (EAST, 7000));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Receives the datagrams until none arrives for a second; returns their number, and the number of
/// those that arrived after a later one of their flow.
fn receive_flows(socket: &UdpSocket) -> (u64, u64) {
    let (mut last, mut came, mut late) = (HashMap::new(), 0, 0);
    let mut bytes = [0; 8];
    while let Ok((8, from)) = socket.recv_from(&mut bytes) {
        let number = u64::from_be_bytes(bytes);
        came += 1;
        late += u64::from(last.insert(from, number).is_some_and(|last| last >= number));
    }
    (came, late)
}

#[test]
fn two_workers_serve_the_queues_of_a_wire_and_keep_every_flow_in_order() {
    let _alone = alone();
    or_skip!(may_pin());
    let hosts = or_skip!(Hosts::with_queues(2));
    or_skip!(available(hosts.middle.run(|| Port::open("xdp:w0").map(drop))));
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let of_stage = counts.clone();
    let running = hosts.middle.run(move || {
        let engine = Engine::builder().port("w0", "xdp:w0").port("e0", "xdp:e0").wire("w0", "e0");
        let engine = engine.stage(move |cx| Count(of_stage.clone(), cx.worker())).workers(2);
        engine.build().unwrap().start().unwrap()
    });
    hosts.wait_until_joined();
    let socket = hosts.east.run(|| UdpSocket::bind((EAST, 7000)).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let receiving = std::thread::spawn(move || receive_flows(&socket));
    let sending = hosts.west.spawn(|| send_flows(PACKETS));
    // Meanwhile the workers are moved between CPUs.
    let (control, cpus) = (running.control(), allowed_cpus().unwrap());
    let mut moves = 0;
    while !sending.is_finished() {
        let cpu = cpus[moves / 2 % cpus.len()];
        let moved = control.set_cpus(moves % 2, &[cpu]).unwrap().wait(SOON).unwrap();
        assert_eq!(moved.cpus, [cpu]);
        moves += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (came, late) = receiving.join().unwrap();
    let stopped = running.stop(SOON);
    stopped.check().unwrap();
    let served = counts.each_ref().map(|n| n.load(Ordering::Relaxed));
    println!("{served:?} packets on the workers, {came} came, {moves} moves");
    assert!(served.iter().all(|n| *n > PACKETS), "{served:?}: a worker had nothing to do");
    assert!(came > 8 * PACKETS, "{came} of {}: {stopped}", 16 * PACKETS);
    assert_eq!(late, 0, "of {came}: {stopped}");
}

#[test]
fn more_queues_than_a_device_has_are_refused_with_their_number_and_leave_it_free() {
    let _alone = alone();
    let hosts = or_skip!(Hosts::with_queues(2));
    or_skip!(available(hosts.middle.run(|| Port::open("xdp:w0").map(drop))));
    let build = |west: &str, workers| {
        let builder = Engine::builder().port("w0", west).port("e0", "xdp:e0").wire("w0", "e0");
        builder.workers(workers).build()
    };
    for (text, queue) in [("xdp:w0,queues=0-3", 2), ("xdp:w0,queues=7", 7)] {
        let e = hosts.middle.run(|| build(text, 2).map(drop).unwrap_err());
        assert_eq!(e.code, Code::PortSyntax, "{e}");
        assert_eq!(e.why, format!("there is no queue {queue}: w0 has 2 queues, numbers 0 to 1"));
        assert!(e.fix.ends_with("ls /sys/class/net/w0/queues"), "{e}");
    }
    // More workers than queues are no error: there is one worker for each queue.
    let engine = hosts.middle.run(|| build("xdp:w0", 4).unwrap());
    assert_eq!(engine.stats().workers().len(), 2);
    let warnings = engine.warnings();
    assert!(warnings[0].starts_with("workers: asked 4, applied 2: "), "{warnings:?}");
}
