//! The cold lanes: fields that few packets have.
//!
//! One more cache line a frame, apart from the hot one. A lane costs nothing until it is used: a
//! bit in the hot line says that it holds something, so no code initialises, reads or copies a lane
//! that was not written. The netfilter and scheduler fields of post 004, which a kernel initialises
//! if it is built with them, are of this kind.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use linerate_sys::vnet;

use crate::page::Page;
use crate::umem::Umem;

/// Bits of the hot line's `lanes`.
pub(crate) mod lane {
    pub const STAMP: u16 = 1;
    pub const MARK: u16 = 2;
    pub const TC_INDEX: u16 = 4;
    pub const HASH: u16 = 8;
    pub const VLAN: u16 = 16;
    pub const OFFLOAD: u16 = 32;
    /// The time of the packet's allocation is set.
    pub const BORN: u16 = 64;
    /// An object to be released when the packet is freed.
    pub const HELD: u16 = 128;
    /// Set if a fragment behind this frame has one of the lanes of `SETTLED`.
    pub const BEHIND: u16 = 256;
    /// Lanes that a free must read; the handle is then flagged.
    pub const SETTLED: u16 = BORN | HELD;
}

/// Work left to the device: a checksum to fill in, a superframe to cut up.
///
/// The fields of virtio's `virtio_net_hdr`, in which Linux hands partial checksums and
/// segmentation over in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// `VIRTIO_NET_HDR_F_*`: [`Offload::NEEDS_CHECKSUM`] and [`Offload::VERIFIED`].
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`; 0 = an ordinary frame.
    pub gso_type: u8,
    /// Bytes of headers before the payload of a superframe: a hint of its sender, which may be as
    /// large as the packet. Views of the headers have the right number.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Offset from the first byte of the frame at which checksumming starts.
    pub csum_start: u16,
    /// Offset from `csum_start` at which the checksum is written.
    pub csum_offset: u16,
}

impl Offload {
    /// The offload of a packet that leaves no work to the device.
    pub const NONE: Offload =
        Offload { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };
    /// The bit of `flags` for a transport checksum that must be completed.
    pub const NEEDS_CHECKSUM: u8 = vnet::F_NEEDS_CSUM;
    /// The bit of `flags` for a received packet whose checksum was verified.
    pub const VERIFIED: u8 = 2;
    /// The `gso_type` of a TCP superframe over IPv4.
    pub const GSO_TCPV4: u8 = vnet::GSO_TCPV4;
    /// The `gso_type` of a TCP superframe over IPv6.
    pub const GSO_TCPV6: u8 = vnet::GSO_TCPV6;

    /// Returns true if the transport checksum is only the pseudo header's and must be completed.
    #[must_use]
    pub const fn needs_checksum(self) -> bool {
        self.flags & Offload::NEEDS_CHECKSUM != 0
    }

    /// Returns true if the packet is a superframe, which a device cuts into several packets.
    #[must_use]
    pub const fn is_gso(self) -> bool {
        self.gso_type != 0
    }

    /// Returns true if the packet cannot be sent as it is: the device has to complete a checksum or
    /// cut a superframe.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.needs_checksum() || self.is_gso()
    }

    /// Returns the offload after `bytes` were added at the packet's start; `None` if an offset no
    /// longer fits its field.
    #[must_use]
    pub fn pushed(mut self, bytes: usize) -> Option<Offload> {
        let bytes = u16::try_from(bytes).ok()?;
        if self.needs_checksum() {
            self.csum_start = self.csum_start.checked_add(bytes)?;
        }
        if self.hdr_len > 0 {
            // A hint: the kernel gives the length of a linear packet, which may be all of 64 KiB.
            self.hdr_len = self.hdr_len.saturating_add(bytes);
        }
        Some(self)
    }

    /// Returns the offload after the packet's first `bytes` were removed.
    ///
    /// A checksum whose header went is dropped from the work; a superframe whose header went cannot
    /// be cut, and is marked as one that every port drops.
    pub(crate) fn pulled(mut self, bytes: usize) -> Offload {
        let bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        let lost = match self.needs_checksum() {
            true => bytes > self.csum_start,
            false => bytes > self.hdr_len,
        };
        match (lost, self.is_gso()) {
            (true, false) => return Offload::NONE,
            (true, true) => return Offload { gso_type: GSO_BROKEN, ..Offload::NONE },
            _ => {}
        }
        self.csum_start = self.csum_start.saturating_sub(bytes);
        self.hdr_len = self.hdr_len.saturating_sub(bytes);
        self
    }

    /// Returns the offload after the packet was cut to `len` bytes.
    ///
    /// A checksum whose field went is dropped from the work; the rest of a superframe is an
    /// ordinary packet if it is no longer than one segment, with a transport header without
    /// options.
    pub(crate) fn trimmed(mut self, len: usize) -> Offload {
        let start = usize::from(self.csum_start);
        if self.needs_checksum() && start + usize::from(self.csum_offset) + 2 > len {
            return Offload::NONE;
        }
        // `hdr_len` is a hint, which may be too large.
        let header = if self.csum_offset == TCP_CHECKSUM_AT { TCP_BYTES } else { UDP_BYTES };
        let is_one = len <= start + header + usize::from(self.gso_size);
        if self.is_gso() && self.needs_checksum() && is_one {
            (self.gso_type, self.gso_size) = (0, 0);
        }
        self.hdr_len = self.hdr_len.min(u16::try_from(len).unwrap_or(u16::MAX));
        self
    }
}

/// Offset of the checksum in a TCP header; the next constants are the shortest headers.
const TCP_CHECKSUM_AT: u16 = 16;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;

/// A number of a superframe kind that virtio does not define: ports and kernels refuse it.
const GSO_BROKEN: u8 = 0x7f;

/// A VLAN tag that is kept in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// Priority, drop eligibility and number, as in the tag.
    pub tci: u16,
    /// EtherType of the tag: 0x8100, or 0x88a8 for a service tag.
    pub protocol: u16,
}

impl Vlan {
    /// Returns the bytes of the tag in a frame, which follow the MAC addresses.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.protocol.to_be_bytes(), self.tci.to_be_bytes());
        [a, b, c, d]
    }
}

/// An object that is called when the packet that holds it is freed, as the kernel's
/// `skb->destructor` is.
///
/// For example a share of a socket's send budget, or a reference to a flow.
pub trait Release: Send + Sync {
    /// Runs once, on the thread that frees the packet, before its memory is returned.
    ///
    /// `truesize_bytes` is the memory that the packet took when it was given this to hold. It must
    /// not block. If it panics, the packet is freed all the same and the panic ends here, after the
    /// program's panic hook: [`CoreStats::release_panics`](crate::CoreStats) counts it.
    fn release(&self, truesize_bytes: usize);
}

/// The cold line of a frame. A field is only valid while its lane's bit is set.
#[repr(C, align(64))]
pub(crate) struct Cold {
    /// Time of the capture, in nanoseconds of the epoch.
    pub stamp_ns: u64,
    /// Time of the allocation, in TSC ticks.
    pub born: u64,
    pub held: MaybeUninit<Arc<dyn Release>>,
    pub offload: Offload,
    pub mark: u32,
    pub hash: u32,
    pub vlan: (u16, u16),
    pub tc_index: u16,
    /// The packet's memory, as passed to `held` when the packet is freed.
    pub charge_bytes: u32,
}

const _: () = assert!(size_of::<Cold>() == 64);

/// Records the lifetime of a frame, and releases what it holds, before the frame is freed; `lived`
/// is true if it was a packet.
///
/// # Safety
/// The caller owns the last handle on the frame, and frees it next.
pub(crate) unsafe fn settle(umem: &'static Umem, handle: u32, page: &Page, lived: bool) {
    // SAFETY: the caller's handle is the last one, so no other handle reads or writes the two
    // lines.
    let (lanes, cold) = unsafe { (umem.meta(handle).as_ref().lanes, umem.cold(handle).as_mut()) };
    if lived && lanes & lane::BORN != 0 {
        page.dwelled(handle, linerate_sys::tsc::ticks().wrapping_sub(cold.born));
    }
    if lanes & lane::HELD != 0 {
        // SAFETY: the lane's bit is set, so `held` was written; the frame is freed next, so `held`
        // is read only once.
        let held = unsafe { cold.held.assume_init_read() };
        let charge = cold.charge_bytes as usize;
        // Catch a panic, because the batch's other frames must still be returned.
        let released = catch_unwind(AssertUnwindSafe(move || held.release(charge)));
        if let Err(payload) = released {
            page.release_panics.add(1);
            // Forget the payload of the panic: its drop could panic, too.
            let _ = ManuallyDrop::new(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPER: Offload = Offload {
        flags: 1,
        gso_type: 1,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
    };
    const PARTIAL: Offload = Offload { gso_type: 0, gso_size: 0, ..SUPER };

    #[test]
    fn offsets_move_with_the_first_byte() {
        let pushed = SUPER.pushed(20).unwrap();
        assert_eq!((pushed.csum_start, pushed.hdr_len), (54, 74));
        assert_eq!(pushed.pulled(20), SUPER);
        assert_eq!(Offload::NONE.pushed(70_000 - 60_000), Some(Offload::NONE));
        assert_eq!(SUPER.pushed(usize::from(u16::MAX)), None);
        assert_eq!(SUPER.pushed(70_000), None);
        let linear = Offload { hdr_len: u16::MAX - 3, ..SUPER };
        assert_eq!(linear.pushed(4).unwrap().hdr_len, u16::MAX);
    }

    #[test]
    fn work_on_a_header_that_went_is_dropped_and_its_superframe_broken() {
        assert_eq!(PARTIAL.pulled(34).csum_start, 0);
        assert_eq!(PARTIAL.pulled(35), Offload::NONE);
        assert_eq!(PARTIAL.pulled(100_000), Offload::NONE);
        let broken = SUPER.pulled(35);
        assert!(broken.is_gso() && !broken.needs_checksum() && broken.gso_type == GSO_BROKEN);
        assert!(broken.pulled(1000).is_gso(), "it stays broken");
        let unsummed = Offload { flags: 0, csum_start: 0, csum_offset: 0, ..SUPER };
        assert_eq!((unsummed.pulled(14).hdr_len, unsummed.pulled(55).gso_type), (40, GSO_BROKEN));
    }

    #[test]
    fn a_trim_keeps_the_work_that_is_left() {
        assert_eq!(SUPER.trimmed(3000), SUPER);
        assert_eq!(SUPER.trimmed(1055), SUPER);
        assert_eq!(SUPER.trimmed(1054), PARTIAL);
        let udp = Offload { gso_type: vnet::GSO_UDP_L4, csum_offset: 6, ..SUPER };
        assert_eq!([1042, 1043].map(|len| udp.trimmed(len).is_gso()), [false, true]);
        assert_eq!(SUPER.trimmed(52), Offload { hdr_len: 52, ..PARTIAL });
        assert_eq!(SUPER.trimmed(51), Offload::NONE);
        assert_eq!(PARTIAL.trimmed(0), Offload::NONE);
    }
}
