//! Prevents silent loss: a full batch gives the packet back, and its owner says what becomes of it.
#![deny(unused_must_use)]

use linerate_skb::{Batch, Skb};

fn gather(batch: &mut Batch, skb: Skb) {
    batch.push(skb);
}

fn main() {
    let _ = gather;
}
