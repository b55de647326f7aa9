//! Checks all interleavings, within a bound, of orders to a worker that is about to sleep.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p linerate-datapath --release --test loom`
//!
//! The mailbox is the one that ships, compiled here over loom's types; the bell is a flag that can be waited
//! for, as an eventfd can. An order that is lost shows as loom's "deadlock": the worker sleeps for ever.
#![cfg(loom)]

#[allow(dead_code, reason = "what no model calls")]
#[path = "../src/mailbox.rs"]
mod mailbox;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mailbox::{Mailbox, Word};

/// The names that mailbox.rs imports from its crate.
mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
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
    let (mut obeyed, mut came) = (Word::default(), 0);
    loop {
        // A turn: `Worker::begin`.
        let seen = mailbox.word();
        if seen.has_orders_since(obeyed)
            && let Some(orders) = mailbox.take()
        {
            came += orders.len();
            obeyed = seen;
        }
        // Between turn and sleep, as in `Worker::run`: a phase set before the turn is in `seen`.
        if came == expected && mailbox.word().phase() == last {
            return;
        }
        // Sleep, as in `Worker::arm`, and then on the descriptor.
        bell.drain();
        let now = mailbox.word();
        if now == seen && !now.has_orders_since(obeyed) {
            bell.wait();
        } else {
            thread::yield_now();
        }
    }
}

#[test]
fn an_order_that_races_a_worker_falling_asleep_is_obeyed() {
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
fn orders_of_two_threads_and_a_change_of_phase_are_all_obeyed() {
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
