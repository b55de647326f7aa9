//! Compares the ledger, the statistics, the sampling and the count of starvation with what the
//! tests did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use linerate_skb::{
    Batch, CoreKind, CoreStats, Data, Huge, Init, Ledger, Pool, PoolStats, Return, compat,
};

/// Most bytes of a packet.
const PACKET_MAX_BYTES: usize = 1 << 30;
/// Calls between two checks of a `Local` if sampling has been turned on.
const UNSAMPLED: usize = 1024;

fn assert_at_rest(pool: &Pool) {
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger:#}");
}

fn core(stats: &PoolStats, name: &str) -> CoreStats {
    stats.cores.iter().find(|c| c.name == name).unwrap().clone()
}

#[test]
fn frames_being_returned_starve_no_core() {
    let pool = Pool::builder().frames(64).return_to(Return::Home).build().unwrap();
    let (mut owner, mut other) = (pool.local_with(0), pool.local_with(8));
    let mut batch = Batch::with_capacity(64);
    for _ in 0..4 {
        assert_eq!(owner.alloc(&mut batch, 64), 64, "{:#}", pool.ledger());
        // In pieces that the other core gathers before it sends them home.
        while !batch.is_empty() {
            batch.sent(3, &mut other);
        }
        // It runs dry itself: what it gathered for the owner, and what is there already, is there.
        assert_eq!(other.alloc(&mut batch, 64), 64, "{:#}", pool.ledger());
        batch.consume(&mut owner);
        assert_at_rest(&pool);
        // An owner that has no list keeps none back either.
        other.set_hot_list_len(0);
        assert_eq!(owner.alloc(&mut batch, 64), 64, "{:#}", pool.ledger());
        batch.consume(&mut other);
        assert_eq!(other.set_hot_list_len(8), 8);
    }
}

#[test]
fn a_copy_that_finds_too_few_frames_is_counted_once() {
    let pool = Pool::builder().frames(2).build().unwrap();
    let mut mem = pool.local_with(0);
    assert!(mem.alloc_copy(&[1; 5000]).is_none());
    assert_eq!(pool.ledger().starved, 1);
}

#[test]
fn a_copy_without_a_jumbo_frame_is_counted_only_if_there_is_no_chain_either() {
    for (frames, counted) in [(2, 1), (64, 0)] {
        let pool = Pool::builder().frames(frames).jumbo(1, 16384).build().unwrap();
        let mut mem = pool.local_with(0);
        let _jumbo = mem.alloc_len(5000).unwrap();
        assert_eq!(mem.alloc_copy(&[1; 5000]).is_none(), counted == 1);
        assert_eq!(pool.ledger().starved, counted);
        assert!(mem.alloc_len(5000).is_none());
        assert_eq!(pool.ledger().starved, counted + 1);
    }
}

#[test]
fn frames_gathered_for_others_are_an_eighth_of_the_pool_at_most() {
    let pool = Pool::builder().frames(64).return_to(Return::Home).build().unwrap();
    let (mut owner, mut other) = (pool.local_with(0), pool.local_with(64));
    let mut batch = Batch::with_capacity(64);
    assert_eq!(owner.alloc(&mut batch, 64), 64);
    while !batch.is_empty() {
        batch.sent(1, &mut other);
        let level: u64 = pool.stats().cores.iter().map(|c| c.level).sum();
        assert!(level <= 8, "{level}");
    }
    assert!(owner.alloc(&mut batch, 64) >= 56);
}

#[test]
fn a_hot_list_that_is_off_keeps_no_jumbo_frame() {
    let pool = Pool::builder().frames(64).jumbo(16, 4096).build().unwrap();
    let (mut mem, mut other) = (pool.local_named("mem", 16), pool.local());
    let mut batch = Batch::with_capacity(1);
    batch.push(mem.alloc_len(3000).unwrap()).unwrap();
    batch.consume(&mut mem);
    assert!(core(&pool.stats(), "mem").level > 0, "it kept one while it was on");
    mem.set_hot_list_len(0);
    for _ in 0..2 {
        let all: Vec<_> = std::iter::from_fn(|| other.alloc_len(3000)).collect();
        assert_eq!(all.len(), 16, "{:#}", pool.ledger());
        drop(all);
        // Off, it gives back what it had, and keeps none that comes.
        batch.push(mem.alloc_len(3000).unwrap()).unwrap();
        batch.consume(&mut mem);
    }
}

