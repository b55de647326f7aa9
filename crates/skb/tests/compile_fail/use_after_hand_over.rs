//! Prevents the use of a batch that another thread owns.

use std::sync::mpsc::Sender;

use linerate_skb::{Batch, DropReason};

fn give(mut batch: Batch, peer: &Sender<Batch>) {
    if peer.send(batch).is_ok() {
        batch.discard(DropReason::TX_FULL);
    }
}

fn main() {
    let _ = give;
}
