//! A ring in memory that a kernel or a peer process also maps.
//!
//! ```text
//!   owner O (the mapping) ──keeps alive──┐
//!                                        v
//!   ┌ producer: u32 ┬ consumer: u32 ┬ slots: [T; len] ┐   at addresses the caller names
//!   └───────────────┴───────────────┴─────────────────┘   (AF_XDP: XDP_MMAP_OFFSETS)
//! ```
//!
//! Owner: one half here, the other on the far side. The far side is hostile: its index is checked
//! whenever it is read (`cursor.rs`), our own is never read back, and a slot is read
//! once, by a volatile load that the compiler can neither repeat nor split from its use. What the
//! entries *say* is for the reader of the entries to check.
//!
//! Source: Linux v6.12 net/xdp/xsk_queue.h (`struct xdp_ring`).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{RingError, checked_len};
use crate::memory::Memory;

/// Addresses of the parts of a mapped ring. The fields are named, so that a caller cannot swap the
/// two indices by mistake.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<T> {
    /// Address of the producer's index.
    pub producer: *mut u32,
    /// Address of the consumer's index.
    pub consumer: *mut u32,
    /// Address of the first slot.
    pub slots: *mut T,
}

/// One half's view of a ring in shared memory, with the owner that keeps that memory mapped.
pub struct Mapped<T, O> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    slots: NonNull<T>,
    len_descs: u32,
    _owner: O,
}

impl<T: Copy, O> Mapped<T, O> {
    /// Creates a view of the ring of `len_descs` slots at `addresses`, which keeps `owner` alive.
    ///
    /// Hand the result to [`Producer::attach`](crate::Producer::attach) or
    /// [`Consumer::attach`](crate::Consumer::attach); each needs a view of its own.
    ///
    /// # Errors
    ///
    /// [`RingError::Length`] unless `len_descs` is a power of two; [`RingError::Address`] if an
    /// address is null or not aligned.
    ///
    /// # Safety
    ///
    /// The caller answers for these, until the view is dropped:
    ///
    /// 1. While `owner` lives, wherever it is moved, both indices and `len_descs` slots of `T` lie
    ///    in memory mapped for reading and writing, and do not overlap.
    /// 2. This process accesses the indices only atomically, and the slots only through the
    ///    halves of this ring: no reference to any of it exists.
    /// 3. Every pattern of bits is a valid `T`, and `T` has no padding: the far side may write
    ///    anything, and sees every byte that we write.
    pub unsafe fn new(
        addresses: Addresses<T>,
        len_descs: u32,
        owner: O,
    ) -> Result<Self, RingError> {
        let len_descs = checked_len(len_descs)?;
        Ok(Self {
            producer: checked_address(addresses.producer.cast())?,
            consumer: checked_address(addresses.consumer.cast())?,
            slots: checked_address(addresses.slots)?,
            len_descs,
            _owner: owner,
        })
    }
}

fn checked_address<T>(address: *mut T) -> Result<NonNull<T>, RingError> {
    NonNull::new(address).filter(|address| address.is_aligned()).ok_or(RingError::Address)
}

impl<T, O> Mapped<T, O> {
    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the address is aligned (checked in `new`). It is mapped while `_owner` lives, and
        // only accessed atomically (`new`, 1 and 2). Stores from outside the process are atomic for
        // AtomicU32.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }
}

// SAFETY: the view only has addresses, which are valid on every thread of the process while
// `_owner` lives. `T: Send` and `O: Send`, because entries and owner move with it. Two threads
// share memory only through atomics and the ring protocol, as in `Heap`.
unsafe impl<T: Send, O: Send> Send for Mapped<T, O> {}

// SAFETY: 1. `len_descs` is checked in `new` and never changes. 2. the loads and stores below have
// the required orderings, and the addresses of `new` do not overlap. 3. each access goes only to
// the named slots; every bit pattern in them is a valid T, whichever process wrote it (`new`, 3).
unsafe impl<T: Copy, O> Memory for Mapped<T, O> {
    type Entry = T;

    #[inline]
    fn len_descs(&self) -> u32 {
        self.len_descs
    }

    #[inline]
    fn load_producer(&self) -> u32 {
        self.producer().load(Ordering::Acquire)
    }

    #[inline]
    fn store_producer(&self, index: u32) {
        self.producer().store(index, Ordering::Release);
    }

    #[inline]
    fn load_consumer(&self) -> u32 {
        self.consumer().load(Ordering::Acquire)
    }

    #[inline]
    fn store_consumer(&self, index: u32) {
        self.consumer().store(index, Ordering::Release);
    }

