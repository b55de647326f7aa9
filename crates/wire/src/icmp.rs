//! ICMP over IPv4, and ICMPv6: the common header of their messages, and echo.
//!
//! ```text
//! | type 1 | code 1 | checksum 2 | identifier 2 | sequence number 2 | data
//! ```
//!
//! Messages without identifier and number have other words in their place.
//!
//! Source: RFC 792, RFC 4443 sections 2 and 4.

use std::net::IpAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, Unaligned};

use crate::ip::{self, HeaderMut, REPLY_HOPS};
use crate::partial::{self, Check};
use crate::{
    EthEnds, EtherType, Head, HeadMut, IpRef, Malformed, Protocol, checksum, eth, ipv4, ipv6,
};

/// Returns a view of the ICMP or ICMPv6 message in `frame`.
///
/// Shape:  header and data, without Ethernet padding.
/// Errors: [`Malformed::NotIp`], [`Malformed::NotIcmp`], [`Malformed::Fragment`] for any piece of a
///         message. The checksum is not verified: see [`IcmpRef::checksum_ok`].
/// Cost:   constant but for IPv6 extension headers, at most eight; nothing is copied.
pub fn icmp(frame: &[u8]) -> Result<IcmpRef<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<IcmpRef<'_>, Malformed> {
    let ip = ip::read(head)?;
    let protocol = if matches!(ip, IpRef::V4(_)) { Protocol::ICMP } else { Protocol::ICMPV6 };
    let message = ip.segment(protocol, Malformed::NotIcmp)?;
    let at = partial::offset_in(head.bytes.as_ptr().addr(), message);
    let check = Check::of(head.left, at, CHECK_AT);
    let (header, payload) = Ref::from_prefix(message).map_err(|_| Malformed::Short)?;
    Ok(IcmpRef { ip, header: Ref::into_ref(header), payload, check })
}

/// Returns a view for changing the ICMP or ICMPv6 message in `frame`.
///
/// Shape:  as [`icmp`].
/// Errors: as [`icmp`].
/// Cost:   as [`icmp`].
pub fn icmp_mut(frame: &mut [u8]) -> Result<IcmpMut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<IcmpMut<'_>, Malformed> {
    let frame = head.bytes.as_ptr().addr();
    let eth::Parts { ends, ether_type, payload, .. } = eth::split(head.bytes)?;
    let v4 = ether_type == EtherType::IPV4;
    let protocol = if v4 { Protocol::ICMP } else { Protocol::ICMPV6 };
    let (ip, message, behind) =
        ip::segment_mut(ether_type, payload, head.behind, protocol, Malformed::NotIcmp)?;
    let check = Check::of(head.left, partial::offset_in(frame, message), CHECK_AT);
    let (header, payload) = Ref::from_prefix(message).map_err(|_| Malformed::Short)?;
    let (ends, header) = (Ref::into_mut(ends), Ref::into_mut(header));
    Ok(IcmpMut { ends, ip, header, payload, behind, check })
}

/// An ICMP or ICMPv6 message, read only.
#[derive(Debug, Clone, Copy)]
pub struct IcmpRef<'a> {
    ip: IpRef<'a>,
    header: &'a IcmpHeader,
    payload: &'a [u8],
    check: Check,
}

