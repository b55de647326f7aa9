//! Check of the place at which a received offload header leaves a checksum to be filled in.
//!
//! The packet's sender chooses the place: a virtual machine behind a TAP, or a program at the other
//! end of a veth. If the place were in a header, filling the checksum in would change an address or
//! a port after a stage has read it. So a packet is refused if its checksum is at a place where no
//! checksum can be. The bytes behind UDP's header, which may be a tunnel, and behind GRE and other
//! protocols are not parsed: any place in them is accepted, and is checked again when the outer
//! headers are removed. Headers that a stage may step over, and that are not stepped over here, are
//! refused: the kernel completes such packets.

use linerate_skb::Offload;

use super::headers::{
    self, HEADERS_MAX, IP_HEADERS_MAX, IpHeader, SCTP, SCTP_CHECK, TCP, TCP_CHECK, UDP, UDP_CHECK,
};
use super::offload::{IPV4_TRANSPORT, IPV6_TRANSPORT};

const UDP_BYTES: usize = 8;
/// Protocols of further headers of IP: IPv4, IPv6, and extension headers, as far as they were not
/// stepped over.
///
/// Source: RFC 7045; the IANA registry of IPv6 extension header types.
const FURTHER_HEADERS: [u8; 10] = [0, 4, 41, 43, 44, 51, 60, 135, 139, 140];

/// Returns true if a packet that begins with `data` can have its checksum where `left` says.
#[inline]
pub(crate) fn is_possible(data: &[u8], left: Offload) -> bool {
    is_usual(data, left) || is_behind_headers(data, left)
}

/// Returns the same of a packet without its first `bytes`.
#[cold]
pub(crate) fn is_possible_without(bytes: usize, data: &[u8], left: Offload) -> bool {
    let start = usize::from(left.csum_start).checked_sub(bytes);
    let (Some(start), Some(data)) = (start, data.get(bytes..)) else { return false };
    is_possible(data, Offload { csum_start: start as u16, ..left })
}

/// Returns the same of a packet without the VLAN tag behind its addresses.
#[cold]
pub(crate) fn is_possible_untagged(data: &[u8], left: Offload) -> bool {
    let mut headers = [0; HEADERS_MAX];
    let len = data.len().min(HEADERS_MAX);
    headers[..len].copy_from_slice(&data[..len]);
    let Some(addresses) = headers.first_chunk::<12>().copied() else { return false };
    headers[4..16].copy_from_slice(&addresses);
    is_possible_without(4, &headers[..len], left)
}

/// Returns true for the checksum of TCP or UDP directly after Ethernet and an IP header without
/// options.
#[inline]
fn is_usual(data: &[u8], left: Offload) -> bool {
    let Some(head) = data.first_chunk::<24>() else { return false };
    let protocol = match left.csum_start {
        IPV4_TRANSPORT if head[12..15] == [0x08, 0x00, 0x45] => head[23],
        IPV6_TRANSPORT if head[12..14] == [0x86, 0xdd] && head[14] >> 4 == 6 => head[20],
        _ => return false,
    };
    matches!((protocol, left.csum_offset), (TCP, TCP_CHECK) | (UDP, UDP_CHECK))
}

