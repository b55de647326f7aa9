//! Packets whose checksum is still to be computed, recognised by what stands in its place.
//!
//! Where hardware is to fill a checksum in, the kernel leaves the sum of the pseudo header there. virtio says so in
//! a header, which AF_XDP and a packet socket without that header do not have. A packet whose field holds just that
//! sum is taken for unfinished. One that was finished and holds it by chance, one of 65,536, comes to no harm:
//! computed again, its checksum is the same. SCTP has no pseudo header: where its CRC is to be filled in, the kernel
//! leaves 0.
//!
//! In a tunnel with a checksum of its own (VXLAN, Geneve, GRE) the kernel leaves one checksum to hardware. Where that
//! is the inner one, it computes the outer one for the finished inner packet, from the headers alone, or leaves it out
//! (0); where the inner one is complete, it leaves the outer one. Only in a superframe both are unfinished.
//!
//! Source: Linux net/ipv4/udp.c `udp_set_csum`, include/net/gre.h `gre_build_header`, include/linux/skbuff.h
//! `lco_csum`.

use linerate_skb::{Offload, Skb};
use linerate_sys::vnet::GSO_ECN;
use linerate_wire::{IPV6_BYTES, checksum};

use super::headers::{
    self, GRE, IpHeader, SCTP, SCTP_CHECK, TCP, TCP_CHECK, UDP, UDP_CHECK, u16_at,
};
use super::tunnel;

/// A superframe kind that virtio does not define, so that the packet is dropped before every device and peer. A port
/// that takes all superframes as they are, for a file or for this process, passes it on.
const GSO_UNKNOWN: u8 = 0x7f;
/// Offset of the header's length in TCP's header, and the flag AE in the same byte.
const TCP_LENGTH: usize = 12;
const AE: u8 = 0x01;
/// Offset of the other flags in TCP's header, and the flag CWR.
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// An unfinished checksum: the IP header before it, and its offset in the header after that.
#[derive(Debug, PartialEq, Eq)]
struct Unfinished {
    ip: IpHeader,
    offset: usize,
    /// True if a checksum of a tunnel around it is unfinished, too, and will not be right by finishing this one.
    is_outer_too: bool,
}

/// Marks a packet whose checksum is still to be computed, also one in a tunnel; a TCP packet
/// longer than the interface's MTU is marked as a superframe to be cut, a UDP or SCTP packet as one that is dropped
/// before it leaves to a device or a peer.
///
/// Cost: its headers are read.
pub(crate) fn mark(skb: &mut Skb, mtu_bytes: usize) {
    let len = skb.len();
    if let Some(offload) = headers::of(skb, |data| left(data, len, mtu_bytes)) {
        skb.set_offload(offload);
    }
}

/// Returns the work that is left to a device for a packet of `len` bytes that begins with `data`; `None` if the
/// packet is not recognised as unfinished.
pub(crate) fn left(data: &[u8], len: usize, mtu_bytes: usize) -> Option<Offload> {
    let Unfinished { ip, offset, is_outer_too } = unfinished(data)?;
    let (csum_start, csum_offset) = (ip.end as u16, offset as u16);
    let flags = Offload::NEEDS_CHECKSUM;
    let partial = Offload { flags, csum_start, csum_offset, ..Offload::NONE };
    let longest = headers::network(data)? + mtu_bytes;
    // Two unfinished checksums are of a superframe, also of one that is not longer than the MTU.
    let is_superframe = len > longest || is_outer_too;
    Some(match ip.protocol {
        TCP if is_superframe => superframe(partial, data, ip, longest),
        // Only the sender knows where the packets of this superframe end: sent as one, they would be another message.
        _ if is_superframe => Offload { gso_type: GSO_UNKNOWN, ..Offload::NONE },
        _ => partial,
    })
}

/// Returns the offload header that cuts a superframe into packets that the interface accepts.
fn superframe(partial: Offload, data: &[u8], ip: IpHeader, longest: usize) -> Offload {
    let [length, flags] =
        [TCP_LENGTH, TCP_FLAGS].map(|at| data.get(ip.end + at).copied().unwrap_or(0));
    let header = usize::from(length >> 4) * 4;
    let piece = longest.saturating_sub(ip.end + header);
    // By RFC 3168 only the first segment has CWR. In Accurate ECN, AE, CWR and ECE are a counter, which each segment
    // has; without AE the two cannot be told apart.
    let is_first_only = flags & CWR != 0 && length & AE == 0;
    let kind = if ip.v6 { Offload::GSO_TCPV6 } else { Offload::GSO_TCPV4 };
    Offload {
        gso_type: kind | if is_first_only { GSO_ECN } else { 0 },
        hdr_len: (ip.end + header) as u16,
        gso_size: piece.min(usize::from(u16::MAX)) as u16,
        ..partial
    }
}

