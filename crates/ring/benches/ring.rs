//! Benchmark: the cost, on one core, of putting a batch of entries into a ring in process memory
//! and taking it out.
//!
//! Prediction: at most 0.9 TSC cycles per entry for batches of 32 `u32` by `push_slice` and
//! `pop_slice` (parity with DPDK's SPSC ring): two block copies, one Acquire load and two Release
//! stores, all in L1. Entry by entry (`write`, `read`) costs a compare and a store each: 2–4. A
//! batch of 1 pays the fixed part alone: 5–15. A `should_wake` adds one full fence per batch.
//!
//! Inputs: a ring of 1024 that starts 16 slots off, so that one batch of 32 in 32 is split at the
//! end of the ring. Time is the TSC's, read around rounds enough to make its cost vanish; median
//! of 9 samples with minimum and maximum.
//!
//! `cargo bench -p linerate-ring`; any other way of running it is a smoke test of few rounds.

use std::hint::black_box;

use linerate_ring::{Consumer, Events, Heap, Producer, heap_from, waiter};

const RING_LEN_DESCS: u32 = 1024;
const SAMPLES: usize = 9;

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let entries_per_sample = if measured { 1 << 22 } else { 1 << 12 };
    println!("enqueue + dequeue on one core, TSC cycles per entry, {SAMPLES} samples");
    for batch in [1, 8, 32, 256] {
        report("slice u32", batch, entries_per_sample, bulk::<u32>);
    }
    report("slice u64", 32, entries_per_sample, bulk::<u64>);
    report("slice u128", 32, entries_per_sample, bulk::<u128>);
    report("verbs u32", 32, entries_per_sample, one_by_one);
    report("slice u32 + should_wake", 32, entries_per_sample, with_waker);
}

type Round<T> = (Producer<Heap<T>>, Consumer<Heap<T>>, Vec<T>, Vec<T>);

fn ring<T: Copy + Default + Send>(batch: usize) -> Round<T> {
    let (producer, consumer) = heap_from(RING_LEN_DESCS, 16).expect("a power of two");
    (producer, consumer, vec![T::default(); batch], vec![T::default(); batch])
}

fn bulk<T: Copy + Default + Send>(batch: usize, rounds: u64) -> u64 {
    let (mut producer, mut consumer, entries, mut out) = ring::<T>(batch);
    let start = tsc();
    for _ in 0..rounds {
        black_box(producer.push_slice(black_box(&entries)));
        black_box(consumer.pop_slice(black_box(&mut out)));
    }
    tsc() - start
}

fn one_by_one(batch: usize, rounds: u64) -> u64 {
    let (mut producer, mut consumer, entries, mut out) = ring::<u32>(batch);
    let start = tsc();
    for _ in 0..rounds {
        let n = producer.reserve(black_box(batch as u32));
        for (i, &entry) in (0..n).zip(black_box(&entries)) {
            producer.write(i, entry);
        }
        producer.submit(n);
        let n = consumer.peek(black_box(batch as u32));
        for (i, entry) in (0..n).zip(black_box(&mut out)) {
            *entry = consumer.read(i);
        }
        consumer.release(n);
    }
    tsc() - start
}

fn with_waker(batch: usize, rounds: u64) -> u64 {
    let (mut producer, mut consumer, entries, mut out) = ring::<u32>(batch);
    let (_waiter, waker) = waiter();
    let start = tsc();
    for _ in 0..rounds {
        black_box(producer.push_slice(black_box(&entries)));
        black_box(waker.should_wake(Events::FRAMES));
        black_box(consumer.pop_slice(black_box(&mut out)));
    }
    tsc() - start
}

fn report(name: &str, batch: usize, entries: u64, run: impl Fn(usize, u64) -> u64) {
    let rounds = entries / batch as u64;
    run(batch, rounds); // touch the pages and warm the predictors
    let mut samples: Vec<f64> =
        (0..SAMPLES).map(|_| run(batch, rounds) as f64 / (rounds * batch as u64) as f64).collect();
    samples.sort_by(f64::total_cmp);
    let (min, median, max) = (samples[0], samples[SAMPLES / 2], samples[SAMPLES - 1]);
    println!("{name:<24} x{batch:<4} {median:7.3}   min {min:.3}  max {max:.3}");
}

#[cfg(target_arch = "x86_64")]
fn tsc() -> u64 {
    // SAFETY: the instruction reads a counter that every x86-64 has and Linux leaves readable; it
    // accesses no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn tsc() -> u64 {
    let ticks: u64;
    // SAFETY: the instruction reads the virtual counter, which Linux leaves readable; it accesses
    // no memory.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}
