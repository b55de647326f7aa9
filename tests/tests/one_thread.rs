//! Four wires with eight AF_XDP ports on one thread: an engine with one worker for all of them, or
//! a program's loop that turns one worker for each wire and sleeps until any of them has work.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, Turned, Worker};
use linerate_port::wait::poll_readable;
use linerate_tests::netns::Netns;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::traffic::{ping, transfer};
use linerate_tests::wait::SOON;
use linerate_tests::{available, or_skip};

const WIRES: usize = 4;
/// Interval at which a sleeping thread checks if it is to end.
const LOOK: Duration = Duration::from_millis(20);
const MEGABYTES: usize = 1_000_000;

/// The hosts at both ends of each wire; `w0`, `e0` and so on in the middle are their uplinks.
struct Pairs {
    middle: Netns,
    hosts: Vec<[Netns; 2]>,
}

impl Pairs {
    fn new() -> Result<Pairs, String> {
        let (middle, mut hosts) = (Netns::new()?, Vec::new());
        for wire in 0..WIRES {
            let pair = [Netns::new()?, Netns::new()?];
            for (end, host) in pair.iter().enumerate() {
                let (name, peer) = (name(wire, end), host.path());
                middle.try_ip(&format!(
                    "link add dev {name} type veth peer name eth0 netns {peer}"
                ))?;
                middle.ip(&format!("link set dev {name} up"));
                host.ip(&format!("addr add {}/24 dev eth0", address(wire, end)));
                host.ip("link set dev eth0 up");
                wait_for_carrier(host, "eth0");
                wait_for_carrier(&middle, &name);
            }
            hosts.push(pair);
        }
        Ok(Pairs { middle, hosts })
    }
}

fn name(wire: usize, end: usize) -> String {
    format!("{}{wire}", ["w", "e"][end])
}

fn address(wire: usize, end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, wire as u8, 1 + end as u8)
}

fn build(workers: usize) -> Result<Engine, String> {
    let mut builder = Engine::builder().workers(workers);
    for wire in 0..WIRES {
        let [west, east] = [name(wire, 0), name(wire, 1)];
        builder = builder
            .port(&west, &format!("xdp:{west},ring=256"))
            .port(&east, &format!("xdp:{east},ring=256"))
            .wire(&west, &east);
    }
    available(builder.build())
}

/// Runs workers in turn on this thread until the test ends.
fn run(mut workers: Vec<Worker>, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let now = Instant::now();
        let moved = workers.iter_mut().fold(false, |any, w| (w.turn(now) == Turned::Again) | any);
        // If a worker has work already, the thread does not sleep.
        if !moved && workers.iter_mut().all(|worker| worker.arm().unwrap()) {
            let fds: Vec<_> = workers.iter().map(Worker::as_fd).collect();
            poll_readable(&fds, Some(LOOK)).unwrap();
        }
    }
    assert!(workers.iter_mut().all(|worker| worker.drain(SOON).unwrap()), "not all has left");
}

/// Ends the loop when it is dropped, also if the test panics.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends pings in one direction and a file in the other, on every wire at the same time.
fn exchange(pairs: &Pairs) -> Result<(), String> {
    for (wire, [west, east]) in pairs.hosts.iter().enumerate() {
        ping(west, address(wire, 1), 1472, 20)?;
        ping(east, address(wire, 0), 0, 20)?;
    }
    std::thread::scope(|scope| {
        for (wire, [west, east]) in pairs.hosts.iter().enumerate() {
            scope.spawn(move || transfer(east, west, address(wire, 0), 10 * MEGABYTES));
        }
    });
    Ok(())
}

/// Checks that the ledger balances, and that the file and the pings passed every port.
fn check(stats: &Stats) {
    let ledger = stats.ledger();
    assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
    assert_eq!(ledger.created, 0, "nothing was copied: {ledger}");
    assert_eq!(stats.ports().len(), 2 * WIRES);
    for (i, port) in stats.ports().iter().enumerate() {
        // The file comes from the east; the pings, and the acknowledgements of the file, from the
        // west.
        let (came, least) = (port.counts.rx_bytes, [20 * 1500, 10 * MEGABYTES as u64][i % 2]);
        assert!(came > least, "{}: {came} bytes", port.name);
    }
}

#[test]
fn one_worker_carries_between_eight_xdp_ports() {
    let pairs = or_skip!(Pairs::new());
    let engine = or_skip!(pairs.middle.run(|| build(1)));
    let stats = engine.stats();
    let running = engine.start().unwrap();
    assert_eq!(stats.workers().len(), 1);
    let exchanged = exchange(&pairs);
    drop(running.stop(SOON));
    or_skip!(exchanged);
    check(&stats);
}

#[test]
fn one_thread_carries_between_eight_xdp_ports() {
    let pairs = or_skip!(Pairs::new());
    let engine = or_skip!(pairs.middle.run(|| build(WIRES)));
    let (stats, workers, end) = (engine.stats(), engine.into_workers(), AtomicBool::new(false));
    let exchanged = std::thread::scope(|scope| {
        let thread = scope.spawn(|| run(workers, &end));
        let at_end = AtEnd(&end);
        let exchanged = exchange(&pairs);
        drop(at_end);
        thread.join().unwrap();
        exchanged
    });
    or_skip!(exchanged);
    check(&stats);
}
