//! Packets whose checksum is still to be computed, recognised by what stands in its place.
//!
//! The kernel leaves the sum of the pseudo header where hardware is to fill a checksum in.
//! virtio says so in a header, which AF_XDP and a packet socket without that header do not have. A
//! packet whose field holds just that sum is taken for unfinished. One of 65,536 finished packets
//! holds it by chance: computed again, its checksum is the same, unless padding other than 0
//! follows. SCTP and GRE have no pseudo header: the kernel leaves 0.
//!
//! In a tunnel with a checksum of its own (VXLAN, Geneve, GRE) the kernel leaves one checksum to
//! hardware:
//!
//! | packet | inner field | outer field |
//! |---|---|---|
//! | the inner checksum is left | its pseudo header | complete for the finished inner packet, or 0: there is none |
//! | the inner one is complete | complete | its pseudo header; 0 in GRE |
//! | superframe | its pseudo header | its pseudo header; in GRE any value, because the kernel does not write it |
//! | a program sends a copy of an unfinished packet | its pseudo header | as if the inner one were complete, or complete |
//!
//! Superframes and copies are told apart by their length. TCP is right in both cases with both
//! checksums finished, and is cut where it is longer than the MTU. A UDP or SCTP packet that is not
//! longer is taken for a copy, whose inner field stays as it is.
//!
//! Source: Linux net/ipv4/udp.c `udp_set_csum`, include/net/gre.h `gre_build_header`,
//! include/linux/skbuff.h `lco_csum`.

use linerate_skb::{Offload, Skb};
use linerate_sys::vnet::GSO_ECN;
use linerate_wire::{IPV6_BYTES, checksum};

use super::headers::{
    self, GRE, IpHeader, SCTP, SCTP_CHECK, TCP, TCP_CHECK, UDP, UDP_CHECK, u16_at,
};
use super::tunnel;

/// A superframe kind that virtio does not define, so that the packet is dropped before every device
/// and peer. A port that takes all superframes as they are, for a file or for this process, passes
/// it on.
const GSO_UNKNOWN: u8 = 0x7f;
/// Offset of the header's length in TCP's header, and the flag AE in the same byte.
const TCP_LENGTH: usize = 12;
const AE: u8 = 0x01;
/// Offset of the other flags in TCP's header, and the flag CWR.
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// A checksum in a packet.
#[derive(Debug, Clone, Copy)]
struct Check {
    /// The IP header before the header that has the checksum, and the offset of the checksum in the
    /// latter.
    ip: IpHeader,
    offset: usize,
    /// The sum of the pseudo header; 0 without one.
    pseudo: u16,
    /// True if its field holds `pseudo`.
    is_unfinished: bool,
}

/// Marks a packet whose checksum is still to be computed, also one in a tunnel; a TCP packet longer
/// than the interface's MTU is marked as a superframe to be cut, a UDP or SCTP packet as one that
/// is dropped before it leaves to a device or a peer.
///
/// Cost: its headers are read.
pub(crate) fn mark(skb: &mut Skb, mtu_bytes: usize) {
    let len = skb.len();
    if let Some(offload) = headers::of(skb, |data| left(data, len, mtu_bytes)) {
        skb.set_offload(offload);
    }
}

