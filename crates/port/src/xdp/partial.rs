//! Checksums that a virtual device left to be computed, found by what stands in their place.
//!
//! Where hardware is to fill a checksum in, the kernel leaves the sum of the pseudo header there
//! (virtio says so in a header; AF_XDP has none). A packet whose field holds just that sum is taken
//! for unfinished, and marked. One that was finished and holds it by chance, one of 65,536, comes to
//! no harm: computed again, its checksum is the same.

use linerate_skb::{Offload, Skb, Trust};
use linerate_wire::checksum;

const TYPE_AT: usize = 12;
const TAG_BYTES: usize = 4;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: [u16; 2] = [0x8100, 0x88a8];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where TCP's header has its checksum.
const TCP_CHECK: usize = 16;
/// Ethernet, a tag, IPv4 with all of its options or IPv6, and TCP without any.
const HEADERS_MAX: usize = 14 + TAG_BYTES + 60 + 20;
/// virtio's kinds of superframes.
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// virtio's flag: the checksum is still to be computed.
const NEEDS_CHECKSUM: u8 = 1;

/// Marks a packet whose checksum is still to be computed; one of TCP that is longer than the interface
/// takes, as a superframe that is still to be cut.
///
/// Cost: its headers are read.
pub(super) fn mark(skb: &mut Skb, mtu_bytes: usize) {
    let mut copy = [0; HEADERS_MAX];
    let data = match skb.trust() {
        Trust::Private => skb.data(),
        Trust::Exported => {
            let n = skb.copy_to(0, &mut copy);
            &copy[..n]
        }
    };
    let Some((start, offset)) = unfinished(data) else { return };
    let (csum_start, csum_offset) = (start as u16, offset as u16);
    let partial = Offload { flags: NEEDS_CHECKSUM, csum_start, csum_offset, ..Offload::NONE };
    let network = network(data).unwrap_or(0);
    let whole = skb.len() <= network + mtu_bytes || offset != TCP_CHECK;
    let offload = if whole { partial } else { superframe(partial, data, network, mtu_bytes) };
    skb.set_offload(offload);
}

/// What says how a superframe is cut: into packets as long as the interface takes.
fn superframe(partial: Offload, data: &[u8], network: usize, mtu_bytes: usize) -> Offload {
    let start = usize::from(partial.csum_start);
    let header = data.get(start + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let v6 = data.get(network).is_some_and(|byte| byte >> 4 == 6);
    let piece = (network + mtu_bytes).saturating_sub(start + header);
    Offload {
        gso_type: if v6 { GSO_TCPV6 } else { GSO_TCPV4 },
        hdr_len: (start + header) as u16,
        gso_size: piece.min(usize::from(u16::MAX)) as u16,
        ..partial
    }
}

/// Where the network header begins.
fn network(data: &[u8]) -> Option<usize> {
    let tagged = TYPE_VLAN.contains(&u16_at(data, TYPE_AT)?);
    Some(TYPE_AT + 2 + if tagged { TAG_BYTES } else { 0 })
}

/// Where the transport header of an unfinished packet begins, and where in it the checksum stands.
fn unfinished(data: &[u8]) -> Option<(usize, usize)> {
    let mut at = TYPE_AT;
    let mut kind = u16_at(data, at)?;
    if TYPE_VLAN.contains(&kind) {
        at += TAG_BYTES;
        kind = u16_at(data, at)?;
    }
    let ip = data.get(at + 2..)?;
    let (header_bytes, protocol, addresses, payload_bytes) = match kind {
        TYPE_IPV4 => ipv4(ip)?,
        TYPE_IPV6 => ipv6(ip)?,
        _ => return None,
    };
    let offset = match protocol {
        TCP => TCP_CHECK,
        UDP => 6,
        _ => return None,
    };
    let field = u16_at(ip, header_bytes + offset)?;
    // The length counts as 32 bits in IPv6, of which the upper ones are 0 here.
    let [high, low] = payload_bytes.to_be_bytes();
    let pseudo = checksum::add(checksum::sum(addresses), checksum::sum(&[0, protocol, high, low]));
    (field != 0 && field == pseudo).then_some((at + 2 + header_bytes, offset))
}

/// Bytes of the header, protocol, both addresses, bytes behind it; none for a fragment.
fn ipv4(ip: &[u8]) -> Option<(usize, u8, &[u8], u16)> {
    let header_bytes = usize::from(ip.first()? & 0x0f) * 4;
    let fragment = u16_at(ip, 6)? & 0x3fff;
    let payload_bytes = u16_at(ip, 2)?.checked_sub(header_bytes as u16)?;
    let whole = header_bytes >= 20 && fragment == 0;
    whole.then_some((header_bytes, *ip.get(9)?, ip.get(12..20)?, payload_bytes))
}

/// The same, without extension headers.
fn ipv6(ip: &[u8]) -> Option<(usize, u8, &[u8], u16)> {
    Some((40, *ip.get(6)?, ip.get(8..40)?, u16_at(ip, 4)?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    two.try_into().ok().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::ipv4 as frame;

    #[test]
    fn a_packet_with_the_sum_of_its_pseudo_header_is_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
            let mut packet = frame(protocol, 100);
            assert_eq!(unfinished(&packet), Some((34, offset)));
            let mut tagged = packet.clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            assert_eq!(unfinished(&tagged), Some((38, offset)));
            // Finished.
            let check = checksum::finish(checksum::sum(&packet[34..]));
            packet[34 + offset..36 + offset].copy_from_slice(&check.to_be_bytes());
            assert_eq!(unfinished(&packet), None);
        }
        assert_eq!(unfinished(&frame(1, 100)), None);
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
        assert_eq!((long.gso_type, long.hdr_len, long.gso_size), (GSO_TCPV4, 54, 1460));
        assert!(!marked(&frame(TCP, 1460)).is_gso() && marked(&frame(TCP, 1461)).is_gso());
        assert!(marked(&frame(UDP, 1460)).needs_checksum());
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
