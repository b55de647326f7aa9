//! Ethernet II: MAC addresses, EtherTypes, and up to two VLAN tags, which the views skip.
//!
//! ```text
//! | dst 6 | src 6 | (TPID 2, TCI 2) x 0..=2 | EtherType 2 | payload
//! ```
//!
//! Source: IEEE 802.3-2022 clause 3, IEEE 802.1Q-2022 clause 9.

use std::fmt;
use std::str::FromStr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::Malformed;

/// Most VLAN tags that are skipped: customer and service. A frame with more tags is not of a known
/// EtherType.
const TAGS_MAX: usize = 2;

/// Returns a view of `frame`, which begins with the MAC addresses.
///
/// Errors: [`Malformed::Short`].
pub fn eth(frame: &[u8]) -> Result<EthRef<'_>, Malformed> {
    let parts = split(frame)?;
    let (ends, tags) = (Ref::into_ref(parts.ends), Ref::into_ref(parts.tags));
    Ok(EthRef { ends, tags, ether_type: parts.ether_type, payload: parts.payload })
}

/// Returns a writable view of `frame`, which begins with the MAC addresses.
///
/// Errors: [`Malformed::Short`].
pub fn eth_mut(frame: &mut [u8]) -> Result<EthMut<'_>, Malformed> {
    let parts = split(frame)?;
    let (ends, tags) = (Ref::into_mut(parts.ends), Ref::into_mut(parts.tags));
    Ok(EthMut { ends, tags, ether_type: parts.ether_type, payload: parts.payload })
}

/// An Ethernet frame, read only.
#[derive(Debug, Clone, Copy)]
pub struct EthRef<'a> {
    ends: &'a EthEnds,
    tags: &'a [VlanTag],
    ether_type: EtherType,
    payload: &'a [u8],
}

impl<'a> EthRef<'a> {
    /// Returns the VLAN tags, outermost first; at most two.
    #[must_use]
    pub fn tags(&self) -> &'a [VlanTag] {
        self.tags
    }

    /// Returns the protocol of the payload, after the tags.
    #[must_use]
    pub fn ether_type(&self) -> EtherType {
        self.ether_type
    }

    /// Returns all bytes after the EtherType that are in the slice, including padding: only the
    /// payload's own length shows where the padding begins. Of a [`crate::Head`]'s packet, more
    /// bytes may follow outside the slice.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An Ethernet frame, to be changed in place.
#[derive(Debug)]
pub struct EthMut<'a> {
    ends: &'a mut EthEnds,
    tags: &'a mut [VlanTag],
    ether_type: EtherType,
    payload: &'a mut [u8],
}

impl EthMut<'_> {
    /// Swaps the MAC addresses of sender and receiver.
    pub fn swap_ends(&mut self) {
        self.ends.swap();
    }

    /// Sets the receiver's MAC address.
    pub fn set_dst(&mut self, mac: Mac) {
        self.ends.dst = mac;
    }

    /// Sets the sender's MAC address.
    pub fn set_src(&mut self, mac: Mac) {
        self.ends.src = mac;
    }

    /// Returns the VLAN tags, outermost first; at most two.
    #[must_use]
    pub fn tags(&self) -> &[VlanTag] {
        self.tags
    }

    /// Returns the VLAN tags for writing, outermost first; at most two.
    #[must_use]
    pub fn tags_mut(&mut self) -> &mut [VlanTag] {
        self.tags
    }

    /// Returns the protocol of the payload, behind the tags.
    #[must_use]
    pub fn ether_type(&self) -> EtherType {
        self.ether_type
    }

    /// Returns all bytes after the EtherType that are in the slice, including padding, for writing;
    /// otherwise as [`EthRef::payload`]. The caller updates the checksums in them.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.payload
    }
}

derefs!(EthRef, EthMut => ends EthEnds);

/// The two MAC addresses with which every frame starts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EthEnds {
    dst: Mac,
    src: Mac,
}

impl EthEnds {
    /// Returns the receiver's MAC address.
    #[must_use]
    pub fn dst(&self) -> Mac {
        self.dst
    }

    /// Returns the sender's MAC address.
    #[must_use]
    pub fn src(&self) -> Mac {
        self.src
    }

    pub(crate) fn swap(&mut self) {
        std::mem::swap(&mut self.dst, &mut self.src);
    }