/// Returns the work that is left to a device for a packet of `len` bytes that begins with `data`;
/// `None` if the packet is not recognised as unfinished.
pub(crate) fn left(data: &[u8], len: usize, mtu_bytes: usize) -> Option<Offload> {
    let longest = headers::network(data)? + mtu_bytes;
    let (Check { ip, offset, .. }, is_superframe) = unfinished(data, len, longest)?;
    let (csum_start, csum_offset) = (ip.end as u16, offset as u16);
    let flags = Offload::NEEDS_CHECKSUM;
    let partial = Offload { flags, csum_start, csum_offset, ..Offload::NONE };
    Some(match ip.protocol {
        TCP if is_superframe => superframe(partial, data, ip, longest),
        // Only the sender knows where the packets of this superframe end: sent as one, they would
        // be another message.
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
    // By RFC 3168 only the first segment has CWR. In Accurate ECN, AE, CWR and ECE are a counter,
    // which each segment has; without AE the two cannot be told apart.
    let is_first_only = flags & CWR != 0 && length & AE == 0;
    let kind = if ip.v6 { Offload::GSO_TCPV6 } else { Offload::GSO_TCPV4 };
    Offload {
        gso_type: kind | if is_first_only { GSO_ECN } else { 0 },
        hdr_len: (ip.end + header) as u16,
        gso_size: piece.min(usize::from(u16::MAX)) as u16,
        ..partial
    }
}

/// Returns the innermost checksum of a packet that is left to a device, and true if the packet is a
/// superframe.
fn unfinished(data: &[u8], len: usize, longest: usize) -> Option<(Check, bool)> {
    let checks = headers::nested(data).map(|ip| check_after(data, ip?));
    (0..checks.len()).rev().find_map(|depth| {
        let inner = checks[depth].filter(|check| check.is_unfinished)?;
        let mut around = checks[..depth].iter().flatten();
        if around.clone().all(|outer| is_right_around(data, outer, &inner)) {
            return Some((inner, len > longest));
        }
        let is_superframe = match inner.ip.protocol {
            // Padding would become payload; a superframe has none.
            TCP => inner.ip.end + usize::from(bytes_after(data, &inner.ip)?) == len,
            _ => len > longest,
        };
        // The kernel makes no superframe in GRE with sequence numbers.
        let may_be_left = |outer: &Check| match outer.ip.protocol {
            GRE => !tunnel::is_numbered(data, &outer.ip),
            _ => outer.is_unfinished,
        };
        (is_superframe && around.all(may_be_left)).then_some((inner, true))
    })
}

/// Returns the checksum of the header after `ip`; `None` if it has none, or it is 0 although there
/// is a pseudo header.
fn check_after(data: &[u8], ip: IpHeader) -> Option<Check> {
    let (offset, bytes) = match ip.protocol {
        TCP => (usize::from(TCP_CHECK), 2),
        UDP => (usize::from(UDP_CHECK), 2),
        SCTP => (usize::from(SCTP_CHECK), 4),
        GRE => (tunnel::gre_check(data, &ip)?, 2),
        _ => return None,
    };
    let field = data.get(ip.end + offset..)?.get(..bytes).map(checksum::sum)?;
    let pseudo = match ip.protocol {
        SCTP | GRE => 0,
        _ if field == 0 => return None,
        _ => ip.pseudo(data, bytes_after(data, &ip)?)?,
    };
    Some(Check { ip, offset, pseudo, is_unfinished: field == pseudo })
}

/// Returns the number of bytes after `ip`, by its length.
fn bytes_after(data: &[u8], ip: &IpHeader) -> Option<u16> {
    let (len, header_bytes) = match ip.v6 {
        true => (u16_at(data, ip.at + 4)?, ip.end - ip.at - IPV6_BYTES),
        false => (u16_at(data, ip.at + 2)?, ip.end - ip.at),
    };
    len.checked_sub(header_bytes as u16)
}

/// Returns true if the checksum `outer` of a tunnel is right once `inner` is finished.
///
/// A finished checksum makes the sum of its bytes the complement of the sum that its field had
/// before.
fn is_right_around(data: &[u8], outer: &Check, inner: &Check) -> bool {
    let Some(headers) = data.get(outer.ip.end..inner.ip.end).map(checksum::sum) else {
        return false;
    };
    let sum = checksum::add(checksum::add(outer.pseudo, headers), !inner.pseudo);
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
        let found = super::unfinished(data, data.len(), data.len());
        found.map(|(check, _)| (check.ip.end, check.offset))
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
        assert_eq!(unfinished(&ipip(ipip(tunnelled))), None, "deeper than headers are parsed");
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

    #[test]
    fn a_crc_is_not_found_by_the_sum_around_it() {
        use crate::host::testing::{VXLAN, over_udp};
        let mut inner = frame(SCTP, 100);
        inner[42..46].fill(0);
        let mut packet = over_udp(false, 4789, &VXLAN, &inner);
        let ip = IpHeader::first(&packet).unwrap();
        packet[40..42].fill(0);
        let pseudo = ip.pseudo(&packet, (packet.len() - 34) as u16).unwrap();
        let headers = checksum::add(pseudo, checksum::sum(&packet[34..84]));
        let check = checksum::finish(headers);
        packet[40..42].copy_from_slice(&check.to_be_bytes());
        assert_eq!(unfinished(&packet), None);
    }

    #[test]
    fn a_packet_behind_an_old_service_tag_is_found_unfinished() {
        let mut packet = frame(UDP, 100);
        packet.splice(12..12, [0x91, 0, 0, 7, 0x81, 0, 0, 5]);
        assert_eq!(unfinished(&packet), Some((42, 6)));
    }

    #[test]
    fn a_source_route_without_an_address_is_not_stepped_over() {
        for kind in [2, 4] {
            let packet = ipv6(43, &[UDP, 0, kind, 1, 0, 0, 0, 0], UDP, 64);
            let ip = IpHeader::first(&packet).unwrap();
            assert_eq!((ip.end, ip.protocol), (54, 43));
        }
    }
}
