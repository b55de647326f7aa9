//! Compares the pool's statistics by core (allocations, frees, cost) with what the tests did.

use std::sync::mpsc::sync_channel;

use linerate_skb::{Batch, CoreKind, CoreStats, FreeMatrix, Pool, Return};
use linerate_sys::thread::{allowed_cpus, pin_to_cpu};
use linerate_sys::tsc::ticks;
use linerate_testing::may_pin;

/// Returns two CPUs, if this process may run on as many.
fn two_cpus() -> Option<[usize; 2]> {
    match allowed_cpus().unwrap()[..] {
        _ if !may_pin() => None,
        [a, b, ..] => Some([a, b]),
        _ => {
            println!("skipped: one CPU only");
            None
        }
    }
}

/// Allocates on one CPU, frees every `local_in`-th batch there and all others on another one.
fn across(pool: &Pool, cpus: [usize; 2], batches: usize, local_in: usize) {
    let (to, from) = sync_channel::<Batch>(4);
    let ready = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        let ready = &ready;
        s.spawn(move || {
            pin_to_cpu(cpus[1]).unwrap();
            let mut mem = pool.local_named("far", 64);
            ready.wait();
            from.iter().for_each(|mut batch| batch.consume(&mut mem));
        });
        s.spawn(move || {
            pin_to_cpu(cpus[0]).unwrap();
            let mut mem = pool.local_named("near", 64);
            ready.wait();
            for i in 0..batches {
                let mut batch = Batch::with_capacity(32);
                while batch.len() < 32 {
                    let want = batch.spare();
                    mem.alloc(&mut batch, want);
                    std::thread::yield_now();
                }
                match i % local_in {
                    0 => batch.consume(&mut mem),
                    _ => to.send(batch).unwrap(),
                }
            }
            drop(to);
        });
    });
}

#[test]
fn every_free_is_in_the_matrix_of_cpus() {
    let Some(cpus) = two_cpus() else { return };
    for return_to in [Return::Local, Return::Home] {
        let pool = Pool::builder().frames(1024).return_to(return_to).build().unwrap();
        pool.set_sampling(1);
        across(&pool, cpus, 1000, 4);
        let stats = pool.stats();
        let [near, far] = cpus;
        assert_eq!(stats.matrix.frees(near, near), 250 * 32, "{stats}");
        assert_eq!(stats.matrix.frees(near, far), 750 * 32);
        assert_eq!((stats.matrix.remote(), stats.matrix.local()), (750 * 32, 250 * 32));
        assert_eq!(stats.matrix.remote_share(), Some(0.75));
        let core = |name: &str| stats.cores.iter().find(|c| c.name == name).unwrap().clone();
        assert_eq!((core("near").allocs, core("near").frees), (32_000, 8_000));
        assert_eq!((core("far").allocs, core("far").frees), (0, 24_000));
        assert_eq!((core("near").cpu, core("far").cpu), (Some(near), Some(far)));
        // The times of each CPU are its own.
        assert!(core("near").alloc_time.calls > 0 && core("near").free_time.calls > 0, "{stats}");
        assert!(core("far").alloc_time.calls == 0 && core("far").free_time.calls > 0, "{stats}");
        let is_own = |core: &CoreStats| core.free_time.packets <= core.frees;
        assert!(["near", "far"].map(core).iter().all(is_own), "{stats}");
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
        assert!(ledger.outstanding().is_empty());
    }
}

#[test]
fn a_local_that_needs_no_frames_is_counted_on_the_cpu_that_its_thread_was_moved_to() {
    let Some([a, b]) = two_cpus() else { return };
    let pool = Pool::builder().frames(64).build().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            pin_to_cpu(a).unwrap();
            let mut mem = pool.local();
            let mut one = Batch::with_capacity(1);
            mem.alloc(&mut one, 1);
            one.consume(&mut mem);
            pin_to_cpu(b).unwrap();
            mem.alloc(&mut one, 1);
            one.consume(&mut mem);
            assert_eq!(pool.stats().matrix.frees(a, a), 2, "nothing has told the pool");
            mem.see_cpu();
            assert_eq!(pool.stats().matrix.frees(b, b), 2);
        });
    });
}

#[test]
fn drops_of_a_thread_are_counted_on_the_cpu_that_it_was_moved_to() {
    let Some([a, b]) = two_cpus() else { return };
    let pool = Pool::builder().frames(1024).build().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            pin_to_cpu(a).unwrap();
            let mut mem = pool.local();
            drop(mem.alloc_one().unwrap());
            pin_to_cpu(b).unwrap();
            mem.see_cpu();
            drop(mem.alloc_one().unwrap());
            assert_eq!(pool.stats().matrix.frees(b, b), 2);
        });
    });
}

fn all_frees(matrix: &FreeMatrix) -> u64 {
    matrix.local() + matrix.remote() + matrix.unknown()
}

#[test]
fn matrix_of_cpus_counts_packets_and_not_their_frames() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
    drop(mem.alloc_copy(&[1; 9000]).unwrap());
    // A device that fills none of the frames that it was offered.
    assert_eq!(mem.alloc(&mut batch, 4), 4);
    batch.truncate_to(0, &mut mem);
    assert_eq!(mem.alloc(&mut batch, 4), 4);
    batch.truncate(0);
    assert_eq!(all_frees(&pool.stats().matrix), 1);
}

