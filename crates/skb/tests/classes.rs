//! Size classes, the general allocator, and the memory of a packet.

use linerate_skb::{Batch, Data, Init, Pool, Return, Trust};

#[test]
fn a_packet_goes_into_the_smallest_class_that_has_the_room() {
    let pool = Pool::builder().frames(64).jumbo(4, 16384).build().unwrap();
    let mut mem = pool.local();
    for (bytes, fragments, room) in [(1514, 0, 2048), (9000, 0, 16384), (16128, 0, 16384)] {
        let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
        let skb = mem.alloc_copy(&data).unwrap();
        assert_eq!((skb.fragments(), skb.data() == data), (fragments, true));
        assert_eq!(skb.headroom() + skb.len() + skb.tailroom(), room);
    }
    // What fits neither is a list of ordinary frames.
    let skb = mem.alloc_copy(&[7; 20_000]).unwrap();
    assert_eq!((skb.len(), skb.fragments()), (20_000, 20_000usize.div_ceil(1792) - 1));
    assert!(mem.alloc_len(20_000).is_none());
}

#[test]
fn class_of_no_frame_has_no_room() {
    let pool = Pool::builder().frames(8).jumbo(0, 16384).build().unwrap();
    assert_eq!((pool.jumbo_frames(), pool.jumbo_room()), (0, 0));
    assert_eq!(pool.packet_max_bytes(), 8 * pool.data_room());
    assert!(pool.local().alloc_len(9000).is_none());
}

#[test]
fn jumbo_frames_come_home_to_their_own_class_however_they_are_freed() {
    let pool = Pool::builder().frames(64).jumbo(3, 8192).build().unwrap();
    let mut mem = pool.local_with(8);
    for round in 0..if cfg!(miri) { 4 } else { 20 } {
        let skbs: Vec<_> = (0..3).map(|_| mem.alloc_len(5000).unwrap()).collect();
        assert!(mem.alloc_len(5000).is_none());
        for skb in skbs {
            match round % 4 {
                0 => drop(skb),
                1 => std::thread::scope(|s| s.spawn(|| drop(skb)).join().unwrap()),
                2 => {
                    let mut head = mem.alloc_copy(b"head").unwrap();
                    assert!(head.append(skb).is_ok());
                }
                _ => {
                    let mut batch = Batch::with_capacity(1);
                    assert!(batch.push(skb).is_ok());
                    batch.consume(&mut mem);
                }
            }
        }
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
    }
    // Ordinary packets do not eat the jumbo class, nor it them.
    let mut all = Batch::with_capacity(100);
    assert_eq!(mem.alloc(&mut all, 100), 64);
    assert!(mem.alloc_len(5000).is_some());
}

#[test]
fn a_jumbo_packet_without_a_jumbo_frame_travels_in_fragments() {
    let pool = Pool::builder().frames(64).jumbo(1, 16384).build().unwrap();
    let mut mem = pool.local();
    let first = mem.alloc_copy(&[1; 9000]).unwrap();
    let second = mem.alloc_copy(&[2; 9000]).unwrap();
    assert_eq!((first.fragments(), second.fragments()), (0, 5));
    assert!(second.segments().flatten().all(|b| *b == 2));
}

#[test]
fn a_jumbo_class_that_is_used_up_costs_no_lock_for_a_packet() {
    let pool = Pool::builder().frames(64).jumbo(2, 16384).build().unwrap();
    let mut mem = pool.local();
    let taken = [(); 2].map(|()| mem.alloc_len(9000).unwrap());
    assert!(mem.alloc_copy(&[1; 9000]).is_some_and(|skb| !skb.is_linear()));
    let before = pool.stats().locks.taken;
    for _ in 0..5 {
        assert!(mem.alloc_len(9000).is_none());
    }
    assert_eq!((pool.stats().locks.taken, pool.ledger().starved), (before, 5));
    drop(taken);
    assert!(mem.alloc_len(9000).is_some());
}