/// Parses the headers; returns true if the checksum is at its place in the innermost transport
/// header, or in bytes that may be a tunnel.
#[cold]
fn is_behind_headers(data: &[u8], left: Offload) -> bool {
    let (start, offset) = (usize::from(left.csum_start), left.csum_offset);
    let Some(mut ip) = IpHeader::first(data) else {
        // Another protocol may carry IP, as MPLS does. The kernel completes checksums before it
        // makes fragments.
        return !headers::is_ip(data) && headers::network(data).is_some_and(|at| start >= at);
    };
    for _ in 1..IP_HEADERS_MAX {
        let Some(inner) = ip.inner(data) else { break };
        ip = inner;
    }
    match ip.protocol {
        TCP => start == ip.end && offset == TCP_CHECK,
        SCTP => start == ip.end && offset == SCTP_CHECK,
        UDP if start == ip.end => offset == UDP_CHECK,
        UDP => start >= ip.end + UDP_BYTES,
        other => start >= ip.end && !FURTHER_HEADERS.contains(&other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{chains, ipip, ipv4, ipv6, source_routed};

    const GRE: u8 = 47;

    fn is_accepted(frame: &[u8], start: usize, csum_offset: u16) -> bool {
        let (flags, csum_start) = (Offload::NEEDS_CHECKSUM, start as u16);
        is_possible(frame, Offload { flags, csum_start, csum_offset, ..Offload::NONE })
    }

    /// Asserts that the checksum of a packet whose transport header is at `start` is accepted
    /// there, and is refused at another offset, and before.
    fn assert_only_at(frame: &[u8], start: usize, protocol: u8) {
        let offset = match protocol {
            TCP => TCP_CHECK,
            UDP => UDP_CHECK,
            _ => SCTP_CHECK,
        };
        assert!(is_accepted(frame, start, offset), "{protocol} at {start}");
        assert!(!is_accepted(frame, start, offset + 2), "{protocol} at {start}");
        for before in 0..start {
            assert!(!is_accepted(frame, before, offset), "{protocol} at {before}, not {start}");
        }
    }

    #[test]
    fn checksum_is_accepted_at_the_innermost_transport_header() {
        for protocol in [TCP, UDP, SCTP] {
            let plain = ipv4(protocol, 100);
            assert_only_at(&plain, 34, protocol);
            assert_only_at(&source_routed(plain.clone()), 42, protocol);
            assert_only_at(&ipip(plain.clone()), 54, protocol);
            assert_only_at(&ipip(ipip(plain.clone())), 74, protocol);
            let mut tagged = plain;
            for (tag, start) in [([0x81, 0, 0, 5], 38), ([0x88, 0xa8, 0, 7], 42)] {
                tagged.splice(12..12, tag);
                assert_only_at(&tagged, start, protocol);
            }
            assert_only_at(&ipv6(protocol, &[], protocol, 64), 54, protocol);
            for (first, chain) in chains(protocol) {
                let frame = ipv6(first, &chain, protocol, 64);
                assert_only_at(&frame, 54 + chain.len(), protocol);
            }
        }
    }

    #[test]
    fn checksum_in_a_tunnel_that_is_not_parsed_is_accepted_behind_the_outer_headers() {
        let vxlan = ipv4(UDP, 200);
        assert!(is_accepted(&vxlan, 42 + 8 + 34, TCP_CHECK));
        assert!(is_accepted(&vxlan, 34, UDP_CHECK), "the outer checksum");
        assert!((35..42).all(|start| !is_accepted(&vxlan, start, 0)), "the outer header");
        let mut gre = ipv4(UDP, 200);
        gre[23] = GRE;
        assert!(is_accepted(&gre, 38 + 20, UDP_CHECK) && !is_accepted(&gre, 33, UDP_CHECK));
        let mut mpls = ipv4(UDP, 200);
        mpls[12..14].copy_from_slice(&[0x88, 0x47]);
        assert!(is_accepted(&mpls, 38, UDP_CHECK) && !is_accepted(&mpls, 13, UDP_CHECK));
    }

    #[test]
    fn checksum_behind_headers_that_are_not_stepped_over_is_refused() {
        // An authentication header, one of mobility, and options that are too long.
        let long = [vec![UDP, 16], vec![0; 134]].concat();
        for (first, chain) in [(51, vec![UDP, 4, 0, 0]), (135, vec![UDP, 2]), (60, long)] {
            let mut chain = chain;
            chain.resize(chain.len().next_multiple_of(24), 0);
            let frame = ipv6(first, &chain, UDP, 64);
            let udp = 54 + chain.len();
            assert!(!is_accepted(&frame, udp, 2), "the port behind {first}");
            assert!(!is_accepted(&frame, udp, UDP_CHECK), "behind {first}");
        }
        let mut inner_fragment = ipip(ipv4(UDP, 100));
        inner_fragment[40] = 0x20;
        assert!(!is_accepted(&inner_fragment, 50, 0), "the inner address");
        let deep = (0..IP_HEADERS_MAX).fold(ipv4(UDP, 100), |frame, _| ipip(frame));
        assert!(
            !is_accepted(&deep, 14 + IP_HEADERS_MAX * 20 + 16, 0),
            "an address below the limit"
        );
    }

    #[test]
    fn checksum_in_an_address_a_port_or_other_fields_is_refused() {
        let (udp, tcp, v6) = (ipv4(UDP, 100), ipv4(TCP, 100), ipv6(UDP, &[], UDP, 64));
        assert!(!is_accepted(&udp, 30, 0) && !is_accepted(&udp, 14, 16), "destination address");
        assert!(!is_accepted(&udp, 34, 2) && !is_accepted(&udp, 36, 0), "destination port");
        assert!(!is_accepted(&tcp, 34, 6), "sequence number");
        assert!(!is_accepted(&tcp, 60, 16), "payload of TCP");
        assert!(!is_accepted(&v6, 34, 6), "IPv6's destination address");
        assert!(!is_accepted(&source_routed(udp.clone()), 34, 6), "options");
        let mut fragment = udp.clone();
        fragment[20] = 0x20;
        assert!(!is_accepted(&fragment, 30, 0), "destination address of a fragment");
        for len in 0..34 {
            assert!(!is_accepted(&udp[..len], 30, 0), "{len} bytes");
        }
    }
}
