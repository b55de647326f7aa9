//! Prevents a second use of a fragment, which is freed with its chain and cannot be sent alone.

use linerate_skb::{Batch, Skb};

fn chain(mut head: Skb, fragment: Skb, batch: &mut Batch) {
    if head.append(fragment).is_ok() {
        let _ = batch.push(fragment);
    }
}

fn main() {
    let _ = chain;
}
