//! Prevents a silent loss: a full batch returns the packet, and its owner must handle it.
#![deny(unused_must_use)]

use linerate_skb::{Batch, Skb};

fn gather(batch: &mut Batch, skb: Skb) {
    batch.push(skb);
}

fn main() {
    let _ = gather;
}
