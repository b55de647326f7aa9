//! A ring in memory that a peer also writes: its layout, the meaning of its indices, and the checks
//! on them.
//!
//! ```text
//!   from the client:   tail ───── sent, not read ───── head        client moves head, server tail
//!   to the client:     tail ─── empty, to be filled ── head        client moves head, server tail
//!
//!   region   cookie flags head │ (line)  tail │ (line)  descriptor 0, 1, …      16 bytes each
//! ```
//!
//! Indices run through all of 16 bits and wrap. Each side counts its own in memory of its own; the
//! shared copy is written and never read back, so a peer that overwrites it harms only itself. The
//! peer's is read once a call, and must have moved forward and no further than it can.
//!
//! Source: memif protocol 2.0; docs/adr/0012 for the order of accesses.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use linerate_sys::peer::PeerMemory;

/// Value of a ring's first four bytes, by which a peer recognises a ring.
pub const COOKIE: u32 = 0x03e3_1f20;
/// Bytes of a ring's header, which is before the descriptors.
pub const HEADER_BYTES: usize = 128;
/// Bytes of a descriptor.
pub const DESC_BYTES: usize = 16;
/// Length of the longest ring, as a power of two.
pub const POWER_MAX: u8 = 14;
/// Largest size of a region: a descriptor's offset reaches no further.
pub const REGION_BYTES_MAX: u64 = 1 << 32;

/// Flag of a ring: the consumer does not want its doorbell rung.
const MASKED: u16 = 1;
/// Flag of a descriptor: the packet continues in the next descriptor.
pub const NEXT: u16 = 1;

// Offsets in the header, counted in 16-bit words.
const COOKIE_AT: usize = 0;
const FLAGS_AT: usize = 2;
const HEAD_AT: usize = 3;
const TAIL_AT: usize = 32;

/// Returns the bytes of a ring of `1 << power` descriptors.
#[must_use]
pub const fn bytes(power: u8) -> usize {
    HEADER_BYTES + (DESC_BYTES << power)
}

/// A part of a packet, as its sender describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Desc {
    pub flags: u16,
    /// The number of the region that contains the bytes.
    pub region: u16,
    pub len: u32,
    /// The first byte in the region.
    pub offset: u32,
}

/// A violation of the protocol by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ProtocolError {
    /// An index that went backwards, or beyond the posted descriptors.
    Index = 1,
    /// A descriptor of memory outside its region.
    Outside,
    /// A length that exceeds the buffer.
    Length,
    /// A chain of descriptors without an end.
    Chain,
    /// A packet of too many bytes or descriptors.
    TooLong,
    /// A buffer that has no bytes, or that only its owner can write.
    Buffer,
}

impl ProtocolError {
    pub const ALL: [ProtocolError; 6] = [
        ProtocolError::Index,
        ProtocolError::Outside,
        ProtocolError::Length,
        ProtocolError::Chain,
        ProtocolError::TooLong,
        ProtocolError::Buffer,
    ];

    /// Returns the violation as text, for the peer and for the health of the port.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ProtocolError::Index => "a ring's index went backwards or too far",
            ProtocolError::Outside => "a descriptor outside its region",
            ProtocolError::Length => "a length beyond the buffer",
            ProtocolError::Chain => "a packet without an end",
            ProtocolError::TooLong => "a packet that is too long, or in too many parts",
            ProtocolError::Buffer => "a buffer of no bytes, or in memory that is read-only",
        }
    }
}

/// A value that was computed from the peer's data and checked.
pub type Checked<T> = Result<T, ProtocolError>;

/// The shared part of a ring.
pub struct Shared {
    header: NonNull<[AtomicU16]>,
    descs: NonNull<[AtomicU64]>,
    mask: u16,
    /// Reference that keeps the mapping alive.
    _memory: Arc<PeerMemory>,
}

// SAFETY: the pointers are to atomics, which any thread can use, in a mapping that `_memory` keeps
// alive.
unsafe impl Send for Shared {}

impl Shared {
    /// Creates the ring of `1 << power` descriptors at `offset`; returns `None` if it is outside
    /// the memory, not aligned, or too long.
    #[must_use]
    pub fn new(memory: &Arc<PeerMemory>, offset: usize, power: u8) -> Option<Shared> {
        if power > POWER_MAX || !offset.is_multiple_of(DESC_BYTES) {
            return None;
        }
        let header = memory.half_words(offset, HEADER_BYTES / 2)?;
        let descs = memory.double_words(offset.checked_add(HEADER_BYTES)?, 2 << power)?;
        let mask = (1 << power) - 1;
        let (header, descs) = (NonNull::from(header), NonNull::from(descs));
        Some(Shared { header, descs, mask, _memory: memory.clone() })
    }