/// Returns the unfinished checksum of a packet, if any: the innermost one.
///
/// By chance, one time of 65,536, a complete inner checksum is taken for an unfinished one while that of the tunnel is
/// unfinished. The packet is then taken for a superframe: for TCP of one segment, which gets both checksums; others are
/// dropped.
fn unfinished(data: &[u8]) -> Option<Unfinished> {
    let ips = headers::nested(data);
    let mut all = ips.iter().rev().flatten().filter_map(|ip| unfinished_after(data, *ip));
    let mut found = all.next()?;
    found.is_outer_too = all.any(|outer| !is_right_around(data, &outer, &found));
    Some(found)
}

/// Returns the checksum of the header after `ip`, if that is unfinished.
fn unfinished_after(data: &[u8], ip: IpHeader) -> Option<Unfinished> {
    let is_zero = |offset: usize, bytes: usize| {
        let field = data.get(ip.end + offset..)?.get(..bytes)?;
        let found = Unfinished { ip, offset, is_outer_too: false };
        field.iter().all(|byte| *byte == 0).then_some(found)
    };
    let offset = match ip.protocol {
        TCP => usize::from(TCP_CHECK),
        UDP => usize::from(UDP_CHECK),
        SCTP => return is_zero(usize::from(SCTP_CHECK), 4),
        // GRE has no pseudo header either.
        GRE => return is_zero(tunnel::gre_check(data, &ip)?, 2),
        _ => return None,
    };
    let field = u16_at(data, ip.end + offset)?;
    let (len, header_bytes) = match ip.v6 {
        true => (u16_at(data, ip.at + 4)?, ip.end - ip.at - IPV6_BYTES),
        false => (u16_at(data, ip.at + 2)?, ip.end - ip.at),
    };
    let pseudo = ip.pseudo(data, len.checked_sub(header_bytes as u16)?)?;
    let is_unfinished = field != 0 && field == pseudo;
    is_unfinished.then_some(Unfinished { ip, offset, is_outer_too: false })
}

