//! Packets that are freed in unusual contexts: inside an object that another packet holds, in a
//! thread that is being torn down, in a panic, and while the pool itself is dropped.
//!
//! Small frames and short loops, so that Miri finishes in time: most faults here would be undefined
//! behaviour, and would look like success.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use linerate_skb::{Batch, Data, DropReason, Init, Local, Pool, Release, Return, Skb};

/// Long enough for two frames.
const LONG: [u8; 700] = [2; 700];

/// Returns one pool of each kind that ends differently, one after the other, because a process can
/// have only 31 at once.
fn pools() -> impl Iterator<Item = Pool> {
    let small = Pool::builder().frames(128).frame_size(512).headroom(32).jumbo(8, 1024);
    let general = Pool::builder().frames(128).data(Data::General);
    let mut builders = Vec::new();
    for init in [Init::AtAlloc, Init::AtFree] {
        for return_to in [Return::Local, Return::Home] {
            let all = [small.clone(), general.clone()];
            builders.extend(all.map(|builder| builder.init(init).return_to(return_to)));
        }
    }
    // Three have each policy once, which is what Miri has the time for.
    let step = if cfg!(miri) { 3 } else { 1 };
    builders.into_iter().step_by(step).map(|builder| builder.build().unwrap())
}

fn assert_at_rest(pool: &Pool) {
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger:#}");
}

/// An object that uses the pool in every way while one of the pool's packets is being freed, and
/// frees more packets itself.
struct Reenters {
    pool: Pool,
    held: Mutex<Vec<Skb>>,
    releases: Arc<AtomicUsize>,
}

impl Release for Reenters {
    fn release(&self, _: usize) {
        let mut mem = self.pool.local();
        let mut skb = mem.alloc_copy(&LONG).unwrap();
        let shared = skb.share();
        skb.data_mut()[0] = 3;
        self.held.lock().unwrap().clear();
        drop((skb, shared));
        let _ = (self.pool.ledger(), self.pool.stats());
        self.releases.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a batch of packets each of which holds two more and the pool.
fn reentering(pool: &Pool, mem: &mut Local, n: usize, releases: &Arc<AtomicUsize>) -> Batch {
    let mut batch = Batch::with_capacity(n);
    assert_eq!(mem.alloc(&mut batch, n), n);
    for skb in batch.iter_mut() {
        let held = Mutex::new((0..2).map(|_| mem.alloc_copy(&LONG).unwrap()).collect());
        let release = Reenters { pool: pool.clone(), held, releases: releases.clone() };
        assert!(skb.hold(Arc::new(release)).is_ok());
    }
    batch
}

#[test]
fn release_may_use_the_pool_and_free_packets() {
    for pool in pools() {
        let (mut mem, releases) = (pool.local(), Arc::new(AtomicUsize::new(0)));
        for way in 0..4 {
            let mut batch = reentering(&pool, &mut mem, 4, &releases);
            match way {
                0 => batch.consume(&mut mem),
                1 => batch.drain().for_each(drop),
                2 => batch.retain(|_| Err(DropReason::NO_ROUTE)),
                _ => thread::spawn(move || drop(batch)).join().unwrap(),
            }
            assert_eq!(releases.load(Ordering::Relaxed), 4 * (way + 1));
        }
        assert_at_rest(&pool);
    }
}

#[test]
fn the_last_handles_on_a_pool_may_be_in_its_own_packets() {
    for pool in pools() {
        let (mut mem, releases) = (pool.local(), Arc::new(AtomicUsize::new(0)));
        let [here, there] = [(); 2].map(|()| reentering(&pool, &mut mem, 3, &releases));
        drop((mem, pool));
        // Three go with the pool still in the others, three take it with them.
        drop(here);
        thread::spawn(move || drop(there)).join().unwrap();
        assert_eq!(releases.load(Ordering::Relaxed), 6);
    }
}

/// An object that panics when it is released, or when it is dropped afterwards.
struct Panics {
    when_told: bool,
}

impl Release for Panics {
    fn release(&self, _: usize) {
        if self.when_told {
            resume_unwind(Box::new("told"));
        }
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if !self.when_told {
            resume_unwind(Box::new("dropped"));
        }
    }
}

#[test]
fn panic_in_release_is_caught_even_while_the_thread_panics() {
    for pool in pools() {
        for when_told in [true, false] {
            let mut mem = pool.local();
            let mut batch = Batch::with_capacity(4);
            assert_eq!(mem.alloc(&mut batch, 4), 4);
            for skb in batch.iter_mut().take(2) {
                assert!(skb.hold(Arc::new(Panics { when_told })).is_ok());
            }
            let caught = catch_unwind(AssertUnwindSafe(move || {
                let _freed_by_the_unwinding = (batch, mem);
                resume_unwind(Box::new("the program's own"));
            }));
            // And not one of the others.
            let payload = caught.unwrap_err();
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"the program's own"));
            assert_at_rest(&pool);
        }
        let panics: u64 = pool.stats().cores.iter().map(|c| c.release_panics).sum();
        assert_eq!(panics, 4);
    }
}

#[test]
fn packets_that_end_with_their_thread_come_home() {
    thread_local!(static KEPT: RefCell<Vec<Skb>> = const { RefCell::new(Vec::new()) });
    for pool in pools() {
        let (mut mem, releases) = (pool.local(), Arc::new(AtomicUsize::new(0)));
        // The thread's own list is made before the packets are kept, so that it goes after them;
        // or by the first of them that is freed, when nothing new can be made.
        for list_first in [true, false] {
            let mut skbs: Vec<Skb> = (0..6).map(|_| mem.alloc_copy(&LONG).unwrap()).collect();
            let shared = skbs[0].share().into_unique();
            skbs.push(shared);
            skbs.extend(reentering(&pool, &mut mem, 1, &releases).drain());
            let body = move || {
                if list_first {
                    drop(skbs.remove(3));
                }
                KEPT.with(|kept| kept.borrow_mut().append(&mut skbs));
            };
            thread::spawn(body).join().unwrap();
            assert_at_rest(&pool);
        }
        assert_eq!(releases.load(Ordering::Relaxed), 2);
        drop(mem);
        // Everything is back, and in the depot.
        let mut all = Batch::with_capacity(200);
        assert_eq!(pool.local_with(0).alloc(&mut all, 200), 128);
    }
}

