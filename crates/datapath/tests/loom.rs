//! Checks all interleavings, within a bound, of orders to a worker that is about to sleep, and of
//! the question whether a worker is at rest.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p linerate-datapath --release --test loom`
//!
//! The mailbox is the one that ships, compiled here over loom's types; the bell is a flag that can
//! be waited for, as an eventfd can. An order that is lost shows as loom's "deadlock": the worker
//! sleeps for ever. The turns are the ones that ship, too.
#![cfg(loom)]

#[allow(dead_code, reason = "what no model calls")]
#[path = "../src/mailbox.rs"]
mod mailbox;

#[allow(dead_code, reason = "what no model calls")]
#[path = "../src/turns.rs"]
mod turns;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mailbox::{Mailbox, Word};
use turns::{Turns, all_at_rest};

/// The names that mailbox.rs and turns.rs import from their crate.
mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

/// A doorbell: readable from the first signal until it is drained.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn signal(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn drain(&self) {
        *self.0.lock().unwrap() = false;
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(test);
}

/// Turns and sleeps as a worker does, until `expected` orders have arrived and the phase is `last`.
fn work(mailbox: &Mailbox<u32>, bell: &Bell, expected: usize, last: u32) {
    let (mut executed, mut came) = (Word::default(), 0);
    loop {
        // A turn: `Worker::begin`.
        let seen = mailbox.word();
        if seen.has_orders_since(executed)
            && let Some(orders) = mailbox.take()
        {
            came += orders.len();
            executed = seen;
        }
        // Between turn and sleep, as in `Worker::run`: a phase set before the turn is in `seen`.
        if came == expected && mailbox.word().phase() == last {
            return;
        }
        // Sleep, as in `Worker::arm`, and then on the descriptor.
        bell.drain();
        let now = mailbox.word();
        if now == seen && !now.has_orders_since(executed) {
            bell.wait();
        } else {
            thread::yield_now();
        }
    }
}

#[test]
fn an_order_that_races_a_worker_falling_asleep_is_executed() {
    explore(|| {
        let shared = Arc::new((Mailbox::new(), Bell::default()));
        let other = shared.clone();
        let thread = thread::spawn(move || {
            other.0.post(1).unwrap();
            other.1.signal();
        });
        work(&shared.0, &shared.1, 1, 0);
        thread.join().unwrap();
    });
}

#[test]
fn orders_of_two_threads_and_a_change_of_phase_are_all_executed() {
    explore(|| {
        let shared = Arc::new((Mailbox::new(), Bell::default()));
        let (one, two) = (shared.clone(), shared.clone());
        let first = thread::spawn(move || {
            one.0.post(1).unwrap();
            one.1.signal();
        });
        let second = thread::spawn(move || {
            two.0.post(2).unwrap();
            two.1.signal();
            two.0.set_phase(1);
            two.1.signal();
        });
        work(&shared.0, &shared.1, 2, 1);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// Moves a packet in a turn from the first ring to the second one. The turn counts the receipt
/// first, so both rings look empty in between.
#[test]
fn a_packet_that_a_turn_moves_from_ring_to_ring_is_never_missing() {
    explore(|| {
        let shared = Arc::new((Turns::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let (turns, received, sent) = &*shared;
        turns.begin(0);
        turns.end(true);
        let other = shared.clone();
        let worker = thread::spawn(move || {
            let (turns, received, sent) = &*other;
            turns.begin(0);
            received.store(1, Ordering::Relaxed);
            sent.store(1, Ordering::Relaxed);
            turns.end(false);
        });
        let numbers = || std::iter::once(turns.at_rest());
        let in_rings = || 1 - received.load(Ordering::Relaxed) + sent.load(Ordering::Relaxed);
        assert!(!all_at_rest(numbers, || in_rings() == 0), "the packet is in a ring or in a turn");
        worker.join().unwrap();
    });
}

/// Tests that a worker at rest counts as drained after the turn in which it reads the word to
/// drain, and not before.
#[test]
fn a_worker_is_not_at_rest_between_the_word_to_drain_and_the_end_of_that_turn() {
    const DRAIN: u32 = 1;
    explore(|| {
        let shared = Arc::new((Turns::new(), AtomicU64::new(0)));
        let (turns, drained) = &*shared;
        turns.begin(0);
        turns.end(true);
        let other = shared.clone();
        let worker = thread::spawn(move || {
            let (turns, drained) = &*other;
            turns.begin(DRAIN);
            drained.store(1, Ordering::Relaxed);
            turns.end(true);
        });
        let numbers = || std::iter::once(turns.at_rest().filter(|_| turns.seen() == DRAIN));
        if all_at_rest(numbers, || true) {
            assert_eq!(drained.load(Ordering::Relaxed), 1, "it has not drained");
        }
        worker.join().unwrap();
    });
}
