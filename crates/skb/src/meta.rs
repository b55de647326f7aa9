//! The hot lane: one cache line of metadata for each frame, stored separately from the frames.
//!
//! It is apart because a peer that maps the frames must not be able to write it, and because frames
//! 2 KiB apart share two of the 64 sets of an L1 cache (docs/adr/0001).
//!
//! Owner: the owner of the frame's handle. The whole line is written when the frame is allocated
//! (or was when it was freed, see [`Init`](crate::Init)), so nothing of its former life is left;
//! freeing an unflagged frame does not read it. What is rarely known of a packet lies in the
//! [cold lanes](crate::lanes), and `lanes` says which of them hold something.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Bytes of a packet's control block.
pub(crate) const CB_BYTES: usize = 24;

/// The class of a frame's link-layer destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PacketType {
    /// Addressed to this host (the default, as in post 004's `PACKET_HOST`).
    #[default]
    Host,
    /// Addressed to everyone.
    Broadcast,
    /// Addressed to a group.
    Multicast,
    /// Addressed to another host; received because the device is promiscuous.
    OtherHost,
}

/// The hot line of a frame.
#[repr(C, align(64))]
pub(crate) struct Meta {
    /// Offset of the first data byte from the start of the frame.
    pub off: u32,
    /// Bytes of data in this frame.
    pub len: u32,
    /// Bytes in the fragments behind this frame (head of a chain only).
    pub data_len: u32,
    /// Handle of the next fragment, 0 = none.
    pub next: u32,
    /// Handle of the last fragment, 0 = none (head of a chain only).
    pub last: u32,
    /// Number of handles on this frame.
    pub refs: AtomicU32,
    /// The packet's priority, for a qdisc.
    pub priority: u32,
    /// Number of fragments behind this frame.
    pub frags: u16,
    /// The cold lanes that are in use, one bit for each.
    pub lanes: u16,
    /// The class of the packet's link-layer destination.
    pub packet_type: PacketType,
    /// Not 0 if a queue has refused the packet since it was allocated. It tells the packet from later
    /// ones in its frame.
    pub refused: AtomicU8,
    /// The link type of the packet's first header, less Ethernet's number: 0, except for packets of
    /// captures with another link type.
    pub link: u16,
    /// Number of bytes that the capture cut off the packet's end.
    pub snapped_bytes: u32,
    /// The control block, in which the packet's owner may keep notes.
    pub cb: [u8; CB_BYTES],
}

const _: () = assert!(size_of::<Meta>() == 64);

impl Meta {
    /// Returns the line of a new, empty packet whose data starts at `headroom`.
    pub const fn new(headroom: u32) -> Meta {
        Meta {
            off: headroom,
            len: 0,
            data_len: 0,
            next: 0,
            last: 0,
            refs: AtomicU32::new(1),
            priority: 0,
            frags: 0,
            lanes: 0,
            packet_type: PacketType::Host,
            refused: AtomicU8::new(0),
            link: 0,
            snapped_bytes: 0,
            cb: [0; CB_BYTES],
        }
    }

    /// Returns the line as plain words, for copying.
    pub const fn words(self) -> [u64; 8] {
        // SAFETY: a line has 64 bytes, all of them in integer fields, and every bit pattern is a
        // valid array of u64.
        unsafe { std::mem::transmute(self) }
    }

    /// Sets the fields that depend on the allocation (data pointers, lengths, count) in a line that
    /// was initialised when its frame was freed, as `alloc_skb` did before post 004.
    #[inline]
    pub fn begin(&mut self, headroom: u32) {
        self.off = headroom;
        (self.len, self.data_len) = (0, 0);
        self.refs.store(1, Ordering::Relaxed);
    }
}
