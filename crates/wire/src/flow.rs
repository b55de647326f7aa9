//! A hash of the flow that a packet belongs to.

use std::net::IpAddr;

use crate::{EthRef, Head, IpRef, Protocol, eth, ip};

impl Head<'_> {
    /// Returns a hash of the packet's flow, which is equal for both directions and on every
    /// machine.
    ///
    /// Shape: over addresses and protocol, and ports of UDP and TCP; a fragment over its addresses
    ///        only, because a later one has no ports, and with IPv6 may not have the protocol; what
    ///        is not IP, over MAC addresses and EtherType.
    ///        Its bits are equally good: `hash % n` spreads flows evenly. It has no secret key, so
    ///        a sender can choose flows whose hashes are the same.
    /// Cost:  constant but for IPv6 extension headers, at most eight.
    #[must_use]
    pub fn flow_hash(self) -> u32 {
        let hash = match (ip::read(self), eth::eth(self.bytes)) {
            (Ok(ip), _) => of_ip(&ip),
            (Err(_), Ok(eth)) => of_eth(&eth),
            (Err(_), Err(_)) => 0,
        };
        (hash >> 32) as u32
    }
}

fn of_ip(ip: &IpRef<'_>) -> u64 {
    let protocol = if ip.is_fragment() { Protocol(0) } else { ip.protocol() };
    let has_ports = matches!(protocol, Protocol::UDP | Protocol::TCP);
    let ports = ip.payload().first_chunk().filter(|_| has_ports).unwrap_or(&[0; 4]);
    let port = |i: usize| u64::from(u16::from_be_bytes([ports[i], ports[i + 1]]));
    let src = mix(address(ip.src()) ^ port(0));
    let dst = mix(address(ip.dst()) ^ port(2));
    // The sum does not depend on the order of the two ends.
    mix(src.wrapping_add(dst) ^ u64::from(protocol.0))
}

fn of_eth(eth: &EthRef<'_>) -> u64 {
    let end = |mac: [u8; 6]| mix(mac.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    mix(end(eth.src().0).wrapping_add(end(eth.dst().0)) ^ u64::from(eth.ether_type().0))
}

/// Returns an address as 64 bits, which are then combined with a port.
fn address(addr: IpAddr) -> u64 {
    match addr {
        IpAddr::V4(addr) => u64::from(addr.to_bits()) << 16,
        IpAddr::V6(addr) => {
            let bits = addr.to_bits();
            mix((bits >> 64) as u64).wrapping_add(mix(bits as u64)) << 16
        }
    }
}

/// Returns `bits` mixed so that each one changes about half of the result.
///
/// Source: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{tcp4_frame, udp4_frame, udp6_frame};
    use crate::{HeadMut, eth_mut, transport_mut, udp_mut};

    fn hash(frame: &[u8]) -> u32 {
        Head::new(frame, 0).flow_hash()
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash_and_other_flows_another() {
        let udp4 = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"payload");
        let frames = [udp4, udp6_frame(b"payload"), tcp4_frame(&[1, 1, 1, 0], b"payload")];
        for mut frame in frames.clone() {
            let before = hash(&frame);
            transport_mut(&mut frame).unwrap().swap_ends();
            assert_eq!(hash(&frame), before);
            match transport_mut(&mut frame).unwrap() {
                crate::TransportMut::Udp(mut udp) => udp.set_src_port(1001),
                crate::TransportMut::Tcp(mut tcp) => tcp.set_src_port(1001),
            }
            assert_ne!(hash(&frame), before);
        }
        assert_ne!(hash(&frames[0]), hash(&frames[2]), "the protocol counts");
    }

    #[test]
    fn ends_are_not_confused_with_their_ports() {
        // 10.0.0.1:1 to 10.0.0.2:2, and with the ports exchanged alone.
        let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"");
        let before = hash(&frame);
        let mut udp = udp_mut(&mut frame).unwrap();
        udp.set_src_port(2000);
        udp.set_dst_port(1000);
        assert_ne!(hash(&frame), before);
    }

    #[test]
    fn fragments_of_a_datagram_have_one_hash() {
        let mut first = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"payload");
        first[20] = 0x20;
        let mut later = first.clone();
        (later[20], later[21]) = (0, 1);
        later[34..38].fill(0xee);
        assert_eq!(hash(&first), hash(&later));

        // A header for the destination is in the first fragment only: it names UDP.
        let mut first = udp6_frame(b"payload");
        first.splice(54..54, [60, 0, 0, 1, 9, 9, 9, 9, 17, 0, 1, 4, 0, 0, 0, 0]);
        (first[19], first[20]) = (first[19] + 16, 44);
        let mut later = first.clone();
        (later[57], later[62]) = (8, 0xee);
        let protocols = [&first, &later].map(|frame| crate::ip(frame).unwrap().protocol());
        assert_eq!(protocols, [Protocol::UDP, Protocol(60)]);
        assert_eq!(hash(&first), hash(&later));
    }

    #[test]
    fn hashes_are_spread_evenly() {
        let mut counts = [0u32; 16];
        for i in 0..16_000u16 {
            let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"");
            HeadMut::new(&mut frame, 0).udp().unwrap().set_src_port(i);
            counts[hash(&frame) as usize % 16] += 1;
        }
        // A fair spread leaves six standard deviations (6 x 30.6) once in 5 x 10^8 bins.
        assert!(counts.iter().all(|n| n.abs_diff(1000) < 184), "{counts:?}");
    }

    #[test]
    fn frames_without_ip_are_hashed_by_their_macs() {
        let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"");
        frame[13] = 6;
        let before = hash(&frame);
        eth_mut(&mut frame).unwrap().swap_ends();
        assert_eq!(hash(&frame), before);
        frame[0] ^= 2;
        assert_ne!(hash(&frame), before);
        assert_eq!(hash(&frame[..5]), 0);
    }
}
