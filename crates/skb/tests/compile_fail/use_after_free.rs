//! Prevents a use after free: the frame may already hold another owner's packet.

use linerate_skb::{DropReason, Skb};

fn late(skb: Skb) -> usize {
    skb.discard(DropReason::TX_FULL);
    skb.len()
}

fn main() {
    let _ = late;
}
