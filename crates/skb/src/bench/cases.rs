//! The cases that measure this crate, each with the case of a peer that it is compared with. Every
//! loop panics unless all its packets have been freed at its end: a wrong ledger makes a figure
//! worthless.

use std::hint::black_box;

use linerate_sys::thread;

use super::{BURST, Timer, cross};
use crate::{Batch, Data, Huge, Local, Pool, Shared};

/// Number of buffers in a pool: 2^13 - 1, because DPDK recommends one less than a power of two.
const POOL_SIZE: u32 = 8191;
/// Number of entries in a ring.
pub(super) const RING_LEN_DESCS: u32 = 1024;

/// A timed loop, and the peer's case that it is compared with.
#[derive(Debug)]
pub struct Case {
    /// The case's name on the command line.
    pub name: &'static str,
    /// The name of the peer's case that this one is compared with.
    pub peer: &'static str,
    /// True if the case needs a second CPU.
    pub two_cores: bool,
    /// Bursts in a repetition: few milliseconds of work, so that no other thread interrupts most
    /// repetitions.
    pub bursts: u64,
    run: fn(&[usize], &mut Timer),
}

/// All cases of the benchmark.
pub const CASES: [Case; 8] = [
    Case {
        // 32 allocated and initialised, freed in bulk
        name: "bulk",
        peer: "bulk",
        two_cores: false,
        bursts: 1 << 15,
        run: bulk,
    },
    Case {
        // as bulk; one of 32 is also put into a mirror's batch, and freed in bulk with it
        name: "bulk-shared",
        peer: "bulk",
        two_cores: false,
        bursts: 1 << 15,
        run: bulk_shared,
    },
    Case {
        // as bulk; one of 32 has a second frame appended
        name: "bulk-fragmented",
        peer: "bulk",
        two_cores: false,
        bursts: 1 << 15,
        run: bulk_fragmented,
    },
    Case {
        // 32 allocated in bulk, dropped one by one
        name: "single",
        peer: "single",
        two_cores: false,
        bursts: 1 << 15,
        run: single,
    },
    Case {
        // as bulk, hot list off: the depot only
        name: "bulk-nocache",
        peer: "bulk-nocache",
        two_cores: false,
        bursts: 1 << 15,
        run: bulk_nocache,
    },
    Case {
        // as bulk, the data of each packet from the system's allocator
        name: "general",
        peer: "bulk",
        two_cores: false,
        bursts: 1 << 13,
        run: general,
    },
    Case {
        // allocated on one core, through a ring, metadata read and freed on another
        name: "cross",
        peer: "cross",
        two_cores: true,
        bursts: 1 << 13,
        run: cross::hand_over,
    },
    Case {
        // 32 handles into a ring and out again, one core
        name: "ring",
        peer: "ring",
        two_cores: false,
        bursts: 1 << 17,
        run: ring,
    },
];

/// Returns the case of that name.
///
/// # Errors
/// If there is none, with those that there are.
pub fn named(name: &str) -> Result<&'static Case, String> {
    let names = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
    let found = CASES.iter().find(|case| case.name == name);
    found.ok_or_else(|| format!("{name} is no case; there are {}", names()))
}

/// Runs `case` on the first of `cpus`, and its second thread on the second CPU; the kernel places a
/// thread for which `cpus` has no entry.
///
/// # Panics
/// If a packet has not been freed at the end, because the figure would be worthless. If a CPU may
/// not be used.
pub fn run(case: &Case, cpus: &[usize], bursts: u64, reps: usize) -> Timer {
    pin(cpus, 0);
    let mut timer = Timer::new(bursts, reps);
    (case.run)(cpus, &mut timer);
    timer
}

/// Binds the calling thread to the `nth` CPU, if there is one.
pub(super) fn pin(cpus: &[usize], nth: usize) {
    if let Some(&cpu) = cpus.get(nth) {
        thread::pin_to_cpu(cpu).expect("the CPU is one that we were allowed to use");
    }
}

