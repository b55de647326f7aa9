//! Prevents two threads on one hot list, which has no lock: a `Local` is not `Sync`.

use linerate_skb::Local;

struct OnBothThreads<T>(T);

impl<T: Sync> OnBothThreads<&T> {
    fn use_it(&self) {}
}

fn lend(mem: &Local) {
    OnBothThreads(mem).use_it();
}

fn main() {
    let _ = lend;
}
