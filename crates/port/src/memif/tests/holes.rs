//! The time for which a client delays a worker when it removes the pages of its region.
//!
//! ```text
//!   client, thread 1: fallocate(PUNCH_HOLE) of the whole region ──┐ the kernel lets a page fault in the range
//!   client, thread 2: offers a packet in every page of it         │ wait until the call has ended
//!   worker: reads each packet ─── page fault ─────────────────────┘
//! ```
//!
//! `cargo test -p linerate-port --lib -- --ignored --nocapture memif::tests::holes` prints a line
//! for each length of the region.

use std::sync::atomic::{AtomicBool, AtomicU16};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::cgroup::{RING, connect_with};
use super::neighbours::{LONG, Worker, admitted, assert_served, pool};
use super::*;

const PAGE: u64 = 4096;
/// The rings, which stay.
const RINGS: u64 = 1 << 16;
const ROUNDS: usize = 5;

#[test]
#[ignore = "measures"]
fn client_that_removes_its_pages_delays_a_worker_no_longer_than_the_call_takes() {
    for mib in [4, 16, 64, 256] {
        let (name, pool) = (name(), pool());
        // The honest client's region is longer than the shortest of these.
        let server = format!("memif:{name},role=server,memory={}", mib + 16);
        let worker = Worker::of_port(&server, &pool);
        let removal = remove_pages_under(&name, mib << 20);
        // The client has left, so that its place is free.
        assert_served(&format!("memif:{name},zerocopy=no"), &pool);
        let turn = worker.stop();
        eprintln!("{mib} MiB: the longest call took {removal:?}, the longest turn {turn:?}");
        // A turn can be long for other reasons, as on a busy machine.
        assert!(turn < 2 * removal + Duration::from_millis(100));
    }
}

/// Offers packets in a region of this length, and removes its pages meanwhile; returns the time of
/// the longest removal.
fn remove_pages_under(name: &str, bytes: u64) -> Duration {
    let file = rustix::fs::memfd_create("removed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let channel = admitted(name, "").unwrap();
    connect_with(&channel, &file, bytes).unwrap();
    let write = |at: u64, bytes: &[u8]| rustix::io::pwrite(&file, bytes, at).unwrap();
    let (mut longest, mut random) = (Duration::ZERO, 1_u64);
    // The next packet, which a thread offers while the other one removes pages.
    let head = AtomicU16::new(0);
    for _ in 0..ROUNDS {
        for at in (RINGS..bytes).step_by(PAGE as usize) {
            write(at, &[1]);
        }
        let is_removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_removed.load(Ordering::Relaxed) {
                    let mut tail = [0; 2];
                    rustix::io::pread(&file, &mut tail[..], 64).unwrap();
                    let next = head.load(Ordering::Relaxed);
                    if next.wrapping_sub(u16::from_ne_bytes(tail)) >= 64 {
                        continue;
                    }
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = RINGS + (random >> 16) % ((bytes - RINGS) / PAGE) * PAGE;
                    // The fields of a descriptor: flags and region, length, offset.
                    let desc = [[0, 64], [at as u32, 0]].concat();
                    let desc: Vec<u8> = desc.into_iter().flat_map(u32::to_ne_bytes).collect();
                    write(128 + u64::from(next) % RING * 16, &desc);
                    head.store(next.wrapping_add(1), Ordering::Relaxed);
                    write(6, &next.wrapping_add(1).to_ne_bytes());
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            let start = Instant::now();
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, holes, RINGS, bytes - RINGS).unwrap();
            longest = longest.max(start.elapsed());
            is_removed.store(true, Ordering::Relaxed);
        });
    }
    eprintln!("{} packets", head.load(Ordering::Relaxed));
    assert!(longest < LONG);
    longest
}