#[test]
fn chain_freed_into_a_full_hot_list_frees_no_shared_frame() {
    let lens = if cfg!(miri) { 3..6 } else { 0..9 };
    // Every way for the frames of a chain to be one too many, with what is shared before or behind.
    for (hot_list_len, frames, behind) in
        lens.flat_map(|len| (1..8).flat_map(move |n| [(len, n, true), (len, n, false)]))
    {
        let pool = Pool::builder().frames(32).frame_size(256).headroom(0).build().unwrap();
        let mut mem = pool.local_with(hot_list_len);
        let mut skb = mem.alloc_copy(b"still somebody's").unwrap();
        let kept = skb.share();
        let chain = mem.alloc_copy(&vec![1; frames * 256]).unwrap();
        let mut batch = Batch::with_capacity(32);
        for skb in if behind { [chain, skb] } else { [skb, chain] } {
            assert!(batch.push(skb).is_ok());
        }
        batch.consume(&mut mem);
        let what = format!("list of {hot_list_len}, chain of {frames}, {}", pool.ledger());
        assert_eq!((pool.ledger().in_flight, pool.ledger().difference()), (1, 0), "{what}");
        drop(mem);
        assert_eq!(pool.local_with(0).alloc(&mut batch, 32), 31, "{what}");
        assert!(batch.iter().all(|skb| skb.data().as_ptr() != kept.data().as_ptr()), "{what}");
        assert!(batch.iter_mut().all(|skb| skb.put_slice(&[9; 256])));
        assert_eq!(kept.data(), b"still somebody's", "{what}");
    }
}

#[test]
fn a_sampled_packet_may_be_shared_joined_copied_and_freed_anywhere() {
    let turns = if cfg!(miri) { 4 } else { 300 };
    for pool in pools() {
        pool.set_sampling(1);
        let (mut mem, mut other) = (pool.local(), pool.local());
        let mut batch = Batch::with_capacity(4);
        for _ in 0..1024 {
            // A call of no packets is a call: by the last one it knows that it is to time each.
            mem.alloc(&mut batch, 0);
        }
        for turn in 0..turns {
            assert_eq!(mem.alloc(&mut batch, 4), 4);
            // The first one is watched: it is each of these in turn.
            let order = [0, 1, 2, 3].map(|i| (i + turn) % 4);
            let mut four = batch.drain().map(Some).collect::<Vec<_>>();
            let [mut head, dropped, mut shared, fragment] = order.map(|i| four[i].take().unwrap());
            let clone = shared.share();
            assert!(shared.put_slice(b"copied by this"));
            assert!(head.append(fragment).is_ok());
            assert!(head.append(mem.alloc_len(700).unwrap()).is_ok());
            let chain = head.share().into_unique();
            assert!(head.push(1).is_some());
            for skb in [clone.into_unique(), chain, shared] {
                assert!(batch.push(skb).is_ok());
            }
            if turn % 3 == 0 {
                batch.truncate(1);
            }
            batch.consume(&mut other);
            drop((head, dropped));
        }
        drop((mem, other));
        assert_at_rest(&pool);
        let watched: u64 = pool.stats().dwell.iter().map(|dwell| dwell.packets()).sum();
        assert!(watched > 0 && watched <= turns as u64, "{watched} of {turns}");
    }
}

/// Drops the pool, its locals and its packets at once, each on a thread of its own: the last of
/// them unmaps the memory.
#[test]
fn pool_is_unmapped_once_by_its_last_user() {
    let rounds = if cfg!(miri) { 6 } else { 400 };
    for round in 0..rounds {
        let return_to = [Return::Home, Return::Local][round % 2];
        // With lists for threads in every third round.
        let frames = [64, 64, 256][round % 3];
        let builder = Pool::builder().name("leaving").frames(frames).frame_size(256).headroom(0);
        let pool = builder.return_to(return_to).build().unwrap();
        assert!(cfg!(miri) || is_mapped("leaving"), "the name shows");
        let (mut near, mut far) = (pool.local_with(4), pool.local_with(4));
        let [mut freed_far, plain, with_shared] = [(); 3].map(|()| {
            let mut batch = Batch::with_capacity(8);
            assert_eq!(near.alloc(&mut batch, 4) + far.alloc(&mut batch, 4), 8);
            batch
        });
        let mut skb = near.alloc_copy(b"shared").unwrap();
        let shares = [skb.share(), skb.share()];
        let [first, second] = shares;
        let leaving = [
            thread::spawn(move || freed_far.consume(&mut far)),
            thread::spawn(move || drop(plain)),
            thread::spawn(move || drop((with_shared, skb))),
            thread::spawn(move || drop(first)),
            thread::spawn(move || drop(second)),
            thread::spawn(move || drop(near)),
            thread::spawn(move || drop(pool)),
        ];
        // Their lists go home when they end, which a scope does not wait for.
        leaving.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!is_mapped("leaving"), "round {round}");
    }
}

/// Returns true if the process has memory of this name.
fn is_mapped(name: &str) -> bool {
    // Miri has no such file, and no memory of a name.
    !cfg!(miri) && std::fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}