#[test]
fn a_shared_jumbo_packet_is_copied_into_a_jumbo_frame() {
    let pool = Pool::builder().frames(64).jumbo(2, 16384).build().unwrap();
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(&[1; 9000]).unwrap();
    let shared = skb.share();
    skb.data_mut()[8999] = 9;
    assert_eq!((skb.data()[8999], shared.data()[8999], skb.fragments()), (9, 1, 0));
    // There is no third: nothing is written, and nothing lost.
    let another = skb.share();
    assert!(skb.data_mut().is_empty() && !skb.set_mark(1));
    drop((skb, shared, another));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn the_general_allocator_gives_each_packet_what_it_asks_for() {
    for init in [Init::AtAlloc, Init::AtFree] {
        let build = Pool::builder().frames(32).data(Data::General).init(init);
        let pool = build.build().unwrap();
        let mut mem = pool.local();
        let small = mem.alloc_len(60).unwrap();
        let large = mem.alloc_copy(&[5; 40_000]).unwrap();
        assert_eq!((small.tailroom(), large.fragments(), large.len()), (60, 0, 40_000));
        assert!(large.data().iter().all(|b| *b == 5));
        assert!(small.truesize() < 1000 && large.truesize() > 40_000);
        let in_use = pool.stats().blocks_bytes;
        assert!(in_use > 40_000 && in_use < 42_000, "{in_use}");
        let mut batch = Batch::with_capacity(40);
        assert_eq!(mem.alloc(&mut batch, 40), 30);
        batch.consume(&mut mem);
        std::thread::scope(|s| s.spawn(|| drop((small, large))).join().unwrap());
        assert_eq!(pool.stats().blocks_bytes, 0);
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
    }
}

#[test]
fn a_general_packet_is_shared_and_copied_like_any_other() {
    let pool = Pool::builder().frames(8).data(Data::General).build().unwrap();
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(&[3; 5000]).unwrap();
    let shared = skb.share();
    skb.data_mut()[4999] = 4;
    assert_eq!((skb.data()[4999], shared.data()[4999], skb.len()), (4, 3, 5000));
    assert!(skb.append(mem.alloc_copy(&[9; 70]).unwrap()).is_ok());
    drop((skb, shared));
    assert_eq!(pool.stats().blocks_bytes, 0);
}

#[test]
fn true_sizes_add_up_to_the_memory_of_the_pool() {
    // Whole pages, so that nothing is rounded.
    let (frames, jumbo_frames) = if cfg!(miri) { (512, 8) } else { (4096, 64) };
    let pool = Pool::builder().frames(frames).jumbo(jumbo_frames, 16384);
    let pool = pool.huge_pages(linerate_skb::Huge::Never).build().unwrap();
    let mut mem = pool.local_with(0);
    // A list of twelve frames counts all of them.
    let chain = mem.alloc_copy(&[7; 20_000]).unwrap();
    let mut batch = Batch::with_capacity(frames as usize);
    assert_eq!(mem.alloc(&mut batch, frames as usize), frames as usize - 1 - chain.fragments());
    assert!(batch.push(chain).is_ok());
    let jumbo: Vec<_> = std::iter::from_fn(|| mem.alloc_len(9000)).collect();
    assert_eq!(jumbo.len(), jumbo_frames as usize);
    let sum: usize = batch.iter().chain(&jumbo).map(|skb| skb.truesize()).sum();
    assert_eq!(sum as u64, pool.stats().memory_bytes());
}

#[test]
fn a_pool_of_each_kind_gives_what_it_has_and_recovers() {
    for trust in [Trust::Private, Trust::Exported] {
        for return_to in [Return::Local, Return::Home] {
            for hot_list_len in [0, 7, 100_000] {
                let build = Pool::builder().frames(50).trust(trust).return_to(return_to);
                let pool = build.build().unwrap();
                let mut mem = pool.local_with(hot_list_len);
                assert_eq!(mem.hot_list_len(), hot_list_len.min(50));
                let mut batch = Batch::with_capacity(80);
                for _ in 0..if cfg!(miri) { 1 } else { 3 } {
                    assert_eq!(mem.alloc(&mut batch, 80), 50);
                    assert_eq!(mem.alloc(&mut batch, 1), 0);
                    std::thread::scope(|s| {
                        s.spawn(|| batch.clear()).join().unwrap();
                    });
                }
                assert_eq!(pool.ledger().difference(), 0);
            }
        }
    }
}