    #[inline]
    unsafe fn write(&self, slot: u32, entry: T) {
        debug_assert!(slot < self.len_descs);
        // SAFETY: the caller guarantees that slot < len, so the address is in the mapping (`new`,
        // 1). The write is volatile, because the peer may break the protocol and read at any time.
        unsafe { self.slots.add(slot as usize).write_volatile(entry) }
    }

    #[inline]
    unsafe fn read(&self, slot: u32) -> T {
        debug_assert!(slot < self.len_descs);
        // SAFETY: as `write`; every bit pattern that the peer wrote, including a partial entry, is
        // a valid T (`new`, 3). The read is volatile, so that the value is read once, and the
        // checked value is the used value.
        unsafe { self.slots.add(slot as usize).read_volatile() }
    }

    #[inline]
    unsafe fn write_slice(&self, slot: u32, entries: &[T]) {
        for (slot, &entry) in (slot..).zip(entries) {
            // SAFETY: the caller guarantees for each slot what `write` requires.
            unsafe { self.write(slot, entry) }
        }
    }

    #[inline]
    unsafe fn read_slice(&self, slot: u32, entries: &mut [T]) {
        for (slot, entry) in (slot..).zip(entries) {
            // SAFETY: the caller guarantees for each slot what `read` requires.
            *entry = unsafe { self.read(slot) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Consumer, Producer};

    const LEN: u32 = 8;

    /// A stand-in for shared pages; the test acts as the peer through raw addresses.
    struct Page {
        indices: Box<[AtomicU32; 2]>,
        slots: Box<[std::cell::UnsafeCell<u64>; LEN as usize]>,
    }

    // SAFETY: the tests below use the page from one thread.
    unsafe impl Sync for Page {}
    // SAFETY: plain memory.
    unsafe impl Send for Page {}

    impl Page {
        fn new(start: u32) -> Arc<Self> {
            Arc::new(Self {
                indices: Box::new([AtomicU32::new(start), AtomicU32::new(start)]),
                slots: Box::new([const { std::cell::UnsafeCell::new(0) }; LEN as usize]),
            })
        }

        fn view(self: &Arc<Self>) -> Mapped<u64, Arc<Self>> {
            let addresses = Addresses {
                producer: self.indices[0].as_ptr(),
                consumer: self.indices[1].as_ptr(),
                slots: self.slots.as_ptr().cast_mut().cast(),
            };
            // SAFETY: the view owns the page; nothing else touches it but atomics and raw reads on
            // this thread; any u64 is valid.
            unsafe { Mapped::new(addresses, LEN, Arc::clone(self)) }.unwrap()
        }

        fn producer(self: &Arc<Self>) -> Producer<Mapped<u64, Arc<Self>>> {
            // SAFETY: each test attaches at most one producer.
            unsafe { Producer::attach(self.view()) }
        }

        fn consumer(self: &Arc<Self>) -> Consumer<Mapped<u64, Arc<Self>>> {
            // SAFETY: each test attaches at most one consumer.
            unsafe { Consumer::attach(self.view()) }
        }

        fn claim_producer(&self, index: u32) {
            self.indices[0].store(index, Ordering::Release);
        }

        fn claim_consumer(&self, index: u32) {
            self.indices[1].store(index, Ordering::Release);
        }
    }

    #[test]
    fn both_halves_meet_in_the_mapping_across_the_index_wrap() {
        let page = Page::new(u32::MAX - 2);
        let (mut producer, mut consumer) = (page.producer(), page.consumer());
        assert_eq!(producer.push_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), 8);
        assert_eq!(page.indices[0].load(Ordering::Relaxed), 5);
        let mut out = [0; 9];
        assert_eq!(consumer.pop_slice(&mut out), 8);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!((producer.free(), producer.corrupt(), consumer.corrupt()), (8, 0, 0));
    }

    #[test]
    fn a_producer_that_claims_too_much_gives_nothing_and_is_counted() {
        let page = Page::new(100);
        let mut consumer = page.consumer();
        for (lies, ahead) in [LEN + 1, 1 << 31, u32::MAX].into_iter().enumerate() {
            page.claim_producer(100u32.wrapping_add(ahead));
            assert_eq!(consumer.peek(u32::MAX), 0);
            assert_eq!(consumer.corrupt(), lies as u64 + 1);
        }
        page.claim_producer(100 + LEN);
        assert_eq!(consumer.peek(u32::MAX), LEN);
    }

    #[test]
    fn a_producer_that_goes_backwards_takes_nothing_away() {
        let page = Page::new(0);
        let mut consumer = page.consumer();
        page.claim_producer(4);
        assert_eq!(consumer.peek(4), 4);
        page.claim_producer(2);
        assert_eq!(consumer.peek(LEN), 4);
        assert_eq!(consumer.corrupt(), 1);
        consumer.release(4);
        assert_eq!(consumer.peek(1), 0);
        assert_eq!(consumer.corrupt(), 2);
    }

    #[test]
    fn a_consumer_ahead_of_the_producer_makes_no_room() {
        let page = Page::new(0);
        let mut producer = page.producer();
        assert_eq!(producer.push_slice(&[7; LEN as usize]), LEN as usize);
        page.claim_consumer(LEN + 1);
        assert_eq!(producer.reserve(1), 0);
        page.claim_consumer(1 << 31);
        assert_eq!(producer.push_slice(&[9]), 0);
        assert_eq!(producer.corrupt(), 2);
        page.claim_consumer(1);
        assert_eq!(producer.reserve(2), 1);
    }

    #[test]
    fn a_consumer_that_goes_backwards_takes_no_room_away() {
        let page = Page::new(0);
        let mut producer = page.producer();
        producer.push_slice(&[1; 4]);
        page.claim_consumer(4);
        assert_eq!(producer.free(), LEN);
        page.claim_consumer(3);
        assert_eq!((producer.free(), producer.corrupt()), (LEN, 1));
    }

    #[test]
    fn a_peer_that_overwrites_our_own_index_harms_only_itself() {
        let page = Page::new(0);
        let (mut producer, mut consumer) = (page.producer(), page.consumer());
        producer.push_slice(&[1, 2]);
        assert_eq!(consumer.peek(2), 2);
        page.claim_consumer(77);
        assert_eq!(consumer.read(1), 2);
        consumer.release(2);
        assert_eq!(page.indices[1].load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_call_that_moves_no_entry_stores_no_index() {
        let page = Page::new(0);
        let (mut producer, mut consumer) = (page.producer(), page.consumer());
        page.claim_consumer(77);
        assert_eq!((consumer.pop_slice(&mut [0; 4]), consumer.pop_slice(&mut [])), (0, 0));
        assert_eq!(page.indices[1].load(Ordering::Relaxed), 77);
        page.claim_consumer(0);
        assert_eq!(producer.push_slice(&[1; LEN as usize]), LEN as usize);
        page.claim_producer(99);
        assert_eq!((producer.push_slice(&[2]), producer.push_slice(&[])), (0, 0));
        assert_eq!(page.indices[0].load(Ordering::Relaxed), 99);
    }

    #[test]
    #[should_panic(expected = "not written")]
    fn a_refused_push_forgets_the_entries_written_before_it() {
        let page = Page::new(0);
        let mut producer = page.producer();
        producer.write(0, 1);
        assert_eq!(producer.push_slice(&[]), 0);
        producer.submit(1);
    }

    #[test]
    fn indices_that_are_impossible_at_attach_grant_nothing() {
        let page = Page::new(0);
        page.claim_producer(LEN + 1);
        let (mut producer, mut consumer) = (page.producer(), page.consumer());
        assert_eq!((producer.reserve(1), consumer.peek(1)), (0, 0));
        assert!(producer.corrupt() > 0 && consumer.corrupt() > 0);
    }

    #[test]
    fn bad_lengths_and_addresses_are_refused() {
        let page = Page::new(0);
        let good = Addresses {
            producer: page.indices[0].as_ptr(),
            consumer: page.indices[1].as_ptr(),
            slots: page.slots.as_ptr().cast_mut().cast::<u64>(),
        };
        // SAFETY: each view is refused; were one not, the page outlives it and it is not used.
        let made = |addresses, len| unsafe { Mapped::new(addresses, len, ()) }.err();
        assert_eq!(made(good, 0), Some(RingError::Length { len_descs: 0 }));
        assert_eq!(made(good, 6), Some(RingError::Length { len_descs: 6 }));
        let null = Addresses { producer: std::ptr::null_mut(), ..good };
        assert_eq!(made(null, LEN), Some(RingError::Address));
        let odd = Addresses { consumer: good.consumer.wrapping_byte_add(1), ..good };
        assert_eq!(made(odd, LEN), Some(RingError::Address));
        let odd = Addresses { slots: good.slots.wrapping_byte_add(4), ..good };
        assert_eq!(made(odd, LEN), Some(RingError::Address));
        assert_eq!(made(good, LEN), None);
    }
}
