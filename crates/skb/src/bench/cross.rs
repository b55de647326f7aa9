//! Cases in which one core passes packets to another core.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use linerate_ring::heap;

use super::BURST;
use super::cases::{RING_LEN_DESCS, assert_all_home, pin, pool};
use super::timer::{Timer, Took, Watch};
use crate::{Batch, Local};

type Sender = linerate_ring::Producer<linerate_ring::Heap<u32>>;
type Receiver = linerate_ring::Consumer<linerate_ring::Heap<u32>>;

/// Measures allocation on the first CPU, the passage through a ring, and bulk freeing on the second
/// CPU.
pub(super) fn hand_over(cpus: &[usize], timer: &mut Timer) {
    let pool = pool();
    let (mut near, mut far) = (pool.local(), pool.local());
    let (mut sender, mut receiver) = heap(RING_LEN_DESCS).expect("a power of two");
    timer.repeat_timed(|bursts| {
        let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
        scope(|s| {
            let consumer = s.spawn(|| {
                pin(cpus, 1);
                let watch = Watch::start();
                ready.store(true, Ordering::Release);
                consume(&mut receiver, &mut far, bursts);
                done.store(true, Ordering::Release);
                watch.stop()
            });
            wait_for(&ready);
            let watch = Watch::start();
            produce(&mut sender, &mut near, bursts);
            wait_for(&done);
            let took = watch.stop();
            let theirs = consumer.join().expect("the consumer panics only with the benchmark");
            Took { delay_ns: took.delay_ns.max(theirs.delay_ns), ..took }
        })
    });
    drop((near, far));
    assert_all_home(&pool);
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        spin_loop();
    }
}

fn produce(sender: &mut Sender, mem: &mut Local, bursts: u64) {
    let mut batch = Batch::with_capacity(BURST);
    for _ in 0..bursts {
        while batch.spare() > 0 {
            if mem.alloc(&mut batch, BURST) == 0 {
                spin_loop();
            }
        }
        while !batch.is_empty() {
            let n = sender.push_slice(batch.handles());
            // SAFETY: the first n handles are in the ring, and its only consumer adopts each of
            // them once.
            unsafe { batch.took(n) };
            if n == 0 {
                spin_loop();
            }
        }
    }
}

/// Receives, reads and frees the packets of `bursts` bursts.
fn consume(receiver: &mut Receiver, mem: &mut Local, bursts: u64) {
    let mut batch: Batch = Batch::with_capacity(BURST);
    let (mut handles, mut left, mut bytes) = ([0u32; BURST], bursts * BURST as u64, 0);
    while left > 0 {
        let n = receiver.pop_slice(&mut handles);
        if n == 0 {
            spin_loop();
            continue;
        }
        // SAFETY: the producer released these handles with `took`; the batch is empty and has room.
        unsafe { batch.adopt(&handles[..n]) };
        bytes += batch.iter().map(|skb| skb.len() as u64).sum::<u64>();
        batch.consume(mem);
        left -= n as u64;
    }
    assert_eq!(bytes, 0, "a new packet is empty, whatever its frame held before");
}