    /// Initialises a ring in zeroed memory.
    pub fn initialise(&self) {
        let cookie = COOKIE.to_ne_bytes();
        self.half(COOKIE_AT).store(u16::from_ne_bytes([cookie[0], cookie[1]]), Ordering::Relaxed);
        self.half(COOKIE_AT + 1)
            .store(u16::from_ne_bytes([cookie[2], cookie[3]]), Ordering::Release);
    }

    /// Returns true if the client has initialised a ring at this place.
    #[must_use]
    pub fn is_one(&self) -> bool {
        let [a, b] = [COOKIE_AT, COOKIE_AT + 1].map(|at| self.half(at).load(Ordering::Relaxed));
        let ([a, b], [c, d]) = (a.to_ne_bytes(), b.to_ne_bytes());
        u32::from_ne_bytes([a, b, c, d]) == COOKIE
    }

    /// Returns the number of descriptors in the ring.
    #[must_use]
    pub fn len(&self) -> u16 {
        self.mask + 1
    }

    #[inline]
    fn half(&self, at: usize) -> &AtomicU16 {
        // SAFETY: the slice lies in the mapping, which `_memory` keeps alive, and consists of
        // atomics. The peer may write it at any time, also by a buffer that it has placed over the
        // ring and that is copied into here: each value that is read is checked. `at` is checked by
        // the index operation.
        unsafe { &self.header.as_ref()[at] }
    }

    #[inline]
    fn double(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the slice lies in the mapping and consists of atomics, as in `half`; `at` is
        // checked by the index operation.
        unsafe { &self.descs.as_ref()[at] }
    }