#[test]
fn a_sampling_of_any_length_times_allocations_and_frees_alike() {
    // Even ones, too: calls that alternate must not fall on one kind for ever.
    for every in [1, 2, 7, 64] {
        let pool = Pool::builder().frames(64).frame_size(256).headroom(0).build().unwrap();
        let (mut mem, mut batch) = (pool.local_named("timed", 16), Batch::with_capacity(2));
        pool.set_sampling(every);
        let calls = UNSAMPLED + 10 * every as usize;
        for _ in 0..calls {
            mem.alloc(&mut batch, 2);
            batch.consume(&mut mem);
        }
        let (stats, timed) = (pool.stats(), core(&pool.stats(), "timed"));
        // The call that notices is the first of them.
        assert_eq!((timed.alloc_time.calls, timed.free_time.calls), (11, 11), "every {every}");
        assert_eq!((timed.alloc_time.packets, timed.free_time.packets), (22, 22));
        assert_eq!((stats.dwell[0].packets(), stats.dwell[1].packets()), (11, 0));
    }
}

#[test]
fn a_local_made_while_sampling_is_on_begins_at_once() {
    let pool = Pool::builder().frames(64).frame_size(256).headroom(0).build().unwrap();
    pool.set_sampling(5);
    let (mut mem, mut batch) = (pool.local_named("timed", 16), Batch::with_capacity(2));
    for _ in 0..10 {
        mem.alloc(&mut batch, 2);
        batch.consume(&mut mem);
    }
    let timed = core(&pool.stats(), "timed");
    assert_eq!((timed.alloc_time.calls, timed.free_time.calls), (2, 2));
}

#[test]
fn a_local_notices_another_sampling_within_the_calls_that_were_promised() {
    let pool = Pool::builder().frames(64).frame_size(256).headroom(0).build().unwrap();
    let (mut mem, mut batch) = (pool.local_named("timed", 16), Batch::with_capacity(1));
    let mut timed_after = |calls: usize| {
        for _ in 0..calls {
            mem.alloc(&mut batch, 1);
            batch.consume(&mut mem);
        }
        let timed = core(&pool.stats(), "timed");
        [timed.alloc_time.calls, timed.free_time.calls]
    };
    let rare = if cfg!(miri) { 1100 } else { 5000 };
    pool.set_sampling(rare);
    assert_eq!(timed_after(UNSAMPLED), [1, 1]);
    pool.set_sampling(1);
    // As many as it was set to before, the one that notices included.
    assert_eq!(timed_after(rare as usize - 1), [1, 1]);
    assert_eq!(timed_after(10), [11, 11]);
    pool.set_sampling(0);
    assert_eq!(timed_after(1), [11, 11]);
    pool.set_sampling(1);
    assert_eq!(timed_after(UNSAMPLED - 1), [11, 11]);
    assert_eq!(timed_after(1), [12, 12]);
}

#[test]
fn unused_frames_have_no_dwell_time() {
    let pool = Pool::builder().frames(64).frame_size(256).headroom(0).build().unwrap();
    pool.set_sampling(1);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
    // A device that copies: it is offered four buffers and fills none, or one.
    for fill in [0, 1] {
        for round in 0..UNSAMPLED + 20 {
            mem.alloc(&mut batch, 4);
            match round % 2 {
                0 => batch.truncate(fill),
                _ => batch.truncate_to(fill, &mut mem),
            }
            batch.consume(&mut mem);
        }
        let watched = pool.stats().dwell[0].packets();
        match fill {
            0 => assert_eq!(watched, 0),
            // The one it fills is the one that is watched, in each round by now.
            _ => assert_eq!(watched, UNSAMPLED as u64 + 20),
        }
    }
}

#[test]
fn a_fragment_has_no_dwell_time_of_its_own() {
    let pool = Pool::builder().frames(64).build().unwrap();
    pool.set_sampling(1);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
    for way in 1..3 {
        let [mut head, fragment] = [(); 2].map(|()| {
            assert_eq!(mem.alloc(&mut batch, 1), 1);
            batch.pop().unwrap()
        });
        assert!(head.append(fragment).is_ok());
        match way {
            1 => drop(head),
            _ => {
                batch.push(head).unwrap();
                batch.consume(&mut mem);
            }
        }
        let dwell: u64 = pool.stats().dwell.iter().map(|dwell| dwell.packets()).sum();
        assert_eq!(dwell, way);
    }
}

