//! The distribution of batch sizes at the transmit call.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of ranges in which transmit calls are counted by size.
const RANGES: usize = 12;

/// Transmit calls by the number of packets that the device accepted: none, 1, 2–3, 4–7 and so on,
/// and 1024 or more.
///
/// In a call without an accepted packet, the device was full, all packets were dropped on the way
/// to it, as to a ring whose reader is gone, or a superframe waited for a free frame. Each segment
/// of a superframe that is cut in front of the device is a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchSizes {
    /// Calls in each range.
    pub calls: [u64; RANGES],
}

impl BatchSizes {
    /// Counts a transmit call in which the device accepted `packets`.
    #[inline]
    pub(crate) fn count(&mut self, packets: usize) {
        let range = usize::BITS - packets.leading_zeros();
        self.calls[(range as usize).min(RANGES - 1)] += 1;
    }

    /// Returns the smallest number of packets that `range` includes, as if the ranges continued
    /// behind the last of [`calls`](BatchSizes::calls); `u64::MAX` for ranges above 64.
    #[must_use]
    pub const fn least(range: usize) -> u64 {
        match range {
            0 => 0,
            1..=64 => 1 << (range - 1),
            _ => u64::MAX,
        }
    }

    /// Returns the number of calls in which the device accepted no packet.
    #[must_use]
    pub fn full(&self) -> u64 {
        self.calls[0]
    }
}

impl std::ops::AddAssign for BatchSizes {
    fn add_assign(&mut self, more: BatchSizes) {
        self.calls.iter_mut().zip(more.calls).for_each(|(sum, more)| *sum += more);
    }
}

/// Displays the ranges that contain calls: `0: 3, 1: 17, 32-63: 1000`.
impl fmt::Display for BatchSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (range, calls) in self.calls.iter().enumerate().filter(|(_, calls)| **calls > 0) {
            let (least, most) = (BatchSizes::least(range), BatchSizes::least(range + 1) - 1);
            match range {
                0 | 1 => write!(f, "{between}{least}: {calls}")?,
                _ if range == RANGES - 1 => write!(f, "{between}{least}+: {calls}")?,
                _ => write!(f, "{between}{least}-{most}: {calls}")?,
            }
            between = ", ";
        }
        Ok(())
    }
}

/// The page from which other threads read the distribution.
#[derive(Debug, Default)]
pub(crate) struct SizesPage([AtomicU64; RANGES]);

impl SizesPage {
    pub fn set(&self, sizes: &BatchSizes) {
        let pairs = self.0.iter().zip(sizes.calls);
        pairs.for_each(|(word, calls)| word.store(calls, Ordering::Relaxed));
    }

    pub fn read(&self) -> BatchSizes {
        BatchSizes { calls: std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_powers_of_two_and_shown_by_range() {
        let mut sizes = BatchSizes::default();
        for n in [0, 1, 1, 2, 3, 4, 7, 8, 64, 1023, 1024, 1 << 20] {
            sizes.count(n);
        }
        let shown = "0: 1, 1: 2, 2-3: 2, 4-7: 2, 8-15: 1, 64-127: 1, 512-1023: 1, 1024+: 2";
        assert_eq!((sizes.to_string().as_str(), sizes.full()), (shown, 1));
        let page = SizesPage::default();
        page.set(&sizes);
        let mut twice = page.read();
        twice += sizes;
        assert_eq!(twice.calls[1], 4);
        assert_eq!(BatchSizes::default().to_string(), "");
    }

    #[test]
    fn every_number_is_a_range_with_a_least_size() {
        assert_eq!([0, 1, 2, 11].map(BatchSizes::least), [0, 1, 2, 1024]);
        let last = [64, 65, usize::MAX].map(BatchSizes::least);
        assert_eq!(last, [1 << 63, u64::MAX, u64::MAX]);
    }
}
