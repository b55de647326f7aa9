//! The producer's half of a ring: `reserve`, `write`, `submit`.
//!
//! Owner: one thread at a time (`Send`, not `Sync`, not `Clone`). Invariant: a slot is published
//! only after it was written, so the consumer never reads memory that holds no entry.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::cursor::Cursor;
use crate::memory::Memory;

/// The half of a ring that publishes entries.
pub struct Producer<M: Memory> {
    memory: M,
    cursor: Cursor,
    /// Number of entries at the start of the window that were written since `submit`.
    written: u32,
    not_sync: PhantomData<Cell<()>>,
}

impl<M: Memory> Producer<M> {
    /// Creates the producer of `memory`, starting at the producer's index in it.
    ///
    /// # Safety
    ///
    /// No other producer exists on this memory for as long as this one does, in this process or,
    /// unless the entries are read as hostile there, in any other.
    pub unsafe fn attach(memory: M) -> Self {
        let limit = memory.load_consumer().wrapping_add(memory.len_descs());
        let cursor = Cursor::new(memory.load_producer(), limit, memory.len_descs());
        Self { memory, cursor, written: 0, not_sync: PhantomData }
    }

    /// Returns the number of slots, up to `n`, that are free to be written.
    ///
    /// Shape:  ring [prod, cons + len) -> window[0..r], r <= n; the caller writes them, and owns
    ///         them until `submit`. Asking again without `submit` starts at the same slot.
    /// Units:  slots.
    /// Errors: none; a consumer index that is impossible is counted in `corrupt` and not used.
    /// Cost:   no shared access while the last known room suffices, else one Acquire load.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_prod_nb_free`.
    #[inline]
    pub fn reserve(&mut self, n: u32) -> u32 {
        if self.cursor.window() < n {
            self.refresh();
        }
        self.cursor.window().min(n)
    }

    /// Writes the `i`-th entry of the reserved window. Entries must be written in order; written
    /// ones may be overwritten.
    ///
    /// Shape:  `entry` is copied to `window[i]`; not visible to the consumer before `submit`.
    /// Units:  `i` in slots from the first that is not submitted.
    /// Errors: panics, as a slice does, if `i` is outside the window or would leave a gap.
    /// Cost:   two compares and the store.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_prod_reserve_addr`.
    #[inline]
    #[track_caller]
    pub fn write(&mut self, i: u32, entry: M::Entry) {
        assert!(i < self.cursor.window(), "ring entry written outside the reserved window");
        assert!(i <= self.written, "ring entry written past a gap");
        // SAFETY: `slot` masks to below len, and this is the only producer (`attach`). The slot
        // lies in the window, so it is free: the Acquire load that widened the window saw it
        // released.
        unsafe { self.memory.write(self.cursor.slot(i), entry) };
        self.written = self.written.max(i + 1);
    }

    /// Publishes the first `n` written entries.
    ///
    /// Shape:  window[0..n] -> the consumer's; the window starts after them.
    /// Units:  entries.
    /// Errors: panics, as a slice does, if fewer than `n` entries are written.
    /// Cost:   one Release store; no fence (a sleeping peer: see [`Waker`](crate::Waker)).
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_prod_submit_n`.
    #[inline]
    #[track_caller]
    pub fn submit(&mut self, n: u32) {
        assert!(n <= self.written, "ring entries submitted that were not written");
        self.written -= n;
        self.memory.store_producer(self.cursor.advance(n));
    }

    /// Writes and publishes as many of `entries`, from the first, as fit; returns how many.
    ///
    /// Shape:  entries[0..r] -> ring; entries[r..] stay the caller's. Entries written one by one
    ///         and not submitted are overwritten.
    /// Units:  entries.
    /// Errors: none; a full ring takes 0.
    /// Cost:   at most one Acquire load, two block copies and one Release store; no store if the
    ///         ring is full.
    /// Source: as `reserve` and `submit`.
    #[inline]
    pub fn push_slice(&mut self, entries: &[M::Entry]) -> usize {
        let n = self.reserve(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        self.written = 0;
        if n == 0 {
            // A store of the unchanged index would take the cache line from the consumer.
            return 0;
        }
        let until_wrap = self.cursor.until_wrap().min(n);
        let (head, tail) = entries[..n as usize].split_at(until_wrap as usize);
        // SAFETY: this is the only producer (`attach`), and the n slots of the window are free, as
        // in `write`. `head` ends at or before the ring's last slot; because n <= len, `tail` ends
        // before the first slot of `head`.
        unsafe {
            self.memory.write_slice(self.cursor.slot(0), head);
            if !tail.is_empty() {
                self.memory.write_slice(0, tail);
            }
        }
        self.memory.store_producer(self.cursor.advance(n));
        n as usize
    }

    /// Returns the number of slots that are free now.
    ///
    /// Shape:  nothing moves.
    /// Units:  slots, at most the ring's length.
    /// Errors: none; as `reserve`.
    /// Cost:   one Acquire load.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_prod_nb_free`.
    #[inline]
    pub fn free(&mut self) -> u32 {
        self.refresh();
        self.cursor.window()
    }

    /// Returns the number of slots.
    #[inline]
    pub fn len_descs(&self) -> u32 {
        self.cursor.len()
    }

    /// Returns the number of times that the consumer's index was invalid: ahead of the producer's,
    /// or moved backwards.
    ///
    /// Anything but 0 means that the peer is broken; the owner detaches it.
    #[inline]
    pub fn corrupt(&self) -> u64 {
        self.cursor.corrupt()
    }

    #[inline]
    fn refresh(&mut self) {
        let consumer = self.memory.load_consumer();
        self.cursor.extend_to(consumer.wrapping_add(self.cursor.len()));
    }
}
