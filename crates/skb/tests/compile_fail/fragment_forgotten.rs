//! Prevents forgotten fragments: `append` gives back what it could not take (a fragment of another
//! pool, a shared one), and a packet without it would go out short.
#![deny(unused_must_use)]

use linerate_skb::Skb;

fn chain(head: &mut Skb, fragment: Skb) {
    head.append(fragment);
}

fn main() {
    let _ = chain;
}
