//! A ring in the memory of one process; its two halves may be on any two threads.
//!
//! ```text
//!   Producer ─┐    ┌─ line 0: producer index     written by the producer, read by the consumer
//!             Arc ─┼─ line 2: consumer index     written by the consumer, read by the producer
//!   Consumer ─┘    └─ slots: [T; len]            each slot owned by one half at a time
//! ```
//!
//! Owner: the two halves, by one `Arc`; memory goes when the second half goes, whichever that is.
//! Slots start uninitialised, so a long ring costs no page before it is used.

use std::mem::MaybeUninit;
use std::{iter, ptr};

use crate::consumer::Consumer;
use crate::error::{RingError, checked_len};
use crate::memory::Memory;
use crate::producer::Producer;
use crate::sync::{Arc, AtomicU32, Line, Ordering, UnsafeCell};

/// Both halves of one ring in process memory.
pub type Halves<T> = (Producer<Heap<T>>, Consumer<Heap<T>>);

/// Creates a ring of `len_descs` slots in process memory, and returns its two halves.
///
/// Entries still in the ring when both halves are gone are forgotten: `T` is `Copy`, and whoever
/// gives an entry its meaning (a frame's owner, say) drains the ring first.
///
/// # Errors
///
/// [`RingError::Length`] unless `len_descs` is a power of two; [`RingError::Memory`] if there is
/// none.
pub fn heap<T: Copy + Send>(len_descs: u32) -> Result<Halves<T>, RingError> {
    heap_from(len_descs, 0)
}

/// Creates a ring as [`heap`] does, with both indices at `start`, for tests in which an index soon
/// wraps.
///
/// # Errors
///
/// As [`heap`].
#[doc(hidden)]
pub fn heap_from<T: Copy + Send>(len_descs: u32, start: u32) -> Result<Halves<T>, RingError> {
    let len = checked_len(len_descs)? as usize;
    let mut slots = Vec::new();
    slots.try_reserve_exact(len).map_err(|_| RingError::Memory { len_descs })?;
    slots.extend(iter::repeat_with(|| UnsafeCell::new(MaybeUninit::uninit())).take(len));
    let shared = Arc::new(Shared {
        producer: Line(AtomicU32::new(start)),
        consumer: Line(AtomicU32::new(start)),
        slots: slots.into_boxed_slice(),
    });
    // SAFETY: the memory is new; only this function makes a `Heap`, and it makes one half of each
    // kind. Nothing is published yet.
    unsafe {
        let producer = Producer::attach(Heap { shared: Arc::clone(&shared) });
        Ok((producer, Consumer::attach(Heap { shared })))
    }
}

/// One half's view of a ring in process memory; created by [`heap`].
pub struct Heap<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    producer: Line<AtomicU32>,
    consumer: Line<AtomicU32>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: two threads share the indices, which are atomic, and the slots. Each slot belongs to one
// half at a time: the producer's `Release` store of its index hands a slot to the consumer, and the
// consumer's hands it back; each side reads the index with `Acquire` (`Memory`, 2). Entries move
// between threads, hence `T: Send`; no two threads hold a reference to one entry, hence no `T:
// Sync`.
unsafe impl<T: Send> Sync for Shared<T> {}

// SAFETY: as for `Sync`; the half that is dropped last frees the slots and drops no entry
// (`MaybeUninit`).
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Heap<T> {
    /// Returns the cells `slot..slot + n`; the caller has checked the access.
    ///
    /// # Safety
    ///
    /// `slot + n <= len_descs`.
    #[inline(always)]
    unsafe fn cells(&self, slot: u32, n: usize) -> &[UnsafeCell<MaybeUninit<T>>] {
        let slot = slot as usize;
        debug_assert!(slot + n <= self.shared.slots.len());
        // SAFETY: the caller guarantees that the slots are in bounds.
        unsafe { self.shared.slots.get_unchecked(slot..slot + n) }
    }
}

// SAFETY: 1. the slots are a boxed slice whose length `heap_from` checked and nothing changes. 2.
// the loads and stores below have the required orderings. 3. each access goes only to the named
// cells, and a slot is read only after it was published, so it was written (`Producer`'s
// invariant).
unsafe impl<T: Copy> Memory for Heap<T> {
    type Entry = T;

    #[inline]
    fn len_descs(&self) -> u32 {
        self.shared.slots.len() as u32 // made from a u32
    }

    #[inline]
    fn load_producer(&self) -> u32 {
        self.shared.producer.0.load(Ordering::Acquire)
    }

    #[inline]
    fn store_producer(&self, index: u32) {
        self.shared.producer.0.store(index, Ordering::Release);
    }

    #[inline]
    fn load_consumer(&self) -> u32 {
        self.shared.consumer.0.load(Ordering::Acquire)
    }

    #[inline]
    fn store_consumer(&self, index: u32) {
        self.shared.consumer.0.store(index, Ordering::Release);
    }

    #[inline]
    unsafe fn write(&self, slot: u32, entry: T) {
        // SAFETY: the caller guarantees for this slot what `write_slice` requires for its slots.
        unsafe { self.write_slice(slot, &[entry]) }
    }

    #[inline]
    unsafe fn read(&self, slot: u32) -> T {
        // SAFETY: the caller guarantees that slot < len and that the slot is published, so it was
        // written; its producer does not access it before this half releases it.
        unsafe { self.cells(slot, 1)[0].with(|cell| (*cell).assume_init()) }
    }

    #[inline]
    unsafe fn write_slice(&self, slot: u32, entries: &[T]) {
        // SAFETY: the caller guarantees that the slots are in bounds.
        let cells = unsafe { self.cells(slot, entries.len()) };
        for (cell, &entry) in iter::zip(cells, entries) {
            // SAFETY: the slot is free, so only the producer, which is the caller, accesses it.
            cell.with_mut(|cell| unsafe { cell.write(MaybeUninit::new(entry)) });
        }
    }

