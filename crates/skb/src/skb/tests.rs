//! Tests of the handle.

use super::*;
use crate::{CHAIN_FRAMES_MAX, Init, Pool};

fn pool() -> Pool {
    Pool::builder().frames(64).build().unwrap()
}

#[test]
fn a_handle_is_four_bytes_and_crosses_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Skb>();
    check::<Skb<Shared>>();
    assert_eq!(size_of::<Option<Skb<Shared>>>(), 4);
}

#[test]
fn headroom_and_tailroom_are_given_and_taken() {
    let pool = pool();
    let mut skb = pool.local().alloc_one().unwrap();
    assert!(skb.reserve(64) && !skb.reserve(4096));
    assert!(skb.put_slice(b"payload"));
    skb.push(4).unwrap().copy_from_slice(b"head");
    assert_eq!(skb.data(), b"headpayload");
    assert_eq!(skb.headroom(), 60);
    assert!(skb.push(61).is_none());
    assert!(skb.pull(4) && !skb.pull(8));
    assert!(skb.trim(3) && !skb.trim(4));
    assert_eq!(skb.data(), b"pay");
    assert!(!skb.put_slice(&[0; 2048]));
    skb.put(2).unwrap().copy_from_slice(b"me");
    assert_eq!(skb.data(), b"payme");
    assert_eq!(skb.headroom() + skb.len() + skb.tailroom(), pool.frame_size());
}

#[test]
fn a_shared_packet_is_copied_on_the_first_write() {
    let pool = pool();
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(b"abc").unwrap();
    let shared = skb.share();
    let again = shared.clone();
    assert_eq!(pool.ledger().in_flight, 3);
    assert_eq!(skb.data().as_ptr(), shared.data().as_ptr());
    skb.data_mut()[0] = b'X';
    assert_eq!((skb.data(), shared.data()), (&b"Xbc"[..], &b"abc"[..]));
    let shared = shared.try_unique().unwrap_err();
    drop(again);
    let mut last = shared.try_unique().unwrap();
    last.data_mut()[0] = b'Y';
    assert_eq!(last.data(), b"Ybc");
    drop((skb, last));
    let ledger = pool.ledger();
    assert_eq!((ledger.created, ledger.consumed), (3, 3));
    assert!(ledger.is_drained(), "{ledger}");
}

#[test]
fn a_shared_packet_that_cannot_be_copied_is_not_written() {
    let pool = Pool::builder().frames(1).build().unwrap();
    let mut skb = pool.local().alloc_copy(b"abc").unwrap();
    let shared = skb.share();
    assert!(skb.data_mut().is_empty() && !skb.pull(1) && skb.push(1).is_none());
    assert!(!skb.trim(1) && !skb.put_slice(b"d") && skb.put(1).is_none());
    assert!(skb.spare_mut().is_empty() && !skb.reserve(0));
    skb.commit(1);
    assert_eq!((skb.len(), shared.data()), (3, &b"abc"[..]));
    drop(shared);
    assert_eq!(skb.data_mut(), b"abc");
}

#[test]
fn a_chain_is_shared_and_copied_as_a_whole() {
    let pool = pool();
    let mut mem = pool.local();
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let mut skb = mem.alloc_copy(&bytes).unwrap();
    let shared = skb.share();
    assert!(skb.append(mem.alloc_copy(b"tail").unwrap()).is_err());
    skb.data_mut()[0] = 99;
    let mut copy = vec![0; 5000];
    assert_eq!(skb.copy_to(0, &mut copy), 5000);
    assert!(copy[0] == 99 && copy[1..] == bytes[1..]);
    assert!(skb.append(mem.alloc_copy(b"tail").unwrap()).is_ok());
    assert_eq!((skb.len(), shared.len()), (5004, 5000));
    drop((skb, shared));
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
}

#[test]
fn chains_are_spliced_in_order() {
    let pool = pool();
    let mut mem = pool.local();
    let long: Vec<u8> = (0..4000u32).map(|i| i as u8).collect();
    let mut skb = mem.alloc_copy(&long).unwrap();
    assert!(skb.append(mem.alloc_copy(&long).unwrap()).is_ok());
    let joined: Vec<u8> = skb.segments().flatten().copied().collect();
    assert!(joined == [&long[..], &long[..]].concat());
    assert_eq!(skb.fragments(), 5);
}

