//! Prevents a double free, after which the frame would be allocated to two owners that write it.

use linerate_skb::{Pool, Skb};

fn twice(skb: Skb) {
    drop(skb);
    drop(skb);
}

fn main() {
    twice(Pool::builder().build().unwrap().local().alloc_one().unwrap());
}
