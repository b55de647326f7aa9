//! Prevents a write to bytes that other handles can read.

use linerate_skb::{Shared, Skb};

fn scrub(skb: &mut Skb<Shared>) {
    skb.data_mut().fill(0);
}

fn main() {
    let _ = scrub;
}
