//! A received frame, as both ways to receive lend it.

use crate::vnet::VnetHdr;

/// A VLAN tag that the kernel removed from the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority and VLAN number.
    pub tci: u16,
}

impl Vlan {
    /// Returns the tag of a frame with these `TP_STATUS_*` bits.
    pub(super) fn of(status: u32, tci: u16, tpid: u16) -> Option<Vlan> {
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        Some(Vlan { tpid: if known { tpid } else { libc::ETH_P_8021Q as u16 }, tci })
    }
}

/// A received frame, borrowed from its block or batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxFrame<'a> {
    /// The frame from the destination MAC, without FCS; cut only if it was longer than a block, or
    /// than the frames of a batch.
    pub data: &'a [u8],
    /// Length of the frame on arrival.
    pub len: u32,
    /// The frame's offload; `None` if the socket was opened without offload headers.
    pub vnet: Option<VnetHdr>,
    /// The VLAN tag that was removed.
    pub vlan: Option<Vlan>,
    /// `STATUS_*` bits.
    pub status: u32,
    /// One of `PKTTYPE_*`.
    pub pkttype: u8,
    /// Seconds of the arrival time, by the real-time clock.
    pub sec: u32,
    /// Nanoseconds of the arrival time.
    pub nsec: u32,
}
