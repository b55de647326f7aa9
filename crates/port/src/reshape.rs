//! Changes of a packet's length: adds and removes headers, resizes payloads.
//!
//! ```text
//!  frame   [ headroom | data .......... | tailroom ]    a header takes headroom, a payload tailroom
//! ```
//!
//! The bytes are written by `linerate-wire`. A checksum that is left to a device stays left to it.

use std::net::{Ipv4Addr, Ipv6Addr};

use linerate_skb::{DropReason, Offload, Skb, Vlan};
use linerate_sys::vnet::F_NEEDS_CSUM;
use linerate_wire::{
    EtherType, HeadMut, IPV4_BYTES, IPV6_BYTES, Malformed, Protocol, Tunnel, VLAN_BYTES, VlanTag,
};

use crate::host::headers::{self, UDP_CHECK};
use crate::host::offload::{self, TAG_AT};
use crate::view::{Views, head_mut, private};

/// Bytes of an Ethernet header and the longest packet that an IP header's length field can express.
const LONGEST_BYTES: usize = 14 + u16::MAX as usize;
/// Offset of a tunnel's UDP header over IPv6.
const TUNNEL_V6_UDP: u16 = 54;

/// Methods that add and remove headers and change the length of payloads.
///
/// Errors, beside those of [`Views`]: [`DropReason::TOO_LONG`] if the first frame has no room, or the
/// packet would be over 64 KiB; [`DropReason::UNSUPPORTED`] for a superframe that no port could cut
/// then. After an error the packet is as it was, except that SCTP's CRC, if it was left to a device, may be complete.
///
/// A VLAN tag that is kept in the metadata ([`Skb::vlan`]) is the outermost tag. What [`Reshape::push_vlan`],
/// [`Reshape::push_vxlan`] and [`Reshape::push_geneve`] add lies outside of it, so they move it into the bytes first.
/// The headers of [`Reshape::push_ipv4`] and [`Reshape::push_ipv6`] lie inside it, so they leave it in the metadata.
pub trait Reshape {
    /// Adds `tag` as the outermost VLAN tag.
    ///
    /// # Errors
    /// See the trait.
    fn push_vlan(&mut self, tag: VlanTag) -> Result<(), DropReason>;
    /// Removes the outermost VLAN tag, and returns it.
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] without a tag; [`DropReason::UNSUPPORTED`] also for a tag in the metadata that
    /// has another type than 802.1Q's or 802.1ad's; see the trait.
    fn pop_vlan(&mut self) -> Result<VlanTag, DropReason>;
    /// Inserts an IPv4 header between the Ethernet header and its payload. The payload must be an
    /// IPv4 packet for [`Protocol::IPIP`] and an IPv6 packet for [`Protocol::IPV6`]; for other
    /// protocols it can be anything. See [`HeadMut::push_ipv4`].
    ///
    /// # Errors
    /// See the trait.
    fn push_ipv4(
        &mut self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason>;
    /// Inserts an IPv6 header, by the rules of [`Reshape::push_ipv4`].
    ///
    /// # Errors
    /// See the trait.
    fn push_ipv6(
        &mut self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason>;
    /// Removes the outer IP header of a packet that carries an IP packet: [`HeadMut::pop_ip`].
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] without a packet inside; see the trait.
    fn pop_ip(&mut self) -> Result<(), DropReason>;
    /// Puts the frame into a VXLAN tunnel: [`HeadMut::push_vxlan`]. Over IPv6 the outer UDP
    /// checksum is computed, or left to the device if no other checksum is left to it.
    ///
    /// # Errors
    /// See the trait.
    fn push_vxlan(&mut self, tunnel: &Tunnel) -> Result<(), DropReason>;
    /// Puts the frame into a Geneve tunnel, by the rules of [`Reshape::push_vxlan`].
    ///
    /// # Errors
    /// See the trait.
    fn push_geneve(&mut self, tunnel: &Tunnel) -> Result<(), DropReason>;
    /// Sets the length of a UDP datagram's payload, and corrects every length and checksum; new
    /// bytes are zero. See [`HeadMut::set_udp_payload_len`].
    ///
    /// # Errors
    /// See the trait; [`DropReason::UNSUPPORTED`] also for a chain.
    fn set_udp_payload_len(&mut self, bytes: usize) -> Result<(), DropReason>;
}

impl Reshape for Skb {
    fn push_vlan(&mut self, tag: VlanTag) -> Result<(), DropReason> {
        around_tag(self, |skb| {
            prepare(skb, headers::takes_tag)?;
            push(skb, VLAN_BYTES, |head| head.push_vlan(tag))
        })
    }