#[test]
fn a_received_packet_that_becomes_a_fragment_has_been_consumed() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut mem = pool.local();
    let mut head = mem.alloc_copy(b"head").unwrap();
    let fragment = mem.alloc_copy(b"fragment").unwrap();
    mem.count_received(2);
    assert!(head.append(fragment).is_ok());
    let figures = |l: &Ledger| (l.received, l.created, l.sent, l.consumed, l.in_flight);
    let ledger = pool.ledger();
    assert_eq!(figures(&ledger), (2, 0, 0, 1, 1), "{ledger:#}");
    assert!(ledger.balanced());
    let mut batch = Batch::with_capacity(1);
    batch.push(head).unwrap();
    batch.sent(1, &mut mem);
    let ledger = pool.ledger();
    assert_eq!(figures(&ledger), (2, 0, 1, 1, 0), "{ledger:#}");
    assert!(ledger.balanced());
}

/// Returns one pool of each kind whose free paths count differently.
fn kinds() -> [Pool; 4] {
    let builder = Pool::builder().frames(256).frame_size(256).headroom(0);
    [
        builder.clone(),
        builder.clone().return_to(Return::Home),
        builder.clone().init(Init::AtFree),
        builder.data(Data::General),
    ]
    .map(|builder| builder.build().unwrap())
}

/// Sends packets around three cores: each core passes packets on, the next one adds some of its
/// own, and the third sends all, so that it frees packets of the two others in one call.
fn send_around(pool: &Pool, turns: usize) {
    let (to, from): (Vec<_>, Vec<_>) = (0..3).map(|_| sync_channel::<Batch>(2)).unzip();
    std::thread::scope(|s| {
        for (i, from) in from.into_iter().enumerate() {
            let to = to[(i + 1) % 3].clone();
            s.spawn(move || {
                let mut mem = pool.local_with(32);
                for turn in 0..turns {
                    let mut batch = Batch::with_capacity(48);
                    mem.alloc(&mut batch, 24);
                    batch.sent(turn % 4, &mut mem);
                    // Each has as many turns as its neighbours, so none waits for ever.
                    to.send(batch).unwrap();
                    let mut batch = from.recv().unwrap();
                    mem.alloc(&mut batch, 24);
                    to.send(batch).unwrap();
                    let mut batch = from.recv().unwrap();
                    batch.sent(48, &mut mem);
                }
            });
        }
        drop(to);
    });
}

/// Asserts that figures are those of a few packets; a count that fell below zero would have
/// wrapped.
fn assert_plausible(ledger: &Ledger) {
    let figures = [ledger.received, ledger.created, ledger.sent, ledger.consumed, ledger.in_flight];
    assert!(figures.iter().all(|n| *n < 1 << 40), "{ledger:#}");
    assert!(ledger.holders().iter().all(|(_, n)| *n < 1 << 40), "{ledger:#}");
    assert!(ledger.difference().abs() < 1 << 40, "{ledger:#}");
}

#[test]
fn books_that_are_read_while_packets_move_wrap_nowhere_and_are_exact_at_rest() {
    let turns = if cfg!(miri) { 5 } else { 8_000 };
    for pool in kinds() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let reader = s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_plausible(&pool.ledger());
                    let stats = pool.stats();
                    assert!(stats.memory_bytes() < 1 << 40 && !stats.to_string().is_empty());
                    for c in stats.cores {
                        assert!(c.level <= 256 && c.hits <= c.allocs && c.misses <= c.allocs);
                    }
                }
            });
            send_around(&pool, turns);
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        let ledger = pool.ledger();
        assert_eq!((ledger.consumed, ledger.dropped_total()), (0, 0), "{ledger:#}");
        assert_eq!(ledger.sent, ledger.created);
        assert!(ledger.sent > 0 && ledger.settled());
        assert_at_rest(&pool);
    }
}

#[test]
fn a_thread_without_a_list_is_at_the_depot_for_every_frame() {
    // Too few frames for threads to keep any.
    let pool = Pool::builder().frames(32).build().unwrap();
    let mut mem = pool.local_with(0);
    for _ in 0..10 {
        let mut skb = mem.alloc_copy(b"shared").unwrap();
        let shared = skb.share();
        // The copy takes a frame; then there are two to give back.
        skb.data_mut()[0] = b'S';
        drop((skb, shared));
    }
    let stats = pool.stats();
    let thread = stats.cores.iter().find(|c| c.kind == CoreKind::Thread).unwrap();
    assert_eq!((thread.allocs, thread.hits, thread.misses), (10, 0, 10));
    assert_eq!((thread.discards, thread.visits), (20, (10, 20)));
}

