//! Prevents a shared packet in a batch of writable ones, unless the program calls `into_unique`,
//! whose first write copies the packet.

use linerate_skb::{Batch, Shared, Skb};

fn mix(batch: &mut Batch, skb: Skb<Shared>) {
    let _ = batch.push(skb);
}

fn main() {
    let _ = mix;
}
