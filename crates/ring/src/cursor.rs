//! One half of a ring: its own index, and the limit up to which it may move.
//!
//! Both halves count alike. The producer may go to `consumer + len`, the consumer to `producer`;
//! written as *own* and *limit*, the room of either is `limit - own` and one check of a limit read
//! from shared memory serves both:
//!
//! ```text
//!   own                 limit            own + len
//!    |<---- window ----->|                   |
//!    |                   |<-- new limits --->|      any other limit is refused
//! ```
//!
//! Owner: the half. Invariant: `limit - own <= len`, whatever the peer writes. The shared copy of
//! the own index is written and never read back, so a peer that overwrites it harms only itself.

/// The index and the limit of one half, and the number of invalid indices that the peer stored.
pub(crate) struct Cursor {
    own: u32,
    limit: u32,
    len: u32,
    corrupt: u64,
}

impl Cursor {
    /// Creates a cursor at `own`; a `limit` more than `len` ahead counts as corrupt and gives no
    /// slots.
    pub(crate) fn new(own: u32, limit: u32, len: u32) -> Self {
        debug_assert!(len.is_power_of_two());
        let mut cursor = Self { own, limit: own, len, corrupt: 0 };
        cursor.extend_to(limit);
        cursor
    }

    /// Adopts a limit that was read from shared memory, if it moves forward and is at most `len`
    /// ahead.
    #[inline]
    pub(crate) fn extend_to(&mut self, limit: u32) {
        let window = limit.wrapping_sub(self.own);
        if window < self.window() || window > self.len {
            self.corrupt = self.corrupt.saturating_add(1);
        } else {
            self.limit = limit;
        }
    }

    /// Moves the index forward by `n` slots, which the caller has checked against the window;
    /// returns the new index.
    #[inline]
    pub(crate) fn advance(&mut self, n: u32) -> u32 {
        debug_assert!(n <= self.window());
        self.own = self.own.wrapping_add(n);
        self.own
    }

    /// Returns the number of slots between the own index and the limit.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.limit.wrapping_sub(self.own)
    }

    /// Returns the slot of the `i`-th entry of the window.
    #[inline]
    pub(crate) fn slot(&self, i: u32) -> u32 {
        self.own.wrapping_add(i) & (self.len - 1)
    }

    /// Returns the number of slots from the own index to the end of the ring's memory.
    #[inline]
    pub(crate) fn until_wrap(&self) -> u32 {
        self.len - self.slot(0)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn corrupt(&self) -> u64 {
        self.corrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_spans_the_index_wrap() {
        let mut cursor = Cursor::new(u32::MAX - 1, 2, 8);
        assert_eq!(cursor.window(), 4);
        assert_eq!((cursor.slot(0), cursor.slot(1), cursor.slot(2)), (6, 7, 0));
        assert_eq!(cursor.until_wrap(), 2);
        assert_eq!(cursor.advance(3), 1);
        assert_eq!((cursor.window(), cursor.slot(0), cursor.corrupt()), (1, 1, 0));
    }

    #[test]
    fn a_limit_may_grow_to_the_length_and_no_further() {
        let mut cursor = Cursor::new(10, 10, 8);
        cursor.extend_to(18);
        assert_eq!((cursor.window(), cursor.corrupt()), (8, 0));
        cursor.extend_to(19);
        assert_eq!((cursor.window(), cursor.corrupt()), (8, 1));
    }

    #[test]
    fn a_limit_that_goes_backwards_is_refused() {
        let mut cursor = Cursor::new(10, 14, 8);
        for lie in [13, 10, 9, 14 + (1 << 31)] {
            cursor.extend_to(lie);
        }
        assert_eq!((cursor.window(), cursor.corrupt()), (4, 4));
    }

    /// Tests limits at every distance of 16 bits, in the low half of an index and in the high one.
    #[test]
    fn a_limit_is_taken_exactly_if_it_is_possible() {
        for len in [1, 8, 1 << 15, 1 << 31] {
            for own in [0, 7, 0xfffa, u32::MAX - 3, 0x7fff_fffe] {
                for window in [0, 1, len / 2, len] {
                    let distances = (0..=u16::MAX).step_by(if cfg!(miri) { 0x1fff } else { 1 });
                    for distance in distances.map(u32::from).flat_map(|n| [n, n << 16]) {
                        let mut cursor = Cursor::new(own, own.wrapping_add(window), len);
                        cursor.extend_to(own.wrapping_add(distance));
                        // Nothing is taken back, and no more is given than the ring holds.
                        let is_possible = (window..=len).contains(&distance);
                        let expected = if is_possible { distance } else { window };
                        let found = (cursor.window(), cursor.corrupt());
                        assert_eq!(found, (expected, u64::from(!is_possible)), "{own} {distance}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_ring_tells_full_from_corrupt() {
        let len = 1 << 31;
        let mut cursor = Cursor::new(5, 5, len);
        cursor.extend_to(len + 5);
        assert_eq!((cursor.window(), cursor.corrupt()), (len, 0));
        cursor.extend_to(len + 6);
        assert_eq!(cursor.window(), len);
        assert_eq!(cursor.corrupt(), 1);
    }
}
