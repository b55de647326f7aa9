//! A hash table of flows by number, which allocates nothing when a flow begins.
//!
//! ```text
//!  bucket   [ tags: 6 x 8 bits of a number, 0 is free | places: 6 flows ]      half a cache line
//! ```
//!
//! A flow is in the bucket of its number's upper bits, or, if that is full, in the next one that is not. A
//! bucket's tags are compared at once, so that neither a flow that is there nor one that is not takes a jump that
//! the CPU cannot foresee. A removal moves a flow back that had found its bucket full.

/// Flows of a bucket.
const LANES: usize = 6;
/// The lowest bit of each lane's tag.
const ONES: u64 = 0x0101_0101_0101;
/// The highest one, set in each tag of a flow.
const USED: u64 = ONES << 7;

/// Flows whose numbers begin alike.
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

    /// Returns the highest bit of each lane that has `tag`, and now and then that of one that has another.
    #[inline]
    fn with(&self, tag: u8) -> u64 {
        let differ = self.tags ^ (ONES * u64::from(tag));
        differ.wrapping_sub(ONES) & self.tags & USED
    }

    /// Enters a flow, for which there is room.
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

/// Returns the first lane of those whose highest bits are set.
#[inline]
fn lane_of(highest: u64) -> usize {
    highest.trailing_zeros() as usize / 8
}

/// Returns the tag of a flow's number, of the bits that choose no bucket.
#[inline]
fn tag_of(number: u64) -> u8 {
    number as u8 | 0x80
}

/// The places of flows in an array, by the flows' numbers.
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

    /// Returns the bucket in which the flow `number` is looked for first.
    #[inline]
    fn home(&self, number: u64) -> usize {
        ((number >> 32) >> self.shift) as usize
    }

    /// Returns the entry at which the search for the flow `number` starts.
    #[inline]
    pub fn first(&self, number: u64) -> u64 {
        self.buckets[self.home(number)].tags
    }

    /// Returns the index of the flow `number`; `is` tells whether the flow at an index has that
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

    /// Takes the flow `number` at place `i` out, if it is there; `number_of` tells the number of the one at a place.
    pub fn remove(&mut self, number: u64, i: u32, number_of: impl Fn(u32) -> u64) {
        if let Some((at, lane)) = self.find_lane(number, |place| place == i) {
            let was_full = self.buckets[at].is_full();
            self.buckets[at].clear(lane);
            if was_full {
                self.fill(at, number_of);
            }
        }
    }

    /// Fills the free lane of bucket `gap`, which was full, by a flow that went by it, and that one's lane likewise.
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

    /// Returns a number of four buckets, of which the first two are the last one, so that it is more than full.
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
