//! A test with a memory limit: the limit applies to the process, so the test has a process of its
//! own.
#![cfg(not(any(loom, miri)))]

use linerate_skb::compat::skb_copy;
use linerate_skb::{Batch, Data, Huge, Pool, Skb};
use linerate_sys::Code;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process map 16 MiB more than it has.
fn may_map_little() {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some((pages << 12) + (16 << 20)), maximum }).unwrap();
}

#[test]
fn pool_and_packets_for_which_there_is_no_memory_are_refused_and_nothing_leaks() {
    let pool = Pool::builder().frames(4096).frame_size(65_536).data(Data::General);
    let pool = pool.huge_pages(Huge::Never).build().unwrap();
    let (mut mem, mut batch) = (pool.local_with(256), Batch::with_capacity(4096));
    may_map_little();
    // 256 MiB: more than an arena of malloc holds.
    let e = Pool::builder().frames(4096).frame_size(65_536).build().unwrap_err();
    assert_eq!(e.code, Code::Memory, "{e:?}");
    assert!(!e.why.is_empty() && !e.fix.is_empty(), "{e:?}");
    // Headers there are for all, data for some.
    while mem.alloc(&mut batch, 64) > 0 {}
    let alone: Vec<Skb> = std::iter::from_fn(|| mem.alloc_len(65_000)).collect();
    let got = batch.len() + alone.len();
    assert!((64..4096).contains(&got), "{got}");
    let (ledger, stats) = (pool.ledger(), pool.stats());
    assert_eq!((ledger.in_flight, ledger.difference()), (got as u64, 0), "{ledger}");
    assert!(ledger.starved > 0, "{ledger}");
    assert!(stats.blocks_bytes >= 65_000 * got as u64, "{got}: {}", stats.blocks_bytes);
    // Each failed attempt takes a header, and gives it back.
    for _ in 0..100 {
        assert!(mem.alloc_one().is_none() && mem.alloc(&mut batch, 64) == 0);
        assert!(batch.iter().next().is_some_and(|skb| skb_copy(skb).is_none()));
    }
    batch.consume(&mut mem);
    drop(alone);
    // Those that were had for a batch that was not went back, too.
    assert_eq!((pool.stats().blocks_bytes, pool.ledger().difference()), (0, 0));
    let small: Vec<Skb> = std::iter::from_fn(|| mem.alloc_len(1)).collect();
    assert_eq!(small.len(), 4096, "a header is missing");
}
