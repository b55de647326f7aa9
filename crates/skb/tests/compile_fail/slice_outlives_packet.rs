//! Prevents a slice that outlives its packet, a common error in receive loops.

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
