//! Rows and call chains during reading: each is stored once with its sum, up to a budget for any
//! input.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::profile::{Load, Row, Stack};

/// The remaining budget for a file, over all listings in it.
///
/// The default is some 510 MB at worst: 1,000,000 functions are many times a kernel's, and take 200
/// MB with short names.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    /// Profiles that may still be read.
    pub(super) profiles: usize,
    /// Functions that may still be added.
    pub(super) functions: usize,
    /// Bytes that names may still take.
    pub(super) name_bytes: usize,
    /// Call chains that may still be added.
    pub(super) stacks: usize,
    /// Bytes that call chains may still take.
    pub(super) stack_bytes: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            profiles: 256,
            functions: 1_000_000,
            name_bytes: 64 << 20,
            stacks: 200_000,
            stack_bytes: 128 << 20,
        }
    }
}

/// Name of the row or frame that sums up the rows or chains beyond the budget.
pub(crate) const OTHER: &str = "[other]";

/// A function in a line of a listing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ListedRow<'a> {
    pub(super) symbol: &'a str,
    pub(super) address: Option<u64>,
    pub(super) object: Option<&'a str>,
    pub(super) count: u64,
    pub(super) load: Option<Load>,
}

/// The identity of a row.
type Key<'a> = (&'a str, Option<u64>, Option<&'a str>);

fn key(row: &Row) -> Key<'_> {
    (&row.symbol, row.address, row.object.as_deref())
}

impl<'a> ListedRow<'a> {
    fn key(&self) -> Key<'a> {
        (self.symbol, self.address, self.object)
    }
}

/// Rows of one profile, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(super) struct Rows {
    kept: Index<Row>,
    /// Lines that repeat a row.
    pub(super) repeated: u64,
    /// Number of lines beyond the budget; `other` is the sum of their counts.
    pub(super) other_lines: u64,
    other: u64,
    /// Number of rows at the last blank line.
    before_blank: usize,
}

impl Rows {
    /// Adds a line: to an existing row, as a new row, or to the sum of the lines beyond the budget.
    /// Returns the row; `None` for a line beyond the budget.
    pub(super) fn add(&mut self, budget: &mut Budget, found: ListedRow<'_>) -> Option<&mut Row> {
        let hash = self.kept.hasher.hash_one(found.key());
        if let Some(at) = self.kept.find(hash, |row| key(row) == found.key()) {
            self.repeated += 1;
            let row = self.kept.items.get_mut(at)?;
            row.count = row.count.saturating_add(found.count);
            row.load = None; // the load of one line does not hold for the sum
            return Some(row);
        }
        let name_bytes = found.symbol.len() + found.object.map_or(0, str::len);
        if budget.functions == 0 || budget.name_bytes < name_bytes {
            self.other_lines += 1;
            self.other = self.other.saturating_add(found.count);
            return None;
        }
        budget.functions -= 1;
        budget.name_bytes -= name_bytes;
        self.kept.push(
            hash,
            Row {
                address: found.address,
                load: found.load,
                object: found.object.map(str::to_owned),
                ..Row::new(found.symbol, found.count)
            },
        )
    }

    /// Records the position of a blank line.
    pub(super) fn blank(&mut self) {
        self.before_blank = self.kept.items.len();
    }

    /// Returns true if `found` equals a row from before the last blank line.
    pub(super) fn is_from_before_the_blank(&self, found: &ListedRow<'_>) -> bool {
        let hash = || self.kept.hasher.hash_one(found.key());
        let at = || self.kept.find(hash(), |row| key(row) == found.key());
        self.before_blank > 0 && at().is_some_and(|at| at < self.before_blank)
    }

    /// Splits off the rows after the last blank line. The sum of lines beyond the budget stays
    /// here.
    pub(super) fn split_off(&mut self) -> Rows {
        let mut later = Rows::default();
        for row in self.kept.items.split_off(self.before_blank) {
            later.kept.push(later.kept.hasher.hash_one(key(&row)), row);
        }
        later
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.items.is_empty() && self.other_lines == 0
    }

    /// Returns the sum of all counts, saturated.
    pub(super) fn sum(&self) -> u64 {
        self.kept.items.iter().fold(self.other, |sum, row| sum.saturating_add(row.count))
    }

    /// Returns the rows, and a sentence about the lines beyond the budget, which are summed in the
    /// last row.
    pub(super) fn into_rows(self) -> (Vec<Row>, Option<String>) {
        let mut rows = self.kept.items;
        if self.other_lines == 0 {
            return (rows, None);
        }
        rows.push(Row::new(OTHER, self.other));
        let lines = self.other_lines;
        (rows, Some(format!("{lines} lines of further functions are summed in the row {OTHER}")))
    }
}

/// Call chains of one profile.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    kept: Index<Stack>,
    other: u64,
}

