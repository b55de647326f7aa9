//! In steady state, forwarding allocates nothing: each thread's calls of the allocator are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, Worker};
use linerate_port::{Health, Port};
use linerate_skb::{Batch, Offload, Pool};
use linerate_tests::command::linerate;
use linerate_tests::or_skip;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::until_true;

/// Packets to forward before counting starts.
const WARM_UP: u64 = 100_000;
/// Packets to forward while calls are counted.
const WINDOW: u64 = 1_000_000;
const LONG: Duration = Duration::from_secs(60);

thread_local! {
    /// Calls of the allocator by this thread. It has no destructor, so that counting allocates
    /// nothing itself.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts its calls.
struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator, which keeps the contract;
// counting changes no argument and no result.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: `ptr` came from `System`, as all pointers of this allocator do; the caller keeps
        // the rest of the contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    // Skip a thread that ends: its counter is destroyed already, and its calls are not measured.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

const WARMING: u8 = 0;
const COUNTING_NOW: u8 = 1;
const OVER: u8 = 2;

/// Turns `worker` until `phase` ends; returns the calls of the allocator in the phase that counts.
fn work(mut worker: Worker, phase: &AtomicU8) -> u64 {
    let turn = |worker: &mut Worker| {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(Duration::from_millis(10))).unwrap();
    };
    while phase.load(Ordering::Acquire) == WARMING {
        turn(&mut worker);
    }
    let before = calls();
    while phase.load(Ordering::Acquire) == COUNTING_NOW {
        turn(&mut worker);
    }
    calls() - before
}

/// Runs an engine's workers, and returns the number of allocations of each during the window;
/// `passed` returns the number of packets that have passed the whole path.
fn allocations(engine: Engine, passed: impl Fn(&Stats) -> u64) -> Vec<u64> {
    let (stats, phase) = (engine.stats(), AtomicU8::new(WARMING));
    let mut workers = engine.into_workers();
    std::thread::scope(|scope| {
        let phase = &phase;
        let threads: Vec<_> =
            workers.drain(..).map(|worker| scope.spawn(move || work(worker, phase))).collect();
        let start = passed(&stats);
        until_true("the warm-up", LONG, || passed(&stats) - start >= WARM_UP);
        phase.store(COUNTING_NOW, Ordering::Release);
        let start = passed(&stats);
        until_true("the window", LONG, || passed(&stats) - start >= WINDOW);
        phase.store(OVER, Ordering::Release);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns a function that reads how many packets the port at `index` has sent.
fn sent_by(index: usize) -> impl Fn(&Stats) -> u64 {
    move |stats| stats.ports()[index].counts.tx_packets
}

#[test]
fn counter_sees_an_allocation() {
    let before = calls();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(calls() - before, 2);
}

#[test]
fn forwarding_from_a_generator_over_a_ring_allocates_nothing() {
    let engine = Engine::builder()
        .port("gen", "gen:,size=imix,flows=16")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink")
        .build()
        .unwrap();
    assert_eq!(allocations(engine, sent_by(3)), [0, 0]);
}

#[test]
fn forwarding_from_null_to_null_allocates_nothing() {
    let engine =
        Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b").build().unwrap();
    assert_eq!(allocations(engine, sent_by(1)), [0]);
}

#[test]
fn receiving_while_segments_wait_for_room_allocates_nothing() {
    let name = format!("memif:@linerate-segments-{},size=2", std::process::id());
    let pool = Pool::builder().frames(256).build().unwrap();
    let open = |role: &str| Port::open_with(&format!("{name},role={role}"), &pool).unwrap();
    let (_server, mut client) = (open("server"), open("client,zerocopy=no"));
    let mut batch = Batch::with_capacity(4);
    until_true("the connection", LONG, || {
        client.rx(&mut batch);
        client.health() == Health::Up
    });
    // TCP over IPv4, for 18 segments.
    let mut packet = vec![0; 1854];
    packet[12..18].copy_from_slice(&[8, 0, 0x45, 0, 7, 48]);
    (packet[23], packet[46]) = (6, 0x50);
    let mut skb = pool.local().alloc_copy(&packet).unwrap();
    let (flags, gso_type, hdr_len, gso_size) = (1, 1, 54, 100);
    let offload = Offload { flags, gso_type, hdr_len, gso_size, csum_start: 34, csum_offset: 16 };
    skb.set_offload(offload);
    batch.push(skb).unwrap();
    client.xmit(&mut batch);
    client.rx(&mut batch);
    assert!(client.waiting() > 0);
    let before = calls();
    client.rx(&mut batch);
    assert_eq!(calls() - before, 0);
}

#[test]
fn no_frame_is_added_if_the_longest_packet_fits() {
    let engine = Engine::builder()
        .fit_packets(true)
        .port("gen", "gen:,size=9000")
        .port("sink", "sink:")
        .wire("gen", "sink")
        .build()
        .unwrap();
    let stats = engine.stats();
    let before = stats.pool().stats().memory_bytes();
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    assert_eq!(stats.pool().stats().memory_bytes(), before);
}

#[test]
fn forwarding_packets_of_several_frames_over_a_memif_allocates_nothing() {
    let name = format!("memif:@linerate-allocs-{}", std::process::id());
    let engine = Engine::builder()
        .jumbo(1024, 16_384)
        .port("gen", "gen:,size=3000")
        .port("server", &format!("{name},role=server"))
        .port("client", &format!("{name},role=client"))
        .port("sink", "sink:")
        .wire("gen", "server")
        .wire("client", "sink")
        .build()
        .unwrap();
    assert!(allocations(engine, sent_by(3)).iter().all(|n| *n == 0));
}

#[test]
fn forwarding_between_packet_ports_allocates_nothing() {
    let hosts = or_skip!(Hosts::new());
    let engine = hosts.middle.run(|| {
        let builder = Engine::builder().port("w", "packet:w0").port("e", "packet:e0");
        builder.wire("w", "e").build().unwrap()
    });
    let mut generate = Command::new(linerate());
    generate.args(["forward", "gen:,size=imix", "packet:eth0", "--for", "60s"]);
    let generating = hosts.west.start(generate);
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    drop(generating);
}

#[test]
fn forwarding_between_xdp_ports_allocates_nothing() {
    let hosts = or_skip!(Hosts::new());
    let engine = or_skip!(hosts.middle.run(|| {
        let builder = Engine::builder().port("w", "xdp:w0").port("e", "xdp:e0");
        builder.wire("w", "e").build().map_err(|e| e.to_string())
    }));
    let mut generate = Command::new(linerate());
    generate.args(["forward", "gen:,size=60", "packet:eth0", "--for", "60s"]);
    let generating = hosts.west.start(generate);
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    drop(generating);
}

#[test]
fn forwarding_packets_of_several_frames_between_xdp_ports_allocates_nothing() {
    let hosts = or_skip!(Hosts::new());
    for (namespace, interface) in
        [(&hosts.west, "eth0"), (&hosts.middle, "w0"), (&hosts.middle, "e0"), (&hosts.east, "eth0")]
    {
        namespace.ip(&format!("link set {interface} mtu 9000"));
    }
    let engine = or_skip!(hosts.middle.run(|| {
        let builder = Engine::builder().port("w", "xdp:w0").port("e", "xdp:e0");
        builder.wire("w", "e").build().map_err(|e| e.to_string())
    }));
    let mut generate = Command::new(linerate());
    generate.args(["forward", "gen:,size=3000", "packet:eth0", "--fit", "--for", "60s"]);
    let generating = hosts.west.start(generate);
    // Nothing else sends packets of this length; each of them is in two frames.
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    drop(generating);
}
