//! A hash table that maps a flow's number to its index; adding a flow allocates nothing.
//!
//! ```text
//!  bucket   [ tags: 6 x 8 bits of a number, 0 is free | places: 6 flows ]      half a cache line
//! ```
//!
//! The upper bits of a flow's number choose its bucket; if that bucket is full, the flow is in the
//! next one with room. All tags of a bucket are compared at once, so that the search has no branch
//! that the CPU cannot predict. A removal moves a flow back to its bucket if that was full before.

/// Number of flows in a bucket.
const LANES: usize = 6;
/// A word with the lowest bit of each lane's tag set.
const ONES: u64 = 0x0101_0101_0101;
/// A word with the highest bit of each lane's tag set; this bit marks a lane in use.
const USED: u64 = ONES << 7;

/// A bucket: flows whose numbers have equal upper bits, and flows moved here from full buckets.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Bucket {
    tags: u64,
    places: [u32; LANES],
}

const _: () = assert!(size_of::<Bucket>() == 32);

impl Bucket {
    #[inline]
    fn is_full(&self) -> bool {
        self.tags & USED == USED
    }

    /// Returns a word with the highest bit set of each lane whose tag is `tag`; rarely also of a
    /// lane with another tag, so the caller compares the number.
    #[inline]
    fn with(&self, tag: u8) -> u64 {
        let differ = self.tags ^ (ONES * u64::from(tag));
        differ.wrapping_sub(ONES) & self.tags & USED
    }

    /// Stores a flow in a free lane, which the bucket must have.
    #[inline]
    fn put(&mut self, tag: u8, i: u32) {
        let lane = lane_of(!self.tags & USED);
        self.places[lane] = i;
        self.tags |= u64::from(tag) << (8 * lane);
    }

    fn clear(&mut self, lane: usize) {
        self.tags &= !(0xff << (8 * lane));
    }
}

/// Returns the first lane whose highest bit is set in `highest`.
#[inline]
fn lane_of(highest: u64) -> usize {
    highest.trailing_zeros() as usize / 8
}

/// Returns the tag of a flow's number, from bits that do not choose the bucket.
#[inline]
fn tag_of(number: u64) -> u8 {
    number as u8 | 0x80
}

/// A map from flows' numbers to the flows' indices in an array.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Box<[Bucket]>,
    shift: u32,
}

impl Table {
    /// Creates a table for `flows` flows, with at least half of the entries free.
    pub fn new(flows: usize) -> Table {
        let buckets = (2 * flows.max(1)).div_ceil(LANES).next_power_of_two();
        let shift = 32 - buckets.ilog2();
        Table { buckets: vec![Bucket::default(); buckets].into_boxed_slice(), shift }
    }

    fn mask(&self) -> usize {
        self.buckets.len() - 1
    }

    /// Returns the bucket in which the search for the flow `number` starts.
    #[inline]
    fn home(&self, number: u64) -> usize {
        ((number >> 32) >> self.shift) as usize
    }

    /// Returns the tags of the bucket in which the search for the flow `number` starts; the read
    /// loads its cache line.
    #[inline]
    pub fn first(&self, number: u64) -> u64 {
        self.buckets[self.home(number)].tags
    }

    /// Returns the index of the flow `number`; `is` returns true if the flow at an index has that
    /// number.
    #[inline]
    pub fn find(&self, number: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (at, lane) = self.find_lane(number, is)?;
        Some(self.buckets[at].places[lane])
    }

    #[inline]
    fn find_lane(&self, number: u64, is: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = self.home(number);
        loop {
            let bucket = &self.buckets[at];
            let mut lanes = bucket.with(tag_of(number));
            while lanes != 0 {
                let lane = lane_of(lanes);
                if is(bucket.places[lane]) {
                    return Some((at, lane));
                }
                lanes &= lanes - 1;
            }
            if !bucket.is_full() {
                return None;
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Inserts the flow `number` with index `i`; the caller inserts at most as many as the table
    /// was created for.
    pub fn insert(&mut self, number: u64, i: u32) {
        let mut at = self.home(number);
        while self.buckets[at].is_full() {
            at = (at + 1) & self.mask();
        }
        self.buckets[at].put(tag_of(number), i);
    }

    /// Removes the flow `number` with index `i`, if the table has it; `number_of` returns the
    /// number of the flow at an index.
    pub fn remove(&mut self, number: u64, i: u32, number_of: impl Fn(u32) -> u64) {
        if let Some((at, lane)) = self.find_lane(number, |place| place == i) {
            let was_full = self.buckets[at].is_full();
            self.buckets[at].clear(lane);
            if was_full {
                self.fill(at, number_of);
            }
        }
    }

    /// Moves a flow that was displaced by the full bucket `gap` into its free lane, then fills the
    /// freed lane in turn.
    #[cold]
    fn fill(&mut self, mut gap: usize, number_of: impl Fn(u32) -> u64) {
        let (mask, mut at) = (self.mask(), gap);
        loop {
            at = (at + 1) & mask;
            let bucket = self.buckets[at];
            let went_by = |lane: &usize| {
                let home = self.home(number_of(bucket.places[*lane]));
                bucket.tags >> (8 * lane) & 0x80 != 0
                    && at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask
            };
            if let Some(lane) = (0..LANES).find(went_by) {
                let i = bucket.places[lane];
                self.buckets[at].clear(lane);
                self.buckets[gap].put(tag_of(number_of(i)), i);
                gap = at;
            }
            if !bucket.is_full() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Returns a number of four buckets, of which the first two are the last one, so that it is
    /// more than full.
    fn number(bucket: u64, low: u64) -> u64 {
        [7, 7, 0, 1][bucket as usize] << 61 | bucket << 8 | low
    }

    proptest! {
        /// Generates numbers with few starting indices, so that they collide.
        #[test]
        fn table_finds_what_a_map_finds(
            steps in prop::collection::vec((0u64..4, 0u64..4, 0u64..8), 1..300),
        ) {
            let (mut table, mut map) = (Table::new(16), HashMap::new());
            let mut numbers = [0u64; 16];
            for (remove, bucket, low) in steps {
                let number = number(bucket, low);
                if remove > 0 && map.len() < 16 && !map.contains_key(&number) {
                    let free = (0..16).find(|i| !map.values().any(|used| used == i)).unwrap();
                    numbers[free as usize] = number;
                    table.insert(number, free);
                    map.insert(number, free);
                } else if remove == 0 && let Some(i) = map.remove(&number) {
                    table.remove(number, i, |i| numbers[i as usize]);
                }
                for (bucket, low) in (0..4).flat_map(|bucket| (0..8).map(move |low| (bucket, low))) {
                    let number = self::number(bucket, low);
                    let found = table.find(number, |i| numbers[i as usize] == number);
                    prop_assert_eq!(found, map.get(&number).copied());
                }
            }
        }
    }
}