/// Makes the pool of every case.
///
/// # Panics
/// Without memory for it.
pub fn pool() -> Pool {
    pool_of(Data::Frames)
}

fn pool_of(data: Data) -> Pool {
    let builder = Pool::builder().frames(POOL_SIZE).huge_pages(Huge::Try).name("buffers");
    builder.data(data).build().expect("17 MiB of ordinary pages are free where a benchmark runs")
}

/// Asserts that no packet is in flight and that the ledger balances.
pub(super) fn assert_all_home(pool: &Pool) {
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
}

fn bulk(_: &[usize], timer: &mut Timer) {
    let pool = pool();
    alloc_and_consume(pool.local(), timer);
    assert_all_home(&pool);
}

fn bulk_nocache(_: &[usize], timer: &mut Timer) {
    let pool = pool();
    alloc_and_consume(pool.local_with(0), timer);
    assert_all_home(&pool);
}

fn general(_: &[usize], timer: &mut Timer) {
    let pool = pool_of(Data::General);
    alloc_and_consume(pool.local(), timer);
    assert_all_home(&pool);
}

fn alloc_and_consume(mut mem: Local, timer: &mut Timer) {
    let mut batch = Batch::with_capacity(BURST);
    timer.repeat(|bursts| {
        for _ in 0..bursts {
            mem.alloc(&mut batch, black_box(BURST));
            black_box(&mut batch).consume(&mut mem);
        }
    });
}

fn bulk_shared(_: &[usize], timer: &mut Timer) {
    let pool = pool();
    let mut mem = pool.local();
    let mut batch = Batch::with_capacity(BURST);
    let mut mirror: Batch<Shared> = Batch::with_capacity(BURST);
    timer.repeat(|bursts| {
        for burst in 0..bursts {
            mem.alloc(&mut batch, black_box(BURST));
            if let Some(skb) = batch.iter_mut().nth(burst as usize % BURST) {
                // The push cannot fail: the mirror's batch is emptied below as soon as it is full.
                let _ = mirror.push(skb.share());
            }
            black_box(&mut batch).consume(&mut mem);
            if mirror.spare() == 0 {
                mirror.consume(&mut mem);
            }
        }
    });
    mirror.consume(&mut mem);
    assert_all_home(&pool);
}

fn bulk_fragmented(_: &[usize], timer: &mut Timer) {
    let pool = pool();
    let mut mem = pool.local();
    let mut batch = Batch::with_capacity(BURST + 1);
    timer.repeat(|bursts| {
        for burst in 0..bursts {
            mem.alloc(&mut batch, black_box(BURST + 1));
            let fragment = batch.pop();
            if let (Some(skb), Some(fragment)) =
                (batch.iter_mut().nth(burst as usize % BURST), fragment)
            {
                // The append cannot fail: both packets are unshared and of one pool.
                let _ = skb.append(fragment);
            }
            black_box(&mut batch).consume(&mut mem);
        }
    });
    assert_all_home(&pool);
}

fn single(_: &[usize], timer: &mut Timer) {
    let pool = pool();
    let mut mem = pool.local();
    let mut batch = Batch::with_capacity(BURST);
    timer.repeat(|bursts| {
        for _ in 0..bursts {
            mem.alloc(&mut batch, black_box(BURST));
            black_box(&mut batch).drain().for_each(drop);
        }
    });
    assert_all_home(&pool);
}

fn ring(_: &[usize], timer: &mut Timer) {
    let (mut producer, mut consumer) =
        linerate_ring::heap::<u32>(RING_LEN_DESCS).expect("a power of two");
    let (entries, mut out) = ([7u32; BURST], [0u32; BURST]);
    timer.repeat(|bursts| {
        for _ in 0..bursts {
            black_box(producer.push_slice(black_box(&entries)));
            black_box(consumer.pop_slice(black_box(&mut out)));
        }
    });
    assert_eq!((out, consumer.available()), (entries, 0));
}
