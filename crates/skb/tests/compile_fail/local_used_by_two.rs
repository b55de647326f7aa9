//! Prevents two threads that allocate from one hot list, which has no lock.

use linerate_skb::Local;

fn at_once(_here: impl FnOnce() + Send, _there: impl FnOnce() + Send) {}

fn race(mem: &mut Local) {
    at_once(|| drop(mem.alloc_one()), || drop(mem.alloc_one()));
}

fn main() {
    let _ = race;
}
