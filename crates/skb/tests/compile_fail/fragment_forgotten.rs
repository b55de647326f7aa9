//! Prevents a lost fragment: `append` returns a fragment that it cannot append (of another pool, or
//! shared), and the packet would be sent too short without it.
#![deny(unused_must_use)]

use linerate_skb::Skb;

fn chain(head: &mut Skb, fragment: Skb) {
    head.append(fragment);
}

fn main() {
    let _ = chain;
}
