//! The ECN mark with which a queue reports congestion.

use crate::{EtherType, IPV4_BYTES, checksum, eth};

/// The ECN code point of a transport that does not support ECN.
const NOT_ECT: u8 = 0;
/// The ECN code point for "congestion experienced".
pub(crate) const CE: u8 = 3;

/// Sets the mark "congestion experienced" in the IP packet in `frame`, and updates an IPv4 header's
/// checksum; returns false, and changes nothing, if its transport does not support ECN, or `frame`
/// has no IP packet. A packet that has the mark is unchanged.
///
/// Source: RFC 3168 section 5 (code points), RFC 1624 (checksum).
#[must_use = "false: drop an IP packet, which cannot be marked; other frames have no mark"]
pub fn mark_ce(frame: &mut [u8]) -> bool {
    let Ok(mut eth) = eth::eth_mut(frame) else { return false };
    let (ether_type, ip) = (eth.ether_type(), eth.payload_mut());
    match ether_type {
        EtherType::IPV4 if ip.len() >= IPV4_BYTES && ip[0] >> 4 == 4 => {
            match ip[1] & CE {
                NOT_ECT => return false,
                CE => return true,
                _ => {}
            }
            let word = |ip: &[u8], at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let (old, check) = (word(ip, 0), word(ip, 10));
            ip[1] |= CE;
            let check = checksum::update16(check, old, word(ip, 0));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            true
        }
        // The traffic class is between the version and the flow label.
        EtherType::IPV6 if ip.len() >= 2 && ip[0] >> 4 == 6 => {
            let capable = ip[1] >> 4 & CE != NOT_ECT;
            ip[1] |= u8::from(capable) * (CE << 4);
            capable
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{fix_ipv4, udp4_frame, udp6_frame};
    use crate::{ipv4, ipv6, udp};

    #[test]
    fn capable_packets_are_marked_and_others_stay_as_they_are() {
        for ecn in 0..4 {
            let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
            frame[15] = 46 << 2 | ecn;
            fix_ipv4(&mut frame);
            let before = frame.clone();
            assert_eq!(mark_ce(&mut frame), ecn != 0);
            let ip = ipv4(&frame).unwrap();
            assert_eq!((ip.dscp(), ip.ecn()), (46, if ecn == 0 { 0 } else { 3 }));
            assert!(ip.checksum_ok() && udp(&frame).unwrap().checksum_ok());
            assert!(![0, 3].contains(&ecn) || frame == before);
        }
        // A checksum of 0xffff is no sender's; it stays, too.
        let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        frame[15] = CE;
        frame[24..26].fill(0xff);
        let before = frame.clone();
        assert!(mark_ce(&mut frame) && frame == before);
        let mut frame = udp6_frame(b"hi");
        assert!(mark_ce(&mut frame));
        let ip = ipv6(&frame).unwrap();
        assert_eq!((ip.dscp(), ip.ecn(), ip.flow_label()), (46, 3, 0xabcde));
        frame[15] &= 0xcf;
        let before = frame.clone();
        assert!(!mark_ce(&mut frame) && frame == before);
    }

    proptest! {
        #[test]
        fn any_bytes_are_marked_or_left(
            mut frame in prop::collection::vec(any::<u8>(), 0..80), kind in 0..3,
        ) {
            if frame.len() > 14 && kind < 2 {
                frame[12..15].copy_from_slice(&[[8, 0, 0x45], [0x86, 0xdd, 0x60]][kind as usize]);
            }
            let before = frame.clone();
            prop_assert!(mark_ce(&mut frame) || frame == before);
        }
    }
}
