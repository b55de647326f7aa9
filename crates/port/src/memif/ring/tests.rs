//! Tests the layout of a ring, and every index that a peer can store.

use linerate_sys::mem::{Huge, Region};
use proptest::prelude::*;

use super::*;

/// Returns the memory with a ring of `1 << power` at its start.
pub fn memory(power: u8) -> Arc<PeerMemory> {
    let region = Region::new("ring", bytes(power), Huge::Never).unwrap();
    // SAFETY: only rings access the memory, as shared memory.
    Arc::new(unsafe { PeerMemory::shared(Arc::new(region)) })
}

fn both(power: u8) -> (ClientRing, ServerRing) {
    let memory = memory(power);
    let [a, b] = [0; 2].map(|at| Shared::new(&memory, at, power).unwrap());
    a.initialise();
    assert!(b.is_one());
    (ClientRing::new(a), ServerRing::new(b))
}

#[test]
fn a_ring_outside_its_memory_or_across_its_grain_is_none() {
    let memory = memory(8);
    assert!(Shared::new(&memory, 0, 8).is_some());
    assert!(Shared::new(&memory, 8, 4).is_none());
    assert!(Shared::new(&memory, 0, 15).is_none());
    assert!(Shared::new(&memory, usize::MAX & !15, 1).is_none());
    let end = memory.len() - bytes(2);
    assert!(Shared::new(&memory, end, 2).is_some());
    assert!(Shared::new(&memory, end, 3).is_none());
    assert!(!Shared::new(&memory, 0, 8).unwrap().is_one());
}

#[test]
fn a_descriptor_is_where_the_protocol_has_it() {
    let memory = memory(2);
    let shared = Shared::new(&memory, 0, 2).unwrap();
    let desc = Desc { flags: NEXT, region: 2, len: 0x0304_0506, offset: 0x0708_090a };
    shared.set(5, desc);
    let mut bytes = [0; 16];
    assert!(memory.read(HEADER_BYTES + DESC_BYTES, &mut bytes));
    assert_eq!(bytes, [1, 0, 2, 0, 6, 5, 4, 3, 10, 9, 8, 7, 0, 0, 0, 0]);
    shared.set_filled(1, Desc { flags: 0, region: 2, len: 60, offset: 0 });
    assert_eq!(shared.desc(1), Desc { flags: 0, region: 2, len: 60, offset: 0x0708_090a });
    shared.initialise();
    shared.want_bell(false);
    let mut header = [0; 8];
    assert!(memory.read(0, &mut header));
    assert_eq!(header, [0x20, 0x1f, 0xe3, 0x03, 1, 0, 0, 0]);
    assert!(!shared.rings());
    shared.want_bell(true);
    assert!(shared.rings());
}

#[test]
fn impossible_index_is_a_protocol_error() {
    let (mut client, mut server) = both(3);
    client.post(4);
    assert_eq!(server.poll(), Ok(4));
    let head = |to: u16| client.shared.half(HEAD_AT).store(to, Ordering::Release);
    for index in [3, 0, 9, 0x8000, u16::MAX] {
        head(index);
        assert_eq!(server.poll(), Err(ProtocolError::Index), "{index}");
    }
    head(8);
    assert_eq!(server.poll(), Ok(8));
    let (mut client, server) = both(3);
    client.post(4);
    let tail = |to: u16| server.shared.half(TAIL_AT).store(to, Ordering::Release);
    for index in [5, 0x8000, u16::MAX] {
        tail(index);
        assert_eq!(client.poll(), Err(ProtocolError::Index), "{index}");
    }
    tail(3);
    assert_eq!(client.poll(), Ok(3));
    tail(2);
    assert_eq!(client.poll(), Err(ProtocolError::Index));
}

/// Returns the index values to test: those near a wrap, and some far from it.
fn indices() -> impl Iterator<Item = u16> {
    let near = if cfg!(miri) { 2 } else { 16 };
    (u16::MAX - (near - 1)..=u16::MAX).chain(0..near).chain([0x7fff, 0x8000, 0x8001, 0x1234])
}

