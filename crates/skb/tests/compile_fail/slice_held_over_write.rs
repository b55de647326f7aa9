//! Prevents a slice whose bytes change, or leave the packet, while it is read.

use linerate_skb::Skb;

fn first_byte(skb: &mut Skb) -> u8 {
    let bytes = skb.data();
    skb.pull(14);
    bytes[0]
}

fn main() {
    let _ = first_byte;
}
