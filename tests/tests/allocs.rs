//! In steady state, forwarding allocates nothing: each thread's calls of the C library's allocator
//! are counted. Only glibc has its allocator under second names, which the counting functions need.
#![cfg(target_env = "gnu")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, PortId, Stage, Stats, Turn, Worker};
use linerate_port::{Health, Port};
use linerate_skb::compat::{alloc_skb, alloc_skb_frame, kfree_skb};
use linerate_skb::{Batch, Data, Offload, Pool};
use linerate_tests::command::linerate;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::until_true;
use linerate_tests::{available, or_skip};

/// Packets to forward before counting starts.
const WARM_UP: u64 = 100_000;
/// Packets to forward while calls are counted.
const WINDOW: u64 = 1_000_000;
/// Packets of 9000 bytes to forward while calls are counted: fewer, because each takes longer.
const WINDOW_OF_LONG: u64 = 100_000;
const LONG: Duration = Duration::from_secs(60);

thread_local! {
    /// Calls of the allocator by this thread. It has no destructor, so that counting allocates
    /// nothing itself.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(n: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(ptr: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(ptr: *mut c_void);
}

// These functions take the place of the C library's in the whole program, count their calls and
// pass them on. A `GlobalAlloc` would not suffice: it does not see the blocks of a pool with
// general data, which the pool asks `std::alloc::System` for, nor those that the C library takes
// itself.
// Source: The GNU C Library, "Replacing malloc".

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    count();
    // SAFETY: the C library's own function takes any size.
    unsafe { __libc_malloc(bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(n: usize, bytes: usize) -> *mut c_void {
    count();
    // SAFETY: as in `malloc`; it checks the product.
    unsafe { __libc_calloc(n, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(ptr: *mut c_void, bytes: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's pointer came from the C library, as all pointers here do; the caller
    // keeps the rest of the contract.
    unsafe { __libc_realloc(ptr, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    count();
    // SAFETY: the caller keeps the contract: `out` may be written, and `align` is a power of two.
    unsafe {
        *out = __libc_memalign(align, bytes);
        if (*out).is_null() { libc::ENOMEM } else { 0 }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(ptr: *mut c_void) {
    count();
    // SAFETY: as in `realloc`.
    unsafe { __libc_free(ptr) }
}

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

/// Ends the workers' phases when it is dropped, also if the test panics: the scope joins them.
struct AtEnd<'a>(&'a AtomicU8);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(OVER, Ordering::Release);
    }
}

/// Runs an engine's workers, and returns the number of allocations of each during the window;
/// `passed` returns the number of packets that have passed the whole path.
fn allocations(engine: Engine, passed: impl Fn(&Stats) -> u64) -> Vec<u64> {
    allocations_within(WINDOW, engine, passed)
}

/// Returns the same for a window of `packets` packets.
fn allocations_within(packets: u64, engine: Engine, passed: impl Fn(&Stats) -> u64) -> Vec<u64> {
    let (stats, phase) = (engine.stats(), AtomicU8::new(WARMING));
    let mut workers = engine.into_workers();
    std::thread::scope(|scope| {
        let phase = &phase;
        let threads: Vec<_> =
            workers.drain(..).map(|worker| scope.spawn(move || work(worker, phase))).collect();
        let at_end = AtEnd(phase);
        let start = passed(&stats);
        until_true("the warm-up", LONG, || passed(&stats) - start >= WARM_UP);
        phase.store(COUNTING_NOW, Ordering::Release);
        let start = passed(&stats);
        until_true("the window", LONG, || passed(&stats) - start >= packets);
        drop(at_end);
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
fn general_packet_takes_one_malloc_and_one_free_and_a_frame_none() {
    for (data, calls_per_packet) in [(Data::General, 2), (Data::Frames, 0)] {
        let pool = Pool::builder().frames(64).data(data).build().unwrap();
        let mut mem = pool.local();
        // The first packet of a thread makes its lists.
        kfree_skb(alloc_skb(&mut mem, 1514).unwrap());
        let before = calls();
        for _ in 0..100 {
            kfree_skb(alloc_skb(&mut mem, 1514).unwrap());
            kfree_skb(alloc_skb_frame(&mut mem).unwrap());
        }
        assert_eq!(calls() - before, 200 * calls_per_packet, "{data:?}");
    }
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

/// A stage that sends a packet in each millisecond, and counts them.
struct Beats(PortId, Option<Instant>, Arc<AtomicU64>);

impl Stage for Beats {
    fn run(&mut self, _: &mut Batch, turn: &mut Turn<'_>) {
        self.1.get_or_insert(turn.now());
    }

    fn alarm(&self) -> Option<Instant> {
        self.1
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        let beat = turn.alloc_copy(&[1; 60]);
        beat.into_iter().for_each(|beat| assert!(turn.send(self.0, beat)));
        self.1 = Some(turn.now() + Duration::from_millis(1));
        self.2.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn alarms_of_a_stage_allocate_nothing() {
    let beats = Arc::<AtomicU64>::default();
    let its = beats.clone();
    let engine = Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b");
    let engine = engine.stage(move |cx| Beats(cx.port("b"), None, its.clone())).build().unwrap();
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    assert!(beats.load(Ordering::Relaxed) > 2);
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
fn frames_that_fit_hold_an_adapters_longest_packet_and_none_is_added() {
    let hosts = or_skip!(Hosts::new());
    hosts.west.ip("link set eth0 mtu 9000");
    hosts.middle.ip("link set w0 mtu 9000");
    // Without offload headers, the longest packet is the adapter's, and no superframe.
    let engine = hosts.middle.run(|| {
        let builder = Engine::builder().fit_packets(true).port("w", "packet:w0,vnet=off");
        builder.port("sink", "sink:,blind").wire("w", "sink").build().unwrap()
    });
    let stats = engine.stats();
    assert_eq!(stats.pool().frame_size(), 16_384);
    let before = stats.pool().stats().memory_bytes();
    let mut generate = Command::new(linerate());
    let port = "packet:eth0,vnet=off";
    generate.args(["forward", "gen:,size=9000", port, "--fit", "--for", "120s"]);
    let generating = hosts.west.start(generate);
    assert_eq!(allocations_within(WINDOW_OF_LONG, engine, sent_by(1)), [0]);
    assert_eq!(stats.pool().stats().memory_bytes(), before);
    drop(generating);
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
        available(builder.wire("w", "e").build())
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
        available(builder.wire("w", "e").build())
    }));
    let mut generate = Command::new(linerate());
    generate.args(["forward", "gen:,size=3000", "packet:eth0", "--fit", "--for", "60s"]);
    let generating = hosts.west.start(generate);
    // Nothing else sends packets of this length; each of them is in two frames.
    assert_eq!(allocations(engine, sent_by(1)), [0]);
    drop(generating);
}
