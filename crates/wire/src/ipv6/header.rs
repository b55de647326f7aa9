//! The fixed header of an IPv6 packet, and the division of a packet into header, extension headers
//! and payload.

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use super::chain::{Chain, walk};
use crate::{Malformed, Protocol, head};

/// The 40 bytes with which every IPv6 packet starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    pub(super) version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    pub(super) hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

const _: () = assert!(size_of::<Ipv6Header>() == 40);

impl Ipv6Header {
    /// Returns the sender's address.
    #[must_use]
    pub fn src(&self) -> Ipv6Addr {
        self.src.into()
    }

    /// Returns the receiver's address; for a packet with a source route, the next hop.
    #[must_use]
    pub fn dst(&self) -> Ipv6Addr {
        self.dst.into()
    }

    /// Returns the differentiated services code point, 0 to 63.
    #[must_use]
    pub fn dscp(&self) -> u8 {
        (self.version_class_flow.get() >> 22) as u8 & 0x3f
    }

    /// Returns the explicit congestion notification, 0 to 3.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8 & 3
    }

    /// Returns the flow label, 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0xf_ffff
    }

    /// Returns the number of hops left.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns the number of bytes after this header, extension headers included, as the header
    /// says it.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload_len.get().into()
    }

    pub(crate) fn swap(&mut self) {
        std::mem::swap(&mut self.src, &mut self.dst);
    }

    /// Changes the sender's address; returns the old one.
    pub(crate) fn set_src(&mut self, addr: Ipv6Addr) -> [u8; 16] {
        std::mem::replace(&mut self.src, addr.octets())
    }

    /// Changes the receiver's address; returns the old one.
    pub(crate) fn set_dst(&mut self, addr: Ipv6Addr) -> [u8; 16] {
        std::mem::replace(&mut self.dst, addr.octets())
    }

    pub(crate) fn set_ecn(&mut self, ecn: u8) {
        let word = self.version_class_flow.get() & !(3 << 20);
        self.version_class_flow.set(word | u32::from(ecn & 3) << 20);
    }

    pub(crate) fn set_hop_limit(&mut self, hops: u8) {
        self.hop_limit = hops;
    }

    /// Changes the number of bytes after the header.
    pub(crate) fn set_payload_len(&mut self, len: u16) {
        self.payload_len.set(len);
    }

    /// Returns the header of a packet of `payload` bytes with 64 hops.
    pub(crate) fn new(
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
        ecn: u8,
        payload: u16,
    ) -> Ipv6Header {
        Ipv6Header {
            version_class_flow: (6 << 28 | u32::from(ecn & 3) << 20).into(),
            payload_len: payload.into(),
            next_header: protocol.0,
            hop_limit: 64,
            src: src.octets(),
            dst: dst.octets(),
        }
    }
}

/// A packet divided into its parts, which borrow shared or exclusive bytes.
pub(crate) struct Parts<B> {
    pub header: Ref<B, Ipv6Header>,
    pub chain: Chain,
    pub payload: B,
    pub behind: usize,
}

pub(crate) fn split<B: SplitByteSlice>(packet: B, behind: usize) -> Result<Parts<B>, Malformed> {
    let (header, rest) = Ref::<B, Ipv6Header>::from_prefix(packet).map_err(|_| Malformed::Short)?;
    if header.version_class_flow.get() >> 28 != 6 {
        return Err(Malformed::BadVersion);
    }
    let len = usize::from(header.payload_len.get());
    let (rest, behind) = head::front(rest, len, behind)?;
    // If no bytes follow elsewhere, a header beyond the end is an error of the packet; otherwise
    // the slice is too short.
    let end = if behind == 0 { Malformed::BadLength } else { Malformed::Short };
    let chain = walk(Protocol(header.next_header), &rest, end)?;
    let (_extensions, payload) = rest.split_at(chain.len).map_err(|_| end)?;
    Ok(Parts { header, chain, payload, behind })
}
