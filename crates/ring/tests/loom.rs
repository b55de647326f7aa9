//! Every interleaving, within a bound, of two threads on one ring.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p linerate-ring --release --test loom`
//!
//! The bound is three preemptions (`LOOM_MAX_PREEMPTIONS` overrides it). Indices start just before
//! their wrap. A lost wake-up shows as loom's "deadlock".
#![cfg(loom)]

/// The hand-over of rings from memif's control thread to an endpoint: the shipped code, with loom's
/// lock. It is included here because its own crate does not build with loom.
#[allow(dead_code, reason = "what no model calls")]
#[path = "../../port/src/memif/handover.rs"]
mod handover;

/// The names that handover.rs imports from its crate.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};

    // loom never poisons: a panic ends its model.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        mutex.try_lock().ok()
    }
}

use handover::Handover;
use linerate_ring::{Consumer, Events, Heap, Producer, Waiter, Waker, heap_from, waiter};
use loom::sync::atomic::{AtomicU16, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

/// Two indices before the wrap, so that every transfer below passes it.
const START: u32 = u32::MAX - 1;

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(test);
}

fn push_all(producer: &mut Producer<Heap<u32>>, count: u32, batch: u32) {
    let mut next = 0;
    while next < count {
        let entries: Vec<u32> = (next..count.min(next + batch)).collect();
        match producer.push_slice(&entries) {
            0 => thread::yield_now(),
            n => next += n as u32,
        }
    }
    assert_eq!(producer.corrupt(), 0);
}

fn pop_all(consumer: &mut Consumer<Heap<u32>>, count: u32, batch: usize) {
    let (mut expected, mut out) = (0, vec![0; batch]);
    while expected < count {
        let n = consumer.pop_slice(&mut out);
        for &entry in &out[..n] {
            assert_eq!(entry, expected, "lost, repeated or reordered");
            expected += 1;
        }
        if n == 0 {
            thread::yield_now();
        }
    }
    assert_eq!((consumer.available(), consumer.corrupt()), (0, 0));
}

fn transfer(len: u32, count: u32, push: u32, pop: usize) {
    explore(move || {
        let (mut producer, mut consumer) = heap_from(len, START).unwrap();
        let sender = thread::spawn(move || push_all(&mut producer, count, push));
        pop_all(&mut consumer, count, pop);
        sender.join().unwrap();
    });
}

#[test]
fn single_entries_pass_a_ring_of_one() {
    transfer(1, 2, 1, 1);
}

#[test]
fn batches_pass_a_ring_of_two_in_order() {
    transfer(2, 3, 2, 2);
}

#[test]
fn unequal_batches_pass_a_ring_of_four_in_order() {
    transfer(4, 4, 3, 2);
}

