//! A CPU's cache of limited size: sets of ways, from which the least recently used line is evicted.

/// The size of each CPU's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of sets, a power of two.
    pub sets: usize,
    /// Number of lines in a set.
    pub ways: usize,
}

impl Shape {
    /// Returns the shape of a cache of `bytes` with `ways`; `None` if the number of sets is not a
    /// power of two.
    #[must_use]
    pub const fn of(bytes: usize, ways: usize) -> Option<Shape> {
        if ways == 0 || bytes == 0 || !bytes.is_multiple_of(64 * ways) {
            return None;
        }
        let sets = bytes / 64 / ways;
        if sets.is_power_of_two() { Some(Shape { sets, ways }) } else { None }
    }
}

/// The lines in a CPU's cache. A line that another CPU has taken stays here until its place is
/// needed.
#[derive(Debug)]
pub struct Cache {
    shape: Shape,
    /// The lines of each set, most recently used first; 0 means no line, because nothing is stored
    /// at address 0.
    lines: Vec<u64>,
}

impl Cache {
    /// Makes an empty cache.
    #[must_use]
    pub fn new(shape: Shape) -> Cache {
        Cache { shape, lines: vec![0; shape.sets * shape.ways] }
    }

    /// Uses `line`, and returns the line that was evicted to make room for it. `held` returns
    /// whether a line still belongs to this CPU: a line that does not is removed first, and does
    /// not count as an eviction.
    pub fn use_line(&mut self, line: u64, held: impl Fn(u64) -> bool) -> Option<u64> {
        let at = (line as usize & (self.shape.sets - 1)) * self.shape.ways;
        let set = &mut self.lines[at..at + self.shape.ways];
        if set[0] == line {
            return None;
        }
        if let Some(way) = set.iter().position(|&kept| kept == line) {
            set[..=way].rotate_right(1);
            return None;
        }
        let free = set.iter().rposition(|&kept| kept == 0 || !held(kept));
        let way = free.unwrap_or(set.len() - 1);
        let evicted = free.is_none().then_some(set[way]);
        set[way] = line;
        set[..=way].rotate_right(1);
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_leaves_and_one_that_was_taken_leaves_first() {
        let mut cache = Cache::new(Shape { sets: 4, ways: 2 });
        let held = |_| true;
        assert_eq!((cache.use_line(4, held), cache.use_line(8, held)), (None, None));
        assert_eq!(cache.use_line(4, held), None, "it is there, and newer than 8 now");
        assert_eq!(cache.use_line(5, held), None, "another set");
        assert_eq!(cache.use_line(12, held), Some(8));
        assert_eq!(cache.use_line(16, |line| line != 12), None, "12 was taken by another CPU");
        assert_eq!(cache.use_line(20, held), Some(4));
    }

    #[test]
    fn a_size_without_whole_sets_is_refused() {
        assert_eq!(Shape::of(1 << 20, 8), Some(Shape { sets: 2048, ways: 8 }));
        for (bytes, ways) in [(0, 8), (1 << 20, 0), (1000, 1), (3 << 20, 8), (64, 2)] {
            assert_eq!(Shape::of(bytes, ways), None, "{bytes} {ways}");
        }
    }
}
