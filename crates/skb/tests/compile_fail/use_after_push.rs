//! Prevents a use after transmit: what is in a batch goes with the batch, and a write to it would
//! change bytes on their way out.

use linerate_skb::{Batch, Skb};

fn write(mut skb: Skb, batch: &mut Batch) {
    if batch.push(skb).is_ok() {
        skb.data_mut().fill(0);
    }
}

fn main() {
    let _ = write;
}