    /// Sets the old sender as the receiver, and `mac` as the new sender.
    pub(crate) fn turn(&mut self, mac: Mac) {
        self.dst = std::mem::replace(&mut self.src, mac);
    }
}

/// One IEEE 802.1Q tag.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanTag {
    tpid: U16,
    tci: U16,
}

impl VlanTag {
    /// Returns a customer's tag ([`EtherType::VLAN`]) with the low 12 bits of `vid` and the low
    /// three of `pcp`.
    #[must_use]
    pub fn new(vid: u16, pcp: u8) -> VlanTag {
        let mut tag = VlanTag { tpid: EtherType::VLAN.0.into(), tci: 0.into() };
        tag.set_vid(vid);
        tag.set_pcp(pcp);
        tag
    }

    /// Returns the tag of four bytes of a frame: its type, then its TCI.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 4]) -> VlanTag {
        let [tpid, tci] = [[bytes[0], bytes[1]], [bytes[2], bytes[3]]];
        VlanTag { tpid: U16::from_bytes(tpid), tci: U16::from_bytes(tci) }
    }

    /// Returns the tag with the type of a service provider's tag ([`EtherType::QINQ`]).
    #[must_use]
    pub fn service(self) -> VlanTag {
        VlanTag { tpid: EtherType::QINQ.0.into(), ..self }
    }

    /// Sets the VLAN identifier to the low 12 bits of `vid`.
    pub fn set_vid(&mut self, vid: u16) {
        self.tci.set(self.tci.get() & !0xfff | vid & 0xfff);
    }

    /// Sets the priority code point to the low three bits of `pcp`.
    pub fn set_pcp(&mut self, pcp: u8) {
        self.tci.set(self.tci.get() & 0x1fff | u16::from(pcp) << 13);
    }

    /// Returns the VLAN identifier, 0 (priority tag only) to 4095 (reserved).
    #[must_use]
    pub fn vid(&self) -> u16 {
        self.tci.get() & 0xfff
    }

    /// Returns the priority code point, 0 to 7.
    #[must_use]
    pub fn pcp(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }

    /// Returns the tag's type: [`EtherType::VLAN`] or [`EtherType::QINQ`].
    #[must_use]
    pub fn tpid(&self) -> EtherType {
        EtherType(self.tpid.get())
    }
}

/// The type of an Ethernet frame's payload; values below 0x600 are IEEE 802.3 lengths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// A customer VLAN tag (IEEE 802.1Q).
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// The first of the two EtherTypes for local experiments, which [`crate::stamp`] uses.
    pub const EXPERIMENT: EtherType = EtherType(0x88b5);
    /// A service VLAN tag (IEEE 802.1ad).
    pub const QINQ: EtherType = EtherType(0x88a8);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtherType({self})")
    }
}

/// An Ethernet address; prints and parses as `02:00:00:00:00:01`.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Returns true for a group address, such as broadcast. A group address is never a valid
    /// sender.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({self})")
    }
}

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Mac, BadMac> {
        let mut mac = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut mac {
            let pair = pairs.next().filter(|p| p.len() == 2).ok_or(BadMac)?;
            // Check the digits first, because from_str_radix alone would accept "+f".
            if !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(BadMac);
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BadMac)?;
        }
        if pairs.next().is_some() { Err(BadMac) } else { Ok(Mac(mac)) }
    }
}

/// The error for a text that is not an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMac;

impl fmt::Display for BadMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address: want six pairs of hex digits, 02:00:00:00:00:01")
    }
}

impl std::error::Error for BadMac {}

/// A frame divided into its parts, which borrow shared or exclusive bytes.
pub(crate) struct Parts<B> {
    pub ends: Ref<B, EthEnds>,
    pub tags: Ref<B, [VlanTag]>,
    pub ether_type: EtherType,
    pub payload: B,
}

pub(crate) fn split<B: SplitByteSlice>(frame: B) -> Result<Parts<B>, Malformed> {
    let (ends, rest) = Ref::<B, EthEnds>::from_prefix(frame).map_err(|_| Malformed::Short)?;
    let tags = rest.chunks_exact(4).take(TAGS_MAX).take_while(|tag| is_tag(tag)).count();
    let (tags, rest) =
        Ref::<B, [VlanTag]>::from_prefix_with_elems(rest, tags).map_err(|_| Malformed::Short)?;
    let (kind, payload) = Ref::<B, U16>::from_prefix(rest).map_err(|_| Malformed::Short)?;
    Ok(Parts { ends, tags, ether_type: EtherType(kind.get()), payload })
}

