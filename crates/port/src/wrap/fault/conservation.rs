//! Test of conservation under faults: random plans and programs, over rings, with every packet
//! accounted for.

use std::time::Duration;

use linerate_skb::{Pool, Skb};
use proptest::prelude::*;

use super::tests::{fill, pair};
use super::*;
use crate::Queue;
use crate::host::testing::LONG;

/// Two ends, the packets that each has still to send, and those that each has received.
pub(super) struct Bench {
    pub pool: Pool,
    pub ends: [Queue; 2],
    pub unsent: [Batch; 2],
    pub next: [u32; 2],
    pub got: [Vec<u32>; 2],
    pub packets: u64,
    pub stats: Arc<FaultStats>,
}

impl Bench {
    pub fn new(len: u32, plan: &Plan) -> Bench {
        let (pool, a, b, stats) = pair(len, plan);
        let unsent = [(); 2].map(|()| Batch::with_capacity(256));
        let got = [Vec::new(), Vec::new()];
        Bench { pool, ends: [a, b], unsent, next: [0; 2], got, packets: 0, stats }
    }

    pub fn make(&mut self, end: usize, n: usize) {
        fill(&mut self.ends[end], &mut self.unsent[end], &mut self.next[end], n);
    }

    pub fn send(&mut self, end: usize) {
        self.ends[end].xmit(&mut self.unsent[end]);
    }

    pub fn receive(&mut self, end: usize, budget: usize) {
        let mut batch = Batch::with_capacity(budget);
        self.packets += self.ends[end].rx(&mut batch) as u64;
        let head = |skb: &Skb| match skb.data().first_chunk() {
            Some(number) => u32::from_be_bytes(*number),
            None => u32::MAX, // cut shorter than its number
        };
        self.got[end].extend(batch.iter().map(head));
    }

    /// Returns the number of packets that must arrive in total.
    fn expected(&self) -> u64 {
        let counts = self.stats.counts();
        u64::from(self.next[0] + self.next[1]) + counts.duplicated - counts.dropped
    }

    /// Runs until all packets have arrived; sleeps whenever the faulty end allows it.
    pub fn settle(&mut self) {
        loop {
            for end in [0, 1] {
                self.send(end);
                self.receive(end, 64);
            }
            if self.unsent.iter().all(Batch::is_empty) && self.packets == self.expected() {
                break;
            }
            // The other end may have got room for its unsent packets: let it try before a sleep.
            if !self.unsent[1].is_empty() {
                continue;
            }
            let want = if self.unsent[0].is_empty() { Want::Frames } else { Want::Both };
            let woken = self.ends[0].wait_for(want, Some(LONG)).unwrap();
            assert!(
                woken,
                "slept on {} of {} packets",
                self.expected() - self.packets,
                self.packets
            );
        }
    }

    fn assert_balanced(&self) {
        let ledger = self.pool.ledger();
        assert_eq!(ledger.difference(), 0, "{ledger}");
        let counts = self.stats.counts();
        assert_eq!(ledger.dropped(DropReason::INJECTED), counts.dropped);
        let made = u64::from(self.next[0] + self.next[1]);
        assert_eq!(ledger.created, made + counts.duplicated, "{ledger}");
    }
}

fn time() -> impl Strategy<Value = Duration> {
    (0..1500u64).prop_map(Duration::from_micros)
}

/// Returns faults that do not reorder packets.
fn orderly() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Drop),
        Just(Fault::Duplicate),
        time().prop_map(Fault::Delay),
        (0..20u32).prop_map(Fault::DelayTurns),
        time().prop_map(Fault::Stall),
        (0..5u32).prop_map(|calls| Fault::Refuse { calls }),
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => orderly(),
        1 => Just(Fault::Corrupt),
        1 => Just(Fault::Short),
        2 => (0..9u32).prop_map(|behind| Fault::Reorder { behind }),
    ]
}

fn plan(fault: impl Strategy<Value = Fault>) -> impl Strategy<Value = Plan> {
    let rule = (any::<bool>(), fault, 1..8u32);
    (any::<u64>(), 0..80usize, prop::collection::vec(rule, 0..5)).prop_map(|(seed, hold, rules)| {
        let plan = Plan::new(seed).hold_packets(hold);
        rules.into_iter().fold(plan, |plan, (rx, fault, one_in)| {
            if rx { plan.rx(fault, one_in) } else { plan.tx(fault, one_in) }
        })
    })
}

/// Generates a program's steps: each makes packets at an end, sends, or receives with some budget.
fn steps() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    prop::collection::vec((0..2usize, 0..3usize, 1..40usize), 0..40)
}

fn run(plan: &Plan, len: u32, steps: &[(usize, usize, usize)]) -> Bench {
    let mut bench = Bench::new(len, plan);
    for &(end, what, n) in steps {
        match what {
            0 => bench.make(end, n.min(bench.unsent[end].spare())),
            1 => bench.send(end),
            _ => bench.receive(end, n),
        }
        bench.assert_balanced();
    }
    bench.settle();
    bench.assert_balanced();
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_is_accounted_for_under_any_faults(
        plan in plan(any_fault()), len in 2..7u32, steps in steps()
    ) {
        let Bench { pool, ends, unsent, .. } = run(&plan, 1 << len, &steps);
        drop((ends, unsent));
        let ledger = pool.ledger();
        prop_assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{}", ledger);
    }

    #[test]
    fn without_reordering_the_order_is_kept(
        plan in plan(orderly()), len in 2..7u32, steps in steps()
    ) {
        let bench = run(&plan, 1 << len, &steps);
        prop_assert!(bench.got.iter().all(|got| got.is_sorted()), "{:?}", bench.got);
    }
}
