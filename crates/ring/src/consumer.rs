//! The consumer's half of a ring: `peek`, `read`, `release`.
//!
//! Owner: one thread at a time (`Send`, not `Sync`, not `Clone`). Invariant: a slot is read only
//! between the producer's publication of it and our own release.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::cursor::Cursor;
use crate::memory::Memory;

/// The half of a ring that takes published entries.
pub struct Consumer<M: Memory> {
    memory: M,
    cursor: Cursor,
    not_sync: PhantomData<Cell<()>>,
}

impl<M: Memory> Consumer<M> {
    /// Creates the consumer of `memory`, starting at the consumer's index in it.
    ///
    /// # Safety
    ///
    /// No other consumer exists on this memory for as long as this one does, and each slot that
    /// lies published there holds a valid entry.
    pub unsafe fn attach(memory: M) -> Self {
        let own = memory.load_consumer();
        let cursor = Cursor::new(own, memory.load_producer(), memory.len_descs());
        Self { memory, cursor, not_sync: PhantomData }
    }

    /// Returns the number of entries, up to `n`, that are published and not released.
    ///
    /// Shape:  ring [cons, prod) -> window[0..r], r <= n; the slots are the caller's to read until
    ///         `release`. Asking again without `release` starts at the same entry.
    /// Units:  entries, never more than the ring's length.
    /// Errors: none; a producer index that is impossible is counted in `corrupt` and not used.
    /// Cost:   no shared access while as many are known, else one Acquire load.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_cons_nb_entries`.
    #[inline]
    pub fn peek(&mut self, n: u32) -> u32 {
        if self.cursor.window() < n {
            self.refresh();
        }
        self.cursor.window().min(n)
    }

    /// Reads the `i`-th entry of the peeked window.
    ///
    /// Shape:  `window[i]` is copied out; the slot stays ours until `release`.
    /// Units:  `i` in entries from the first that is not released.
    /// Errors: panics, as a slice does, if `i` is outside the window.
    /// Cost:   one compare and the load.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_cons_read_addr_unchecked`.
    #[inline]
    #[track_caller]
    pub fn read(&self, i: u32) -> M::Entry {
        assert!(i < self.cursor.window(), "ring entry read outside the peeked window");
        // SAFETY: `slot` masks to below len, and this is the only consumer (`attach`). The slot
        // lies in the window, so it is published: the Acquire load that widened the window saw its
        // entry.
        unsafe { self.memory.read(self.cursor.slot(i)) }
    }

    /// Returns the first `n` slots of the window to the producer.
    ///
    /// Shape:  window[0..n] -> the producer's; the window starts after them. Entries that were not
    ///         read are gone: what they stood for must be known elsewhere.
    /// Units:  entries.
    /// Errors: panics, as a slice does, if the window is shorter than `n`.
    /// Cost:   one Release store; no fence (a sleeping peer: see [`Waker`](crate::Waker)).
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_cons_release_n`.
    #[inline]
    #[track_caller]
    pub fn release(&mut self, n: u32) {
        assert!(n <= self.cursor.window(), "ring entries released that were not peeked");
        self.memory.store_consumer(self.cursor.advance(n));
    }

    /// Copies as many entries as are published and fit into `entries`, and releases their slots;
    /// returns how many.
    ///
    /// Shape:  ring -> entries[0..r]; entries[r..] stay as they were.
    /// Units:  entries.
    /// Errors: none; an empty ring gives 0.
    /// Cost:   at most one Acquire load, two block copies and one Release store; no store if the
    ///         ring is empty.
    /// Source: as `peek` and `release`.
    #[inline]
    pub fn pop_slice(&mut self, entries: &mut [M::Entry]) -> usize {
        let n = self.peek(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        if n == 0 {
            // A store of the unchanged index would take the cache line from the producer.
            return 0;
        }
        let until_wrap = self.cursor.until_wrap().min(n);
        let (head, tail) = entries[..n as usize].split_at_mut(until_wrap as usize);
        // SAFETY: this is the only consumer (`attach`), and the n slots of the window are
        // published, as in `read`. `head` ends at or before the ring's last slot; because n <= len,
        // `tail` ends before the first slot of `head`.
        unsafe {
            self.memory.read_slice(self.cursor.slot(0), head);
            if !tail.is_empty() {
                self.memory.read_slice(0, tail);
            }
        }
        self.memory.store_consumer(self.cursor.advance(n));
        n as usize
    }

    /// Returns the number of entries that were published when the producer's index was last read.
    ///
    /// Shape:  nothing moves.
    /// Units:  entries, at most the ring's length.
    /// Errors: none.
    /// Cost:   no shared access.
    #[inline]
    #[must_use]
    pub fn known(&self) -> u32 {
        self.cursor.window()
    }

    /// Returns the number of entries that are published now.
    ///
    /// Shape:  nothing moves.
    /// Units:  entries, at most the ring's length.
    /// Errors: none; as `peek`.
    /// Cost:   one Acquire load.
    /// Source: Linux v6.12 net/xdp/xsk_queue.h, `xskq_cons_nb_entries`.
    #[inline]
    pub fn available(&mut self) -> u32 {
        self.refresh();
        self.cursor.window()
    }

    /// Returns the number of slots.
    #[inline]
    pub fn len_descs(&self) -> u32 {
        self.cursor.len()
    }

    /// Returns the number of times that the producer's index was invalid: more than the ring's
    /// length ahead, or moved backwards.
    ///
    /// Anything but 0 means that the peer is broken; the owner detaches it.
    #[inline]
    pub fn corrupt(&self) -> u64 {
        self.cursor.corrupt()
    }

    #[inline]
    fn refresh(&mut self) {
        self.cursor.extend_to(self.memory.load_producer());
    }
}