    fn pop_vlan(&mut self) -> Result<VlanTag, DropReason> {
        if let Some(tag) = self.vlan() {
            return pop_kept(self, tag);
        }
        let tag = head_mut(self)?.pop_vlan()?;
        removed(self.pull(VLAN_BYTES))?;
        Ok(tag)
    }

    fn push_ipv4(
        &mut self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason> {
        prepare(self, |data| takes_ip(protocol, data))?;
        push(self, IPV4_BYTES, |head| head.push_ipv4(src, dst, protocol))
    }

    fn push_ipv6(
        &mut self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason> {
        prepare(self, |data| takes_ip(protocol, data))?;
        push(self, IPV6_BYTES, |head| head.push_ipv6(src, dst, protocol))
    }

    fn pop_ip(&mut self) -> Result<(), DropReason> {
        let bytes = head_mut(self)?.pop_ip()?;
        removed(self.pull(bytes))
    }

    fn push_vxlan(&mut self, tunnel: &Tunnel) -> Result<(), DropReason> {
        around_tag(self, |skb| push_tunnel(skb, tunnel, |head| head.push_vxlan(tunnel)))
    }

    fn push_geneve(&mut self, tunnel: &Tunnel) -> Result<(), DropReason> {
        around_tag(self, |skb| push_tunnel(skb, tunnel, |head| head.push_geneve(tunnel)))
    }

    fn set_udp_payload_len(&mut self, bytes: usize) -> Result<(), DropReason> {
        let view = self.udp()?;
        if !self.is_linear() || self.offload().is_gso() {
            return Err(DropReason::UNSUPPORTED);
        }
        let at = view.payload().as_ptr().addr() - self.data().as_ptr().addr();
        let (old, new) = (self.len(), at.checked_add(bytes).ok_or(DropReason::TOO_LONG)?);
        if new > old && self.put(new - old).is_none() {
            return Err(DropReason::TOO_LONG);
        }
        let done = head_mut(self).and_then(|head| Ok(head.set_udp_payload_len(bytes)?));
        removed(self.trim(if done.is_ok() { new } else { old })).and(done)
    }
}

/// Refuses a packet whose bytes could not be removed. Its first frame was just written, so this handle is
/// the only one on it, and it has the bytes.
fn removed(is_removed: bool) -> Result<(), DropReason> {
    if is_removed { Ok(()) } else { Err(DropReason::MALFORMED) }
}

/// Prepares a packet for one more header, if ports do not find its own headers behind that one, as `is_parsed` tells:
/// completes SCTP's CRC. Other checksums are found by their offset.
///
/// # Errors
/// `UNSUPPORTED` for a superframe, which needs its headers to be cut; those of the CRC.
fn prepare(skb: &mut Skb, is_parsed: impl FnOnce(&[u8]) -> bool) -> Result<(), DropReason> {
    let left = skb.offload();
    let needs_headers = left.is_gso() || offload::is_sctp(skb, left);
    if !needs_headers || headers::of(skb, is_parsed) {
        return Ok(());
    }
    // This refuses a superframe.
    offload::finish_one(skb, left)
}

/// Returns true if ports find the headers of `data` behind an IP header of `protocol`.
fn takes_ip(protocol: Protocol, data: &[u8]) -> bool {
    matches!(protocol, Protocol::IPIP | Protocol::IPV6) && headers::takes_ip(data)
}

/// Removes `tag` from the metadata, and returns it.
#[cold]
fn pop_kept(skb: &mut Skb, tag: Vlan) -> Result<VlanTag, DropReason> {
    let plain = VlanTag::new(tag.tci & 0xfff, (tag.tci >> 13) as u8);
    let popped = match EtherType(tag.protocol) {
        EtherType::VLAN => plain,
        EtherType::QINQ => plain.service(),
        _ => return Err(DropReason::UNSUPPORTED),
    };
    if skb.set_vlan(None) { Ok(popped) } else { Err(DropReason::NO_FRAME) }
}

/// Moves a VLAN tag from the metadata into the packet's bytes, and runs `change`, which adds a header outside of it.
fn around_tag(
    skb: &mut Skb,
    change: impl FnOnce(&mut Skb) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    let Some(tag) = skb.vlan() else { return change(skb) };
    let before = skb.offload();
    push(skb, VLAN_BYTES, |head| head.push_vlan(VlanTag::new(0, 0)))?;
    // The packet's frame is its own now, and has the room of the tag.
    skb.data_mut()[TAG_AT..TAG_AT + VLAN_BYTES].copy_from_slice(&tag.bytes());
    skb.set_vlan(None);
    let done = change(skb);
    if done.is_err() {
        skb.data_mut().copy_within(..TAG_AT, VLAN_BYTES);
        removed(skb.pull(VLAN_BYTES))?;
        skb.set_vlan(Some(tag));
        skb.set_offload(before);
    }
    done
}

/// Extends the packet by `bytes` at its start, for `write` to fill.
fn push(
    skb: &mut Skb,
    bytes: usize,
    write: impl FnOnce(HeadMut<'_>) -> Result<(), Malformed>,
) -> Result<(), DropReason> {
    private(skb)?;
    let before = skb.offload();
    if skb.len() + bytes > LONGEST_BYTES || skb.push(bytes).is_none() {
        return Err(DropReason::TOO_LONG);
    }
    let done = head_mut(skb).and_then(|head| Ok(write(head)?));
    if done.is_err() {
        removed(skb.pull(bytes))?;
        if skb.offload() != before {
            // A pull also forgets that the checksum was verified.
            skb.set_offload(before);
        }
    }
    done
}

fn push_tunnel(
    skb: &mut Skb,
    tunnel: &Tunnel,
    write: impl FnOnce(HeadMut<'_>) -> Result<(), Malformed>,
) -> Result<(), DropReason> {
    prepare(skb, |_| false)?;
    push(skb, tunnel.header_bytes(), write)?;
    if tunnel.src.is_ipv4() {
        return Ok(());
    }
    if !skb.offload().needs_checksum() {
        skb.set_offload(Offload {
            flags: F_NEEDS_CSUM,
            csum_start: TUNNEL_V6_UDP,
            csum_offset: UDP_CHECK,
            ..Offload::NONE
        });
    }
    if skb.udp_mut()?.fill_checksum() {
        return Ok(());
    }
    // The inner checksum's field is not in the first frame: remove the tunnel's headers again.
    removed(skb.pull(tunnel.header_bytes()))?;
    Err(DropReason::UNSUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{PARTIAL, SUPERFRAME, bytes, ipv4, unfinished};
    use linerate_skb::{Pool, Trust};
    use linerate_wire::{Mac, ip, udp};

    const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

    fn pool() -> Pool {
        Pool::builder().frames(64).build().unwrap()
    }

    fn tunnel(v6: bool) -> Tunnel {
        let ends = if v6 { ["fd00::a", "fd00::b"] } else { ["192.0.2.1", "192.0.2.2"] };
        let [src, dst] = ends.map(|text| text.parse().unwrap());
        Tunnel { src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]), src, dst, vni: 7 }
    }

    #[test]
    fn checksums_inside_and_outside_a_tunnel_leave_right_whoever_computes_them() {
        let pool = pool();
        for (payload, v6, finished) in [
            (4, false, false),
            (4, true, false),
            (5000, true, false),
            (4, true, true),
            (5000, true, true),
        ] {
            let mut skb = unfinished(&pool, payload);
            if finished {
                skb.complete_checksum().unwrap();
            }
            let inner = skb.len();
            skb.push_vxlan(&tunnel(v6)).unwrap();
            assert_eq!(skb.offload().needs_checksum(), v6 || !finished);
            skb.complete_checksum().unwrap();
            let frame = bytes(&skb);
            assert!(udp(&frame).unwrap().checksum_ok(), "{payload} {v6} {finished}");
            assert!(udp(&frame[frame.len() - inner..]).unwrap().checksum_ok());
        }
    }

    /// Returns a packet of SCTP whose CRC is left to a device.
    fn unfinished_sctp(pool: &Pool) -> Skb {
        let mut skb = pool.local().alloc_copy(&ipv4(132, 40)).unwrap();
        skb.set_offload(Offload { csum_offset: 8, ..PARTIAL });
        skb
    }

    #[test]
    fn crc_of_sctp_is_complete_behind_headers_that_ports_do_not_parse() {
        let pool = pool();
        let [src, dst] = OUTSIDE;
        let mut plain = unfinished_sctp(&pool);
        plain.complete_checksum().unwrap();
        let right = bytes(&plain);
        for v6 in [false, true] {
            let mut skb = unfinished_sctp(&pool);
            skb.push_vxlan(&tunnel(v6)).unwrap();
            assert_eq!(skb.offload().needs_checksum(), v6);
            skb.complete_checksum().unwrap();
            let frame = bytes(&skb);
            assert!(udp(&frame).unwrap().checksum_ok() && frame.ends_with(&right), "{v6}");
        }
        // An IP header of a protocol that ports do not parse.
        let mut skb = unfinished_sctp(&pool);
        skb.push_ipv4(src, dst, Protocol(47)).unwrap();
        assert!(skb.offload() == Offload::NONE && bytes(&skb).ends_with(&right[14..]));
        // Deeper than ports parse.
        let mut skb = unfinished_sctp(&pool);
        for depth in 1..4 {
            skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
            assert_eq!(skb.offload().needs_checksum(), depth < 3, "{depth}");
        }
        assert!(bytes(&skb).ends_with(&right[14..]));
        let mut skb = unfinished_sctp(&pool);
        for tags in 1..4 {
            skb.push_vlan(VlanTag::new(tags, 0)).unwrap();
            assert_eq!(skb.offload().needs_checksum(), tags < 3, "{tags}");
        }
        assert!(bytes(&skb).ends_with(&right[14..]));
    }

    #[test]
    fn superframe_that_no_port_could_cut_is_not_made() {
        let pool = pool();
        let [src, dst] = OUTSIDE;
        let superframe = || {
            let mut skb = pool.local().alloc_copy(&ipv4(6, 100)).unwrap();
            skb.set_offload(SUPERFRAME);
            skb
        };
        let mut skb = superframe();
        for _ in 0..2 {
            skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
        }
        let before = (bytes(&skb), skb.offload());
        assert_eq!(skb.push_ipv4(src, dst, Protocol::IPIP), Err(DropReason::UNSUPPORTED));
        assert_eq!((bytes(&skb), skb.offload()), before);
        let mut skb = superframe();
        skb.push_vlan(VlanTag::new(5, 0)).unwrap();
        skb.push_vlan(VlanTag::new(7, 0).service()).unwrap();
        let before = (bytes(&skb), skb.offload());
        assert_eq!(skb.push_vlan(VlanTag::new(9, 0)), Err(DropReason::UNSUPPORTED));
        assert_eq!((bytes(&skb), skb.offload()), before);
        // The tag of the metadata counts, and stays there.
        let mut skb = superframe();
        skb.push_vlan(VlanTag::new(5, 0)).unwrap();
        let tag = Some(Vlan { tci: 7, protocol: 0x88a8 });
        skb.set_vlan(tag);
        assert_eq!(skb.push_vlan(VlanTag::new(9, 0)), Err(DropReason::UNSUPPORTED));
        assert_eq!(skb.vlan(), tag);
    }

    #[test]
    fn a_tag_of_the_metadata_is_the_outermost_tag() {
        let pool = pool();
        let mut skb = unfinished(&pool, 4);
        let before = bytes(&skb);
        // The drop eligibility (0x1000) stays in a tag that is moved.
        skb.set_vlan(Some(Vlan { tci: 0x7005, protocol: 0x88a8 }));
        skb.push_vlan(VlanTag::new(7, 1)).unwrap();
        assert_eq!((skb.vlan(), skb.offload().csum_start), (None, PARTIAL.csum_start + 8));
        assert_eq!(bytes(&skb)[12..20], [0x81, 0, 0x20, 7, 0x88, 0xa8, 0x70, 5]);
        assert_eq!(skb.pop_vlan().unwrap().vid(), 7);
        skb.set_vlan(Some(Vlan { tci: 0x6009, protocol: 0x8100 }));
        let tags = [(); 2].map(|()| skb.pop_vlan().unwrap());
        let said = tags.map(|tag| (tag.vid(), tag.pcp(), tag.tpid()));
        assert_eq!(said, [(9, 3, EtherType::VLAN), (5, 3, EtherType::QINQ)]);
        assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNWANTED);
        assert!(bytes(&skb) == before && skb.offload() == PARTIAL && skb.vlan().is_none());
        let unknown = Some(Vlan { tci: 1, protocol: 0x9100 });
        skb.set_vlan(unknown);
        assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNSUPPORTED);
        assert_eq!(skb.vlan(), unknown);
    }

    #[test]
    fn a_tag_of_the_metadata_goes_into_the_tunnel_with_its_packet() {
        let pool = pool();
        let tag = Some(Vlan { tci: 5, protocol: 0x8100 });
        let mut skb = unfinished(&pool, 4);
        let mut inner = bytes(&skb);
        inner.splice(12..12, [0x81, 0, 0, 5]);
        skb.set_vlan(tag);
        skb.push_geneve(&tunnel(false)).unwrap();
        let frame = bytes(&skb);
        assert!(skb.vlan().is_none() && frame.ends_with(&inner) && frame[12..14] == [8, 0]);
        // What is refused leaves the tag where it was.
        let mut skb = unfinished(&pool, 4);
        let before = bytes(&skb);
        skb.set_vlan(tag);
        let mixed = Tunnel { dst: OUTSIDE[0].into(), ..tunnel(true) };
        assert_eq!(skb.push_vxlan(&mixed), Err(DropReason::UNWANTED));
        assert!(bytes(&skb) == before && skb.vlan() == tag && skb.offload() == PARTIAL);
        let mut refused = Ok(());
        while refused.is_ok() {
            skb.set_vlan(tag);
            refused = skb.push_vlan(VlanTag::new(1, 1));
        }
        assert_eq!((refused, skb.vlan()), (Err(DropReason::TOO_LONG), tag));
        while skb.pop_vlan().is_ok() {}
        assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
    }

    #[test]
    fn a_header_that_is_refused_leaves_the_packet_verified() {
        let pool = pool();
        let mut skb = pool.local().alloc_copy(&[0; 60]).unwrap();
        let verified = Offload { flags: 2, ..Offload::NONE };
        skb.set_offload(verified);
        assert!(skb.push_ipv4(OUTSIDE[0], OUTSIDE[1], Protocol::IPIP).is_err());
        assert_eq!((skb.len(), skb.offload()), (60, verified));
    }

    #[test]
    fn a_packet_in_an_ip_header_and_out_again_is_as_it_was() {
        let pool = pool();
        for payload in [4, 5000] {
            let mut skb = unfinished(&pool, payload);
            let before = bytes(&skb);
            let [src, dst] = OUTSIDE;
            skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
            assert_eq!(skb.offload().csum_start, PARTIAL.csum_start + 20);
            skb.push_vlan(VlanTag::new(5, 1)).unwrap();
            assert_eq!(ip(&bytes(&skb)).unwrap().dst(), dst);
            assert_eq!(skb.pop_vlan().unwrap().vid(), 5);
            assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNWANTED);
            skb.pop_ip().unwrap();
            assert_eq!(skb.pop_ip(), Err(DropReason::UNWANTED));
            assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
        }
    }

