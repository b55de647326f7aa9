//! Peers that keep to the protocol in the ways of other implementations: VPP, libmemif and DPDK's
//! driver.

use std::sync::Arc;

use linerate_sys::peer::{Access, PeerMemory};

use super::super::ring::{Desc, NEXT, Shared};
use super::cgroup::connect_with;
use super::hostile::{sealed, settled};
use super::neighbours::{LONG, admitted};
use super::peer::{Client, RING, buffer};
use super::*;

fn pool() -> Pool {
    Pool::builder().frames(64).build().unwrap()
}

/// Returns the lengths of the packets that the port receives.
fn received(port: &mut Opened, pool: &Pool) -> Vec<usize> {
    let (mut mem, mut out) = (pool.local(), Batch::with_capacity(8));
    port.queues[0].rx(&mut mem, &mut out, 8);
    let lengths = out.iter().map(linerate_skb::Skb::len).collect();
    out.consume(&mut mem);
    lengths
}

/// Posts a packet of three parts, and one behind it, in a ring that begins with slot 0.
fn post_chain(ring: &Shared) {
    for (slot, flags) in (0..).zip([NEXT, NEXT, 0, 0]) {
        ring.set(slot, Desc { flags, len: 60, ..buffer(RING + slot) });
    }
}

fn flags(ring: &Shared) -> [u16; 4] {
    std::array::from_fn(|slot| ring.desc(slot as u16).flags)
}

/// Checks a client that sets the flag of a chain and never clears it, as DPDK's driver does.
#[test]
fn server_takes_the_flag_of_a_chain_out_of_the_slots_that_it_gives_back() {
    let (name, pool) = (name(), pool());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let client = Client::connected(&name, &mut port, &mut pool.local());
    post_chain(&client.from.ring);
    client.from.set_head(2);
    assert_eq!(received(&mut port, &pool), []);
    assert_eq!(flags(&client.from.ring), [NEXT, NEXT, 0, 0], "the end has not arrived");
    client.from.set_head(4);
    assert_eq!(received(&mut port, &pool), [180, 60]);
    client.from.set_head(RING);
    received(&mut port, &pool);
    // The client writes only the lengths of its next packets.
    client.from.set_head(RING + 4);
    assert_eq!(received(&mut port, &pool), [60; 4]);
    drop((client, port));
    settled(&pool);
}

/// Checks a packet that is dropped, because the pool cannot hold it.
#[test]
fn server_takes_the_flag_of_a_chain_that_it_drops_out_of_its_slots() {
    let (name, pool) = (name(), Pool::builder().frames(4).build().unwrap());
    let mut port = open(&format!("memif:{name},role=server"), &pool);
    let client = Client::connected(&name, &mut port, &mut pool.local());
    for (slot, flags) in (0..).zip([NEXT, NEXT, NEXT, 0]) {
        client.from.ring.set(slot, Desc { flags, len: 2048, ..buffer(RING + slot) });
    }
    client.from.set_head(4);
    assert_eq!(received(&mut port, &pool), []);
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::TOO_LONG), 1);
    assert_eq!(flags(&client.from.ring), [0; 4]);
    drop((client, port));
    settled(&pool);
}

#[test]
fn reader_takes_the_flag_of_a_chain_out_of_the_slots_that_it_gives_back() {
    const BYTES: u64 = 1 << 16;
    let name = name();
    let mut reader = Reader::listen(&name).unwrap();
    let (channel, file) = (admitted(&name, "").unwrap(), sealed(BYTES));
    connect_with(&channel, &file, BYTES).unwrap();
    let memory = Arc::new(PeerMemory::map(&file, BYTES, Access::Write, false).unwrap());
    let ring = Shared::new(&memory, 0, 10).unwrap();
    let start = Instant::now();
    while reader.health() != Health::Up {
        assert!(start.elapsed() < LONG, "{:?}", reader.health());
        let _ = reader.arm();
    }
    post_chain(&ring);
    memory.half_words(6, 1).unwrap()[0].store(4, Ordering::Release);
    let held: Vec<_> = reader.frames(8).map(super::super::Frame::hold).collect();
    assert_eq!(held.iter().map(super::super::Held::len).collect::<Vec<_>>(), [180, 60]);
    assert_eq!(flags(&ring), [NEXT, NEXT, 0, 0], "the reader has the slots");
    drop(held);
    assert_eq!(reader.frames(8).count(), 0);
    assert_eq!(flags(&ring), [0; 4]);
}
