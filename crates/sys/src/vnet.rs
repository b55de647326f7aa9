//! The offload header that precedes a frame between the kernel and its users.
//!
//! It says what is still to be done to the frame: fill in a checksum, cut a superframe into
//! segments. AF_PACKET (`PACKET_VNET_HDR`) and TAP (`IFF_VNET_HDR`) use the same ten bytes:
//!
//! ```text
//! 0      1         2         4          6            8              10
//! | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset |  frame ...
//! ```
//!
//! Numbers are in the machine's byte order, which both facilities default to.
//!
//! Source: include/uapi/linux/virtio_net.h `virtio_net_hdr`; virtio 1.2, section 5.1.6.

/// Bytes of the header.
pub const VNET_HDR_BYTES: usize = 10;

/// `flags`: the checksum field has only the pseudo-header sum; see `csum_start`.
pub const F_NEEDS_CSUM: u8 = 1;

/// `gso_type`: an ordinary frame.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4, to be cut into segments of `gso_size` bytes.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: a UDP datagram to be cut into IP fragments (not produced by any current kernel).
pub const GSO_UFO: u8 = 3;
/// `gso_type`: TCP over IPv6, to be cut into segments of `gso_size` bytes.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP over IPv4 or IPv6, to be cut into datagrams of `gso_size` bytes.
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`, or-ed to a TCP type: only the first segment carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// The offload of the frame that follows.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHdr {
    /// `F_*` bits.
    pub flags: u8,
    /// One of `GSO_*`.
    pub gso_type: u8,
    /// Bytes of all headers, a hint; meaningful for superframes.
    pub hdr_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Offset of the first byte to sum from the start of the frame; valid with [`F_NEEDS_CSUM`].
    pub csum_start: u16,
    /// Offset of the checksum from `csum_start`.
    pub csum_offset: u16,
}

const _: () = assert!(size_of::<VnetHdr>() == VNET_HDR_BYTES);
const _: () = assert!(align_of::<VnetHdr>() == 2);

impl VnetHdr {
    /// The header of an ordinary, complete frame.
    pub const NONE: VnetHdr = VnetHdr {
        flags: 0,
        gso_type: GSO_NONE,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
    };

    /// Returns the header in the layout that the kernel reads.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; VNET_HDR_BYTES] {
        let hdr_len = self.hdr_len.to_ne_bytes();
        let gso_size = self.gso_size.to_ne_bytes();
        let start = self.csum_start.to_ne_bytes();
        let offset = self.csum_offset.to_ne_bytes();
        [
            self.flags,
            self.gso_type,
            hdr_len[0],
            hdr_len[1],
            gso_size[0],
            gso_size[1],
            start[0],
            start[1],
            offset[0],
            offset[1],
        ]
    }

    /// Parses a header in the layout that the kernel writes. Its values are not checked: check them
    /// against the frame.
    #[must_use]
    pub const fn from_bytes(b: [u8; VNET_HDR_BYTES]) -> Self {
        VnetHdr {
            flags: b[0],
            gso_type: b[1],
            hdr_len: u16::from_ne_bytes([b[2], b[3]]),
            gso_size: u16::from_ne_bytes([b[4], b[5]]),
            csum_start: u16::from_ne_bytes([b[6], b[7]]),
            csum_offset: u16::from_ne_bytes([b[8], b[9]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_form() {
        let h = VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        assert_eq!(VnetHdr::from_bytes(h.to_bytes()), h);
    }

    #[test]
    fn fields_lie_where_the_kernel_header_puts_them() {
        let h = VnetHdr { gso_size: 0x0102, csum_offset: 0x0304, ..VnetHdr::NONE };
        assert_eq!(h.to_bytes()[4..6], 0x0102_u16.to_ne_bytes());
        assert_eq!(h.to_bytes()[8..10], 0x0304_u16.to_ne_bytes());
        assert_eq!(VnetHdr::NONE.to_bytes(), [0; VNET_HDR_BYTES]);
    }
}