impl Stacks {
    /// Counts one sample of the chain `frames`, in which the outermost caller is first.
    pub(super) fn add<'a, I>(&mut self, budget: &mut Budget, frames: I)
    where
        I: Iterator<Item = &'a str> + Clone,
    {
        let hash =
            frames.clone().fold(0_u64, |hash, frame| self.kept.hasher.hash_one((hash, frame)));
        if let Some(at) = self.kept.find(hash, |s| s.frames.iter().eq(frames.clone())) {
            if let Some(stack) = self.kept.items.get_mut(at) {
                stack.count = stack.count.saturating_add(1);
            }
            return;
        }
        let frame_bytes = |frame: &str| frame.len() + size_of::<String>() + ALLOCATION_BYTES;
        let bytes = frames.clone().map(frame_bytes).sum();
        if budget.stacks == 0 || budget.stack_bytes < bytes {
            self.other += 1;
            return;
        }
        budget.stacks -= 1;
        budget.stack_bytes -= bytes;
        self.kept.push(hash, Stack { frames: frames.map(str::to_owned).collect(), count: 1 });
    }

    /// Returns the chains, and a sentence about the chains beyond the budget, which are summed in
    /// the last one.
    pub(super) fn into_stacks(self) -> (Vec<Stack>, Option<String>) {
        let mut stacks = self.kept.items;
        if self.other == 0 {
            return (stacks, None);
        }
        stacks.push(Stack { frames: vec![OTHER.to_owned()], count: self.other });
        (stacks, Some(format!("{} samples of further call chains are one, {OTHER}", self.other)))
    }
}

/// Bytes that the allocator needs for an allocation, besides the data.
const ALLOCATION_BYTES: usize = 16;

/// An index of items by hash. Each item is stored once, whereas the keys of a `HashMap` would be a
/// second copy; items with equal hashes are linked.
#[derive(Debug)]
struct Index<T> {
    items: Vec<T>,
    hasher: RandomState,
    /// The last item of each hash; `before` links each item to the previous one with the same hash.
    last: HashMap<u64, u32>,
    before: Vec<Option<u32>>,
}

impl<T> Index<T> {
    fn find(&self, hash: u64, same: impl Fn(&T) -> bool) -> Option<usize> {
        let mut at = *self.last.get(&hash)? as usize;
        while !same(self.items.get(at)?) {
            at = (*self.before.get(at)?)? as usize;
        }
        Some(at)
    }

    /// Adds an item that is not present yet; returns `None` beyond 2³² items.
    fn push(&mut self, hash: u64, item: T) -> Option<&mut T> {
        let at = u32::try_from(self.items.len()).ok()?;
        self.before.push(self.last.insert(hash, at));
        self.items.push(item);
        self.items.last_mut()
    }
}

impl<T> Default for Index<T> {
    fn default() -> Index<T> {
        let (items, last, before) = (Vec::new(), HashMap::new(), Vec::new());
        Index { items, hasher: RandomState::new(), last, before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(symbol: &str, address: u64, count: u64) -> ListedRow<'_> {
        ListedRow { symbol, address: Some(address), object: None, count, load: None }
    }

    #[test]
    fn a_repeated_row_is_summed_and_the_same_name_elsewhere_is_another_row() {
        let (mut rows, mut budget) = (Rows::default(), Budget::default());
        for line in [found("f", 1, 10), found("f", 2, 5), found("f", 1, u64::MAX)] {
            rows.add(&mut budget, line);
        }
        assert_eq!((rows.repeated, rows.sum()), (1, u64::MAX));
        let (rows, remark) = rows.into_rows();
        let seen: Vec<_> = rows.iter().map(|r| (r.address, r.count)).collect();
        assert_eq!(seen, [(Some(1), u64::MAX), (Some(2), 5)]);
        assert_eq!(remark, None);
    }

    #[test]
    fn beyond_the_budget_functions_are_one_row_and_known_ones_still_count() {
        let mut budget = Budget { functions: 2, ..Budget::default() };
        let mut rows = Rows::default();
        for (symbol, count) in [("a", 1), ("b", 2), ("c", 4), ("d", 8), ("a", 16)] {
            rows.add(&mut budget, found(symbol, 0, count));
        }
        let (rows, remark) = rows.into_rows();
        let seen: Vec<_> = rows.iter().map(|r| (r.symbol.as_str(), r.count)).collect();
        assert_eq!(seen, [("a", 17), ("b", 2), (OTHER, 12)]);
        assert!(remark.unwrap().starts_with("2 lines"));
        let mut budget = Budget { name_bytes: 5, ..Budget::default() };
        let mut rows = Rows::default();
        assert!(rows.add(&mut budget, found("sixsix", 0, 1)).is_none());
        assert!(rows.add(&mut budget, found("five5", 0, 1)).is_some());
        assert!(rows.add(&mut budget, found("1", 0, 1)).is_none());
    }

    #[test]
    fn chains_are_counted_once_each_and_bounded() {
        let mut budget = Budget { stacks: 2, ..Budget::default() };
        let mut stacks = Stacks::default();
        for chain in [["a", "b"], ["b", "a"], ["a", "b"], ["ab", ""]] {
            stacks.add(&mut budget, chain.into_iter());
        }
        let (stacks, remark) = stacks.into_stacks();
        let seen: Vec<_> = stacks.iter().map(|s| (s.frames.join(";"), s.count)).collect();
        assert_eq!(seen, [("a;b".into(), 2), ("b;a".into(), 1), (OTHER.into(), 1)]);
        assert!(remark.is_some());
    }
}
