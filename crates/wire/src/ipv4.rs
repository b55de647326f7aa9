//! IPv4: a header that is checked once, and changes that update its checksum.
//!
//! Source: RFC 791, RFC 2474 and RFC 3168 (DSCP and ECN), RFC 1624 (incremental update).

mod header;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, IntoBytes, Ref};

use crate::partial::{self, Check};
use crate::{EtherType, Head, HeadMut, Malformed, Protocol, checksum, eth};

pub use header::Ipv4Header;
use header::Parts;
pub(crate) use header::split;

/// Returns a view of the IPv4 packet in `frame`.
///
/// Shape:  header, options and payload; Ethernet padding behind the total length is left out.
/// Errors: [`Malformed::NotIpv4`], or lengths and version that contradict the frame. The header
///         checksum is not verified: see [`Ipv4Ref::checksum_ok`].
/// Cost:   constant; nothing is copied.
pub fn ipv4(frame: &[u8]) -> Result<Ipv4Ref<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<Ipv4Ref<'_>, Malformed> {
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV4 {
        return Err(Malformed::NotIpv4);
    }
    Ok(split(eth.payload, head.behind)?.into())
}

/// Returns a view for changing the IPv4 packet in `frame`.
///
/// Shape:  as [`ipv4`].
/// Errors: as [`ipv4`].
/// Cost:   constant; nothing is copied.
pub fn ipv4_mut(frame: &mut [u8]) -> Result<Ipv4Mut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<Ipv4Mut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth = eth::split(head.bytes)?;
    if eth.ether_type != EtherType::IPV4 {
        return Err(Malformed::NotIpv4);
    }
    let Parts { header, options, payload, behind } = split(eth.payload, head.behind)?;
    let is_routed = !options.is_empty() && source_routed(options) == Ok(true);
    // A change of address also changes the transport checksum, so that checksum must be in this
    // slice.
    let check_at = header.check_at();
    if behind > 0 && check_at.is_some_and(|at| payload.len() < at + 2) {
        return Err(Malformed::Short);
    }
    let check = check_at
        .map_or(Check::Whole, |at| Check::of(head.left, partial::offset_in(frame, payload), at));
    Ok(Ipv4Mut { header: Ref::into_mut(header), payload, behind, check, is_routed })
}

/// An IPv4 packet, read only.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4Ref<'a> {
    header: &'a Ipv4Header,
    options: &'a [u8],
    payload: &'a [u8],
    behind: usize,
}

impl<'a> Ipv4Ref<'a> {
    /// Returns the options, padding of the header included.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns all bytes after the header, up to the total length.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns true if the header checksum is right.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let header = checksum::sum(self.header.as_bytes());
        checksum::add(header, checksum::sum(self.options)) == 0xffff
    }
}

/// An IPv4 packet, to be changed in place.
///
/// Every change updates the header checksum by the difference (RFC 1624): one that was right stays
/// right, one that was wrong stays wrong, so that the damage is still found further on.
#[derive(Debug)]
pub struct Ipv4Mut<'a> {
    header: &'a mut Ipv4Header,
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
    /// True if the packet is under way by a source route: its transport checksum covers the last
    /// address of the route, not the header's.
    is_routed: bool,
}

impl Ipv4Mut<'_> {
    /// Sets the sender's address, and keeps the IP, UDP and TCP checksums right.
    ///
    /// Shape:  a UDP checksum of zero (none) stays zero; of a fragment, only the first has a
    ///         transport header to change; other protocols' checksums are left alone.
    /// Cost:   constant, whatever the payload.
    /// Source: RFC 1624 equation 3; RFC 3022 section 4.1.
    pub fn set_src(&mut self, addr: Ipv4Addr) {
        let old = self.header.set_src(addr);
        self.readdress(old, addr.to_bits());
    }

    /// Sets the receiver's address; otherwise as [`Ipv4Mut::set_src`]. If a packet is still under
    /// way by source route, its transport checksum stays: it covers the last address of the route.
    pub fn set_dst(&mut self, addr: Ipv4Addr) {
        let old = self.header.set_dst(addr);
        if !self.is_routed {
            self.readdress(old, addr.to_bits());
        }
    }

    /// Sets the differentiated services code point to the low six bits of `dscp`; ECN stays.
    pub fn set_dscp(&mut self, dscp: u8) {
        self.header.set_tos(dscp << 2 | self.header.ecn());
    }

    /// Sets the explicit congestion notification to the low two bits of `ecn`; DSCP stays.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.header.set_tos(self.header.dscp() << 2 | ecn & 3);
    }

    /// Sets the time to live.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.header.set_ttl(ttl);
    }

    /// Decrements the time to live. Returns false, and changes nothing, if it is 0 or 1: a router
    /// then drops the packet.
    ///
    /// Source: RFC 1812 section 5.3.1.
    #[must_use = "a packet without hops left must not be forwarded"]
    pub fn dec_ttl(&mut self) -> bool {
        if self.header.ttl() <= 1 {
            return false;
        }
        self.header.set_ttl(self.header.ttl() - 1);
        true
    }

    /// Returns all bytes after the header, up to the total length.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// Returns the payload for writing. The caller updates the checksums in it.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.payload
    }

    /// Updates the transport checksum for a changed address.
    fn readdress(&mut self, old: u32, new: u32) {
        let udp = self.header.protocol() == Protocol::UDP;
        let Some(at) = self.header.check_at() else { return };
        // A first fragment may end before the checksum field; then there is nothing to update.
        let Some(Ok(field)) = self.payload.get_mut(at..at + 2).map(U16::mut_from_bytes) else {
            return;
        };
        self.check.readdress(field, udp, old, new);
    }
}

behinds!(Ipv4Ref, Ipv4Mut);
derefs!(Ipv4Ref, Ipv4Mut => header Ipv4Header);

impl<'a> From<Parts<&'a [u8]>> for Ipv4Ref<'a> {
    fn from(parts: Parts<&'a [u8]>) -> Self {
        let header = Ref::into_ref(parts.header);
        let Parts { options, payload, behind, .. } = parts;
        Ipv4Ref { header, options, payload, behind }
    }
}

/// Returns true if a source route in `options` has hops left.
///
/// Source: RFC 791 section 3.1 (types 131 and 137: length, then a pointer that is past the length
/// once the route is used up).
pub(crate) fn source_routed(mut options: &[u8]) -> Result<bool, Malformed> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    loop {
        options = match *options {
            [] | [END, ..] => return Ok(false),
            [NOP, ref rest @ ..] => rest,
            [LOOSE_ROUTE | STRICT_ROUTE, len, pointer, ..] if pointer <= len => return Ok(true),
            [_, len, ..] if len >= 2 => options.get(len.into()..).ok_or(Malformed::BadLength)?,
            _ => return Err(Malformed::BadLength),
        }
    }
}
