//! The memory of a ring's indices and slots, which differs between the kinds of rings.
//!
//! [`Heap`](crate::Heap) is process memory, [`Mapped`](crate::Mapped) is memory that a kernel or a
//! peer process maps too. A half owns its `Memory` value; the two values of one ring name the same
//! indices and slots.

/// The two indices and the slots of one ring, as one half of it sees them.
///
/// Indices run freely through all of `u32` and wrap; `slot = index & (len - 1)`.
///
/// # Safety
///
/// The implementor keeps, for as long as the value lives:
///
/// 1. `len` never changes and is a power of two.
/// 2. `load_*` are at least Acquire, `store_*` at least Release, on the same location for both
///    halves, and a store of one index leaves the other as it is.
/// 3. `write`, `read` and their slice forms touch the slots they are given and nothing else, and
///    `read` of a slot returns a valid entry if the slot was written before by either half, or
///    (memory shared with a peer) whatever the peer wrote there.
pub unsafe trait Memory {
    /// The type of a slot. It is `Copy`, because a ring never drops entries: the code that knows
    /// their meaning removes them.
    type Entry: Copy;

    /// Returns the number of slots, a power of two.
    fn len_descs(&self) -> u32;

    /// Returns the producer's index with Acquire ordering: entries that the producer published
    /// before are then visible.
    fn load_producer(&self) -> u32;

    /// Publishes every slot before `index`, with Release ordering. Called by the producer only.
    fn store_producer(&self, index: u32);

    /// Returns the consumer's index with Acquire ordering: the consumer's reads are then complete
    /// before slots are reused.
    fn load_consumer(&self) -> u32;

    /// Returns every slot before `index` to the producer, with Release ordering. Called by the
    /// consumer only.
    fn store_consumer(&self, index: u32);

    /// Writes an entry into one slot.
    ///
    /// # Safety
    ///
    /// `slot < len_descs()`; the caller is the producer, and the slot is free.
    unsafe fn write(&self, slot: u32, entry: Self::Entry);

    /// Reads the entry of one slot.
    ///
    /// # Safety
    ///
    /// `slot < len_descs()`; the caller is the consumer, and the slot is published.
    unsafe fn read(&self, slot: u32) -> Self::Entry;

    /// Writes `entries` to the slots from `slot` on, which do not exceed the end of the ring.
    ///
    /// # Safety
    ///
    /// As [`write`](Memory::write), for `slot..slot + entries.len()`, all within the ring.
    unsafe fn write_slice(&self, slot: u32, entries: &[Self::Entry]);

    /// Fills `entries` from the slots from `slot` on, which do not exceed the end of the ring.
    ///
    /// # Safety
    ///
    /// As [`read`](Memory::read), for `slot..slot + entries.len()`, all within the ring.
    unsafe fn read_slice(&self, slot: u32, entries: &mut [Self::Entry]);
}
