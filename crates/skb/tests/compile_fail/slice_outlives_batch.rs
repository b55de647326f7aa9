//! Prevents a slice that outlives the batch that holds its packet.

use linerate_skb::Batch;

fn longest(mut batch: Batch) -> usize {
    let longest = batch.iter().map(|skb| skb.data()).max_by_key(|bytes| bytes.len());
    batch.clear();
    longest.map_or(0, |bytes| bytes.len())
}

fn main() {
    let _ = longest;
}