impl<'a> IcmpRef<'a> {
    /// Returns the IP packet around the message.
    #[must_use]
    pub fn ip(&self) -> IpRef<'a> {
        self.ip
    }

    /// Returns true for an ICMPv6 message, which has other types than those of ICMP over IPv4.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        matches!(self.ip, IpRef::V6(_))
    }

    /// Returns true for an echo request.
    #[must_use]
    pub fn is_echo_request(&self) -> bool {
        self.header.is_echo_request(self.is_v6())
    }

    /// Returns the data after the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the number of payload bytes that follow outside the slice: 0 unless the view is a
    /// [`crate::Head`]'s.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.ip.behind()
    }

    /// Returns the packet that an ICMP error quotes, which the receiver of the error has sent:
    /// `src`, `dst` and `protocol` tell its flow, with [`IpRef::ports`].
    ///
    /// Shape:  the quote ends early as a rule: `payload()` is what it has of the payload, and
    ///         `behind()` is at least as much as is missing.
    /// Errors: [`Malformed::NotIcmpError`] for another message; those of [`crate::ip()`], without
    ///         the check of the total length.
    /// Cost:   constant but for IPv6 extension headers, at most eight.
    pub fn quoted(&self) -> Result<IpRef<'a>, Malformed> {
        // More bytes than any packet has are taken for missing.
        let behind = usize::from(u16::MAX);
        match self.ip {
            IpRef::V4(_) if matches!(self.icmp_type(), 3 | 4 | 5 | 11 | 12) => {
                Ok(IpRef::V4(ipv4::split(self.quote(), behind)?.into()))
            }
            IpRef::V6(_) if self.icmp_type() < 128 => {
                Ok(IpRef::V6(ipv6::split(self.quote(), behind)?.into()))
            }
            _ => Err(Malformed::NotIcmpError),
        }
    }

    /// Returns the quoted bytes of an error: the payload without extensions after them.
    ///
    /// Source: RFC 4884 section 4.
    fn quote(&self) -> &'a [u8] {
        let [v6_words, v4_words] = self.ident().to_be_bytes().map(usize::from);
        let bytes = match (self.is_v6(), self.icmp_type()) {
            (false, 3 | 11 | 12) => 4 * v4_words,
            (true, 1 | 3) => 8 * v6_words,
            _ => 0,
        };
        self.payload.get(..bytes).filter(|quote| !quote.is_empty()).unwrap_or(self.payload)
    }

    /// Returns true if the checksum is right, as [`crate::UdpRef::checksum_ok`] does; ICMP always
    /// has a checksum.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let message = self.ip.payload();
        let pseudo = match self.ip {
            IpRef::V4(_) => 0,
            IpRef::V6(_) => self.ip.pseudo(Protocol::ICMPV6, message.len() + self.behind()),
        };
        if self.check == Check::Pseudo {
            return self.header.check.get() == pseudo;
        }
        let sum = self.check.sum(&[], message, self.behind());
        sum.is_some_and(|sum| checksum::add(sum, pseudo) == 0xffff)
    }
}

/// An ICMP or ICMPv6 message, to be changed in place.
#[derive(Debug)]
pub struct IcmpMut<'a> {
    pub(crate) ends: &'a mut EthEnds,
    pub(crate) ip: HeaderMut<'a>,
    header: &'a mut IcmpHeader,
    payload: &'a mut [u8],
    behind: usize,
    check: Check,
}

