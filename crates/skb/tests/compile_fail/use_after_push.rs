//! Prevents a use after transmit: the batch owns its packets, and a write would change bytes that
//! are being sent.

use linerate_skb::{Batch, Skb};

fn write(mut skb: Skb, batch: &mut Batch) {
    if batch.push(skb).is_ok() {
        skb.data_mut().fill(0);
    }
}

fn main() {
    let _ = write;
}