    /// Reads a slot's descriptor only once, so that the peer cannot change the values between check
    /// and use.
    #[inline]
    #[must_use]
    pub fn desc(&self, slot: u16) -> Desc {
        let at = 2 * usize::from(slot & self.mask);
        let [a, b] = [at, at + 1].map(|at| self.double(at).load(Ordering::Relaxed).to_ne_bytes());
        let [f0, f1, r0, r1, l0, l1, l2, l3] = a;
        let [o0, o1, o2, o3, ..] = b;
        Desc {
            flags: u16::from_ne_bytes([f0, f1]),
            region: u16::from_ne_bytes([r0, r1]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }

    /// Writes a slot's descriptor.
    #[inline]
    pub fn set(&self, slot: u16, desc: Desc) {
        self.set_filled(slot, desc);
        let [a, b, c, d] = desc.offset.to_ne_bytes();
        let offset = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        self.double(2 * usize::from(slot & self.mask) + 1).store(offset, Ordering::Relaxed);
    }

    /// Writes a slot's descriptor except its offset, which some clients keep for the next round.
    #[inline]
    pub fn set_filled(&self, slot: u16, desc: Desc) {
        let ([f0, f1], [r0, r1]) = (desc.flags.to_ne_bytes(), desc.region.to_ne_bytes());
        let [l0, l1, l2, l3] = desc.len.to_ne_bytes();
        let word = u64::from_ne_bytes([f0, f1, r0, r1, l0, l1, l2, l3]);
        self.double(2 * usize::from(slot & self.mask)).store(word, Ordering::Relaxed);
    }

    /// Removes the flag of a chain from a slot's descriptor, before the slot is given back. Some
    /// clients (DPDK's driver) set the flag and never clear it, so that the next packet in the slot
    /// would have it.
    #[cold]
    pub fn unchain(&self, slot: u16) {
        let desc = self.desc(slot);
        self.set_filled(slot, Desc { flags: desc.flags & !NEXT, ..desc });
    }

    /// Sets whether the peer should ring the doorbell. After setting `true` the caller checks the
    /// ring once more, because the peer may have published packets just before without ringing.
    pub fn want_bell(&self, wanted: bool) {
        self.half(FLAGS_AT).store(if wanted { 0 } else { MASKED }, Ordering::Relaxed);
        if wanted {
            fence(Ordering::SeqCst);
        }
    }

    /// Returns true if the peer wants its doorbell rung for the descriptors that were just
    /// published.
    #[inline]
    #[must_use]
    pub fn rings(&self) -> bool {
        fence(Ordering::SeqCst);
        self.half(FLAGS_AT).load(Ordering::Relaxed) & MASKED == 0
    }
}

/// The client's side of a ring, in either direction: it posts descriptors and takes them back.
pub struct ClientRing {
    pub shared: Shared,
    /// The index of the next descriptor to post.
    head: u16,
    /// The index of the oldest descriptor that has not been taken back.
    done: u16,
    /// The server's index at its last reading.
    seen: u16,
}

impl ClientRing {
    /// Returns the client's side of a newly initialised ring.
    #[must_use]
    pub fn new(shared: Shared) -> ClientRing {
        ClientRing { shared, head: 0, done: 0, seen: 0 }
    }

    /// Returns the number of slots in which no descriptor is posted.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u16 {
        self.shared.len() - self.posted()
    }

    /// Returns the number of posted slots that have not been taken back.
    #[inline]
    #[must_use]
    pub fn posted(&self) -> u16 {
        self.head.wrapping_sub(self.done)
    }

    /// Returns the slot of the `i`-th free descriptor.
    #[inline]
    #[must_use]
    pub fn free_slot(&self, i: u16) -> usize {
        usize::from(self.head.wrapping_add(i) & self.shared.mask)
    }

    /// Posts the next `n` free slots, whose descriptors the caller has written.
    #[inline]
    pub fn post(&mut self, n: u16) {
        debug_assert!(n <= self.free());
        self.head = self.head.wrapping_add(n);
        self.shared.half(HEAD_AT).store(self.head, Ordering::Release);
    }

    /// Returns the number of descriptors that the server has processed and that the client has not
    /// taken back.
    ///
    /// # Errors
    /// If its index is impossible.
    #[inline]
    pub fn poll(&mut self) -> Checked<u16> {
        let tail = self.shared.half(TAIL_AT).load(Ordering::Acquire);
        if tail.wrapping_sub(self.seen) > self.head.wrapping_sub(self.seen) {
            return Err(ProtocolError::Index);
        }
        self.seen = tail;
        Ok(tail.wrapping_sub(self.done))
    }

    /// Returns the slot of the `i`-th descriptor that the server has processed.
    #[inline]
    #[must_use]
    pub fn done_slot(&self, i: u16) -> usize {
        usize::from(self.done.wrapping_add(i) & self.shared.mask)
    }

    /// Takes back the oldest `n` descriptors.
    #[inline]
    pub fn take_back(&mut self, n: u16) {
        debug_assert!(n <= self.posted());
        self.done = self.done.wrapping_add(n);
    }
}

/// The server's side of a ring, in either direction: it processes the descriptors that the client
/// has posted.
pub struct ServerRing {
    pub shared: Shared,
    /// The index of the oldest descriptor that has not been given back.
    tail: u16,
    /// The client's index at its last reading.
    seen: u16,
}

impl ServerRing {
    /// Returns the server's side of an unused ring.
    #[must_use]
    pub fn new(shared: Shared) -> ServerRing {
        ServerRing { shared, tail: 0, seen: 0 }
    }

    /// Returns the number of descriptors that the client has posted and that have not been given
    /// back.
    ///
    /// # Errors
    /// If its index is impossible.
    #[inline]
    pub fn poll(&mut self) -> Checked<u16> {
        let head = self.shared.half(HEAD_AT).load(Ordering::Acquire);
        let posted = head.wrapping_sub(self.tail);
        if posted > self.shared.len() || posted < self.seen.wrapping_sub(self.tail) {
            return Err(ProtocolError::Index);
        }
        self.seen = head;
        Ok(posted)
    }

    /// Returns the number of posted descriptors at the last [`poll`](ServerRing::poll).
    #[inline]
    #[must_use]
    pub fn known(&self) -> u16 {
        self.seen.wrapping_sub(self.tail)
    }

    /// Returns the index of the `i`-th posted descriptor.
    #[inline]
    #[must_use]
    pub fn at(&self, i: u16) -> u16 {
        self.tail.wrapping_add(i)
    }

    /// Gives the oldest `n` descriptors back to the client.
    #[inline]
    pub fn give_back(&mut self, n: u16) {
        debug_assert!(n <= self.seen.wrapping_sub(self.tail));
        self.tail = self.tail.wrapping_add(n);
        self.shared.half(TAIL_AT).store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod tests;
