//! Across two cores: the hand-over of packets.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use linerate_ring::heap;

use super::cases::{RING_LEN_DESCS, assert_all_home, pool};
use super::timer::{Timer, Took, Watch};
use super::{BURST, Consumer, Options, Producer};
use crate::{Batch, Local};

type Sender = linerate_ring::Producer<linerate_ring::Heap<u32>>;
type Receiver = linerate_ring::Consumer<linerate_ring::Heap<u32>>;

/// Alloc on the first CPU, ring, bulk free on the second.
pub(super) fn hand_over(options: &Options, timer: &mut Timer) {
    let pool = pool(options);
    let (mut near, mut far) = (options.local(&pool), options.local(&pool));
    let (mut sender, mut receiver) = heap(RING_LEN_DESCS).expect("a power of two");
    timer.repeat_timed(|bursts| {
        let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
        scope(|s| {
            let consumer = s.spawn(|| {
                options.pin(1);
                let watch = Watch::start();
                ready.store(true, Ordering::Release);
                consume(options, &mut receiver, &mut far, bursts);
                done.store(true, Ordering::Release);
                watch.stop()
            });
            wait_for(&ready);
            let watch = Watch::start();
            produce(options, &mut sender, &mut near, bursts);
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

fn produce(options: &Options, sender: &mut Sender, mem: &mut Local, bursts: u64) {
    let mut batch = Batch::with_capacity(BURST);
    for _ in 0..bursts {
        while batch.spare() > 0 {
            if mem.alloc(&mut batch, BURST) == 0 {
                spin_loop();
            }
        }
        if options.producer == Producer::Commits {
            batch.commit_behind(0, 60);
        }
        while !batch.is_empty() {
            let n = sender.push_slice(batch.handles());
            // SAFETY: the first n handles are in the ring, whose one consumer adopts each once.
            unsafe { batch.took(n) };
            if n == 0 {
                spin_loop();
            }
        }
    }
}

/// Takes and frees `bursts` bursts' worth of packets.
fn consume(options: &Options, receiver: &mut Receiver, mem: &mut Local, bursts: u64) {
    let mut batch: Batch = Batch::with_capacity(BURST);
    let (mut handles, mut left, mut bytes) = ([0u32; BURST], bursts * BURST as u64, 0);
    while left > 0 {
        let n = receiver.pop_slice(&mut handles);
        if n == 0 {
            spin_loop();
            continue;
        }
        // SAFETY: the producer gave these handles up with `took`; the batch is empty and has room.
        unsafe { batch.adopt(&handles[..n]) };
        match options.consumer {
            Consumer::None => {}
            Consumer::Reads => bytes += batch.iter().map(|skb| skb.len() as u64).sum::<u64>(),
            Consumer::Writes => batch.iter_mut().for_each(|skb| skb.commit(4)),
        }
        batch.consume(mem);
        left -= n as u64;
    }
    let committed = options.producer == Producer::Commits && options.consumer == Consumer::Reads;
    let expected = if committed { 60 * bursts * BURST as u64 } else { 0 };
    assert_eq!(bytes, expected, "a new packet is empty, whatever its frame held before");
}
