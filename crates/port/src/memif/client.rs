//! A queue of the client, which owns the memory: it posts packets, and empty buffers that the
//! server fills.
//!
//! ```text
//!   zero copy   packet ── its frames' places in descriptors ──► ring ──► peer ──► tail: freed as sent
//!               free frame ── lent ──► ring ──► peer fills it ──► tail: a packet, the same frame
//!   by copies   packet ── copied ──► the slot's buffer ──► ring      and back; a buffer a slot
//! ```
//!
//! Which frame is at which slot is in tables of ours: what stands in a descriptor that we wrote is
//! never read back. Of a buffer that was filled, the length and the flags are read once.

use std::sync::Arc;

use linerate_sys::peer::PeerMemory;

/// Number of the region that contains the pool. Region 0 contains the rings and buffers.
pub(super) const POOL: u16 = 1;
/// Most descriptors of one packet: the longest packet in frames of the usual size needs fewer.
pub(super) const DESCS_MAX: usize = 64;

/// Buffers in the region of the rings, one for each slot.
pub(super) struct Slots {
    pub memory: Arc<PeerMemory>,
    /// Offset of the first buffer's first byte.
    pub offset: usize,
    pub buffer_bytes: u32,
}

impl Slots {
    /// Returns the offset of a slot's buffer.
    pub fn at(&self, slot: usize) -> usize {
        self.offset + slot * self.buffer_bytes as usize
    }
}
