//! What is known of a frame, one cache line each, apart from the frames.
//!
//! Apart, because a peer that maps the frames must not be able to write it, and because frames
//! 2 KiB apart share two of the 64 sets of an L1 cache (docs/adr/0001).
//!
//! Owner: whoever owns the frame's handle. The whole line is written when the frame is allocated,
//! so nothing of its former life is left; freeing an unshared frame does not read it.

use std::mem::size_of;
use std::sync::atomic::AtomicU32;

/// Work left to the device: a checksum to fill in, a superframe to cut up.
///
/// The fields of virtio's `virtio_net_hdr`, in which Linux hands partial checksums and
/// segmentation over in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// `VIRTIO_NET_HDR_F_*`: 1 = the checksum must be completed, 2 = it was verified.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`; 0 = an ordinary frame.
    pub gso_type: u8,
    /// Bytes of headers before the payload of a superframe.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where checksumming starts, from the first byte of the frame.
    pub csum_start: u16,
    /// Where the sum goes, from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Nothing is left to the device.
    pub const NONE: Offload =
        Offload { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };

    /// True if the transport checksum is only the pseudo header's and must be completed.
    #[must_use]
    pub const fn needs_checksum(self) -> bool {
        self.flags & 1 != 0
    }

    /// True if the packet is a superframe that stands for several.
    #[must_use]
    pub const fn is_gso(self) -> bool {
        self.gso_type != 0
    }
}

/// To whom the link layer addressed the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PacketType {
    /// To this host (the default, as in post 004's `PACKET_HOST`).
    #[default]
    Host,
    /// To everybody.
    Broadcast,
    /// To a group.
    Multicast,
    /// To another host; seen because the device is promiscuous.
    OtherHost,
}

/// The hot line of a frame.
#[repr(C, align(64))]
pub(crate) struct Meta {
    /// First byte of data, from the start of the frame.
    pub off: u32,
    /// Bytes of data in this frame.
    pub len: u32,
    /// Bytes in the fragments behind this frame (head of a chain only).
    pub data_len: u32,
    /// Handle of the next fragment, 0 = none.
    pub next: u32,
    /// Handle of the last fragment, 0 = none (head of a chain only).
    pub last: u32,
    /// Handles on this frame.
    pub refs: AtomicU32,
    /// Nanoseconds of the epoch at which it was captured, if `stamped`.
    pub stamp_ns: u64,
    /// Left to the device.
    pub offload: Offload,
    /// Fragments behind this frame.
    pub frags: u16,
    /// To whom it was addressed.
    pub packet_type: PacketType,
    /// Whether it has a capture time: a capture may well start at 0.
    pub stamped: bool,
}

const _: () = assert!(size_of::<Meta>() == 64);

impl Meta {
    /// The line of a new, empty frame whose data starts at `headroom`.
    pub fn new(headroom: u32) -> Meta {
        Meta {
            off: headroom,
            len: 0,
            data_len: 0,
            next: 0,
            last: 0,
            refs: AtomicU32::new(1),
            stamp_ns: 0,
            offload: Offload::NONE,
            frags: 0,
            packet_type: PacketType::Host,
            stamped: false,
        }
    }
}