#[test]
fn a_fragment_of_another_pool_is_handed_back() {
    let (a, b) = (pool(), pool());
    let mut skb = a.local().alloc_copy(b"a").unwrap();
    let other = skb.append(b.local().alloc_copy(b"b").unwrap()).unwrap_err();
    assert_eq!((skb.data(), other.data()), (&b"a"[..], &b"b"[..]));
}

#[test]
fn exported_bytes_are_copied_and_never_borrowed() {
    let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    let mut mem = pool.local();
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let mut skb = mem.alloc_copy(&bytes).unwrap();
    assert_eq!(skb.len(), 5000);
    assert!(skb.data().is_empty() && skb.data_mut().is_empty() && skb.spare_mut().is_empty());
    assert_eq!(skb.segments().count(), 0);
    let mut copy = vec![0; 5000];
    assert_eq!(skb.copy_to(0, &mut copy), 5000);
    assert!(copy == bytes);
}

#[test]
fn handles_shared_over_threads_free_the_frame_once() {
    let pool = pool();
    let mut mem = pool.local();
    for _ in 0..if cfg!(miri) { 5 } else { 200 } {
        let mut skb = mem.alloc_copy(b"contended").unwrap();
        let shared: Vec<_> = (0..4).map(|_| skb.share()).collect();
        std::thread::scope(|s| {
            for one in shared {
                s.spawn(move || assert_eq!(one.data(), b"contended"));
            }
            drop(skb);
        });
    }
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
}

#[test]
fn exported_bytes_of_one_frame_are_not_lent_to_be_written() {
    let pool = Pool::builder().frames(4).trust(Trust::Exported).build().unwrap();
    let mut skb = pool.local().alloc_copy(b"abc").unwrap();
    assert!(skb.tailroom() > 0 && skb.headroom() > 0);
    assert!(skb.data_mut().is_empty() && skb.spare_mut().is_empty());
    assert!(skb.put(1).is_none() && skb.push(1).is_none() && !skb.put_slice(b"d"));
    assert_eq!((skb.len(), skb.headroom()), (3, pool.headroom()));
}

#[test]
fn a_chain_whose_first_frame_is_empty_has_data() {
    let pool = pool();
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(b"head").unwrap();
    assert!(skb.append(mem.alloc_copy(b"tail").unwrap()).is_ok() && skb.pull(4));
    assert!(skb.data().is_empty() && !skb.is_empty() && !skb.reserve(8));
    assert_eq!((skb.len(), skb.headroom()), (4, pool.headroom() + 4));
}

#[test]
fn a_chain_has_as_many_frames_as_a_copy_of_it_can_have() {
    let pool = Pool::builder().frames(1024).frame_size(256).headroom(0).build().unwrap();
    let mut mem = pool.local();
    let [mut full, mut short] = [CHAIN_FRAMES_MAX, CHAIN_FRAMES_MAX - 1]
        .map(|frames| mem.alloc_copy(&vec![7; 256 * frames]).unwrap());
    assert_eq!(full.fragments() + 1, CHAIN_FRAMES_MAX);
    let more = full.append(mem.alloc_copy(b"x").unwrap()).unwrap_err();
    assert!(short.append(more).is_ok());
    assert_eq!((short.fragments(), short.len()), (full.fragments(), full.len() - 255));
    let shared = short.share();
    assert_eq!(short.copy_from(0, b"copied"), 6);
    assert_eq!((short.fragments(), shared.data()[0]), (shared.fragments(), 7));
}

/// Checks that no queue has refused the next packet in a frame, whichever way frames are
/// initialised.
#[test]
fn refusal_is_noted_until_the_packet_is_freed() {
    for init in [Init::AtAlloc, Init::AtFree] {
        let pool = Pool::builder().frames(64).init(init).build().unwrap();
        let mut mem = pool.local();
        let mut skb = mem.alloc_copy(&[1; 60]).unwrap();
        assert!(!skb.was_refused(), "{init:?}");
        skb.note_refusal();
        let share = skb.share();
        assert!(skb.was_refused() && share.was_refused(), "{init:?}");
        drop((skb, share));
        let all: Vec<_> = std::iter::from_fn(|| mem.alloc_one()).collect();
        assert!(all.len() == 64 && all.iter().all(|skb| !skb.was_refused()), "{init:?}");
    }
}
