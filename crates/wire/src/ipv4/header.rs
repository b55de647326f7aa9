//! The header of an IPv4 packet, and the division of a packet into header, options and payload.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::{Malformed, Protocol, checksum, head};

/// The 20 bytes with which every IPv4 header starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    ident: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    check: U16,
    src: U32,
    dst: U32,
}

/// Flag that forbids routers to fragment the packet; the next constant is the flag of all fragments
/// of a datagram but the last.
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

const _: () = assert!(size_of::<Ipv4Header>() == 20);

impl Ipv4Header {
    /// Returns the sender's address.
    #[must_use]
    pub fn src(&self) -> Ipv4Addr {
        self.src.get().into()
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn dst(&self) -> Ipv4Addr {
        self.dst.get().into()
    }

    /// Returns the differentiated services code point, 0 to 63.
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// Returns the explicit congestion notification, 0 to 3.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        self.tos & 3
    }

    /// Returns the number of hops left.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Returns the protocol of the payload.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.protocol)
    }

    /// Returns the length of the packet in bytes, header included, as the header says it: 0 in a
    /// TCP superframe above 64 KiB.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.total_len.get().into()
    }

    /// Returns the identification that fragments of one datagram share.
    #[must_use]
    pub fn ident(&self) -> u16 {
        self.ident.get()
    }

    /// Returns true for a fragment of a datagram: the first, a middle one or the last.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset.get() & 0x3fff != 0
    }

    /// Returns true if routers must not fragment the packet.
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & DONT_FRAGMENT != 0
    }

    /// Returns true if further fragments of the datagram follow this one.
    #[must_use]
    pub fn more_fragments(&self) -> bool {
        self.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Returns the payload's offset in the datagram. Only a packet with offset 0 has a transport
    /// header.
    #[must_use]
    pub fn fragment_offset_bytes(&self) -> usize {
        usize::from(self.flags_offset.get() & 0x1fff) * 8
    }

    /// Returns true if a total length of 0 means "all bytes present", as in a TCP superframe that
    /// is too long for the field.
    ///
    /// Source: Linux include/linux/ip.h, iph_set_totlen and iph_totlen (since 6.3).
    fn is_big_tcp(&self, rest_len: usize, behind: usize) -> bool {
        let len = behind.checked_add(rest_len + size_of::<Ipv4Header>());
        behind > 0
            && self.protocol() == Protocol::TCP
            && len.is_some_and(|len| len > usize::from(u16::MAX))
    }

    pub(crate) fn swap(&mut self) {
        std::mem::swap(&mut self.src, &mut self.dst);
    }

    /// Changes the sender's address and the header checksum; returns the old address.
    pub(crate) fn set_src(&mut self, addr: Ipv4Addr) -> u32 {
        let old = std::mem::replace(&mut self.src, addr.to_bits().into()).get();
        self.check.set(checksum::update32(self.check.get(), old, addr.to_bits()));
        old
    }

    /// Changes the receiver's address and the header checksum; returns the old address.
    pub(crate) fn set_dst(&mut self, addr: Ipv4Addr) -> u32 {
        let old = std::mem::replace(&mut self.dst, addr.to_bits().into()).get();
        self.check.set(checksum::update32(self.check.get(), old, addr.to_bits()));
        old
    }

    pub(crate) fn set_tos(&mut self, tos: u8) {
        let old = self.tos_word();
        self.tos = tos;
        self.update_check(old, self.tos_word());
    }

    pub(crate) fn set_ttl(&mut self, ttl: u8) {
        let old = self.ttl_word();
        self.ttl = ttl;
        self.update_check(old, self.ttl_word());
    }

    /// Changes the total length and the header checksum.
    pub(crate) fn set_total_len(&mut self, len: u16) {
        let old = std::mem::replace(&mut self.total_len, len.into());
        self.update_check(old.get(), len);
    }

    /// Returns the header of a packet of `payload` bytes without options, with "don't fragment", 64
    /// hops and a right checksum.
    pub(crate) fn new(
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
        ecn: u8,
        payload: u16,
    ) -> Ipv4Header {
        let mut header = Ipv4Header {
            version_ihl: 0x45,
            tos: ecn & 3,
            total_len: (payload + 20).into(),
            ident: 0.into(),
            flags_offset: DONT_FRAGMENT.into(),
            ttl: 64,
            protocol: protocol.0,
            check: 0.into(),
            src: src.to_bits().into(),
            dst: dst.to_bits().into(),
        };
        header.check.set(checksum::finish(checksum::sum(header.as_bytes())));
        header
    }

    /// Returns the offset of the transport checksum in the payload, if there is one that covers the
    /// addresses.
    pub(super) fn check_at(&self) -> Option<usize> {
        match (self.fragment_offset_bytes(), self.protocol()) {
            (0, Protocol::UDP) => Some(6),
            (0, Protocol::TCP) => Some(16),
            _ => None, // another protocol, or no transport header in this fragment
        }
    }

    fn tos_word(&self) -> u16 {
        u16::from_be_bytes([self.version_ihl, self.tos])
    }

    fn ttl_word(&self) -> u16 {
        u16::from_be_bytes([self.ttl, self.protocol])
    }

    fn update_check(&mut self, old: u16, new: u16) {
        self.check.set(checksum::update16(self.check.get(), old, new));
    }
}

/// A packet divided into its parts, which borrow shared or exclusive bytes.
pub(crate) struct Parts<B> {
    pub header: Ref<B, Ipv4Header>,
    pub options: B,
    pub payload: B,
    pub behind: usize,
}

pub(crate) fn split<B: SplitByteSlice>(packet: B, behind: usize) -> Result<Parts<B>, Malformed> {
    let (header, rest) = Ref::<B, Ipv4Header>::from_prefix(packet).map_err(|_| Malformed::Short)?;
    if header.version_ihl >> 4 != 4 {
        return Err(Malformed::BadVersion);
    }
    let bad = Malformed::BadLength;
    let options_len = usize::from(header.version_ihl & 15) * 4;
    let options_len = options_len.checked_sub(size_of::<Ipv4Header>()).ok_or(bad)?;
    let rest_len = match usize::from(header.total_len.get()) {
        0 if header.is_big_tcp(rest.len(), behind) => rest.len() + behind,
        total_len => total_len.checked_sub(size_of::<Ipv4Header>()).ok_or(bad)?,
    };
    if options_len > rest_len {
        return Err(bad);
    }
    let (rest, behind) = head::front(rest, rest_len, behind)?;
    let (options, payload) = rest.split_at(options_len).map_err(|_| Malformed::Short)?;
    Ok(Parts { header, options, payload, behind })
}
