//! Compares the true size of packets whose data is from malloc with malloc's own count. That count
//! is of the whole process, so this test has a process of its own.
#![cfg(all(target_env = "gnu", not(any(loom, miri))))]

use linerate_skb::{Data, Pool, Skb};

/// The account that glibc's mallinfo2(3) returns.
#[repr(C)]
struct Account {
    _before: [usize; 4],
    /// Bytes of blocks that were mapped each alone.
    mapped: usize,
    _between: [usize; 2],
    /// Bytes of all other blocks in use.
    in_use: usize,
    _behind: [usize; 2],
}

unsafe extern "C" {
    fn mallinfo2() -> Account;
}

fn in_use() -> usize {
    // SAFETY: takes nothing, and only reads the allocator's own counts.
    let account = unsafe { mallinfo2() };
    account.in_use + account.mapped
}

#[test]
fn true_sizes_of_general_packets_add_up_to_what_malloc_took() {
    /// Kept for each frame: hot and cold line, its place in the depot, and in the table of blocks.
    const HEADER_BYTES: usize = 64 + 64 + 4 + 16;
    let pool = Pool::builder().frames(256).data(Data::General).build().unwrap();
    let mut mem = pool.local();
    let mut skbs: Vec<Skb> = Vec::with_capacity(200);
    // Odd sizes, and those that malloc rounds up, keeps in bins of its own, or maps.
    for (round, bytes) in [0, 1, 25, 1514, 5001, 65_279].into_iter().enumerate() {
        let before = in_use();
        for i in 0..20 {
            skbs.push(mem.alloc_len(bytes + i).unwrap());
        }
        let taken = in_use() - before;
        let sum: usize = skbs.iter().skip(20 * round).map(|skb| skb.truesize()).sum();
        assert_eq!(sum, taken + 20 * HEADER_BYTES, "{bytes} bytes");
    }
}
