//! Prevents a shared packet from entering where packets are written, unless the program says
//! `into_unique`, which copies on the first write.

use linerate_skb::{Batch, Shared, Skb};

fn mix(batch: &mut Batch, skb: Skb<Shared>) {
    let _ = batch.push(skb);
}

fn main() {
    let _ = mix;
}