#[test]
fn depot_visit_is_counted_once_if_frames_moved() {
    for (return_to, freed_in_one) in [(Return::Local, 128), (Return::Home, 128)] {
        let pool = Pool::builder().frames(256).return_to(return_to).build().unwrap();
        let (mut near, mut far) = (pool.local_named("near", 0), pool.local_named("far", 0));
        let mut batch = Batch::with_capacity(freed_in_one);
        assert_eq!(near.alloc(&mut batch, freed_in_one), freed_in_one);
        batch.consume(&mut far);
        let far = core(&pool.stats(), "far");
        assert_eq!((far.visits, far.discards), ((0, 1), freed_in_one as u64), "{return_to:?}");
    }
}

#[test]
fn mapped_bytes_include_the_stacks_of_core_depots() {
    let build = |return_to| {
        let pool = Pool::builder().frames(4096).huge_pages(Huge::Never);
        pool.return_to(return_to).build().unwrap()
    };
    let (shared, homes) = (build(Return::Local), build(Return::Home));
    let before = homes.stats().mapped_bytes;
    assert_eq!(before, shared.stats().mapped_bytes);
    let locals: Vec<_> = (0..5).map(|_| homes.local_with(0)).collect();
    // A number for each frame, in each home.
    assert_eq!(homes.stats().mapped_bytes, before + locals.len() * 4096 * size_of::<u32>());
}

#[test]
fn no_packet_has_room_for_more_than_lengths_can_say() {
    for data in [Data::Frames, Data::General] {
        let pool = Pool::builder().frames(8).headroom(0).data(data).build().unwrap();
        let mut mem = pool.local();
        for bytes in [PACKET_MAX_BYTES + 1, u32::MAX as usize, usize::MAX - 15, usize::MAX] {
            assert!(mem.alloc_len(bytes).is_none(), "{bytes}");
            assert!(compat::alloc_skb(&mut mem, bytes).is_none(), "{bytes}");
            assert!(compat::dev_alloc_skb(&mut mem, bytes).is_none(), "{bytes}");
        }
        let ledger = pool.ledger();
        assert_eq!((ledger.created, ledger.in_flight, ledger.difference()), (0, 0, 0));
        assert_eq!((pool.stats().blocks_bytes, pool.stats().locks.taken), (0, 0));
    }
}

/// Returns true if the allocator has twice the memory of the longest packet.
fn has_room() -> bool {
    let mut bytes = Vec::<u8>::new();
    let reserved = bytes.try_reserve_exact(2 * PACKET_MAX_BYTES);
    std::hint::black_box(&bytes);
    reserved.is_ok()
}

#[test]
#[cfg_attr(miri, ignore = "2 GiB of memory that is not touched, but Miri would")]
fn a_chain_is_no_longer_than_lengths_can_say() {
    let pool = Pool::builder().frames(8).data(Data::General).build().unwrap();
    let mut mem = pool.local();
    let half = PACKET_MAX_BYTES / 2;
    let Some(mut head) = mem.alloc_len(PACKET_MAX_BYTES).filter(|skb| skb.tailroom() > half) else {
        assert!(!has_room(), "the allocator has more than that");
        return println!("skipped: the allocator has no GiB for us");
    };
    let Some(mut fragment) = mem.alloc_len(half + 1) else {
        assert!(!has_room(), "the allocator has more than that");
        return println!("skipped: the allocator has no half a GiB for us");
    };
    head.commit(half);
    fragment.commit(usize::MAX);
    assert_eq!(fragment.len(), half + 1);
    // Refused by a byte, whole, and taken without it.
    let mut fragment = head.append(fragment).unwrap_err();
    assert_eq!((head.len(), head.fragments(), fragment.len()), (half, 0, half + 1));
    assert!(fragment.trim(half) && head.append(fragment).is_ok());
    assert_eq!((head.len(), head.fragments()), (PACKET_MAX_BYTES, 1));
    assert!(head.append(mem.alloc_copy(b"x").unwrap()).is_err());
    assert!(head.append(mem.alloc_len(0).unwrap()).is_ok(), "one of no bytes");
    drop(head);
    assert_eq!(pool.stats().blocks_bytes, 0);
    assert_at_rest(&pool);
}
