//! Tests of the views, their checks and their changes.

use super::*;
use crate::testing::{fix_ipv4, udp4_frame};
use crate::udp;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

#[test]
fn fields_read_as_written_and_padding_is_left_out() {
    let mut frame = udp4_frame(A, B, b"hi");
    frame.resize(60, 0xee);
    let ip = ipv4(&frame).unwrap();
    assert_eq!((ip.src(), ip.dst(), ip.ttl()), (A, B, 64));
    assert_eq!((ip.protocol(), ip.payload().len()), (Protocol::UDP, 10));
    assert!(ip.checksum_ok() && !ip.is_fragment());
}

#[test]
fn flags_and_total_length_are_those_of_the_header() {
    let mut frame = udp4_frame(A, B, b"hi");
    frame.resize(60, 0xee);
    // Every value of the three flags, with an offset whose bits are not theirs.
    for flags in 0..8u8 {
        (frame[20], frame[21]) = (flags << 5 | 0x1f, 0xff);
        let ip = ipv4(&frame).unwrap();
        assert_eq!((ip.dont_fragment(), ip.more_fragments()), (flags & 2 != 0, flags & 1 != 0));
        assert_eq!((ip.fragment_offset_bytes(), ip.total_len()), (65_528, 30));
        assert_eq!(crate::ip(&frame).unwrap().hops(), 64);
    }
}

#[test]
fn lengths_that_lie_are_errors() {
    let good = udp4_frame(A, B, b"hi");
    let with = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        ipv4(&frame).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(14, 0x44), Malformed::BadLength); // header length below 20
    assert_eq!(with(14, 0x4f), Malformed::BadLength); // header longer than the packet
    assert_eq!(with(14, 0x65), Malformed::BadVersion);
    assert_eq!(with(16, 1), Malformed::BadLength); // total length over the frame
    assert_eq!(with(17, 19), Malformed::BadLength); // total length below the header
    assert_eq!(with(12, 0x86), Malformed::NotIpv4);
    assert_eq!(ipv4(&good[..33]).unwrap_err(), Malformed::Short);
}

#[test]
fn the_last_hop_is_not_spent() {
    let mut frame = udp4_frame(A, B, b"");
    frame[22] = 2;
    fix_ipv4(&mut frame);
    let mut ip = ipv4_mut(&mut frame).unwrap();
    assert!(ip.dec_ttl());
    assert!(!ip.dec_ttl());
    assert_eq!(ip.ttl(), 1);
    assert!(ipv4(&frame).unwrap().checksum_ok());
}

#[test]
fn a_udp_checksum_of_none_stays_none() {
    let mut frame = udp4_frame(A, B, b"x");
    frame[40..42].fill(0);
    ipv4_mut(&mut frame).unwrap().set_dst(A);
    assert_eq!(frame[40..42], [0, 0]);
}

#[test]
fn a_later_fragment_is_not_mistaken_for_a_header() {
    let mut frame = udp4_frame(A, B, b"0123456789");
    frame[21] = 1; // offset 8 bytes
    fix_ipv4(&mut frame);
    let before = frame[34..].to_vec();
    let mut ip = ipv4_mut(&mut frame).unwrap();
    assert!(ip.is_fragment());
    assert_eq!(ip.fragment_offset_bytes(), 8);
    ip.set_src(B);
    assert_eq!(frame[34..], before);
    assert!(ipv4(&frame).unwrap().checksum_ok());
    assert_eq!(udp(&frame).unwrap_err(), Malformed::Fragment);
}

#[test]
fn a_source_route_under_way_has_no_udp_view() {
    let lsrr = [131, 7, 4, 10, 0, 0, 9, 0];
    assert_eq!(source_routed(&lsrr), Ok(true));
    assert_eq!(source_routed(&[131, 7, 8, 10, 0, 0, 9, 0]), Ok(false));
    assert_eq!(source_routed(&[1, 1, 7, 3, 4, 137, 3, 3]), Ok(true));
    assert_eq!(source_routed(&[7, 1]), Err(Malformed::BadLength));
    assert_eq!(source_routed(&[7, 9, 0]), Err(Malformed::BadLength));
    assert_eq!(source_routed(&[7]), Err(Malformed::BadLength));

    let mut frame = udp4_frame(A, B, b"x");
    frame.splice(34..34, lsrr);
    frame[14] = 0x47;
    frame[17] += 8;
    fix_ipv4(&mut frame);
    assert!(ipv4(&frame).unwrap().checksum_ok());
    assert_eq!(udp(&frame).unwrap_err(), Malformed::SourceRoute);
}

#[test]
fn a_new_next_hop_of_a_source_route_under_way_leaves_the_transport_checksum() {
    for (pointer, is_under_way) in [(4, true), (8, false)] {
        let mut frame = udp4_frame(A, B, b"x");
        frame.splice(34..34, [131, 7, pointer, 10, 0, 0, 9, 0]);
        frame[14] = 0x47;
        frame[17] += 8;
        fix_ipv4(&mut frame);
        let check = frame[48..50].to_vec();
        ipv4_mut(&mut frame).unwrap().set_dst([10, 0, 0, 3].into());
        assert_eq!(frame[48..50] == check, is_under_way);
        ipv4_mut(&mut frame).unwrap().set_src([10, 0, 0, 7].into());
        assert_ne!(frame[48..50], check);
        assert!(ipv4(&frame).unwrap().checksum_ok());
    }
}
