//! An index of flows by number, which takes no memory when a flow begins.
//!
//! Open addressing: an entry is in the first free place from its home on, and its home is in its tag, so that
//! a removal closes the gap by moving those behind it.

/// A place without an entry.
const FREE: u64 = 0;

/// The places of flows in an array, by the flows' numbers.
#[derive(Debug)]
pub(super) struct Table {
    /// The number's upper half, and the flow's place plus one.
    entries: Box<[u64]>,
    shift: u32,
}

impl Table {
    /// Makes room for `flows`, and leaves at least half of the places free.
    pub fn new(flows: usize) -> Table {
        let places = (2 * flows.max(1)).next_power_of_two();
        Table { entries: vec![FREE; places].into_boxed_slice(), shift: 32 - places.ilog2() }
    }

    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    /// Returns the place where an entry with this number is looked for first.
    fn home(&self, entry: u64) -> usize {
        ((entry >> 32) >> self.shift) as usize
    }

    /// Returns the entry where the flow `number` is looked for first.
    #[inline]
    pub fn first(&self, number: u64) -> u64 {
        self.entries[self.home(number)]
    }

    /// Returns the place of the flow `number`; `is` tells whether the one at a place is.
    #[inline]
    pub fn find(&self, number: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(number);
        loop {
            let entry = self.entries[at];
            if entry == FREE {
                return None;
            }
            let i = entry as u32 - 1;
            if entry >> 32 == number >> 32 && is(i) {
                return Some(i);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Enters the flow `number` at place `i`; there are at most as many as it was made for.
    pub fn insert(&mut self, number: u64, i: u32) {
        let mut at = self.home(number);
        while self.entries[at] != FREE {
            at = (at + 1) & self.mask();
        }
        self.entries[at] = number >> 32 << 32 | u64::from(i + 1);
    }

    /// Takes the flow `number` at place `i` out, if it is there.
    pub fn remove(&mut self, number: u64, i: u32) {
        let (mask, entry) = (self.mask(), number >> 32 << 32 | u64::from(i + 1));
        let mut at = self.home(number);
        while self.entries[at] != entry {
            if self.entries[at] == FREE {
                return;
            }
            at = (at + 1) & mask;
        }
        let mut behind = (at + 1) & mask;
        while self.entries[behind] != FREE {
            let home = self.home(self.entries[behind]);
            // It may go to the gap unless its home lies behind that.
            if behind.wrapping_sub(home) & mask >= behind.wrapping_sub(at) & mask {
                self.entries[at] = self.entries[behind];
                at = behind;
            }
            behind = (behind + 1) & mask;
        }
        self.entries[at] = FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers of few homes, so that they collide.
        #[test]
        fn table_finds_what_a_map_finds(
            steps in prop::collection::vec((any::<bool>(), 0u64..8, 0u64..4), 1..300),
        ) {
            let (mut table, mut map) = (Table::new(16), HashMap::new());
            let mut numbers = [0u64; 16];
            for (insert, home, low) in steps {
                let number = home << 62 | (home & 1) << 35 | low << 33 | low;
                if insert && map.len() < 16 && !map.contains_key(&number) {
                    let free = (0..16).find(|i| !map.values().any(|used| used == i)).unwrap();
                    numbers[free as usize] = number;
                    table.insert(number, free);
                    map.insert(number, free);
                } else if !insert && let Some(i) = map.remove(&number) {
                    table.remove(number, i);
                }
                for home in 0..8 {
                    for low in 0..4 {
                        let number = home << 62 | (home & 1) << 35 | low << 33 | low;
                        let found = table.find(number, |i| numbers[i as usize] == number);
                        prop_assert_eq!(found, map.get(&number).copied());
                    }
                }
            }
        }
    }
}
