//! Tests the frames that threads keep.

use super::*;
use crate::{Batch, CoreKind, CoreStats, Ledger, Pool};

#[test]
fn drops_stay_on_the_thread_until_it_exits() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let mut mem = pool.local();
    let mut batch = Batch::with_capacity(100);
    assert_eq!(mem.alloc(&mut batch, 100), 100);
    let caches = |ledger: &Ledger| {
        let named = |(name, n): &(_, u64)| (*name == "thread caches").then_some(*n);
        ledger.holders().iter().find_map(named).unwrap()
    };
    let on_thread = std::thread::scope(|s| {
        s.spawn(|| {
            batch.drain().for_each(drop);
            caches(&pool.ledger())
        })
        .join()
        .unwrap()
    });
    // Of a list of 64, the colder half has gone to the depot twice.
    assert_eq!(on_thread, 36);
    let ledger = pool.ledger();
    assert_eq!((ledger.consumed, ledger.in_flight, ledger.difference()), (100, 0, 0));
    assert_eq!(caches(&ledger), 0);
}

#[test]
fn a_packet_that_outlives_its_pool_goes_home_when_it_is_dropped() {
    for shared in [false, true] {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut mem = pool.local();
        let mut skb = mem.alloc_copy(b"last").unwrap();
        let (id, serial) = (pool.umem().id() as usize, pool.umem().own_serial());
        drop((pool, mem));
        let clone = shared.then(|| skb.share());
        drop((skb, clone));
        // Another test may have taken the id since; this incarnation of it is over.
        Umem::if_alive(id, serial, |_| panic!("the frame is on the thread's list"));
    }
}

#[test]
fn a_bulk_free_near_the_length_of_a_list_visits_the_depot_once() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let mut mem = pool.local();
    let thread = |pool: &Pool| {
        let core = |c: &CoreStats| c.kind == CoreKind::Thread && c.alive;
        let core = pool.stats().cores.into_iter().find(core).unwrap();
        (core.hot_list_len, core.level, core.visits.1, core.discards)
    };
    let [first, second, long] = [60, 60, 65].map(|n| {
        let mut batch = Batch::with_capacity(n);
        assert_eq!(mem.alloc(&mut batch, n), n);
        batch
    });
    drop(first);
    assert_eq!(thread(&pool), (64, 60, 0, 0));
    // 56 frames make room for 60 more.
    drop(second);
    assert_eq!(thread(&pool), (64, 64, 1, 56));
    // A batch longer than the list goes to the depot and leaves the list as it is.
    drop(long);
    assert_eq!(thread(&pool), (64, 64, 2, 56 + 65));
}

#[test]
fn an_idle_thread_cannot_starve_the_others() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let mut mem = pool.local();
    mem.set_hot_list_len(0);
    let (tx, rx) = std::sync::mpsc::channel::<Batch>();
    let (done, idle) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|s| {
        let (done, idle) = (&done, &idle);
        s.spawn(move || {
            for mut batch in rx {
                batch.drain().for_each(drop);
            }
            done.wait();
            idle.wait();
        });
        let mut batch = Batch::with_capacity(1024);
        assert_eq!(mem.alloc(&mut batch, 1024), 1024);
        tx.send(batch).unwrap();
        drop(tx);
        done.wait();
        let mut batch = Batch::with_capacity(1024);
        assert!(mem.alloc(&mut batch, 1024) >= 1024 - 1024 / 8);
        idle.wait();
    });
}

#[test]
fn thread_cache_of_a_former_pool_is_not_reused() {
    for _ in 0..if cfg!(miri) { 5 } else { 100 } {
        let pool = Pool::builder().frames(256).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(64);
        mem.alloc(&mut batch, 64);
        batch.drain().for_each(drop);
        let ledger = pool.ledger();
        assert_eq!((ledger.consumed, ledger.difference()), (64, 0), "{ledger}");
    }
}

#[test]
fn a_thread_that_ends_gives_back_what_its_list_has_reserved() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let mut mem = pool.local();
    let budget = || pool.umem().cache_budget.load(Ordering::Relaxed);
    let skb = mem.alloc_copy(b"dropped elsewhere").unwrap();
    let before = budget();
    let meanwhile = std::thread::scope(|s| {
        let thread = s.spawn(|| {
            drop(skb);
            budget()
        });
        thread.join().unwrap()
    });
    assert_eq!((meanwhile, budget()), (before - 64, before));
}
