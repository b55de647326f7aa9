//! Prevents two writers: only a shared packet is cloned, and that is only read.

use linerate_skb::Skb;

fn twins(skb: Skb) -> [Skb; 2] {
    [skb.clone(), skb]
}

fn main() {
    let _ = twins;
}
