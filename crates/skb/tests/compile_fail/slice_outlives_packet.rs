//! Prevents a slice that outlives its packet, the classic of receive loops.

use linerate_skb::Local;

fn bytes(mem: &mut Local) -> Option<u8> {
    let last;
    {
        let skb = mem.alloc_copy(b"abc")?;
        last = skb.data();
    }
    last.first().copied()
}

fn main() {
    let _ = bytes;
}
