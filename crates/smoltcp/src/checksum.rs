//! The checksums of TCP and UDP, which smoltcp leaves to the device.

use linerate::wire::{self, Malformed};
use linerate::{Offload, Skb, ViewsMut};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ETH_BYTES: usize = 14;

/// Returns false for TCP and UDP with a wrong checksum, or with IPv4 options that determine the
/// packet's route, which smoltcp skips. A checksum left to a device counts as right, because the
/// packet was never on a wire; so does one that the port has verified. Packets of other protocols
/// are left to smoltcp's own checks.
pub fn is_right(frame: &[u8], offload: Offload) -> bool {
    let is_settled = offload.flags & (Offload::NEEDS_CHECKSUM | Offload::VERIFIED) != 0;
    let right = match wire::tcp(frame) {
        Err(Malformed::NotTcp) => wire::udp(frame).map(|udp| is_settled || udp.checksum_ok()),
        tcp => tcp.map(|tcp| is_settled || tcp.checksum_ok()),
    };
    right.unwrap_or_else(|e| match e {
        Malformed::SourceRoute => false,
        // A superframe is longer than its header can say.
        Malformed::BadLength => is_settled,
        _ => true,
    })
}

/// Leaves the checksum of a packet from smoltcp to the port; for a superframe also the cutting into
/// segments of `segment` payload bytes.
pub fn leave(skb: &mut Skb, segment: Option<u16>) {
    let Some((start, protocol)) = transport(skb.data()) else { return };
    let csum_offset = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    let flags = Offload::NEEDS_CHECKSUM;
    let mut offload = Offload { flags, csum_start: start, csum_offset, ..Offload::NONE };
    if let Some(gso_size) = segment {
        let words = skb.data().get(usize::from(start) + 12).map_or(5, |byte| byte >> 4);
        offload = Offload {
            // smoltcp makes superframes of TCP over IPv4 only.
            gso_type: Offload::GSO_TCPV4,
            gso_size,
            hdr_len: start + u16::from(words) * 4,
            ..offload
        };
    }
    skb.set_offload(offload);
    // A device expects the sum of the pseudo header in the checksum field.
    let filled = match protocol {
        TCP => skb.tcp_mut().is_ok_and(|mut tcp| tcp.fill_checksum()),
        _ => skb.udp_mut().is_ok_and(|mut udp| udp.fill_checksum()),
    };
    if !filled {
        // A raw socket may send a packet that is none of its protocol.
        skb.set_offload(Offload::NONE);
    }
}

/// Returns the offset of the transport header in a frame, and its protocol; `None` for fragments,
/// and for packets other than IP.
fn transport(frame: &[u8]) -> Option<(u16, u8)> {
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = frame.get(ETH_BYTES..ETH_BYTES + 20)?;
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let start = ETH_BYTES as u16 + u16::from(header[0] & 15) * 4;
            (!is_fragment).then_some((start, header[9]))
        }
        [0x86, 0xdd] => Some((ETH_BYTES as u16 + 40, *frame.get(20)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a UDP datagram with these IPv4 options and a wrong checksum.
    fn damaged(options: &[u8]) -> Vec<u8> {
        let words = 5 + options.len() as u8 / 4;
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x40 | words, 0, 0, words * 4 + 12, 0, 0, 0, 0, 64, UDP, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend_from_slice(options);
        frame.extend([0, 7, 0, 9, 0, 12, 0xbe, 0xef, 1, 2, 3, 4]);
        frame
    }

    #[test]
    fn a_damaged_datagram_is_found_behind_whatever_options() {
        let route = [131, 7, 4, 10, 0, 0, 9, 0];
        for options in [&[][..], &[1, 1, 1, 0], &route, &[7, 9, 0, 0]] {
            assert!(!is_right(&damaged(options), Offload::NONE), "{options:?}");
        }
        assert!(is_right(&[0; 60], Offload::NONE), "no IP");
    }

    /// Returns a TCP segment with these options, in a packet of IPv4 with `options` or of IPv6; its
    /// checksum is wrong.
    fn segment(is_v6: bool, options: &[u8], tcp_options: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        let len = (20 + tcp_options.len()) as u8;
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, len, TCP, 64]);
            frame.extend([7; 32]);
        } else {
            let words = 5 + options.len() as u8 / 4;
            frame.extend([8, 0, 0x40 | words, 0, 0, words * 4 + len, 0, 0, 0, 0, 64, TCP, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend_from_slice(options);
        }
        frame.extend([0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, len << 2, 0, 0, 0, 0xbe, 0xef, 0, 0]);
        frame.extend_from_slice(tcp_options);
        frame
    }

    #[test]
    fn a_damaged_segment_is_found_and_one_that_is_cut_off_unless_it_is_settled() {
        let settled = Offload { flags: Offload::NEEDS_CHECKSUM, ..Offload::NONE };
        for mut frame in [segment(false, &[], &[]), segment(true, &[], &[1; 4])] {
            assert!(!is_right(&frame, Offload::NONE) && is_right(&frame, settled));
            frame.pop();
            assert!(!is_right(&frame, Offload::NONE) && is_right(&frame, settled), "cut off");
        }
    }

    #[test]
    fn checksums_and_superframes_are_left_with_the_places_of_their_headers() {
        let pool = linerate::Pool::builder().frames(8).build().unwrap();
        let mut mem = pool.local();
        let left = |mem: &mut linerate::Local, frame: &[u8], segment| {
            let mut skb = mem.alloc_copy(frame).unwrap();
            leave(&mut skb, segment);
            skb.offload()
        };
        let flags = Offload::NEEDS_CHECKSUM;
        let at =
            |csum_start, csum_offset| Offload { flags, csum_start, csum_offset, ..Offload::NONE };
        let (routed, timed) = ([1, 1, 1, 0], [1; 12]);
        let cut = |hdr_len, offload| Offload {
            gso_type: Offload::GSO_TCPV4,
            gso_size: 1448,
            hdr_len,
            ..offload
        };
        for (frame, segment, offload) in [
            (segment(false, &[], &timed), None, at(34, 16)),
            (segment(false, &[], &timed), Some(1448), cut(66, at(34, 16))),
            (segment(false, &routed, &[]), Some(1448), cut(58, at(38, 16))),
            (segment(true, &[], &[]), None, at(54, 16)),
            (damaged(&[]), None, at(34, 6)),
            (vec![0; 60], None, Offload::NONE),
        ] {
            assert_eq!(left(&mut mem, &frame, segment), offload, "{frame:?}");
        }
        // Too short for the header of its protocol, as a raw socket may send it.
        let mut short = damaged(&[]);
        short.truncate(38);
        short[17] = 24;
        assert_eq!(left(&mut mem, &short, None), Offload::NONE);
        // The first fragment of a datagram, and a later one.
        for fragment in [[0x20, 0], [0, 3]] {
            let mut frame = damaged(&[]);
            frame[20..22].copy_from_slice(&fragment);
            assert_eq!(left(&mut mem, &frame, None), Offload::NONE);
        }
    }

    #[test]
    fn source_route_is_refused_also_if_the_checksum_is_settled() {
        let route = [131, 7, 4, 10, 0, 0, 9, 0];
        for flags in [Offload::NEEDS_CHECKSUM, Offload::VERIFIED] {
            let offload = Offload { flags, ..Offload::NONE };
            assert!(!is_right(&damaged(&route), offload));
            assert!(is_right(&damaged(&[]), offload));
            assert!(is_right(&[0; 60], offload), "no IP");
        }
    }
}
