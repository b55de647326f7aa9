//! Prevents two writers: only a shared packet can be cloned, and it can only be read.

use linerate_skb::Skb;

fn twins(skb: Skb) -> [Skb; 2] {
    [skb.clone(), skb]
}

fn main() {
    let _ = twins;
}