#[test]
fn every_frame_of_a_copy_is_an_allocation_and_a_miss_if_the_depot_had_it() {
    for (jumbo_frames, frames) in [(0, 6), (2, 1)] {
        let pool = Pool::builder().frames(64).jumbo(jumbo_frames, 16384).build().unwrap();
        let mut mem = pool.local_with(0);
        let mut skb = mem.alloc_copy(&[1; 9000]).unwrap();
        let shared = skb.share();
        assert!(!skb.data_mut().is_empty());
        let stats = pool.stats();
        let copier = stats.cores.iter().find(|c| c.kind == CoreKind::Thread).unwrap();
        assert_eq!((copier.allocs, copier.misses, copier.hits), (frames, frames, 0), "{stats}");
        drop((skb, shared));
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
        // The packet and its copy.
        assert_eq!(all_frees(&pool.stats().matrix), 2);
    }
}

#[test]
fn on_one_core_nothing_is_freed_elsewhere() {
    if !may_pin() {
        return;
    }
    let pool = Pool::builder().frames(1024).build().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            pin_to_cpu(allowed_cpus().unwrap()[0]).unwrap();
            let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
            for i in 0..200 {
                mem.alloc(&mut batch, 64);
                if i % 2 == 0 { batch.consume(&mut mem) } else { batch.drain().for_each(drop) }
            }
        });
    });
    let matrix = pool.stats().matrix;
    assert_eq!((matrix.remote(), matrix.local(), matrix.unknown()), (0, 200 * 64, 0));
}

#[test]
fn hits_misses_and_discards_are_those_of_the_hot_list() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let mut mem = pool.local_named("counted", 128);
    let mut batch = Batch::with_capacity(256);
    let look = || pool.stats().cores.iter().find(|c| c.name == "counted").unwrap().clone();
    // Half a list is fetched: 64 misses; of the next 32, none.
    assert_eq!(mem.alloc(&mut batch, 64), 64);
    batch.consume(&mut mem);
    assert_eq!(mem.alloc(&mut batch, 32), 32);
    batch.consume(&mut mem);
    let core = look();
    assert_eq!((core.allocs, core.misses, core.hits, core.discards), (96, 64, 32, 0));
    assert_eq!((core.visits, core.level, core.hot_list_len), ((1, 0), 64, 128));
    // 200 are more than the list takes: all of them go to the depot, and the list stays as it is.
    assert_eq!(mem.alloc(&mut batch, 200), 200);
    batch.consume(&mut mem);
    let core = look();
    assert!(core.discards == 200 && core.level <= 128, "{core:?}");
    // Off: everything misses.
    mem.set_hot_list_len(0);
    let before = look();
    assert_eq!(mem.alloc(&mut batch, 100), 100);
    let after = look();
    assert_eq!(after.misses - before.misses, 100);
    assert_eq!(after.hits, before.hits);
    assert!(pool.stats().locks.taken >= after.visits.0 + after.visits.1);
}

#[test]
fn outstanding_packets_are_explained_by_who_allocated_and_who_has_them() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let (mut rx, mut other) = (pool.local_named("rx", 64), pool.local_named("other", 64));
    let mut ring = pool.tally("ring");
    let mut batch = Batch::with_capacity(64);
    rx.alloc(&mut batch, 40);
    ring.set(40);
    let kept: Vec<_> = (0..3).map(|_| other.alloc_one().unwrap()).collect();
    let ledger = pool.ledger();
    assert_eq!((ledger.in_flight, ledger.difference()), (43, 0));
    assert_eq!(ledger.outstanding(), [(rx.core(), 40), (other.core(), 3)]);
    assert_eq!(ledger.held(), [("ring".into(), 40), ("the program".into(), 3)]);
    let text = format!("{ledger:#}");
    assert!(text.contains("in flight 43 = ring 40 + the program 3"), "{text}");
    // Forgotten in a release build: the number stays, and the name with it.
    let _ = std::mem::ManuallyDrop::new(kept);
    drop((batch, ring, rx, other));
    let ledger = pool.ledger();
    let lost = ledger.outstanding()[0];
    assert_eq!(ledger.outstanding(), [(lost.0, 3)]);
    let stats = pool.stats();
    assert!(stats.cores.iter().any(|c| c.core == lost.0 && c.name == "other" && !c.alive));
    // Its number is not given to another thread while packets carry it.
    let locals: Vec<_> = (0..100).map(|_| pool.local_with(0)).collect();
    assert!(locals.iter().all(|l| l.core() != lost.0));
}