/// Returns how far ahead a peer may put its index: every value, and a few of them under Miri.
fn distances() -> Vec<u16> {
    const FEW: [u16; 11] = [0, 1, 2, 4, 5, 8, 9, 0x4000, 0x4001, 0x8000, u16::MAX];
    if cfg!(miri) { FEW.to_vec() } else { (0..=u16::MAX).collect() }
}

/// Tests every index that a client can store, for any state of the ring.
#[test]
fn server_takes_exactly_the_indices_that_are_possible() {
    let distances = distances();
    for power in [0, 3, if cfg!(miri) { 4 } else { POWER_MAX }] {
        let (client, mut server) = both(power);
        let len = client.shared.len();
        let known = (0..=len).filter(|n| *n < 10 || len - n < 2);
        for (tail, known) in indices().flat_map(|tail| known.clone().map(move |n| (tail, n))) {
            for &posted in &distances {
                (server.tail, server.seen) = (tail, tail.wrapping_add(known));
                let head = tail.wrapping_add(posted);
                client.shared.half(HEAD_AT).store(head, Ordering::Relaxed);
                // A valid index takes back no posted descriptor, and posts no more than the ring
                // holds.
                let expected = if (known..=len).contains(&posted) { Ok(posted) } else { Err(()) };
                assert_eq!(server.poll().map_err(drop), expected, "{tail} {known} {posted}");
                assert_eq!(server.known(), expected.unwrap_or(known));
            }
        }
    }
}

/// Tests every index that a server can store, for any state of the ring.
#[test]
fn client_takes_exactly_the_indices_that_are_possible() {
    let distances = distances();
    for power in [0, 2] {
        let (mut client, server) = both(power);
        let len = client.shared.len();
        let before = (0..=len).flat_map(|posted| (0..=posted).map(move |seen| (posted, seen)));
        for (done, (posted, seen)) in indices().flat_map(|i| before.clone().map(move |b| (i, b))) {
            for &back in &distances {
                client.done = done;
                client.head = done.wrapping_add(posted);
                client.seen = done.wrapping_add(seen);
                let tail = done.wrapping_add(back);
                server.shared.half(TAIL_AT).store(tail, Ordering::Relaxed);
                // A valid index is not before the last one that was read, and not after the
                // posted descriptors.
                let expected = if (seen..=posted).contains(&back) { Ok(back) } else { Err(()) };
                assert_eq!(client.poll().map_err(drop), expected, "{done} {posted} {seen} {back}");
                assert!(client.posted() == posted && client.free() == len - posted);
            }
        }
    }
}

proptest! {
    /// Checks that posted descriptors are seen and returned in order, whatever the steps.
    #[test]
    fn both_sides_agree_across_the_wrap(
        power in 0u8..6,
        steps in prop::collection::vec(
            (any::<u16>(), any::<u16>(), any::<u16>()), 1..if cfg!(miri) { 20 } else { 300 }
        ),
    ) {
        let (mut client, mut server) = both(power);
        let len = client.shared.len();
        let (mut posted, mut worked, mut back) = (0u64, 0u64, 0u64);
        for (a, b, c) in steps {
            let n = a % (client.free() + 1);
            for i in 0..n {
                let desc = Desc { len: (posted + u64::from(i)) as u32, ..Desc::default() };
                client.shared.set(client.free_slot(i) as u16, desc);
            }
            client.post(n);
            posted += u64::from(n);
            let seen = server.poll().unwrap();
            prop_assert_eq!(u64::from(seen), posted - worked);
            let n = b % (seen + 1);
            for i in 0..n {
                let desc = server.shared.desc(server.at(i));
                prop_assert_eq!(u64::from(desc.len), worked + u64::from(i));
            }
            server.give_back(n);
            worked += u64::from(n);
            let done = client.poll().unwrap();
            prop_assert_eq!(u64::from(done), worked - back);
            let n = c % (done + 1);
            client.take_back(n);
            back += u64::from(n);
            prop_assert_eq!(u64::from(client.posted()), posted - back);
            prop_assert!(client.free() <= len);
        }
    }
}