/// Returns true if the checksum `outer` of a tunnel, which looks unfinished, is right once `inner` is finished.
///
/// A finished checksum makes the sum of its bytes the complement of the sum that its field had before.
fn is_right_around(data: &[u8], outer: &Unfinished, inner: &Unfinished) -> bool {
    let [pseudo, field] = [outer, inner].map(|one| u16_at(data, one.ip.end + one.offset));
    let headers = data.get(outer.ip.end..inner.ip.end).map(checksum::sum);
    let (Some(pseudo), Some(field), Some(headers)) = (pseudo, field, headers) else { return false };
    let sum = checksum::add(checksum::add(pseudo, headers), !field);
    // A CRC leaves no such sum.
    inner.ip.protocol != SCTP && checksum::finish(sum) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{chains, ipip, ipv4 as frame, ipv6, source_routed};
    use crate::segment::Cutter;
    use linerate_skb::DropReason;

    fn unfinished(data: &[u8]) -> Option<(usize, usize)> {
        super::unfinished(data).map(|found| (found.ip.end, found.offset))
    }

    #[test]
    fn a_packet_with_the_sum_of_its_pseudo_header_is_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
            let mut packet = frame(protocol, 100);
            assert_eq!(unfinished(&packet), Some((34, offset)));
            let mut tagged = packet.clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            assert_eq!(unfinished(&tagged), Some((38, offset)));
            // The checksum is complete here.
            let check = checksum::finish(checksum::sum(&packet[34..]));
            packet[34 + offset..36 + offset].copy_from_slice(&check.to_be_bytes());
            assert_eq!(unfinished(&packet), None);
        }
        assert_eq!(unfinished(&frame(1, 100)), None);
    }

    #[test]
    fn a_packet_behind_two_vlan_tags_is_found_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6), (SCTP, 8)] {
            let mut packet = frame(protocol, 100);
            if protocol == SCTP {
                assert_eq!(unfinished(&packet), None, "its CRC is complete");
                packet[42..46].fill(0);
            }
            packet.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]);
            assert_eq!(unfinished(&packet), Some((42, offset)));
        }
    }

    #[test]
    fn packet_behind_extension_headers_is_found_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6), (SCTP, 8)] {
            for (first, chain) in chains(protocol) {
                let packet = ipv6(first, &chain, protocol, 64);
                assert_eq!(unfinished(&packet), Some((54 + chain.len(), offset)), "{first}");
            }
            let fragment = ipv6(44, &[protocol, 0, 0, 1, 0, 0, 0, 1], protocol, 64);
            assert_eq!(unfinished(&fragment), None);
        }
    }

    #[test]
    fn packet_under_way_by_a_source_route_is_found_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
            let mut packet = source_routed(frame(protocol, 100));
            assert_eq!(unfinished(&packet), Some((42, offset)));
            // A filler before the option, and no end of the list behind it.
            packet[34..42].rotate_right(1);
            packet[34] = 1;
            assert_eq!(unfinished(&packet), Some((42, offset)));
            packet[37] = 8;
            assert_eq!(unfinished(&packet), None, "the packet has passed its route");
        }
    }

    #[test]
    fn udp_and_sctp_that_are_longer_than_the_interface_takes_are_never_cut() {
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        for (payload, is_dropped) in [(1472, false), (1473, true), (3000, true)] {
            for protocol in [UDP, SCTP] {
                let mut frame = frame(protocol, payload);
                // The place of SCTP's CRC, and payload of UDP.
                frame[42..46].fill(0);
                let mut skb = mem.alloc_copy(&frame).unwrap();
                mark(&mut skb, 1500);
                let left = skb.offload();
                assert_eq!((left.is_gso(), left.needs_checksum()), (is_dropped, !is_dropped));
                let refused = Cutter::of(&skb).map(drop);
                assert!(!is_dropped || refused == Err(DropReason::UNSUPPORTED), "{payload}");
            }
        }
    }

    #[test]
    fn tcp_that_is_longer_than_the_interface_takes_is_a_superframe() {
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut marked = |frame: &[u8]| {
            let mut skb = mem.alloc_copy(frame).unwrap();
            mark(&mut skb, 1500);
            skb.offload()
        };
        let long = marked(&frame(TCP, 3000));
        assert_eq!((long.gso_type, long.hdr_len, long.gso_size), (Offload::GSO_TCPV4, 54, 1460));
        assert!(!marked(&frame(TCP, 1460)).is_gso() && marked(&frame(TCP, 1461)).is_gso());
        let mut reduced = frame(TCP, 3000);
        reduced[47] |= CWR;
        assert_eq!(marked(&reduced).gso_type, Offload::GSO_TCPV4 | GSO_ECN);
        // A counter of Accurate ECN is the same in all segments.
        reduced[46] |= AE;
        let counted = marked(&reduced);
        assert_eq!((counted.gso_type, counted.hdr_len), (Offload::GSO_TCPV4, 54));
        assert!(marked(&frame(UDP, 1460)).needs_checksum());
    }

    #[test]
    fn the_packet_in_a_tunnel_is_found_unfinished_and_its_superframe_fits_with_all_headers() {
        let tunnelled = ipip(frame(UDP, 100));
        assert_eq!(unfinished(&tunnelled), Some((54, 6)));
        assert_eq!(unfinished(&ipip(tunnelled.clone())), Some((74, 6)));
        assert_eq!(unfinished(&ipip(ipip(tunnelled))), None, "as deep as that nobody looks");
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let mut skb = pool.local().alloc_copy(&ipip(frame(TCP, 3000))).unwrap();
        mark(&mut skb, 1500);
        let offload = skb.offload();
        assert_eq!((offload.csum_start, offload.hdr_len, offload.gso_size), (54, 74, 1440));
    }

    #[test]
    fn fragments_and_what_is_cut_short_are_left_alone() {
        let packet = frame(UDP, 100);
        let mut fragment = packet.clone();
        fragment[20] = 0x20;
        assert_eq!(unfinished(&fragment), None);
        for len in 0..42 {
            assert_eq!(unfinished(&packet[..len]), None, "{len}");
        }
        let mut no_checksum = packet;
        no_checksum[40..42].fill(0);
        assert_eq!(unfinished(&no_checksum), None);
    }
}
