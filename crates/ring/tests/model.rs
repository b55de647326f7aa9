//! Compares the ring with a `VecDeque`, for any length, any start, and any order of pushes and
//! pops.
#![cfg(not(loom))]

use std::collections::VecDeque;

use linerate_ring::{Consumer, Heap, Producer, heap_from};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    PushSlice(usize),
    Push(u32),
    PopSlice(usize),
    Pop(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..80usize).prop_map(Step::PushSlice),
        (0..80u32).prop_map(Step::Push),
        (0..80usize).prop_map(Step::PopSlice),
        (0..80u32).prop_map(Step::Pop),
    ]
}

/// Returns a start of the indices; half of them lie so that the indices wrap within the test.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0..200u32).prop_map(|before| u32::MAX - before)]
}

struct Pair {
    producer: Producer<Heap<u64>>,
    consumer: Consumer<Heap<u64>>,
    model: VecDeque<u64>,
    next: u64,
}

impl Pair {
    fn push_slice(&mut self, n: usize) {
        let room = self.room() as usize;
        let entries: Vec<u64> = (self.next..).take(n).collect();
        let pushed = self.producer.push_slice(&entries);
        assert_eq!(pushed, n.min(room));
        self.model.extend(&entries[..pushed]);
        self.next += pushed as u64;
    }

    fn push(&mut self, n: u32) {
        let reserved = self.producer.reserve(n);
        assert_eq!(reserved, n.min(self.room()));
        for i in 0..reserved {
            self.producer.write(i, self.next);
            self.model.push_back(self.next);
            self.next += 1;
        }
        self.producer.submit(reserved);
    }

    fn pop_slice(&mut self, n: usize) {
        let mut out = vec![u64::MAX; n];
        let popped = self.consumer.pop_slice(&mut out);
        assert_eq!(popped, n.min(self.model.len()));
        assert!(self.model.drain(..popped).eq(out[..popped].iter().copied()));
        assert!(out[popped..].iter().all(|&entry| entry == u64::MAX));
    }

    fn pop(&mut self, n: u32) {
        let peeked = self.consumer.peek(n);
        assert_eq!(peeked as usize, (n as usize).min(self.model.len()));
        for i in 0..peeked {
            assert_eq!(Some(self.consumer.read(i)), self.model.pop_front());
        }
        self.consumer.release(peeked);
    }

    fn room(&self) -> u32 {
        self.producer.len_descs() - self.model.len() as u32
    }
}

proptest! {
    #[test]
    fn a_ring_behaves_like_a_bounded_queue(
        len_log2 in 0..7u32,
        start in start(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let (producer, consumer) = heap_from(1 << len_log2, start).unwrap();
        let mut pair = Pair { producer, consumer, model: VecDeque::new(), next: 0 };
        for step in steps {
            match step {
                Step::PushSlice(n) => pair.push_slice(n),
                Step::Push(n) => pair.push(n),
                Step::PopSlice(n) => pair.pop_slice(n),
                Step::Pop(n) => pair.pop(n),
            }
            prop_assert_eq!(pair.consumer.available() as usize, pair.model.len());
            prop_assert_eq!(pair.producer.free(), pair.room());
        }
        prop_assert_eq!(pair.producer.corrupt() + pair.consumer.corrupt(), 0);
    }
}
