//! A timing wheel: finds flows that are due, without sorting.
//!
//! ```text
//!  slot    0 │ 1 │ 2 │ ……………………… │ 4095          16 us each, 67 ms in all
//!              ▲ now ──► slots that follow         a bit a slot says whether it has flows
//! ```
//!
//! A flow is found at most one slot late and never early. A flow that waits for longer than a full
//! turn is found once in each turn, and added again.

use super::shelf::{Link, NONE};

/// Number of slots, a power of two.
const SLOTS: u64 = 4096;
/// Number of low bits of the time that are within a slot.
const SLOT_BITS: u32 = 14;

/// Waiting flows, sorted into slots by the time they wait for.
#[derive(Debug)]
pub(super) struct Wheel {
    heads: Box<[u32]>,
    occupied: [u64; SLOTS as usize / 64],
    /// The number of the present time's slot, counted from time 0.
    now: u64,
    flows: usize,
}

impl Wheel {
    pub fn new() -> Wheel {
        let heads = vec![NONE; SLOTS as usize].into_boxed_slice();
        Wheel { heads, occupied: [0; SLOTS as usize / 64], now: 0, flows: 0 }
    }

    /// Makes the flow at `i` wait until `due_ns`, or until the wheel's last slot if that is
    /// earlier.
    pub fn add<F: Link>(&mut self, flows: &mut [F], i: u32, due_ns: u64) {
        let due = (due_ns >> SLOT_BITS) + 1;
        let slot = (due.clamp(self.now + 1, self.now + SLOTS - 1) % SLOTS) as usize;
        if let Some(flow) = flows.get_mut(i as usize) {
            *flow.next() = std::mem::replace(&mut self.heads[slot], i);
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.flows += 1;
        }
    }

    /// Passes each flow that is due at `now_ns` to `ready`.
    pub fn advance<F: Link>(
        &mut self,
        flows: &mut [F],
        now_ns: u64,
        mut ready: impl FnMut(&mut [F], u32),
    ) {
        let now = (now_ns >> SLOT_BITS).max(self.now);
        while let Some(slot) = self.next_slot().filter(|slot| *slot <= now) {
            self.now = slot;
            let slot = (slot % SLOTS) as usize;
            self.occupied[slot / 64] &= !(1 << (slot % 64));
            let mut i = std::mem::replace(&mut self.heads[slot], NONE);
            while let Some(flow) = flows.get_mut(i as usize) {
                let next = *flow.next();
                self.flows -= 1;
                ready(flows, i);
                i = next;
            }
        }
        self.now = now;
    }

    /// Removes all flows from the wheel.
    pub fn clear(&mut self) {
        self.heads.fill(NONE);
        self.occupied.fill(0);
        self.flows = 0;
    }

    /// Returns the time of the next flow that is due.
    pub fn due_ns(&self) -> Option<u64> {
        self.next_slot().map(|slot| slot << SLOT_BITS)
    }

    /// Returns the first slot after the present one that has flows.
    fn next_slot(&self) -> Option<u64> {
        if self.flows == 0 {
            return None;
        }
        let mut slot = self.now + 1;
        let end = self.now + SLOTS;
        while slot < end {
            let at = (slot % SLOTS) as usize;
            let rest = self.occupied[at / 64] >> (at % 64);
            if rest != 0 {
                return Some(slot + u64::from(rest.trailing_zeros()));
            }
            slot += 64 - slot % 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone)]
    struct Flow(u32);

    impl Link for Flow {
        fn next(&mut self) -> &mut u32 {
            &mut self.0
        }
    }

    proptest! {
        #[test]
        fn each_flow_comes_once_and_at_most_a_slot_late(
            dues in prop::collection::vec(0u64..60_000_000, 1..100),
            steps in prop::collection::vec(1u64..5_000_000, 1..60),
        ) {
            let (mut wheel, mut flows) = (Wheel::new(), vec![Flow(NONE); dues.len()]);
            for (i, due) in dues.iter().enumerate() {
                wheel.add(&mut flows, i as u32, *due);
            }
            let (mut now, mut seen) = (0, vec![false; dues.len()]);
            for step in steps.into_iter().chain([70_000_000]) {
                now += step;
                let next = wheel.due_ns();
                let mut came = Vec::new();
                wheel.advance(&mut flows, now, |_, i| came.push(i as usize));
                prop_assert_eq!(came.is_empty(), next.is_none_or(|next| next > now));
                for i in came {
                    prop_assert!(dues[i] <= now && !seen[i]);
                    seen[i] = true;
                }
                let late = |(due, seen): (&u64, &bool)| !seen && due + (1 << SLOT_BITS) < now;
                prop_assert!(!dues.iter().zip(&seen).any(late));
            }
            prop_assert!(seen.iter().all(|seen| *seen) && wheel.due_ns().is_none());
        }
    }

    #[test]
    fn flow_beyond_the_horizon_comes_once_a_turn() {
        let (mut wheel, mut flows) = (Wheel::new(), vec![Flow(NONE)]);
        wheel.add(&mut flows, 0, 1 << 40);
        let first = wheel.due_ns().unwrap();
        assert_eq!(first, (SLOTS - 1) << SLOT_BITS);
        let mut seen = 0;
        wheel.advance(&mut flows, first, |_, _| seen += 1);
        assert_eq!(seen, 1);
    }
}
