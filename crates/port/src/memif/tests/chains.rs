//! Chains of descriptors that are copied: many empty ones, and ones whose end has not arrived.

use std::cell::Cell;
use std::sync::Arc;

use linerate_skb::{Batch, Pool};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::peer::PeerMemory;

use super::super::copies::{Buffers, Copies};
use super::super::ring::{Checked, Desc, NEXT, ProtocolError};

/// A packet of 60 bytes in so many parts, of which only the first has bytes; counts the reads.
struct Parts {
    memory: PeerMemory,
    parts: u16,
    reads: Cell<u32>,
}

impl Parts {
    fn new(parts: u16) -> Parts {
        let region = Arc::new(Region::new("parts", 4096, Huge::Never).unwrap());
        // SAFETY: only this value accesses the memory, as shared memory.
        let memory = unsafe { PeerMemory::shared(region) };
        Parts { memory, parts, reads: Cell::new(0) }
    }
}

impl Buffers for Parts {
    fn len(&self) -> u16 {
        16384
    }

    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)> {
        self.reads.set(self.reads.get() + 1);
        let flags = if i + 1 < self.parts { NEXT } else { 0 };
        Ok((Desc { flags, len: if i == 0 { 60 } else { 0 }, ..Desc::default() }, &self.memory, 0))
    }

    fn fill(&self, _: u16, _: Desc, _: u32) {
        panic!("nothing is sent");
    }
}

#[test]
fn a_packet_of_more_parts_than_any_sender_makes_is_a_violation_and_one_of_as_many_arrives() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, mut out) = (pool.local(), Batch::with_capacity(8));
    let got = Copies::default().receive(&Parts::new(1024), 1024, &mut mem, &mut out, 8);
    assert_eq!((got, out.len()), ((1024, Ok(())), 1));
    let got = Copies::default().receive(&Parts::new(1025), 1025, &mut mem, &mut out, 8);
    assert_eq!((got, out.len()), ((0, Err(ProtocolError::TooLong)), 1));
}

#[test]
fn a_packet_without_an_end_is_read_again_only_when_more_is_posted() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, mut out) = (pool.local(), Batch::with_capacity(8));
    let (ring, mut copies) = (Parts::new(101), Copies::default());
    assert_eq!(copies.receive(&ring, 100, &mut mem, &mut out, 8), (0, Ok(())));
    let reads = ring.reads.get();
    assert_eq!(copies.receive(&ring, 100, &mut mem, &mut out, 8), (0, Ok(())));
    assert_eq!(ring.reads.get(), reads);
    assert_eq!(copies.receive(&ring, 101, &mut mem, &mut out, 8), (101, Ok(())));
    assert_eq!(out.len(), 1);
}
