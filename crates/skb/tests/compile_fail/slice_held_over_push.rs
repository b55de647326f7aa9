//! Prevents reading bytes after their packet was pushed: its next owner may write them.

use linerate_skb::{Batch, Skb};

fn first_byte(skb: Skb, batch: &mut Batch) -> u8 {
    let bytes = skb.data();
    let _ = batch.push(skb);
    bytes[0]
}

fn main() {
    let _ = first_byte;
}