#[test]
fn the_verbs_one_by_one_transfer_in_order() {
    const COUNT: u32 = 3;
    explore(|| {
        let (mut producer, mut consumer) = heap_from::<u32>(2, START).unwrap();
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let n = producer.reserve((COUNT - next).min(2));
                for i in 0..n {
                    producer.write(i, next + i);
                }
                producer.submit(n);
                next += n;
                if n == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            let n = consumer.peek(2);
            for i in 0..n {
                assert_eq!(consumer.read(i), expected + i);
            }
            consumer.release(n);
            expected += n;
            if n == 0 {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

/// Tests without yields that a full ring accepts nothing, an empty ring returns nothing, and no
/// entry is lost.
#[test]
fn full_and_empty_race_without_loss() {
    explore(|| {
        let (mut producer, mut consumer) = heap_from::<u32>(2, START).unwrap();
        assert_eq!(producer.push_slice(&[0, 1]), 2);
        let sender = thread::spawn(move || producer.push_slice(&[2, 3]) as u32);
        let mut taken = Vec::new();
        let mut out = [0; 3];
        for _ in 0..2 {
            let n = consumer.pop_slice(&mut out);
            taken.extend_from_slice(&out[..n]);
        }
        let pushed = sender.join().unwrap();
        while let n @ 1.. = consumer.pop_slice(&mut out) {
            taken.extend_from_slice(&out[..n]);
        }
        assert_eq!(taken, (0..2 + pushed).collect::<Vec<u32>>());
        assert_eq!(consumer.corrupt(), 0);
    });
}

/// The means by which one side sleeps: its word, and its eventfd. The model of the eventfd is
/// loom's `Notify`, which remembers an earlier signal and may wake without a signal.
struct Sleeper {
    waiter: Waiter,
    doorbell: Arc<Notify>,
}

struct Ringer {
    waker: Waker,
    doorbell: Arc<Notify>,
}

fn sleeper() -> (Sleeper, Ringer) {
    let (waiter, waker) = waiter();
    let doorbell = Arc::new(Notify::new());
    (Sleeper { waiter, doorbell: Arc::clone(&doorbell) }, Ringer { waker, doorbell })
}

impl Sleeper {
    fn sleep_unless(&mut self, want: Events, mut ready: impl FnMut() -> bool) {
        self.waiter.prepare(want);
        if !ready() {
            self.doorbell.wait();
        }
        self.waiter.cancel();
    }
}

impl Ringer {
    fn moved(&self, have: Events) {
        if self.waker.should_wake(have) {
            self.doorbell.notify();
        }
    }
}

#[test]
fn a_consumer_asleep_for_frames_is_always_woken() {
    const COUNT: u32 = 2;
    explore(|| {
        let (mut producer, mut consumer) = heap_from::<u32>(2, START).unwrap();
        let (mut sleeper, ringer) = sleeper();
        let sender = thread::spawn(move || {
            for entry in 0..COUNT {
                assert_eq!(producer.push_slice(&[entry]), 1);
                ringer.moved(Events::FRAMES);
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            if consumer.peek(1) == 0 {
                sleeper.sleep_unless(Events::FRAMES, || consumer.peek(1) > 0);
                continue;
            }
            assert_eq!(consumer.read(0), expected);
            consumer.release(1);
            expected += 1;
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_producer_asleep_for_room_is_always_woken() {
    const COUNT: u32 = 3;
    explore(|| {
        let (mut producer, mut consumer) = heap_from::<u32>(1, START).unwrap();
        assert_eq!(producer.push_slice(&[0]), 1);
        let (mut sleeper, ringer) = sleeper();
        let sender = thread::spawn(move || {
            let mut next = 1;
            while next < COUNT {
                match producer.push_slice(&[next]) {
                    0 => sleeper.sleep_unless(Events::ROOM, || producer.reserve(1) > 0),
                    _ => next += 1,
                }
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            if consumer.peek(1) == 0 {
                thread::yield_now();
                continue;
            }
            assert_eq!(consumer.read(0), expected);
            consumer.release(1);
            ringer.moved(Events::ROOM);
            expected += 1;
        }
        sender.join().unwrap();
    });
}

/// Tests that two sides that sleep on one ring of one slot never wait for each other for ever.
#[test]
fn both_sides_asleep_in_turn_are_always_woken() {
    const COUNT: u32 = 2;
    explore(|| {
        let (mut producer, mut consumer) = heap_from::<u32>(1, START).unwrap();
        let (mut producer_sleeper, producer_ringer) = sleeper();
        let (mut consumer_sleeper, consumer_ringer) = sleeper();
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < COUNT {
                match producer.push_slice(&[next]) {
                    0 => producer_sleeper.sleep_unless(Events::ROOM, || producer.reserve(1) > 0),
                    _ => {
                        next += 1;
                        consumer_ringer.moved(Events::FRAMES);
                    }
                }
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            let mut out = [0];
            match consumer.pop_slice(&mut out) {
                0 => consumer_sleeper.sleep_unless(Events::FRAMES, || consumer.peek(1) > 0),
                _ => {
                    assert_eq!(out[0], expected);
                    expected += 1;
                    producer_ringer.moved(Events::ROOM);
                }
            }
        }
        sender.join().unwrap();
    });
}

/// Tests a side that waits for frames first and then for room: a waker of the first wait, which
/// read the word before and clears it afterwards, must not clear the second wait.
#[test]
fn a_late_waker_clears_only_the_want_it_serves() {
    explore(|| {
        let (mut frames_tx, mut frames_rx) = heap_from::<u32>(1, START).unwrap();
        let (mut room_tx, mut room_rx) = heap_from::<u32>(1, START).unwrap();
        room_tx.push_slice(&[0]);
        let (mut sleeper, ringer) = sleeper();
        let peer = thread::spawn(move || {
            frames_tx.push_slice(&[7]);
            ringer.moved(Events::FRAMES);
            assert_eq!(room_rx.pop_slice(&mut [0]), 1);
            ringer.moved(Events::ROOM);
        });
        while frames_rx.peek(1) == 0 {
            sleeper.sleep_unless(Events::FRAMES, || frames_rx.peek(1) > 0);
        }
        while room_tx.reserve(1) == 0 {
            sleeper.sleep_unless(Events::ROOM, || room_tx.reserve(1) > 0);
        }
        peer.join().unwrap();
    });
}

/// Tests memif's doorbell, which does not use `Waiter`: the sleeper sets the mask by a plain store,
/// the other side never clears the mask, and the doorbell is never drained. The sender publishes,
/// fences and reads the mask; the sleeper unmasks, fences and reads the index.
#[test]
fn a_memif_receiver_that_unmasks_and_looks_is_always_woken() {
    const COUNT: u16 = 2;
    const MASKED: u16 = 1;
    explore(|| {
        let (head, flags) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicU16::new(MASKED)));
        let doorbell = Arc::new(Notify::new());
        let sender = {
            let (head, flags, doorbell) = (head.clone(), flags.clone(), doorbell.clone());
            thread::spawn(move || {
                for posted in 1..=COUNT {
                    head.store(posted, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if flags.load(Ordering::Relaxed) & MASKED == 0 {
                        doorbell.notify();
                    }
                }
            })
        };
        let mut seen = 0;
        while seen < COUNT {
            seen = head.load(Ordering::Acquire);
            if seen == COUNT {
                break;
            }
            flags.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if head.load(Ordering::Acquire) == seen {
                doorbell.wait();
            }
            flags.store(MASKED, Ordering::Relaxed);
        }
        sender.join().unwrap();
    });
}

/// Tests an endpoint while connections begin and end: it never sleeps while a change is pending, it
/// gets the rings of the last connection, and it takes each connection's rings at most once.
#[test]
fn endpoint_follows_every_change_and_takes_rings_once() {
    explore(|| {
        let link = Arc::new(Handover::<u32, u32, u32>::new(0, 1));
        let bell = Arc::new(AtomicU16::new(0));
        let (far, far_bell) = (link.clone(), bell.clone());
        let control = thread::spawn(move || {
            let mut replaced = Vec::new();
            for (health, rings) in [(1, Some(1)), (0, None), (2, Some(2))] {
                let change = |state: &mut handover::State<u32, u32, u32>| {
                    state.health = health;
                    replaced.extend(std::mem::replace(&mut state.bindings[0], rings));
                    true
                };
                far.publish(change, || far_bell.store(1, Ordering::Release));
            }
            replaced
        });
        let (mut seen, mut held, mut taken, mut retired) = (0, None, Vec::new(), Vec::new());
        while seen != 3 {
            if link.generation() == seen {
                // It sleeps until its bell is rung.
                while bell.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            }
            if link.generation() == seen {
                continue;
            }
            retired.extend(held.take());
            let silence = || bell.store(0, Ordering::Relaxed);
            let Some((generation, health, rings)) = link.exchange(0..1, &mut retired, silence)
            else {
                thread::yield_now();
                continue;
            };
            assert!(rings.iter().all(|rings| *rings == health), "rings of another connection");
            taken.extend(rings.iter().copied());
            (seen, held) = (generation, rings.first().copied());
        }
        let replaced = control.join().unwrap();
        assert_eq!(held, Some(2));
        taken.extend(replaced);
        assert_eq!(taken.iter().filter(|rings| **rings == 1).count(), 1);
    });
}

/// Tests that a violation by a disconnected peer does not end the next connection.
#[test]
fn accusation_reaches_no_later_connection() {
    explore(|| {
        let link = Arc::new(Handover::<u32, u32, u32>::new(0, 1));
        let publish = |link: &Handover<u32, u32, u32>| link.publish(|_| true, || ());
        publish(&link);
        let far = link.clone();
        let endpoint = thread::spawn(move || far.accuse(1, 3));
        let early = link.take_violation();
        publish(&link);
        let late = link.take_violation();
        assert!(endpoint.join().unwrap());
        assert!(early.is_none_or(|code| code == 3) && late.is_none());
        assert_eq!(link.take_violation(), None);
    });
}
