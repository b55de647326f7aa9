//! Prevents a double free: the frame would be handed out twice, to two owners that write it.

use linerate_skb::{Pool, Skb};

fn twice(skb: Skb) {
    drop(skb);
    drop(skb);
}

fn main() {
    twice(Pool::builder().build().unwrap().local().alloc_one().unwrap());
}