impl IcmpMut<'_> {
    /// Turns an echo request into its reply: swaps MAC and IP addresses, sets the type and 64 hops,
    /// and updates the checksums.
    ///
    /// Shape:  what was sent to a group ([`crate::Mac::is_multicast`]) would come from it; whether
    ///         to answer such a request is for the caller to decide before.
    /// Errors: [`Malformed::NotRequest`], and nothing changed.
    /// Cost:   constant, whatever the payload.
    pub fn reply(&mut self) -> Result<(), Malformed> {
        if !self.is_echo_request() {
            return Err(Malformed::NotRequest);
        }
        self.set_icmp_type(if self.is_v6() { ECHO_REPLY_V6 } else { ECHO_REPLY_V4 });
        self.swap_ends();
        self.ip.set_hops(REPLY_HOPS);
        Ok(())
    }

    /// Swaps the MAC addresses and the IP addresses, as [`crate::UdpMut::swap_ends`] does.
    pub fn swap_ends(&mut self) {
        self.ends.swap();
        self.ip.swap();
    }

    /// Sets the type of the message, and keeps the checksum right.
    ///
    /// Cost: constant, whatever the payload.
    pub fn set_icmp_type(&mut self, icmp_type: u8) {
        let kind = [icmp_type, self.header.kind[1]];
        let old = std::mem::replace(&mut self.header.kind, kind);
        self.renumber(u16::from_be_bytes(old), u16::from_be_bytes(kind));
    }

    /// Sets the addresses `src` and `dst`; the caller fills the checksum.
    pub(crate) fn set_addrs(&mut self, src: IpAddr, dst: IpAddr) -> Result<(), Malformed> {
        let field = &mut self.header.check;
        self.ip.set_src(src, self.check, field, false)?;
        self.ip.set_dst(dst, self.check, field, false)
    }

    fn renumber(&mut self, old: u16, new: u16) {
        self.check.renumber(&mut self.header.check, false, old, new);
        // The checksum of all zeros is all ones, to which an update does not come. The pseudo
        // header of ICMPv6 is never all zero.
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if is_zero(self.header.as_bytes())
            && !(self.is_v6() || self.check.is_pseudo())
            && is_zero(self.payload)
        {
            self.header.check.set(0xffff);
        }
    }

    /// Returns true for an ICMPv6 message, which has other types than those of ICMP over IPv4.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        matches!(self.ip, HeaderMut::V6(_))
    }

    /// Returns true for an echo request.
    #[must_use]
    pub fn is_echo_request(&self) -> bool {
        self.header.is_echo_request(self.is_v6())
    }

    /// Returns the IP address of the sender.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        self.ip.src()
    }

    /// Returns the IP address of the receiver.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.ip.dst()
    }

    /// Recomputes the checksum, as [`crate::UdpMut::fill_checksum`] does.
    ///
    /// Cost: reads the whole payload, unless that is left to a device.
    #[must_use = "a payload that is not all here has no new checksum"]
    pub fn fill_checksum(&mut self) -> bool {
        let len = size_of::<IcmpHeader>() + self.payload.len() + self.behind;
        let pseudo = if self.is_v6() { self.ip.pseudo(Protocol::ICMPV6, len) } else { 0 };
        if self.check == Check::Pseudo {
            self.header.check.set(pseudo);
            return true;
        }
        let held = std::mem::take(&mut self.header.check);
        let sum = self.check.sum(self.header.as_bytes(), self.payload, self.behind);
        let check = sum.map(|sum| checksum::finish(checksum::add(sum, pseudo)));
        self.header.check = check.map_or(held, U16::from);
        check.is_some()
    }
}

setters! {IcmpMut, false:
    /// Sets the identifier of an echo, and keeps the checksum right.
    set_ident ident;
    /// Sets the sequence number of an echo, and keeps the checksum right.
    set_seq seq;
}
behinds!(IcmpMut);
derefs!(IcmpRef, IcmpMut => header IcmpHeader);

/// The eight bytes with which every message starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    /// Type and code.
    kind: [u8; 2],
    check: U16,
    ident: U16,
    seq: U16,
}

const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// Offset of the checksum in the header.
const CHECK_AT: usize = 2;

const _: () = assert!(size_of::<IcmpHeader>() == 8);

impl IcmpHeader {
    /// Returns the type of the message, of ICMP or of ICMPv6.
    #[must_use]
    pub fn icmp_type(&self) -> u8 {
        self.kind[0]
    }

    /// Returns the code, which refines the type.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.kind[1]
    }

    /// Returns the identifier of an echo.
    #[must_use]
    pub fn ident(&self) -> u16 {
        self.ident.get()
    }

    /// Returns the sequence number of an echo.
    #[must_use]
    pub fn seq(&self) -> u16 {
        self.seq.get()
    }

    fn is_echo_request(&self, v6: bool) -> bool {
        self.kind == [if v6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST_V4 }, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fix_ipv4;

    #[test]
    fn an_echo_of_zeros_is_answered_with_a_right_checksum() {
        for payload in [0, 1, 8] {
            let mut frame = vec![2; 12];
            frame.extend([8, 0, 0x45, 0, 0, 28 + payload, 0, 0, 0, 0, 64, 1, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend([ECHO_REQUEST_V4, 0, 0xf7, 0xff, 0, 0, 0, 0]);
            frame.resize(frame.len() + usize::from(payload), 0);
            fix_ipv4(&mut frame);
            assert!(icmp(&frame).unwrap().checksum_ok());
            icmp_mut(&mut frame).unwrap().reply().unwrap();
            assert!(icmp(&frame).unwrap().checksum_ok(), "{frame:?}");
            assert_eq!(frame[36..38], [0xff, 0xff]);
        }
    }
}
