//! Tunnels over UDP and GRE: where the packet in them begins, and where their checksum is.
//!
//! ```text
//!   IP │ UDP to port 4789 or 8472 │ VXLAN           │ Ethernet │ IP
//!   IP │ UDP to port 6081         │ Geneve, options │ Ethernet │ IP, or IP alone
//!   IP │ GRE, with up to three fields               │ Ethernet │ IP, or IP alone
//! ```
//!
//! Other shapes of these headers are not stepped over.
//!
//! Source: RFC 7348, 5; RFC 8926, 3.4; RFC 2784, 2, and RFC 2890, 2.

use super::headers::{GRE, IpHeader, UDP, u16_at};

const UDP_BYTES: usize = 8;
/// The port of VXLAN, and the one that Linux takes by default.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
const GENEVE_PORT: u16 = 6081;
/// Bytes of VXLAN's header, and of Geneve's without options.
const TUNNEL_BYTES: usize = 8;
/// Flags in VXLAN's first byte: there is a network identifier, and a group policy.
const VXLAN_NETWORK: u8 = 0x08;
const VXLAN_POLICY: u8 = 0x80;
/// Flag in VXLAN's second byte: the inner checksum stays unfinished, and the receiver completes it.
///
/// Source: Linux include/net/vxlan.h `VXLAN_HF_RCO`.
const VXLAN_REMOTE_CHECKSUM: u8 = 0x20;
/// The length of Geneve's options, in units of 4 bytes; the bits above it are the version, which is
/// 0.
const GENEVE_OPTIONS: u8 = 0x3f;
/// Longest headers of a tunnel over UDP, in bytes.
pub(super) const BYTES_MAX: usize = UDP_BYTES + TUNNEL_BYTES + GENEVE_OPTIONS as usize * 4;
/// Flags in GRE's first byte, each of a field of 4 bytes: a checksum, a key, a sequence number.
const GRE_CHECKSUM: u8 = 0x80;
const GRE_KEY: u8 = 0x20;
const GRE_SEQUENCE: u8 = 0x10;
/// Offset of the checksum in GRE's header.
const GRE_CHECK: usize = 4;
/// Type of a packet that is an Ethernet frame.
pub(super) const TYPE_ETHERNET: u16 = 0x6558;

/// Returns the offset and the type of the packet in the tunnel whose headers follow `ip`.
pub(super) fn payload(data: &[u8], ip: &IpHeader) -> Option<(usize, u16)> {
    if ip.protocol == GRE {
        let fields = gre_fields(data, ip)?.count_ones() as usize;
        return Some((ip.end + 4 + fields * 4, u16_at(data, ip.end + 2)?));
    }
    let port = u16_at(data, ip.end + 2).filter(|_| ip.protocol == UDP)?;
    let at = ip.end + UDP_BYTES;
    let header = data.get(at..)?.first_chunk::<TUNNEL_BYTES>()?;
    if VXLAN_PORTS.contains(&port) {
        let is_network = header[0] & !VXLAN_POLICY == VXLAN_NETWORK;
        let is_plain = is_network && header[1] & VXLAN_REMOTE_CHECKSUM == 0;
        return is_plain.then_some((at + TUNNEL_BYTES, TYPE_ETHERNET));
    }
    let is_geneve = port == GENEVE_PORT && header[0] & !GENEVE_OPTIONS == 0;
    let options = usize::from(header[0] & GENEVE_OPTIONS) * 4;
    let kind = u16::from_be_bytes([header[2], header[3]]);
    is_geneve.then_some((at + TUNNEL_BYTES + options, kind))
}

/// Returns the offset of the checksum in the GRE header that follows `ip`; `None` if it has none.
pub(crate) fn gre_check(data: &[u8], ip: &IpHeader) -> Option<usize> {
    let fields = gre_fields(data, ip)?;
    (fields & GRE_CHECKSUM != 0).then_some(GRE_CHECK)
}

/// Returns true if a GRE header with a sequence number follows `ip`.
pub(crate) fn is_numbered(data: &[u8], ip: &IpHeader) -> bool {
    gre_fields(data, ip).is_some_and(|fields| fields & GRE_SEQUENCE != 0)
}

