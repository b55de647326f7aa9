//! Tests of two ports over one socket, and of peers that violate the protocol.

mod cgroup;
mod chains;
mod clients;
mod crowd;
mod foreign;
mod fuse;
mod holes;
mod hostile;
mod liars;
mod model;
mod neighbours;
mod peer;
mod races;
mod waits;

use std::env::set_current_dir;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Huge, Local, Pages, Pool, Trust};
use linerate_sys::wait::poll_readable;
use linerate_testing::Scratch;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;
use crate::conformance::{Case, Ends, Rig};
use crate::queue::Want;
use crate::registry;

/// Returns a name that only this test uses.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("@linerate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn open(text: &str, pool: &Pool) -> Opened {
    registry::open(text, pool).unwrap()
}

/// Polls both ends of a connection until the handshake is complete.
fn meet(pool: &Pool, ends: &mut [&mut Opened]) {
    let start = Instant::now();
    loop {
        let queues = || ends.iter().flat_map(|end| &end.queues);
        if queues().all(|queue| queue.health() == Health::Up) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no connection");
        // Do not arm: one case needs a queue that was never armed.
        let mut mem = pool.local();
        for queue in ends.iter_mut().flat_map(|end| end.queues.iter_mut()) {
            queue.rx(&mut mem, &mut Batch::with_capacity(1), 0);
        }
        std::thread::yield_now();
    }
}

/// Returns a connected server and client with these options, on `pool`.
fn joined(pool: &Pool, server: &str, client: &str) -> (Opened, Opened) {
    let name = name();
    let mut far = open(&format!("memif:{name},role=server{server}"), pool);
    let mut near = open(&format!("memif:{name},role=client{client}"), pool);
    meet(pool, &mut [&mut near, &mut far]);
    (near, far)
}

/// Returns true, and prints the reason, if the machine has no free huge pages.
fn lacks_huge_pages(pool: &Result<Pool>) -> bool {
    let Err(e) = pool else { return false };
    assert!(linerate_sys::mem::lacks_huge_pages(e), "{e}");
    eprintln!("skipped: no huge pages: {e}");
    true
}

#[test]
fn huge_pages_are_given_away_to_write_only_with_trust_on_both_sides() {
    let pool = Pool::builder().frames(1024).trust(Trust::Exported);
    // A shared pool uses huge pages only if they are required.
    let exported = pool.clone().huge_pages(Huge::Try).build().unwrap();
    assert_eq!(exported.pages(), Pages::Base);
    let pool = pool.huge_pages(Huge::Require).build();
    if lacks_huge_pages(&pool) {
        return;
    }
    let pool = pool.unwrap();
    let e = registry::open(&format!("memif:{},role=client", name()), &pool).unwrap_err();
    assert!(e.why.contains("punch holes") && e.fix.contains("trust=yes"), "{e}");
    joined(&pool, ",trust=yes", ",trust=yes");
    let why = refused(&pool, ",trust=yes");
    let told = "region 1: its owner can punch holes into a file of huge pages; add trust=yes";
    assert_eq!(why, format!("the peer has disconnected: {told}"));
}

#[test]
fn huge_pages_are_given_away_to_read_without_more() {
    let pool = Pool::builder().frames(1024).huge_pages(Huge::Require).build();
    if !lacks_huge_pages(&pool) {
        joined(&pool.unwrap(), "", ",zerocopy=read");
    }
}

#[test]
fn server_that_is_opened_again_waits_for_a_socket_that_is_closed_late() {
    let text = format!("memif:{},role=server", name());
    crate::host::testing::assert_waits_for_close(|| crate::Port::open(&text));
}

/// Returns the reason with which a server without options refuses a client with these options.
#[test]
fn a_relative_path_names_the_same_socket_after_a_change_of_the_working_directory() {
    let (scratch, pool) = (Scratch::new(), Pool::builder().frames(256).build().unwrap());
    let test = || {
        // SAFETY: FS changes only which working directory this thread has; descriptors stay shared.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        set_current_dir(&scratch.0).unwrap();
        let mut server = open("memif:m.sock,role=server", &pool);
        let mut client = open("memif:m.sock,zerocopy=no", &pool);
        set_current_dir("/").unwrap();
        meet(&pool, &mut [&mut client, &mut server]);
        drop(server);
        assert!(!scratch.0.join("m.sock").exists(), "the socket is left behind");
        let text = format!("memif:{},role=server", scratch.word("m.sock"));
        let mut server = open(&text, &pool);
        meet(&pool, &mut [&mut client, &mut server]);
    };
    std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
}

fn refused(pool: &Pool, client: &str) -> String {
    let name = name();
    let mut far = open(&format!("memif:{name},role=server"), pool);
    let mut near = open(&format!("memif:{name},role=client{client}"), pool);
    let (start, mut mem) = (Instant::now(), pool.local());
    loop {
        for end in [&mut near, &mut far] {
            end.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 0);
        }
        match near.queues[0].health() {
            Health::Down(e) if e.why.contains("disconnected") => return e.why,
            health => assert!(start.elapsed() < Duration::from_secs(10), "{health:?}"),
        }
    }
}

#[test]
fn a_packet_that_comes_in_a_hold_makes_the_queue_readable_at_its_end() {
    let (pool, hold) = (Pool::builder().frames(2048).build().unwrap(), Duration::from_millis(40));
    let (mut near, mut far) = joined(&pool, "", ",zerocopy=no");
    let (near, far) = (&mut near.queues[0], &mut far.queues[0]);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    while !near.arm(Want::Frames) {
        near.rx(&mut mem, &mut batch, 8);
    }
    let mut send = |mem: &mut Local| {
        let mut batch = Batch::with_capacity(1);
        assert!(batch.push(mem.alloc_copy(&[1; 60]).unwrap()).is_ok());
        assert_eq!(far.xmit(mem, &mut batch).packets, 1);
    };
    for _ in 0..3 {
        let start = Instant::now();
        assert!(near.hold(start + hold));
        send(&mut mem);
        assert!(poll_readable(&[near.as_fd()], Some(Duration::from_secs(20))).unwrap());
        assert!(start.elapsed() >= hold * 3 / 4, "{:?}", start.elapsed());
        assert_eq!(near.rx(&mut mem, &mut batch, 8).packets, 1);
        batch.clear();
    }
    assert!(near.arm(Want::Frames));
    send(&mut mem);
    assert!(poll_readable(&[near.as_fd()], Some(Duration::from_secs(20))).unwrap());
}

mod zero_copy {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, "", ",size=256");
            Ok(Ends::Pair(near, far))
        };
        case.on(Rig::new(open).trust(Trust::Exported).ring_frames(512));
    });
}

mod by_several_rings {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, ",rings=2", ",rings=2,size=256,zerocopy=no");
            Ok(Ends::Pair(far, near))
        };
        case.on(Rig::new(open));
    });
}

mod by_copies {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, "", ",size=256,zerocopy=no");
            Ok(Ends::Pair(far, near))
        };
        case.on(Rig::new(open));
    });
}
