//! Tests the lengths of hot lists, and the frames that they keep.

use super::*;
use crate::DropReason;
use crate::batch::Batch;

fn pool(frames: u32) -> Pool {
    Pool::builder().frames(frames).build().unwrap()
}

#[test]
fn the_hot_list_is_1024_frames_long_unless_told_otherwise() {
    assert_eq!(Pool::builder().build().unwrap().local().hot_list_len(), 1024);
    assert_eq!(pool(4096).local_with(128).hot_list_len(), 128);
}

#[test]
fn hot_list_of_a_small_pool_is_a_quarter_of_it() {
    assert_eq!(pool(1024).local().hot_list_len(), 256);
}

#[test]
fn default_lists_of_idle_locals_leave_half_of_the_pool() {
    let pool = Pool::builder().build().unwrap();
    let mut producer = pool.local();
    let mut consumers = [(); 4].map(|()| pool.local());
    let lens = consumers.each_ref().map(Local::hot_list_len);
    assert_eq!((producer.hot_list_len(), lens), (1024, [512, 256, 128, 64]));
    let mut batch = Batch::with_capacity(64);
    // More than the pool has, so that each consumer's list is full.
    for round in 0..80 {
        assert_eq!(producer.alloc(&mut batch, 64), 64, "round {round}");
        batch.consume(&mut consumers[round % 4]);
    }
    // A local that ends gives back what its list reserved.
    drop((producer, consumers));
    assert_eq!(pool.local().hot_list_len(), 1024);
}

#[test]
fn default_list_that_becomes_shorter_gives_back_what_it_has_reserved() {
    let pool = Pool::builder().build().unwrap();
    let mut mem = pool.local();
    assert_eq!((mem.hot_list_len(), pool.local().hot_list_len()), (1024, 512));
    assert_eq!(mem.set_hot_list_len(24), 24);
    assert_eq!(pool.local().hot_list_len(), (2048 - 24) / 2);
    // A longer list takes nothing back.
    assert_eq!(mem.set_hot_list_len(2000), 2000);
    assert_eq!(pool.local().hot_list_len(), (2048 - 24) / 2);
    drop(mem);
    assert_eq!(pool.umem().list_budget.load(Ordering::Relaxed), 2048);
}

