//! Correct uses of every function that the files of `compile_fail` misuse.

use std::sync::mpsc::channel;

use linerate_skb::{Batch, DropReason, Pool};

pub fn main() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut mem = pool.local();
    let mut head = mem.alloc_copy(b"head").unwrap();
    let tail = mem.alloc_copy(b"tail").unwrap();
    head.append(tail).unwrap();
    let shared = head.share();
    assert_eq!(shared.clone().data(), b"head");
    head.data_mut()[0] = b'H';

    let mut batch = Batch::with_capacity(2);
    batch.push(head).unwrap();
    batch.push(shared.into_unique()).unwrap();
    let (to_peer, from_peer) = channel();
    to_peer.send(batch).unwrap();
    let peer = std::thread::spawn(move || {
        let mut batch: Batch = from_peer.recv().unwrap();
        batch.pop().unwrap().discard(DropReason::TX_FULL);
        batch.clear();
        drop(mem); // a Local moves with its owner
    });
    peer.join().unwrap();
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}
