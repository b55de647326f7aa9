//! Compares a datagram's headers with those that etherparse writes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::PacketBuilder;
use linerate_wire::{Mac, Malformed, UdpEnds, ip, udp};
use proptest::prelude::*;

fn ends(src: SocketAddr, dst: SocketAddr) -> UdpEnds {
    UdpEnds { src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]), src, dst }
}

proptest! {
    #[test]
    fn a_datagram_equals_writing_its_headers_anew(
        v6: bool, src: u128, dst: u128, ports: (u16, u16),
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let addr = |bits: u128, port| match v6 {
            true => SocketAddr::from((Ipv6Addr::from_bits(bits), port)),
            false => SocketAddr::from((Ipv4Addr::from_bits(bits as u32), port)),
        };
        let (src, dst) = (addr(src, ports.0), addr(dst, ports.1));
        let ends = ends(src, dst);
        let mut frame = [vec![0xee; ends.header_bytes()], payload.clone()].concat();
        ends.write(&mut frame).unwrap();
        prop_assert!(udp(&frame).unwrap().checksum_ok());

        let eth = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = match (src.ip(), dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => eth.ipv4(src.octets(), dst.octets(), 64),
            (IpAddr::V6(src), IpAddr::V6(dst)) => eth.ipv6(src.octets(), dst.octets(), 64),
            _ => unreachable!(),
        };
        let mut expected = Vec::new();
        ip.udp(ports.0, ports.1).write(&mut expected, &payload).unwrap();
        prop_assert_eq!(frame, expected);
    }
}

#[test]
fn what_is_no_datagram_is_refused_unwritten() {
    let [v4, v6] = ["192.0.2.1:9", "[fd00::1]:9"].map(|text| text.parse().unwrap());
    for (src, dst, len, error) in [
        (v4, v6, 90, Malformed::NotIpv4),
        (v6, v4, 90, Malformed::NotIpv6),
        (v4, v4, 41, Malformed::Short),
        (v6, v6, 61, Malformed::Short),
        (v4, v4, 70_000, Malformed::BadLength),
    ] {
        let mut frame = vec![0xee; len];
        assert_eq!(ends(src, dst).write(&mut frame), Err(error));
        assert!(frame.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_written_as_ones() {
    for text in ["192.0.2.1:9", "[fd00::1]:9"] {
        let end = text.parse().unwrap();
        let ends = ends(end, end);
        let at = ends.header_bytes();
        let mut frame = vec![0; at + 2];
        ends.write(&mut frame).unwrap();
        // The checksum is what the sum lacks of all ones; as payload it leaves nothing.
        frame.copy_within(at - 2..at, at);
        ends.write(&mut frame).unwrap();
        assert_eq!(frame[at - 2..at], [0xff, 0xff]);
        assert!(udp(&frame).unwrap().checksum_ok());
    }
}

#[test]
fn the_longest_datagram_fits_the_length_field_of_ipv4() {
    for text in ["192.0.2.1:9", "[fd00::1]:9"] {
        let end = text.parse().unwrap();
        let ends = ends(end, end);
        let longest = ends.header_bytes() + 65_535 - 28;
        let mut frame = vec![0; longest + 1];
        assert_eq!(ends.write(&mut frame), Err(Malformed::BadLength));
        assert!(frame.iter().all(|byte| *byte == 0));
        ends.write(&mut frame[..longest]).unwrap();
        assert_eq!(ip(&frame).unwrap().payload().len(), 65_535 - 20);
    }
}