#[test]
fn frames_gathered_for_other_cores_are_within_the_hot_list() {
    let held = |mem: &Local| mem.list.len() + mem.away.len();
    let pool = Pool::builder().frames(512).return_to(Return::Home).build().unwrap();
    let mut producer = pool.local();
    let mut idle = [(); 8].map(|()| pool.local());
    let mut batch = Batch::with_capacity(64);
    // More than the pool has, so that each list is as full as it gets.
    for round in 0..64 {
        assert_eq!(producer.alloc(&mut batch, 32), 32, "round {round}");
        batch.consume(&mut idle[round % 8]);
        assert!(idle.iter().all(|mem| held(mem) <= mem.hot_list_len()), "round {round}");
    }
    drop(idle);
    // A core that frees frames of its own too has both within that length.
    let mut mem = pool.local_with(16);
    for round in 0..64 {
        let (own, foreign) = (round % 5, round % 7);
        assert_eq!(mem.alloc(&mut batch, own), own);
        assert_eq!(producer.alloc(&mut batch, foreign), foreign);
        batch.consume(&mut mem);
        assert!(held(&mem) <= 16, "round {round}: {}", held(&mem));
    }
    assert_eq!(mem.set_hot_list_len(4), 4);
    assert!(held(&mem) <= 4, "{}", held(&mem));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn lists_of_idle_locals_leave_half_of_the_jumbo_frames() {
    let pool = Pool::builder().frames(64).jumbo(32, 16384).build().unwrap();
    let (mut producer, mut batch) = (pool.local_with(0), Batch::with_capacity(1));
    let mut idle = [(); 8].map(|()| pool.local_with(8));
    for mem in &mut idle {
        for _ in 0..4 {
            assert!(batch.push(producer.alloc_len(9000).unwrap()).is_ok());
            batch.consume(mem);
        }
    }
    assert!(producer.alloc_len(9000).is_some());
    let listed: usize = idle.iter().map(|mem| mem.jumbo.len()).sum();
    assert!((1..=16).contains(&listed), "{listed}");
    // A list that is turned off gives back its share, and one that is turned on takes one.
    idle.iter_mut().for_each(|mem| assert_eq!(mem.set_hot_list_len(0), 0));
    assert_eq!((idle[7].set_hot_list_len(8), idle[7].jumbo_listed()), (8, 4));
    drop(idle);
    assert_eq!(pool.local().jumbo_listed(), 4);
}

#[test]
fn a_jumbo_frame_of_another_core_goes_to_the_depot_if_frames_return_home() {
    for (return_to, kept) in [(Return::Local, 1), (Return::Home, 0)] {
        let builder = Pool::builder().frames(64).jumbo(32, 16384).return_to(return_to);
        let pool = builder.build().unwrap();
        let (mut owner, mut other) = (pool.local_with(8), pool.local_with(8));
        let mut batch = Batch::with_capacity(1);
        assert!(batch.push(owner.alloc_len(9000).unwrap()).is_ok());
        batch.consume(&mut other);
        assert_eq!(other.jumbo.len(), kept);
        let before = owner.jumbo.len();
        assert!(batch.push(owner.alloc_len(9000).unwrap()).is_ok());
        batch.consume(&mut owner);
        assert_eq!(owner.jumbo.len(), before);
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
    }
}

#[test]
fn the_hot_list_can_be_turned_off_and_on_while_frames_are_out() {
    const OUT: usize = 2000;
    let pool = pool(2048);
    let mut mem = pool.local_with(128);
    let mut batch = Batch::with_capacity(OUT);
    for len in [128, 1024, 0, 1, 7, 5000, 1024, 0, 64] {
        assert_eq!(mem.alloc(&mut batch, OUT), OUT, "hot list {len}");
        let applied = mem.set_hot_list_len(len);
        assert_eq!((applied, mem.hot_list_len()), (len.min(2048), applied));
        // It takes what it has room for, and the depot the rest.
        while !batch.is_empty() {
            batch.sent(batch.len().min(32), &mut mem);
        }
        assert!(mem.list.len() <= applied, "{} of {len}", mem.list.len());
        // A batch that is longer than the list goes to the depot whole.
        assert!(applied < 32 || mem.list.len() >= applied.min(OUT) / 2, "{}", mem.list.len());
        let ledger = pool.ledger();
        assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
    }
}

#[test]
fn a_shorter_hot_list_keeps_the_frames_that_were_freed_last() {
    let pool = pool(64);
    let (mut mem, mut batch) = (pool.local_with(16), Batch::with_capacity(16));
    mem.alloc(&mut batch, 16);
    batch.consume(&mut mem);
    let hot = mem.list[12..].to_vec();
    assert_eq!((mem.set_hot_list_len(4), &mem.list), (4, &hot));
    assert_eq!((pool.ledger().difference(), pool.stats().cores[0].discards), (0, 12));
}

#[test]
fn a_bulk_free_near_the_length_of_the_hot_list_visits_the_depot_once() {
    let pool = pool(512);
    let mut mem = pool.local_with(64);
    let spills = |mem: &Local| (mem.list.len(), mem.page.spills.value(), mem.page.spilled.value());
    let batches = [60, 60, 65].map(|n| {
        let mut batch = Batch::with_capacity(n);
        assert_eq!(mem.alloc(&mut batch, n), n);
        batch
    });
    mem.send_cold(64);
    let (_, visits, frames) = spills(&mem);
    // 56 frames make room for 60 more. A batch longer than the list leaves it as it is.
    let after = [(60, 0, 0), (64, 1, 56), (64, 2, 56 + 65)];
    for (mut batch, (listed, more_visits, more_frames)) in batches.into_iter().zip(after) {
        batch.consume(&mut mem);
        assert_eq!(spills(&mem), (listed, visits + more_visits, frames + more_frames));
    }
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn frames_of_another_pool_go_home_to_it() {
    let (a, b) = (pool(64), pool(64));
    let (mut mem_a, mut mem_b) = (a.local(), b.local());
    let mut batch = Batch::with_capacity(64);
    mem_a.alloc(&mut batch, 5);
    mem_b.alloc(&mut batch, 5);
    batch.sent(10, &mut mem_b);
    for pool in [&a, &b] {
        let ledger = pool.ledger();
        assert_eq!(ledger.sent, 5);
        assert_eq!(ledger.in_flight, 0);
        assert_eq!(ledger.difference(), 0);
    }
}

#[test]
fn a_local_is_send_and_packets_outlive_their_pool() {
    fn send<T: Send>() {}
    send::<Local>();
    let skb = {
        let pool = pool(4);
        let mut mem = pool.local();
        mem.alloc_copy(b"still here").unwrap()
    };
    assert_eq!(skb.data(), b"still here");
}

#[test]
fn own_frames_that_come_back_leave_no_more_than_the_hot_list_with_those_gathered() {
    let pool = Pool::builder().frames(512).return_to(Return::Home).build().unwrap();
    let (mut producer, mut mem) = (pool.local(), pool.local_with(16));
    let (mut own, mut foreign) = (Batch::with_capacity(12), Batch::with_capacity(12));
    assert_eq!((mem.alloc(&mut own, 12), producer.alloc(&mut foreign, 12)), (12, 12));
    mem.send_cold(16);
    foreign.consume(&mut mem);
    assert_eq!((mem.list.len(), mem.away.len()), (0, 12));
    own.consume(&mut mem);
    assert_eq!((mem.list.len(), mem.away.len()), (12, 0));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn a_reason_first_met_on_packets_of_two_kinds_has_its_name_in_the_ledger() {
    const SHARED: DropReason = DropReason::app(1, "shared");
    const FOREIGN: DropReason = DropReason::app(2, "foreign");
    let pools = [(); 2].map(|()| pool(64));
    let [mut mem, mut other] = pools.each_ref().map(|pool| pool.local_with(8));
    let mut batch = Batch::with_capacity(4);
    assert_eq!(mem.alloc(&mut batch, 2), 2);
    let shared = batch.iter_mut().next().unwrap().share();
    batch.discard_first(2, SHARED, &mut mem);
    assert_eq!((mem.alloc(&mut batch, 1), other.alloc(&mut batch, 1)), (1, 1));
    batch.discard_first(2, FOREIGN, &mut mem);
    let names = pools.each_ref().map(|pool| pool.ledger().dropped);
    assert_eq!(names, [vec![(SHARED, 2), (FOREIGN, 1)], vec![(FOREIGN, 1)]]);
    drop(shared);
}