fn is_tag(bytes: &[u8]) -> bool {
    matches!(bytes, [0x81, 0x00, ..] | [0x88, 0xa8, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tags: &[[u8; 4]]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(tags.concat());
        frame.extend([0x08, 0x06, 0xaa]);
        frame
    }

    #[test]
    fn tags_are_equal_if_all_their_fields_are() {
        let tag = VlanTag::new(7, 3);
        assert_eq!(tag, VlanTag::new(0x7007, 3));
        assert_ne!(tag, VlanTag::new(7, 4));
        assert_ne!(tag, tag.service());
    }

    #[test]
    fn up_to_two_tags_are_stepped_over() {
        let (service, customer) = ([0x88, 0xa8, 0x60, 0x64], [0x81, 0x00, 0x0f, 0xff]);
        for tags in [&[][..], &[customer], &[service, customer]] {
            let frame = tagged(tags);
            let view = eth(&frame).unwrap();
            assert_eq!(view.tags().len(), tags.len());
            assert_eq!((view.ether_type(), view.payload()), (EtherType::ARP, &[0xaa][..]));
        }
        let frame = tagged(&[service, customer]);
        let outer = eth(&frame).unwrap().tags()[0];
        assert_eq!((outer.vid(), outer.pcp(), outer.tpid()), (100, 3, EtherType::QINQ));
    }

    #[test]
    fn a_third_tag_is_left_as_the_type() {
        let frame = tagged(&[[0x81, 0x00, 0, 1]; 3]);
        assert_eq!(eth(&frame).unwrap().ether_type(), EtherType::VLAN);
    }

    #[test]
    fn the_type_of_old_double_tags_is_no_tag() {
        let frame = tagged(&[[0x91, 0x00, 0, 1]]);
        let view = eth(&frame).unwrap();
        assert_eq!((view.tags().len(), view.ether_type()), (0, EtherType(0x9100)));
    }

    #[test]
    fn drop_eligible_bit_stays_when_vid_or_pcp_is_set() {
        let mut frame = tagged(&[[0x81, 0x00, 0x70, 0x64]]);
        let mut view = eth_mut(&mut frame).unwrap();
        view.tags_mut()[0].set_vid(0xf005);
        view.tags_mut()[0].set_pcp(6);
        assert_eq!(frame[14..16], [0xd0, 0x05]);
        eth_mut(&mut frame).unwrap().tags_mut()[0].set_vid(7);
        assert_eq!(frame[14..16], [0xd0, 0x07]);
    }

    #[test]
    fn every_cut_of_a_tagged_header_is_short() {
        let frame = tagged(&[[0x81, 0x00, 0, 1]; 2]);
        for len in 0..22 {
            // A cut in the middle of a tag leaves its TPID as the type; what matters is that
            // nothing behind the cut is read.
            if let Ok(view) = eth(&frame[..len]) {
                assert!(view.payload().len() < 4, "{len}");
            }
        }
        assert_eq!(eth(&frame[..13]).unwrap_err(), Malformed::Short);
        assert!(eth(&frame[..22]).unwrap().payload().is_empty());
    }

    #[test]
    fn ends_swap_and_can_be_set() {
        let mut frame = tagged(&[]);
        let mut view = eth_mut(&mut frame).unwrap();
        view.swap_ends();
        assert_eq!((view.dst(), view.src()), (Mac([2, 0, 0, 0, 0, 1]), Mac::BROADCAST));
        view.set_src(Mac([2; 6]));
        view.set_dst(Mac([4; 6]));
        assert_eq!(frame[..12], [4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn an_address_parses_as_it_prints() {
        let mac: Mac = "02:00:5e:10:AA:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:aa:ff");
        assert!(Mac::BROADCAST.is_multicast() && !mac.is_multicast());
        for bad in ["", "02", "2:0:0:0:0:1", "02:00:00:00:00:0g", "+2:00:00:00:00:01"] {
            assert_eq!(bad.parse::<Mac>(), Err(BadMac), "{bad}");
        }
        assert!("02:00:00:00:00:01:".parse::<Mac>().is_err());
    }
}