    #[inline]
    unsafe fn read_slice(&self, slot: u32, entries: &mut [T]) {
        // SAFETY: the caller guarantees that the slots are in bounds.
        let cells = unsafe { self.cells(slot, entries.len()) };
        for (cell, entry) in iter::zip(cells, entries) {
            // SAFETY: the slot is published, so it was written, and its producer does not access it
            // before this half releases it.
            cell.with(|cell| unsafe { ptr::copy_nonoverlapping(cell.cast(), entry, 1) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_are_no_power_of_two_are_refused() {
        for len_descs in [0, 3, (1 << 31) + 1, u32::MAX] {
            assert_eq!(heap::<u32>(len_descs).err(), Some(RingError::Length { len_descs }));
        }
        assert!(heap::<u32>(1).is_ok());
    }

    #[test]
    fn a_ring_for_which_there_is_no_memory_is_refused() {
        let len_descs = 1 << 31;
        let made = heap::<[u8; 1 << 33]>(len_descs);
        assert_eq!(made.err(), Some(RingError::Memory { len_descs }));
    }

    #[test]
    fn a_full_ring_refuses_the_next_entry() {
        let (mut producer, mut consumer) = heap::<u32>(4).unwrap();
        assert_eq!(producer.push_slice(&[1, 2, 3, 4, 5]), 4);
        assert_eq!((producer.reserve(1), producer.push_slice(&[6])), (0, 0));
        assert_eq!((consumer.peek(1), consumer.read(0)), (1, 1));
        consumer.release(1);
        assert_eq!(producer.push_slice(&[6, 7]), 1);
    }

    #[test]
    fn an_empty_ring_gives_nothing() {
        let (_producer, mut consumer) = heap::<u32>(4).unwrap();
        let mut out = [9];
        assert_eq!(
            (consumer.peek(4), consumer.available(), consumer.pop_slice(&mut out)),
            (0, 0, 0)
        );
        assert_eq!(out, [9]);
    }

    #[test]
    fn entries_are_not_visible_before_submit() {
        let (mut producer, mut consumer) = heap_from::<u32>(4, u32::MAX).unwrap();
        assert_eq!(producer.reserve(8), 4);
        producer.write(0, 10);
        producer.write(1, 11);
        producer.write(0, 12); // over one already written
        assert_eq!(consumer.peek(4), 0);
        producer.submit(1);
        assert_eq!((consumer.available(), consumer.read(0)), (1, 12));
        producer.submit(1); // written before the first submit
        assert_eq!((consumer.peek(4), consumer.read(1)), (2, 11));
        assert_eq!(producer.free(), 2);
    }

    #[test]
    fn a_released_slot_is_free_again() {
        let (mut producer, mut consumer) = heap::<u32>(2).unwrap();
        producer.push_slice(&[1, 2]);
        assert_eq!(consumer.peek(2), 2);
        consumer.release(1);
        assert_eq!((producer.free(), consumer.read(0)), (1, 2));
    }

    #[test]
    #[should_panic(expected = "not written")]
    fn a_slot_that_was_not_written_cannot_be_submitted() {
        let (mut producer, _consumer) = heap::<u32>(4).unwrap();
        producer.reserve(2);
        producer.write(0, 1);
        producer.submit(2);
    }

    #[test]
    #[should_panic(expected = "past a gap")]
    fn a_gap_cannot_be_written_past() {
        let (mut producer, _consumer) = heap::<u32>(4).unwrap();
        producer.reserve(2);
        producer.write(1, 1);
    }

    #[test]
    #[should_panic(expected = "outside the reserved window")]
    fn a_slot_that_the_consumer_holds_cannot_be_written() {
        let (mut producer, _consumer) = heap::<u32>(1).unwrap();
        producer.push_slice(&[1]);
        producer.write(0, 2);
    }

    #[test]
    #[should_panic(expected = "outside the peeked window")]
    fn an_entry_that_was_not_peeked_cannot_be_read() {
        let (mut producer, consumer) = heap::<u32>(4).unwrap();
        producer.push_slice(&[1]);
        consumer.read(0);
    }

    #[test]
    #[should_panic(expected = "not peeked")]
    fn an_entry_that_was_not_peeked_cannot_be_released() {
        let (mut producer, mut consumer) = heap::<u32>(4).unwrap();
        producer.push_slice(&[1]);
        consumer.release(1);
    }

    #[test]
    fn a_half_outlives_the_other() {
        let (mut producer, mut consumer) = heap::<u32>(4).unwrap();
        producer.push_slice(&[1, 2]);
        drop(producer);
        let mut out = [0; 4];
        assert_eq!((consumer.pop_slice(&mut out), out), (2, [1, 2, 0, 0]));
    }

    #[test]
    fn two_threads_lose_and_reorder_nothing() {
        const COUNT: u32 = if cfg!(miri) { 500 } else { 200_000 };
        let (mut producer, mut consumer) = heap_from::<u32>(64, u32::MAX - 1000).unwrap();
        let sender = std::thread::spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let burst: Vec<u32> = (next..COUNT.min(next + next % 40 + 1)).collect();
                next += producer.push_slice(&burst) as u32;
                std::thread::yield_now();
            }
            producer.corrupt()
        });
        let (mut expected, mut out) = (0, [0; 29]);
        while expected < COUNT {
            let n = consumer.pop_slice(&mut out);
            for entry in &out[..n] {
                assert_eq!(*entry, expected);
                expected += 1;
            }
            if n == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!((sender.join().unwrap(), consumer.corrupt()), (0, 0));
    }
}