#[test]
fn sampled_calls_are_timed_and_packets_watched_from_birth_to_free() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let (mut mem, mut batch) = (pool.local_named("timed", 256), Batch::with_capacity(32));
    let mut turn = |n: usize| {
        for _ in 0..n {
            mem.alloc(&mut batch, 32);
            batch.sent(16, &mut mem);
            batch.sent(16, &mut mem);
        }
    };
    turn(5000);
    let stats = pool.stats();
    assert!(stats.cores.iter().all(|c| c.alloc_time.calls == 0 && c.free_time.calls == 0));
    pool.set_sampling(15);
    let since = ticks();
    turn(5000);
    let elapsed = ticks() - since;
    let stats = pool.stats();
    let core = stats.cores.iter().find(|c| c.name == "timed").unwrap();
    // 5000 calls that allocate 32 and 10,000 that free 16; the first 1024 of either may pass before
    // it is noticed.
    for (time, calls, each) in [(core.alloc_time, 265..=334, 32), (core.free_time, 598..=667, 16)] {
        assert!(calls.contains(&time.calls) && time.packets == time.calls * each, "{time:?}");
        assert!(time.ticks_per_packet() > Some(0.0), "{time:?}");
    }
    // The timed calls are a part of the work.
    let timed = core.alloc_time.ticks.saturating_add(core.free_time.ticks);
    assert!(timed <= elapsed, "{timed} of {elapsed} ticks");
    assert_eq!(stats.dwell[0].packets(), core.alloc_time.calls);
    assert!(stats.dwell[0].quantile_ticks(0.5) > Some(1));
    assert_eq!(stats.dwell[1].packets(), 0);
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

/// Returns the statistics of the core called `name`.
fn core(pool: &Pool, name: &str) -> CoreStats {
    pool.stats().cores.iter().find(|core| core.name == name).unwrap().clone()
}

#[test]
fn time_of_a_call_is_that_of_its_work() {
    const PACKETS: usize = 4096;
    let pool = Pool::builder().frames(8192).build().unwrap();
    pool.set_sampling(1);
    // Without a list every frame comes from the depot and goes back, which takes far longer than
    // two clock readings.
    let (mut mem, mut batch) = (pool.local_named("timed", 0), Batch::with_capacity(PACKETS));
    let (mut alloc, mut free) = (0, 0);
    let before = core(&pool, "timed");
    for _ in 0..20 {
        let begun = ticks();
        assert_eq!(mem.alloc(&mut batch, PACKETS), PACKETS);
        let allocated = ticks();
        batch.consume(&mut mem);
        (alloc, free) = (alloc + allocated - begun, free + ticks() - allocated);
    }
    let after = core(&pool, "timed");
    let told = |time: fn(&CoreStats) -> u64| time(&after) - time(&before);
    let (told_alloc, told_free) = (told(|c| c.alloc_time.ticks), told(|c| c.free_time.ticks));
    assert!((alloc / 2..=alloc).contains(&told_alloc), "{told_alloc} of {alloc} ticks");
    assert!((free / 2..=free).contains(&told_free), "{told_free} of {free} ticks");
}

#[test]
fn shared_packet_is_outstanding_once_for_each_handle() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut mem = pool.local();
    let mut skb = mem.alloc_one().unwrap();
    let shared = skb.share();
    assert_eq!(pool.ledger().outstanding(), [(mem.core(), 2)]);
    drop(skb);
    assert_eq!(pool.ledger().outstanding(), [(mem.core(), 1)]);
    drop(shared);
    assert!(pool.ledger().outstanding().is_empty());
}

#[test]
fn jumbo_frames_beyond_the_list_are_discards() {
    let pool = Pool::builder().frames(64).jumbo(8, 16384).build().unwrap();
    let (mut mem, mut batch) = (pool.local_named("counted", 8), Batch::with_capacity(8));
    for _ in 0..4 {
        batch.push(mem.alloc_len(9000).unwrap()).unwrap();
    }
    let before = core(&pool, "counted");
    batch.consume(&mut mem);
    let after = core(&pool, "counted");
    // An eighth of the jumbo frames stays on the list.
    let [discards, level] = [after.discards - before.discards, after.level - before.level];
    assert_eq!((discards, level), (3, 1), "{before:?} {after:?}");
}

#[test]
fn frames_that_go_home_to_another_core_are_discards() {
    let pool = Pool::builder().frames(1024).return_to(Return::Home).build().unwrap();
    let (mut owner, mut other) = (pool.local_named("owner", 128), pool.local_named("other", 128));
    let mut batch = Batch::with_capacity(64);
    for _ in 0..4 {
        assert_eq!(owner.alloc(&mut batch, 48), 48);
        batch.consume(&mut other);
    }
    let other = core(&pool, "other");
    assert_eq!((other.frees, other.discards + other.level), (192, 192), "{other:?}");
}

#[test]
fn cpu_of_a_thread_that_only_frees_is_noted_when_its_frames_leave() {
    let Some(cpus) = two_cpus() else { return };
    let pool = Pool::builder().frames(256).build().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut near, mut batch) = (pool.local_named("near", 0), Batch::with_capacity(64));
            pin_to_cpu(cpus[0]).unwrap();
            let mut far = pool.local_named("far", 0);
            pin_to_cpu(cpus[1]).unwrap();
            assert_eq!(near.alloc(&mut batch, 64), 64);
            batch.consume(&mut far);
        });
    });
    assert_eq!(core(&pool, "far").cpu, Some(cpus[1]));
}