/// Returns the flags of the fields of the GRE header that follows `ip`; `None` if there is none of
/// version 0, or it has other flags.
fn gre_fields(data: &[u8], ip: &IpHeader) -> Option<u8> {
    let [fields, version] = u16_at(data, ip.end).filter(|_| ip.protocol == GRE)?.to_be_bytes();
    let is_known = fields & !(GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) == 0 && version == 0;
    is_known.then_some(fields)
}

#[cfg(test)]
mod tests {
    use linerate_skb::{DropReason, Offload, Pool};
    use linerate_wire::checksum;

    use super::*;
    use crate::host::headers::{IP_HEADERS_MAX, TCP};
    use crate::host::partial::{self, left};
    use crate::host::testing::{
        GENEVE, GRE_CHECKED, GRE_STALE, VXLAN, ipv4, ipv6, over_gre, over_udp,
    };
    use crate::segment::Cutter;

    /// The start of a header and the offset of the checksum in it.
    type Place = (usize, usize);

    fn place(frame: &[u8]) -> Option<Place> {
        let found = left(frame, frame.len(), 1500)?;
        assert!(found.needs_checksum() && !found.is_gso(), "{found:?}");
        Some((usize::from(found.csum_start), usize::from(found.csum_offset)))
    }

    /// Completes the checksum at `place`, whose field has the sum of its pseudo header.
    fn complete(frame: &mut [u8], (start, offset): Place) {
        let check = checksum::finish(checksum::sum(&frame[start..]));
        frame[start + offset..start + offset + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Checks that the unfinished checksum is found in every packet that a kernel makes of `frame`,
    /// whose outer and inner checksums are both unfinished.
    fn assert_found(frame: &[u8], outer: Place, inner: Place) {
        let field = outer.0 + outer.1..outer.0 + outer.1 + 2;
        let mut whole = frame.to_vec();
        complete(&mut whole, inner);
        assert_eq!(place(&whole), Some(outer), "the inner one is complete");
        complete(&mut whole, outer);
        assert_eq!(place(&whole), None, "both are complete");
        let mut local = frame.to_vec();
        local[field.clone()].copy_from_slice(&whole[field.clone()]);
        assert_eq!(place(&local), Some(inner), "the outer one is right for the finished packet");
        complete(&mut local, inner);
        assert_eq!(local, whole);
    }

    /// Returns `frame` without its outer UDP checksum.
    fn unchecked(mut frame: Vec<u8>, udp: usize) -> Vec<u8> {
        frame[udp + 6..udp + 8].fill(0);
        frame
    }

    fn tunnels() -> [(u16, &'static [u8]); 3] {
        [(4789, &VXLAN), (8472, &VXLAN), (6081, &GENEVE)]
    }

    #[test]
    fn a_packet_in_a_tunnel_over_udp_is_found_unfinished() {
        let mut tagged = ipv4(UDP, 100);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        for (packet, inner) in [
            (ipv4(TCP, 100), (34, 16)),
            (ipv4(UDP, 101), (34, 6)),
            (ipv6(TCP, &[], TCP, 64), (54, 16)),
            (tagged, (38, 6)),
        ] {
            for (v6, udp) in [(false, 34), (true, 54)] {
                for (port, header) in tunnels() {
                    let frame = over_udp(v6, port, header, &packet);
                    let inner = (udp + 8 + header.len() + inner.0, inner.1);
                    assert_found(&frame, (udp, 6), inner);
                    assert_eq!(place(&unchecked(frame, udp)), Some(inner));
                }
            }
        }
        let (header, packet) = ([0, 0, 0x86, 0xdd, 0, 0, 7, 0], ipv6(UDP, &[], UDP, 9));
        let bare = over_udp(false, 6081, &header, &packet[14..]);
        assert_found(&bare, (34, 6), (90, 6));
        let mut policy = VXLAN;
        (policy[0], policy[1]) = (0x88, 0x08);
        assert_found(&over_udp(false, 4789, &policy, &ipv4(TCP, 9)), (34, 6), (84, 16));
    }

    #[test]
    fn a_packet_in_gre_is_found_unfinished() {
        assert_found(&over_gre(&GRE_CHECKED, &ipv4(TCP, 100)), (34, 4), (80, 16));
        let keyed = over_gre(&[0x30, 0, 0x08, 0, 0, 0, 0, 5, 0, 0, 0, 1], &ipv4(UDP, 100)[14..]);
        assert_eq!(place(&keyed), Some((66, 6)));
        let mut whole = keyed;
        complete(&mut whole, (66, 6));
        assert_eq!(place(&whole), None);
    }

    #[test]
    fn other_shapes_of_headers_are_not_stepped_over() {
        let packet = ipv4(TCP, 100);
        let over = |port, header: &[u8]| unchecked(over_udp(false, port, header, &packet), 34);
        assert!(place(&over(4789, &VXLAN)).is_some() && place(&over(9, &VXLAN)).is_none());
        let first = |byte: u8, second: u8| [&[byte, second][..], &VXLAN[2..]].concat();
        for (byte, second) in [(0, 0), (0x0c, 0), (0x18, 0), (0x08, 0x20)] {
            assert_eq!(place(&over(4789, &first(byte, second))), None, "{byte:x} {second:x}");
        }
        for header in [[0x40, 0, 0x65, 0x58], [0, 0, 0x88, 0x47], [0, 0, 0x08, 0]] {
            assert_eq!(place(&over(6081, &[header, [0; 4]].concat())), None, "{header:x?}");
        }
        for header in [[0x40, 0, 0x65, 0x58], [0, 1, 0x65, 0x58], [0, 0, 0x88, 0xbe]] {
            assert_eq!(place(&over_gre(&header, &packet)), None, "{header:x?}");
        }
    }

    #[test]
    fn a_superframe_in_a_tunnel_is_cut_if_it_is_of_tcp_and_dropped_otherwise() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let vxlan = |packet: &[u8]| over_udp(false, 8472, &VXLAN, packet);
        // The kernel leaves what stood in the memory before: other bytes than 0, or 0.
        let stale = |packet: &[u8]| over_gre(&GRE_STALE, packet);
        let gre = |packet: &[u8]| over_gre(&GRE_CHECKED, packet);
        for (protocol, payload) in [(TCP, 3000), (TCP, 500), (UDP, 3000)] {
            let packet = ipv4(protocol, payload);
            for (frame, start) in [(vxlan(&packet), 84), (stale(&packet), 80), (gre(&packet), 80)] {
                let mut skb = pool.local().alloc_copy(&frame).unwrap();
                partial::mark(&mut skb, 1500);
                let Offload { gso_size, csum_start, .. } = skb.offload();
                let longest = Cutter::of(&skb).map(|cutter| cutter.longest());
                let headers = start + 20;
                let size = 1514 - headers;
                match protocol {
                    TCP => {
                        assert_eq!((usize::from(gso_size), usize::from(csum_start)), (size, start));
                        assert_eq!(longest, Ok(headers + payload.min(size)));
                    }
                    _ => assert_eq!(longest, Err(DropReason::UNSUPPORTED), "{payload}"),
                }
            }
        }
        let long = unchecked(vxlan(&ipv4(TCP, 3000)), 34);
        assert_eq!(left(&long, long.len(), 1500).unwrap().gso_size, 1410);
    }

    #[test]
    fn the_outer_checksum_of_a_copy_of_an_unfinished_packet_is_finished_alone() {
        let padded = [ipv4(TCP, 0), vec![9; 6]].concat();
        for packet in [ipv4(UDP, 100), ipv6(UDP, &[], UDP, 100), padded] {
            for (v6, udp) in [(false, 34), (true, 54)] {
                for (port, header) in tunnels() {
                    let frame = over_udp(v6, port, header, &packet);
                    assert_eq!(place(&frame), Some((udp, 6)));
                }
            }
            assert_eq!(place(&over_gre(&GRE_CHECKED, &packet)), Some((34, 4)));
        }
        let numbered = [0x90, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(place(&over_gre(&numbered, &ipv4(TCP, 100))), Some((34, 4)));
    }

    #[test]
    fn a_copy_of_an_unfinished_packet_behind_a_complete_checksum_is_left_alone() {
        for packet in [ipv4(TCP, 100), ipv4(UDP, 100)] {
            for (v6, udp) in [(false, 34), (true, 54)] {
                let mut copy = over_udp(v6, 4789, &VXLAN, &packet);
                complete(&mut copy, (udp, 6));
                assert_eq!(place(&copy), None);
            }
        }
        let numbered = [0x90, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 1];
        for mut copy in
            [over_gre(&GRE_CHECKED, &ipv4(UDP, 100)), over_gre(&numbered, &ipv4(TCP, 100))]
        {
            complete(&mut copy, (34, 4));
            assert_eq!(place(&copy), None);
        }
    }

    #[test]
    fn an_outer_checksum_that_is_right_is_not_taken_for_unfinished() {
        for packet in [ipv4(TCP, 100), ipv4(UDP, 100)] {
            let mut frame = over_udp(false, 4789, &VXLAN, &packet);
            let inner = (84, if packet[23] == TCP { 16 } else { 6 });
            let mut whole = frame.clone();
            complete(&mut whole, inner);
            // With this source port, the checksum is the sum of the pseudo header.
            let pseudo = [frame[40], frame[41]];
            whole[34..36].fill(0);
            let rest = checksum::add(checksum::sum(&whole[34..]), checksum::sum(&pseudo));
            let port = checksum::finish(rest);
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            assert_eq!(place(&frame), Some(inner));
            complete(&mut frame, inner);
            let sum = checksum::add(checksum::sum(&pseudo), checksum::sum(&frame[34..]));
            assert_eq!((checksum::finish(sum), &frame[40..42]), (0, &pseudo[..]));
        }
    }

    #[test]
    fn the_middle_checksum_is_found_unfinished_between_a_complete_one_and_one_that_looks_so() {
        for packet in [ipv4(TCP, 100), ipv4(UDP, 100)] {
            let middle = over_udp(false, 8472, &VXLAN, &packet);
            let mut frame = over_udp(false, 4789, &VXLAN, &middle);
            let mut whole = frame.clone();
            complete(&mut whole, (84, 6));
            complete(&mut whole, (34, 6));
            frame[40..42].copy_from_slice(&whole[40..42]);
            assert_eq!(place(&frame), Some((84, 6)));
        }
    }

    #[test]
    fn headers_are_found_as_deep_as_they_are_parsed() {
        let wrap = |packet: Vec<u8>| unchecked(over_udp(false, 4789, &VXLAN, &packet), 34);
        let nested = |depth: usize| (1..depth).fold(ipv4(TCP, 100), |packet, _| wrap(packet));
        let innermost = 34 + 50 * (IP_HEADERS_MAX - 1);
        assert_eq!(place(&nested(IP_HEADERS_MAX)), Some((innermost, 16)));
        assert_eq!(place(&nested(IP_HEADERS_MAX + 1)), None);
    }

    #[test]
    fn truncated_and_hostile_headers_are_left_alone() {
        let over = |port, header: &[u8]| over_udp(false, port, header, &ipv4(TCP, 40));
        let gre = over_gre(&GRE_CHECKED, &ipv4(TCP, 40));
        for frame in [over(4789, &VXLAN), over(6081, &GENEVE), gre] {
            let end = frame.len() - 40;
            let frame = unchecked(frame, 34);
            for len in 0..end - 2 {
                let found = left(&frame[..len], frame.len(), 1500);
                let inner = found.filter(|found| usize::from(found.csum_start) > 34);
                assert_eq!(inner, None, "{len}");
            }
            for at in 12..end {
                for value in [0, 1, 0x0f, 0x3f, 0x45, 0x4f, 0x60, 0xff] {
                    let mut hostile = frame.clone();
                    hostile[at] = value;
                    for to in [at + 1, end, hostile.len()] {
                        let _ = left(&hostile[..to], hostile.len(), 40);
                    }
                }
            }
        }
    }
}