    #[test]
    fn a_resized_payload_has_right_lengths_and_checksums() {
        let pool = pool();
        let mut skb = unfinished(&pool, 40);
        for len in [40, 7, 0, 100, 101] {
            skb.set_udp_payload_len(len).unwrap();
            assert_eq!((skb.len(), skb.udp().unwrap().payload().len()), (42 + len, len));
            let mut copy = pool.local().alloc_copy(&bytes(&skb)).unwrap();
            copy.set_offload(PARTIAL);
            copy.complete_checksum().unwrap();
            assert!(udp(&bytes(&copy)).unwrap().checksum_ok(), "{len}");
        }
        let before = bytes(&skb);
        assert_eq!(skb.set_udp_payload_len(10_000), Err(DropReason::TOO_LONG));
        assert_eq!(skb.set_udp_payload_len(usize::MAX), Err(DropReason::TOO_LONG));
        assert_eq!(bytes(&skb), before);
        let mut chain = unfinished(&pool, 5000);
        assert_eq!(chain.set_udp_payload_len(4), Err(DropReason::UNSUPPORTED));
    }

    #[test]
    fn a_refused_header_leaves_the_packet_as_it_was() {
        let pool = pool();
        let [src, dst] = OUTSIDE;
        let mut skb = unfinished(&pool, 4);
        let before = bytes(&skb);
        assert_eq!(skb.push_ipv4(src, dst, Protocol::IPV6), Err(DropReason::UNWANTED));
        let mixed = Tunnel { dst: src.into(), ..tunnel(true) };
        assert_eq!(skb.push_geneve(&mixed), Err(DropReason::UNWANTED));
        while skb.push_ipv4(src, dst, Protocol::IPIP).is_ok() {}
        assert!(skb.headroom() < 20);
        while skb.pop_ip().is_ok() {}
        assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
        skb.set_offload(Offload { gso_type: 5, gso_size: 2, ..PARTIAL });
        assert_eq!(skb.push_vxlan(&tunnel(false)), Err(DropReason::UNSUPPORTED));
        assert_eq!(skb.push_ipv4(src, dst, Protocol(47)), Err(DropReason::UNSUPPORTED));
        let exported = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
        let mut skb = unfinished(&exported, 4);
        assert_eq!(skb.push_vlan(VlanTag::new(1, 1)), Err(DropReason::UNSUPPORTED));
    }
}
